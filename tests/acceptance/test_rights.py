"""The least privileged users do exactly their work, on each version of RabbitMQ and on the embedded broker."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from redrive import App
from redrive.clock import SystemClock
from redrive.errors import BrokerRefusedError
from redrive.letters import LetterState, Message
from redrive.rules import Fixed
from redrive.settings import read
from redrive.testing import ManualClock
from redrive.testing.transport_suite.ground import death_of
from redrive.transports import Publication, Release, Source, Target, Transport, open_transport
from redrive.transports.rabbitmq.found import DEFAULT_EXCHANGE
from redrive.transports.rabbitmq.mend import exactly
from redrive.transports.rabbitmq.probe import RabbitProbe
from redrive.transports.rabbitmq.rights import RIGHTS, Right, Role
from tests.acceptance.broker_world import World
from tests.acceptance.way_back import Flaky, open_way_back
from tests.services import RabbitMQ

ORDERS = Source(name="orders", max_deliveries=1)
DENIED = PermissionError("the account is closed")


@pytest.fixture
def world(each_broker: RabbitMQ) -> World:
    return World(each_broker)


def permissions(role: Role, *, without: Right | None = None) -> dict[str, str]:
    """What a user of this role needs, as regular expressions."""
    granted: dict[str, list[str]] = {"configure": [], "write": [], "read": []}
    for right in RIGHTS:
        if role in right.roles and right is not without:
            granted[right.access].append(exactly(right.name(ORDERS) or DEFAULT_EXCHANGE))
    return {access: "|".join(names) for access, names in granted.items()}


@contextlib.asynccontextmanager
async def user_of(world: World, granted: dict[str, str]) -> AsyncIterator[Transport]:
    """The broker, seen by a user with these permissions alone."""
    with world.user(**granted) as name:
        async with open_transport(world.url_of(name), SystemClock()) as transport:
            yield transport


@contextlib.asynccontextmanager
async def consuming(transport: Transport, handler: Flaky) -> AsyncIterator[None]:
    app = App(
        transport,
        settings=read({"consume": {"breaker": {"enabled": False}, "shutdown_timeout": "5s"}}),
        clock=ManualClock(),
        observers=(),
    )
    app.consume("orders", attempts=1, max_deliveries=1, backoff=Fixed(timedelta(0)))(handler)
    async with app:
        yield


@contextlib.contextmanager
def unopened(world: World, granted: dict[str, str]) -> Iterator[Transport]:
    with world.user(**granted) as name:
        yield open_transport(world.url_of(name), SystemClock())


async def test_user_who_may_consume_takes_messages_and_writes_dead_letters(world: World) -> None:
    await world.provisioned(ORDERS)
    world.publish("orders", 3)
    handler = Flaky(DENIED)

    with unopened(world, permissions("consume")) as transport:
        async with consuming(transport, handler):
            await world.until_depth("orders.dlq", 3)

    assert handler.seen == [b"x"] * 3
    await world.until_depth("orders", 0)


@pytest.mark.parametrize(
    "right", [right for right in RIGHTS if "consume" in right.roles], ids=lambda each: each.why
)
async def test_each_permission_of_a_consumer_is_needed_and_nothing_is_lost_without_it(
    world: World, right: Right
) -> None:
    await world.provisioned(ORDERS)
    world.publish("orders")
    granted = permissions("consume", without=right)
    if right.resource == "the work queue":
        with unopened(world, granted) as transport, pytest.raises(BrokerRefusedError, match="'orders'"):
            async with consuming(transport, Flaky()):
                pass
    else:
        async with user_of(world, granted) as transport:
            receiver = await transport.receiver(ORDERS)
            (delivery,) = await receiver.receive()
            if right.resource == "the dead-letter exchange":
                errors = await receiver.dead_letter([death_of(delivery)])
            else:
                errors = await receiver.release([Release(delivery, after=timedelta(minutes=5))])
            assert "refused" in str(errors[0])
    await world.until_depth("orders", 1)


async def test_user_who_may_collect_drains_the_dead_letter_queue(world: World) -> None:
    await world.provisioned(ORDERS)
    world.publish("orders.dlq", 2)

    async with user_of(world, permissions("collect")) as transport:
        assert await transport.depth("orders.dlq") == 2
        assert len(await transport.peek("orders.dlq", 2)) == 2
        receiver = await transport.receiver(Source(name="orders.dlq"))
        received = 0
        while received < 2:
            batch = await receiver.receive()
            received += len(batch)
            receiver.accept(batch)

    await world.until_depth("orders.dlq", 0)


async def test_user_who_may_publish_replays_letters_and_does_nothing_else(
    world: World, tmp_path: Path
) -> None:
    async with open_way_back(world.at.amqp_url, tmp_path, queue_type="quorum") as way:
        handler = Flaky(DENIED)
        async with way.consuming(handler):
            await way.send(b"one")
            (head,) = await way.until_letters(1)
        async with user_of(world, permissions("replay")) as transport:
            way.transport = transport
            assert dict((await way.replay(head.id)).outcomes) == {"sent": 1}
            with pytest.raises(BrokerRefusedError, match="'orders'"):
                await transport.receiver(way.source)
            refused = await transport.publish(
                [Publication(Message(body=b"two"), Target(name="orders", exchange="amq.fanout"))]
            )
            assert "refused" in str(refused[0])
        handler.error = None
        async with way.consuming(handler):
            await way.until_state(LetterState.RESOLVED, 1)


async def test_user_who_may_monitor_reads_figures_and_no_message(world: World) -> None:
    await world.provisioned(ORDERS)
    with world.user("monitoring", configure="") as name:
        probe = RabbitProbe(world.at.amqp_url, world.management_of(name))
        (probed,) = await probe.look(["orders", "nowhere"])
        assert probed.queue == "orders"
        async with open_transport(world.url_of(name), SystemClock()) as transport:
            with pytest.raises(BrokerRefusedError, match="'orders'"):
                await transport.peek("orders", 1)


async def test_probe_of_a_user_without_permissions_in_the_vhost_is_refused(world: World) -> None:
    """RabbitMQ 4.3 says of such a vhost that it is not there."""
    await world.provisioned(ORDERS)
    with world.user("monitoring") as name:
        probe = RabbitProbe(world.at.amqp_url, world.management_of(name))
        with pytest.raises(BrokerRefusedError, match=name):
            await probe.look(["orders"])


@pytest.mark.parametrize("over_amqp", [False, True], ids=["management", "amqp alone"])
async def test_doctor_names_each_missing_permission_and_the_command(world: World, over_amqp: bool) -> None:
    await world.provisioned(ORDERS)
    with world.user(read="^other$") as name:
        diagnosis = await world.diagnosis(ORDERS, url=world.url_of(name), over_amqp=over_amqp)
    found = {finding.text.partition("has no ")[2]: finding for finding in diagnosis.findings}
    named = {
        "read permission on the work queue 'orders'",
        "read permission on the dead-letter queue 'orders.dlq'",
        "write permission on the dead-letter exchange 'orders.dlx'",
    }
    counting = (await world.found()).counting
    if over_amqp:
        assert set(found) == (named if counting.since >= (4, 3) else set())
    else:
        assert set(found) == {*named, "write permission on the default exchange"}
        mend = found["read permission on the work queue 'orders'"].mend
        assert mend.startswith(
            f"rabbitmqctl set_permissions -p {world.at.vhost} {name} '' '' '^other$|^orders$'"
        )
