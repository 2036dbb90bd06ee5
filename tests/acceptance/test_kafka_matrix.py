"""The decision matrix of seed 000 and the example of seed 003, on a real Kafka.

aiokafka, which shares no line with librdkafka, looks from outside at what is left in the topics.
"""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from aiokafka import (  # type: ignore[import-untyped]  # it publishes no types
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRecord,
)
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from redrive import App, Context
from redrive.clock import SystemClock
from redrive.collect import Collector
from redrive.collect.reading import Reader
from redrive.letters import Headers, LetterHead, Message
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, StrategyOptions
from redrive.settings import Settings, read
from redrive.stores.memory import MemoryStore
from redrive.stores.query import Query
from redrive.transports.kafka import KafkaTransport
from redrive.transports.redriving import SendOptions, publication
from tests.acceptance.told import Told
from tests.services import Kafka
from tests.unit.formats.onex_facts import BODY, EXAMPLE, EXAMPLE_HEADERS, FAILED_AT, SCHEMA, TOPIC, UUID_TEXT

QUIET = {"consume": {"breaker": {"enabled": False}, "shutdown_timeout": "5s", "backoff": "10ms"}}
NO_FLOOD = read(QUIET)
QUICK = "session.timeout.ms=2000&heartbeat.interval.ms=200&publish_timeout=5s"


@dataclass
class Order:
    id: int


class Outside:
    """The broker, seen by aiokafka."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    async def send(
        self,
        *values: bytes | None,
        topic: str,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int | None = None,
    ) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self._kafka.bootstrap) as producer:
            for value in values:
                await producer.send_and_wait(
                    topic, value, key=key, headers=list(headers), partition=partition
                )

    async def take(self, topic: str) -> list[ConsumerRecord]:
        """All records of a topic."""
        found: list[ConsumerRecord] = []
        # Without a group, it reads by itself.
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=self._kafka.bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        async with consumer:
            ends = await consumer.end_offsets(consumer.assignment())
            left = {place for place, end in ends.items() if end}
            async with asyncio.timeout(20):
                while left:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        found += records
                    left = {place for place in left if await consumer.position(place) < ends[place]}
        return found

    async def left(self, group: str, topic: str) -> int:
        """How many records the group has not committed."""
        committed = await asyncio.to_thread(self.committed, group, topic)
        records = await self.take(topic)
        return sum(record.offset >= committed.get(record.partition, 0) for record in records)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """What the group has committed, by partition."""
        consumer = Consumer({"bootstrap.servers": self._kafka.bootstrap, "group.id": group})
        try:
            numbers = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            places = consumer.committed([TopicPartition(topic, number) for number in numbers], timeout=10)
        finally:
            consumer.close()
        return {place.partition: place.offset for place in places if place.offset >= 0}


def headers_of(record: ConsumerRecord) -> dict[str, str]:
    return {name: value.decode() for name, value in record.headers}


@dataclass
class World:
    """A topic, its group, and those who look at them."""

    outside: Outside
    kafka: Kafka
    url: str
    orders: str
    group: str
    told: Told

    @property
    def dlq(self) -> str:
        return f"{self.orders}.dlq"

    def app(self, settings: Settings = NO_FLOOD) -> App:
        return App(self.url, settings=settings, on_dead_letter=[self.told])

    async def nothing_left(self) -> None:
        assert await self.outside.left(self.group, self.orders) == 0


@pytest.fixture
def world(kafka: Kafka) -> World:
    group = kafka.name("shop")
    url = f"{kafka.url}/?group={group}&{QUICK}"
    return World(Outside(kafka), kafka, url, kafka.topic("orders"), group, Told())


async def test_success_completes(world: World) -> None:
    seen = asyncio.Event()
    app = world.app()

    @app.consume(world.orders)
    async def handle(order: Order) -> None:
        assert order == Order(1)
        seen.set()

    async with app:
        await app.publish(world.orders, Order(1))
        await asyncio.wait_for(seen.wait(), 20)
    await world.nothing_left()
    assert await world.outside.take(world.dlq) == []
    assert world.told.events == []


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (b'{"id": 1}', "PermissionError", "user shop may not log in at postgres://shop:[REDACTED"),
        (b"not json at all", "DecodeError", "cannot be decoded from JSON"),
        (None, "DecodeError", "the message has no body"),
    ],
    ids=["non-retryable", "undecodable", "tombstone"],
)
async def test_what_no_retry_can_help_is_dead_lettered_at_once(
    world: World, body: bytes | None, error: str, words: str
) -> None:
    app = world.app()
    tries = 0

    @app.consume(world.orders)
    async def handle(order: Order) -> None:
        nonlocal tries
        tries += 1
        raise PermissionError("user shop may not log in at postgres://shop:hunter2@db/orders")

    async with app:
        headers = [
            ("x-tenant", b"north"),
            ("correlation-id", b"c-1"),
            ("n", b"\x00\xff"),
            ("x-tenant", b"south"),
        ]
        await world.outside.send(body, topic=world.orders, key=b"\xffk", headers=headers)
        await world.told.until(lambda events: len(events) == 1)
    (dead,) = await world.outside.take(world.dlq)
    await world.nothing_left()
    assert tries == (error == "PermissionError")
    assert (dead.key, dead.value) == (b"\xffk", body)
    assert list(dead.headers[:4]) == headers
    told = {name: value.decode() for name, value in dead.headers if name.startswith("redrive-")}
    assert told["redrive-reason"] == "NonRetryableError"
    assert told["redrive-error-type"] == error
    assert words in told["redrive-description"]
    assert (told["redrive-source"], told["redrive-origin-partition"], told["redrive-origin-offset"]) == (
        world.orders,
        "0",
        "0",
    )
    assert told["redrive-consumer-group"] == world.group
    assert told["redrive-correlation-id"] == "c-1"
    assert told["redrive-delivery-count"] == "1"
    assert "hunter2" not in repr(dead)
    assert [event.reason for event in world.told.events] == ["NonRetryableError"]


async def test_a_retryable_failure_comes_again_and_is_dead_lettered_at_the_limit(world: World) -> None:
    counts = list[int]()
    app = world.app()

    @app.consume(world.orders, attempts=2)
    async def handle(order: Order, context: Context) -> None:
        counts.append(context.delivery_count)
        raise ConnectionResetError("connection reset by peer")

    async with app:
        await world.outside.send(b'{"id": 1}', topic=world.orders, headers=[("a", b"b")])
        await world.told.until(lambda events: len(events) == 1)
    (dead,) = await world.outside.take(world.dlq)
    await world.nothing_left()
    assert counts == [1, 1, 2, 2, 3, 3]
    headers = headers_of(dead)
    assert headers["redrive-reason"] == "MaxDeliveryCountExceeded"
    assert headers["redrive-delivery-count"] == "3"
    assert headers["a"] == "b"


async def test_a_retryable_failure_that_heals_is_completed(world: World) -> None:
    done, counts = asyncio.Event(), list[int]()
    app = world.app()

    @app.consume(world.orders, attempts=1)
    async def handle(order: Order, context: Context) -> None:
        counts.append(context.delivery_count)
        if context.delivery_count < 3:
            raise ConnectionResetError
        done.set()

    async with app:
        await world.outside.send(b'{"id": 1}', topic=world.orders)
        await asyncio.wait_for(done.wait(), 20)
    assert counts == [1, 2, 3]
    await world.nothing_left()
    assert await world.outside.take(world.dlq) == []


async def test_a_handler_that_hangs_is_ended_and_its_message_dead_lettered(world: World) -> None:
    app = world.app()

    @app.consume(world.orders, handler_timeout=timedelta(milliseconds=100))
    async def handle(order: Order) -> None:
        await asyncio.sleep(3600)

    async with app:
        await world.outside.send(b'{"id": 1}', topic=world.orders)
        await world.told.until(lambda events: len(events) == 1)
    (dead,) = await world.outside.take(world.dlq)
    await world.nothing_left()
    headers = headers_of(dead)
    assert headers["redrive-reason"] == "NonRetryableError"
    assert headers["redrive-error-type"] == "TimeoutError"
    assert "timeout of 100ms" in headers["redrive-description"]


async def test_a_handler_may_dead_letter_and_may_give_back_for_later(world: World) -> None:
    counts, done = list[tuple[int, float]](), asyncio.Event()
    app = world.app()

    @app.consume(world.orders)
    async def handle(order: Order, context: Context) -> None:
        if order.id == 2:
            context.dead_letter("CustomBusinessRule", "duplicate invoice")
        counts.append((context.delivery_count, asyncio.get_running_loop().time()))
        if context.delivery_count == 1:
            context.requeue("1s")
        done.set()

    async with app:
        await world.outside.send(b'{"id": 1}', b'{"id": 2}', topic=world.orders)
        await asyncio.wait_for(done.wait(), 20)
        await world.told.until(lambda events: len(events) == 1)
    (first, second) = counts
    assert (first[0], second[0]) == (1, 2)
    assert second[1] - first[1] >= 0.99
    (dead,) = await world.outside.take(world.dlq)
    assert headers_of(dead)["redrive-reason"] == "CustomBusinessRule"
    assert headers_of(dead)["redrive-description"] == "duplicate invoice"
    await world.nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
async def test_a_message_that_ends_its_process_is_poison_in_the_end(
    world: World, end: str, tmp_path: Path
) -> None:
    """Three processes die of it; the fourth does not let its handler see it, and goes on with the next message."""
    (tmp_path / "shop.py").write_text(
        textwrap.dedent(
            f"""
            import os
            from redrive import App
            app = App({world.url!r})

            @app.consume({world.orders!r}, prefetch=1)
            async def handle(body: bytes) -> None:
                with open("runs", "a") as runs:
                    runs.write(body.decode() + "\\n")
                if body == b"deadly":
                    {end}
            """
        )
    )
    await world.outside.send(b"deadly", b"fine", topic=world.orders)
    processes = 0
    for _ in range(6):
        with await asyncio.to_thread(consume, tmp_path) as process:
            processes += 1
            try:
                await until(lambda: process.poll() is not None or "fine" in runs_in(tmp_path))
                if process.poll() is None:
                    await until(lambda: has_committed_all(world))
                    process.terminate()
                    assert await asyncio.to_thread(process.wait, 20) == 0
                    break
            finally:
                process.kill()
    assert runs_in(tmp_path).count("deadly") == 3
    assert runs_in(tmp_path).count("fine") >= 1
    assert processes == 4
    (dead,) = await world.outside.take(world.dlq)
    assert dead.value == b"deadly"
    assert headers_of(dead)["redrive-reason"] == "PoisonMessage"
    assert headers_of(dead)["redrive-delivery-count"] == "4"
    await world.nothing_left()


def consume(place: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "redrive", "consume", "shop"],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def runs_in(place: Path) -> list[str]:
    found = place / "runs"
    return found.read_text().split() if found.exists() else []


def has_committed_all(world: World) -> bool:
    return world.outside.committed(world.group, world.orders) == {0: 2}


async def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110  # another process makes it so
            await asyncio.sleep(0.1)


async def test_without_a_topic_for_dead_letters_nothing_is_committed_until_it_is_there(world: World) -> None:
    """A6, on the wire: the topic is deleted under the consumer; its offsets stay; it heals."""
    seen = list[int]()
    app = world.app()

    @app.consume(world.orders)
    async def handle(order: Order) -> None:
        seen.append(order.id)
        if order.id % 2:
            raise PermissionError("no")

    async with app:
        admin = world.kafka.admin()
        await asyncio.wrap_future(admin.delete_topics([world.dlq], operation_timeout=30)[world.dlq])
        bodies = [json.dumps({"id": number}).encode() for number in range(4)]
        await world.outside.send(*bodies, topic=world.orders)
        await world.told.until(lambda events: any(not event.durable for event in events))
        assert "redrive provision" in (world.told.events[0].error or "")
        assert await world.outside.left(world.group, world.orders) >= 3  # 1 and all behind it
        await asyncio.to_thread(world.kafka.topic, world.dlq.removeprefix(world.kafka.prefix))
        await world.told.until(lambda events: sum(event.durable for event in events) == 2, 60)
    dead = await world.outside.take(world.dlq)
    assert sorted(json.loads(record.value)["id"] for record in dead) == [1, 3]
    await world.nothing_left()
    assert sorted(seen) == [0, 1, 2, 3]


# --- the way back ----------------------------------------------------------------------------------------------


async def test_dead_letters_are_collected_and_sent_back_to_their_partition_with_key_and_headers(
    kafka: Kafka,
) -> None:
    """Ours, and one that Spring wrote; a redrive that dies again returns to its own letter."""
    topic, dlq = kafka.topic("orders", partitions=4), kafka.topic("orders.dlq", partitions=2)
    outside, told, clock = Outside(kafka), Told(), SystemClock()
    url = f"{kafka.url}/?group={kafka.name('shop')}&{QUICK}"
    store, seen = MemoryStore(clock), list[tuple[bytes | None, int | None, bool]]()
    healed = asyncio.Event()
    app = App(url, settings=NO_FLOOD, on_dead_letter=[told])

    @app.consume(topic)
    async def handle(message: Message, context: Context) -> None:
        seen.append((message.key, context.origin.partition, message.headers.text("x-replayed") == "true"))
        if len(seen) < 3:
            raise PermissionError("not yet")
        healed.set()

    spring = [
        ("kafka_dlt-original-topic", topic.encode()),
        ("kafka_dlt-original-partition", (1).to_bytes(4, "big")),
        ("kafka_dlt-original-offset", (17).to_bytes(8, "big")),
        ("kafka_dlt-exception-fqcn", b"java.lang.IllegalStateException"),
        ("kafka_dlt-exception-message", b"no"),
    ]
    async with app, KafkaTransport(url, clock) as transport:
        reader = Reader(Classifier(()), Redactor(), StrategyOptions())
        collector = Collector(
            transport,
            store,
            dlq,
            reader=reader,
            options=StrategyOptions(),
            clock=clock,
            trouble=lambda *_: None,
        )
        stop = asyncio.Event()
        collecting = asyncio.create_task(collector.run(stop))
        await outside.send(b"spring", topic=dlq, key=b"s", headers=spring)
        await outside.send(
            b"ours", topic=topic, partition=3, key=b"\xffk", headers=[("a", b"1"), ("a", b"2")]
        )
        async with asyncio.timeout(30):
            while collector.counts.collected < 2:  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.02)
        letters = {
            letter.message.body: letter for letter in await store.load([h.id for h in await every(store)])
        }
        theirs, ours = letters[b"spring"].origin, letters[b"ours"].origin
        assert (theirs.source, theirs.partition, theirs.offset) == (topic, 1, 17)
        assert (ours.source, ours.partition, ours.offset) == (topic, 3, 0)
        assert letters[b"ours"].message.headers == Headers([("a", b"1"), ("a", b"2")])

        for _ in range(2):  # the first redrive dies again, the second one lives
            (head,) = await store.take([letters[b"ours"].id], "test")
            letter = (await store.load([head.id]))[0]
            sent = publication(letter, head.claim_token, SendOptions(to="partition"))
            assert not any(await transport.publish([sent]))
            async with asyncio.timeout(30):
                while collector.counts.returned < 1 and not healed.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        await asyncio.wait_for(healed.wait(), 30)
        stop.set()
        await asyncio.wait_for(collecting, 20)
    assert seen == [(b"\xffk", 3, False), (b"\xffk", 3, True), (b"\xffk", 3, True)]
    assert collector.counts.returned == 1
    assert len(await every(store)) == 2


async def every(store: MemoryStore) -> Sequence[LetterHead]:
    return (await store.page(Query(()), limit=100)).heads


# --- seed 003 ------------------------------------------------------------------------------------------------


class InfraTimeoutError(ConnectionError):
    """As the example calls it; that it is worth a retry, its base says."""


class ThenClock(SystemClock):
    """It is always the moment of the example's failure."""

    __slots__ = ()

    def now(self) -> datetime:
        return FAILED_AT


async def test_the_example_of_seed_003_is_reproduced_field_by_field(kafka: Kafka) -> None:
    """Topic, partition 3, offset 42, key, three retries: what lies in the group's topic is the seed's own record."""
    admin, outside, told = kafka.admin(), Outside(kafka), Told()
    await asyncio.wrap_future(admin.create_topics([NewTopic(TOPIC, 4, 1)])[TOPIC])
    try:
        await outside.send(*[b"{}"] * 42, topic=TOPIC, partition=3)
        headers = [("correlation_id", UUID_TEXT.encode())]
        await outside.send(BODY, topic=TOPIC, partition=3, key=b"order-12345", headers=headers)
        url = f"{kafka.url}/?dead_letter_format=onex&environment=dev&{QUICK}"
        app = App(url, settings=NO_FLOOD, on_dead_letter=[told], clock=ThenClock())

        @app.consume(TOPIC, consumer_group="order-service", attempts=1, max_deliveries=3)
        async def handle(body: bytes) -> None:
            if body == BODY:
                raise InfraTimeoutError("Database connection timeout after 30s")

        async with app:
            await told.until(lambda events: len(events) == 1)
        (dead,) = await outside.take("order-service.dlq")
    finally:
        for topic in (TOPIC, "order-service.dlq"):
            await asyncio.wrap_future(admin.delete_topics([topic])[topic])

    payload, example = json.loads(dead.value), json.loads(EXAMPLE)
    SCHEMA.validate(payload)
    original, wanted = payload.pop("original_message"), example.pop("original_message")
    assert payload == example
    assert {name: original[name] for name in wanted} == wanted
    assert original.keys() - wanted.keys() == {"headers", "timestamp"}  # what the schema has no room for (D2)
    assert dead.key == b"order-12345"
    found = headers_of(dead)
    assert [name for name, _ in dead.headers] == [name for name, _ in EXAMPLE_HEADERS]
    UUID(found.pop("message_id"))  # it is one
    assert found.pop("timestamp") == FAILED_AT.isoformat()
    assert found == {name: text for name, text in EXAMPLE_HEADERS if name not in ("message_id", "timestamp")}
