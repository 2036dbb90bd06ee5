"""Compare measurements with the limits of alert rules.

Each rule compares one measure with its limits: above `warning` it is a warning, above `critical` it is critical; a rule
with `below` finds values that are too low. `RULES` are the built-in rules. Each of them can be changed or switched off
by its name, and rules on the same measures can be added.

A value that equals a limit violates nothing. A measure that was not taken neither starts nor ends an incident. How
often a violation must be seen, and when it is reported, is decided in `incidents`.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from string import Formatter
from types import MappingProxyType
from typing import Final

import msgspec

from redrive.errors import SettingsError, use_instead
from redrive.watch.alerts.alert import Number, Severity

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?")
_PLACEHOLDERS: Final = frozenset({"subject", "queue", "value", "limit", "next"})


class Scope(Enum):
    """How the values of several servers that share a store are related."""

    SHARED = "every server measures the same value"
    OBSERVED = "each server measures what it observes of something shared"
    SERVER = "each server measures itself"


class Measure(msgspec.Struct, frozen=True):
    """What a rule can compare."""

    meaning: str
    is_ratio: bool = False  # from 0 to 1; shown as a percentage
    scope: Scope = Scope.SHARED


MEASURES: Final[Mapping[str, Measure]] = MappingProxyType(
    {
        "open_letters": Measure("open dead letters of a source"),
        "dlq_depth": Measure("messages in a dead-letter queue plus open letters collected from it"),
        "uncollected": Measure(
            "seconds for which a dead-letter queue had messages and no collector took one",
            scope=Scope.OBSERVED,
        ),
        "queue_missing": Measure("1 while a queue or topic that is collected or probed does not exist"),
        "dead_letter_ratio": Measure(
            "share of a source's messages that were dead-lettered, since its broker counts them",
            is_ratio=True,
        ),
        "recent_dead_letter_ratio": Measure(
            "share of a source's messages that were dead-lettered since the last probe", is_ratio=True
        ),
        "dead_letter_publish_failures": Measure(
            "attempts of a source's consumers to publish a dead letter that failed, as they report them",
            scope=Scope.OBSERVED,
        ),
        "error_spike": Measure("rate of an error type, as a multiple of its usual rate"),
        "ingestion": Measure("dead letters collected in the last minute"),
        "backlog": Measure("open dead letters in the store"),
        "resolution": Measure(
            "share of resolved letters among those that arrived one to two days ago", is_ratio=True
        ),
        "unconfirmed": Measure(
            "redrives of a source for which neither verdict nor dead letter arrived in time"
        ),
        "unserved": Measure("letters of a broker that wait for a redrive while no server serves that broker"),
        "undeliverable": Measure(
            "1 while redrives to a source are held back because no consumer would receive them",
            scope=Scope.OBSERVED,
        ),
        "stalled": Measure(
            "seconds for which a queue had ready messages and none was delivered", scope=Scope.OBSERVED
        ),
        "probe_failures": Measure("failed probes of a broker in a row", scope=Scope.OBSERVED),
        "broker_unreachable": Measure("1 while a broker is unreachable", scope=Scope.OBSERVED),
        "store_unavailable": Measure("1 while the store cannot be written", scope=Scope.SERVER),
        "service_failed": Measure("1 while a background service is not running", scope=Scope.SERVER),
    }
)
# Names of earlier versions, each with the name that replaced it.
RENAMED_RULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "broker-away": "broker-unreachable",
        "queue-size": "dlq-depth",
        "dead-share": "dead-letter-ratio",
        "dead-rate": "recent-dead-letter-ratio",
        "ingestion": "ingestion-rate",
        "resolution": "resolution-rate",
        "service": "service-failed",
    }
)
_RENAMED_MEASURES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "dead_share": "dead_letter_ratio",
        "dead_rate": "recent_dead_letter_ratio",
        "broker": "broker_unreachable",
        "probe": "probe_failures",
        "service": "service_failed",
    }
)


def number(value: float, measure: str) -> str:
    """A value or a limit of a measure, for people."""
    value = float(value)
    if MEASURES[measure].is_ratio:
        return f"{value * 100:.3g} %"
    return f"{value:,.0f}" if value.is_integer() or abs(value) >= 100 else f"{value:.3g}"


def _is_plain(text: str) -> bool:
    """Whether only placeholders are in braces: a format string could do more than a text may."""
    try:
        parts = list(Formatter().parse(text))
    except ValueError:
        return False
    return all(
        name is None or (name in _PLACEHOLDERS and not spec and conversion is None)
        for _, name, spec, conversion in parts
    )


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """When an alert is raised."""

    name: str
    measure: str
    warning: float | None = None
    critical: float | None = None
    below: bool = False
    confirm: int = 1  # violations in a row until the alert is raised
    text: str  # may contain `{subject}`, `{queue}`, `{value}`, `{limit}` and `{next}`
    hides: frozenset[str] = frozenset()  # rules whose violations are only consequences of this one's

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SettingsError(
                f"alert rule '{self.name:.60}': a name must consist of lowercase letters, digits and "
                "dashes, such as dlq-depth"
            )
        if self.measure not in MEASURES:
            renamed = _RENAMED_MEASURES.get(self.measure)
            hint = f"; did you mean '{renamed}'?" if renamed else use_instead(self.measure, MEASURES)
            raise SettingsError(
                f"alert rule '{self.name:.60}': there is no measure '{self.measure:.60}'{hint}"
            )
        if self.warning is None and self.critical is None:
            raise SettingsError(f"alert rule '{self.name:.60}': needs a threshold: warning or critical")
        if self.confirm < 1:
            raise SettingsError(
                f"alert rule '{self.name:.60}': confirmations must be an integer of at least 1"
            )
        if not _is_plain(self.text):
            raise SettingsError(
                f"alert rule '{self.name:.60}': its text may contain {{subject}}, {{queue}}, {{value}}, {{limit}} "
                "and {next}, no other placeholder"
            )
        if (
            self.warning is not None
            and self.critical is not None
            and self._exceeds(self.warning, self.critical)
        ):
            raise SettingsError(
                f"alert rule '{self.name:.60}': its warning threshold must be reached before its "
                "critical threshold"
            )

    def judged(self, value: float) -> tuple[Severity, float] | None:
        """The severity of this value and the limit that it violates; None if it violates none."""
        for severity, limit in ((Severity.CRITICAL, self.critical), (Severity.WARNING, self.warning)):
            if limit is not None and self._exceeds(value, limit):
                return severity, limit
        return None

    def told(
        self, subject: str, value: float, limit: float, queue: str | None = None, next_: str = ""
    ) -> str:
        """The sentence of an alert; `next_` says what happens with the letters now."""
        text = self.text.format(
            subject=subject,
            queue=queue or subject,
            value=number(value, self.measure),
            limit=number(limit, self.measure),
            next=next_,
        )
        return text.rstrip()

    def _exceeds(self, value: float, limit: float) -> bool:
        return value < limit if self.below else value > limit


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement."""

    measure: str
    subject: str = ""  # the source, queue, error type or service; empty: everything
    value: float
    component: str = "redrive"
    broker: str | None = None  # the name of the broker that it is about
    queue: str | None = None
    error_type: str | None = None
    group: str | None = None
    letter_id: str | None = None  # where it is about one letter
    is_news: bool = False  # something has happened, whether or not the value has grown
    next: str = ""  # what happens with the letters now
    counts: dict[str, Number] = {}
    correlation_ids: tuple[str, ...] = ()


RULES: Final[tuple[AlertRule, ...]] = (
    AlertRule(
        name="broker-unreachable",
        measure="broker_unreachable",
        critical=0,
        confirm=2,
        text="Broker {subject} is unreachable.",
        hides=frozenset({"probe-failed", "dlq-depth", "dlq-uncollected", "queue-missing", "queue-stalled"}),
    ),
    AlertRule(
        name="store-unavailable",
        measure="store_unavailable",
        critical=0,
        text="The store cannot be written; dead letters stay with the broker. See /health for the reason.",
    ),
    AlertRule(
        name="probe-failed",
        measure="probe_failures",
        critical=0,
        text="Probe of {subject} failed: no usable answer.",
    ),
    AlertRule(
        name="dead-letter",
        measure="open_letters",
        critical=0,
        text="1 or more messages found in Dead-Letter Queue {queue}. {next}",
    ),
    AlertRule(
        name="dlq-depth",
        measure="dlq_depth",
        warning=100,
        critical=1000,
        text="{subject}: {value} dead letters in queue and store (threshold {limit})",
    ),
    AlertRule(
        name="dlq-uncollected",
        measure="uncollected",
        critical=60,
        text="{subject}: dead letters are waiting and no collector took one for {value} s (threshold {limit} s)",
    ),
    AlertRule(
        name="queue-missing",
        measure="queue_missing",
        critical=0,
        confirm=2,
        text="{subject} does not exist on the broker; create it with redrive provision.",
    ),
    AlertRule(
        name="dead-letter-ratio",
        measure="dead_letter_ratio",
        critical=0.1,
        confirm=2,
        text="{subject}: {value} of messages were dead-lettered (threshold {limit})",
    ),
    AlertRule(
        name="recent-dead-letter-ratio",
        measure="recent_dead_letter_ratio",
        warning=0.01,
        critical=0.05,
        text="{subject}: {value} of recent messages were dead-lettered (threshold {limit})",
    ),
    AlertRule(
        name="dead-letter-publish-failed",
        measure="dead_letter_publish_failures",
        critical=0,
        text="{subject}: consumers cannot publish dead letters ({value} failures); check the connection to the broker.",
    ),
    AlertRule(
        name="queue-stalled",
        measure="stalled",
        warning=900,
        critical=3600,
        text="{subject}: messages are ready, but none was delivered for {value} s (threshold {limit} s)",
    ),
    AlertRule(
        name="error-spike",
        measure="error_spike",
        warning=5,
        text="{subject}: {value} times as many dead letters as usual (threshold {limit})",
    ),
    AlertRule(
        name="ingestion-rate",
        measure="ingestion",
        warning=100,
        text="{value} dead letters were collected in one minute (threshold {limit})",
    ),
    AlertRule(
        name="backlog",
        measure="backlog",
        critical=10_000,
        text="{value} dead letters are open (threshold {limit})",
    ),
    AlertRule(
        name="resolution-rate",
        measure="resolution",
        warning=0.5,
        below=True,
        confirm=2,
        text="{value} of the dead letters of the previous day are resolved (threshold {limit})",
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
        name="service-failed",
        measure="service_failed",
        critical=0,
        confirm=2,
        text="{subject} failed and is being restarted.",
    ),
)


def checked(rules: Iterable[AlertRule]) -> tuple[AlertRule, ...]:
    """The same rules, if no two have the same name."""
    rules = tuple(rules)
    names = [rule.name for rule in rules]
    for rule in rules:
        if names.count(rule.name) > 1:
            raise SettingsError(f"two alert rules have the name '{rule.name:.60}'")
    return rules
