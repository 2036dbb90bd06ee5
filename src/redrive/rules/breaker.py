"""Is it better to wait, because nearly everything that is tried fails?

A pure state machine over the outcomes of the last tries: *closed*, everything may go; *open*, nothing may until the
pause is over; *probing*, one try goes, and its outcome closes the breaker, or opens it again for twice as long. The
consumer asks it before it runs a handler, recovery before it sends a letter back. Each of them says
for itself when it opens.

It does not know what is tried, nor clocks: `now` is passed in as a monotonic duration.
"""

from collections import deque
from datetime import timedelta
from typing import ClassVar

import msgspec

from redrive.errors import SettingsError


class BreakerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When a breaker opens, and how long it stays open."""

    failure_rate: float  # fraction of recent results that must be failures before it opens
    window: int  # number of recent results; with fewer it stays closed
    pause: timedelta  # before the first probe; each failed probe doubles it
    max_pause: timedelta

    whose: ClassVar[str] = "breaker"  # in error messages

    def __post_init__(self) -> None:
        if not 0 < self.failure_rate <= 1:
            raise SettingsError(
                f"{self.whose}: failure_rate must be above 0 and at most 1, not {self.failure_rate}"
            )
        if self.window < 1:
            raise SettingsError(f"{self.whose}: window must be at least 1, not {self.window}")
        if not timedelta(0) < self.pause <= self.max_pause:
            raise SettingsError(f"{self.whose}: pause must be above 0 and not longer than max_pause")


class Breaker:
    """Says whether one more may go now."""

    def __init__(self, options: BreakerOptions, *, by_hearsay: bool = False) -> None:
        """By hearsay: outcomes are told by others, late or never.

        Then any success closes it, and a probe of which nothing is heard for as long as the pause lets another one go.
        Else a probe ends here for certain. Failures without a probe change nothing: those tries were under way when it
        opened.
        """
        self._options = options
        self._by_hearsay = by_hearsay
        self._last: deque[bool] = deque(maxlen=options.window)
        self._failures = 0
        self._too_many = options.failure_rate * options.window
        self._pause = options.pause
        self._until: timedelta | None = None  # open until then; None: closed
        self._probe: timedelta | None = None  # when the probe that is out was let go
        # Asked for each message, so they are kept rather than told. Open: anything but probes is held back. Calm: one
        # more success would change nothing, because it is closed and has seen no failure for long enough.
        self.is_open = self.is_calm = False

    def wait(self, now: timedelta) -> timedelta | None:
        """None: one may go. Else look again after so long; a probe that is out says when it ends."""
        if self._until is None:
            return None
        until = self._until
        if self._probe is not None:
            if not self._by_hearsay:
                return self._options.pause
            until = self._probe + self._pause
        if now < until:
            return until - now
        self._probe = now
        return None

    def no_probe(self) -> None:
        """What was let go was none after all: let the next one go."""
        self._probe = None

    def record(self, *, failed: bool, now: timedelta) -> bool:
        """A try has ended; whether that has closed the breaker."""
        if self._until is not None:
            judges = self._probe is not None or (self._by_hearsay and not failed)
            return judges and self._judge(failed=failed, now=now)
        last = self._last
        if len(last) == self._options.window:
            self._failures -= last[0]
        last.append(failed)
        self._failures += failed
        if len(last) == self._options.window:
            if self._failures >= self._too_many:
                self._until = now + self._pause
                self.is_open = True
            self.is_calm = not self._failures
        return False

    def _judge(self, *, failed: bool, now: timedelta) -> bool:
        self._probe = None
        if failed:
            self._pause = min(self._pause * 2, self._options.max_pause)
            self._until = now + self._pause
            return False
        self._until = None
        self.is_open = False
        self._pause = self._options.pause
        self._last.clear()
        self._failures = 0
        return True
