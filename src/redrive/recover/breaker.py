"""Would a redrive to this source only die again?

One breaker per source, fed with what becomes of redrives: a verdict is a success, a second death a failure. Both are
told by others, late or never. When it closes, `recovered` tells, so that those who waited can go at once.

It lives in the memory of one process and forgets on restart: the first redrives then find out again.
"""

from collections.abc import Callable
from datetime import timedelta

from redrive.clock import Clock
from redrive.rules.breaker import Breaker, BreakerOptions


class HoldBackOptions(BreakerOptions, frozen=True, kw_only=True):
    """When most redrives to a source die again, its letters are held back, but for single ones."""

    failure_rate: float = 0.6  # fraction of recent redrives that must fail before redriving pauses
    window: int = 5  # number of recent redrives in the failure-rate window
    pause: timedelta = timedelta(minutes=1)
    max_pause: timedelta = timedelta(minutes=30)


class Breakers:
    """The breakers of all sources."""

    def __init__(
        self,
        clock: Clock,
        options: BreakerOptions | None = None,
        recovered: Callable[[str], None] = lambda _source: None,
    ) -> None:
        self._clock = clock
        self._options = options or HoldBackOptions()
        self._breakers: dict[str, Breaker] = {}
        self._recovered = recovered

    def admits(self, source: str) -> bool:
        """Whether a letter may be sent to this source now. Asking for the probe of an open one uses it up."""
        breaker = self._breakers.get(source)
        return breaker is None or breaker.wait(self._clock.monotonic()) is None

    def no_probe(self, source: str) -> None:
        """The probe that was admitted was not sent: the next letter may go instead."""
        if (breaker := self._breakers.get(source)) is not None:
            breaker.no_probe()

    def open_sources(self) -> tuple[str, ...]:
        """The sources for which letters are held back."""
        return tuple(source for source, breaker in self._breakers.items() if breaker.is_open)

    def died(self, source: str) -> None:
        """A redrive to this source has died again."""
        self._of(source).record(failed=True, now=self._clock.monotonic())

    def succeeded(self, source: str) -> None:
        """A redrive to this source was processed."""
        if self._of(source).record(failed=False, now=self._clock.monotonic()):
            self._recovered(source)

    def _of(self, source: str) -> Breaker:
        if source not in self._breakers:
            self._breakers[source] = Breaker(self._options, by_hearsay=True)
        return self._breakers[source]
