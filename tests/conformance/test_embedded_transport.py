import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redrive.testing.transport_suite import Relay
from redrive.transports import Source, Transport
from tests.conformance.test_rabbitmq_transport import AmqpSuite, Way
from tests.services import EmbeddedServer, Run


@pytest.mark.service("embedded")
class TestEmbeddedTransport(AmqpSuite):
    @pytest.fixture
    async def place(self, service_run: Run) -> AsyncIterator[Way]:
        with service_run.address(EmbeddedServer, os.environ).fresh() as vhost:
            async with Relay(vhost.amqp_url) as relay:
                yield Way(vhost, relay)


class TestEmbeddedTransportWithClassicQueues(TestEmbeddedTransport):
    async def make_source(self, transport: Transport, **fields: Any) -> Source:
        return await super().make_source(transport, queue_type="classic", **fields)
