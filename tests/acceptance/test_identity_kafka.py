"""On Kafka every group receives a redrive: only the group that failed processes it, and only its verdict counts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from confluent_kafka import Consumer

from redrive import App, Context
from redrive.clock import SystemClock
from redrive.collect import Collector, VerdictCollector
from redrive.collect.reading import Reader
from redrive.letters import LetterHead, LetterState, Message
from redrive.letters.redact import Redactor
from redrive.letters.verdict import QUEUE
from redrive.recover.breaker import Breakers
from redrive.recover.confirmer import Confirmer
from redrive.recover.service import Services
from redrive.recover.worker import Worker, WorkerOptions
from redrive.rules import Classifier, StrategyOptions
from redrive.settings import read
from redrive.stores.changes import Schedule
from redrive.stores.memory import MemoryStore
from redrive.transports.kafka import KafkaTransport
from tests.services import Kafka

NO_FLOOD = read({"consume": {"breaker": {"enabled": False}, "shutdown_timeout": "5s", "backoff": "10ms"}})
QUICK = "session.timeout.ms=6000&heartbeat.interval.ms=500&publish_timeout=5s"
PATIENCE = 60.0
TIMEOUT = timedelta(seconds=2)
STRATEGY = StrategyOptions(recheck_interval=timedelta(seconds=1))


class Shop:
    """One topic with the dead letters of a group, and the services that send them back."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.clock = SystemClock()
        self.topic = kafka.topic("orders", partitions=2)
        self.store = MemoryStore(self.clock)
        self.verdicts = kafka.topic("verdicts")

    def url(self, group: str) -> str:
        return f"{self.kafka.url}/?group={self.kafka.name(group)}&{QUICK}"

    def app(self, group: str, handle: Callable[..., Awaitable[None]]) -> App:
        app = App(self.url(group), settings=NO_FLOOD, observers=())
        app.consume(self.topic, attempts=1, max_deliveries=1, consumer_group=self.kafka.name(group))(handle)
        return app

    @asynccontextmanager
    async def serving(self, *dead_letter_topics: str) -> AsyncIterator[None]:
        async with KafkaTransport(self.url("server"), self.clock) as transport:
            await transport.ensure_queue(QUEUE)
            self.transport = transport
            self.worker = Worker(
                self.store,
                transport,
                name="worker-1",
                strategy=STRATEGY,
                options=WorkerOptions(verdict_timeout=TIMEOUT),
                clock=self.clock,
                breakers=Breakers(self.clock),
            )
            self.confirmer = Confirmer(
                self.store,
                transport,
                clock=self.clock,
                verdict_timeout=TIMEOUT,
                retry_in=timedelta(minutes=5),
            )
            self.judge = VerdictCollector(transport, self.store, clock=self.clock, trouble=_ignore)
            collectors = [
                Collector(
                    transport,
                    self.store,
                    topic,
                    reader=Reader(Classifier(), Redactor(), STRATEGY),
                    options=STRATEGY,
                    clock=self.clock,
                    trouble=_ignore,
                )
                for topic in dead_letter_topics
            ]
            services = Services([*collectors, self.judge], self.clock, _ignore)
            running = asyncio.create_task(services.run())
            try:
                yield
            finally:
                services.stop()
                await running

    async def letters(self) -> list[LetterHead]:
        return list((await self.store.page(limit=100)).heads)

    async def until(self, holds: Callable[[list[LetterHead]], bool]) -> list[LetterHead]:
        async with asyncio.timeout(PATIENCE):
            while not holds(heads := await self.letters()):  # noqa: ASYNC110  the store has no event
                await asyncio.sleep(0.05)
        return heads

    async def redrive(self) -> None:
        """Make everything due, and send it."""
        ids = [head.id for head in await self.letters() if head.state is LetterState.PENDING]
        await self.store.apply(Schedule(self.clock.now()), ids, by="test")
        assert await self.worker.turn() == len(ids)

    async def a_letter(self) -> LetterHead:
        """A letter of group `shop`, whose consumer is gone."""

        async def fails(_body: bytes) -> None:
            raise ConnectionResetError("connection reset by peer")

        async with self.app("shop", fails) as app:
            await app.publish(self.topic, b"order 1")
            (head,) = await self.until(lambda heads: len(heads) == 1)
        return head


def _ignore(_what: str, _error: Exception) -> None: ...


async def test_only_the_group_that_failed_processes_and_resolves_a_redrive(kafka: Kafka) -> None:
    shop = Shop(kafka)
    dead_letters = [f"{kafka.name('shop')}.dlq", f"{kafka.name('audit')}.dlq"]
    seen: dict[str, list[tuple[bytes | None, bool, int | None]]] = {"shop": [], "audit": []}
    failures = 3

    def handler(group: str) -> Callable[[Message, Context], Awaitable[None]]:
        async def handle(message: Message, context: Context) -> None:
            redrive = context.redrive
            seen[group].append(
                (
                    message.body,
                    "x-replayed" in message.headers.names(),
                    None if redrive is None else redrive.attempt,
                )
            )
            if group == "shop" and len(seen["shop"]) <= failures:
                raise ConnectionResetError("connection reset by peer")

        return handle

    skipped: list[int] = []

    class Watching(_Silent):
        def skipped(self, source: str, count: int) -> None:
            skipped.append(count)

    audit = App(shop.url("audit"), settings=NO_FLOOD, observers=[Watching()])
    audit.consume(shop.topic, attempts=1, max_deliveries=1, consumer_group=kafka.name("audit"))(
        handler("audit")
    )
    async with shop.app("shop", handler("shop")) as app, audit, shop.serving(*dead_letters):
        await app.publish(shop.topic, b"order 1")
        (letter,) = await shop.until(lambda heads: len(heads) == 1)
        assert letter.consumer_group == kafka.name("shop")
        for redrives in range(1, failures + 1):
            await shop.redrive()
            wanted = LetterState.PENDING if redrives < failures else LetterState.RESOLVED
            await shop.until(
                lambda heads, wanted=wanted, redrives=redrives: (
                    [  # type: ignore[misc]
                        (head.state, head.dlq_retry_count) for head in heads
                    ]
                    == [(wanted, redrives)]
                )
            )
        async with asyncio.timeout(PATIENCE):
            while sum(skipped) < failures:  # noqa: ASYNC110  the observer has no event
                await asyncio.sleep(0.05)
    (whole,) = await shop.store.load([letter.id])
    assert [attempt.result for attempt in whole.attempts] == ["failed", "failed", "resolved"]
    assert seen["audit"] == [(b"order 1", False, None)]
    assert [attempt for _, _, attempt in seen["shop"]] == [None, 1, 2, 3]
    assert (shop.judge.counts.resolved, shop.judge.counts.other_consumer) == (1, 0)


async def test_redrive_to_a_group_without_members_is_not_sent(kafka: Kafka) -> None:
    shop = Shop(kafka)
    async with shop.serving(f"{kafka.name('shop')}.dlq"):
        await shop.a_letter()
        await _delete_group(kafka, kafka.name("shop"))
        end = await _records(kafka, shop.topic)
        await shop.redrive()
        (letter,) = await shop.letters()
        assert (letter.state, letter.dlq_retry_count, letter.sent_at) == (LetterState.PENDING, 0, None)
        assert "has no members and no committed offsets" in shop.worker.undeliverable[shop.topic]
        assert await _records(kafka, shop.topic) == end
        (line,) = [line for line in await shop.store.journal(letter.id) if line.action == "release"]
        assert kafka.name("shop") in line.detail


async def test_redrive_that_a_foreign_consumer_passed_is_unconfirmed_then_presumed(kafka: Kafka) -> None:
    shop = Shop(kafka)
    async with shop.serving(f"{kafka.name('shop')}.dlq"):
        await shop.a_letter()
        await shop.redrive()
        async with asyncio.timeout(PATIENCE):
            while not (await shop.letters())[0].unconfirmed:
                await shop.confirmer.turn()
                await asyncio.sleep(0.1)
        (letter,) = await shop.letters()
        assert letter.state is LetterState.PROCESSING, "no consumer has read it yet"
        await asyncio.to_thread(_read_all, kafka, shop.topic, kafka.name("shop"))
        async with asyncio.timeout(PATIENCE):
            while (await shop.letters())[0].state is LetterState.PROCESSING:
                await shop.confirmer.turn()
                await asyncio.sleep(0.1)
        (letter,) = await shop.letters()
        assert (letter.state, letter.presumed) == (LetterState.RESOLVED, True)


async def test_redrive_whose_group_is_gone_before_it_was_read_is_pending_again(kafka: Kafka) -> None:
    shop = Shop(kafka)
    async with shop.serving(f"{kafka.name('shop')}.dlq"):
        await shop.a_letter()
        await shop.redrive()
        await _delete_group(kafka, kafka.name("shop"))
        async with asyncio.timeout(PATIENCE):
            while (await shop.letters())[0].state is LetterState.PROCESSING:
                await shop.confirmer.turn()
                await asyncio.sleep(0.2)
        (letter,) = await shop.letters()
        assert (letter.state, letter.dlq_retry_count, letter.unconfirmed) == (LetterState.PENDING, 1, False)
        (whole,) = await shop.store.load([letter.id])
        assert [attempt.result for attempt in whole.attempts] == ["unconfirmed"]


class _Silent:
    """An observer that hears nothing."""

    traces = False

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_arguments: None


async def _delete_group(kafka: Kafka, group: str) -> None:
    admin = kafka.admin()
    async with asyncio.timeout(PATIENCE):
        while True:  # until its last member has left
            try:
                await asyncio.wrap_future(admin.delete_consumer_groups([group])[group])
            except Exception:  # noqa: BLE001  it is not empty yet
                await asyncio.sleep(0.2)
            else:
                return


async def _records(kafka: Kafka, topic: str) -> int:
    def count() -> int:
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "look"})
        try:
            found: Any = consumer.list_topics(topic).topics[topic].partitions
            return sum(consumer.get_watermark_offsets(_partition(topic, number))[1] for number in found)
        finally:
            consumer.close()

    return await asyncio.to_thread(count)


def _partition(topic: str, number: int) -> Any:
    from confluent_kafka import TopicPartition

    return TopicPartition(topic, number)


def _read_all(kafka: Kafka, topic: str, group: str) -> None:
    """Read to the end and commit, as a consumer does that knows nothing of redrive."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
         "enable.auto.commit": False, "enable.partition.eof": True}
    )  # fmt: skip
    consumer.subscribe([topic])
    ended: set[int] = set()
    try:
        while len(ended) < 2:
            record = consumer.poll(1.0)
            if record is None:
                continue
            if record.error() is not None:
                ended.add(record.partition() or 0)
            else:
                ended.discard(record.partition() or 0)
                consumer.commit(message=record, asynchronous=False)
    finally:
        consumer.close()
