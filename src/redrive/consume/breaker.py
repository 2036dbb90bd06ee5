"""When does a source deliver so many failures that it is better to wait (H9)?

A pure state machine over the outcomes of the last deliveries: *closed*, everything runs; *open*, nothing runs until
the pause is over; *probing*, one message at a time runs, and its outcome closes the breaker or opens it again for
twice as long. Without it a dependency that is down for ten minutes drains a whole queue into the dead letters.

It does not know messages nor clocks: `now` is passed in as a monotonic duration.
"""

from collections import deque
from datetime import timedelta

from redrive.consume.options import FloodOptions


class FloodBreaker:
    """Says whether one more message may run now."""

    def __init__(self, options: FloodOptions) -> None:
        self._options = options
        self._last: deque[bool] = deque(maxlen=options.least)
        self._failures = 0
        self._pause = options.pause
        self._until: timedelta | None = None  # open until then; None: closed
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether anything but probes is held back."""
        return self._until is not None

    def wait(self, now: timedelta) -> timedelta | None:
        """None: a message may run. Else look again after so long; a probe that is out says when it ends."""
        if self._until is None:
            return None
        if self._probing:
            return self._options.pause
        if now < self._until:
            return self._until - now
        self._probing = True
        return None

    def no_probe(self) -> None:
        """The message that was let through was none: it had been lost meanwhile. Let the next one through."""
        self._probing = False

    def record(self, *, failed: bool, now: timedelta) -> None:
        """A delivery has ended."""
        if self._until is not None:
            if self._probing:
                self._judge_probe(failed=failed, now=now)
            return  # one that was running already when the breaker opened says nothing new
        if len(self._last) == self._last.maxlen and self._last[0]:
            self._failures -= 1
        self._last.append(failed)
        self._failures += failed
        if len(self._last) == self._last.maxlen and self._failures >= self._options.share * len(self._last):
            self._until = now + self._pause

    def _judge_probe(self, *, failed: bool, now: timedelta) -> None:
        self._probing = False
        if failed:
            self._pause = min(self._pause * 2, self._options.longest)
            self._until = now + self._pause
            return
        self._until = None
        self._pause = self._options.pause
        self._last.clear()
        self._failures = 0
