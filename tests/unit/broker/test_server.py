"""The server on real sockets: a flood of publishes does not keep others waiting, and errors are told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from redrive.amqp import methods as m
from redrive.amqp.content import Content
from redrive.broker.core import Broker
from redrive.broker.keep import Keep
from redrive.broker.queue import Queue
from redrive.broker.server import Server, ServerOptions
from tests.faults.blocking_client import Client

QUEUES, PUBLISHERS, COUNT = 100, 4, 500


@asynccontextmanager
async def serving(broker: Broker | None = None) -> AsyncIterator[tuple[Server, Callable[[], Client]]]:
    """A server, and a way to connect to it from another thread; clients are closed at the end."""
    server = Server(broker or Broker().with_defaults(), ServerOptions())
    port = await server.listen("127.0.0.1", 0)
    clients: list[Client] = []

    def connect() -> Client:
        clients.append(Client(port, **{"connection.blocked": True}))
        return clients[-1]

    try:
        yield server, connect
    finally:
        for client in clients:
            client.close()
        await server.close()


def declare_fan_out(client: Client, queues: int = QUEUES) -> None:
    client.call(m.ExchangeDeclare("all", "fanout"), m.ExchangeDeclareOk)
    for number in range(queues):
        client.call(m.QueueDeclare(f"q{number}"), m.QueueDeclareOk)
        client.call(m.QueueBind(f"q{number}", "all"), m.QueueBindOk)


def flood(clients: list[Client], count: int = COUNT) -> None:
    """Publish on several connections at once, as much as their sockets take."""
    for client in clients:
        client.socket.sendall(client.connection.send(m.BasicPublish("all"), 1, Content()) * count)


def connect_all(connect: Callable[[], Client]) -> list[Client]:
    """A client beside the flood, and the publishers."""
    clients = [connect() for _ in range(PUBLISHERS + 1)]
    declare_fan_out(clients[0])
    return clients


def ask_depth(client: Client) -> None:
    """Ask for the depth of a queue, which is the number of messages that were published when it is answered."""
    client.send(m.QueueDeclare("q0", passive=True), 1)


async def test_client_beside_a_fan_out_is_answered_before_the_fan_out_is_over() -> None:
    async with serving() as (server, connect):
        beside, *publishers = await asyncio.to_thread(connect_all, connect)
        flood(publishers)  # the server reads nothing before this function awaits
        ask_depth(beside)
        published = (await asyncio.to_thread(beside.wait_for, m.QueueDeclareOk)).message_count
        for publisher in publishers:
            ask_depth(publisher)
            await asyncio.to_thread(publisher.wait_for, m.QueueDeclareOk)
        assert published < PUBLISHERS * COUNT / 4
        assert {queue.ready for queue in server.broker.vhosts["/"].queues.values()} == {PUBLISHERS * COUNT}


async def test_publishers_of_a_fan_out_take_turns() -> None:
    async with serving() as (_, connect):
        _, *publishers = await asyncio.to_thread(connect_all, connect)
        flood(publishers)
        ask_depth(publishers[0])
        published = (await asyncio.to_thread(publishers[0].wait_for, m.QueueDeclareOk)).message_count
        assert published >= COUNT, "the order of a channel was not kept"
        assert published > PUBLISHERS * COUNT / 2, "one publisher was served to its end before the others"


async def test_blocked_publishers_with_a_backlog_go_on_after_the_alarm() -> None:
    broker = Broker(memory_limit=1 << 20).with_defaults()
    async with serving(broker) as (_, connect):

        def publish() -> int:
            operator, publisher = connect(), connect()
            declare_fan_out(operator)
            flood([publisher], 200)
            publisher.wait_for(m.ConnectionBlocked)
            depth = operator.call(m.QueueDeclare("q0", passive=True), m.QueueDeclareOk).message_count
            total = 0
            while total < 200 * QUEUES:
                for number in range(QUEUES):
                    total += operator.call(m.QueuePurge(f"q{number}"), m.QueuePurgeOk).message_count
            publisher.wait_for(m.ConnectionUnblocked)
            assert total == 200 * QUEUES
            return depth

        assert await asyncio.to_thread(publish) < 200, "a blocked publisher's backlog was handled"


async def test_blocked_publisher_is_not_closed_for_missing_heartbeats() -> None:
    broker = Broker(memory_limit=1000).with_defaults()
    async with serving(broker) as (server, connect):

        def publish() -> None:
            client = connect()
            client.call(m.QueueDeclare("q"), m.QueueDeclareOk)
            client.send(m.BasicPublish("", "q"), 1, Content(body=bytes(5000)))
            client.wait_for(m.ConnectionBlocked)

        await asyncio.to_thread(publish)
        (connection,) = server.connections
        heartbeats = connection.session.connection.heartbeats
        heartbeats.heard(-1e9)
        connection._on_beat()
        assert not heartbeats.peer_is_dead(asyncio.get_running_loop().time())
        assert connection in server.connections


async def test_memory_is_returned_once_after_a_flood_is_over() -> None:
    async with serving() as (server, _):
        trims: list[int] = []

        def trim(pad: int) -> int:
            trims.append(pad)
            return 1

        server.trim_memory = trim
        server._release_memory()
        assert not trims, "nothing was done yet"
        server.broker.cost += 100 << 20
        server._release_memory()
        assert not trims, "the flood is not over"
        server._release_memory()
        server._release_memory()
        assert trims == [0]


class BrokenKeep(Keep):
    """Fails for every durable queue."""

    def queue(self, vhost: str, queue: Queue) -> None:
        raise KeyError("a mistake in the broker")


async def test_internal_error_is_sent_to_the_client_before_its_socket_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(Broker(keep=BrokenKeep()).with_defaults()) as (_, connect):

        def declare() -> m.ConnectionClose:
            client, other = connect(), connect()
            client.send(m.QueueDeclare("q", durable=True), 1)
            close = client.wait_for(m.ConnectionClose)
            other.call(m.QueueDeclare("transient"), m.QueueDeclareOk)
            return close

        close = await asyncio.to_thread(declare)
        assert (close.reply_code, close.reply_text) == (541, "INTERNAL_ERROR - see the log of the broker")
        assert "a mistake in the broker" in caplog.text
