"""What becomes of a dead letter whose value is too large for the topic of dead letters?

It is written without its value, and says where that lies: topic, partition and offset of the record it was made of,
which stays there for as long as its topic keeps records. Who receives such a dead letter gets the value from there,
and sees no difference. When the record is gone, the dead letter says so for good (`redrive-value-gone`), and is
never sent back: a null in the place of a value would delete something.

The rule: what cannot be asked for at the moment is asked for again; only what is certainly gone is called so.
"""

import logging
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, Message as Record, TopicPartition

from redrive.transports.kafka.faults import error_of
from redrive.transports.kafka.headers import Pair, last_of, pairs_of
from redrive.transports.kafka.looking import one_record
from redrive.transports.kafka.url import BrokerUrl

# `formats.own.strip` takes away what begins so.
VALUE_AT: Final = "redrive-original-value-at"
GONE: Final = "redrive-value-gone"
_SECONDS: Final = 5.0


def reference_to(topic: str, partition: int, offset: int) -> list[Pair]:
    """The header that says where a value lies."""
    return [(VALUE_AT, f"{topic}/{partition}/{offset}".encode())]


def is_reference(record: Record) -> bool:
    """Whether the value of a record lies elsewhere."""
    return last_of(pairs_of(record), VALUE_AT) is not None


def restore(record: Record, url: BrokerUrl, log: logging.Logger) -> bool:
    """Give the record its value, or the word that it is gone; False if that cannot be told at the moment."""
    pairs = pairs_of(record)
    place = last_of(pairs, VALUE_AT) or b""
    where = _place(place)
    if where is not None:
        there = _is_there(url, where, log)
        if there is None:
            return False
        if there:
            found = one_record(url, where.topic, where.partition, where.offset, log)
            if found is None:
                return False
            record.set_value(found.value())
            return True
    kept: Any = [*pairs, (GONE, place)]
    record.set_headers(kept)
    return True


def _place(text: bytes) -> TopicPartition | None:
    parts = text.decode("utf-8", "replace").rsplit("/", 2)
    if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return None
    return TopicPartition(parts[0], int(parts[1]), int(parts[2]))


def _is_there(url: BrokerUrl, where: TopicPartition, log: logging.Logger) -> bool | None:
    """Whether the offset is still within the partition; None if nobody says."""
    consumer = Consumer({**url.consumer(), "group.id": f"redrive-look-{uuid4()}"}, logger=log)
    try:
        low, high = consumer.get_watermark_offsets(where, timeout=_SECONDS)
    except KafkaException as exception:
        gone = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)  # noqa: SLF001
        return False if error_of(exception).code() in gone else None
    finally:
        consumer.close()
    return low <= where.offset < high
