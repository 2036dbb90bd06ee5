"""Copies of a redrive are told from the redrive itself: fanned out by an exchange, or forwarded by a handler."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from redrive.clock import SystemClock
from redrive.letters import Headers, Message
from redrive.letters.letter import ClaimToken
from redrive.letters.message import ConsumerRef
from redrive.letters.redrive import PRIVATE, REPLAYED, Redrive, content_digest, marked
from redrive.transports.base import Delivery, Publication, Release, Source, Target
from redrive.transports.rabbitmq import RabbitTransport
from tests.services import RabbitMQ

SENT = Message(body=b'{"order": 7}', headers=Headers({"tenant": "north"}), message_id="m-1")
REDRIVE = Redrive(
    ClaimToken("letter-1", 4),
    2,
    operation="replay-1",
    to=ConsumerRef("shop", "orders"),
    digest=content_digest(SENT),
)


@pytest.fixture
async def transport(each_broker: RabbitMQ) -> AsyncIterator[RabbitTransport]:
    """Connected to a broker whose exchange `events` fans out to the queues `orders` and `audit`."""
    async with RabbitTransport(each_broker.amqp_url, SystemClock()) as transport:
        await transport.provision([Source(name="orders"), Source(name="audit")])
        each_broker.api("PUT", f"/exchanges/{each_broker.vhost}/events", {"type": "fanout"})
        for queue in ("orders", "audit"):
            each_broker.api("POST", f"/bindings/{each_broker.vhost}/e/events/q/{queue}", {})
        yield transport


async def publish(transport: RabbitTransport, body: bytes, target: Target) -> None:
    """Publish a message with the headers of the redrive, correlation id included."""
    message = Message(
        body=body, headers=marked(SENT, REDRIVE, correlation_id="trace-1"), message_id=SENT.message_id
    )
    assert list(await transport.publish([Publication(message, target)])) == [None]


async def receive(transport: RabbitTransport, queue: str) -> Delivery:
    receiver = await transport.receiver(Source(name=queue))
    async with asyncio.timeout(15):
        [delivery] = await receiver.receive()
    return delivery


async def test_own_redrive_is_set_only_at_the_queue_it_is_addressed_to(transport: RabbitTransport) -> None:
    await publish(transport, b'{"order": 7}', Target(exchange="events", routing_key=""))
    addressed, copied = await receive(transport, "orders"), await receive(transport, "audit")
    assert addressed.own_redrive == addressed.redrive == copied.redrive == REDRIVE
    assert copied.own_redrive is None
    assert not addressed.is_for_another_group
    assert not copied.is_for_another_group


async def test_own_redrive_is_not_set_on_a_message_with_another_body(transport: RabbitTransport) -> None:
    await publish(transport, b'{"invoice": 7}', Target(exchange="events", routing_key=""))
    for queue in ("orders", "audit"):
        delivery = await receive(transport, queue)
        assert delivery.redrive == REDRIVE
        assert delivery.own_redrive is None


async def test_own_redrive_is_not_set_on_a_message_forwarded_to_another_queue(
    transport: RabbitTransport,
) -> None:
    await publish(transport, b'{"order": 7}', Target(name="audit"))
    assert (await receive(transport, "audit")).own_redrive is None


async def test_own_redrive_is_set_after_a_delayed_release(transport: RabbitTransport) -> None:
    await publish(transport, b'{"order": 7}', Target(name="orders"))
    receiver = await transport.receiver(Source(name="orders"))
    async with asyncio.timeout(15):
        [delivery] = await receiver.receive()
        assert list(await receiver.release([Release(delivery, timedelta(seconds=1))])) == [None]
        [again] = await receiver.receive()
    assert again.own_redrive == REDRIVE
    assert again.handler_message.headers == Headers([("tenant", "north"), (REPLAYED, True)])


async def test_handler_message_has_no_private_headers_of_a_redrive(transport: RabbitTransport) -> None:
    await publish(transport, b'{"order": 7}', Target(exchange="events", routing_key=""))
    for queue in ("orders", "audit"):
        delivery = await receive(transport, queue)
        assert set(PRIVATE) < set(delivery.message.headers.by_name)
        assert delivery.handler_message.headers == Headers([("tenant", "north"), (REPLAYED, True)])
        assert delivery.handler_message.body == SENT.body


async def test_delivery_of_an_ordinary_message_has_no_redrive(transport: RabbitTransport) -> None:
    await transport.publish([Publication(SENT, Target(name="orders"))])
    delivery = await receive(transport, "orders")
    assert delivery.own_redrive is None
    assert delivery.handler_message is delivery.message
    assert not delivery.has_exact_key
