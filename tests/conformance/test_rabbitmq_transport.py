import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from redrive.clock import SystemClock
from redrive.letters import Headers, TypedValue
from redrive.testing.transport_suite import Relay, RestartSuite, TransportSuite
from redrive.testing.transport_suite.ground import Ground
from redrive.transports import Source, Transport
from redrive.transports.rabbitmq import RabbitTransport
from tests.services import RabbitMQ, RabbitMQServer


class Way(NamedTuple):
    """A vhost, and the one way to it that a test can cut."""

    broker: RabbitMQ
    relay: Relay


class Amqp(Ground):
    """What RabbitMQ and the embedded broker have in common."""

    looking_counts = True  # what was fetched and put back is redelivered, whoever did it
    properties = Headers(
        {"delivery_mode": 1, "priority": 5, "reply_to": "answers", "expiration": "600000", "app_id": "shop"}
    )
    headers = Headers(
        [
            *Ground.headers,
            ("int8", TypedValue("int8", -7)),
            ("int16", TypedValue("int16", -300)),
            ("int32", TypedValue("int32", 70_000)),
            ("float32", TypedValue("float32", 0.25)),
            ("not UTF-8", TypedValue("longstr", b"\xff\xfe")),
            ("CC", ()),
        ]
    )

    async def open_transport(self, place: Way) -> Transport:
        management_url = place.broker.management_url
        transport = RabbitTransport(place.relay.url, SystemClock(), management_url=management_url)
        await transport.open()
        return transport

    async def cut(self, place: Way) -> None:
        await place.relay.cut()

    async def leave(self, place: Way) -> None:
        await place.relay.leave()

    async def come_back(self, place: Way) -> None:
        await place.relay.come_back()

    async def remove(self, place: Way, queue: str) -> None:
        path = f"/queues/{quote(place.broker.vhost, safe='')}/{queue}"
        await asyncio.to_thread(place.broker.api, "DELETE", path)


class Classic(Amqp):
    """The same on classic queues, which count nothing by themselves."""

    async def make_source(self, transport: Transport, **fields: Any) -> Source:
        return await super().make_source(transport, queue_type="classic", **fields)


class OnRabbitMQ(Ground):
    """In a vhost of its own, on each version."""

    @pytest.fixture
    async def place(self, each_rabbitmq: RabbitMQ) -> AsyncIterator[Way]:
        async with Relay(each_rabbitmq.amqp_url) as relay:
            yield Way(each_rabbitmq, relay)


class TestRabbitTransport(OnRabbitMQ, Amqp, TransportSuite):
    pass


class TestRabbitTransportWithClassicQueues(OnRabbitMQ, Classic, TransportSuite):
    pass


class OnRabbitMQOfItsOwn(Ground):
    """On a node that no other test uses."""

    server: RabbitMQServer

    @pytest.fixture
    async def place(self, own_rabbitmq: RabbitMQServer) -> AsyncIterator[Way]:
        self.server = own_rabbitmq
        async with Relay(own_rabbitmq.amqp_url) as relay:
            yield Way(own_rabbitmq.address, relay)


@pytest.mark.slow
class TestRabbitTransportAfterARestart(OnRabbitMQOfItsOwn, Amqp, RestartSuite):
    async def restart(self, place: Way) -> None:
        # In order: RabbitMQ 3.10 forgets a quorum queue that is killed within seconds of being made.
        await asyncio.to_thread(self.server.restart)


@pytest.mark.slow
class TestRabbitTransportWithClassicQueuesAfterACrash(OnRabbitMQOfItsOwn, Classic, RestartSuite):
    keeps_settlements = False  # a classic queue holds acknowledgements in memory for a moment, durable or not

    async def restart(self, place: Way) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)
