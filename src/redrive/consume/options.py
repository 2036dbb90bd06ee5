"""How is one source to be consumed?"""

from datetime import timedelta
from typing import ClassVar

import msgspec

from redrive.errors import SettingsError
from redrive.rules import Backoff, Exponential, check_limit, format_duration
from redrive.rules.breaker import BreakerOptions


class ConsumeBreakerOptions(BreakerOptions, frozen=True, kw_only=True):
    """When most of what a source delivers fails, consuming pauses and probes with single messages (H9)."""

    share: float = 0.8  # of the last deliveries that failed
    least: int = 20  # so many deliveries are looked at, and fewer say nothing
    pause: timedelta = timedelta(seconds=5)  # before the first probe; each failed probe doubles it
    longest: timedelta = timedelta(minutes=1)

    whose: ClassVar[str] = "flood breaker"


class ConsumeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for each delivery of a source."""

    concurrency: int = 5
    max_deliveries: int = 3
    attempts: int = 3  # in the process, for each delivery (A3)
    backoff: Backoff = Exponential()
    time_budget: timedelta = timedelta(seconds=60)  # of one attempt (A5)
    longest_wait: timedelta = timedelta(seconds=60)  # in the process; who must wait longer is given back
    best_effort: bool = False  # settle even if the dead letter cannot be written, and count what is lost (A6)
    stop_timeout: timedelta = timedelta(seconds=30)  # how long running handlers may take when we stop
    most_waiting: int = 1000  # deliveries between two attempts that may widen the window
    flood: ConsumeBreakerOptions | None = ConsumeBreakerOptions()

    def __post_init__(self) -> None:
        check_limit(self.max_deliveries)
        for name, least in (("concurrency", 1), ("attempts", 1), ("most_waiting", 0)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise SettingsError(
                    f"{name} must be a whole number from {least} up, not {getattr(self, name)!r:.40}"
                )
        for name in ("time_budget", "stop_timeout", "longest_wait"):
            duration = getattr(self, name)
            if duration < timedelta(0) or (name == "time_budget" and not duration):
                raise SettingsError(f"{name} must be longer than nothing, not {format_duration(duration)}")
