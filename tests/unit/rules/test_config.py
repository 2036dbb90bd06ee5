"""Rules as a settings file has them."""

import tomllib
from typing import Any

import pytest

from redrive.errors import SettingsError
from redrive.letters.failure import FailureKind
from redrive.rules import Classifier, Strategy, rules_from_config, strategies_from_config

SETTINGS = """
[[rules]]
name = "dup"
text = "duplicate invoice"
retryable = false
kind = "business"

[[rules]]
name = "partner down"
kind = "unavailable"
type = ["acme.PartnerError", "ConnectionError"]
status = [500, "4xx"]

[[rules]]
name = "disk"
kind = "unavailable"
errno = ["ENOSPC", 122]

[[rules]]
name = "codes"
kind = "rejected"
pattern = 'E\\d{3}'
retryable = true
"""


def test_rules_are_read_from_toml_and_asked_in_order() -> None:
    rules = rules_from_config(tomllib.loads(SETTINGS)["rules"])
    classifier = Classifier(rules)
    assert [rule.name for rule in rules] == ["dup", "partner down", "disk", "codes"]
    assert classifier.classify(Exception("Duplicate invoice 7")).rule == "dup"
    assert classifier.classify_text("acme.PartnerError", "HTTP 404").rule == "partner down"
    assert classifier.classify_text("acme.PartnerError", "HTTP 503").rule == "status:unavailable"
    assert classifier.classify(OSError(28, "full")).rule == "disk"
    assert classifier.classify(Exception("code E123")).retryable


def entry(**changes: Any) -> list[dict[str, Any]]:
    return [{"name": "r", "kind": "business", "text": "x", **changes}]


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        (entry(txet="y"), "rule 'r': unknown key 'txet'; did you mean 'text'?"),
        (entry(kind="busines"), "rule 'r': 'kind': unknown kind 'busines'; did you mean 'business'?"),
        (entry(kind="zzz"), "it is one of timeout"),
        (entry(kind=5), "unknown kind 5"),
        (entry(text=""), "rule 'r': text: it is empty"),
        (entry(text=[]), "rule 'r': text: it is empty"),
        (entry(text=5), "rule 'r': 'text' cannot be 5"),
        (entry(text="x" * 501), "rule 'r': text: longer than"),
        (entry(pattern="("), "rule 'r': pattern: '(' is not a regular expression"),
        (entry(pattern="(a+)+$"), "has nested repetition"),
        (entry(pattern=".*"), "matches the empty text"),
        (entry(status=700), "rule 'r': status: give 100 to 599"),
        (entry(status=True), "'status' cannot be True"),
        (entry(errno="EWHAT"), "rule 'r': errno: 'EWHAT'"),
        (entry(type=[""]), "rule 'r': type: name at least one class"),
        (entry(retryable="no"), "'retryable' must be true or false, not 'no'"),
        (entry() + entry(), "rule 'r': the name is used twice"),
        ([{"name": "r", "kind": "business"}], "rule 'r': needs a condition"),
        ([{"name": "r", "text": "x"}], "rule 'r': needs a 'kind'"),
        ([{"kind": "business"}], "rule 1: needs a 'name'"),
        (["x"], "rule 1: write it as a table"),
        ({"name": "r"}, "rules: write a list"),
        ("rules", "rules: write a list"),
        (entry() * 1001, "exceed the limit of 1000"),
    ],
)
def test_a_rule_that_cannot_be_understood_is_refused_in_one_line(entries: Any, says: str) -> None:
    with pytest.raises(SettingsError) as problem:
        rules_from_config(entries)
    assert says in str(problem.value)
    assert "\n" not in str(problem.value)


def test_strategies_are_read_from_a_table() -> None:
    assert strategies_from_config({"timeout": "scheduled"}) == {FailureKind.TIMEOUT: Strategy.SCHEDULED}
    with pytest.raises(SettingsError, match="did you mean 'timeout'"):
        strategies_from_config({"timeot": "manual"})
    with pytest.raises(SettingsError, match="did you mean 'manual'"):
        strategies_from_config({"timeout": "manul"})
    with pytest.raises(SettingsError, match="write a table"):
        strategies_from_config([])  # type: ignore[arg-type]
