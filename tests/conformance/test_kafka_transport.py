import asyncio
import os
import re
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from redrive.clock import SystemClock
from redrive.letters import Headers, HeaderValue, Message
from redrive.letters.headers import EMPTY
from redrive.testing.transport_suite import Relay, RestartSuite, TransportSuite
from redrive.testing.transport_suite.dead_letters import DeadLetters
from redrive.testing.transport_suite.ground import EVERY_BYTE, PATIENCE, Ground
from redrive.testing.transport_suite.receiving import Receiving
from redrive.testing.transport_suite.redriving import Redriving
from redrive.testing.transport_suite.releasing import Releasing
from redrive.transports import Transport
from redrive.transports.kafka import KafkaTransport
from tests.services import Kafka, KafkaServer, Run
from tests.services.guard import LOOPBACK
from tests.services.server import free_ports

# Members are known to be gone soon; the node of the tests lets them say so.
SESSION = 2.5
QUICK = "session.timeout.ms=2000&heartbeat.interval.ms=200&publish_timeout=10s"


class RelayedKafka(KafkaServer):
    """A Kafka with one more listener, of which it says that it is where the relay is."""

    settings = {"message.max.bytes": "4000000"}  # noqa: RUF012  # the suite sends a MiB, and Kafka takes a little less
    relay_port: int
    listener_port: int

    def prepare(self) -> Kafka:
        address = super().prepare()
        self.listener_port, self.relay_port = free_ports(2)
        path = self.home / "server.properties"
        text = path.read_text()
        for name, port in (("listeners", self.listener_port), ("advertised.listeners", self.relay_port)):
            text = re.sub(rf"(?m)^{re.escape(name)}=.*$", rf"\g<0>,RELAYED://{LOOPBACK}:{port}", text)
        text = re.sub(r"(?m)^listener.security.protocol.map=.*$", r"\g<0>,RELAYED:PLAINTEXT", text)
        path.write_text(text)
        return address


class Way(NamedTuple):
    """A broker, and the one way to it that a test can cut."""

    broker: Kafka
    relay: Relay


class OnKafka(Ground):
    """What Kafka carries, and how it is troubled."""

    # Kafka knows bytes and null alone; the same name may stand there twice.
    headers = Headers(
        [
            ("text", b"north"),
            ("empty", b""),
            ("Größe", "🚚 and é".encode()),
            ("nothing", None),
            ("octets", EVERY_BYTE),
            ("twice", b"first"),
            ("between", b"x"),
            ("twice", b"second"),
        ]
    )
    properties = EMPTY
    options = ""

    def carried(self, value: HeaderValue) -> HeaderValue:
        return value.encode() if isinstance(value, str) else value

    def a_full_message(self, body: bytes = EVERY_BYTE) -> Message:
        plain = super().a_full_message(body)
        return Message(
            **{**{name: getattr(plain, name) for name in plain.__struct_fields__}, "key": b"\x00k\xff"}
        )

    async def open_transport(self, place: Way) -> Transport:
        transport = KafkaTransport(f"{place.relay.url}/?{QUICK}{self.options}", SystemClock())
        await transport.open()
        return transport

    async def cut(self, place: Way) -> None:
        """A delivery is held by a member of a group, not by a connection: so all members are thrown out."""
        await asyncio.to_thread(throw_out_all, place.broker)

    async def leave(self, place: Way) -> None:
        await place.relay.leave()

    async def come_back(self, place: Way) -> None:
        await place.relay.come_back()

    async def remove(self, place: Way, queue: str) -> None:
        admin = place.broker.admin()
        await asyncio.wrap_future(admin.delete_topics([queue], operation_timeout=30)[queue])
        # The controller has deleted it; the broker hears of it a moment later, and tells nobody.
        async with asyncio.timeout(PATIENCE):
            while queue in (await asyncio.to_thread(admin.list_topics, timeout=10)).topics:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


def throw_out_all(broker: Kafka) -> None:
    """Every member of every group leaves it, without having asked for that."""
    admin = broker.admin()
    groups = [group.group_id for group in admin.list_consumer_groups(request_timeout=10).result().valid]
    if not groups:
        return
    described = admin.describe_consumer_groups(groups, request_timeout=10)
    host, _, port = broker.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        for group, answer in described.items():
            for member in answer.result().members:
                connection.sendall(_leave_group(group, member.member_id))
                (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                connection.recv(size, socket.MSG_WAITALL)


def _leave_group(group: str, member: str) -> bytes:
    """Kafka's request number 13 in its version 1."""
    texts = [text.encode() for text in ("test", group, member)]
    client, *rest = [struct.pack(">h", len(text)) + text for text in texts]
    request = struct.pack(">hhi", 13, 1, 0) + client + b"".join(rest)
    return struct.pack(">i", len(request)) + request


class RelayedKafka39(RelayedKafka):
    name = "kafka-3.9"
    generation = "3.9"


@pytest.fixture(scope="module")
def relayed(service_run: Run) -> Iterator[RelayedKafka]:
    with service_run.private(RelayedKafka, os.environ) as server:
        yield server


class Relayed(OnKafka):
    """By way of a relay, on a node that this file alone uses."""

    server: RelayedKafka

    @pytest.fixture
    async def place(self, relayed: RelayedKafka) -> AsyncIterator[Way]:
        self.server = relayed
        async with Relay(f"kafka://{LOOPBACK}:{relayed.listener_port}", port=relayed.relay_port) as relay:
            yield Way(relayed.address, relay)


@pytest.mark.service("kafka")
class TestKafkaTransport(Relayed, TransportSuite):
    pass


@pytest.mark.service("kafka")
class TestKafkaTransportInOrderOfKeys(Relayed, Releasing, Receiving):
    options = "&order=key"


@pytest.mark.service("kafka")
class TestKafkaTransportWithRetryTopicsWithoutCounts(Relayed, DeadLetters, Redriving, Releasing):
    options = "&retry=topics&count_deliveries=false"


@pytest.mark.slow
@pytest.mark.service("kafka")
class TestKafkaTransportAfterACrash(Relayed, RestartSuite):
    """The node is away for longer than a session lasts; what is away for less loses nobody his deliveries."""

    async def restart(self, place: Way) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.sleep(SESSION)  # nobody is told of it sooner
        await asyncio.to_thread(self.server.start)


# The classes below repeat on the oldest supported version what depends on the broker. The order of keys and retry
# topics are made by the client, from the same requests, and run on the newest only.


@pytest.fixture(scope="module")
def relayed_39(service_run: Run) -> Iterator[RelayedKafka]:
    with service_run.private(RelayedKafka39, os.environ) as server:
        yield server


class OnKafka39:
    @pytest.fixture
    def relayed(self, relayed_39: RelayedKafka) -> RelayedKafka:
        return relayed_39


@pytest.mark.service("kafka-3.9")
class TestKafkaTransportOnKafka39(OnKafka39, TestKafkaTransport):
    pass


@pytest.mark.slow
@pytest.mark.service("kafka-3.9")
class TestKafkaTransportAfterACrashOnKafka39(OnKafka39, TestKafkaTransportAfterACrash):
    pass
