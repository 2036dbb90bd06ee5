"""`taken_until` where RabbitMQ says that a queue is empty although it is not."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from redrive.clock import SystemClock
from redrive.letters import Message
from redrive.transports.base import DelayedRetry, Publication, Receiver, Source, Target
from redrive.transports.rabbitmq import RabbitTransport
from redrive.transports.rabbitmq.names import STEPS, delay_queue
from tests.services import RabbitMQ, RabbitMQServer

PATIENCE = 15.0
KINDS = pytest.mark.parametrize("kind", ["quorum", "classic"])


@pytest.fixture
async def transport(each_broker: RabbitMQ) -> AsyncIterator[RabbitTransport]:
    async with RabbitTransport(each_broker.amqp_url, SystemClock()) as transport:
        yield transport


async def send(transport: RabbitTransport, queue: str) -> timedelta:
    """Send a message; gives the moment before it was sent."""
    sent = SystemClock().monotonic()
    assert list(await transport.publish([Publication(Message(body=b"x"), Target(name=queue))])) == [None]
    return sent


async def accept_all(receiver: Receiver, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while count:
            deliveries = await receiver.receive()
            receiver.accept(deliveries)
            count -= len(deliveries)


async def becomes_taken(transport: RabbitTransport, source: str, sent: timedelta) -> None:
    async with asyncio.timeout(PATIENCE):
        while (taken := await transport.taken_until(source)) is None or taken < sent:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@KINDS
async def test_taken_until_does_not_include_a_message_that_leaves_a_delay_queue(
    transport: RabbitTransport, kind: str
) -> None:
    source = Source(name="orders", queue_type="quorum" if kind == "quorum" else "classic")
    await transport.provision([source])
    await becomes_taken(transport, source.name, SystemClock().monotonic())
    for number in range(1, 5):
        sent = await send(transport, delay_queue(source.name, STEPS[0]))
        async with asyncio.timeout(PATIENCE):
            while await transport.depth(source.name) < number:
                taken = await transport.taken_until(source.name)
                assert taken is None or taken <= sent
        assert await transport.taken_until(source.name) is None
    receiver = await transport.receiver(source)
    await accept_all(receiver, 4)
    await becomes_taken(transport, source.name, SystemClock().monotonic())


async def test_taken_until_is_unknown_for_a_queue_that_does_not_exist(transport: RabbitTransport) -> None:
    assert await transport.taken_until("nowhere") is None


async def test_taken_until_needs_no_delay_queues_and_leaves_receivers_alone(
    transport: RabbitTransport,
) -> None:
    await transport.ensure_queue("plain")
    receiver = await transport.receiver(Source(name="plain"))
    sent = await send(transport, "plain")
    await accept_all(receiver, 1)
    await becomes_taken(transport, "plain", sent)
    await send(transport, "plain")
    await accept_all(receiver, 1)


async def test_taken_until_reaches_a_message_of_a_queue_that_is_only_polled(
    transport: RabbitTransport, each_broker: RabbitMQ
) -> None:
    await transport.ensure_queue("plain")
    sent = await send(transport, "plain")
    assert await transport.taken_until("plain") is None
    got = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    each_broker.api("POST", f"/queues/{each_broker.vhost}/plain/get", got)
    await becomes_taken(transport, "plain", sent)


async def test_taken_until_is_unknown_for_a_queue_with_delayed_retry(embedded: RabbitMQ) -> None:
    async with RabbitTransport(embedded.amqp_url, SystemClock()) as transport:
        second = timedelta(seconds=1)
        await transport.provision([Source(name="orders", delayed_retry=DelayedRetry(second, second))])
        assert await transport.taken_until("orders") is None


async def test_taken_until_does_not_include_messages_of_a_queue_without_a_leader(
    own_each_rabbitmq: RabbitMQServer,
) -> None:
    # Given a quorum queue with a consumer and a message that waits
    async with RabbitTransport(own_each_rabbitmq.amqp_url, SystemClock()) as transport:
        source = Source(name="orders", window=1)
        await transport.ensure_queue(source.name)
        receiver = await transport.receiver(source)
        sent = [await send(transport, source.name) for _ in range(2)]
        async with asyncio.timeout(PATIENCE):
            await receiver.receive()
        assert await transport.depth(source.name) == 1
        assert await transport.taken_until(source.name) is None

        # When its leader stops, and RabbitMQ shows neither messages nor consumers
        own_each_rabbitmq.ctl(
            "eval",
            '{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"orders">>)), '
            "ra:stop_server(quorum_queues, amqqueue:get_pid(Q)).",
        )
        async with asyncio.timeout(PATIENCE):
            while await transport.depth(source.name):  # noqa: ASYNC110  # the broker tells nobody
                await asyncio.sleep(0.02)

        # Then the message is not reported as taken, however often it is asked for
        end = time.monotonic() + 4
        while time.monotonic() < end:
            taken = await transport.taken_until(source.name)
            assert taken is None or taken <= sent[0]
            await asyncio.sleep(0.1)
