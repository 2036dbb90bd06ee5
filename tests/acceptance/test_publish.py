"""`redrive publish` and `redrive.publish` on a real broker."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import redrive
from redrive.errors import PublishError
from tests.acceptance.shop import Queue, Shop
from tests.services import Kafka


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def queue(broker_url: str) -> Any:
    made = Queue(broker_url)
    yield made
    made.connection.close()


def test_publish_sends_the_argument_with_headers(shop: Shop, queue: Queue, broker_url: str) -> None:
    said = shop.ok("publish", "orders", '{"id": 1}', "--header", "tenant=north", "--broker", broker_url)

    assert said == "published 1 message to orders\n"
    ((headers, body),) = queue.got()
    assert (headers, body) == ({"tenant": "north"}, b'{"id": 1}')


@pytest.mark.parametrize("words", [[], ["-"]])
def test_publish_reads_the_body_from_standard_input(
    shop: Shop, queue: Queue, broker_url: str, words: list[str]
) -> None:
    shop.ok("publish", "orders", *words, "--broker", broker_url, input="from a pipe")
    assert [body for _, body in queue.got()] == [b"from a pipe"]


def test_publish_reads_a_file_and_repeats_it(shop: Shop, queue: Queue, broker_url: str) -> None:
    (shop.place / "order.bin").write_bytes(b"\x00\xff")
    answer = shop.json("publish", "orders", "--file", "order.bin", "--count", "3", "--broker", broker_url)

    assert answer == {"target": "orders", "routing_key": None, "published": 3}
    assert [body for _, body in queue.got()] == [b"\x00\xff"] * 3


def test_publish_to_an_exchange_uses_the_routing_key(shop: Shop, queue: Queue, broker_url: str) -> None:
    queue.channel.exchange_declare("shop", "topic", durable=True)
    queue.channel.queue_bind("orders", "shop", "order.*")
    to_exchange = ("publish", "--broker", broker_url, "--exchange", "shop", "--routing-key")

    shop.ok(*to_exchange, "order.created", "x")
    assert [body for _, body in queue.got()] == [b"x"]
    assert "no queue is bound to exchange 'shop'" in shop.fails(4, *to_exchange, "other", "x")


def test_publish_to_an_unknown_queue_fails_with_the_next_step(shop: Shop, broker_url: str) -> None:
    said = shop.fails(4, "publish", "nowhere", "x", "--broker", broker_url)
    assert said == (
        "queue 'nowhere' does not exist; redrive provision creates it, or start its consumer first"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no target: name a queue or topic, or pass --exchange"),
        (["orders", "a", "b"], "'b' is one argument too many"),
        (["orders", "x", "--header", "tenant"], "--header must be NAME=VALUE, got 'tenant'"),
        (["orders", "x", "--routing-key", "y"], "--routing-key needs --exchange"),
        (["orders", "x", "--key", "y"], "--key: only Kafka records have keys"),
        (["orders", "x", "--broker", "shop"], "--broker shop: the settings have no broker of this name"),
        (["x", "--broker", "kafka://h", "--exchange", "e"], "--exchange: Kafka has no exchanges"),
    ],
)
def test_publish_refuses_wrong_arguments(shop: Shop, words: list[str], says: str) -> None:
    assert says in shop.fails(2, "publish", *words)


@pytest.mark.parametrize(
    ("body", "sent"), [({"id": 1}, b'{"id":1}'), ([1], b"[1]"), ("text", b"text"), (b"\xff", b"\xff")]
)
def test_publish_in_python_encodes_the_body(queue: Queue, broker_url: str, body: object, sent: bytes) -> None:
    asyncio.run(redrive.publish("orders", body, broker=broker_url, headers={"tenant": "north"}))
    assert queue.got() == [({"tenant": "north"}, sent)]


def test_publish_in_python_raises_for_an_unknown_queue(broker_url: str) -> None:
    with pytest.raises(PublishError, match="queue 'nowhere' does not exist"):
        asyncio.run(redrive.publish("nowhere", b"", broker=broker_url))


def test_publish_to_kafka_sends_the_key(shop: Shop, kafka: Kafka) -> None:
    topic = kafka.topic("orders")
    shop.ok("publish", topic, "x", "--key", "customer-7", "--header", "tenant=north", "--broker", kafka.url)

    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": kafka.name("read"),
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        record = consumer.poll(60)
    finally:
        consumer.close()
    assert record is not None
    assert (record.key(), record.value()) == (b"customer-7", b"x")
    assert ("tenant", b"north") in (record.headers() or [])


def test_publish_to_an_unknown_topic_fails_with_the_next_step(shop: Shop, kafka: Kafka) -> None:
    said = shop.fails(4, "publish", "nowhere-at-all", "x", "--broker", kafka.url)
    assert "topic 'nowhere-at-all' does not exist; redrive provision creates it" in said
