"""Report the health of a server.

It is healthy when its store can be read and written, its broker answers, every service works, and no consumer has
reported that it cannot publish dead letters. Store and broker are asked for each report, with a short timeout: a broker
that does not answer must not make the report wait. Whether the store can be written is known from the last write.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from redrive._version import __version__
from redrive.clock import Clock
from redrive.errors import RedriveError
from redrive.letters.verdict import QUEUE
from redrive.serve.child import EmbeddedBroker
from redrive.serve.watched import Watched
from redrive.stores.base import Store
from redrive.transports.base import Transport

_PATIENCE: Final = 2.0  # seconds for one answer
OK: Final = "ok"


class Condition:
    """What is asked by `/health`."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        services: Callable[[], Sequence[Watched]],
        clock: Clock,
        broker: EmbeddedBroker | None = None,
        *,
        name: str | None = None,
        unserved: Callable[[], Mapping[str, int]] = dict,
        store_problem: Callable[[], str | None] = lambda: None,
        broker_problem: Callable[[], str | None] = lambda: None,
        consumers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`name` is the broker's; `unserved` counts letters that wait for a broker that no server serves.

        `store_problem` says why the store cannot be written, `broker_problem` why there is no connection to the broker,
        `consumers` what consumers have reported, by source.
        """
        self._store = store
        self._transport = transport
        self._services = services
        self._clock = clock
        self._broker = broker
        self._name = name or transport.kind
        self._unserved = unserved
        self._store_problem = store_problem
        self._broker_problem = broker_problem
        self._consumers = consumers
        self._began = clock.monotonic()

    async def report(self) -> dict[str, Any]:
        """Everything, as plain values; `status` is "ok" or "failing"."""
        store, broker = await asyncio.gather(self._ask_store(), self._ask_broker())
        services = {service.name: service.trouble or OK for service in self._services()}
        consumers = dict(self._consumers())
        well = {store, broker, *services.values()} == {OK} and not consumers
        answer: dict[str, Any] = {
            "status": OK if well else "failing",
            "version": __version__,
            "pid": os.getpid(),
            "uptime_seconds": round((self._clock.monotonic() - self._began).total_seconds(), 3),
            "store": store,
            "broker": broker,
            "broker_name": self._name,
            "letters_unserved": dict(self._unserved()),
            "services": services,
            "consumers": consumers,
        }
        if self._broker is not None:
            answer["embedded_broker"] = {"pid": self._broker.pid, "restarts": self._broker.restarts}
        return answer

    async def _ask_store(self) -> str:
        return self._store_problem() or await _asked(lambda: self._store.operations(limit=1))

    async def _ask_broker(self) -> str:
        if self._broker is not None and (trouble := self._broker.trouble):
            return trouble
        if problem := self._broker_problem():
            return problem
        return await _asked(lambda: self._transport.depth(QUEUE))


async def _asked(question: Callable[[], Awaitable[object]]) -> str:
    try:
        async with asyncio.timeout(_PATIENCE):
            await question()
    except TimeoutError:
        return f"no answer within {_PATIENCE:g} s"
    except RedriveError as error:
        return f"{type(error).__name__}: {error}"
    return OK
