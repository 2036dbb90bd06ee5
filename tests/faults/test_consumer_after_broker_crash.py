"""A broker that crashes makes no message poison.

After a crash of the broker, messages of a classic queue come `redelivered` though no handler has seen them, and those
of a quorum queue with one delivery more. The consumer has not crashed: none of that speaks against a message.
"""

import asyncio
import os

import pytest

from redrive import App
from redrive.settings import read
from redrive.transports import Source, open_transport
from tests import soak
from tests.services import EmbeddedServer, RabbitMQ, RabbitMQServer, Run
from tests.services.server import Server

MESSAGES = 100
QUEUES = ("orders", "orders.dlq")
CRASHES = soak.count(5, in_ci=2)
SERVERS: dict[str, type[Server[RabbitMQ]]] = {"embedded": EmbeddedServer, "rabbitmq": RabbitMQServer}


def is_registered(server: Server[RabbitMQ], queue: str) -> bool:
    """Whether a RabbitMQ that is killed now finds this quorum queue again.

    It writes the name of a new queue to a file up to about a second after the declaration. A node that is killed before
    starts the queue as a new one, which is empty.
    """
    name = f"%2F_{queue}".encode()
    written = bytes([len(name)]) + name  # as an atom in Erlang's external term format
    return any(written in file.read_bytes() for file in server.home.glob("mnesia/*/quorum/*/names.dets"))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
@pytest.mark.parametrize("kind", [pytest.param(name, marks=pytest.mark.service(name)) for name in SERVERS])
async def test_no_message_is_poison_after_crashes_of_the_broker(
    service_run: Run, kind: str, queue_type: str
) -> None:
    # Given a consumer that gives a message up on its second delivery
    settings = read({"consume": {"breaker": {"enabled": False}, "max_deliveries": 1}})
    with service_run.private(SERVERS[kind], os.environ) as server:
        source = Source(name="orders", queue_type="classic" if queue_type == "classic" else "quorum")
        async with open_transport(server.address.amqp_url) as transport:
            await transport.provision([source])
        if kind == "rabbitmq" and queue_type == "quorum":
            async with asyncio.timeout(60):
                while not all(is_registered(server, queue) for queue in QUEUES):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        app = App(server.address.amqp_url, settings=settings)
        done: set[int] = set()
        progress, go_on, allowed = asyncio.Event(), asyncio.Event(), 0

        @app.consume("orders", queue_type=source.queue_type)
        async def handle(number: int) -> None:
            while len(done) >= allowed:  # most messages are still in the queue when the broker crashes
                await go_on.wait()
            done.add(number)
            progress.set()

        async def until_done(count: int) -> None:
            nonlocal allowed
            allowed = count
            go_on.set()
            go_on.clear()
            async with asyncio.timeout(90):
                while len(done) < count:
                    progress.clear()
                    await progress.wait()

        async with app:
            for number in range(MESSAGES):
                await app.publish("orders", number)
            # When the broker crashes several times while messages are handled
            for crash in range(1, CRASHES + 1):
                await until_done(crash * MESSAGES // (CRASHES + 2))
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            await until_done(MESSAGES)
            # Then every message was processed, and none is a dead letter
            assert app._transport is not None
            assert await app._transport.depth("orders.dlq") == 0
