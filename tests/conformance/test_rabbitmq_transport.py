import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from redrive.clock import SystemClock
from redrive.letters import Headers, Typed
from redrive.testing.transport_suite import Relay, TransportSuite
from redrive.testing.transport_suite.ground import Ground
from redrive.transports import Source, Transport
from redrive.transports.rabbitmq import RabbitTransport
from tests.services import RabbitMQ


class Way(NamedTuple):
    """A vhost, and the one way to it that a test can cut."""

    broker: RabbitMQ
    relay: Relay


class AmqpSuite(TransportSuite):
    """What RabbitMQ and the embedded broker have in common."""

    looking_counts = True  # what was fetched and put back is redelivered
    properties = Headers(
        {"delivery_mode": 1, "priority": 5, "reply_to": "answers", "expiration": "600000", "app_id": "shop"}
    )
    headers = Headers(
        [
            *Ground.headers,
            ("int8", Typed("int8", -7)),
            ("int16", Typed("int16", -300)),
            ("int32", Typed("int32", 70_000)),
            ("float32", Typed("float32", 0.25)),
            ("not UTF-8", Typed("longstr", b"\xff\xfe")),
            ("CC", ()),
        ]
    )

    async def open_transport(self, place: Way) -> Transport:
        transport = RabbitTransport(place.relay.url, SystemClock())
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


class TestRabbitTransport(AmqpSuite):
    @pytest.fixture
    async def place(self, rabbitmq: RabbitMQ) -> AsyncIterator[Way]:
        async with Relay(rabbitmq.amqp_url) as relay:
            yield Way(rabbitmq, relay)


class TestRabbitTransportWithClassicQueues(TestRabbitTransport):
    async def make_source(self, transport: Transport, **fields: Any) -> Source:
        return await super().make_source(transport, queue_type="classic", **fields)
