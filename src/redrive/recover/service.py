"""Run background services, and restart those that fail.

A service has a name and one coroutine that runs until its `stop` event is set. `Services` runs several of them. A
service that raises an error is logged and restarted after a delay that grows; it does not affect the others. Stopping
ends all of them within a time limit.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Protocol

from redrive.clock import Clock, pause

_FIRST_WAIT: Final = timedelta(milliseconds=500)
_LONGEST_WAIT: Final = timedelta(seconds=30)
_CALM: Final = timedelta(minutes=1)  # after so long without an error, the next one is the first again


class Service(Protocol):
    """A task that runs in the background."""

    @property
    def name(self) -> str:
        """Its name in health reports and logs."""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, and leave nothing half done."""


class Services:
    """Several services, run together."""

    def __init__(
        self, services: Sequence[Service], clock: Clock, trouble: Callable[[str, Exception], None]
    ) -> None:
        self._services = tuple(services)
        self._clock = clock
        self._trouble = trouble
        self._stop = asyncio.Event()
        self.failing: dict[str, str] = {}  # service → why it does not run at the moment

    def stop(self) -> None:
        """Stop them all; `run` returns when they have."""
        self._stop.set()

    async def run(self, stop_timeout: timedelta = timedelta(seconds=30)) -> None:
        """Run until `stop`, or until cancelled, which stops in order as well."""
        tasks = [asyncio.create_task(self._keep_running(service)) for service in self._services]
        try:
            await self._stop.wait()
        finally:
            self._stop.set()
            _, late = (
                await asyncio.wait(tasks, timeout=stop_timeout.total_seconds()) if tasks else (None, set())
            )
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_running(self, service: Service) -> None:
        wait = _FIRST_WAIT
        while not self._stop.is_set():
            began = self._clock.monotonic()
            try:
                await service.run(self._stop)
            except Exception as error:  # noqa: BLE001  it is restarted, whatever the error is
                if self._clock.monotonic() - began > _CALM:
                    wait = _FIRST_WAIT
                self.failing[service.name] = f"{type(error).__name__}: {error}"
                self._trouble(
                    f"service failed service={service.name} restart_in={wait.total_seconds():g}s", error
                )
                await pause(self._clock, wait, self._stop)
                wait = min(wait * 2, _LONGEST_WAIT)
            else:
                return
            finally:
                if self._stop.is_set():
                    self.failing.pop(service.name, None)
