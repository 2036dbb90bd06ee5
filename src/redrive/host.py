"""How busy is this machine?

The shares of CPU and memory in use, measured at most once in a while. What cannot be measured is None, and no reason
for anything.
"""

from datetime import timedelta
from typing import Final, NamedTuple

import psutil

from redrive.clock import Clock

_FRESH: Final = timedelta(seconds=5)


class Load(NamedTuple):
    """Fractions of one."""

    cpu: float
    memory: float


class Host:
    """Measures this machine."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: timedelta | None = None
        self._last: Load | None = None
        psutil.cpu_percent(None)  # the first answer is about no time at all

    def __call__(self) -> Load | None:
        """What was measured within the last seconds."""
        now = self._clock.monotonic()
        if self._at is None or now - self._at > _FRESH:
            self._at = now
            try:
                self._last = Load(psutil.cpu_percent(None) / 100, psutil.virtual_memory().percent / 100)
            except (OSError, psutil.Error):
                self._last = None
        return self._last
