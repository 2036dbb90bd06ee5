"""A whole small world for the way back: consumer, collectors, worker and rescuer on memory, on a clock turned by hand.

Every service is driven by its `turn` or for as long as there is something to do; nothing waits for real time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from redrive.collect import Collector, VerdictCollector
from redrive.collect.reading import Reader
from redrive.consume import ConsumeOptions, Consumer, Handler, Subscription
from redrive.letters import LetterHead, LetterState, Message
from redrive.letters.redact import Redactor
from redrive.letters.verdict import QUEUE
from redrive.recover.admission import Admission
from redrive.recover.breaker import Breakers, HoldBackOptions
from redrive.recover.confirmer import Confirmer
from redrive.recover.rescuer import Rescuer
from redrive.recover.worker import Worker, WorkerOptions
from redrive.rules import Classifier, Fixed, Health, StrategyOptions
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.testing import ManualClock
from redrive.transports import Publication, Source, Target
from redrive.transports.memory import MemoryBroker, MemoryTransport

ORDERS = Source(name="orders")
QUICK = ConsumeOptions(attempts=1, max_deliveries=1, backoff=Fixed(timedelta(milliseconds=1)), breaker=None)


class World:
    """One source, its dead letters, and everything that sends them back."""

    def __init__(
        self,
        store: Store | None = None,
        strategy: StrategyOptions | None = None,
        clock: ManualClock | None = None,
        **worker: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        self.broker = MemoryBroker()
        self.store: Store = store or MemoryStore(self.clock)
        self.transport = MemoryTransport(self.clock, self.broker)
        self.strategy = strategy or StrategyOptions()
        self.health = Health()
        self.troubles: list[str] = []
        self.recovered: list[str] = []
        self.breakers = Breakers(self.clock, HoldBackOptions(window=3), self.recovered.append)
        self.collector = Collector(
            self.transport,
            self.store,
            "orders.dlq",
            reader=Reader(Classifier(), Redactor(), self.strategy),
            options=self.strategy,
            clock=self.clock,
            trouble=self.trouble,
            died_again=lambda source, _failure: self.breakers.died(source),
        )
        self.verdicts = VerdictCollector(
            self.transport,
            self.store,
            clock=self.clock,
            trouble=self.trouble,
            resolved=lambda verdict: self.breakers.succeeded(verdict.source),
        )
        self.worker = self.a_worker("worker-1", **worker)
        self.rescuer = Rescuer(self.store, self.clock, max_redrives=self.strategy.max_redrives)
        self.confirmer = Confirmer(
            self.store,
            self.transport,
            clock=self.clock,
            verdict_timeout=worker.get("verdict_timeout", timedelta(hours=1)),
            retry_in=timedelta(minutes=1),
            trouble=self.trouble,
        )

    def a_worker(self, name: str, admission: Admission | None = None, **options: Any) -> Worker:
        return Worker(
            self.store,
            self.transport,
            name=name,
            strategy=self.strategy,
            options=WorkerOptions(**options),
            clock=self.clock,
            breakers=self.breakers,
            measure=lambda: self.health,
            admission=admission,
            trouble=self.trouble,
        )

    def trouble(self, what: str, error: Exception) -> None:
        self.troubles.append(f"{what}: {error}")

    async def open(self) -> None:
        await self.transport.open()
        await self.transport.provision([ORDERS])
        self.broker.make(QUEUE)

    async def send(self, *bodies: bytes, **fields: Any) -> None:
        target = Target(name="orders")
        messages = [Publication(Message(body=body, **fields), target) for body in bodies]
        assert not any(await self.transport.publish(messages))

    @asynccontextmanager
    async def consuming(
        self, function: Callable[..., Any], options: ConsumeOptions = QUICK
    ) -> AsyncIterator[None]:
        """A consumer beside everything else."""
        ready = asyncio.Event()
        consumer = Consumer(
            MemoryTransportView(self.transport),  # type: ignore[arg-type]  # the same, but it is not closed
            [Subscription(Handler.of(function), ORDERS, options)],
            clock=self.clock,
            classifier=Classifier(),
            redactor=Redactor(),
            ready=ready.set,
        )
        task = asyncio.create_task(consumer.run())
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            await task  # it has failed to start: raise its error instead of waiting for ever
        try:
            yield
        finally:
            consumer.stop()
            await task

    async def quiet(self) -> None:
        """Let everybody do what there is to do."""
        for _ in range(60):
            await asyncio.sleep(0)

    async def collect(self) -> None:
        """Drain dead letters and verdicts."""
        await self.quiet()
        for service, queue in ((self.collector, "orders.dlq"), (self.verdicts, QUEUE)):
            while await self.transport.depth(queue):
                receiver = await self.transport.receiver(Source(name=queue, window=1000))
                batch = await receiver.receive()
                await service.keep(batch)
                receiver.accept(batch)
                await receiver.close()

    async def heads(self) -> Sequence[LetterHead]:
        return (await self.store.page(limit=1000)).heads

    async def the_letter(self) -> LetterHead:
        (head,) = await self.heads()
        return head

    async def states(self) -> list[LetterState]:
        return sorted(head.state for head in await self.heads())


class MemoryTransportView:
    """A transport that a consumer may use and not close."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.capabilities = transport.capabilities
        self.receiver = transport.receiver
        self.publish = transport.publish
