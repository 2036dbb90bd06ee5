"""Does AMQPStorm, a synchronous client for Python, work with the broker?

It counts the payload of a frame alone against frame_max, so it sends frames that are 8 octets longer than the
specification allows; RabbitMQ accepts them. Every test runs against each broker of `brokers.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import amqpstorm
import pytest

Names = Callable[[str], str]


@pytest.fixture
def channel(broker_url: str) -> Iterator[Any]:
    with amqpstorm.UriConnection(broker_url) as connection, connection.channel() as channel:
        yield channel


@pytest.mark.parametrize("size", [0, 131_064, 131_065, 131_072, 131_073, 1_000_000])
def test_amqpstorm_publishes_and_gets_bodies_of_any_size(channel: Any, unique: Names, size: int) -> None:
    name = unique("work")
    channel.queue.declare(name, exclusive=True)
    channel.confirm_deliveries()

    assert channel.basic.publish("x" * size, name, properties={"headers": {"n": 1}})

    message = channel.basic.get(name)
    assert message is not None
    assert len(message.body) == size
    assert message.properties["headers"] == {"n": 1}


def test_amqpstorm_commits_a_transaction(channel: Any, unique: Names) -> None:
    name = unique("work")
    channel.queue.declare(name, exclusive=True)
    with channel.tx:
        channel.basic.publish("1", name)
        channel.basic.publish("2", name)

    assert [channel.basic.get(name).body, channel.basic.get(name).body] == ["1", "2"]


def test_amqpstorm_reports_a_missing_queue(channel: Any, unique: Names) -> None:
    with pytest.raises(amqpstorm.AMQPChannelError) as raised:
        channel.queue.declare(unique("missing"), passive=True)

    assert raised.value.error_code == 404


def test_amqpstorm_consumes_and_rejects_to_a_dead_letter_queue(channel: Any, unique: Names) -> None:
    work, dead = unique("work"), unique("dead")
    channel.queue.declare(dead, exclusive=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue.declare(work, exclusive=True, arguments=arguments)
    channel.confirm_deliveries()
    channel.basic.publish("body", work)
    channel.basic.consume(queue=work)
    channel.basic.consume(queue=dead)
    messages = channel.build_inbound_messages()

    next(messages).reject(requeue=False)

    letter = next(messages)
    assert letter.body == "body"
    assert letter.properties["headers"]["x-death"][0]["reason"] == "rejected"
