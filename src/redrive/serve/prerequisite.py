"""Start a service only when what it needs has been reached.

A server starts although its store or its broker is unreachable. The services that need them wait meanwhile, and their
state names the first prerequisite that is not met.
"""

import asyncio
from collections.abc import Sequence
from typing import Literal

from redrive.clock import until_first
from redrive.recover.service import Service
from redrive.serve.watched import Problem


class Prerequisite:
    """Something that services wait for before they start. Services that have started go on when it is lost."""

    def __init__(self, name: str, cause: Literal["store", "broker"]) -> None:
        """`name` completes "waiting for …"."""
        self.name = name
        self.cause: Literal["store", "broker"] = cause
        self._met = asyncio.Event()

    @property
    def is_met(self) -> bool:
        """Whether services may start."""
        return self._met.is_set()

    def meet(self) -> None:
        """Let services start."""
        self._met.set()

    def lose(self) -> None:
        """Let no further service start."""
        self._met.clear()

    async def wait(self) -> None:
        """Return when it is met."""
        await self._met.wait()


class DependentService:
    """A service that starts once all its prerequisites are met."""

    def __init__(self, service: Service, needs: Sequence[Prerequisite]) -> None:
        self._service = service
        self._needs = tuple(needs)
        self._has_started = False

    @property
    def name(self) -> str:
        """The name of the service."""
        return self._service.name

    async def run(self, stop: asyncio.Event) -> None:
        """Wait for the prerequisites, then run the service."""
        self._has_started = False
        while not stop.is_set() and (missing := self._missing()) is not None:
            await until_first(missing.wait(), stop.wait())
        if not stop.is_set():
            self._has_started = True
            await self._service.run(stop)

    def waiting(self) -> Problem | None:
        """What it waits for; None: it has started."""
        missing = None if self._has_started else self._missing()
        if missing is None:
            return None
        return Problem(f"waiting for {missing.name}", missing.cause, is_waiting=True)

    def _missing(self) -> Prerequisite | None:
        return next((each for each in self._needs if not each.is_met), None)
