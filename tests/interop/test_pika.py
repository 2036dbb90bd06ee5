"""Does pika, RabbitMQ's own recommendation for Python, work with the broker?

The one rule: only pika's public interface is used, and every test runs against each broker of `brokers.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

Names = Callable[[str], str]
PATIENCE = 10


@pytest.fixture
def connection(broker_url: str) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(pika.URLParameters(broker_url))
    yield connection
    if connection.is_open:
        connection.close()


@pytest.fixture
def channel(connection: BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def queue(channel: BlockingChannel, unique: Names) -> Iterator[str]:
    name = unique("work")
    channel.queue_declare(name, auto_delete=True)
    yield name
    _delete(channel, name)


@pytest.fixture
def dead(channel: BlockingChannel, unique: Names) -> Iterator[str]:
    name = unique("dead")
    channel.queue_declare(name)
    yield name
    _delete(channel, name)


def _delete(channel: BlockingChannel, queue: str) -> None:
    if channel.is_open:
        channel.queue_delete(queue)


def _next(channel: BlockingChannel, queue: str) -> tuple[Any, Any, bytes]:
    """The next message, whenever it comes."""
    for method, properties, body in channel.consume(queue, inactivity_timeout=PATIENCE):
        channel.cancel()
        assert method is not None, f"nothing came in {queue}"
        return method, properties, body
    raise AssertionError("the consumer was cancelled")


def test_a_message_is_published_and_got(channel: BlockingChannel, queue: str) -> None:
    properties = pika.BasicProperties(
        content_type="text/plain", headers={"n": 1, "s": "text", "list": [1, "a"]}
    )
    channel.basic_publish("", queue, b"body", properties)

    method, found, body = channel.basic_get(queue, auto_ack=True)

    assert (method.routing_key, method.redelivered, body) == (queue, False, b"body")
    assert (found.content_type, found.headers) == ("text/plain", {"n": 1, "s": "text", "list": [1, "a"]})
    assert channel.basic_get(queue) == (None, None, None)


def test_a_consumer_gets_messages_in_order(channel: BlockingChannel, queue: str) -> None:
    bodies: list[bytes] = []

    def on_message(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        bodies.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(bodies) == 3:
            channel.stop_consuming()

    channel.basic_consume(queue, on_message)
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", queue, body)
    channel.start_consuming()

    assert bodies == [b"1", b"2", b"3"]


def test_publishes_are_confirmed(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()

    for number in range(10):
        channel.basic_publish("", queue, str(number).encode(), mandatory=True)

    assert channel.queue_declare(queue, passive=True).method.message_count == 10


def test_a_full_queue_nacks(channel: BlockingChannel, unique: Names) -> None:
    full = unique("full")
    channel.queue_declare(full, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", full, b"1")

    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", full, b"2")

    channel.queue_delete(full)


def test_an_unroutable_mandatory_message_comes_back(channel: BlockingChannel, unique: Names) -> None:
    channel.confirm_delivery()

    with pytest.raises(pika.exceptions.UnroutableError) as failure:
        channel.basic_publish("", unique("nowhere"), b"body", mandatory=True)

    [returned] = failure.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert returned.body == b"body"


def test_a_transaction_takes_effect_at_commit_and_not_at_rollback(
    channel: BlockingChannel, queue: str
) -> None:
    channel.tx_select()
    channel.basic_publish("", queue, b"lost")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"kept")
    channel.tx_commit()

    assert channel.basic_get(queue, auto_ack=True)[2] == b"kept"
    assert channel.basic_get(queue) == (None, None, None)


def test_a_rejected_message_is_dead_lettered(channel: BlockingChannel, dead: str, unique: Names) -> None:
    work = unique("rejecting")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(work, arguments=arguments)
    channel.basic_publish("", work, b"body", pika.BasicProperties(delivery_mode=2, message_id="id"))
    method, _, _ = _next(channel, work)
    channel.basic_reject(method.delivery_tag, requeue=False)

    _, properties, body = _next(channel, dead)

    [death] = properties.headers["x-death"]
    assert (body, properties.message_id, properties.delivery_mode) == (b"body", "id", 2)
    assert {key: death[key] for key in ("queue", "reason", "count", "exchange", "routing-keys")} == {
        "queue": work,
        "reason": "rejected",
        "count": 1,
        "exchange": "",
        "routing-keys": [work],
    }
    assert properties.headers["x-first-death-reason"] == "rejected"
    channel.queue_delete(work)


def test_an_expired_message_is_dead_lettered(channel: BlockingChannel, dead: str, unique: Names) -> None:
    work = unique("expiring")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-message-ttl": 50}
    channel.queue_declare(work, arguments=arguments)
    channel.basic_publish("", work, b"body")

    _, properties, _ = _next(channel, dead)

    assert properties.headers["x-death"][0]["reason"] == "expired"
    channel.queue_delete(work)


def test_a_priority_queue_delivers_the_highest_first(channel: BlockingChannel, unique: Names) -> None:
    queue = unique("priorities")
    channel.queue_declare(queue, arguments={"x-max-priority": 5})
    for priority in (1, 5, 3):
        channel.basic_publish("", queue, str(priority).encode(), pika.BasicProperties(priority=priority))

    assert [channel.basic_get(queue, auto_ack=True)[2] for _ in range(3)] == [b"5", b"3", b"1"]
    channel.queue_delete(queue)


def test_a_missing_queue_is_404(channel: BlockingChannel, unique: Names) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as failure:
        channel.queue_declare(unique("missing"), passive=True)

    assert failure.value.reply_code == 404
    assert failure.value.reply_text.startswith("NOT_FOUND - no queue ")


def test_a_different_declaration_is_406(channel: BlockingChannel, queue: str) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as failure:
        channel.queue_declare(queue, durable=True, auto_delete=True)

    assert failure.value.reply_code == 406
    assert failure.value.reply_text.startswith("PRECONDITION_FAILED - inequivalent arg 'durable'")


def test_somebody_elses_exclusive_queue_is_405(
    channel: BlockingChannel, broker_url: str, unique: Names
) -> None:
    channel.queue_declare(unique("mine"), exclusive=True)
    with BlockingConnection(pika.URLParameters(broker_url)) as other:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as failure:
            other.channel().queue_declare(unique("mine"), passive=True)

        assert failure.value.reply_code == 405


def test_a_reserved_name_is_403_and_the_connection_lives_on(connection: BlockingConnection) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as failure:
        connection.channel().queue_declare("amq.mine")

    assert failure.value.reply_code == 403
    assert connection.channel().is_open


def test_no_more_is_delivered_than_the_prefetch_allows(channel: BlockingChannel, queue: str) -> None:
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", queue, body)
    tags: list[int] = []
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(
        queue, lambda _channel, method, _properties, _body: tags.append(method.delivery_tag)
    )
    _until(channel, lambda: len(tags) == 2)

    assert channel.queue_declare(queue, passive=True).method.message_count == 1
    assert tags == [1, 2]
    channel.basic_ack(1)
    _until(channel, lambda: len(tags) == 3)


def test_a_consumer_is_told_when_its_queue_is_deleted(
    connection: BlockingConnection, channel: BlockingChannel, unique: Names
) -> None:
    queue = unique("doomed")
    cancelled: list[str] = []
    channel.queue_declare(queue)
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(queue, lambda *_: None)

    connection.channel().queue_delete(queue)
    _until(channel, lambda: bool(cancelled))

    assert cancelled == [tag]


def _until(channel: BlockingChannel, came: Callable[[], bool]) -> None:
    for _ in range(PATIENCE * 10):
        if came():
            return
        channel.connection.process_data_events(0.1)
    raise AssertionError("it did not come")
