"""The pages about rules say what the code does: tables are drawn from the data, examples are run."""

import errno
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redrive.rules as room
from redrive.letters.failure import FailureKind
from redrive.rules import (
    RETRYABLE,
    STRATEGIES,
    Classification,
    Classifier,
    DeadLetterIt,
    Failed,
    NotRun,
    Outcome,
    Succeeded,
    decide,
    rules_from_config,
    strategies_from_config,
)
from redrive.rules.defaults import ERRNOS, STATUSES, TYPES
from redrive.rules.phrases import TEXTS
from redrive.rules.rule import ErrnoIn, Rule, Says, StatusIn, TypeIs

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = DOCS / "reference" / "rules.md"
HOW_TO = DOCS / "how-to" / "add-a-rule.md"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def yes(value: object) -> str:
    return "yes" if value else "no"


def matrix() -> str:
    limit = 3
    again = Failed(Classification(FailureKind.NETWORK, True, "r"))
    final = Failed(Classification(FailureKind.MALFORMED, False, "r"))
    cells: list[tuple[str, str, Outcome, int]] = [
        ("not run yet", "≤ limit", NotRun(), limit),
        ("not run yet", "> limit", NotRun(), limit + 1),
        ("succeeded", "any", Succeeded(), limit),
        ("failed, not retryable", "any", final, 1),
        ("failed, retryable", "< limit", again, limit - 1),
        ("failed, retryable", "≥ limit", again, limit),
    ]
    rows = []
    for outcome, count, value, delivery in cells:
        found = decide(value, delivery, limit)
        reason = f"`{found.reason}`" if isinstance(found, DeadLetterIt) else ""
        rows.append([outcome, count, f"`{type(found).__name__}`", reason])
    return table(["outcome", "delivery count", "decision", "reason"], rows)


def kinds() -> str:
    rows = [[f"`{kind}`", yes(kind in RETRYABLE), f"`{STRATEGIES[kind]}`"] for kind in FailureKind]
    return table(["kind", "tried again within seconds", "sent back"], rows)


def looked_for(rule: Rule) -> str:
    match rule.when:
        case TypeIs(names):
            return ", ".join(f"`{name.removeprefix('builtins.')}`" for name in sorted(names))
        case StatusIn(statuses) if len(statuses) > 20:
            return f"all other {min(statuses) // 100}xx"
        case StatusIn(statuses):
            return ", ".join(map(str, sorted(statuses)))
        case ErrnoIn(numbers):
            return ", ".join(f"`{errno.errorcode[number]}`" for number in sorted(numbers))
        case Says(phrases):
            return ", ".join(phrase.strip() for phrase in phrases)
    raise AssertionError(rule)


def defaults(rules: tuple[Rule, ...]) -> Callable[[], str]:
    return lambda: table(
        ["rule", "kind", "retryable", "looks for"],
        [[f"`{rule.name}`", f"`{rule.kind}`", yes(rule.retries), looked_for(rule)] for rule in rules],
    )


TABLES: dict[str, Callable[[], str]] = {
    "matrix": matrix,
    "kinds": kinds,
    "types": defaults(TYPES),
    "statuses": defaults(STATUSES),
    "errnos": defaults(ERRNOS),
    "texts": defaults(TEXTS),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_reference_is_what_the_code_has(name: str) -> None:
    page = REFERENCE.read_text(encoding="utf-8")
    found = re.search(rf"<!-- table: {name} -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert found, f"{REFERENCE} has no table {name!r}"
    assert found[1] == TABLES[name](), f"put this into {REFERENCE}:\n{TABLES[name]()}"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL)


def test_the_python_examples_of_the_guide_run() -> None:
    names: dict[str, Any] = {}
    assert blocks("python")
    for block in blocks("python"):
        exec(block, names)


def test_the_settings_of_the_guide_are_accepted() -> None:
    rules = 0
    for block in blocks("toml"):
        settings = tomllib.loads(block)
        rules += len(rules_from_config(settings.get("rules", [])))
        strategies_from_config(settings.get("strategies", {}))
    assert rules


def test_no_class_status_or_errno_is_listed_twice() -> None:
    for rules in (TYPES, STATUSES, ERRNOS, TEXTS):
        entries = [one for rule in rules for one in getattr(rule.when, rule.when.__struct_fields__[0])]  # type: ignore[union-attr]
        assert len(entries) == len(set(entries))


def test_phrases_are_written_as_texts_are_cut() -> None:
    from redrive.rules.evidence import words

    for rule in TEXTS:
        assert isinstance(rule.when, Says)
        for phrase in rule.when.phrases:
            assert words(phrase) == phrase
            found = Classifier().classify_text("", phrase)
            assert found.retryable == rule.retries, (phrase, found)


def test_the_room_shows_what_it_says() -> None:
    assert sorted(set(room.__all__)) == sorted(room.__all__)
    assert all(hasattr(room, name) for name in room.__all__)
