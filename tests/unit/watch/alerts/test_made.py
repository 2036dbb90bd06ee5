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
    "kind": "mail",
    "host": "127.0.0.1",
    "sender": "r@example.org",
    "to": ["o@example.org"],
}
CHAT = {"name": "chat", "kind": "slack", "url": "https://127.0.0.1/secret"}


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
    rules = rules_of(read({"alert_rules": [{"name": "dead-letter", "off": True}]}))
    assert {rule.name for rule in RULES} - {rule.name for rule in rules} == {"dead-letter"}


def test_a_rule_of_ones_own_is_one_more() -> None:
    own = {"name": "pile-up", "measure": "open_letters", "warning": 10, "text": "{value} in {queue}"}
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
            {"name": "dead-leter", "off": True},
            "cannot be switched off: there is none; did you mean 'dead-letter'?",
        ),
        ({"name": "mine", "measure": "weather", "warning": 1, "text": "x"}, "there is no measure 'weather'"),
        ({"name": "mine", "measure": "backlog", "text": "x"}, "needs a limit"),
        ({"name": "mine", "measure": "probe", "critical": 1, "text": "x"}, "did you mean 'probe_failures'?"),
        ({"name": "queue-size", "warning": 5}, "'queue-size' was renamed; did you mean 'dlq-depth'?"),
        ({"name": "service", "off": True}, "'service' was renamed; did you mean 'service-failed'?"),
        ({"name": "dlq-depth", "warning": 5000}, "its warning has to come before its critical limit"),
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
        ({"notify": {}}, "notify: write a list, one [[notify]] table for each notifier"),
        ({"notify": [1]}, "notifier 1: write it as a table with a name and a kind"),
        ({"notify": [{"name": "x"}]}, "notifier 1: needs a 'kind'"),
        (
            {"notify": [{"name": "x", "kind": "pigeon"}]},
            "notifier 1: kind = 'pigeon': wants one of mail, json",
        ),
        ({"notify": [{"name": "x", "kind": "mial"}]}, "did you mean 'mail'?"),
        ({"notify": [MAIL, MAIL]}, "notifier 2: 'ops' is named twice"),
        ({"notify": [{**MAIL, "port": 0}]}, "notifier 1: port = 0: wants a whole number between 1 and 65535"),
        ({"notify": [{**MAIL, "hots": "x"}]}, "unknown setting 'hots' of notifier 1; did you mean 'host'?"),
        ({"maintenance": [{"cron": "0 2 * * *"}]}, "maintenance window 1: needs a 'lasts'"),
        ({"maintenance": [{"lasts": "1h", "begins": "2026-11-15"}]}, "wants a time with its zone"),
        ({"maintenance": [{"lasts": "1h", "begins": datetime(2026, 11, 15)}]}, "wants a time with its zone"),  # noqa: DTZ001
        ({"alert_rules": [{"name": "dlq-depth", "warning": "many"}]}, "wants a number"),
        ({"alert_rules": [{"name": "dlq-depth", "warning": float("nan")}]}, "wants a number"),
        ({"alert_rules": [{"name": "dlq-depth", "warning": True}]}, "wants a number"),
        ({"alerts": {"every": "0s"}}, "wants a duration between 1s and 1h"),
        ({"alerts": {"escalations": -1}}, "wants a whole number between 0 and 1000"),
    ],
)
def test_settings_that_make_no_sense_are_refused_where_they_stand(table: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError) as error:
        read(table)
    assert why in str(error.value)


def test_patience_comes_from_the_settings() -> None:
    table = {"cool_down": "1h", "calm": "5m", "escalate_after": "2h", "escalations": 1}
    assert policy_of(read({"alerts": table})) == Policy(
        cool_down=timedelta(hours=1),
        calm=timedelta(minutes=5),
        escalate_after=timedelta(hours=2),
        escalations=1,
    )


def test_windows_come_from_the_settings() -> None:
    begins = datetime(2026, 11, 15, 22, tzinfo=UTC)
    tables = [
        {"begins": begins, "lasts": "2h", "queues": "orders.*"},
        {"cron": "0 2 * * *", "lasts": "1h", "zone": "Europe/Berlin"},
    ]
    once, nightly = windows_of(read({"maintenance": tables}))
    assert once.is_open(begins + timedelta(hours=1), "orders.dlq")
    assert nightly.is_open(datetime(2026, 11, 15, 1, 30, tzinfo=UTC))


# --- notifiers -------------------------------------------------------------------------------------------------------


def test_notifiers_have_the_names_of_their_tables() -> None:
    notifiers = notifiers_of(read({"notify": [MAIL, CHAT]}), {})
    assert [notifier.name for notifier in notifiers] == ["ops", "chat"]


def test_secrets_come_from_the_environment() -> None:
    mail = {**MAIL, "user": "redrive", "password": "env:SMTP_PASSWORD"}
    pager = {"name": "pager", "kind": "pagerduty", "url": "env:PAGER_URL", "secret": "env:PAGER_KEY"}
    environ = {"SMTP_PASSWORD": "s3cret", "PAGER_URL": "https://127.0.0.1/v2/enqueue", "PAGER_KEY": "k"}
    assert len(notifiers_of(read({"notify": [mail, pager]}), environ)) == 2
    for variable in environ:
        with pytest.raises(SettingsError, match=f"the variable {variable} is not set"):
            notifiers_of(read({"notify": [mail, pager]}), {**environ, variable: ""})


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"name": "ops", "kind": "mail"}, "notifier 'ops': a mail needs 'host'"),
        ({**MAIL, "to": []}, "notifier 'ops': a mail needs 'to'"),
        ({**MAIL, "user": "redrive"}, "set both user and password, or neither"),
        ({**MAIL, "user": "redrive", "password": "x", "tls": "none"}, "a password is only sent over TLS"),
        ({"name": "chat", "kind": "slack"}, "notifier 'chat': needs a 'url'"),
        ({"name": "chat", "kind": "slack", "url": "ftp://127.0.0.1/xXsecretXx"}, "notifier 'chat'"),
        ({"name": "pager", "kind": "pagerduty", "url": "https://127.0.0.1/"}, "notifier 'pager'"),
    ],
)
def test_a_notifier_that_cannot_work_is_refused_by_its_name(table: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError) as error:
        notifiers_of(read({"notify": [table]}), {})
    assert why in str(error.value)
    assert "xXsecretXx" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "alert", "is_told"),
    [
        ({}, {}, True),
        ({}, {"severity": Severity.WARNING}, True),
        ({"least": "critical"}, {}, True),
        ({"least": "critical"}, {"severity": Severity.WARNING}, False),
        ({"queues": "orders.*"}, {}, True),
        ({"queues": "orders.*"}, {"queue": "mail.dlq"}, False),
        ({"queues": "orders.*"}, {"queue": None}, False),
        ({"escalated": True}, {}, False),
        ({"escalated": True}, {"occasion": Occasion.AGAIN}, False),
        ({"escalated": True}, {"occasion": Occasion.ESCALATED}, True),
        ({"escalated": True}, {"occasion": Occasion.RECOVERED}, False),
        ({"escalated": True}, {"occasion": Occasion.RECOVERED, "escalations": 1}, True),
    ],
)
def test_everybody_is_told_what_concerns_them(
    table: dict[str, Any], alert: dict[str, Any], is_told: bool
) -> None:
    settings = read({"notify": [{**CHAT, **table}]})
    assert told_to(an_alert(**alert), settings.notify) == (["chat"] if is_told else [])


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"alert_rules": [{"name": "dlq-depth", "warning": 5000}]}, "its warning has to come before"),
        ({"notify": [{"name": "chat", "kind": "slack", "url": "env:CHAT_THAT_IS_NOT_SET"}]}, "is not set"),
        ({"maintenance": [{"lasts": "1h"}]}, "wants either begins or cron"),
    ],
)
async def test_a_server_is_not_made_of_what_cannot_work(table: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Server(read(table), SystemClock())
    assert why in str(refused.value)
