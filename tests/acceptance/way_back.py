"""What does it take to walk the way back on a real broker?

`WayBack` is one source with its dead letters: the broker's own transport, a SQLite file, an app that consumes, and
beside it collectors, worker, rescuer and replays. The collectors run in the background as they do in a server; workers
and rescuers take the turns that a test asks for. The rule: the store and everything that decides by time have a clock
that the test turns; only what waits for the network has the machine's.

It does not know which broker it has.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pika
from pika.adapters.blocking_connection import BlockingChannel

from redrive import App
from redrive.clock import SystemClock
from redrive.collect import Collector, VerdictCollector
from redrive.collect.reading import Reader
from redrive.letters import DeadLetter, LetterHead, LetterState, Message
from redrive.letters.redact import Redactor
from redrive.letters.verdict import QUEUE
from redrive.recover.breaker import Breakers, HoldBackOptions
from redrive.recover.rescuer import Rescuer
from redrive.recover.service import Service, Services
from redrive.recover.worker import Worker, WorkerOptions
from redrive.replay.options import ReplayOptions
from redrive.replay.plan import begin, by_ids, plan
from redrive.replay.run import Replay
from redrive.rules import Classifier, Fixed, Health, StrategyOptions
from redrive.settings import read
from redrive.stores.operations import Operation
from redrive.stores.sqlite import SqliteStore
from redrive.testing import ManualClock
from redrive.transports import Publication, Source, Target, Transport, open_transport

# Nothing waits in the consumer: its clock stands still.
CONSUMING = read({"consume": {"breaker": {"enabled": False}, "shutdown_timeout": "5s"}})
AT_ONCE = Fixed(timedelta(0))
PATIENCE = 30.0  # seconds; a machine that is busy is no failure
MINUTE = timedelta(minutes=1)


class Flaky:
    """A handler that fails for as long as it has an error to raise."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.seen: list[bytes] = []

    async def __call__(self, body: bytes) -> None:
        self.seen.append(body)
        if self.error is not None:
            raise self.error


class LimitedError(Exception):
    """Somebody asks for a rest."""

    status = 429

    def __init__(self, seconds: int | None = None) -> None:
        super().__init__("too many requests")
        self.headers = {} if seconds is None else {"Retry-After": str(seconds)}


@dataclass(frozen=True)
class Found:
    """A message, as pika sees it."""

    body: bytes
    properties: pika.BasicProperties

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.headers or {})


class Outside:
    """The broker, seen by pika: it knows nothing of redrive."""

    def __init__(self, url: str) -> None:
        self._url = url

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel

    def publish(self, queue: str, *messages: tuple[bytes, pika.BasicProperties], exchange: str = "") -> None:
        with self.channel() as channel:
            for body, properties in messages:
                channel.basic_publish(exchange, queue, body, properties, mandatory=True)

    def reject(self, queue: str, count: int = 1) -> None:
        """Take so many messages and reject them for good, as a consumer that has given up does."""
        with self.channel() as channel:
            for _ in range(count):
                method, _, _ = channel.basic_get(queue)
                assert method is not None, f"nothing is in {queue}"
                channel.basic_reject(method.delivery_tag, requeue=False)

    def take(self, queue: str) -> list[Found]:
        """Everything in a queue."""
        found: list[Found] = []
        with self.channel() as channel:
            while (answer := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(Found(answer[2], answer[1]))
        return found

    def declare(self, queue: str, **arguments: Any) -> None:
        with self.channel() as channel:
            channel.queue_declare(
                queue, durable=True, arguments={k.replace("_", "-"): v for k, v in arguments.items()}
            )

    def delete(self, queue: str) -> None:
        with self.channel() as channel:
            channel.queue_delete(queue)

    def depth(self, queue: str) -> int:
        with self.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)


class WayBack:
    """One source, its dead letters, and everything that sends them back. Make one with `open_way_back`."""

    def __init__(
        self,
        url: str,
        store: SqliteStore,
        transport: Transport,
        clock: ManualClock,
        source: Source,
        strategy: StrategyOptions,
        queues: Sequence[str],
    ) -> None:
        self.url = url
        self.store = store
        self.transport = transport
        self.clock = clock
        self.source = source
        self.outside = Outside(url)
        self.health = Health()
        self.troubles: list[str] = []
        self._strategy = strategy
        self._something = asyncio.Event()
        self.breakers = Breakers(clock, HoldBackOptions(window=3))
        self.collectors = {queue: self._a_collector(queue) for queue in (source.dlq, *queues)}
        self.verdicts = VerdictCollector(
            transport,
            store,
            clock=clock,
            trouble=self._trouble,
            resolved=lambda verdict: self._resolved(verdict.source),
        )
        self.worker = self.a_worker("worker-1")
        self.rescuer = Rescuer(store, clock, max_redrives=strategy.max_redrives)

    @property
    def collector(self) -> Collector:
        """The one of the source's own dead letters."""
        return self.collectors[self.source.dlq]

    def a_worker(self, name: str, **options: Any) -> Worker:
        return Worker(
            self.store,
            self.transport,
            name=name,
            strategy=self._strategy,
            options=WorkerOptions(**options),
            clock=self.clock,
            breakers=self.breakers,
            measure=lambda: self.health,
            trouble=self._trouble,
        )

    def _a_collector(self, queue: str) -> Collector:
        return Collector(
            self.transport,
            self.store,
            queue,
            reader=Reader(Classifier(), Redactor(), self._strategy),
            options=self._strategy,
            clock=self.clock,
            trouble=self._trouble,
            died_again=lambda source, _failure: self._died(source),
            collected=lambda _letters: self._something.set(),
        )

    def _died(self, source: str) -> None:
        self.breakers.died(source)
        self._something.set()

    def _resolved(self, source: str) -> None:
        self.breakers.succeeded(source)
        self._something.set()

    def _trouble(self, what: str, error: Exception) -> None:
        self.troubles.append(f"{what}: {error}")
        self._something.set()

    # --- what happens ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def consuming(
        self, handler: Any, *, queue: str | None = None, **options: Any
    ) -> AsyncIterator[None]:
        """An app beside everything else, with a transport of its own; it gives up at once if nothing else is said."""
        app = App(open_transport(self.url, SystemClock()), settings=CONSUMING, clock=self.clock, observers=())
        app.consume(
            queue or self.source.name,
            **{
                "attempts": 1,
                "max_deliveries": 1,
                "backoff": AT_ONCE,
                "queue_type": self.source.queue_type,
                **options,
            },
        )(handler)
        async with app:
            yield

    async def send(self, *bodies: bytes, **fields: Any) -> None:
        target = Target(name=self.source.name)
        messages = [Publication(Message(body=body, **fields), target) for body in bodies]
        assert not any(await self.transport.publish(messages))

    async def replay(self, *ids: str, copies: bool = False, **options: Any) -> Operation:
        """A person sends these letters back."""
        frozen = await plan(self.store, by_ids(ids), copies=copies)
        wanted = ReplayOptions(**{"stop_at": None, **options})
        operation = await begin(self.store, frozen, wanted, by="anna", clock=self.clock)
        replay = Replay(self.store, self.transport, operation, runner="anna", clock=self.clock)
        return await replay.run(asyncio.Event())

    # --- what is seen ------------------------------------------------------------------------------------------

    async def heads(self) -> Sequence[LetterHead]:
        return (await self.store.page(limit=1000)).heads

    async def the_letter(self) -> LetterHead:
        (head,) = await self.heads()
        return head

    async def whole(self, letter_id: str) -> DeadLetter:
        (letter,) = await self.store.load([letter_id])
        return letter

    async def steps(self, letter_id: str) -> list[tuple[str, str, str | None]]:
        """What the journal tells: action, state before, state after."""
        return [(line.action, line.before, line.after) for line in await self.store.journal(letter_id)]

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait until something holds that a collector brings about."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    self._something.clear()
                    if await holds():
                        return
                    # Not everything that is awaited is told: look again after a moment.
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._something.wait(), 0.05)
        except TimeoutError:
            seen = [(head.id, str(head.state), head.dlq_retry_count) for head in await self.heads()]
            raise AssertionError(
                f"{what} did not happen; letters: {seen}; troubles: {self.troubles}"
            ) from None

    async def until_state(
        self, state: LetterState, redrives: int, letter_id: str | None = None
    ) -> LetterHead:
        """Wait until the letter, the only one if none is named, is in this state after so many redrives."""
        found: list[LetterHead] = []

        async def holds() -> bool:
            found[:] = [
                head
                for head in await self.heads()
                if letter_id in (None, head.id) and (head.state, head.dlq_retry_count) == (state, redrives)
            ]
            return len(found) == 1

        await self.until(holds, f"{state} after {redrives} redrives")
        return found[0]

    async def until_letters(self, count: int) -> Sequence[LetterHead]:
        """Wait until so many letters are kept."""

        async def holds() -> bool:
            return await self.store.count() == count

        await self.until(holds, f"{count} letters")
        return await self.heads()

    async def drained(self, *queues: str) -> None:
        """Wait until these queues are empty, also of what was out."""
        for queue in queues:

            async def holds(queue: str = queue) -> bool:
                return await self.transport.depth(queue) == 0

            await self.until(holds, f"{queue} is empty")


@asynccontextmanager
async def open_way_back(
    url: str,
    directory: Path,
    *,
    start: datetime | None = None,
    strategy: StrategyOptions | None = None,
    queue_type: Literal["quorum", "classic"] = "classic",
    queues: Sequence[str] = (),
) -> AsyncIterator[WayBack]:
    """The whole of it, with its collectors running; `queues` are further dead-letter queues, which exist."""
    clock = ManualClock() if start is None else ManualClock(start)
    source = Source(name="orders", max_deliveries=1, queue_type=queue_type)
    store = await SqliteStore.open(directory / "letters.db", clock=clock)
    try:
        async with open_transport(url, SystemClock()) as transport:
            await transport.provision([source])
            await transport.ensure_queue(QUEUE)
            way = WayBack(url, store, transport, clock, source, strategy or StrategyOptions(), queues)
            background: list[Service] = [*way.collectors.values(), way.verdicts]
            services = Services(background, clock, way._trouble)
            running = asyncio.create_task(services.run())
            try:
                yield way
            finally:
                services.stop()
                await running
    finally:
        await store.close()
