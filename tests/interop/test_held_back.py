"""Does the management API show what a quorum queue holds back, on RabbitMQ 4.3 and on the embedded broker alike?"""

import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.services import RabbitMQ
from tests.services.rabbitmq import STATISTICS_TIMEOUT_S


@pytest.fixture
def channel(broker: RabbitMQ) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


def declare(channel: BlockingChannel, **arguments: Any) -> None:
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum", **table})


def reject(channel: BlockingChannel, *, requeue: bool) -> None:
    channel.basic_publish("", "q", b"body")
    method, _, _ = channel.basic_get("q")
    channel.basic_reject(method.delivery_tag, requeue=requeue)


def fields(broker: RabbitMQ, *names: str, once: tuple[str, ...]) -> dict[str, Any]:
    """Fields of the queue as soon as these are not 0; RabbitMQ updates them at different times."""
    end = time.monotonic() + STATISTICS_TIMEOUT_S
    while True:
        found: dict[str, Any] = broker.api("GET", f"/queues/{broker.vhost}/q")
        if all(found.get(name) for name in once):
            return {name: found.get(name) for name in names}
        assert time.monotonic() < end, f"waiting for {once}: {found}"
        time.sleep(0.2)


def test_delayed_messages_are_shown(broker: RabbitMQ, channel: BlockingChannel) -> None:
    declare(channel, delayed_retry_type="failed", delayed_retry_min=600_000, delayed_retry_max=900_000)
    before = time.time() * 1000
    reject(channel, requeue=True)
    after = time.time() * 1000
    channel.basic_publish("", "q", b"ready")
    found = fields(
        broker,
        *("messages", "messages_ready", "messages_unacknowledged", "messages_delayed", "delayed_retry"),
        *("messages_dlx", "message_bytes_ready", "next_delayed_at", "last_delayed_at"),
        once=("messages_ready", "messages_delayed"),
    )
    next_at, last_at = found.pop("next_delayed_at"), found.pop("last_delayed_at")
    assert before + 599_900 < next_at < after + 600_100
    assert next_at == last_at
    assert found == {
        "messages": 2,
        "messages_ready": 1,
        "messages_unacknowledged": 0,
        "messages_delayed": 1,
        "delayed_retry": "failed (min: 600000ms, max: 900000ms)",
        "messages_dlx": 0,
        "message_bytes_ready": 13,  # the bodies, and two bytes of properties each
    }


def test_kept_dead_letters_are_shown(broker: RabbitMQ, channel: BlockingChannel) -> None:
    declare(
        channel,
        dead_letter_exchange="missing",
        dead_letter_strategy="at-least-once",
        overflow="reject-publish",
    )
    reject(channel, requeue=False)
    channel.basic_publish("", "q", b"ready")
    assert fields(
        broker,
        *("messages", "messages_ready", "messages_delayed", "messages_dlx", "message_bytes_dlx"),
        *("message_bytes", "message_bytes_ready", "delayed_retry", "next_delayed_at"),
        once=("messages_ready", "messages_dlx"),
    ) == {
        "messages": 2,
        "messages_ready": 1,
        "messages_delayed": 0,
        "messages_dlx": 1,
        "message_bytes_dlx": 6,
        "message_bytes": 13,
        "message_bytes_ready": 7,
        "delayed_retry": "disabled",
        "next_delayed_at": None,
    }


def test_consumers_are_shown_with_the_timeout_of_their_queue(
    broker: RabbitMQ, channel: BlockingChannel
) -> None:
    declare(channel, consumer_timeout=5_000)
    channel.queue_declare("classic")
    channel.basic_consume("q", lambda *_: None, consumer_tag="own", arguments={"x-consumer-timeout": 7_000})
    channel.basic_consume("classic", lambda *_: None, consumer_tag="default")
    end = time.monotonic() + STATISTICS_TIMEOUT_S
    while len(rows := broker.api("GET", f"/consumers/{broker.vhost}")) < 2:
        assert time.monotonic() < end
        time.sleep(0.2)
    found = {row["consumer_tag"]: row["consumer_timeout"] for row in rows}
    assert found == {"own": 5_000, "default": 1_800_000}
