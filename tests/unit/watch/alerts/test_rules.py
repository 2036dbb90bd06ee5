import pytest
from hypothesis import given, strategies as st

from redrive.errors import SettingsError
from redrive.watch.alerts.rules import MEASURES, RENAMED_RULES, RULES, AlertRule, checked

BY_NAME = {rule.name: rule for rule in RULES}


def a_rule(**changes: object) -> AlertRule:
    fields: dict[str, object] = {
        "name": "dlq-depth",
        "measure": "dlq_depth",
        "warning": 100.0,
        "critical": 1000.0,
        "text": "{subject}: {value}, more than {limit}.",
    }
    return AlertRule(**{**fields, **changes})  # type: ignore[arg-type]


def test_every_shipped_rule_has_a_name_of_its_own_and_hides_only_rules_that_are_there() -> None:
    assert checked(RULES) == RULES
    for rule in RULES:
        assert rule.hides <= set(BY_NAME), rule.name
        assert rule.measure in MEASURES


def test_every_measure_has_a_rule() -> None:
    assert {rule.measure for rule in RULES} == set(MEASURES)


@given(st.floats(allow_nan=False), st.booleans())
def test_the_limit_itself_is_fine(limit: float, below: bool) -> None:
    assert a_rule(warning=None, critical=limit, below=below).judged(limit) is None


@given(st.text(max_size=50), st.floats(allow_nan=False, allow_infinity=False))
def test_whatever_is_measured_can_be_told(subject: str, value: float) -> None:
    for rule in RULES:
        assert "{" not in rule.told(subject.replace("{", ""), value, 1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"measure": "dlq_dept"}, "there is no measure 'dlq_dept'; did you mean 'dlq_depth'"),
        ({"measure": "weather"}, "use one of open_letters"),
        ({"measure": "dead_letter_share"}, "did you mean 'dead_letter_ratio'?"),
        ({"warning": None, "critical": None}, "needs a threshold"),
        ({"confirm": 0}, "must be an integer of at least 1"),
        ({"name": ""}, "lowercase letters"),
        ({"name": "Queue size"}, "such as dlq-depth"),
        ({"name": "a:b"}, "lowercase letters"),
        ({"name": "a" * 61}, "lowercase letters"),
        ({"text": "{name} is full"}, "{subject}, {queue}, {value}, {limit} and {next}, no other"),
        ({"text": "{} is full"}, "no other"),
        ({"text": "{subject"}, "no other"),
        ({"text": "{subject.__class__}"}, "no other"),
        ({"text": "{subject!r:>1000000000}"}, "no other"),
        ({"warning": 2000}, "its warning threshold must be reached before its critical threshold"),
        ({"warning": 0.1, "critical": 0.5, "below": True}, "its warning threshold must be reached before"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(SettingsError, match="alert rule") as error:
        a_rule(**changes)
    assert why in str(error.value)


def test_names_at_their_limits_are_taken() -> None:
    assert a_rule(name="a").name == "a"
    assert len(a_rule(name="a" * 60).name) == 60


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(SettingsError, match="two alert rules have the name 'dlq-depth'"):
        checked([a_rule(), a_rule(critical=5000.0)])


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (12_345, "12,345"), (0.0525, "0.0525"), (7.25, "7.25"), (1 / 3, "0.333"), (3612.5, "3,612")],
)
def test_number_is_written_for_people(value: float, text: str) -> None:
    assert a_rule(text="{value}").told("x", value, 1) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12, "12 %"), (0.1, "10 %"), (0.005, "0.5 %"), (1, "100 %"), (0, "0 %"), (1 / 3, "33.3 %")],
)
def test_ratio_is_written_as_a_percentage(value: float, text: str) -> None:
    rule = a_rule(measure="dead_letter_ratio", warning=0.1, critical=None, text="{value}, limit {limit}")
    assert rule.told("x", value, 0.1) == f"{text}, limit 10 %"


@pytest.mark.parametrize(("old", "new"), RENAMED_RULES.items())
def test_former_name_of_a_rule_is_free_and_its_new_name_is_a_rule(old: str, new: str) -> None:
    assert new in BY_NAME
    assert old not in BY_NAME
