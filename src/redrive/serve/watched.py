"""Track the state of a service.

`Watched` wraps a service and records whether it runs and why it failed. A service that was restarted counts as working
only after a while; until then its last error is reported. Checks from outside, such as a missing queue, are called
whenever the state is read.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Literal, NamedTuple, TypeAlias

from redrive.clock import Clock
from redrive.errors import BrokerUnreachableError, StoreError, TransportClosedError
from redrive.recover.service import Service

_WORKS_AFTER: Final = timedelta(seconds=1)  # without an error since it was started again


class Problem(NamedTuple):
    """Why a service does not work, and whether that is a consequence of the store's or the broker's state."""

    text: str
    cause: Literal["store", "broker"] | None = None
    is_waiting: bool = False  # for something else, about which there is an alert; it has not failed itself


Check: TypeAlias = Callable[[], Problem | None]


def problem_of(error: Exception) -> Problem:
    """What an error says about a service."""
    cause: Literal["store", "broker"] | None = None
    if isinstance(error, StoreError):
        cause = "store"
    elif isinstance(error, BrokerUnreachableError | TransportClosedError):
        cause = "broker"
    return Problem(f"{type(error).__name__}: {error}", cause)


class Watched:
    """A service whose state can be asked for."""

    def __init__(
        self, service: Service, clock: Clock, name: str | None = None, checks: Sequence[Check] = ()
    ) -> None:
        """`name` is its name in health reports, if that differs from the name of the service."""
        self._service = service
        self.name = name or service.name
        self._clock = clock
        self._checks = tuple(checks)
        self._began: timedelta | None = None
        self._failed: Problem | None = None
        self.failures = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set."""
        self._began = self._clock.monotonic()
        try:
            await self._service.run(stop)
        except Exception as error:
            self.failures += 1
            self._failed = problem_of(error)
            raise
        finally:
            self._began = None

    @property
    def problem(self) -> Problem | None:
        """Why it does not work; None: it does."""
        if self._began is None:
            return self._failed or Problem("not running")
        if self._failed is not None and self._clock.monotonic() - self._began >= _WORKS_AFTER:
            self._failed = None
        return self._failed or next(filter(None, (check() for check in self._checks)), None)

    @property
    def trouble(self) -> str | None:
        """Why it does not work, as text; None: it does."""
        problem = self.problem
        return None if problem is None else problem.text
