"""Does a service work, or does it only try to?

`Watched` is the service it wraps, with a memory: whether it runs, and what it failed of. One that was started again is
held to work only when it has done so for a while; until then its last error is what there is to say.
"""

import asyncio
from datetime import timedelta
from typing import Final

from redrive.clock import Clock
from redrive.recover.service import Service

_WORKS: Final = timedelta(seconds=1)  # without an error since it was started again


class Watched:
    """A service whose state can be asked for."""

    def __init__(self, service: Service, clock: Clock, name: str | None = None) -> None:
        """`name` is what people call it here, where its own says more than they want to know."""
        self._service = service
        self.name = name or service.name
        self._clock = clock
        self._began: timedelta | None = None
        self._error: str | None = None
        self.failures = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set."""
        self._began = self._clock.monotonic()
        try:
            await self._service.run(stop)
        except Exception as error:
            self.failures += 1
            self._error = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._began = None

    @property
    def trouble(self) -> str | None:
        """Why it does not work; None: it does."""
        if self._began is None:
            return self._error or "not running"
        if self._error is not None and self._clock.monotonic() - self._began >= _WORKS:
            self._error = None
        return self._error
