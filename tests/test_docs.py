"""The documentation is complete: every setting, command and field stands in it, and every link leads somewhere."""

import ast
import doctest
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from redrive.cli.root import cli
from redrive.errors import RedriveError
from redrive.settings import LISTS, SECTIONS, read, variable_name
from redrive.stores import base
from redrive.stores.query import FIELDS, SORTABLE
from redrive.testing.store_suite import StoreSuite
from redrive.watch.alerts.rules import MEASURES, RULES, AlertRule, number
from scripts import cli_reference
from tests.services import FAMILIES, Server

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def text_of(name: str) -> str:
    page = REFERENCE / name
    if not page.exists():
        pytest.fail(f"docs/reference/{name} is missing")
    return page.read_text("utf-8")


def rows_of(name: str) -> list[list[str]]:
    """The cells of every table row of a page of the reference."""
    lines = [line.strip() for line in text_of(name).splitlines()]
    rows = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]


# --- settings, commands, fields --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting", [f"{section}.{name}" for section, (_, known) in SECTIONS.items() for name in known]
)
def test_every_setting_is_documented(setting: str) -> None:
    section, _, name = setting.rpartition(".")
    rows = [row for row in rows_of("settings.md") if row[0] in {f"`{setting}`", f"`{name}`"}]
    assert rows, f"docs/reference/settings.md has no row for `{setting}`"
    meaning = SECTIONS[section][1][name].help
    assert any(meaning in row for row in rows), f"`{setting}` means, by the code: {meaning}"
    variable = variable_name(setting)
    assert variable in text_of("settings.md"), f"docs/reference/settings.md does not name {variable}"


@pytest.mark.parametrize(
    ("section", "key"), [(section, key) for section in LISTS for key in LISTS[section].keys]
)
def test_every_key_of_a_list_is_documented(section: str, key: str) -> None:
    own = text_of("settings.md").split(f"## [[{section}]]")[1].split("\n## ")[0]
    assert f"| `{key}` |" in own
    assert LISTS[section].keys[key].help in own


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_alert_rule_is_documented_with_its_limits(rule: AlertRule) -> None:
    [row] = [row for row in rows_of("alerts.md") if row[:2] == [f"`{rule.name}`", f"`{rule.measure}`"]]
    than = "less than" if rule.below else "more than"
    limits = [
        "" if limit is None else f"{than} {number(limit, rule.measure)}"
        for limit in (rule.warning, rule.critical)
    ]
    hides = ", ".join(f"`{name}`" for name in sorted(rule.hides))
    assert row[2:] == [*limits, str(rule.confirm), hides]


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_is_documented(measure: str) -> None:
    rows = [row[2] for row in rows_of("alerts.md") if row[0] == f"`{measure}`" and len(row) == 3]
    assert rows == [MEASURES[measure].meaning]


@pytest.mark.parametrize("server", FAMILIES, ids=lambda server: server.name)
def test_the_tested_versions_of_a_service_are_documented(server: type[Server[Any]]) -> None:
    [row] = [
        row
        for row in rows_of("tested-versions.md")
        if row[0].lower() == server.name.replace("postgres", "postgresql")
    ]
    assert re.findall(r"([\d.]+) \(", row[1]) == list(reversed(server.generations))


def test_the_tested_versions_of_python_are_documented() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    [row] = [row for row in rows_of("tested-versions.md") if row[0] == "Python"]
    assert row[1].split(", ") == re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))


def test_no_setting_is_documented_that_there_is_not() -> None:
    real = {f"{section}.{name}" for section, (_, known) in SECTIONS.items() for name in known}
    written = {
        found[1]
        for row in rows_of("settings.md")
        if (found := re.fullmatch(r"`([a-z]+(?:\.[a-z_]+)+)`", row[0]))
    }
    assert written == real


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_toml_examples_are_valid_settings(page: Path) -> None:
    for example in re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        read(tomllib.loads(example))


def commands(
    command: click.Command = cli, words: tuple[str, ...] = ("redrive",)
) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by the words that call it."""
    if not isinstance(command, click.Group):
        yield " ".join(words), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from commands(inner, (*words, name))


@pytest.mark.parametrize(("words", "command"), list(commands()), ids=[words for words, _ in commands()])
def test_every_command_and_each_of_its_options_is_documented(words: str, command: click.Command) -> None:
    sections = re.split(r"^## ", text_of("cli.md"), flags=re.MULTILINE)
    own = [section for section in sections if re.match(rf"`?{re.escape(words)}\b", section)]
    assert own, f"docs/reference/cli.md has no section '## {words}'"
    for parameter in command.params:
        for option in parameter.opts:
            if option.startswith("--"):
                assert option in own[0], f"docs/reference/cli.md does not tell of {option} under '{words}'"


def test_help_texts_and_default_settings_of_the_cli_reference_are_current() -> None:
    text = text_of("cli.md")
    assert text == cli_reference.updated(text), "run: python scripts/cli_reference.py"


@pytest.mark.parametrize("words", [words for words, _ in commands()])
def test_cli_reference_has_the_help_of_every_command(words: str) -> None:
    assert f"<!-- help: {words} -->" in text_of("cli.md")


def test_every_exit_code_is_documented() -> None:
    codes = {RedriveError.exit_code, *(kind.exit_code for kind in RedriveError.__subclasses__()), 0}
    written = {row[0].strip("`") for row in rows_of("cli.md")}
    assert {str(code) for code in codes} <= written


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_the_filter_language_is_documented(field: str) -> None:
    rows = [row for row in rows_of("queries.md") if row[0] == f"`{field}`"]
    assert rows, f"docs/reference/queries.md has no row for `{field}`"
    assert rows[0][1] == FIELDS[field].kind


@pytest.mark.parametrize("word", [*SORTABLE, "since", "until", "sort"])
def test_every_alias_and_every_order_is_documented(word: str) -> None:
    assert re.search(rf"\b{word}\b", text_of("queries.md")), (
        f"docs/reference/queries.md does not tell of {word}"
    )


# --- links -----------------------------------------------------------------------------------------------


def without_code(text: str) -> str:
    fenced = re.sub(r"^(```+|~~~+).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(`+)[^`].*?\1", "", fenced)


def anchors(page: Path) -> set[str]:
    """The names that headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {*plain, *(f"{name}-{number}" for name in plain for number in range(1, 5))}


def links(page: Path) -> list[str]:
    text = page.read_text("utf-8")
    # Code may stand in the text of a link, so fenced blocks go and inline code stays.
    text = re.sub(r"^(```+|~~~+).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", text)
    return inline + re.findall(r"^\[[^\]]+\]:\s*(\S+)", without_code(text), re.MULTILINE)


def test_there_are_pages_with_links() -> None:
    assert (ROOT / "README.md") in PAGES
    assert sum(len(links(page)) for page in PAGES) > 10


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in links(page):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == [], f"{page.relative_to(ROOT)} links to what is not there"


# --- the contract of stores ------------------------------------------------------------------------------

SENTENCES = [int(number) for number in re.findall(r"^  S(\d+)\b", base.__doc__ or "", re.MULTILINE)]


def test_the_sentences_of_the_contract_are_numbered_without_gaps() -> None:
    assert list(range(1, len(SENTENCES) + 1)) == SENTENCES
    assert len(SENTENCES) >= 33


@pytest.mark.parametrize("number", SENTENCES)
def test_every_sentence_of_the_contract_has_a_test(number: int) -> None:
    tests = [name for name in dir(StoreSuite) if re.match(rf"test_s{number:02}_", name)]
    assert tests, f"no test of the suite is named test_s{number:02}_…"


def test_no_test_of_the_suite_has_the_number_of_a_sentence_that_is_not_there() -> None:
    numbers = {int(found[1]) for name in dir(StoreSuite) if (found := re.match(r"test_s(\d+)_", name))}
    assert numbers == set(SENTENCES)
    assert all(re.match(r"test_s\d\d_", name) for name in dir(StoreSuite) if name.startswith("test_"))


async def test_tutorial_of_the_store_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `python -m asyncio` runs it."""
    page = (ROOT / "docs" / "tutorial" / "first-dead-letter.md").read_text("utf-8")
    prompt = "".join(re.findall(r"^```pycon\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    examples = doctest.DocTestParser().get_examples(prompt)
    assert len(examples) > 20
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in examples:
        code = compile(example.source, "<tutorial>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if code.co_flags & inspect.CO_COROUTINE:
            await result
        printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
        expected = "\n".join(line.rstrip() for line in example.want.splitlines())
        assert printed == expected, example.source
