"""What `redrive doctor` says of retries and delivery limits is what each version of RabbitMQ does."""

from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from redrive.transports.base import Source
from redrive.transports.finding import Finding
from tests.acceptance.broker_world import World, command_line
from tests.acceptance.test_doctor import mend
from tests.services import RabbitMQ

ORDERS = Source(name="orders")
QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture
def world(each_broker: RabbitMQ) -> World:
    return World(each_broker)


async def finding(world: World, rule: str) -> Finding | None:
    found = [each for each in (await world.diagnosis(ORDERS)).findings if each.rule == rule]
    assert len(found) <= 1
    return found[0] if found else None


def taken(channel: BlockingChannel, queue: str, patience: float = 1.0) -> int | None:
    """The delivery tag of the next message, if one comes."""
    for _ in range(int(patience / 0.02)):
        method, _, _ = channel.basic_get(queue)
        if method is not None:
            return int(method.delivery_tag)
        channel.connection.sleep(0.02)
    return None


def rounds(channel: BlockingChannel, most: int) -> int:
    """How many times a message of the ladder comes, if it is rejected, and returned every fifth time."""
    for number in range(most):
        tag = taken(channel, "jobs")
        if tag is None:
            return number
        if number % 5 == 4:
            channel.basic_nack(tag, requeue=True)
        else:
            channel.basic_reject(tag, requeue=False)
    return most


async def test_retry_ladder_that_doctor_calls_an_error_loses_messages_until_it_is_repaired(
    world: World,
) -> None:
    await world.provisioned(ORDERS)
    to_wait = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "jobs.wait"}
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "jobs", "x-message-ttl": 1}
    world.queue("jobs.wait", {**QUORUM, **back})
    world.queue("jobs", {**QUORUM, **to_wait})
    world.policy("few", "jobs", delivery_limit=3)
    found = await finding(world, "retry-ladder-drops")
    assert found is not None
    with world.channel() as channel:
        world.publish("jobs")
        lasted = rounds(channel, 20)
        if found.severity == "error":
            assert lasted < 20
        else:
            assert lasted == 20
            channel.queue_purge("jobs")

        await mend(world, found, ORDERS)
        assert await finding(world, "retry-ladder-drops") is None
        world.publish("jobs")
        assert rounds(channel, 40) == 40


async def test_letters_of_a_limited_dead_letter_queue_are_used_up_until_it_is_repaired(world: World) -> None:
    await world.provisioned(ORDERS)
    world.delete_queue("orders.dlq")
    world.delete_queue("orders")
    world.queue("orders.dlq", QUORUM)
    world.bind("orders.dlx", "orders.dlq", "#")
    world.queue("orders", {**QUORUM, "x-dead-letter-exchange": "orders.dlx", "x-delivery-limit": 3})
    world.policy("few", "orders.dlq", delivery_limit=3)
    found = await finding(world, "dlq-uses-up")
    assert found is not None
    assert found.severity == "error"
    with world.channel() as channel:
        world.publish("orders")
        _use_up(channel, "orders")
        looks = _looks(channel, 10)
        assert looks == (1 if "is first inspected" in found.loss else 4), found.loss

        await mend(world, found, ORDERS)
        assert await finding(world, "dlq-uses-up") is None
        world.publish("orders")
        _use_up(channel, "orders")
        assert _looks(channel, 40) == 40


def _use_up(channel: BlockingChannel, queue: str) -> None:
    """Return a message until its queue gives it up."""
    while (tag := taken(channel, queue, 0.3)) is not None:
        channel.basic_reject(tag, requeue=True)


def _looks(channel: BlockingChannel, most: int) -> int:
    """How often the letter can be looked at."""
    for number in range(most):
        tag = taken(channel, "orders.dlq")
        if tag is None:
            return number
        channel.basic_nack(tag, requeue=True)
    return most


@pytest.mark.slow
async def test_thirty_looks_by_the_command_line_use_nothing_up(world: World, tmp_path: Path) -> None:
    await world.provisioned(ORDERS)
    world.delete_queue("orders.dlq")
    world.queue("orders.dlq", QUORUM)  # as another client makes it: with the broker's default limit
    world.bind("orders.dlx", "orders.dlq")
    world.publish("orders.dlq", 3)
    redrive = command_line(tmp_path)
    place = ("--source", "orders", "--broker", world.at.amqp_url, "--management-url", world.at.management_url)

    for number in range(30):
        done = redrive(("doctor", "provision")[number % 2], *place)
        assert "orders.dlq" in done.stdout, done.stderr

    with world.channel() as channel:
        looked_at = [channel.basic_get("orders.dlq", auto_ack=True) for _ in range(4)]
    assert [method and method.redelivered for method, _, _ in looked_at] == [False, False, False, None]
