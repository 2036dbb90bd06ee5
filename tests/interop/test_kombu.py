"""Do kombu, which Celery uses, and py-amqp beneath it, work with the broker?

The one rule: kombu's interface where it has one, py-amqp's channel (`channel.…` of the connection) where kombu has
none: transactions, returns and confirms are py-amqp's alone. Every test runs against each broker of `brokers.py`.
"""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import kombu
import pytest

Names = Callable[[str], str]
PATIENCE = 10.0


@pytest.fixture
def connection(broker_url: str) -> Iterator[Any]:
    with kombu.Connection(broker_url) as connection:
        yield connection


@pytest.fixture
def channel(connection: Any) -> Any:
    return connection.channel()


def _queue(channel: Any, name: str, **arguments: Any) -> Any:
    """Exclusive, so that it goes with the connection."""
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    queue = kombu.Queue(name, durable=False, exclusive=True, queue_arguments=table)(channel)
    queue.auto_delete = False  # kombu adds it to exclusive queues
    queue.declare()
    return queue


def _next(connection: Any, queue: Any) -> Any:
    """The next message, whenever it comes."""
    found: list[Any] = []
    with kombu.Consumer(
        queue.channel,
        queues=[queue],
        callbacks=[lambda _body, message: found.append(message)],
        auto_declare=False,
    ):
        _until(connection, lambda: bool(found))
    return found[0]


def _until(connection: Any, came: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not came():
        assert time.monotonic() < end, "it did not come"
        try:
            connection.drain_events(timeout=0.1)
        except (TimeoutError, socket.timeout):  # noqa: UP041 - two names until Python 3.10, one since
            continue


def test_a_message_is_published_and_got(channel: Any, unique: Names) -> None:
    queue = _queue(channel, unique("work"))
    kombu.Producer(channel).publish({"a": 1}, routing_key=queue.name, headers={"n": 1, "s": "text"})

    message = queue.get(no_ack=True)

    assert (message.payload, message.headers["n"], message.headers["s"]) == ({"a": 1}, 1, "text")
    assert message.content_type == "application/json"
    assert queue.get() is None


def test_a_consumer_gets_messages_in_order(connection: Any, channel: Any, unique: Names) -> None:
    queue = _queue(channel, unique("work"))
    producer = kombu.Producer(channel)
    for number in (1, 2, 3):
        producer.publish(number, routing_key=queue.name)
    found: list[Any] = []

    def on_message(body: Any, message: Any) -> None:
        found.append(body)
        message.ack()

    with kombu.Consumer(channel, queues=[queue], callbacks=[on_message], auto_declare=False):
        _until(connection, lambda: len(found) == 3)

    assert found == [1, 2, 3]


def test_publishes_are_confirmed(broker_url: str, unique: Names) -> None:
    with kombu.Connection(broker_url, transport_options={"confirm_publish": True}) as connection:
        channel = connection.channel()
        queue = _queue(channel, unique("work"))
        for number in range(10):
            kombu.Producer(channel).publish(number, routing_key=queue.name, timeout=PATIENCE)

        assert queue.queue_declare(passive=True).message_count == 10


def test_a_full_queue_nacks(broker_url: str, unique: Names) -> None:
    with kombu.Connection(broker_url, transport_options={"confirm_publish": True}) as connection:
        channel = connection.channel()
        queue = _queue(channel, unique("full"), max_length=1, overflow="reject-publish")
        channel.basic_publish_confirm(amqp.Message("1"), routing_key=queue.name)

        with pytest.raises(amqp.exceptions.MessageNacked):
            channel.basic_publish_confirm(amqp.Message("2"), routing_key=queue.name)


def test_an_unroutable_mandatory_message_comes_back(connection: Any, channel: Any, unique: Names) -> None:
    returned: list[tuple[int, str, str]] = []
    channel.events["basic_return"].add(
        lambda error, _exchange, key, message: returned.append((error.reply_code, key, message.body))
    )
    channel.basic_publish(amqp.Message("body"), routing_key=unique("nowhere"), mandatory=True)
    _until(connection, lambda: bool(returned))

    assert returned == [(312, unique("nowhere"), "body")]


def test_a_transaction_takes_effect_at_commit_and_not_at_rollback(channel: Any, unique: Names) -> None:
    queue = _queue(channel, unique("work"))
    channel.tx_select()
    channel.basic_publish(amqp.Message("lost"), routing_key=queue.name)
    channel.tx_rollback()
    channel.basic_publish(amqp.Message("kept"), routing_key=queue.name)
    channel.tx_commit()

    assert channel.basic_get(queue.name, no_ack=True).body == "kept"
    assert channel.basic_get(queue.name) is None


def test_a_rejected_message_is_dead_lettered(connection: Any, channel: Any, unique: Names) -> None:
    dead = _queue(channel, unique("dead"))
    work = _queue(channel, unique("work"), dead_letter_exchange="", dead_letter_routing_key=dead.name)
    kombu.Producer(channel).publish("body", routing_key=work.name, message_id="id")
    _next(connection, work).reject()

    message = _next(connection, dead)

    [death] = message.headers["x-death"]
    assert (message.payload, message.properties["message_id"]) == ("body", "id")
    assert {key: death[key] for key in ("queue", "reason", "count", "exchange", "routing-keys")} == {
        "queue": work.name,
        "reason": "rejected",
        "count": 1,
        "exchange": "",
        "routing-keys": [work.name],
    }


def test_an_expired_message_is_dead_lettered(connection: Any, channel: Any, unique: Names) -> None:
    dead = _queue(channel, unique("dead"))
    work = _queue(channel, unique("work"), dead_letter_exchange="", dead_letter_routing_key=dead.name)
    kombu.Producer(channel).publish("body", routing_key=work.name, expiration=0.05)

    message = _next(connection, dead)

    [death] = message.headers["x-death"]
    assert (death["reason"], death["original-expiration"]) == ("expired", "50")
    assert "expiration" not in message.properties


def test_a_priority_queue_delivers_the_highest_first(channel: Any, unique: Names) -> None:
    queue = _queue(channel, unique("priorities"), max_priority=5)
    for priority in (1, 5, 3):
        kombu.Producer(channel).publish(priority, routing_key=queue.name, priority=priority)

    assert [queue.get(no_ack=True).payload for _ in range(3)] == [5, 3, 1]


def test_a_missing_queue_is_404(channel: Any, unique: Names) -> None:
    with pytest.raises(amqp.exceptions.NotFound, match="NOT_FOUND - no queue"):
        channel.queue_declare(unique("missing"), passive=True)


def test_a_different_declaration_is_406(channel: Any, unique: Names) -> None:
    channel.queue_declare(unique("work"), auto_delete=True)

    with pytest.raises(amqp.exceptions.PreconditionFailed, match="inequivalent arg 'durable'"):
        channel.queue_declare(unique("work"), auto_delete=True, durable=True)


def test_somebody_elses_exclusive_queue_is_405(channel: Any, broker_url: str, unique: Names) -> None:
    _queue(channel, unique("mine"))
    with kombu.Connection(broker_url) as other, pytest.raises(amqp.exceptions.ResourceLocked):
        other.channel().queue_declare(unique("mine"), passive=True)


def test_a_reserved_name_is_403_and_the_connection_lives_on(connection: Any) -> None:
    with pytest.raises(amqp.exceptions.AccessRefused):
        connection.channel().queue_declare("amq.mine")

    connection.channel().queue_declare(exclusive=True)


def test_no_more_is_delivered_than_the_prefetch_allows(connection: Any, channel: Any, unique: Names) -> None:
    queue = _queue(channel, unique("work"))
    for number in (1, 2, 3):
        kombu.Producer(channel).publish(number, routing_key=queue.name)
    found: list[Any] = []
    with kombu.Consumer(
        channel,
        queues=[queue],
        callbacks=[lambda _body, message: found.append(message)],
        prefetch_count=2,
        auto_declare=False,
    ):
        _until(connection, lambda: len(found) == 2)
        assert queue.queue_declare(passive=True).message_count == 1

        found[0].ack()
        _until(connection, lambda: len(found) == 3)

    assert [message.payload for message in found] == [1, 2, 3]


def test_a_consumer_is_told_when_its_queue_is_deleted(connection: Any, channel: Any, unique: Names) -> None:
    queue = _queue(channel, unique("doomed"))
    cancelled: list[str] = []
    tag = channel.basic_consume(queue.name, callback=lambda _: None, on_cancel=cancelled.append)

    connection.channel().queue_delete(queue.name)
    _until(connection, lambda: bool(cancelled))

    assert cancelled == [tag]
