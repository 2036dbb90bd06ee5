"""What a Kafka transport does on a real broker beyond the contract: partitions, keys, transactions, limits, rights.

A plain confluent-kafka client stands beside it and looks at what is on the wire.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import cast
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import Consumer, Message as Record, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports them without saying so
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from redrive.clock import SystemClock
from redrive.errors import BrokerRefusedError, PublishError, RedriveError
from redrive.formats import told
from redrive.letters import ClaimToken, Headers, Message
from redrive.letters.message import ConsumerRef
from redrive.letters.redrive import Redrive, content_digest, marked, redrive_of
from redrive.testing.transport_suite.ground import all_done, death_of
from redrive.transports import Publication, Release, Source, Target
from redrive.transports.kafka import KafkaReceiver, KafkaTransport, names
from redrive.transports.kafka.delivery import KafkaDelivery
from tests.conformance.test_kafka_transport import throw_out_all
from tests.services import Kafka

PATIENCE = 20.0
QUICK = "session.timeout.ms=2000&heartbeat.interval.ms=200"


@contextlib.asynccontextmanager
async def opened(kafka: Kafka, options: str = "", url: str | None = None) -> AsyncIterator[KafkaTransport]:
    async with KafkaTransport(
        f"{url or kafka.url}/?{QUICK}&group={kafka.name('g')}{options}", SystemClock()
    ) as transport:
        yield transport


async def take(receiver: KafkaReceiver, count: int) -> list[KafkaDelivery]:
    taken: list[KafkaDelivery] = []
    async with asyncio.timeout(PATIENCE):
        while len(taken) < count:
            taken += await receiver.receive()
    assert len(taken) == count
    return taken


async def send(
    transport: KafkaTransport, topic: str, *messages: Message, partition: int | None = None
) -> None:
    target = Target(name=topic, partition=partition)
    assert all_done(
        await transport.publish([Publication(message, target) for message in messages]), len(messages)
    )


async def nothing_comes(receiver: KafkaReceiver, seconds: float = 0.5) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(receiver.receive(), seconds)


def on_the_wire(kafka: Kafka, topic: str, count: int, isolation: str = "read_committed") -> list[Record]:
    """The first records of a topic, as somebody else sees them."""
    settings = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": f"look-{uuid4()}",
        "auto.offset.reset": "earliest",
        "isolation.level": isolation,
    }
    consumer = Consumer(settings)
    found: list[Record] = []
    try:
        numbers = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        for _ in range(100):
            found += [record for record in consumer.consume(1000, 0.1) if record.error() is None]
            if len(found) >= count:
                break
    finally:
        consumer.close()
    return found


def headers_of(record: Record) -> list[tuple[str, bytes | None]]:
    return cast("list[tuple[str, bytes | None]]", record.headers() or [])


def bodies(deliveries: Sequence[KafkaDelivery]) -> list[bytes | None]:
    return [delivery.body for delivery in deliveries]


async def allow_restricted(kafka: Kafka, *rights: tuple[ResourceType, AclOperation]) -> None:
    """Allow the restricted user these things with topics and groups of this test."""
    admin = kafka.admin()
    bindings = [
        AclBinding(
            kind,
            kafka.prefix,
            ResourcePatternType.PREFIXED,
            "User:restricted",
            "*",
            what,
            AclPermissionType.ALLOW,
        )
        for kind, what in rights
    ]
    for answer in admin.create_acls(bindings).values():
        await asyncio.wrap_future(answer)


# --- bit by bit ------------------------------------------------------------------------------------------------


async def test_null_and_empty_keys_values_and_headers_are_told_apart(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    sent = [(None, None), (b"", b""), (None, b""), (b"", None), (b"\xff\x00", bytes(range(256)))]
    headers = [("a", None), ("a", b""), ("b", b"\xff"), ("a", b"last")]
    for key, value in sent:
        producer.produce(topic, value, key, headers=headers)  # type: ignore[arg-type]  # null is a value too
        producer.flush(10)
    async with opened(kafka) as transport:
        source = Source(name=topic, dead_letter_queue=kafka.topic("graves"))
        receiver = await transport.receiver(source)
        taken = await take(receiver, 5)
        assert [(each.message.key, each.message.body) for each in taken] == sent
        assert all(each.message.headers == Headers(headers) for each in taken)
        assert all_done(await receiver.dead_letter([death_of(each) for each in taken]), 5)
        graves = await asyncio.to_thread(on_the_wire, kafka, source.dlq, 5)
        assert [(dead.key(), dead.value()) for dead in graves] == sent
        assert all(headers_of(dead)[:4] == headers for dead in graves)


async def test_a_redrive_keeps_its_key_and_goes_to_the_partition_that_is_asked_for(kafka: Kafka) -> None:
    topic = kafka.topic("orders", partitions=4)
    async with opened(kafka) as transport:
        message = Message(body=b"x", key=b"order-12345", headers=Headers([("a", b"1")]))
        await send(transport, topic, message, partition=3)
        await send(transport, topic, message)
        found = await asyncio.to_thread(on_the_wire, kafka, topic, 2)
        assert [(record.key(), record.value(), record.headers()) for record in found] == [
            (b"order-12345", b"x", [("a", b"1")])
        ] * 2
        assert 3 in {record.partition() for record in found}
        target = Target(name=topic, partition=9)
        [outcome] = await transport.publish([Publication(message, target)])
        assert "the partition does not exist" in str(outcome)


async def test_a_dead_letter_is_as_young_as_it_is_and_remembers_when_its_record_was_sent(
    kafka: Kafka,
) -> None:
    """A copy that were as old as its original would be swept away by the retention of its topic."""
    topic = kafka.topic("orders", config={"message.timestamp.before.max.ms": str(2**62)})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"x", timestamp=1_000_000_000_000)
    producer.flush(10)
    async with opened(kafka) as transport:
        source = Source(name=topic, dead_letter_queue=kafka.topic("graves"))
        receiver = await transport.receiver(source)
        [delivery] = await take(receiver, 1)
        assert all_done(await receiver.dead_letter([death_of(delivery)]), 1)
        [dead] = await asyncio.to_thread(on_the_wire, kafka, source.dlq, 1)
        assert dead.timestamp()[1] > 1_700_000_000_000
        [found] = await take(await transport.receiver(Source(name=source.dlq)), 1)
        assert found.message.sent_at == delivery.message.sent_at
        assert delivery.message.sent_at is not None
        assert delivery.message.sent_at.timestamp() == 1_000_000_000


# --- partitions and keys -----------------------------------------------------------------------------------------


async def test_a_late_record_does_not_hold_up_the_others_of_its_partition(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    async with opened(kafka) as transport:
        await send(transport, topic, *(Message(body=b"%d" % number) for number in range(50)))
        receiver = await transport.receiver(Source(name=topic, window=10))
        out = await take(receiver, 10)
        assert receiver.accept(out[1:]) == 0
        seen = 10
        while seen < 50:
            batch = await asyncio.wait_for(receiver.receive(), PATIENCE)
            seen += len(batch)
            receiver.accept(batch)
        await receiver.close()  # the first one is still with us: it alone comes again
        again = await take(await transport.receiver(Source(name=topic)), 1)
        assert (bodies(again), again[0].delivery_count) == ([b"0"], 2)


async def test_no_more_is_taken_than_the_gap_allows_behind_a_record_that_is_stuck(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    async with opened(kafka, "&max_offset_gap=600") as transport:
        for _ in range(4):
            await send(transport, topic, *(Message(body=b"%d" % number) for number in range(1000)))
        receiver = await transport.receiver(Source(name=topic, window=100))
        batch = list(await asyncio.wait_for(receiver.receive(), PATIENCE))
        stuck, seen = batch[0], 1
        receiver.accept(batch[1:])
        quiet = False
        async with asyncio.timeout(PATIENCE):
            while not quiet or (seen < 600 and stuck.alive):  # on a busy machine, a pause alone says nothing
                quiet = True
                with contextlib.suppress(TimeoutError):
                    batch = list(await asyncio.wait_for(receiver.receive(), 1))
                    quiet = False
                    seen += len(batch)
                    receiver.accept(batch)
        assert not stuck.alive or seen < 3000  # who was thrown out of the group begins anew
        receiver.accept([stuck])
        async with asyncio.timeout(PATIENCE):
            while seen < 3900:
                batch = list(await receiver.receive())
                seen += len(batch)
                receiver.accept(batch)


async def test_the_order_of_a_key_is_kept_on_demand_and_other_keys_go_on(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    async with opened(kafka, "&order=key") as transport:
        await send(
            transport,
            topic,
            *(Message(body=b"%s%d" % (key, at), key=key) for at in range(3) for key in (b"a", b"b")),
        )
        await send(transport, topic, Message(body=b"free"), Message(body=b"free"))
        receiver = await transport.receiver(Source(name=topic, window=20))
        first = await take(receiver, 4)
        assert bodies(first) == [b"a0", b"b0", b"free", b"free"]
        await nothing_comes(receiver)
        # a0 is tried again and again: its successor waits, those of the other key do not
        assert all_done(await receiver.release([Release(first[0], timedelta(milliseconds=200))]), 1)
        receiver.accept(first[1:2])
        assert bodies(await take(receiver, 1)) == [b"b1"]
        [again] = await take(receiver, 1)
        assert (again.body, again.delivery_count) == (b"a0", 2)
        receiver.accept([again])
        assert bodies(await take(receiver, 1)) == [b"a1"]


async def test_two_members_share_the_partitions_and_each_record_goes_to_one(kafka: Kafka) -> None:
    topic = kafka.topic("orders", partitions=2)
    async with opened(kafka) as one, opened(kafka) as other:
        receivers = [
            await one.receiver(Source(name=topic, window=200)),
            await other.receiver(Source(name=topic, window=200)),
        ]
        await until(lambda: all(len(receiver.intake.holdings.partitions) == 1 for receiver in receivers))
        for number in range(2):
            await send(one, topic, *(Message(body=b"%d" % at) for at in range(100)), partition=number)
        for receiver in receivers:
            taken = await take(receiver, 100)
            assert len({delivery.origin.partition for delivery in taken}) == 1
            assert receiver.accept(taken) == 0
        async with asyncio.timeout(
            PATIENCE
        ):  # each knows what it has done itself, and hears of the other's commits
            while await one.depth(topic):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_a_member_that_leaves_takes_nothing_with_it_and_what_was_done_is_not_repeated(
    kafka: Kafka,
) -> None:
    """Also above the mark: of ten, the even ones are done."""
    topic = kafka.topic("orders")
    async with opened(kafka) as one, opened(kafka) as other:
        await send(one, topic, *(Message(body=b"%d" % number) for number in range(10)))
        receiver = await one.receiver(Source(name=topic))
        out = await take(receiver, 10)
        receiver.accept(out[::2])
        await receiver.close()
        left = await take(await other.receiver(Source(name=topic)), 5)
        assert bodies(left) == [b"1", b"3", b"5", b"7", b"9"]
        assert {delivery.delivery_count for delivery in left} == {2}


async def test_a_partition_that_was_paused_when_it_was_lost_flows_again_when_it_is_back(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    async with opened(kafka) as transport:
        await send(transport, topic, *(Message(body=b"%d" % number) for number in range(3000)))
        receiver = await transport.receiver(Source(name=topic, window=1))
        [out] = await take(receiver, 1)
        await until(lambda: bool(receiver.intake._paused))  # nobody takes the others for a while
        await asyncio.to_thread(throw_out_all, kafka)
        await until(lambda: not out.alive)
        # Each is claimed by itself now, with a round trip: how many come in a while says nothing, that they come does.
        seen: set[bytes | None] = set()
        while len(seen) < 20:
            async with asyncio.timeout(PATIENCE):
                batch = await receiver.receive()
            seen.update(bodies(batch))
            receiver.accept(batch)
        assert not receiver.intake._paused


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110  # another thread makes it so
            await asyncio.sleep(0.02)


# --- retry topics ------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_record_waits_in_a_retry_topic_and_comes_as_it_was(kafka: Kafka) -> None:
    topic = kafka.topic("orders", partitions=3)
    async with opened(kafka, "&retry=topics") as transport:
        source = Source(name=topic)
        await transport.provision([source])
        assert f"{topic}.retry.10s" in names.retry_topics(source)
        await send(
            transport, topic, Message(body=None, key=b"k", headers=Headers([("a", None)])), partition=2
        )
        receiver = await transport.receiver(source)
        [first] = await take(receiver, 1)
        began = asyncio.get_running_loop().time()
        assert all_done(await receiver.release([Release(first, timedelta(seconds=12))]), 1)
        await receiver.close()  # whoever asked for it is gone; the topic keeps it
        assert await transport.depth(topic) == 0
        assert await transport.depth(f"{topic}.retry.10s") == 1

        receiver = await transport.receiver(source)
        [again] = await take(receiver, 1)

        assert asyncio.get_running_loop().time() - began >= 11.9
        assert (again.delivery_count, again.key, again.origin) == (2, first.key, first.origin)
        assert again.message == first.message
        assert again.body is None
        assert all_done(await receiver.dead_letter([death_of(again)]), 1)
        [dead] = await asyncio.to_thread(on_the_wire, kafka, source.dlq, 1)
        written = dict(headers_of(dead))
        assert "redrive-not-before" not in written
        assert written["redrive-origin-partition"] == b"2"


# --- redrives ------------------------------------------------------------------------------------------------------


def redriven(message: Message, source: str, group: str) -> Message:
    """The message as a worker sends it back."""
    redrive = Redrive(
        ClaimToken("01J0000000000000000000TEST", 7),
        attempt=2,
        operation="replay-1",
        to=ConsumerRef("events", source, group),
        digest=content_digest(message),
    )
    return msgspec.structs.replace(message, headers=marked(message, redrive, "trace-1"))


CONTENTS = [
    (b"order-1", b'{"id": 1}'),
    (b"\xff\x00", bytes(range(256))),
    (None, b""),
    (b"", b"text"),
    (b"k", None),
]


@pytest.mark.parametrize("dead_letters", ["redrive", "onex"])
async def test_redrive_that_dies_again_is_recognised_in_its_dead_letter(
    kafka: Kafka, dead_letters: str
) -> None:
    topic, group, graves = kafka.topic("orders"), kafka.name("shop"), kafka.topic("graves")
    async with opened(kafka, f"&dead_letter_format={dead_letters}") as transport:
        source = Source(name=topic, consumer_group=group, dead_letter_queue=f"{group}.dlq")
        kafka.topic("shop.dlq")
        sent = [
            redriven(Message(body=body, key=key, headers=Headers([("a", b"\xff")])), topic, group)
            for key, body in CONTENTS
        ]
        await send(transport, topic, *sent)
        receiver = await transport.receiver(source)
        deliveries = await take(receiver, len(sent))
        claimed = [each.own_redrive for each in deliveries]
        assert all(each.has_exact_key and not each.is_for_another_group for each in deliveries)
        assert all_done(await receiver.dead_letter([death_of(each) for each in deliveries]), len(sent))

        collector = await transport.receiver(Source(name=source.dlq, dead_letter_queue=graves))
        for before, redrive, dead in zip(sent, claimed, await take(collector, len(sent)), strict=True):
            found, message = told.opened(dead.message, source.dlq)
            assert found.convention == dead_letters
            assert (message.key, message.body) == (before.key, before.body)
            assert redrive is not None
            assert redrive_of(message.headers) == redrive
            assert redrive.has_content(message)
            assert redrive.is_addressed_to(found.source or "", found.consumer_group)
            assert message.headers.get("a") == b"\xff"


async def test_redrive_for_another_group_is_recognised(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    async with opened(kafka) as transport:
        plain = Message(body=b"x")
        await send(transport, topic, plain, redriven(plain, topic, "billing"))
        receiver = await transport.receiver(Source(name=topic, consumer_group=kafka.name("shop")))
        first, second = await take(receiver, 2)
        assert (first.redrive, first.is_for_another_group) == (None, False)
        assert second.is_for_another_group
        assert second.own_redrive is None
        assert second.handler_message.headers.names() == {"x-replayed"}


# --- what groups have taken ------------------------------------------------------------------------------------------


async def taken_since(transport: KafkaTransport, topic: str, group: str, since: timedelta) -> None:
    """Wait until everything that was sent up to then was taken."""
    async with asyncio.timeout(PATIENCE):
        while (await transport.taken_until(topic, group) or timedelta(0)) < since:
            pass


async def test_taken_until_follows_a_group_that_never_catches_up(kafka: Kafka) -> None:
    topic, group, clock = kafka.topic("orders", partitions=3), kafka.name("shop"), SystemClock()
    async with opened(kafka) as transport:
        for number in range(3):
            await send(transport, topic, Message(body=b"%d" % number), partition=number)
        sent = clock.monotonic()
        assert await transport.taken_until(topic, group) is None
        receiver = await transport.receiver(Source(name=topic, consumer_group=group))
        out = await take(receiver, 3)
        await send(transport, topic, Message(body=b"more"), partition=1)
        [more] = await take(receiver, 1)
        receiver.accept(out)
        await taken_since(transport, topic, group, sent)
        taken = await transport.taken_until(topic, group)
        assert taken is not None
        assert taken < clock.monotonic()
        assert more.alive


async def test_taken_until_follows_a_plain_consumer(kafka: Kafka) -> None:
    topic, group, clock = kafka.topic("orders"), kafka.name("billing"), SystemClock()
    async with opened(kafka) as transport:
        await send(transport, topic, Message(body=b"x"))
        sent = clock.monotonic()
        consumer = Consumer(
            {"bootstrap.servers": kafka.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([topic])
        record = await asyncio.to_thread(consumer.poll, PATIENCE)
        assert record is not None
        assert await transport.taken_until(topic, group) is None
        consumer.commit(message=record, asynchronous=False)
        assert (await transport.taken_until(topic, group) or timedelta(0)) > sent
        await asyncio.to_thread(consumer.close)


async def test_taken_until_does_not_include_an_open_transaction(kafka: Kafka) -> None:
    topic, group, clock = kafka.topic("orders"), kafka.name("shop"), SystemClock()
    async with opened(kafka) as transport:
        await send(transport, topic, Message(body=b"before"))
        receiver = await transport.receiver(Source(name=topic, consumer_group=group))
        receiver.accept(await take(receiver, 1))
        await taken_since(transport, topic, group, clock.monotonic())
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": kafka.name("t")})
        await asyncio.to_thread(producer.init_transactions)
        producer.begin_transaction()
        producer.produce(topic, b"within")
        await asyncio.to_thread(producer.flush, PATIENCE)
        sent = clock.monotonic()
        await nothing_comes(receiver)
        assert (await transport.taken_until(topic, group) or timedelta(0)) < sent
        await asyncio.to_thread(producer.commit_transaction)
        receiver.accept(await take(receiver, 1))
        await taken_since(transport, topic, group, sent)


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
async def test_taken_until_does_not_include_a_record_in_a_retry_topic(kafka: Kafka, named: bool) -> None:
    topic, clock = kafka.topic("orders"), SystemClock()
    async with opened(kafka, "&retry=topics") as transport:
        group = kafka.name("shop") if named else kafka.name("g")  # the group of the URL
        source = Source(name=topic, consumer_group=group if named else None)
        await transport.provision([source])
        receiver = await transport.receiver(source)
        await send(transport, topic, Message(body=b"x"))
        sent = clock.monotonic()
        [first] = await take(receiver, 1)
        assert all_done(await receiver.release([Release(first, timedelta(seconds=10))]), 1)
        while clock.monotonic() < sent + timedelta(seconds=5):
            assert (await transport.taken_until(topic, group) or timedelta(0)) < sent
        assert await transport.depth(topic) == 0  # it is only in the retry topic
        receiver.accept(await take(receiver, 1))
        await taken_since(transport, topic, group, sent)


async def test_groups_that_may_not_be_described_have_a_reason(kafka: Kafka) -> None:
    if not kafka.restricted_url:
        pytest.skip("this broker has no user without rights")
    topic = kafka.topic("orders")
    await allow_restricted(kafka, (ResourceType.TOPIC, AclOperation.DESCRIBE))
    async with opened(kafka, "", kafka.restricted_url) as transport:
        with pytest.raises(BrokerRefusedError, match="by an ACL"):
            await transport.taken_until(topic, kafka.name("shop"))
        with pytest.raises(BrokerRefusedError, match="by an ACL"):
            await transport.unreachable([(topic, kafka.name("shop"))])
        await allow_restricted(kafka, (ResourceType.GROUP, AclOperation.DESCRIBE))
        assert await transport.taken_until(topic, kafka.name("shop")) is not None  # it is empty
        assert len(await transport.unreachable([(topic, kafka.name("shop"))])) == 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_group_with_members_is_reachable_before_it_has_committed(kafka: Kafka, protocol: str) -> None:
    topic, group = kafka.topic("orders"), kafka.name("new")
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "group.protocol": protocol})
    consumer.subscribe([topic])
    async with asyncio.timeout(PATIENCE):
        while not consumer.assignment():
            await asyncio.to_thread(consumer.poll, 0.1)
    async with opened(kafka) as transport:
        assert await transport.unreachable([(topic, group)]) == {}
    await asyncio.to_thread(consumer.close)
    async with opened(kafka) as transport:
        found = await transport.unreachable([(topic, group), ("no-such-topic", group)])
        assert found == {
            (
                topic,
                group,
            ): f"consumer group '{group}' has no members and no committed offsets for topic '{topic}'",
            ("no-such-topic", group): "topic 'no-such-topic' does not exist",
        }


# --- transactions ------------------------------------------------------------------------------------------------


async def test_a_dead_letter_and_its_offset_are_written_as_one(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    async with opened(kafka, "&transactions=true") as transport:
        source = Source(name=topic, dead_letter_queue=kafka.topic("graves"))
        await send(transport, topic, *(Message(body=b"%d" % number) for number in range(4)))
        receiver = await transport.receiver(source)
        out = await take(receiver, 4)
        receiver.accept(out[:1])
        assert all_done(await receiver.dead_letter([death_of(each) for each in out[1:3]]), 2)
        assert not out[1].alive
        assert [dead.value() for dead in await asyncio.to_thread(on_the_wire, kafka, source.dlq, 2)] == [
            b"1",
            b"2",
        ]
        await receiver.close()
        assert bodies(await take(await transport.receiver(source), 1)) == [b"3"]
        # Who has read all of it finds nothing more, though the marker of the transaction lies behind.
        graves = await transport.receiver(Source(name=source.dlq))
        graves.accept(await take(graves, 2))
        await nothing_comes(graves)
        assert await transport.depth(source.dlq) == 0


async def test_a_transaction_that_is_refused_is_undone_and_its_others_are_innocent(kafka: Kafka) -> None:
    topic = kafka.topic("orders", config={"max.message.bytes": "2000000"})
    graves = kafka.topic("graves", config={"max.message.bytes": "20000"})
    async with opened(kafka, "&transactions=true") as transport:
        source = Source(name=topic, dead_letter_queue=graves)
        await send(transport, topic, Message(body=b"a"), Message(body=b"x" * 50_000), Message(body=b"c"))
        receiver = await transport.receiver(source)
        out = await take(receiver, 3)
        assert all_done(await receiver.dead_letter([death_of(each) for each in out]), 3)
        found = await asyncio.to_thread(on_the_wire, kafka, graves, 3)
        assert sorted((dead.value() or b"")[:1] for dead in found) == [b"", b"a", b"c"]


# --- limits and rights ---------------------------------------------------------------------------------------------


async def test_a_record_too_large_for_the_dead_letters_is_referenced_and_read_whole(kafka: Kafka) -> None:
    topic = kafka.topic("orders", config={"max.message.bytes": "3000000"})
    graves = kafka.topic("graves", config={"max.message.bytes": "100000"})
    large = bytes(range(256)) * 4096
    async with opened(kafka) as transport:
        source = Source(name=topic, dead_letter_queue=graves)
        await send(
            transport,
            topic,
            Message(body=large, key=b"k", headers=Headers([("a", b"1")])),
            Message(body=b"small"),
        )
        receiver = await transport.receiver(source)
        out = await take(receiver, 2)
        assert all_done(await receiver.dead_letter([death_of(each) for each in out]), 2)
        assert await transport.depth(topic) == 0
        on_wire = {dead.key(): dead for dead in await asyncio.to_thread(on_the_wire, kafka, graves, 2)}
        assert on_wire[b"k"].value() is None
        assert dict(on_wire[b"k"].headers() or ())["redrive-original-value-at"] == f"{topic}/0/0".encode()

        found = {
            each.message.key: each for each in await take(await transport.receiver(Source(name=graves)), 2)
        }

        assert found[b"k"].body == large
        assert found[b"k"].message.headers.text("redrive-reason") == "NonRetryableError"
        assert found[None].body == b"small"


async def test_letters_that_are_too_large_only_together_are_all_kept_whole(kafka: Kafka) -> None:
    topic, graves = kafka.topic("orders"), kafka.topic("graves", config={"max.message.bytes": "20000"})
    async with opened(kafka) as transport:
        await send(transport, topic, *(Message(body=b"%d" % number + b"x" * 5000) for number in range(12)))
        receiver = await transport.receiver(Source(name=topic, dead_letter_queue=graves))
        out = await take(receiver, 12)
        assert all_done(await receiver.dead_letter([death_of(each) for each in out]), 12)
        found = await asyncio.to_thread(on_the_wire, kafka, graves, 12)
        assert sorted(dead.value() or b"" for dead in found) == sorted(bodies(out))  # type: ignore[type-var]


async def test_a_value_whose_record_is_gone_is_said_to_be_and_never_sent_back_as_null(kafka: Kafka) -> None:
    topic = kafka.topic("orders", config={"max.message.bytes": "3000000"})
    graves = kafka.topic("graves", config={"max.message.bytes": "50000"})
    async with opened(kafka) as transport:
        await send(transport, topic, Message(body=b"x" * 100_000))
        receiver = await transport.receiver(Source(name=topic, dead_letter_queue=graves))
        [out] = await take(receiver, 1)
        assert all_done(await receiver.dead_letter([death_of(out)]), 1)
        admin = kafka.admin()
        deleted = admin.delete_records([TopicPartition(topic, 0, 1)])
        for answer in deleted.values():
            await asyncio.wrap_future(answer)

        [found] = await take(await transport.receiver(Source(name=graves)), 1)

        assert found.body is None
        assert found.message.headers.text("redrive-value-gone") == f"{topic}/0/0"
        [outcome] = await transport.publish([Publication(found.message, Target(name=topic))])
        assert isinstance(outcome, PublishError)
        assert "nothing to send" in str(outcome)


async def test_a_topic_that_refuses_everything_leaves_the_record_where_it_is(kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    graves = kafka.topic("graves", config={"max.message.bytes": "100"})
    async with opened(kafka) as transport:
        await send(transport, topic, Message(body=b"x"))
        receiver = await transport.receiver(Source(name=topic, dead_letter_queue=graves))
        [out] = await take(receiver, 1)
        [outcome] = await receiver.dead_letter([death_of(out)])
        assert isinstance(outcome, RedriveError)
        assert "raise max.message.bytes" in str(outcome)
        assert out.alive
        await receiver.close()
        assert await transport.depth(topic) == 1


async def test_who_may_not_write_dead_letters_is_told_so_and_loses_nothing(kafka: Kafka) -> None:
    if not kafka.restricted_url:
        pytest.skip("this broker has no user without rights")
    topic, graves = kafka.topic("orders"), kafka.topic("graves")
    async with opened(kafka) as transport:
        await send(transport, topic, Message(body=b"x"))
    await allow_restricted(
        kafka,
        (ResourceType.TOPIC, AclOperation.DESCRIBE),
        (ResourceType.TOPIC, AclOperation.READ),
        (ResourceType.GROUP, AclOperation.READ),
    )
    async with opened(kafka, "&publish_timeout=5s", kafka.restricted_url) as transport:
        receiver = await transport.receiver(Source(name=topic, dead_letter_queue=graves))
        [out] = await take(receiver, 1)
        [outcome] = await receiver.dead_letter([death_of(out)])
        assert "by an ACL" in str(outcome)
        assert out.alive


async def test_a_wrong_password_is_said_to_be_wrong(kafka: Kafka) -> None:
    if not kafka.restricted_url:
        pytest.skip("this broker has no user without rights")
    url = kafka.restricted_url.replace("restricted:", "restricted:not")
    with pytest.raises(BrokerRefusedError, match="password") as raised:
        async with opened(kafka, "&connect_timeout=3s", url):
            pass
    assert "not" + url.partition(":not")[2].partition("@")[0] not in str(raised.value)
