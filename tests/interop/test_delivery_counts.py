"""Delivery counts on each version of RabbitMQ and on the embedded broker: the table, and what the transport does."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redrive.amqp import methods as m
from redrive.amqp.content import Content
from redrive.amqp.properties import BasicProperties, decode_properties, encode_properties
from redrive.clock import SystemClock
from redrive.errors import SourceConflictError
from redrive.letters import DeadLetter, Headers, Message, TypedValue
from redrive.testing.factories import a_failure
from redrive.transports.base import Death, Delivery, Publication, Receiver, Release, Source, Target
from redrive.transports.rabbitmq import RabbitTransport
from redrive.transports.rabbitmq.channel import Channel
from redrive.transports.rabbitmq.delivery_counts import ACQUIRED_COUNT, DELIVERY_COUNT, DeliveryCounts
from redrive.transports.rabbitmq.link import Link, connect
from redrive.transports.rabbitmq.url import parse_url
from redrive.transports.upkeep import upkeep_of
from tests.services import RabbitMQ

PATIENCE = 30.0
KINDS = pytest.mark.parametrize("kind", ["quorum", "classic"])


class Foreign:
    """A client other than redrive, on one channel at a time."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.counts: DeliveryCounts = link.counts
        self.channel: Channel = link.new_channel()

    async def reopen(self) -> None:
        """Close the channel and open another one: what is unsettled goes back."""
        await self.channel.close()
        self.channel = self.link.new_channel()
        await self.channel.call(m.ChannelOpen())

    async def declare(self, name: str, **arguments: Any) -> None:
        wanted = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        await self.channel.call(m.QueueDeclare(name, durable=True, arguments=wanted))

    async def publish(self, queue: str, *bodies: bytes, headers: dict[str, object] | None = None) -> None:
        properties = encode_properties(BasicProperties(delivery_mode=2, headers=headers or {}))
        for body in bodies:
            self.channel.send(m.BasicPublish("", queue), Content(properties, body))
        await self.channel.call(m.BasicQos())  # answered after the broker has read the above

    async def get(self, queue: str, *, patience: float = PATIENCE) -> "Got | None":
        """The first message; None if none comes in time."""
        until = asyncio.get_running_loop().time() + patience
        while True:
            answer, content = await self.channel.ask(m.BasicGet(queue))
            if isinstance(answer, m.BasicGetOk) and content is not None:
                return Got(answer, content)
            if asyncio.get_running_loop().time() > until:
                return None
            await asyncio.sleep(0.01)

    async def must_get(self, queue: str) -> "Got":
        got = await self.get(queue)
        assert got is not None, f"nothing comes from {queue}"
        return got

    async def give_back(self, how: str, got: "Got") -> None:
        if how == "nack":
            self.channel.send(m.BasicNack(got.tag, requeue=True))
        elif how == "reject":
            self.channel.send(m.BasicReject(got.tag, requeue=True))
        else:
            await self.reopen()

    async def rest(self, queue: str) -> list["Got"]:
        """All that waits, taken without being settled."""
        await asyncio.sleep(0.1)
        found = []
        while (got := await self.get(queue, patience=0.2)) is not None:
            found.append(got)
        return found


class Got:
    """A message that `basic.get` brought."""

    def __init__(self, answer: m.BasicGetOk, content: Content) -> None:
        self.tag = answer.delivery_tag
        self.redelivered = answer.redelivered
        self.body = content.body
        self.headers: dict[str, Any] = dict(decode_properties(content.properties).headers or {})

    @property
    def failures(self) -> int:
        return int(self.headers.get(DELIVERY_COUNT, 0))

    @property
    def acquired(self) -> int | None:
        return self.headers.get(ACQUIRED_COUNT)


@asynccontextmanager
async def foreign(broker: RabbitMQ) -> AsyncIterator[Foreign]:
    url = parse_url(broker.amqp_url)
    link = await connect(url, url.endpoints[0], "another client")
    try:
        client = Foreign(link)
        await client.channel.call(m.ChannelOpen())
        yield client
    finally:
        await link.close()


@asynccontextmanager
async def opened(broker: RabbitMQ, *, management: bool = True) -> AsyncIterator[RabbitTransport]:
    at = broker.management_url if management else "http://127.0.0.1:9"  # the port to which nobody answers
    async with RabbitTransport(broker.amqp_url, SystemClock(), management_url=at) as transport:
        yield transport


async def made(transport: RabbitTransport, name: str = "orders", **fields: Any) -> Source:
    source = Source(name=name, **fields)
    await transport.provision([source])
    return source


async def send(transport: RabbitTransport, queue: str, *bodies: bytes) -> None:
    publications = [Publication(Message(body=body), Target(name=queue)) for body in bodies]
    assert list(await transport.publish(publications)) == [None] * len(bodies)


async def take(receiver: Receiver, count: int) -> list[Delivery]:
    taken: list[Delivery] = []
    async with asyncio.timeout(PATIENCE):
        while len(taken) < count:
            taken += await receiver.receive()
    assert len(taken) == count
    return taken


async def becomes(ask: Callable[[], Awaitable[int]], wanted: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while await ask() != wanted:  # noqa: ASYNC110  # the broker tells nobody
            await asyncio.sleep(0.02)


def death_of(delivery: Delivery) -> Death:
    letter = DeadLetter.create(
        delivery.message, delivery.origin, a_failure(), key=delivery.key, reason="NonRetryableError"
    )
    return Death(delivery, letter)


async def stop_gracefully(receiver: Receiver, deliveries: Sequence[Delivery]) -> None:
    """As a consumer does that stops with deliveries that no handler has seen."""
    await receiver.stop()
    outcomes = await receiver.release([Release(delivery, counts=False) for delivery in deliveries])
    assert list(outcomes) == [None] * len(deliveries)
    await receiver.close()


# --- the table --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["nack", "reject", "close"])
async def test_table_says_which_returns_a_quorum_queue_counts(each_broker: RabbitMQ, how: str) -> None:
    async with foreign(each_broker) as client:
        counts = client.counts
        await client.declare("work", queue_type="quorum", delivery_limit=2)
        await client.publish("work", b"x")
        expected = counts.nack_counts if how == "nack" else True
        for number in range(3):
            got = await client.must_get("work")
            assert got.redelivered == (number > 0)
            assert got.failures == (number if expected else 0)
            assert got.acquired == (number if counts.has_acquired_count and number else None)
            await client.give_back(how, got)
        left = await client.get("work", patience=0.5)
        assert (left is None) == expected, "the delivery limit of 2 is exceeded by the third that counts"


@pytest.mark.parametrize("how", ["nack", "reject"])
async def test_table_says_the_default_limit_of_a_quorum_queue(each_broker: RabbitMQ, how: str) -> None:
    async with foreign(each_broker) as client:
        limit = client.counts.default_limit if how == "reject" or client.counts.nack_counts else None
        await client.declare("work", queue_type="quorum")
        await client.publish("work", b"x")
        for _ in range(25 if limit is None else limit + 1):
            await client.give_back(how, await client.must_get("work"))
        assert (await client.get("work", patience=0.5) is None) == (limit is not None)


async def test_table_says_whether_a_limit_of_minus_one_is_none(each_broker: RabbitMQ) -> None:
    async with foreign(each_broker) as client:
        await client.declare("work", queue_type="quorum", delivery_limit=-1)
        await client.publish("work", b"x")
        for _ in range(25 if client.counts.can_be_unlimited else 1):
            await client.give_back("reject", await client.must_get("work"))
        assert (await client.get("work", patience=0.5) is not None) == client.counts.can_be_unlimited


@KINDS
async def test_table_says_what_a_dead_letter_brings_along(each_broker: RabbitMQ, kind: str) -> None:
    async with foreign(each_broker) as client:
        counts = client.counts
        await client.declare("dead", queue_type=kind)
        await client.declare(
            "work", queue_type="quorum", dead_letter_exchange="", dead_letter_routing_key="dead"
        )
        await client.publish("work", b"x")
        for _ in range(2):
            await client.give_back("reject", await client.must_get("work"))
        client.channel.send(m.BasicReject((await client.must_get("work")).tag, requeue=False))
        got = await client.must_get("dead")
        carries = counts.carries_counts if kind == "quorum" else counts.carries_flag
        assert got.redelivered == carries
        assert (got.failures > 0) == (carries and kind == "quorum")
        if counts.limits_carried and kind == "quorum":
            assert got.failures == 3


async def test_table_says_whether_limits_are_compared_with_failures_in_other_queues(
    each_broker: RabbitMQ,
) -> None:
    async with foreign(each_broker) as client:
        await client.declare("dead", queue_type="quorum", delivery_limit=2)
        await client.declare(
            "work", queue_type="quorum", dead_letter_exchange="", dead_letter_routing_key="dead"
        )
        await client.publish("work", b"x")
        for _ in range(5):
            await client.give_back("reject", await client.must_get("work"))
        client.channel.send(m.BasicNack((await client.must_get("work")).tag, requeue=False))
        await client.give_back("nack", await client.must_get("dead"))
        gone = await client.get("dead", patience=0.5) is None
        assert gone == client.counts.limits_carried


# --- giving back what was never begun -------------------------------------------------------------------------------


@KINDS
async def test_graceful_stop_never_counts(each_broker: RabbitMQ, kind: Any) -> None:
    """Four stops would make poison of a message whose limit is three."""
    async with opened(each_broker) as transport:
        source = await made(transport, queue_type=kind)
        await send(transport, source.name, b"0", b"1", b"2")
        for _ in range(30):
            receiver = await transport.receiver(source)
            out = await take(receiver, 3)
            assert [delivery.delivery_count for delivery in out] == [1, 1, 1]
            await stop_gracefully(receiver, out)
        await becomes(lambda: transport.depth(source.name), 3)
        assert await transport.depth(source.dlq) == 0


async def test_graceful_stop_keeps_place_and_headers_when_a_return_does_not_count(
    each_broker: RabbitMQ,
) -> None:
    async with opened(each_broker) as transport, foreign(each_broker) as client:
        source = await made(transport, window=4)
        await client.publish(
            source.name, *(b"%d" % number for number in range(8)), headers={"tenant": "north"}
        )
        for _ in range(3):
            receiver = await transport.receiver(source)
            await stop_gracefully(receiver, await take(receiver, 4))
            await becomes(lambda: transport.depth(source.name), 8)

        waiting = await client.rest(source.name)
        order = [int(got.body) for got in waiting]
        names = {name for got in waiting for name in got.headers} - {DELIVERY_COUNT, ACQUIRED_COUNT}
        if client.counts.nack_counts:
            assert sorted(order) == list(range(8))
        else:
            assert order == list(range(8))
            assert names == {"tenant"}


@pytest.mark.parametrize("mine", [True, False], ids=["may configure", "may only consume"])
async def test_graceful_stop_finds_out_the_type_of_a_queue_that_another_client_made(
    each_rabbitmq: RabbitMQ, mine: bool
) -> None:
    """A source says quorum unless told otherwise; on a classic queue a nack would be one delivery more."""
    async with foreign(each_rabbitmq) as client:
        await client.declare("plain", message_ttl=600_000)
        await client.declare("strong", queue_type="quorum", max_length=1000)
        for name in ("plain", "strong"):
            await client.publish(name, b"0", b"1")
        url = each_rabbitmq.amqp_url if mine else _who_may_only_consume(each_rabbitmq)
        async with RabbitTransport(url, SystemClock()) as consumer:
            for _ in range(4):
                for name in ("plain", "strong"):
                    if not mine and (name == "plain" or client.counts.nack_counts):
                        continue  # without a right to publish, there is no way but to be counted
                    receiver = await consumer.receiver(Source(name=name))
                    out = await take(receiver, 2)
                    assert [delivery.delivery_count for delivery in out] == [1, 1]
                    await stop_gracefully(receiver, out)
        waiting = await client.rest("strong")
        assert [got.body for got in waiting] == [b"0", b"1"]
        if not client.counts.nack_counts:
            assert {name for got in waiting for name in got.headers} == {ACQUIRED_COUNT}


def _who_may_only_consume(broker: RabbitMQ) -> str:
    name = f"reader-{broker.vhost[-12:]}"
    broker.api("PUT", f"/users/{name}", {"password": "secret", "tags": ""})
    rights = {"configure": "^$", "write": "^$", "read": ".*"}
    broker.api("PUT", f"/permissions/{broker.vhost}/{name}", rights)
    endpoint = parse_url(broker.amqp_url).endpoints[0]
    return f"amqp://{name}:secret@{endpoint}/{broker.vhost}"


# --- counting what failed ---------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("how", ["killed", "failed", "both", "with stops between"])
async def test_deliveries_are_counted_exactly(each_broker: RabbitMQ, kind: Any, how: str) -> None:
    """A message that kills its process is found at exactly the configured number, and one that fails does not loop."""
    async with opened(each_broker) as transport:
        source = await made(transport, queue_type=kind)
        await send(transport, source.name, b"x")
        seen = []
        for number in range(5):
            receiver = await transport.receiver(source)
            [delivery] = await take(receiver, 1)
            if how == "with stops between":
                await stop_gracefully(receiver, [delivery])
                receiver = await transport.receiver(source)
                [delivery] = await take(receiver, 1)
            seen.append(delivery.delivery_count)
            if how == "failed" or (how == "both" and number % 2):
                await receiver.stop()
                assert list(await receiver.release([Release(delivery)])) == [None]
            await receiver.close()  # for the broker, the same as a process that died
        assert seen == [1, 2, 3, 4, 5]


@KINDS
@pytest.mark.parametrize("fails_before", [0, 1, 5])
async def test_dead_letter_of_another_queue_starts_at_one(
    each_broker: RabbitMQ, kind: Any, fails_before: int
) -> None:
    """On RabbitMQ 4.3 it arrives redelivered, with the failures that it had elsewhere."""
    async with opened(each_broker) as transport, foreign(each_broker) as client:
        source = await made(transport, "dead", queue_type=kind)
        await client.declare(
            "work", queue_type="quorum", dead_letter_exchange="", dead_letter_routing_key="dead"
        )
        await client.publish("work", b"x", headers={"tenant": "north"})
        for _ in range(fails_before):
            await client.give_back("reject", await client.must_get("work"))
        client.channel.send(m.BasicReject((await client.must_get("work")).tag, requeue=False))

        # A classic queue sets `redelivered` only for what waited in it: what it hands on at once is counted one late.
        await becomes(lambda: transport.depth("dead"), 1)

        seen: list[Delivery] = []
        for _ in range(4):
            receiver = await transport.receiver(source)
            seen += await take(receiver, 1)
            await receiver.close()
        assert [delivery.delivery_count for delivery in seen] == [1, 2, 3, 4]
        deaths = seen[-1].message.headers.get("x-death")
        assert isinstance(deaths, tuple)
        assert [death.get("queue") for death in deaths if isinstance(death, Headers)] == ["work"]


@KINDS
async def test_counts_that_a_producer_sends_along_are_not_believed(each_broker: RabbitMQ, kind: Any) -> None:
    """A shovel moves a message with the headers of its last delivery."""
    async with opened(each_broker) as transport, foreign(each_broker) as client:
        source = await made(transport, queue_type=kind)
        await client.publish(source.name, b"x", headers={DELIVERY_COUNT: 25, ACQUIRED_COUNT: 30})
        receiver = await transport.receiver(source)
        [delivery] = await take(receiver, 1)
        assert delivery.delivery_count == 1
        await receiver.close()
        [delivery] = await take(await transport.receiver(source), 1)
        assert delivery.delivery_count == 2


# --- looking -------------------------------------------------------------------------------------------------------


@KINDS
async def test_looking_a_thousand_times_at_a_dead_letter_queue_takes_nothing(
    each_broker: RabbitMQ, kind: Any
) -> None:
    async with opened(each_broker) as transport, foreign(each_broker) as client:
        source = await made(transport, queue_type=kind)
        await send(transport, source.dlq, *(b"%d" % number for number in range(5)))
        for _ in range(1000):
            assert len(await transport.peek(source.dlq, 2)) == 2
        await becomes(lambda: transport.depth(source.dlq), 5)
        waiting = [got.body for got in await client.rest(source.dlq)]
        in_order = [b"%d" % number for number in range(5)]
        # Before 4.3, a quorum queue without a limit puts what is returned at its end.
        keeps_order = kind == "classic" or not client.counts.looking_counts
        assert (waiting if keeps_order else sorted(waiting)) == in_order


@pytest.mark.parametrize("management", [True, False], ids=["limit seen", "limit not seen"])
async def test_looking_a_hundred_times_at_a_work_queue_takes_nothing_and_counts_nothing(
    each_broker: RabbitMQ, management: bool
) -> None:
    async with opened(each_broker, management=management) as transport:
        source = await made(transport)
        await send(transport, source.name, *(b"%d" % number for number in range(5)))
        for _ in range(100):
            assert len(await transport.peek(source.name, 3)) == 3
        await becomes(lambda: transport.depth(source.name), 5)
        out = await take(await transport.receiver(source), 5)
        assert sorted(delivery.body or b"" for delivery in out) == [b"%d" % number for number in range(5)]
        assert {delivery.delivery_count for delivery in out} == {1}


async def test_look_of_another_process_is_not_counted_when_a_return_does_not_count(
    each_broker: RabbitMQ,
) -> None:
    async with opened(each_broker) as transport, foreign(each_broker) as client:
        source = await made(transport)
        await send(transport, source.name, b"x")
        for _ in range(5):
            async with opened(each_broker) as other:
                await other.peek(source.name, 1)
        await becomes(lambda: transport.depth(source.name), 1)
        [delivery] = await take(await transport.receiver(source), 1)
        assert delivery.delivery_count == (6 if client.counts.looking_counts else 1)


@pytest.mark.parametrize("management", [True, False], ids=["limit seen", "limit not seen"])
async def test_looking_stops_in_time_when_other_processes_have_looked(
    each_broker: RabbitMQ, management: bool
) -> None:
    async with foreign(each_broker) as client:
        await client.declare("dead", queue_type="quorum", delivery_limit=6)
        await client.declare("default", queue_type="quorum")
        counts = client.counts
        for queue in ("dead", "default"):
            await client.publish(queue, b"0", b"1", b"2")
            stopped = 0
            for _ in range(30):
                async with opened(each_broker, management=management) as transport:
                    try:
                        assert len(await transport.peek(queue, 2)) == 2
                    except SourceConflictError as error:
                        stopped += 1
                        text = str(error)
                        assert f"RabbitMQ {counts.versions} counts each inspection as a delivery" in text
                        assert "the delivery limit of the queue is" in text
                        assert "remove the limit first: " in text
                    await becomes(lambda: transport.depth(queue), 3)  # noqa: B023
            has_limit = counts.limit_in_force(6 if queue == "dead" else None) is not None
            assert (stopped > 0) == (management and counts.looking_counts and has_limit)
            assert sorted(got.body for got in await client.rest(queue)) == [b"0", b"1", b"2"]
            await client.reopen()


async def test_looking_goes_on_after_the_limit_was_lifted_as_the_error_says(
    each_rabbitmq: RabbitMQ,
) -> None:
    async with opened(each_rabbitmq) as transport, foreign(each_rabbitmq) as client:
        if not (client.counts.looking_counts and client.counts.can_be_unlimited):
            pytest.skip("there is no limit to lift, or looking does not count")
        await client.declare("dead", queue_type="quorum")
        await client.publish("dead", b"x")
        for _ in range(12):
            await client.give_back("nack", await client.must_get("dead"))
        with pytest.raises(SourceConflictError, match="remove the limit first: curl") as caught:
            await transport.peek("dead", 1)
        body = str(caught.value).rpartition("-d ")[2].strip("'")
        vhost = each_rabbitmq.vhost
        each_rabbitmq.api("PUT", f"/policies/{vhost}/redrive-dead", json.loads(body))

    async with opened(each_rabbitmq) as transport:
        for _ in range(30):
            assert len(await transport.peek("dead", 1)) == 1


@pytest.mark.parametrize("management", [True, False], ids=["limit seen", "limit not seen"])
async def test_looking_at_a_dead_letter_that_failed_too_often_elsewhere_does_not_drop_it(
    each_broker: RabbitMQ, management: bool
) -> None:
    """From 4.3 on, a queue with a limit of 20 drops it at the first return of any kind."""
    async with opened(each_broker, management=management) as transport, foreign(each_broker) as client:
        await client.declare("dead", queue_type="quorum")
        await client.declare(
            "work",
            queue_type="quorum",
            delivery_limit=25,
            dead_letter_exchange="",
            dead_letter_routing_key="dead",
        )
        await client.publish("work", b"x")
        for _ in range(26):
            await client.give_back("reject", await client.must_get("work"))
        await becomes(lambda: transport.depth("dead"), 1)
        for _ in range(5):
            [message] = await transport.peek("dead", 1)
            assert message.body == b"x"
            deaths = message.headers.get("x-death")
            assert isinstance(deaths, tuple)
            assert len(deaths) == 1
            await becomes(lambda: transport.depth("dead"), 1)


# --- what the broker does not keep ------------------------------------------------------------------------------------


@KINDS
async def test_headers_keep_names_values_and_types_but_not_their_order(
    each_broker: RabbitMQ, kind: Any
) -> None:
    """RabbitMQ 4 sorts headers by name, a quorum queue of 3.x at times; everything else arrives bit for bit."""
    headers = Headers(
        [
            ("z", 5),
            ("int8", TypedValue("int8", -7)),
            ("uint8", TypedValue("uint8", 200)),
            ("int16", TypedValue("int16", -300)),
            ("int32", TypedValue("int32", 70_000)),
            ("large", 2**40),
            ("float32", TypedValue("float32", 0.25)),
            ("a", "first"),
            ("list", (TypedValue("int16", 4), 5, True, None)),
        ]
    )
    body = bytes(range(256))
    async with opened(each_broker) as transport, foreign(each_broker) as client:
        source = await made(transport, queue_type=kind)
        sent = Message(body=body, headers=headers, message_id="m-1", properties=Headers({"priority": 3}))
        assert list(await transport.publish([Publication(sent, Target(name=source.name))])) == [None]
        for _ in range(2):  # delivered, and delivered again
            receiver = await transport.receiver(source)
            [delivery] = await take(receiver, 1)
            await receiver.close()
            found = delivery.message
            names = [name for name, _ in headers]
            if client.counts.since >= (4, 0):
                assert [name for name, _ in found.headers] == sorted(names)
            elif kind == "classic":
                assert [name for name, _ in found.headers] == names
            assert Headers(sorted(found.headers)) == Headers(sorted(headers))
            assert (found.body, found.message_id, found.properties.get("priority")) == (body, "m-1", 3)


# --- the command line ------------------------------------------------------------------------------------------------


async def test_commands_that_look_at_a_broker_thirty_times_use_nothing_up(each_broker: RabbitMQ) -> None:
    """A dead-letter queue of another client, with the default limit."""
    async with opened(each_broker) as transport, foreign(each_broker) as client:
        source = await made(transport, "orders", dead_letter_queue="theirs.dlq")
        await client.channel.call(m.QueueDelete("theirs.dlq"))
        await client.declare("theirs.dlq", queue_type="quorum")
        await client.publish("theirs.dlq", b"0", b"1", b"2")
        upkeep = upkeep_of(each_broker.amqp_url, each_broker.management_url)
        for _ in range(30):
            await upkeep.diagnose([source])
            await upkeep.plan([source])
            assert await transport.depth("theirs.dlq") == 3
        waiting = await client.rest("theirs.dlq")
        assert [(got.body, got.redelivered) for got in waiting] == [(b"%d" % n, False) for n in range(3)]
