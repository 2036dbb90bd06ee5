"""Back-off: the delay before the next attempt.

A back-off is a value; its delay is a pure function of the attempt and of a random number that the caller passes in.
A delay is never negative and never above `max_delay`, with or without jitter. The number of attempts is not part of a
back-off, except `DelayList(..., then="stop")`, which ends with its list. Attempt 1 is the delay before the first retry.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Final, Literal, Protocol

from redrive.errors import SettingsError
from redrive.rules.durations import format_duration, parse_duration

_ZERO: Final = timedelta(0)


class Backoff(Protocol):
    """Delays between attempts."""

    def delay(self, attempt: int, random: Random | float) -> timedelta | None:
        """The delay before retry `attempt`, or None to stop; `random` is a number in 0..1 or a generator of such."""
        ...


@dataclass(frozen=True, slots=True)
class Exponential:
    """Each delay is `factor` times the one before, up to `max_delay`; a `jitter` of 0.25 varies it by ±25 %."""

    initial: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    max_delay: timedelta = timedelta(seconds=60)
    jitter: float = 0.25

    def __post_init__(self) -> None:
        if self.initial <= _ZERO:
            raise SettingsError("back-off: the initial delay must be longer than 0 seconds")
        if self.max_delay < self.initial:
            raise SettingsError("back-off: the maximum delay must not be shorter than the initial delay")
        if not 1 <= self.factor <= 1000:
            raise SettingsError("back-off: the factor must be between 1 and 1000")
        if not 0 <= self.jitter <= 1:
            raise SettingsError("back-off: the jitter must be between 0 and 1 (0.25 is ±25 %)")

    def delay(self, attempt: int, random: Random | float) -> timedelta:
        """The wait before retry number `attempt`."""
        steps = max(attempt, 1) - 1
        # Compared as logarithms, so that attempt 10**9 is the cap and not an overflow.
        capped = self.factor > 1 and steps >= math.log(self.max_delay / self.initial) / math.log(self.factor)
        base = self.max_delay if capped else min(self.max_delay, self.initial * self.factor**steps)
        spread = 1 + self.jitter * (2 * _fraction(random) - 1)
        return max(_ZERO, min(self.max_delay, base * spread))

    def __str__(self) -> str:
        """The text that `parse_backoff` reads back."""
        first, cap = format_duration(self.initial), format_duration(self.max_delay)
        return f"exponential {first} x{self.factor:.15g} cap {cap} ±{self.jitter * 100:.15g}%"


@dataclass(frozen=True, slots=True, init=False)
class DelayList:
    """A list of delays; after the last one it repeats (`then="last"`) or retrying stops (`then="stop"`)."""

    delays: tuple[timedelta, ...]
    then: Literal["last", "stop"]

    def __init__(self, *delays: timedelta, then: Literal["last", "stop"] = "last") -> None:
        if not delays:
            raise SettingsError("back-off: a list of delays needs at least one")
        if any(delay < _ZERO for delay in delays):
            raise SettingsError("back-off: a delay cannot be negative")
        if then not in ("last", "stop"):
            raise SettingsError(f"back-off: then must be 'last' or 'stop', not {then!r}")
        object.__setattr__(self, "delays", delays)
        object.__setattr__(self, "then", then)

    def delay(self, attempt: int, random: Random | float = 0.5) -> timedelta | None:  # noqa: ARG002 (one interface)
        """The wait before retry number `attempt`; None when the list has ended and says stop."""
        step = max(attempt, 1) - 1
        if step < len(self.delays):
            return self.delays[step]
        return self.delays[-1] if self.then == "last" else None

    def __str__(self) -> str:
        """The text that `parse_backoff` reads back."""
        return ", ".join([*map(format_duration, self.delays), *(["stop"] if self.then == "stop" else [])])


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same delay before every attempt."""

    wait: timedelta

    def __post_init__(self) -> None:
        if self.wait < _ZERO:
            raise SettingsError("back-off: a delay cannot be negative")

    def delay(self, attempt: int, random: Random | float = 0.5) -> timedelta:  # noqa: ARG002 (one interface)
        """The wait, whatever the attempt."""
        return self.wait

    def __str__(self) -> str:
        """The text that `parse_backoff` reads back."""
        return format_duration(self.wait)


def _fraction(random: Random | float) -> float:
    fraction = random.random() if isinstance(random, Random) else random
    return min(1.0, max(0.0, fraction)) if fraction == fraction else 0.5  # noqa: PLR0124 (NaN is unequal to itself)


_EXPONENTIAL_PART: Final = re.compile(
    r"""(?P<factor>[x×]\s?[0-9.]+) | (?P<cap>(?:cap|max)\s[^\s±+,]+)
      | (?P<jitter>(?:±|\+/?-|jitter\s)\s?[0-9.]+\s?%) | (?P<first>[0-9][^\s±+,]*)""",
    re.VERBOSE,
)


def parse_backoff(spec: str | Sequence[str]) -> Exponential | DelayList | Fixed:
    """The back-off that "exponential 1s x2 cap 60s ±25%", "10s", "5s, 15s, stop" or a list says."""
    if isinstance(spec, str):
        plain = spec.strip().lower()
        if plain.startswith("exponential"):
            return _parse_exponential(spec, plain.removeprefix("exponential"))
        if "," not in plain:
            return Fixed(parse_duration(spec))
        spec = plain.split(",")
    if not isinstance(spec, list | tuple) or not all(type(part) is str for part in spec):
        raise SettingsError(
            f"{spec!r:.60} is not a back-off: write 'exponential 1s x2 cap 60s ±25%', '10s' or a list"
        )
    stops = bool(spec) and spec[-1].strip().lower() == "stop"
    delays = [parse_duration(part) for part in (spec[:-1] if stops else spec)]
    return DelayList(*delays, then="stop" if stops else "last")


def _parse_exponential(spec: str, plain: str) -> Exponential:
    parts: dict[str, str] = {}
    for found in _EXPONENTIAL_PART.finditer(plain):
        name = str(found.lastgroup)
        if name in parts:
            raise SettingsError(f"back-off {spec!r:.60}: two values for {name}")
        parts[name] = found[0]
    if left := _EXPONENTIAL_PART.sub("", plain).strip(" ,"):
        raise SettingsError(
            f"back-off {spec!r:.60}: cannot read {left!r}; write 'exponential 1s x2 cap 60s ±25%'"
        )
    default = Exponential()
    try:
        factor = float(parts["factor"].strip("x× ")) if "factor" in parts else default.factor
        jitter = float(parts["jitter"].strip("jiter±+/-% ")) / 100 if "jitter" in parts else default.jitter
    except ValueError:
        raise SettingsError(f"back-off {spec!r:.60}: a factor is written 'x2', a jitter '±25%'") from None
    first = parse_duration(parts["first"]) if "first" in parts else default.initial
    cap = parse_duration(parts["cap"].split(None, 1)[1]) if "cap" in parts else max(default.max_delay, first)
    return Exponential(first, factor, cap, jitter)
