"""Connect to the broker and open the store, however long they stay unreachable.

Neither stops the start of a server: it answers over HTTP and sends alerts meanwhile, and everything else waits. What
waiting cannot repair (a refused login, a damaged file) ends the server with that error.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any, Final, cast

from redrive.clock import Clock, pause
from redrive.errors import (
    BrokerRefusedError,
    RedriveError,
    SourceConflictError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
    TransportError,
)
from redrive.letters.verdict import QUEUE
from redrive.rules.backoff import Exponential
from redrive.serve.prerequisite import Prerequisite
from redrive.settings import StoreOptions
from redrive.stores import open_store
from redrive.stores.base import Store
from redrive.transports.base import Source, Transport

_RETRIES: Final = Exponential(
    initial=timedelta(milliseconds=200), factor=2.0, max_delay=timedelta(seconds=10), jitter=0.25
)
# What no waiting repairs: every other error of a broker may be a broker that stops or starts at this moment.
_REFUSALS: Final = (BrokerRefusedError, SourceConflictError)
# What may pass: every other error of a store is about the file, the schema or a setting.
_PASSING: Final = (StoreUnreachableError, StoreFullError, StoreBusyError)


class _Retry:
    """Repeat an attempt with growing delays until it succeeds, is refused for good, or `stop` is set."""

    def __init__(self, name: str, clock: Clock, trouble: Callable[[str, Exception], None]) -> None:
        self._name = name
        self._clock = clock
        self._trouble = trouble
        self._random = Random()  # noqa: S311  it spreads delays
        self.reason: str | None = None  # why the last attempt failed

    async def failed(self, attempt: int, error: RedriveError, stop: asyncio.Event) -> None:
        """Report a failed attempt, and wait for the next one."""
        self.reason = f"{type(error).__name__}: {error}"
        delay = _RETRIES.delay(attempt, self._random)
        self._trouble(f"{self._name} unreachable retry_in={delay.total_seconds():.1f}s", error)
        await pause(self._clock, delay, stop)


class BrokerConnection:
    """Connects, and creates the queues that are missing; a service."""

    name = "connection"

    def __init__(
        self,
        transport: Transport,
        sources: Sequence[Source],
        clock: Clock,
        *,
        trouble: Callable[[str, Exception], None],
        refused: Callable[[RedriveError], None],
    ) -> None:
        """`refused` is called with an error that no waiting repairs."""
        self._transport = transport
        self._sources = tuple(sources)
        self._refused = refused
        self._retry = _Retry("broker", clock, trouble)
        self._has_begun = False
        self.reached = Prerequisite("the broker", "broker")

    @property
    def problem(self) -> str | None:
        """Why there has been no connection yet; None: there has been one."""
        return None if self.reached.is_met else self._retry.reason or "not connected yet"

    @property
    def is_connecting(self) -> bool:
        """Whether the first attempt has not ended yet."""
        return self._has_begun and not self.reached.is_met and self._retry.reason is None

    async def run(self, stop: asyncio.Event) -> None:
        """Connect once; the transport itself reconnects from then on."""
        self._has_begun = True
        attempt = 0
        while not stop.is_set() and not self.reached.is_met:
            attempt += 1
            try:
                await self._transport.open()
                await self._transport.provision(self._sources)
                await self._transport.ensure_queue(QUEUE)
            except _REFUSALS as error:
                self._refused(error)
                break
            except TransportError as error:
                await self._retry.failed(attempt, error, stop)
            else:
                self.reached.meet()
        await stop.wait()


class LateStore:
    """A store that need not be open yet: until then every verb raises `StoreUnreachableError`; a service as well."""

    name = "store-connection"

    def __init__(
        self,
        settings: StoreOptions,
        clock: Clock,
        *,
        trouble: Callable[[str, Exception], None],
        refused: Callable[[RedriveError], None],
        opener: Callable[[StoreOptions, Clock], Any] = open_store,
    ) -> None:
        """`refused` is called with an error that no waiting repairs."""
        self._settings = settings
        self._clock = clock
        self._refused = refused
        self._opener = opener
        self._retry = _Retry("store", clock, trouble)
        self._store: Store | None = None
        self.reached = Prerequisite("the store", "store")

    @property
    def verbs(self) -> Store:
        """The store itself, as others use it."""
        return cast("Store", self)

    def __getattr__(self, verb: str) -> Any:
        """A verb of the store."""
        store = self.__dict__.get("_store")
        if store is None:
            raise StoreUnreachableError(f"the store is not open yet: {self._retry.reason or 'starting'}")
        return getattr(store, verb)

    @property
    def problem(self) -> str | None:
        """Why it is not open yet; None: it is."""
        return None if self._store is not None else self._retry.reason or "not open yet"

    async def open(self) -> None:
        """Try once. An error that may pass is kept for `problem`, and `run` goes on trying; others are raised."""
        try:
            self._store = await self._opener(self._settings, self._clock)
        except _PASSING as error:
            self._retry.reason = f"{type(error).__name__}: {error}"
        else:
            self.reached.meet()

    async def run(self, stop: asyncio.Event) -> None:
        """Open it, if that is still to be done."""
        attempt = 0
        while not stop.is_set() and self._store is None:
            attempt += 1
            try:
                self._store = await self._opener(self._settings, self._clock)
            except _PASSING as error:
                await self._retry.failed(attempt, error, stop)
            except StoreError as error:
                self._refused(error)
                break
            else:
                self.reached.meet()
        await stop.wait()

    async def close(self) -> None:
        """Close the store if it was opened."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()
