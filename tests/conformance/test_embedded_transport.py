import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from redrive.testing.transport_suite import Relay, RestartSuite, TransportSuite
from redrive.testing.transport_suite.ground import Ground
from tests.conformance.test_rabbitmq_transport import Amqp, Classic, Way
from tests.services import EmbeddedServer, Run


class OnEmbedded(Ground):
    """In a vhost of its own."""

    @pytest.fixture
    async def place(self, service_run: Run) -> AsyncIterator[Way]:
        with service_run.address(EmbeddedServer, os.environ).fresh() as vhost:
            async with Relay(vhost.amqp_url) as relay:
                yield Way(vhost, relay)


@pytest.mark.service("embedded")
class TestEmbeddedTransport(OnEmbedded, Amqp, TransportSuite):
    pass


@pytest.mark.service("embedded")
class TestEmbeddedTransportWithClassicQueues(OnEmbedded, Classic, TransportSuite):
    pass


@pytest.mark.service("embedded")
class TestEmbeddedTransportAfterACrash(Amqp, RestartSuite):
    @pytest.fixture
    async def place(self, service_run: Run) -> AsyncIterator[Way]:
        with service_run.private(EmbeddedServer, os.environ) as self.server:
            async with Relay(self.server.amqp_url) as relay:
                yield Way(self.server.address, relay)

    async def restart(self, place: Way) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)
