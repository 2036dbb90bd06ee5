"""Check from time to time that the store can be written, and that the broker and its queues are there.

A store that can be read is not a store that can be written: a full disk, a removed file or a read-only replica answers
every question. So a small document is written every `interval`, and the writes of the collectors count as well: the
store is failing while the last write of any of them has failed, or when the last success is too long ago.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

import msgspec

from redrive.clock import Clock, pause, until_first
from redrive.errors import BrokerRefusedError, RedriveError, SourceMissingError, StoreBusyError, StoreError
from redrive.serve.watched import Problem
from redrive.stores.base import Store
from redrive.transports.base import Transport

DOCUMENT: Final = "health"
_WRITE_TIMEOUT: Final = timedelta(seconds=10)
_BROKER_TIMEOUT: Final = timedelta(seconds=5)
_MAX_RETRY_INTERVAL: Final = timedelta(seconds=2)  # while it fails, so that the end of a failure is seen soon
_MAX_CONFLICTS: Final = 5


class StoreCheck:
    """Writes to the store every `interval`; a service."""

    name = "store-check"

    def __init__(
        self, store: Store, clock: Clock, *, server: str, interval: timedelta, max_age: timedelta
    ) -> None:
        """The store is failing when the last successful write is older than `max_age`."""
        self._store = store
        self._clock = clock
        self._server = server
        self._interval = interval
        self._max_age = max_age
        self._error: str | None = None  # of the last write of our own
        self._writers: dict[str, str] = {}  # service → why its last write failed
        self._succeeded_at: timedelta | None = None  # or when it began
        self._wake = asyncio.Event()

    @property
    def problem(self) -> str | None:
        """Why the store cannot be written; None: the last write succeeded, and that was not long ago."""
        if self._error is not None:
            return self._error
        if self._writers:
            return next(iter(self._writers.values()))
        if self._succeeded_at is None:
            return None
        age = self._clock.monotonic() - self._succeeded_at
        if age > self._max_age:
            limit = self._max_age.total_seconds()
            return f"the last successful write was {age.total_seconds():.0f} s ago (limit {limit:g} s)"
        return None

    def wrote(self, service: str, error: RedriveError | None) -> None:
        """A service has written to the store, with or without success."""
        if isinstance(error, StoreError):
            self._writers[service] = f"{type(error).__name__}: {error}"
            if self._error is None:
                self._wake.set()
        elif error is None:
            self._writers.pop(service, None)

    def failing(self, service: str) -> Problem | None:
        """That the last write of this service failed."""
        error = self._writers.get(service)
        return None if error is None else Problem(error, "store")

    async def run(self, stop: asyncio.Event) -> None:
        """Write until `stop` is set."""
        if self._succeeded_at is None:
            self._succeeded_at = self._clock.monotonic()
        while not stop.is_set():
            self._wake.clear()
            await self.check()
            is_failing = self._error is not None
            wait = min(self._interval, _MAX_RETRY_INTERVAL) if is_failing else self._interval
            await until_first(self._wake.wait(), self._clock.sleep(wait), stop.wait())

    async def check(self) -> None:
        """Write once."""
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT.total_seconds()):
                await self._write()
        except TimeoutError:
            self._error = f"a test write took longer than {_WRITE_TIMEOUT.total_seconds():g} s"
        except RedriveError as error:
            self._error = f"{type(error).__name__}: {error}"
        else:
            self._error = None
            self._succeeded_at = self._clock.monotonic()

    async def _write(self) -> None:
        body = msgspec.json.encode({"server": self._server, "at": self._clock.now()})
        for _ in range(_MAX_CONFLICTS):
            document = await self._store.recall(DOCUMENT)
            if await self._store.remember(DOCUMENT, body, version=document.version):
                return
        raise StoreBusyError(
            "the health document is changed by other servers too often; check that no server was "
            "started twice"
        )


class BrokerCheck:
    """Asks every `interval` for the queues that are collected; a service."""

    name = "check"

    def __init__(
        self, transport: Transport, queues: Callable[[], Iterable[str]], clock: Clock, *, interval: timedelta
    ) -> None:
        """`queues` are the dead-letter queues that are collected at the moment."""
        self._transport = transport
        self._queues = queues
        self._clock = clock
        self._interval = interval
        self._missing: dict[str, Problem] = {}

    def missing(self, queue: str) -> Problem | None:
        """That this queue does not exist, as of the last check."""
        return self._missing.get(queue)

    async def run(self, stop: asyncio.Event) -> None:
        """Check until `stop` is set."""
        while not stop.is_set():
            await self.check()
            await pause(self._clock, self._interval, stop)

    async def check(self) -> None:
        """Ask once. What cannot be asked keeps its state: whether the broker answers is reported by itself."""
        for queue in sorted(set(self._queues())):
            try:
                async with asyncio.timeout(_BROKER_TIMEOUT.total_seconds()):
                    await self._transport.depth(queue)
            except SourceMissingError as error:
                # There is an alert about the queue; its collector waits for it.
                self._missing[queue] = Problem(f"{type(error).__name__}: {error}", is_waiting=True)
            except BrokerRefusedError:
                self._missing.pop(queue, None)  # it is there; how deep it is, this user may not ask
            except (RedriveError, TimeoutError):
                return
            else:
                self._missing.pop(queue, None)
