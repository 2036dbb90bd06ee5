"""What the settings make of the alarm: rules, windows, notifiers, and who is told of what."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive.clock import SystemClock
from redrive.errors import SettingsError
from redrive.serve import Server
from redrive.settings import read
from redrive.watch.alerts.alert import Alert, Occasion, Severity
from redrive.watch.alerts.incidents import Policy
from redrive.watch.alerts.made import notifiers_of, policy_of, rules_of, told_to, unmeasured, windows_of
from redrive.watch.alerts.rules import MEASURES, RULES

MAIL = {
    "name": "ops",
    "type": "mail",
    "host": "127.0.0.1",
    "from": "r@example.org",
    "to": ["o@example.org"],
}
CHAT = {"name": "chat", "type": "slack", "url": "https://127.0.0.1/secret"}


def an_alert(**changes: Any) -> Alert:
    now = datetime(2026, 11, 15, tzinfo=UTC)
    fields: dict[str, Any] = {
        "incident": "i-1",
        "occasion": Occasion.RAISED,
        "severity": Severity.CRITICAL,
        "rule": "dead-letter",
        "text": "text",
        "component": "RabbitMQ",
        "queue": "orders.dlq",
        "since": now,
        "time": now,
    }
    return Alert(**{**fields, **changes})


# --- rules -----------------------------------------------------------------------------------------------------------


def test_without_settings_the_rules_are_those_that_are_shipped() -> None:
    assert rules_of(read({})) == RULES
    assert policy_of(read({})) == Policy()
    assert windows_of(read({})) == ()
    assert notifiers_of(read({}), {}) == []


def test_what_is_not_said_of_a_shipped_rule_stays_as_it_is() -> None:
    changed = {
        rule.name: rule for rule in rules_of(read({"alert_rules": [{"name": "dlq-depth", "warning": 5}]}))
    }
    shipped = {rule.name: rule for rule in RULES}
    assert (changed["dlq-depth"].warning, changed["dlq-depth"].critical) == (5, 1000)
    assert changed["dlq-depth"].text == shipped["dlq-depth"].text
    assert {name for name in shipped if changed[name] != shipped[name]} == {"dlq-depth"}


def test_a_rule_is_switched_off_by_its_name() -> None:
    rules = rules_of(read({"alert_rules": [{"name": "dead-letter", "enabled": False}]}))
    assert {rule.name for rule in RULES} - {rule.name for rule in rules} == {"dead-letter"}


def test_a_rule_of_ones_own_is_one_more() -> None:
    own = {"name": "pile-up", "measure": "open_letters", "warning": 10, "message": "{value} in {queue}"}
    *shipped, rule = rules_of(read({"alert_rules": [own]}))
    assert tuple(shipped) == RULES
    assert (rule.name, rule.warning, rule.told("orders", 11, 10, "orders.dlq")) == (
        "pile-up",
        10,
        "11 in orders.dlq",
    )


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"name": "dlq-dept", "warning": 5}, "needs a 'measure'; did you mean 'dlq-depth'?"),
        (
            {"name": "dead-leter", "enabled": False},
            "cannot be disabled: there is no such built-in rule; did you mean 'dead-letter'?",
        ),
        (
            {"name": "mine", "measure": "weather", "warning": 1, "message": "x"},
            "there is no measure 'weather'",
        ),
        ({"name": "mine", "measure": "backlog", "message": "x"}, "needs a threshold"),
        (
            {"name": "mine", "measure": "probe", "critical": 1, "message": "x"},
            "did you mean 'probe_failures'?",
        ),
        ({"name": "queue-size", "warning": 5}, "'queue-size' was renamed; did you mean 'dlq-depth'?"),
        ({"name": "service", "enabled": False}, "'service' was renamed; did you mean 'service-failed'?"),
        (
            {"name": "dlq-depth", "warning": 5000},
            "its warning threshold must be reached before its critical threshold",
        ),
    ],
)
def test_a_rule_that_cannot_be_made_is_refused(table: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError) as error:
        rules_of(read({"alert_rules": [table]}))
    assert why in str(error.value)


# --- what cannot be measured -----------------------------------------------------------------------------------------

SOURCES: dict[str, Any] = {"sources": [{"name": "orders"}]}


@pytest.mark.parametrize(
    ("table", "kind", "reasons"),
    [
        (SOURCES, "embedded", {"undeliverable": "only Kafka"}),
        (SOURCES, "kafka", {}),
        (
            {},
            "kafka",
            dict.fromkeys(("dead_letter_ratio", "recent_dead_letter_ratio"), "no [[sources]] are configured"),
        ),
        (
            SOURCES,
            "rabbitmq",
            {
                **dict.fromkeys(
                    ("probe_failures", "dead_letter_ratio", "recent_dead_letter_ratio", "stalled"),
                    "broker.management_url is not set",
                ),
                "undeliverable": "only Kafka",
            },
        ),
        (
            {**SOURCES, "broker": {"management_url": "http://127.0.0.1:15672"}},
            "rabbitmq",
            {"undeliverable": "only Kafka"},
        ),
        ({**SOURCES, "retention": {"resolved": "2d"}}, "kafka", {}),
        ({**SOURCES, "retention": {"resolved": "47h"}}, "kafka", {"resolution": "retention.resolved"}),
    ],
)
def test_measure_that_is_never_taken_has_a_reason(
    table: dict[str, Any], kind: str, reasons: dict[str, str]
) -> None:
    found = unmeasured(read(table), kind)
    assert found.keys() == reasons.keys() <= MEASURES.keys()
    assert all(reasons[measure] in reason for measure, reason in found.items())


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"notifiers": {}}, "notifiers: write a list, one [[notifiers]] table for each notifier"),
        ({"notifiers": [1]}, "notifier 1: write it as a table with a name and a type"),
        ({"notifiers": [{"name": "x"}]}, "notifier 1: needs a 'type'"),
        (
            {"notifiers": [{"name": "x", "type": "pigeon"}]},
            "notifier 1: type = 'pigeon': must be one of mail, json",
        ),
        ({"notifiers": [{"name": "x", "type": "mial"}]}, "did you mean 'mail'?"),
        ({"notifiers": [MAIL, MAIL]}, "notifier 2: 'ops' is named twice"),
        (
            {"notifiers": [{**MAIL, "port": 0}]},
            "notifier 1: port = 0: must be an integer between 1 and 65535",
        ),
        (
            {"notifiers": [{**MAIL, "hots": "x"}]},
            "unknown setting 'hots' of notifier 1; did you mean 'host'?",
        ),
        ({"maintenance_windows": [{"cron": "0 2 * * *"}]}, "maintenance window 1: needs a 'duration'"),
        (
            {"maintenance_windows": [{"duration": "1h", "start": "2026-11-15"}]},
            "must be a time with a time zone",
        ),
        (
            {"maintenance_windows": [{"duration": "1h", "start": datetime(2026, 11, 15)}]},  # noqa: DTZ001  no time zone on purpose
            "must be a time with a time zone",
        ),
        ({"alert_rules": [{"name": "dlq-depth", "warning": "many"}]}, "must be a number"),
        ({"alert_rules": [{"name": "dlq-depth", "warning": float("nan")}]}, "must be a number"),
        ({"alert_rules": [{"name": "dlq-depth", "warning": True}]}, "must be a number"),
        ({"alerts": {"interval": "0s"}}, "must be a duration between 1s and 1h"),
        ({"alerts": {"max_escalations": -1}}, "must be an integer between 0 and 1000"),
    ],
)
def test_settings_that_make_no_sense_are_refused_where_they_stand(table: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError) as error:
        read(table)
    assert why in str(error.value)


def test_patience_comes_from_the_settings() -> None:
    table = {"cooldown": "1h", "resolve_after": "5m", "escalate_after": "2h", "max_escalations": 1}
    assert policy_of(read({"alerts": table})) == Policy(
        cool_down=timedelta(hours=1),
        calm=timedelta(minutes=5),
        escalate_after=timedelta(hours=2),
        escalations=1,
    )


def test_windows_come_from_the_settings() -> None:
    begins = datetime(2026, 11, 15, 22, tzinfo=UTC)
    tables = [
        {"start": begins, "duration": "2h", "queue_pattern": "orders.*"},
        {"cron": "0 2 * * *", "duration": "1h", "time_zone": "Europe/Berlin"},
    ]
    once, nightly = windows_of(read({"maintenance_windows": tables}))
    assert once.is_open(begins + timedelta(hours=1), "orders.dlq")
    assert nightly.is_open(datetime(2026, 11, 15, 1, 30, tzinfo=UTC))


# --- notifiers -------------------------------------------------------------------------------------------------------


def test_notifiers_have_the_names_of_their_tables() -> None:
    notifiers = notifiers_of(read({"notifiers": [MAIL, CHAT]}), {})
    assert [notifier.name for notifier in notifiers] == ["ops", "chat"]


def test_secrets_come_from_the_environment() -> None:
    mail = {**MAIL, "user": "redrive", "password": "env:SMTP_PASSWORD"}
    pager = {"name": "pager", "type": "pagerduty", "url": "env:PAGER_URL", "secret": "env:PAGER_KEY"}
    environ = {"SMTP_PASSWORD": "s3cret", "PAGER_URL": "https://127.0.0.1/v2/enqueue", "PAGER_KEY": "k"}
    assert len(notifiers_of(read({"notifiers": [mail, pager]}), environ)) == 2
    for variable in environ:
        with pytest.raises(SettingsError, match=f"the variable {variable} is not set"):
            notifiers_of(read({"notifiers": [mail, pager]}), {**environ, variable: ""})


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"name": "ops", "type": "mail"}, "notifier 'ops': a mail needs 'host'"),
        ({**MAIL, "to": []}, "notifier 'ops': a mail needs 'to'"),
        ({**MAIL, "user": "redrive"}, "set both user and password, or neither"),
        ({**MAIL, "user": "redrive", "password": "x", "tls": "none"}, "a password is only sent over TLS"),
        ({"name": "chat", "type": "slack"}, "notifier 'chat': needs a 'url'"),
        ({"name": "chat", "type": "slack", "url": "ftp://127.0.0.1/xXsecretXx"}, "notifier 'chat'"),
        ({"name": "pager", "type": "pagerduty", "url": "https://127.0.0.1/"}, "notifier 'pager'"),
    ],
)
def test_a_notifier_that_cannot_work_is_refused_by_its_name(table: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError) as error:
        notifiers_of(read({"notifiers": [table]}), {})
    assert why in str(error.value)
    assert "xXsecretXx" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "alert", "is_told"),
    [
        ({}, {}, True),
        ({}, {"severity": Severity.WARNING}, True),
        ({"min_severity": "critical"}, {}, True),
        ({"min_severity": "critical"}, {"severity": Severity.WARNING}, False),
        ({"queue_pattern": "orders.*"}, {}, True),
        ({"queue_pattern": "orders.*"}, {"queue": "mail.dlq"}, False),
        ({"queue_pattern": "orders.*"}, {"queue": None}, False),
        ({"escalations_only": True}, {}, False),
        ({"escalations_only": True}, {"occasion": Occasion.AGAIN}, False),
        ({"escalations_only": True}, {"occasion": Occasion.ESCALATED}, True),
        ({"escalations_only": True}, {"occasion": Occasion.RECOVERED}, False),
        ({"escalations_only": True}, {"occasion": Occasion.RECOVERED, "escalations": 1}, True),
    ],
)
def test_everybody_is_told_what_concerns_them(
    table: dict[str, Any], alert: dict[str, Any], is_told: bool
) -> None:
    settings = read({"notifiers": [{**CHAT, **table}]})
    assert told_to(an_alert(**alert), settings.notifiers) == (["chat"] if is_told else [])


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (
            {"alert_rules": [{"name": "dlq-depth", "warning": 5000}]},
            "its warning threshold must be reached before",
        ),
        ({"notifiers": [{"name": "chat", "type": "slack", "url": "env:CHAT_THAT_IS_NOT_SET"}]}, "is not set"),
        ({"maintenance_windows": [{"duration": "1h"}]}, "must have either start or cron"),
    ],
)
async def test_a_server_is_not_made_of_what_cannot_work(table: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Server(read(table), SystemClock())
    assert why in str(refused.value)
