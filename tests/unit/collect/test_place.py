"""Where a letter came from is what its record tells, never where the record was found."""

from datetime import timedelta

import pytest

from redrive.collect.reading import Reader
from redrive.formats import onex
from redrive.formats.told import opened
from redrive.letters import Headers, HeaderValue, LetterState, Message, Origin
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, StrategyOptions
from redrive.testing import ManualClock, a_failure
from redrive.transports import Publication, Source, Target
from tests.unit.recover.cycle import World

FOUND = Origin(
    transport="kafka", source="orders-dlt", partition=1, offset=99, consumer_group="redrive.orders-dlt"
)


@pytest.mark.parametrize(
    ("headers", "place"),
    [
        (
            {
                "kafka_dlt-original-topic": b"orders",
                "kafka_dlt-original-partition": b"\x00\x00\x00\x07",
                "kafka_dlt-original-offset": b"\x00\x00\x00\x00\x00\x00\x00\x2a",
                "kafka_dlt-original-consumer-group": b"shop",
            },
            ("orders", 7, 42, "shop"),
        ),
        ({"topic_poisoned": b"orders"}, ("orders", None, None, None)),  # it tells no more than the topic
        ({}, ("orders-dlt", 1, 99, None)),  # all that is known is where it lies
    ],
)
def test_partition_offset_and_group_are_those_of_the_source(
    headers: dict[str, HeaderValue], place: tuple[str, int | None, int | None, str | None]
) -> None:
    told, message = opened(Message(body=b"x", headers=Headers(headers)), FOUND.source)

    letter = Reader(Classifier(), Redactor(), StrategyOptions()).letter(
        message, told, found=FOUND, key="k", now=ManualClock().now()
    )

    origin = letter.origin
    assert (origin.source, origin.partition, origin.offset, origin.consumer_group) == place
    assert origin.dead_letter_source == "orders-dlt"


async def test_a_redrive_that_died_again_within_an_onex_record_returns_to_its_letter() -> None:
    # Given a letter that was sent back
    world = World()
    await world.open()
    dead = Headers({"topic_poisoned": b"orders", "reason_poisoned": b"connection refused"})
    await world.transport.publish([Publication(Message(body=b"x", headers=dead), Target(name="orders.dlq"))])
    await world.collect()
    world.clock.advance(timedelta(days=1))
    await world.worker.turn()
    (sent,) = await (await world.transport.receiver(Source(name="orders", window=1))).receive()

    # When its consumer writes its next death as ONEX does, with the message within
    record = onex.write(
        sent.message,
        sent.origin,
        a_failure(),
        onex.OnexSender(environment="dev", group="shop"),
        correlation_id="c-1",
        retry_count=3,
        message_id="m-1",
        now=world.clock.now(),
    )
    again = Message(body=record.value, headers=record.headers)
    await world.transport.publish([Publication(again, Target(name="orders.dlq"))])
    await world.collect()

    # Then it is the same letter
    letter = await world.the_letter()
    assert world.collector.counts.returned == 1
    assert (letter.state, letter.error_type) == (LetterState.PENDING, "TimeoutError")
