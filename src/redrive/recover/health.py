"""Is this a good moment to send letters back (E4)?

What the host says of CPU and memory. What cannot be measured is no reason to wait.
"""

from collections.abc import Callable

from redrive.clock import Clock
from redrive.host import Host
from redrive.rules import Health

Measure = Callable[[], Health]


class HostHealth:
    """Measures this machine."""

    def __init__(self, clock: Clock) -> None:
        self._host = Host(clock)

    def __call__(self) -> Health:
        """What was measured within the last seconds."""
        load = self._host()
        return Health() if load is None else Health(cpu=load.cpu, memory=load.memory)
