"""A message is dead: when, and how, is it sent back?

Level two of retry, minutes to days. The kind of failure chooses one of four strategies: soon, off-peak,
when the system is well again, or never without a person. One rule: a pure function of the letter's past, the
time and the options; the worker carries the plan out. It does not know queues, breakers or CPUs: a worker
measures them and asks `unmet_conditions`.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from redrive.errors import SettingsError
from redrive.letters.failure import Failure, FailureKind
from redrive.rules.off_peak import next_off_peak


class Strategy(StrEnum):
    """How a dead letter is sent back."""

    IMMEDIATE = "immediate"
    SCHEDULED = "scheduled"
    CONDITIONAL = "conditional"
    MANUAL = "manual"


class Check(StrEnum):
    """What must hold before a conditional redrive."""

    BREAKER_CLOSED = "breaker_closed"
    CPU_LOW = "cpu_low"
    MEMORY_LOW = "memory_low"
    DATABASE_REACHABLE = "database_reachable"


# What passes by itself is tried again soon; what somebody else limits, off-peak; what is broken, when it is
# whole; what will fail the same way, or is not understood, is for a person.
# Overflow: nobody refused the message and pressure passes, so soon, at growing distances. Expired: the sender
# said that it is worth nothing after its time, so nobody sends it back unasked.
STRATEGIES: Final[Mapping[FailureKind, Strategy]] = MappingProxyType(
    {
        FailureKind.TIMEOUT: Strategy.IMMEDIATE,
        FailureKind.NETWORK: Strategy.IMMEDIATE,
        FailureKind.OVERFLOW: Strategy.IMMEDIATE,
        FailureKind.RATE_LIMITED: Strategy.SCHEDULED,
        FailureKind.UNAVAILABLE: Strategy.CONDITIONAL,
        FailureKind.DATABASE: Strategy.CONDITIONAL,
        FailureKind.SERVER_ERROR: Strategy.CONDITIONAL,
        FailureKind.MALFORMED: Strategy.MANUAL,
        FailureKind.REJECTED: Strategy.MANUAL,
        FailureKind.DENIED: Strategy.MANUAL,
        FailureKind.NOT_FOUND: Strategy.MANUAL,
        FailureKind.BUSINESS: Strategy.MANUAL,
        FailureKind.EXPIRED: Strategy.MANUAL,
        FailureKind.CRASH: Strategy.MANUAL,
        FailureKind.UNKNOWN: Strategy.MANUAL,
    }
)


class StrategyRule(msgspec.Struct, frozen=True):
    """A user's own choice for failures that `when` says yes to; one that raises has said no."""

    name: str
    strategy: Strategy
    when: Callable[[Failure], object]


class StrategyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about recovery that can be set."""

    table: Mapping[FailureKind, Strategy] = msgspec.field(default_factory=dict)  # over `STRATEGIES`
    rules: tuple[StrategyRule, ...] = ()  # before the table
    delays: tuple[timedelta, ...] = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 15, 30, 60))
    off_peak_hours: tuple[int, ...] = (2, 3, 4)
    time_zone: str = "UTC"
    recheck_interval: timedelta = timedelta(minutes=1)
    max_cpu: float = 0.80
    max_memory: float = 0.85
    max_redrives: int = 5

    def __post_init__(self) -> None:
        if not self.delays or any(delay < timedelta(0) for delay in self.delays):
            raise SettingsError("strategy: 'delays' needs at least one delay, none of them negative")
        if not self.off_peak_hours or any(
            type(hour) is not int or not 0 <= hour <= 23 for hour in self.off_peak_hours
        ):
            raise SettingsError("strategy: 'off_peak_hours' needs at least one hour, each from 0 to 23")
        if self.recheck_interval <= timedelta(0):
            raise SettingsError("strategy: 'recheck_interval' must be longer than 0 seconds")
        for name in ("max_cpu", "max_memory"):
            if not 0 < getattr(self, name) <= 1:
                raise SettingsError(f"strategy: {name!r} must be above 0 and at most 1, such as 0.8")
        if type(self.max_redrives) is not int or self.max_redrives < 0:
            raise SettingsError("strategy: 'max_redrives' must be an integer of at least 0")
        zone_named(self.time_zone)

    def strategy_for(self, kind: FailureKind) -> Strategy:
        """What the table says, the user's before ours."""
        return self.table.get(kind) or STRATEGIES[kind]


class Plan(msgspec.Struct, frozen=True):
    """What to do with a dead letter, from when on, under which conditions, and which rule said so."""

    strategy: Strategy
    due: datetime | None  # None: when a person says so
    conditions: tuple[Check, ...] = ()
    rule: str = ""


class Exhausted(msgspec.Struct, frozen=True):
    """It was sent back as often as allowed."""

    redrives: int


def choose(
    kind: FailureKind,
    redrives: int,
    now: datetime,
    retry_after: timedelta | None = None,
    options: StrategyOptions | None = None,
    *,
    failure: Failure | None = None,
) -> Plan | Exhausted:
    """The plan for a letter that was sent back `redrives` times; the user's rules look at `failure`."""
    options = options or StrategyOptions()
    if after_attempt(redrives, options.max_redrives) == "exhausted":
        return Exhausted(redrives)
    strategy, rule = _chosen(kind, failure, options)
    # Whichever is later: what we would do or what we are asked to.
    asked = now if retry_after is None else now + retry_after
    match strategy:
        case Strategy.IMMEDIATE:
            step = options.delays[min(max(redrives, 0), len(options.delays) - 1)]
            return Plan(strategy, max(now + step, asked), rule=rule)
        case Strategy.SCHEDULED:
            quiet = next_off_peak(now, options.off_peak_hours, zone_named(options.time_zone))
            return Plan(strategy, max(quiet, asked), rule=rule)
        case Strategy.CONDITIONAL:
            return Plan(strategy, max(now + options.recheck_interval, asked), tuple(Check), rule)
        case Strategy.MANUAL:
            return Plan(strategy, None, rule=rule)


def after_attempt(redrives: int, max_redrives: int = 5) -> Literal["again", "exhausted"]:
    """Whether a letter that was sent back `redrives` times may be sent once more."""
    return "again" if redrives < max_redrives else "exhausted"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker measured. A share that cannot be measured is None and is no reason to wait."""

    breaker_closed: bool = True
    cpu: float | None = None
    memory: float | None = None
    database_reachable: bool = True


def unmet_conditions(state: Health, options: StrategyOptions | None = None) -> tuple[Check, ...]:
    """The checks that fail; none means go."""
    options = options or StrategyOptions()
    holds = {
        Check.BREAKER_CLOSED: state.breaker_closed,
        Check.CPU_LOW: state.cpu is None or state.cpu < options.max_cpu,
        Check.MEMORY_LOW: state.memory is None or state.memory < options.max_memory,
        Check.DATABASE_REACHABLE: state.database_reachable,
    }
    return tuple(check for check, held in holds.items() if not held)


_WORDS: Final[Mapping[Check, str]] = MappingProxyType(
    {
        Check.BREAKER_CLOSED: "redrives to it fail again",
        Check.CPU_LOW: "CPU usage is too high",
        Check.MEMORY_LOW: "memory usage is too high",
        Check.DATABASE_REACHABLE: "a database is unreachable",
    }
)


def in_words(checks: Iterable[Check]) -> str:
    """Why checks that fail say no, for people."""
    return ", ".join(_WORDS[check] for check in checks)


def zone_named(name: str) -> tzinfo:
    """The IANA time zone with this name."""
    if name == "UTC":  # known even where no time-zone data is installed
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        close = get_close_matches(str(name), available_timezones(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "write it as 'Europe/Berlin'"
        raise SettingsError(f"strategy: unknown time zone {name!r:.60}; {hint}") from None


def _chosen(kind: FailureKind, failure: Failure | None, options: StrategyOptions) -> tuple[Strategy, str]:
    if failure is not None:
        for rule in options.rules:
            try:
                if rule.when(failure):
                    return rule.strategy, rule.name
            except Exception:  # noqa: BLE001, S112 (a predicate that raises has said no)
                continue
    return options.strategy_for(kind), f"kind:{kind}"
