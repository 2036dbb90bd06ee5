"""Members join and leave, connections break and the broker crashes while handlers run: no record is lost.

Each test counts how often handlers see a record again, and limits it to what the fault explains.
"""

import asyncio
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, TopicPartition

from redrive import App
from redrive.clock import SystemClock
from redrive.errors import TransportError
from redrive.letters import Message
from redrive.settings import read
from redrive.testing.transport_suite import Relay
from redrive.testing.transport_suite.ground import death_of
from redrive.transports import Death, Delivery, Publication, Receiver, Source, Target
from redrive.transports.kafka import KafkaTransport
from tests.conformance.test_kafka_transport import RelayedKafka, throw_out_all
from tests.services import Kafka, Run
from tests.services.guard import LOOPBACK

pytestmark = [pytest.mark.slow, pytest.mark.service("kafka")]

QUICK = "session.timeout.ms=2000&heartbeat.interval.ms=200&publish_timeout=5s&reconnect.backoff.max.ms=500"
SETTINGS = read({"consume": {"breaker": {"enabled": False}, "shutdown_timeout": "5s", "backoff": "10ms"}})
TOTAL = 3000
DEADLY = 25  # each of so many is given up


class Work:
    """What the handlers of all members have seen."""

    def __init__(self, url: str, topic: str) -> None:
        self.url = url
        self.topic = topic
        self.seen: Counter[int] = Counter()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def member(self, prefetch: int = 50) -> AsyncIterator[App]:
        app = App(self.url, settings=SETTINGS, observers=[])

        @app.consume(self.topic, prefetch=prefetch, concurrency=10, attempts=1)
        async def handle(body: bytes) -> None:
            await asyncio.sleep(0.002)
            self.seen[int(body)] += 1
            self._changed.set()
            if int(body) % DEADLY == 0:
                raise PermissionError("never")

        async with app:
            yield app

    async def until(self, count: int, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while len(self.seen) < count:
                self._changed.clear()
                await self._changed.wait()

    @property
    def repeats(self) -> int:
        return sum(self.seen.values()) - len(self.seen)


async def fill(url: str, topic: str, partitions: int) -> None:
    async with KafkaTransport(url, SystemClock()) as transport:
        publications = [
            Publication(Message(body=b"%d" % number), Target(name=topic, partition=number % partitions))
            for number in range(TOTAL)
        ]
        assert not any(await transport.publish(publications))


async def all_is_done(work: Work, kafka: Kafka) -> None:
    """Every record was seen, every deadly one is dead-lettered, and nothing waits."""
    assert set(work.seen) == set(range(TOTAL))
    dead = await asyncio.to_thread(dead_letters, kafka, f"{work.topic}.dlq")
    assert set(dead) == set(range(0, TOTAL, DEADLY))
    async with KafkaTransport(work.url, SystemClock()) as transport:
        assert await transport.depth(work.topic) == 0


def dead_letters(kafka: Kafka, topic: str) -> Sequence[int]:
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": str(uuid4()),
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    try:
        numbers = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        places = [TopicPartition(topic, number, 0) for number in numbers]
        left = sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)
        consumer.assign(places)
        found: list[int] = []
        for _ in range(200):
            found += [
                int(record.value() or b"") for record in consumer.consume(1000, 0.1) if not record.error()
            ]
            if len(found) >= left:
                break
    finally:
        consumer.close()
    return found


async def test_members_join_and_leave_under_load(kafka: Kafka) -> None:
    topic, partitions = kafka.topic("orders", partitions=6), 6
    url = f"{kafka.url}/?group={kafka.name('g')}&{QUICK}"
    work = Work(url, topic)
    async with work.member():
        await fill(url, topic, partitions)
        for step in range(1, 4):
            await work.until(TOTAL * step // 5)
            async with work.member():
                await work.until(TOTAL * step // 5 + TOTAL // 10)
        await work.until(TOTAL)
        await settled(url, topic)
    await all_is_done(work, kafka)
    # Three joins and three leaves: each rebalance repeats at most what both members had out, one prefetch window each.
    assert work.repeats <= 6 * 2 * 50, work.repeats


async def test_members_that_are_thrown_out_again_and_again_lose_nothing(kafka: Kafka) -> None:
    topic = kafka.topic("orders", partitions=3)
    url = f"{kafka.url}/?group={kafka.name('g')}&{QUICK}"
    work = Work(url, topic)
    async with work.member():
        await fill(url, topic, 3)
        for step in range(1, 5):
            await work.until(TOTAL * step // 6)
            await asyncio.to_thread(throw_out_all, kafka)
        await work.until(TOTAL)
        await settled(url, topic)
    await all_is_done(work, kafka)
    assert work.repeats <= 4 * 50, work.repeats  # the same member returns, and knows what it has done


async def settled(url: str, topic: str) -> None:
    """Wait until the last dead letters are written and committed."""
    async with asyncio.timeout(60), KafkaTransport(url, SystemClock()) as transport:
        while True:
            try:
                if await transport.depth(topic) == 0:
                    return
            except TransportError:
                pass  # the broker is starting
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def relayed(service_run: Run) -> Iterator[RelayedKafka]:
    with service_run.private(RelayedKafka, os.environ) as server:
        yield server


async def test_connections_that_break_cost_nothing_as_long_as_the_session_holds(
    relayed: RelayedKafka,
) -> None:
    """A delivery is held by a member, not by its connection: after a reconnect nothing is delivered again."""
    kafka = relayed.address
    topic = kafka.topic("broken")
    async with Relay(f"kafka://{LOOPBACK}:{relayed.listener_port}", port=relayed.relay_port) as relay:
        url = f"{relay.url}/?{re.sub('2000', '10000', QUICK, count=1)}"
        work = Work(url, topic)
        async with work.member():
            await fill(url, topic, 1)
            for step in range(1, 8):
                await work.until(TOTAL * step // 10)
                await relay.cut()
            await work.until(TOTAL)
            await settled(url, topic)
    await all_is_done(at_the_broker(kafka, work), kafka)
    assert work.repeats == 0


async def test_transaction_fails_as_one_batch_while_its_coordinator_is_unreachable(
    relayed: RelayedKafka,
) -> None:
    kafka, letters = relayed.address, 20
    source = Source(name=kafka.topic("lonely"), dead_letter_queue=kafka.topic("lonely.dlq"), window=letters)
    publications = [
        Publication(Message(body=b"%d" % number), Target(name=source.name)) for number in range(letters)
    ]
    async with KafkaTransport(f"{kafka.url}/?{QUICK}", SystemClock()) as transport:
        assert not any(await transport.publish(publications))
    options = "publish_timeout=2s&session.timeout.ms=30000&transactions=true"
    async with (
        Relay(f"kafka://{LOOPBACK}:{relayed.listener_port}", port=relayed.relay_port) as relay,
        KafkaTransport(f"{relay.url}/?{options}", SystemClock()) as transport,
        asyncio.timeout(60),
    ):
        receiver = await transport.receiver(source)
        deaths: list[Death] = []
        while len(deaths) < letters:
            deaths += map(death_of, await receiver.receive())
        await dead_letter_all(receiver, deaths[:1])

        await relay.leave()
        # Two seconds to write and two to abort, not two for each letter
        async with asyncio.timeout(letters / 2):
            assert all(await receiver.dead_letter(deaths[1:]))

        await relay.come_back()
        await dead_letter_all(receiver, deaths[1:])
        found: list[Delivery] = []
        collector = await transport.receiver(Source(name=source.dlq, window=2 * letters))
        while len(found) < letters:
            found += await collector.receive()
    assert sorted(int(each.body or b"") for each in found) == list(range(letters))


async def dead_letter_all(receiver: Receiver, deaths: Sequence[Death]) -> None:
    """Retry until each letter is durable."""
    while deaths:
        outcomes = await receiver.dead_letter(deaths)
        deaths = [death for death, error in zip(deaths, outcomes, strict=True) if error is not None]


async def test_a_broker_that_crashes_under_load_is_found_again(relayed: RelayedKafka) -> None:
    kafka = relayed.address
    topic = kafka.topic("crashed", partitions=2)
    url = f"{kafka.url}/?{QUICK}"
    work = Work(url, topic)
    async with work.member():
        await fill(url, topic, 2)
        await work.until(TOTAL // 3)
        await asyncio.to_thread(relayed.kill)
        await asyncio.to_thread(relayed.start)
        await work.until(TOTAL, 90)
        await settled(url, topic)
    await all_is_done(work, kafka)
    assert work.repeats <= 2 * 50, work.repeats


def at_the_broker(kafka: Kafka, work: Work) -> Work:
    """The same work at the direct address of the broker."""
    straight = Work(f"{kafka.url}/?{QUICK}", work.topic)
    straight.seen = work.seen
    return straight
