"""Would a redrive to this source only die again (E4, H10)?

One breaker per source, fed with what becomes of redrives: a verdict is a success, a second death a failure. *Closed*,
everything may go; when most of the last ones have died it is *open* and holds letters back; after a pause it lets one
through, and that one's fate closes it, or opens it again for twice as long. When it closes, `recovered` tells, so that
those who waited can go at once.

It lives in the memory of one process and forgets on restart: the first redrives then find out again.
"""

from collections import deque
from collections.abc import Callable
from datetime import timedelta

import msgspec

from redrive.clock import Clock


class BreakerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When a breaker opens and how long it stays open."""

    least: int = 5  # redrives looked at; fewer say nothing
    share: float = 0.6  # of them dead again
    pause: timedelta = timedelta(minutes=1)
    longest: timedelta = timedelta(minutes=30)


class _Breaker:
    def __init__(self, options: BreakerOptions) -> None:
        self.options = options
        self.last: deque[bool] = deque(maxlen=options.least)
        self.until: timedelta | None = None
        self.pause = options.pause
        self.probe_until: timedelta | None = None

    def admits(self, now: timedelta) -> bool:
        if self.until is None:
            return True
        if now < self.until or (self.probe_until is not None and now < self.probe_until):
            return False
        self.probe_until = now + self.pause  # one goes; if nothing is heard of it, another one after a while
        return True

    def record(self, *, died: bool, now: timedelta) -> bool:
        """Whether this has closed it."""
        if self.until is None:
            self.last.append(died)
            full = len(self.last) == self.last.maxlen
            if full and sum(self.last) >= self.options.share * len(self.last):
                self.until = now + self.pause
            return False
        self.probe_until = None
        if died:
            self.pause = min(self.pause * 2, self.options.longest)
            self.until = now + self.pause
            return False
        self.until, self.pause = None, self.options.pause
        self.last.clear()
        return True


class Breakers:
    """The breakers of all sources."""

    def __init__(
        self,
        clock: Clock,
        options: BreakerOptions | None = None,
        recovered: Callable[[str], None] = lambda _source: None,
    ) -> None:
        self._clock = clock
        self._options = options or BreakerOptions()
        self._breakers: dict[str, _Breaker] = {}
        self._recovered = recovered

    def admits(self, source: str) -> bool:
        """Whether a letter may be sent to this source now. Asking for the probe of an open one uses it up."""
        breaker = self._breakers.get(source)
        return breaker is None or breaker.admits(self._clock.monotonic())

    def is_open(self, source: str) -> bool:
        """Whether letters for this source are held back."""
        breaker = self._breakers.get(source)
        return breaker is not None and breaker.until is not None

    def open_sources(self) -> tuple[str, ...]:
        """The sources for which letters are held back."""
        return tuple(source for source, breaker in self._breakers.items() if breaker.until is not None)

    def died(self, source: str) -> None:
        """A redrive to this source has died again."""
        self._of(source).record(died=True, now=self._clock.monotonic())

    def succeeded(self, source: str) -> None:
        """A redrive to this source was processed."""
        if self._of(source).record(died=False, now=self._clock.monotonic()):
            self._recovered(source)

    def _of(self, source: str) -> _Breaker:
        return self._breakers.setdefault(source, _Breaker(self._options))
