"""Register the server's broker in the store, and start the broker's services only then.

While the name of the broker belongs to another cluster, nothing is collected, redriven or resolved for it: health, log
and alert name both clusters. The registration is renewed for as long as the server runs, so that others see that the
broker is served.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from redrive.clock import Clock, pause
from redrive.errors import BrokerConflictError
from redrive.serve.prerequisite import Prerequisite
from redrive.stores.base import Store
from redrive.stores.brokers import KnownBroker, adopt_unnamed, register, withdraw
from redrive.transports.base import Transport

LEASE: Final = timedelta(minutes=2)
_INTERVAL: Final = LEASE / 4


class Registration:
    """Keeps one broker registered."""

    name = "registration"

    def __init__(
        self,
        store: Store,
        transport: Transport,
        clock: Clock,
        *,
        broker: str,
        server: str,
        adopted: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """`adopted` is called with the number of unnamed letters that were assigned to the broker."""
        self._store = store
        self._transport = transport
        self._clock = clock
        self._adopted = adopted
        self.broker = broker
        self.server = server
        self.reached = Prerequisite("the registration of the broker", "broker")
        self.attempted = asyncio.Event()  # with or without success

    async def run(self, stop: asyncio.Event) -> None:
        """Register, and renew it until `stop` is set."""
        await self._register()
        if count := await adopt_unnamed(self._store, self.broker, self._known()):
            self._adopted(count)
        while not stop.is_set():
            await pause(self._clock, _INTERVAL, stop)
            if not stop.is_set():
                await self._register()
        await withdraw(self._store, self.broker, server=self.server)

    async def _register(self) -> None:
        now = self._clock.now()
        try:
            await register(
                self._store, self.broker, self._known(), server=self.server, until=now + LEASE, now=now
            )
        except BrokerConflictError:
            self.reached.lose()
            raise
        else:
            self.reached.meet()
        finally:
            self.attempted.set()

    def _known(self) -> KnownBroker:
        transport = self._transport
        return KnownBroker(kind=transport.kind, cluster_id=transport.cluster_id, endpoint=transport.endpoint)
