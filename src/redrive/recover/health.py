"""Is this a good moment to send letters back (E4)?

The share of CPU and memory in use, measured at most once in a while, and whether the store answers. What cannot be
measured is no reason to wait.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import psutil

from redrive.clock import Clock
from redrive.rules import Health

_FRESH: Final = timedelta(seconds=5)
Measure = Callable[[], Health]


class HostHealth:
    """Measures this machine."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: timedelta | None = None
        self._last = Health()
        psutil.cpu_percent(None)  # the first answer is about no time at all

    def __call__(self) -> Health:
        """What was measured within the last seconds."""
        now = self._clock.monotonic()
        if self._at is None or now - self._at > _FRESH:
            self._at = now
            try:
                cpu: float | None = psutil.cpu_percent(None) / 100
                memory: float | None = psutil.virtual_memory().percent / 100
            except (OSError, psutil.Error):
                cpu = memory = None
            self._last = Health(cpu=cpu, memory=memory)
        return self._last
