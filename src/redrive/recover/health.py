"""Is this a good moment to send letters back?

What the host says of CPU and memory. What cannot be measured is no reason to wait.
"""

from collections.abc import Callable

from redrive.clock import Clock
from redrive.host import Host
from redrive.rules import Health

Measure = Callable[[], Health]


class HostHealth:
    """Measures this machine."""

    def __init__(self, clock: Clock, database_reachable: Callable[[], bool] = lambda: True) -> None:
        """`database_reachable` is the result of the configured checks (`conditions`)."""
        self._host = Host(clock)
        self._database_reachable = database_reachable

    def __call__(self) -> Health:
        """What was measured within the last seconds."""
        load, reachable = self._host(), self._database_reachable()
        if load is None:
            return Health(database_reachable=reachable)
        return Health(cpu=load.cpu, memory=load.memory, database_reachable=reachable)
