"""Brokers that are restarted, cut off, blocked or reached over TLS: the transport finds its way."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.clock import SystemClock
from redrive.errors import BrokerRefusedError, BrokerUnreachableError, PublishError
from redrive.letters import Message
from redrive.transports.base import Delivery, Publication, Receiver, Source, Target
from redrive.transports.rabbitmq import RabbitTransport
from tests.services import EmbeddedServer, RabbitMQServer, Run

PATIENCE = 60.0


class Told:
    """What the transport told its owner, and a way to wait for it."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._changed = asyncio.Event()

    def __call__(self, what: str, error: BaseException | None) -> None:
        self.words.append(f"{what}: {error}" if error is not None else what)
        self._changed.set()

    async def hear(self, words: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not any(words in each for each in self.words):
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def opened(url: str, told: Told | None = None, **options: Any) -> AsyncIterator[RabbitTransport]:
    async with RabbitTransport(url, SystemClock(), on_event=told or Told(), **options) as transport:
        yield transport


async def send(transport: RabbitTransport, *bodies: bytes) -> None:
    outcomes = await transport.publish(
        [Publication(Message(body=each), Target(name="orders")) for each in bodies]
    )
    assert list(outcomes) == [None] * len(bodies)


async def take(receiver: Receiver, count: int) -> list[Delivery]:
    taken: list[Delivery] = []
    async with asyncio.timeout(PATIENCE):
        while len(taken) < count:
            taken += await receiver.receive()
    assert len(taken) == count
    return taken


@pytest.fixture(params=["rabbitmq", "embedded"])
def own_broker(request: pytest.FixtureRequest, service_run: Run) -> Iterator[RabbitMQServer | EmbeddedServer]:
    """A broker that this test may stop, kill and restart, of each kind."""
    kind: type[RabbitMQServer | EmbeddedServer] = (
        RabbitMQServer if request.param == "rabbitmq" else EmbeddedServer
    )
    with service_run.private(kind, os.environ) as server:
        yield server


@pytest.mark.slow
async def test_a_broker_that_is_restarted_in_the_middle_is_found_again_and_nothing_is_lost(
    own_broker: RabbitMQServer | EmbeddedServer,
) -> None:
    told = Told()
    async with opened(own_broker.amqp_url, told) as transport:
        # Given a receiver with deliveries out, one of them done
        source = Source(name="orders", window=2, queue_type="classic")
        await transport.provision([source])
        await send(transport, b"1", b"2", b"3", b"4")
        receiver = await transport.receiver(source)
        done, out = await take(receiver, 2)
        receiver.accept([done])
        [third] = await take(receiver, 1)  # so the first was heard of

        # When the broker is restarted
        publishing = asyncio.create_task(_publish_until_durable(transport, b"5"))
        await asyncio.to_thread(own_broker.restart)

        # Then what was out comes again, with a higher count, and publishing works again
        await told.hear("subscription restored source=orders")
        assert not out.alive
        assert not third.alive
        assert receiver.accept([out, third]) == 2
        await asyncio.wait_for(publishing, PATIENCE)
        seen: dict[bytes | None, int | None] = {}
        async with asyncio.timeout(PATIENCE):
            while set(seen) != {b"2", b"3", b"4", b"5"}:
                for delivery in await receiver.receive():
                    seen[delivery.body] = delivery.delivery_count
                    receiver.accept([delivery])
        assert (seen[b"2"], seen[b"3"], seen[b"4"]) == (2, 2, 1)


async def _publish_until_durable(transport: RabbitTransport, body: bytes) -> None:
    while True:
        [outcome] = await transport.publish([Publication(Message(body=body), Target(name="orders"))])
        if outcome is None:
            return
        assert isinstance(outcome, PublishError)
        await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_broker_that_comes_back_empty_gets_its_queues_again() -> None:
    told = Told()
    first = _start_broker("--port", "0")
    port = _port(first, "amqp")
    url = f"amqp://127.0.0.1:{port}"
    try:
        async with opened(url, told) as transport:
            source = Source(name="orders")
            await transport.provision([source])
            receiver = await transport.receiver(source)
            await send(transport, b"1")
            await take(receiver, 1)

            # When another broker, without data, takes its place
            _end(first)
            second = _start_broker("--port", str(port))
            try:
                _port(second, "amqp")
                await told.hear("subscription restored source=orders")

                # Then it has what was made
                await send(transport, b"2")
                assert [delivery.body for delivery in await take(receiver, 1)] == [b"2"]
                assert await transport.depth(source.dlq) == 0
            finally:
                _end(second)
    finally:
        _end(first)


@pytest.mark.slow
async def test_a_blocked_broker_holds_up_publishers_and_nobody_else(own_rabbitmq: RabbitMQServer) -> None:
    told = Told()
    async with opened(own_rabbitmq.amqp_url, told, publish_timeout=timedelta(seconds=2)) as transport:
        source = Source(name="orders", window=10)
        await transport.provision([source])
        await send(transport, b"1", b"2")
        receiver = await transport.receiver(source)
        out = await take(receiver, 2)

        # When the broker runs out of memory
        await asyncio.to_thread(own_rabbitmq.ctl, "set_vm_memory_high_watermark", "0.00000001")

        # Then publishing is not durable, and says why
        [outcome] = await transport.publish([Publication(Message(body=b"3"), Target(name="orders"))])
        assert isinstance(outcome, PublishError)
        assert "the broker blocks publishers: low on memory" in str(outcome)
        assert any("publishing blocked" in each for each in told.words)

        # And so does the state of a target, also on a connection that has published nothing
        async with opened(own_rabbitmq.amqp_url, Told()) as other:
            alarm = (await other.target_state("orders")).alarm
        assert alarm is not None
        assert "low on memory" in alarm

        # And acknowledgements go on
        assert receiver.accept(out) == 0
        await receiver.close()
        assert await transport.depth("orders") == 0

        # When it has memory again, publishing works
        await asyncio.to_thread(own_rabbitmq.ctl, "set_vm_memory_high_watermark", "0.9")
        await told.hear("publishing unblocked")
        await send(transport, b"4")


@pytest.mark.parametrize("kind", ["quorum", "classic"])
@pytest.mark.slow
async def test_a_message_that_kills_its_worker_at_once_is_counted_and_stays_one(
    own_broker: RabbitMQServer | EmbeddedServer, kind: str
) -> None:
    async with opened(own_broker.amqp_url) as transport:
        source = Source(name="orders", queue_type="quorum" if kind == "quorum" else "classic")
        await transport.provision([source])
        await send(transport, b"poison")

        counts = [await _count_seen_by_a_worker_that_dies(own_broker.amqp_url) for _ in range(5)]

        assert counts == [1, 2, 3, 4, 5]
        receiver = await transport.receiver(source)
        assert [delivery.delivery_count for delivery in await take(receiver, 1)] == [6]
        await receiver.close()
        async with asyncio.timeout(PATIENCE):
            while not (depth := await transport.depth("orders")):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.02)  # a quorum queue takes it back a moment later
        assert depth == 1


WORKER = """
import asyncio, os, signal, sys
from redrive.clock import SystemClock
from redrive.transports.base import Source
from redrive.transports.rabbitmq import RabbitTransport

async def main():
    transport = RabbitTransport(sys.argv[1], SystemClock())
    await transport.open()
    receiver = await transport.receiver(Source(name="orders"))
    [delivery] = await receiver.receive()
    os.write(1, b"%d" % delivery.delivery_count)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(asyncio.wait_for(main(), 30))
"""


async def _count_seen_by_a_worker_that_dies(url: str) -> int:
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, url, stdout=subprocess.PIPE)
    said, _ = await asyncio.wait_for(worker.communicate(), PATIENCE)
    assert worker.returncode == -signal.SIGKILL
    return int(said)


# --- TLS -------------------------------------------------------------------------------------------------------


def _start_broker(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "redrive", "broker", "--host", "127.0.0.1", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def _end(broker: subprocess.Popen[str]) -> None:
    broker.kill()
    broker.wait()
    if broker.stdout is not None:
        broker.stdout.close()


def _port(broker: subprocess.Popen[str], scheme: str) -> int:
    assert broker.stdout is not None
    found = re.search(rf"\b{scheme}://[\d.]+:(\d+)", broker.stdout.readline())
    assert found is not None
    return int(found[1])


@pytest.fixture
def tls(certificates: Path) -> Iterator[Callable[..., int]]:
    """Starts a broker with TLS and these further options; gives its port."""
    running: list[subprocess.Popen[str]] = []

    def start(*options: str) -> int:
        files = ("--tls-certificate", f"{certificates}/server.pem", "--tls-key", f"{certificates}/server.key")
        running.append(_start_broker("--port", "0", "--tls-port", "0", *files, *options))
        return _port(running[-1], "amqps")

    yield start
    for broker in running:
        _end(broker)


@pytest.mark.parametrize("login", ["password", "certificate", "unverified"])
async def test_messages_travel_over_tls(tls: Callable[..., int], certificates: Path, login: str) -> None:
    # Given
    asks_for_certificates = ("--tls-ca", f"{certificates}/guest.pem") if login == "certificate" else ()
    port = tls(*asks_for_certificates)
    mine = f"certfile={certificates}/guest.pem&keyfile={certificates}/guest.key"
    url = {
        "password": f"amqps://guest:guest@localhost:{port}/?cacertfile={certificates}/server.pem",
        "certificate": f"amqps://localhost:{port}/?cacertfile={certificates}/server.pem&{mine}",
        "unverified": f"amqps://guest:guest@127.0.0.1:{port}/?verify=verify_none",
    }[login]

    # When
    async with opened(url) as transport:
        source = Source(name="orders")
        await transport.provision([source])
        await send(transport, b"x" * 300_000)

        # Then
        [delivery] = await take(await transport.receiver(source), 1)
        assert delivery.body == b"x" * 300_000


async def test_a_broker_that_wants_a_certificate_is_understood(
    tls: Callable[..., int], certificates: Path
) -> None:
    port = tls("--tls-ca", f"{certificates}/guest.pem")
    url = f"amqps://guest:guest@localhost:{port}/?cacertfile={certificates}/server.pem"

    with pytest.raises(BrokerUnreachableError, match="certfile="):
        await RabbitTransport(url, SystemClock()).open()


async def test_a_certificate_that_is_not_trusted_is_said_so(
    tls: Callable[..., int], certificates: Path
) -> None:
    tls_port = tls()
    with pytest.raises(BrokerUnreachableError, match=r"its certificate is not trusted .* cacertfile="):
        await RabbitTransport(f"amqps://guest:guest@localhost:{tls_port}", SystemClock()).open()
    with pytest.raises(BrokerUnreachableError, match=r"its certificate is not trusted .* host name"):
        await RabbitTransport(
            f"amqps://guest:guest@127.0.0.1:{tls_port}/?cacertfile={certificates}/server.pem", SystemClock()
        ).open()


async def test_tls_and_its_absence_are_told_apart(tls: Callable[..., int], certificates: Path) -> None:
    tls_port = tls()
    with pytest.raises((BrokerUnreachableError, BrokerRefusedError)):
        await RabbitTransport(f"amqp://127.0.0.1:{tls_port}?connect_timeout=2s", SystemClock()).open()
    broker = _start_broker("--port", "0")
    try:
        with pytest.raises(BrokerUnreachableError, match="TLS handshake with"):
            await RabbitTransport(
                f"amqps://127.0.0.1:{_port(broker, 'amqp')}/?verify=verify_none&connect_timeout=5s",
                SystemClock(),
            ).open()
    finally:
        _end(broker)
