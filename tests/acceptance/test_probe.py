"""The probe reports what can be delivered now, on each version of RabbitMQ and on the embedded broker."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pika
import pytest

from redrive.transports.probing import Probed
from redrive.transports.rabbitmq.probe import RabbitProbe
from tests.acceptance.broker_world import World
from tests.services import RabbitMQ

_PATIENCE = 30.0  # seconds; a broker's statistics are up to 5 s old


@pytest.fixture
def world(each_broker: RabbitMQ) -> World:
    return World(each_broker)


async def probed(world: World, queue: str, holds: Callable[[Probed], bool]) -> Probed:
    """What the probe reports of a queue, once it is so."""
    probe = RabbitProbe(world.at.amqp_url, world.at.management_url)
    last: Probed | None = None
    try:
        async with asyncio.timeout(_PATIENCE):
            while True:
                (last,) = await probe.look([queue])
                if holds(last):
                    return last
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"the probe reports {last}") from None


async def test_probe_counts_ready_messages_and_every_delivery(world: World) -> None:
    world.queue("orders")
    sent = int(time.time()) - 100
    with world.channel() as channel:
        channel.confirm_delivery()
        for _ in range(3):
            channel.basic_publish("", "orders", b"x", pika.BasicProperties(delivery_mode=2, timestamp=sent))
        for _ in range(3):
            method, _, _ = channel.basic_get("orders")
            channel.basic_nack(method.delivery_tag, requeue=True)
        channel.basic_get("orders")
        holding = asyncio.create_task(
            probed(world, "orders", lambda now: (now.ready, now.deliveries) == (2, 4))
        )
        found = await holding

    assert (found.messages, found.unacknowledged, found.delayed, found.delivered) == (3, 1, 0, 1)
    if world.at.api("GET", f"/queues/{world.at.vhost}/orders").get("head_message_timestamp"):
        # The broker may have reported it only after the counts.
        await probed(world, "orders", lambda now: now.head_at == datetime.fromtimestamp(sent, UTC))


async def test_depth_leaves_out_messages_that_wait_for_a_delayed_retry(world: World) -> None:
    world.queue(
        "orders",
        {"x-queue-type": "quorum", "x-delayed-retry-type": "all", "x-delayed-retry-min": 600_000},
    )
    world.publish("orders", 2)
    with world.channel() as channel:
        method, _, _ = channel.basic_get("orders")
        channel.basic_reject(method.delivery_tag, requeue=True)

    delays = (await world.found()).counting.since >= (4, 3)  # older versions ignore the arguments
    found = await probed(
        world, "orders", lambda now: (now.messages, now.delayed) == ((1, 1) if delays else (2, 0))
    )

    assert found.ready == found.messages
    (queue,) = (queue for queue in (await world.found()).queues.values() if queue.name == "orders")
    assert queue.messages == found.messages
