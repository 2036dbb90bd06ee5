"""One connection and its channels, on a real RabbitMQ and on the embedded broker."""

import asyncio
import socket

import pytest

from redrive.amqp import methods as m
from redrive.amqp.content import Content
from redrive.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    SourceConflictError,
    SourceMissingError,
    TransportClosedError,
)
from redrive.transports.rabbitmq.link import Link, connect
from redrive.transports.rabbitmq.url import Endpoint, parse_url
from tests.services import RabbitMQ

PATIENCE = 30


async def link_to(url: str) -> Link:
    address = parse_url(url)
    return await connect(address, address.endpoints[0], "test")


async def test_a_link_logs_in_and_says_good_bye(broker: RabbitMQ) -> None:
    link = await link_to(broker.amqp_url)

    assert link.alive
    assert link.server_properties["product"]

    await link.close()
    with pytest.raises(TransportClosedError):
        link.new_channel()


async def test_questions_are_answered_in_order(broker: RabbitMQ) -> None:
    link = await link_to(broker.amqp_url)
    async with link.channel() as channel:
        names = [f"queue-{number}" for number in range(20)]
        answers = await asyncio.gather(*(channel.call(m.QueueDeclare(name)) for name in names))

    assert [answer.queue for answer in answers] == names
    await link.close()


async def test_an_error_of_one_channel_leaves_the_others_alone(broker: RabbitMQ) -> None:
    link = await link_to(broker.amqp_url)
    async with link.channel() as good, link.channel() as bad:
        await good.call(m.QueueDeclare("here"))
        ended: list[BaseException] = []
        bad.on_end = ended.append

        with pytest.raises(SourceMissingError, match=r"no queue 'nowhere'.*redrive provision"):
            await bad.call(m.QueueDeclare("nowhere", passive=True))
        with pytest.raises(SourceMissingError):
            await bad.call(m.QueueDeclare("here", passive=True))

        assert len(ended) == 1
        assert (await good.call(m.QueueDeclare("here", passive=True), m.QueueDeclareOk)).queue == "here"
    await link.close()


async def test_channel_closes_after_a_call_was_cancelled(broker: RabbitMQ) -> None:
    link = await link_to(broker.amqp_url)
    async with asyncio.timeout(PATIENCE):
        for name in ("here", "nowhere"):
            async with link.channel() as channel:
                await channel.call(m.QueueDeclare("here"))
                call = asyncio.create_task(channel.call(m.QueueDeclare(name, passive=True)))
                await asyncio.sleep(0)  # it is under way
                call.cancel()
            assert not channel.alive
        async with link.channel() as channel:
            assert await channel.call(m.QueueDeclare("here", passive=True))
    await link.close()


async def test_what_exists_otherwise_is_a_conflict(broker: RabbitMQ) -> None:
    link = await link_to(broker.amqp_url)
    async with link.channel() as channel:
        await channel.call(m.QueueDeclare("here"))
        with pytest.raises(SourceConflictError, match="inequivalent arg"):
            await channel.call(m.QueueDeclare("here", durable=True))
    await link.close()


async def test_a_number_of_a_closed_channel_is_used_again(broker: RabbitMQ) -> None:
    link = await link_to(broker.amqp_url)
    for _ in range(20):
        async with link.channel() as channel:
            assert channel.number == 1
    await link.close()


async def test_a_message_of_many_frames_comes_like_a_small_one(broker: RabbitMQ) -> None:
    link = await link_to(broker.amqp_url)
    body = bytes(range(256)) * 4000
    came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    async with link.channel() as channel:
        await channel.call(m.QueueDeclare("q"))
        channel.on_delivery = lambda _method, _header, octets: came.set_result(octets)
        await channel.call(m.BasicConsume("q", no_ack=True))

        channel.send(m.BasicPublish(routing_key="q"), Content(body=body))

        assert await asyncio.wait_for(came, PATIENCE) == body
    await link.close()


async def test_a_wrong_password_is_refused_and_not_told(broker: RabbitMQ) -> None:
    address = parse_url(broker.amqp_url)
    url = parse_url(f"amqp://nobody:hunter2@{address.endpoints[0]}/{address.vhost}")

    with pytest.raises(BrokerRefusedError, match="refused the user 'nobody'; check user and password") as no:
        await connect(url, url.endpoints[0])

    assert "hunter2" not in str(no.value)


async def test_a_vhost_that_is_not_there_is_named(broker: RabbitMQ) -> None:
    address = parse_url(broker.amqp_url)
    url = parse_url(f"amqp://{address.user}:{address.password}@{address.endpoints[0]}/nowhere")

    with pytest.raises(BrokerRefusedError, match="access to vhost 'nowhere'"):
        await connect(url, url.endpoints[0])


async def test_a_broker_that_hangs_up_ends_every_channel(broker: RabbitMQ) -> None:
    link = await link_to(broker.amqp_url)
    told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    link.on_end = told.set_result
    channel = link.new_channel()
    await channel.call(m.ChannelOpen())

    # When the operator closes the connection
    name = await _connection_name(broker)
    await asyncio.to_thread(broker.api, "DELETE", f"/connections/{name}")

    # Then
    assert isinstance(await asyncio.wait_for(told, PATIENCE), BrokerUnreachableError)
    with pytest.raises(BrokerUnreachableError, match="closed the connection"):
        await channel.call(m.QueueDeclare("q"))
    await link.close()


async def _connection_name(broker: RabbitMQ) -> str:
    from urllib.parse import quote

    for _ in range(100):  # RabbitMQ's management hears of a connection a moment later
        found = await asyncio.to_thread(broker.api, "GET", "/connections")
        for row in found:
            if row.get("vhost") == broker.vhost:
                return quote(row["name"], safe="")
        await asyncio.sleep(0.1)
    raise AssertionError("the connection is not listed")


async def test_nobody_there_is_said_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        url = parse_url(f"amqp://127.0.0.1:{taken.getsockname()[1]}")

        with pytest.raises(
            BrokerUnreachableError, match=r"cannot be reached.*check that the broker is running there"
        ):
            await connect(url, url.endpoints[0])


@pytest.mark.parametrize(
    ("first_words", "error", "says"),
    [
        (b"", BrokerUnreachableError, "did not answer within 0.2 s"),
        (b"AMQP\x00\x01\x00\x00", Exception, "does not speak AMQP 0-9-1"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Exception, "does not follow AMQP 0-9-1"),
    ],
)
async def test_whoever_is_no_broker_is_found_out(
    first_words: bytes, error: type[Exception], says: str
) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(first_words)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    endpoint = Endpoint(*server.sockets[0].getsockname()[:2])
    url = parse_url(f"amqp://{endpoint}?connect_timeout=200ms")

    with pytest.raises(error, match=says):
        await connect(url, endpoint)

    for writer in writers:
        writer.close()
    server.close()


async def test_a_broker_that_falls_silent_is_given_up() -> None:
    """The broker's part is played by a script here: a real one does not fall silent on request."""
    from redrive.amqp.connection import Connection
    from redrive.amqp.events import HeaderReceived, MethodReceived
    from redrive.amqp.methods import Role

    async def log_in_and_be_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = Connection(Role.SERVER)
        while data := await reader.read(4096):
            for event in server.receive(data):
                if isinstance(event, HeaderReceived):
                    writer.write(server.send(m.ConnectionStart()))
                elif isinstance(event, MethodReceived):
                    match event.method:
                        case m.ConnectionStartOk():
                            writer.write(server.send(m.ConnectionTune(10, 131072, 60)))
                        case m.ConnectionOpen():
                            writer.write(server.send(m.ConnectionOpenOk()))
        writer.close()

    server = await asyncio.start_server(log_in_and_be_silent, "127.0.0.1", 0)
    endpoint = Endpoint(*server.sockets[0].getsockname()[:2])
    link = await connect(parse_url(f"amqp://{endpoint}?heartbeat=1"), endpoint)
    told: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    link.on_end = told.set_result

    assert "said nothing for 2 s" in str(await asyncio.wait_for(told, PATIENCE))

    await link.close()
    server.close()
