import pytest
from hypothesis import given, strategies as st

from redrive.errors import SettingsError
from redrive.watch.alerts.alert import Severity
from redrive.watch.alerts.rules import MEASURES, RULES, AlertRule, checked

BY_NAME = {rule.name: rule for rule in RULES}


def a_rule(**changes: object) -> AlertRule:
    fields: dict[str, object] = {
        "name": "queue-size",
        "measure": "dlq_depth",
        "warning": 100.0,
        "critical": 1000.0,
        "text": "{subject}: {value}, more than {limit}.",
    }
    return AlertRule(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "value", "severity"),
    [
        # seed 000: more than 100 is a warning, more than 1,000 is critical
        ("queue-size", 100, None),
        ("queue-size", 101, Severity.WARNING),
        ("queue-size", 1000, Severity.WARNING),
        ("queue-size", 1001, Severity.CRITICAL),
        ("dead-share", 0.10, None),
        ("dead-share", 0.1001, Severity.CRITICAL),
        # seed 002: any message in a dead-letter queue, and a probe that fails
        ("probe-failed", 0, None),
        ("probe-failed", 1, Severity.CRITICAL),
        ("dead-letter", 0, None),
        ("dead-letter", 1, Severity.CRITICAL),
        # seed 003: 1 % and 5 % of the throughput, and one error type
        ("dead-rate", 0.01, None),
        ("dead-rate", 0.0101, Severity.WARNING),
        ("dead-rate", 0.05, Severity.WARNING),
        ("dead-rate", 0.0501, Severity.CRITICAL),
        ("error-spike", 5, None),
        ("error-spike", 5.1, Severity.WARNING),
        # seed 004: 100 a minute, 10,000 open, less than half resolved
        ("ingestion", 100, None),
        ("ingestion", 101, Severity.WARNING),
        ("backlog", 10_000, None),
        ("backlog", 10_001, Severity.CRITICAL),
        ("resolution", 0.5, None),
        ("resolution", 0.49, Severity.WARNING),
    ],
)
def test_what_is_shipped_has_the_thresholds_that_are_recommended(
    rule: str, value: float, severity: Severity | None
) -> None:
    judged = BY_NAME[rule].judged(value)
    assert (judged and judged[0]) == severity


def test_a_message_in_a_dead_letter_queue_is_told_in_the_words_that_operators_know() -> None:
    assert BY_NAME["dead-letter"].told("orders", 3, 0, "orders.dlq") == (
        "1 or more messages found in Dead-Letter Queue orders.dlq. Manual intervention required."
    )


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
        ({"measure": "dlq_dept"}, "nothing measures 'dlq_dept'; did you mean 'dlq_depth'"),
        ({"measure": "weather"}, "use one of open_letters"),
        ({"warning": None, "critical": None}, "wants a limit"),
        ({"confirm": 0}, "from 1 on"),
        ({"name": ""}, "small letters"),
        ({"name": "Queue size"}, "such as queue-size"),
        ({"name": "a:b"}, "small letters"),
        ({"name": "a" * 61}, "small letters"),
        ({"text": "{name} is full"}, "{subject}, {queue}, {value} and {limit}, no other"),
        ({"text": "{} is full"}, "no other"),
        ({"text": "{subject"}, "no other"),
        ({"text": "{subject.__class__}"}, "no other"),
        ({"text": "{subject!r:>1000000000}"}, "no other"),
        ({"warning": 2000}, "its warning has to come before its critical limit"),
        ({"warning": 0.1, "critical": 0.5, "below": True}, "its warning has to come before"),
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
    with pytest.raises(SettingsError, match="two alert rules have the name 'queue-size'"):
        checked([a_rule(), a_rule(critical=5000.0)])


@pytest.mark.parametrize(
    ("value", "told"), [(3, "3"), (12_345, "12,345"), (0.0525, "0.0525"), (7.25, "7.25"), (1 / 3, "0.333")]
)
def test_numbers_are_told_as_people_write_them(value: float, told: str) -> None:
    assert a_rule(text="{value}").told("x", value, 1) == told
