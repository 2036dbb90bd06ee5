"""Dead letters of every system that is at home on Kafka, on a real one: produced by a plain client, and collected."""

import asyncio

import pytest
from confluent_kafka import Producer

from redrive.clock import SystemClock
from redrive.collect import Collector
from redrive.collect.reading import DAMAGED, NOT_UNDERSTOOD, Reader
from redrive.letters import Message
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, StrategyOptions
from redrive.stores.memory import MemoryStore
from redrive.transports.kafka import KafkaTransport
from tests.services import Kafka
from tests.unit.formats.test_vectors import Record, records

SYSTEMS = (
    "kafka-connect", "kafka-share-group", "kafka-streams", "karafka", "onex", "smallrye", "spring-cloud-stream",
    "spring-kafka", "spring-kafka-retry", "watermill", "wolverine",
)  # fmt: skip

NUMBER = "number-of-the-sample"


def produce(kafka: Kafka, topic: str, messages: list[Message]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number, message in enumerate(messages):
        headers = [*message.headers, (NUMBER, str(number).encode())]
        producer.produce(topic, message.body, message.key, headers=headers)
    assert producer.flush(30) == 0


@pytest.mark.timeout(180)
async def test_what_other_systems_gave_up_is_collected_with_its_origin_and_its_error(kafka: Kafka) -> None:
    # Given a topic with all of them, one after the other
    samples: list[Record] = [record for system in SYSTEMS for record in records(system)]
    topic = kafka.topic("dead")
    await asyncio.to_thread(produce, kafka, topic, [record.message("bytes") for record in samples])

    # When the topic is collected
    clock, store, stop, strategy = (
        SystemClock(),
        MemoryStore(SystemClock()),
        asyncio.Event(),
        StrategyOptions(),
    )
    troubles: list[str] = []
    async with KafkaTransport(f"{kafka.url}?group={kafka.name('collector')}", clock) as transport:
        collector = Collector(
            transport,
            store,
            topic,
            reader=Reader(Classifier(), Redactor(), strategy),
            options=strategy,
            clock=clock,
            trouble=lambda what, error: troubles.append(f"{what}: {error}"),
            collected=lambda _letters: stop.set() if collector.counts.collected >= len(samples) else None,
        )
        async with asyncio.timeout(60):
            await collector.run(stop)

    # Then every letter has what its record tells, and nothing of the place where it was found
    letters = await store.load([head.id for head in (await store.page(limit=1000)).heads])
    assert (len(letters), troubles) == (len(samples), [])
    by_number = {letter.message.headers.get(NUMBER): letter for letter in letters}
    for number, record in enumerate(samples):
        # Of a record that holds the message within, the headers are gone with the record.
        letter = by_number[None if record.original else str(number).encode()]
        tells, origin = record.tells, letter.origin
        assert origin.dead_letter_source == topic
        assert origin.source == tells.get("source", topic), record.about
        if "source" in tells:
            place = (tells.get("partition"), tells.get("offset"), tells.get("consumer_group"))
            assert (origin.partition, origin.offset, origin.consumer_group) == place, record.about
        if "error_type" in tells:
            assert letter.failure.error_type == tells["error_type"]
        assert letter.failure.stack == tells.get("stack")
        assert letter.retry_count == tells.get("retry_count", 0)
        assert (NOT_UNDERSTOOD in letter.tags) == (tells["convention"] == "unknown")
        assert (DAMAGED in letter.tags) == ("unreadable" in tells)
        left = [name for name, _ in letter.message.headers if name != NUMBER]
        assert left == record.kept, record.about
        assert letter.message.body == record.original.get("body", record.body).encode()
        assert letter.message.key == record.original.get("key", "outer").encode()
