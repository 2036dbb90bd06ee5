"""Is what was measured too much?

A rule compares one measure with its limits: beyond `warning` it is a warning, beyond `critical` it is critical; a rule
with `below` looks for what is too little. `RULES` are those that are shipped, with the thresholds of E11; each can be
changed or switched off by its name, and others can be written on the same measures.

The rule of rules: a limit itself is still fine. What was not measured breaks no rule and keeps none: nothing is
concluded from it. How often something has to be seen, and what is told of it, is the business of `incidents`.
"""

import re
from collections.abc import Iterable, Mapping
from string import Formatter
from types import MappingProxyType
from typing import Final

import msgspec

from redrive.errors import SettingsError, use_instead
from redrive.watch.alerts.alert import Severity

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?")
# What can be measured: name → what a number of it means.
MEASURES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "open_letters": "dead letters of a source that nobody is done with",
        "dlq_depth": "messages that lie in a dead-letter queue",
        "dead_share": "the share of a source's messages that died, since its broker counts them",
        "dead_rate": "the share of a source's messages that died since the last look at its broker",
        "error_spike": "how many times as often as usual an error type comes",
        "ingestion": "dead letters that came in a minute",
        "backlog": "dead letters in the store that nobody is done with",
        "resolution": "the share of the dead letters of the last day that are resolved",
        "unconfirmed": "redrives of a source for which neither verdict nor death came in time",
        "unserved": "letters of a broker that wait for a redrive while no server serves that broker",
        "undeliverable": "1 while redrives to a source are held back because no consumer would receive them",
        "stalled": "seconds for which a queue had ready messages and none was delivered",
        "probe": "looks in a row at a broker's management API that had no good answer",
        "broker": "looks in a row at which a broker was away",
        "service": "background services that do not run",
    }
)


def number(value: float) -> str:
    """A value or a limit for people."""
    value = float(value)
    return f"{value:,.0f}" if value.is_integer() else f"{value:.3g}"


def _is_plain(text: str) -> bool:
    """Whether nothing but the four names stands in its braces: a format can do more than a text may."""
    try:
        parts = list(Formatter().parse(text))
    except ValueError:
        return False
    return all(
        name is None or (name in {"subject", "queue", "value", "limit"} and not spec and conversion is None)
        for _, name, spec, conversion in parts
    )


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """When somebody is to be told."""

    name: str
    measure: str
    warning: float | None = None
    critical: float | None = None
    below: bool = False
    confirm: int = 1  # looks in a row that have to find it
    text: str  # of `{subject}`, `{queue}`, `{value}` and `{limit}`
    hides: frozenset[str] = frozenset()  # rules whose findings are only consequences of this one's

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SettingsError(
                f"alert rule '{self.name:.60}': a name is made of small letters, digits and dashes, such as queue-size"
            )
        if self.measure not in MEASURES:
            raise SettingsError(
                f"alert rule '{self.name:.60}': nothing measures '{self.measure:.60}'"
                f"{use_instead(self.measure, MEASURES)}"
            )
        if self.warning is None and self.critical is None:
            raise SettingsError(f"alert rule '{self.name:.60}': wants a limit, warning or critical")
        if self.confirm < 1:
            raise SettingsError(f"alert rule '{self.name:.60}': confirm wants a whole number from 1 on")
        if not _is_plain(self.text):
            raise SettingsError(
                f"alert rule '{self.name:.60}': its text may hold {{subject}}, {{queue}}, {{value}} "
                "and {limit}, no other"
            )
        if (
            self.warning is not None
            and self.critical is not None
            and self._exceeds(self.warning, self.critical)
        ):
            raise SettingsError(
                f"alert rule '{self.name:.60}': its warning has to come before its critical limit"
            )

    def judged(self, value: float) -> tuple[Severity, float] | None:
        """How bad this value is, and the limit it is beyond; None: it is fine."""
        for severity, limit in ((Severity.CRITICAL, self.critical), (Severity.WARNING, self.warning)):
            if limit is not None and self._exceeds(value, limit):
                return severity, limit
        return None

    def told(self, subject: str, value: float, limit: float, queue: str | None = None) -> str:
        """The sentence for people."""
        return self.text.format(
            subject=subject, queue=queue or subject, value=number(value), limit=number(limit)
        )

    def _exceeds(self, value: float, limit: float) -> bool:
        return value < limit if self.below else value > limit


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was found when somebody looked."""

    measure: str
    subject: str = ""  # the source, queue, error type or service; empty: everything
    value: float
    component: str = "redrive"
    queue: str | None = None
    error_type: str | None = None
    group: str | None = None
    is_news: bool = False  # something has happened, whether or not the value has grown
    counts: dict[str, float] = {}
    correlation_ids: tuple[str, ...] = ()


RULES: Final[tuple[AlertRule, ...]] = (
    AlertRule(
        name="broker-away",
        measure="broker",
        critical=0,
        confirm=2,
        text="{subject} does not answer.",
        hides=frozenset({"probe-failed", "queue-size"}),
    ),
    AlertRule(
        name="probe-failed",
        measure="probe",
        critical=0,
        text="The management API at {subject} has given no good answer.",
    ),
    AlertRule(
        name="dead-letter",
        measure="open_letters",
        critical=0,
        text="1 or more messages found in Dead-Letter Queue {queue}. Manual intervention required.",
    ),
    AlertRule(
        name="queue-size",
        measure="dlq_depth",
        warning=100,
        critical=1000,
        text="{subject} holds {value} dead letters, more than {limit}.",
    ),
    AlertRule(
        name="dead-share",
        measure="dead_share",
        critical=0.1,
        confirm=2,
        text="Of the messages of {subject}, a share of {value} has died, more than {limit}.",
    ),
    AlertRule(
        name="dead-rate",
        measure="dead_rate",
        warning=0.01,
        critical=0.05,
        text="Of the latest messages of {subject}, a share of {value} has died, more than {limit}.",
    ),
    AlertRule(
        name="queue-stalled",
        measure="stalled",
        warning=900,
        critical=3600,
        text="{subject} has stopped draining: messages are ready, none was delivered for {value} s (limit {limit} s).",
    ),
    AlertRule(
        name="error-spike",
        measure="error_spike",
        warning=5,
        text="{subject} comes {value} times as often as usual.",
    ),
    AlertRule(
        name="ingestion",
        measure="ingestion",
        warning=100,
        text="{value} dead letters came in a minute, more than {limit}.",
    ),
    AlertRule(
        name="backlog",
        measure="backlog",
        critical=10_000,
        text="{value} dead letters are open, more than {limit}.",
    ),
    AlertRule(
        name="resolution",
        measure="resolution",
        warning=0.5,
        below=True,
        confirm=2,
        text="A share of {value} of the last day's dead letters is resolved, less than {limit}.",
    ),
    AlertRule(
        name="redrive-unconfirmed",
        measure="unconfirmed",
        warning=0,
        text="{subject}: no verdict came for {value} redriven letters; they stay open as unconfirmed.",
    ),
    AlertRule(
        name="redrive-undeliverable",
        measure="undeliverable",
        warning=0,
        text="{subject}: letters are not redriven, because no consumer would receive them.",
    ),
    AlertRule(
        name="broker-unserved",
        measure="unserved",
        warning=0,
        confirm=2,
        text="{value} letters of broker {subject} wait, and no server serves that broker.",
    ),
    AlertRule(
        name="service",
        measure="service",
        critical=0,
        confirm=2,
        text="{subject} has failed and is being started again.",
    ),
)


def checked(rules: Iterable[AlertRule]) -> tuple[AlertRule, ...]:
    """The same, if each has a name of its own and hides only rules that are there."""
    rules = tuple(rules)
    names = [rule.name for rule in rules]
    for rule in rules:
        if names.count(rule.name) > 1:
            raise SettingsError(f"two alert rules have the name '{rule.name:.60}'")
    return rules
