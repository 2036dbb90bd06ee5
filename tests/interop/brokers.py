"""Which brokers is a test of the AMQP protocol run against, and what does it get of them?

The one rule: a test asks for `broker` (or only its `broker_url`) and runs once against the newest RabbitMQ and once
against the embedded broker, each time in a vhost of its own; it does not know which one it has. What holds
for RabbitMQ but not for ours is a fault of ours. A test of something that differs between versions of RabbitMQ asks
for `each_broker`.

=============  ==================================================================================
`broker`       a fresh vhost on either broker: `amqp_url`, `management_url`, `vhost`, `api()`
`each_broker`  a fresh vhost on each version of RabbitMQ and on the embedded broker
`broker_url`   its AMQP URL, for clients that need no more
`embedded`     a fresh vhost on the run's embedded broker
`unique`       makes names that no other test uses, for the case that vhosts cannot be made
=============  ==================================================================================

This file does not know what is tested.
"""

import os
import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.services import RABBITMQS, EmbeddedServer, RabbitMQ, RabbitMQServer, Run, Server

BROKERS: dict[str, type[Server[RabbitMQ]]] = {"rabbitmq": RabbitMQServer, "embedded": EmbeddedServer}
EACH_BROKER: dict[str, type[Server[RabbitMQ]]] = {
    **{server.name: server for server in RABBITMQS.values()},
    "embedded": EmbeddedServer,
}

__all__ = ["BROKERS", "EACH_BROKER", "broker", "broker_url", "each_broker", "embedded", "unique"]


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.service(name)) for name in BROKERS])
def broker(request: pytest.FixtureRequest, service_run: Run) -> Iterator[RabbitMQ]:
    """A fresh vhost, on each broker in turn."""
    with service_run.address(BROKERS[request.param], os.environ).fresh() as vhost:
        yield vhost


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.service(name)) for name in EACH_BROKER])
def each_broker(request: pytest.FixtureRequest, service_run: Run) -> Iterator[RabbitMQ]:
    """A fresh vhost, on each version of RabbitMQ and on the embedded broker in turn."""
    with service_run.address(EACH_BROKER[request.param], os.environ).fresh() as vhost:
        yield vhost


@pytest.fixture
def broker_url(broker: RabbitMQ) -> str:
    """Where that vhost is."""
    return broker.amqp_url


@pytest.fixture
def embedded(service_run: Run) -> Iterator[RabbitMQ]:
    """A fresh vhost on the embedded broker."""
    with service_run.address(EmbeddedServer, os.environ).fresh() as vhost:
        yield vhost


@pytest.fixture
def unique() -> Callable[[str], str]:
    """`unique("work")` is always the same name in a test, and never the same in two."""
    mark = secrets.token_hex(4)
    return lambda name: f"{name}-{mark}"
