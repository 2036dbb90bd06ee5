"""Alerts to tell: an ordinary one, and those of people who name their queues to do harm."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from redrive.watch.alerts.alert import Alert, Occasion, Severity

SINCE: Final = datetime(2026, 2, 11, 11, 58, 30, tzinfo=UTC)
TIME: Final = datetime(2026, 2, 11, 12, 0, 0, 250_000, tzinfo=UTC)
ORDINARY: Final = Alert(
    incident="inc-1",
    occasion=Occasion.RAISED,
    severity=Severity.CRITICAL,
    rule="dead-letters",
    text="orders.dlq holds 12 dead letters",
    component="RabbitMQ",
    broker="shop",
    queue="orders.dlq",
    error_type="ValidationError",
    group="f00d",
    counts={"dead": 12, "rate": 0.25},
    correlation_ids=("c-1", "c-2"),
    link="https://console.example.org/groups/f00d?queue=orders.dlq",
    since=SINCE,
    time=TIME,
)

BAD: Final = (
    "orders\r\nBcc: everybody@example.org\r\n\r\nhello",
    "<!channel> <@U123> <!here|x> <https://evil.example|click>",
    "<at>everybody</at> [click](https://evil.example) **bold**",
    "a\x00b\x1b[31m\x7f\u2028\u2029\u202e",
    "lone \ud800 and \udcff",
    "👩‍🚀" * 50,
    "&" * 10_000,
    '"' * 10_000,
    "\\" * 10_000,
    "😀" * 10_000,
    "\n" * 10_000,
    "`code` *bold* _it_",
    "",
)
names = st.sampled_from(BAD) | st.text(max_size=20)
links = (
    st.none() | names | names.map("https://console.example.org/".__add__) | names.map("redrive show ".__add__)
)
alerts = st.builds(
    Alert,
    incident=names,
    occasion=st.sampled_from(Occasion),
    severity=st.sampled_from(Severity),
    rule=names,
    text=names,
    component=names,
    broker=st.none() | names,
    queue=st.none() | names,
    error_type=st.none() | names,
    group=st.none() | names,
    counts=st.dictionaries(names, st.floats() | st.integers(0, 10**9).map(float), max_size=12),
    correlation_ids=st.lists(names, max_size=30).map(tuple),
    link=links,
    since=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    time=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)


def alert(**changes: Any) -> Alert:
    """The ordinary one, with these changes."""
    return msgspec.structs.replace(ORDINARY, **changes)


def life(incident: str = "inc-1") -> list[Alert]:
    """All alerts of an incident that becomes worse before it is over."""
    steps = [
        (Occasion.RAISED, Severity.WARNING, 12.0),
        (Occasion.WORSE, Severity.CRITICAL, 80.0),
        (Occasion.AGAIN, Severity.CRITICAL, 90.0),
        (Occasion.ESCALATED, Severity.CRITICAL, 95.0),
        (Occasion.RECOVERED, Severity.CRITICAL, 0.0),
    ]
    return [
        alert(
            incident=incident,
            occasion=occasion,
            severity=severity,
            text=f"orders.dlq holds {count:g} dead letters",
            error_type=f"Error{n}",
            group=f"group-{n}",
            counts={"dead": count},
            correlation_ids=(f"c-{n}",),
            time=TIME + timedelta(minutes=n),
        )
        for n, (occasion, severity, count) in enumerate(steps)
    ]


def worst(char: str = "😀") -> Alert:
    """As large as an alert can be, made of this character."""
    long = char * 10_000
    return alert(
        **dict.fromkeys(
            ("incident", "rule", "text", "component", "broker", "queue", "error_type", "group"), long
        ),
        counts={f"{n}{long}": 1 / 3 for n in range(50)},
        correlation_ids=(long,) * 5_000,
        link="https://console.example.org/" + "x" * 1_900,
    )
