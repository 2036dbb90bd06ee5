"""Do the federation and shovel plugins of RabbitMQ work with the embedded broker?

The RabbitMQ under test runs the plugin; the embedded broker is the other end. A RabbitMQ that the environment names
may have no federation plugin: then there is nothing to test.
"""

import time
from collections.abc import Callable, Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from redrive.errors import ServiceError
from tests.services import RabbitMQ

TIMEOUT = 20.0  # seconds


def _until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < end, f"{what} within {TIMEOUT:g} s"
        time.sleep(0.05)


def _channel(broker: RabbitMQ) -> BlockingChannel:
    return pika.BlockingConnection(pika.URLParameters(broker.amqp_url)).channel()


@pytest.fixture
def here(each_rabbitmq: RabbitMQ) -> Iterator[BlockingChannel]:
    channel = _channel(each_rabbitmq)
    yield channel
    channel.connection.close()


@pytest.fixture
def there(embedded: RabbitMQ) -> Iterator[BlockingChannel]:
    channel = _channel(embedded)
    yield channel
    channel.connection.close()


@pytest.fixture
def upstream(each_rabbitmq: RabbitMQ, embedded: RabbitMQ) -> RabbitMQ:
    """A RabbitMQ whose exchanges and queues called `federated` have the embedded broker as upstream."""
    vhost = each_rabbitmq.vhost
    try:
        each_rabbitmq.api("GET", f"/federation-links/{vhost}")
    except ServiceError:
        pytest.skip("this RabbitMQ has no federation plugin")
    value = {"uri": embedded.amqp_url, "ack-mode": "on-confirm", "reconnect-delay": 1}
    each_rabbitmq.api("PUT", f"/parameters/federation-upstream/{vhost}/embedded", {"value": value})
    for kind in ("exchanges", "queues"):
        definition = {"federation-upstream": "embedded"}
        policy = {"pattern": "^federated$", "apply-to": kind, "definition": definition}
        each_rabbitmq.api("PUT", f"/policies/{vhost}/{kind}", policy)
    return each_rabbitmq


def _received(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    bodies: list[bytes] = []

    def complete() -> bool:
        while (found := channel.basic_get(queue, auto_ack=True))[2] is not None:
            bodies.append(found[2])
        return len(bodies) >= count

    _until(complete, f"{count} messages in {queue}")
    return bodies


def test_exchange_federation_brings_messages_from_the_embedded_broker(
    upstream: RabbitMQ, here: BlockingChannel, there: BlockingChannel, embedded: RabbitMQ
) -> None:
    there.exchange_declare("federated", "topic", durable=True)
    here.exchange_declare("federated", "topic", durable=True)
    here.queue_declare("received")
    here.queue_bind("received", "federated", "orders.#")

    def bound() -> bool:
        rows = embedded.api("GET", f"/exchanges/{embedded.vhost}/federated/bindings/source")
        return any(row["routing_key"] == "orders.#" for row in rows)

    _until(bound, "the binding is made upstream")
    for key in ("orders.new", "customers.new", "orders.paid"):
        there.basic_publish("federated", key, key.encode())

    assert _received(here, "received", 2) == [b"orders.new", b"orders.paid"]
    assert upstream.api("GET", f"/federation-links/{upstream.vhost}")[0]["status"] == "running"


@pytest.mark.usefixtures("upstream")
def test_queue_federation_brings_messages_from_the_embedded_broker(
    here: BlockingChannel, there: BlockingChannel
) -> None:
    bodies = [str(number).encode() for number in range(20)]
    there.queue_declare("federated", durable=True)
    for body in bodies:
        there.basic_publish("", "federated", body)
    here.queue_declare("federated", durable=True)
    received: list[bytes] = []

    for method, _, body in here.consume("federated", inactivity_timeout=TIMEOUT):
        assert method is not None, f"{len(received)} messages came within {TIMEOUT:g} s"
        received.append(body)
        here.basic_ack(method.delivery_tag)
        if len(received) == len(bodies):
            break

    assert received == bodies


@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish", "no-ack"])
@pytest.mark.parametrize("direction", ["to the embedded broker", "from the embedded broker"])
def test_shovel_moves_messages(
    each_rabbitmq: RabbitMQ,
    embedded: RabbitMQ,
    here: BlockingChannel,
    there: BlockingChannel,
    ack_mode: str,
    direction: str,
) -> None:
    bodies = [str(number).encode() for number in range(200)]
    ends = ((each_rabbitmq, here), (embedded, there))
    (source, sender), (target, receiver) = ends if direction.startswith("to") else reversed(ends)
    sender.queue_declare("source", durable=True)
    receiver.queue_declare("target", durable=True)
    for body in bodies:
        sender.basic_publish("", "source", body)
    value = {
        "src-protocol": "amqp091",
        "src-uri": source.amqp_url,
        "src-queue": "source",
        "dest-protocol": "amqp091",
        "dest-uri": target.amqp_url,
        "dest-queue": "target",
        "ack-mode": ack_mode,
    }
    each_rabbitmq.api("PUT", f"/parameters/shovel/{each_rabbitmq.vhost}/shovel", {"value": value})

    assert _received(receiver, "target", len(bodies)) == bodies
    each_rabbitmq.api("DELETE", f"/parameters/shovel/{each_rabbitmq.vhost}/shovel")
