"""A consumer whose deliveries the broker takes back says why, counts it, and goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from redrive import App
from redrive.clock import SystemClock
from redrive.settings import read
from redrive.transports.rabbitmq import RabbitTransport
from redrive.watch.silent import Silent
from tests.acceptance.broker_world import World
from tests.services import RabbitMQ, RabbitMQServer

_PATIENCE = 60.0  # seconds


class Seen(Silent):
    """What an observer hears, and what the transport reports."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.late = 0
        self.lines: list[str] = []
        self.is_over = asyncio.Event()  # a subscription has ended

    def failed(self, source: str, component: str, error: Exception) -> None:
        self.failures.append(f"{source}: {component}: {type(error).__name__}")

    def too_late(self, source: str, count: int) -> None:
        self.late += count

    def event(self, what: str, error: BaseException | None) -> None:
        self.lines.append(what if error is None else f"{what}: {error}")
        if what.startswith("subscription lost"):
            self.is_over.set()


class Slow:
    """A handler that takes too long for its first message, and no time for all others."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.has_begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.is_done = asyncio.Event()

    async def __call__(self, body: bytes) -> None:
        self.bodies.append(body)
        self.has_begun.set()
        if len(self.bodies) == 1:
            await self.go_on.wait()
        elif len(self.bodies) == 3:
            self.is_done.set()


@asynccontextmanager
async def consuming(url: str, handler: Slow, seen: Seen) -> AsyncIterator[None]:
    settings = read({"consume": {"breaker": {"enabled": False}, "shutdown_timeout": "5s"}})
    transport = RabbitTransport(url, SystemClock(), on_event=seen.event)
    app = App(transport, settings=settings, observers=(seen,))
    app.consume("orders")(handler)
    async with app:
        yield


async def consumed_after_a_timeout(world: World) -> None:
    """The first message is taken back and delivered again; then the next one is delivered."""
    handler, seen = Slow(), Seen()
    world.publish("orders")
    async with consuming(world.at.amqp_url, handler, seen), asyncio.timeout(_PATIENCE):
        await seen.is_over.wait()
        handler.go_on.set()
        world.publish("orders")
        await handler.is_done.wait()
    assert seen.failures == ["orders: acknowledgement: ConsumerTimeoutError"]
    assert seen.late == 1, "what the slow handler completed comes a second time"
    ended, again = seen.lines[:2]
    assert ended.startswith("subscription lost source=orders attempt=1: ")
    assert "consumer timeout of the broker" in ended
    assert again == "subscription restored source=orders"
    await world.until_depth("orders", 0)


async def test_consumer_recovers_when_the_queue_cancels_it(broker: RabbitMQ) -> None:
    world = World(broker)
    await world.skip_before(4, 3)  # the next test sees older versions
    world.queue("orders", {"x-queue-type": "quorum", "x-consumer-timeout": 1000})
    await consumed_after_a_timeout(world)


@pytest.mark.slow
async def test_consumer_recovers_from_the_timeout_of_each_version(
    own_each_rabbitmq: RabbitMQServer,
) -> None:
    """Before 4.3 the node sets the timeout, and closes the channel."""
    own_each_rabbitmq.ctl(
        "eval",
        "application:set_env(rabbit, consumer_timeout, 1000), "
        "application:set_env(rabbit, channel_tick_interval, 500).",
    )
    world = World(own_each_rabbitmq.address)
    world.queue("orders", {"x-queue-type": "quorum", "x-consumer-timeout": 1000})
    await consumed_after_a_timeout(world)


async def test_consumer_of_a_deleted_queue_names_the_queue_as_the_cause(broker: RabbitMQ) -> None:
    world = World(broker)
    world.queue("orders", {"x-queue-type": "quorum"})
    handler, seen = Slow(), Seen()
    world.publish("orders")
    async with consuming(broker.amqp_url, handler, seen), asyncio.timeout(_PATIENCE):
        await handler.has_begun.wait()
        world.delete_queue("orders")
        await seen.is_over.wait()
        handler.go_on.set()
    assert "the queue 'orders' was deleted" in seen.lines[0]
    assert seen.failures == []
