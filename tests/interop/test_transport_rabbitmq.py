"""What the RabbitMQ transport does beyond the contract of all transports, on RabbitMQ and on the embedded broker."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import msgspec
import pika
import pytest

from redrive.amqp import methods as m
from redrive.amqp.content import Content
from redrive.amqp.properties import BasicProperties, encode_properties
from redrive.clock import SystemClock
from redrive.errors import BrokerUnreachableError, PublishError, SourceMissingError
from redrive.letters import DeadLetter, Headers, Message, TypedValue
from redrive.testing.factories import a_failure
from redrive.transports.base import Death, Delivery, Publication, Receiver, Release, Source, Target
from redrive.transports.rabbitmq import RabbitTransport
from redrive.transports.rabbitmq.channel import Channel
from redrive.transports.rabbitmq.link import connect
from redrive.transports.rabbitmq.url import parse_url
from tests.services import RabbitMQ

PATIENCE = 30.0
KINDS = pytest.mark.parametrize("kind", ["quorum", "classic"])


@pytest.fixture
async def transport(broker: RabbitMQ) -> AsyncIterator[RabbitTransport]:
    async with RabbitTransport(broker.amqp_url, SystemClock()) as transport:
        yield transport


async def made(transport: RabbitTransport, name: str = "orders", **fields: Any) -> Source:
    source = Source(name=name, **fields)
    await transport.provision([source])
    return source


async def send(transport: RabbitTransport, *messages: Message, name: str = "orders") -> None:
    outcomes = await transport.publish([Publication(each, Target(name=name)) for each in messages])
    assert list(outcomes) == [None] * len(messages)


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


@asynccontextmanager
async def foreign(broker: RabbitMQ) -> AsyncIterator[Channel]:
    """A channel of somebody else, who sends and declares what we would not."""
    url = parse_url(broker.amqp_url)
    link = await connect(url, url.endpoints[0], "somebody else")
    try:
        async with link.channel() as channel:
            yield channel
    finally:
        await link.close()


def death_of(delivery: Delivery, **failure: Any) -> Death:
    letter = DeadLetter.create(
        delivery.message, delivery.origin, a_failure(**failure), key=delivery.key, reason="NonRetryableError"
    )
    return Death(delivery, letter)


# --- dead letters ----------------------------------------------------------------------------------------------


async def test_a_dead_letter_can_be_read_by_pika(transport: RabbitTransport, broker: RabbitMQ) -> None:
    # Given a message with all that AMQP has
    source = await made(transport)
    await send(
        transport,
        Message(
            body=b"\x00\xff{}",
            headers=Headers({"tenant": "north", "size": TypedValue("int32", 5), "CC": ("audit",)}),
            content_type="application/json",
            message_id="m-1",
            correlation_id="trace-1",
            properties=Headers({"priority": 3, "expiration": "60000", "delivery_mode": 1, "app_id": "shop"}),
        ),
    )
    receiver = await transport.receiver(source)
    [delivery] = await take(receiver, 1)

    # When it is given up
    assert list(
        await receiver.dead_letter([death_of(delivery, text="no such customer", stack="in a.py")])
    ) == [None]

    # Then anybody can read what happened, and the message is as it was
    method, properties, body = await asyncio.to_thread(_get_by_pika, broker.amqp_url, source.dlq)
    assert (method.exchange, method.routing_key) == (source.dlx, "orders")
    assert body == b"\x00\xff{}"
    assert (properties.content_type, properties.message_id, properties.correlation_id) == (
        "application/json", "m-1", "trace-1",
    )  # fmt: skip
    assert (properties.priority, properties.app_id) == (3, "shop")
    assert (properties.delivery_mode, properties.expiration) == (2, None)
    told = properties.headers
    assert (told["tenant"], told["size"]) == ("north", 5)
    assert told["redrive-reason"] == "NonRetryableError"
    assert told["redrive-description"] == "no such customer"
    assert told["redrive-error-type"] == "TimeoutError"
    assert told["redrive-stack"] == "in a.py"
    assert (told["redrive-source"], told["redrive-origin-exchange"], told["redrive-origin-routing-key"]) == (
        "orders",
        "",
        "orders",
    )
    assert told["redrive-delivery-count"] == 1
    assert (told["redrive-original-expiration"], told["redrive-original-delivery-mode"]) == ("60000", 1)
    assert told["redrive-original-cc"] == ["audit"]
    await becomes(lambda: transport.depth("orders"), 0)


def _get_by_pika(url: str, queue: str) -> tuple[Any, Any, bytes]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    found: tuple[Any, Any, bytes] = connection.channel().basic_get(queue)
    connection.close()
    return found


async def test_without_its_exchange_a_dead_letter_stays_with_its_source(
    transport: RabbitTransport, broker: RabbitMQ
) -> None:
    source = await made(transport)
    other = await made(transport, "billing")
    await send(transport, Message(body=b"kept"))
    await send(transport, Message(body=b"fine"), name="billing")
    receiver, elsewhere = await transport.receiver(source), await transport.receiver(other)
    [delivery], [fine] = await take(receiver, 1), await take(elsewhere, 1)
    async with foreign(broker) as channel:
        await channel.call(m.ExchangeDelete(source.dlx))

    # When both are given up at the same time
    [failed], [done] = await asyncio.gather(
        receiver.dead_letter([death_of(delivery)]), elsewhere.dead_letter([death_of(fine)])
    )

    # Then the one is not, and says why; the other is not hurt
    assert isinstance(failed, PublishError)
    assert "exchange 'orders.dlx' does not exist; run redrive provision" in str(failed)
    assert done is None
    assert delivery.alive
    await receiver.close()
    await becomes(lambda: transport.depth("orders"), 1)


async def test_a_queue_that_is_not_bound_is_named(transport: RabbitTransport, broker: RabbitMQ) -> None:
    source = await made(transport)
    await send(transport, Message(body=b"kept"))
    receiver = await transport.receiver(source)
    [delivery] = await take(receiver, 1)
    async with foreign(broker) as channel:
        await channel.call(m.QueueDelete(source.dlq))

    [failed] = await receiver.dead_letter([death_of(delivery)])

    assert isinstance(failed, PublishError)
    assert "no queue is bound to exchange 'orders.dlx'" in str(failed)
    assert delivery.alive

    # And once there is one again, it works
    await transport.provision([source])
    assert list(await receiver.dead_letter([death_of(delivery)])) == [None]


async def test_a_rejected_message_goes_where_the_queue_sends_its_dead(transport: RabbitTransport) -> None:
    source = await made(transport, dead_letter="native")
    await send(transport, Message(body=b"x"))
    receiver = await transport.receiver(source)
    [delivery] = await take(receiver, 1)

    assert list(await receiver.dead_letter([death_of(delivery)])) == [None]

    await becomes(lambda: transport.depth(source.dlq), 1)
    [message] = await transport.peek(source.dlq, 1)
    deaths = message.headers.get("x-death")
    assert isinstance(deaths, tuple)
    assert [died.get("reason") for died in deaths if isinstance(died, Headers)] == ["rejected"]


@pytest.mark.parametrize("own_headers", [0, 120_000], ids=["few headers", "headers that nearly fill a frame"])
async def test_a_stack_is_never_why_a_dead_letter_cannot_be_kept(
    transport: RabbitTransport, own_headers: int
) -> None:
    source = await made(transport)
    sent = Message(body=b"x", headers=Headers({"big": "h" * own_headers}))
    await send(transport, sent)
    receiver = await transport.receiver(source)
    [delivery] = await take(receiver, 1)

    death = death_of(delivery, stack="frame\n" * 100_000, text="t" * 100_000)
    assert list(await receiver.dead_letter([death])) == [None]

    [kept] = await transport.peek(source.dlq, 1)
    assert kept.headers.get("big") == "h" * own_headers
    assert kept.headers.get("redrive-reason") == "NonRetryableError"
    assert kept.headers.get("redrive-source") == "orders"


@pytest.mark.service("embedded")
async def test_headers_that_nobody_can_read_are_kept_and_buried_as_they_are(embedded: RabbitMQ) -> None:
    """RabbitMQ 3.10 closes the connection over such headers; the embedded broker passes them on."""
    odd = b"\x20\x00\x00\x00\x00\x04\x01a?x"  # a value of a type that does not exist
    async with RabbitTransport(embedded.amqp_url, SystemClock()) as transport:
        source = await made(transport, queue_type="classic")
        async with foreign(embedded) as channel:
            channel.send(m.BasicPublish("", "orders"), Content(odd, b"odd"))
            await channel.call(m.QueueDeclare("orders", passive=True))
        receiver = await transport.receiver(source)
        [delivery] = await take(receiver, 1)

        assert delivery.message == Message(body=b"odd", properties=Headers({"raw": odd}))
        assert delivery.key
        [cannot] = await receiver.release([Release(delivery)])
        assert "unknown type" in str(cannot)

        # When its worker crashes, it comes again and is counted, though no header can be made to tell so
        await receiver.close()
        receiver = await transport.receiver(source)
        [delivery] = await take(receiver, 1)
        assert delivery.delivery_count == 2

        assert list(await receiver.dead_letter([death_of(delivery)])) == [None]
        [found] = await transport.peek(source.dlq, 1)
        assert found == Message(body=b"odd", properties=Headers({"raw": odd}))


# --- coming again ----------------------------------------------------------------------------------------------


@KINDS
async def test_a_message_comes_again_after_two_seconds_as_it_was(
    transport: RabbitTransport, kind: Any
) -> None:
    # Given a message that would expire before that, with copies to others, and with headers out of order
    source = await made(transport, queue_type=kind)
    sent = Message(
        body=b"later",
        headers=Headers({"z": 1, "a": 2, "x-death": ("client's own",), "CC": ("audit",)}),
        properties=Headers({"delivery_mode": 1, "priority": 2, "expiration": "1500"}),
    )
    async with foreign(transport_broker(transport)) as channel:
        await channel.call(m.QueueDeclare("audit"))
        # Through an exchange, as a producer does: what goes to a queue by its name goes there alone.
        through = Target(name="orders", exchange="", routing_key="orders")
        assert list(await transport.publish([Publication(sent, through)])) == [None]
        assert (await channel.call(m.QueuePurge("audit"), m.QueuePurgeOk)).message_count == 1
        receiver = await transport.receiver(source)
        [first] = await take(receiver, 1)
        origin, key = first.origin, first.key

        # When it is released
        started = time.monotonic()
        assert list(await receiver.release([Release(first, timedelta(seconds=2))])) == [None]
        [second] = await take(receiver, 1)

        # Then
        assert 2.0 <= time.monotonic() - started < 6.0
        assert second.delivery_count == 2
        in_order = msgspec.structs.replace(
            second.message, headers=sent.headers
        )  # RabbitMQ 4 sorts them by name
        assert (in_order, second.origin, second.key) == (sent, origin, key)
        assert dict(second.message.headers) == dict(sent.headers)
        copies = await channel.call(m.QueueDeclare("audit", passive=True), m.QueueDeclareOk)
        assert copies.message_count == 0


def transport_broker(transport: RabbitTransport) -> RabbitMQ:
    url = transport._url
    return RabbitMQ(f"amqp://{url.user}:{url.password}@{url.endpoints[0]}/{quote(url.vhost, safe='')}", "")


async def test_a_delay_queue_that_is_missing_is_made(transport: RabbitTransport, broker: RabbitMQ) -> None:
    async with foreign(broker) as channel:
        await channel.call(m.QueueDeclare("plain", durable=True))
    receiver = await transport.receiver(Source(name="plain"))
    await send(transport, Message(body=b"x"), name="plain")
    [delivery] = await take(receiver, 1)

    assert list(await receiver.release([Release(delivery, timedelta(seconds=1))])) == [None]

    [again] = await take(receiver, 1)
    assert again.delivery_count == 2
    await transport.provision([Source(name="plain")])  # and it is what provision would have made


async def test_on_a_queue_that_somebody_else_made_crashes_are_counted_too(
    transport: RabbitTransport, broker: RabbitMQ
) -> None:
    """It is classic, and nobody has told us so."""
    async with foreign(broker) as channel:
        await channel.call(m.QueueDeclare("plain", durable=True))
    await send(transport, *(Message(body=b"%d" % number) for number in range(5)), name="plain")
    counts: list[list[int | None]] = []
    for _ in range(3):
        receiver = await transport.receiver(Source(name="plain"))
        counts.append([delivery.delivery_count for delivery in await take(receiver, 5)])
        await receiver.close()

    assert counts == [[1] * 5, [2] * 5, [3] * 5]
    await becomes(lambda: transport.depth("plain"), 5)


# --- publishing --------------------------------------------------------------------------------------------------


async def test_of_one_batch_exactly_those_without_a_queue_are_not_durable(transport: RabbitTransport) -> None:
    await made(transport)
    targets = [Target(name="orders" if number % 3 else f"nowhere-{number}") for number in range(30)]
    same = Message(body=b"the same body")

    outcomes = await transport.publish([Publication(same, target) for target in targets])

    assert [outcome is not None for outcome in outcomes] == [number % 3 == 0 for number in range(30)]
    assert all("redrive provision creates it" in str(outcome) for outcome in outcomes if outcome is not None)
    assert await transport.depth("orders") == 20


async def test_an_exchange_that_does_not_exist_hurts_only_its_own(transport: RabbitTransport) -> None:
    await made(transport)
    good, bad = Target(name="orders"), Target(exchange="nowhere", routing_key="x")
    for _ in range(3):
        outcomes = await transport.publish(
            [Publication(Message(body=b"x"), each) for each in (good, bad, good)]
        )
        assert [outcome is None for outcome in outcomes] == [True, False, True]
        assert "exchange 'nowhere' does not exist" in str(outcomes[1])
    assert await transport.depth("orders") == 6


async def test_ten_thousand_in_one_call_are_confirmed(transport: RabbitTransport) -> None:
    await made(transport)
    await send(transport, *[Message(body=b"x" * 1000)] * 10_000)
    assert await transport.depth("orders") == 10_000


async def test_somebody_elses_user_id_does_not_stop_a_message(transport: RabbitTransport) -> None:
    source = await made(transport)
    sent = Message(body=b"x", properties=Headers({"user_id": "somebody else"}))
    await send(transport, sent)
    [delivery] = await take(await transport.receiver(source), 1)
    assert delivery.message == sent


async def test_headers_that_do_not_fit_a_frame_are_refused_and_the_others_go(
    transport: RabbitTransport,
) -> None:
    await made(transport)
    big = Message(body=b"", headers=Headers({"big": "x" * 140_000}))

    outcomes = await transport.publish(
        [Publication(each, Target(name="orders")) for each in (Message(body=b"a"), big, Message(body=b"b"))]
    )

    assert [outcome is None for outcome in outcomes] == [True, False, True]
    assert "shorten them" in str(outcomes[1])


@pytest.mark.service("embedded")
async def test_one_that_the_broker_refuses_does_not_take_the_others_with_it(embedded: RabbitMQ) -> None:
    """The broker closes the channel over a message that is too large, and does not say which one it was."""
    async with RabbitTransport(embedded.amqp_url, SystemClock()) as transport:
        await made(transport)
        sizes = [1, 17 * 1024 * 1024, 1, 1]
        outcomes = await transport.publish(
            [Publication(Message(body=bytes(size)), Target(name="orders")) for size in sizes]
        )
        assert [outcome is None for outcome in outcomes] == [True, False, True, True]
        assert "larger than configured max size" in str(outcomes[1])


async def test_a_full_queue_says_no(transport: RabbitTransport, broker: RabbitMQ) -> None:
    async with foreign(broker) as channel:
        limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await channel.call(m.QueueDeclare("full", durable=True, arguments=limits))
    await send(transport, Message(body=b"first"), name="full")

    [outcome] = await transport.publish([Publication(Message(body=b"second"), Target(name="full"))])

    assert isinstance(outcome, PublishError)
    assert "refused the message" in str(outcome)


# --- following a queue -----------------------------------------------------------------------------------------------


async def test_a_queue_that_is_deleted_and_made_again_is_followed_and_the_others_go_on(
    transport: RabbitTransport, broker: RabbitMQ
) -> None:
    first, second = await made(transport, "first"), await made(transport, "second")
    receivers = [await transport.receiver(first), await transport.receiver(second)]
    await send(transport, Message(body=b"1"), name="first")
    [lost] = await take(receivers[0], 1)

    # When one of the queues is deleted
    async with foreign(broker) as channel:
        await channel.call(m.QueueDelete("first"))
    async with asyncio.timeout(PATIENCE):
        while lost.alive:  # noqa: ASYNC110  # nobody is told
            await asyncio.sleep(0.01)

    # Then the other one goes on
    assert receivers[0].accept([lost]) == 1
    await send(transport, Message(body=b"2"), name="second")
    assert receivers[1].accept(await take(receivers[1], 1)) == 0

    # And the one goes on as soon as it is there again
    await transport.provision([first])
    await send(transport, Message(body=b"3"), name="first")
    assert [delivery.body for delivery in await take(receivers[0], 1)] == [b"3"]


async def test_acknowledgements_in_any_order_leave_the_channel_open(transport: RabbitTransport) -> None:
    source = await made(transport, window=50)
    await send(transport, *(Message(body=b"%d" % number) for number in range(200)))
    receiver = await transport.receiver(source)
    for _ in range(4):
        out = await take(receiver, 50)
        for part in (out[1::2], out[10:20:2], out[::2]):
            assert receiver.accept(part) == 0
            await asyncio.sleep(0)
        await receiver.release([])
    await receiver.close()
    await becomes(lambda: transport.depth("orders"), 0)


# --- brokers that are not there -------------------------------------------------------------------------------------


async def test_of_two_hosts_one_may_be_dead(broker: RabbitMQ) -> None:
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{dead.getsockname()[1]}"
        url = parse_url(broker.amqp_url)
        login = f"{url.user}:{url.password}"

        async with RabbitTransport(
            f"amqp://{login}@{nobody},{url.endpoints[0]}/{quote(url.vhost, safe='')}", SystemClock()
        ) as transport:
            await made(transport)
            await send(transport, Message(body=b"x"))

        with pytest.raises(BrokerUnreachableError, match=r"none of 2 endpoints could be reached: .*; .*"):
            await RabbitTransport(f"amqp://{login}@{nobody},{nobody}", SystemClock()).open()


async def test_a_source_that_is_missing_leaves_the_transport_usable(transport: RabbitTransport) -> None:
    await made(transport)
    for _ in range(5):
        with pytest.raises(SourceMissingError):
            await transport.receiver(Source(name="nowhere"))
    assert await transport.depth("orders") == 0


async def test_properties_of_a_foreign_message_are_exact(
    transport: RabbitTransport, broker: RabbitMQ
) -> None:
    source = await made(transport)
    raw = encode_properties(
        BasicProperties(
            type="order", cluster_id="", app_id="shop", timestamp=5, reply_to="answers", priority=0
        )
    )
    async with foreign(broker) as channel:
        channel.send(m.BasicPublish("", "orders"), Content(raw, b""))
        await channel.call(m.QueueDeclare("orders", passive=True))
    [delivery] = await take(await transport.receiver(source), 1)
    assert delivery.message.properties == Headers(
        {"priority": 0, "reply_to": "answers", "type": "order", "app_id": "shop", "cluster_id": ""}
    )
    assert _of(delivery) == raw


def _of(delivery: Delivery) -> bytes:
    from redrive.transports.rabbitmq.message import to_properties

    return to_properties(delivery.message)
