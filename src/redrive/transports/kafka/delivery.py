"""What is one delivery of Kafka?

A record, and the partition it came from. It is made once per record on the hot path, so it holds the record as
librdkafka gave it and decodes when it is asked. The rule: `message` and `origin` are what the producer sent and where
he sent it; a record that waited in a retry topic tells of itself as if it had never been there.
"""

import struct
from abc import ABCMeta
from typing import Any, Final

import msgspec
from confluent_kafka import Message as Record

from redrive.letters import Message, Origin
from redrive.letters.redrive import ID, Redrive, redrive_of
from redrive.transports.base import RUNNING, Delivery
from redrive.transports.kafka.headers import Pair, content_type_of, message_of, pairs_of
from redrive.transports.kafka.journey import WAY, Journey, journey_of
from redrive.transports.kafka.partitions import Partition

NAME: Final = "kafka"
_TRACE: Final = struct.Struct("<Biq")
_write_trace: Final = _TRACE.pack_into


class Place:
    """Where the deliveries of a receiver come from: the same for all of them."""

    __slots__ = ("broker", "group", "source")

    def __init__(self, source: str, group: str, broker: str) -> None:
        self.source = source
        self.group = group
        self.broker = broker


class _Kind(msgspec.StructMeta, ABCMeta):
    """Of deliveries that are structs, which are made in C."""


class KafkaDelivery(Delivery, msgspec.Struct, metaclass=_Kind, gc=False, eq=False):
    """One record handed to us. Nothing that it refers to refers back, so the garbage collector need not look at it."""

    record: Record
    partition: Partition
    place: Place
    offset: int  # in the topic it came from, which may be a retry topic
    delivery_count: int
    body: bytes | None
    settled: bool = False
    _message: Message | None = None

    @property
    def pairs(self) -> list[Pair]:
        """Its headers as they stand in the record."""
        return pairs_of(self.record)

    @property
    def message(self) -> Message:
        """The message as its producer sent it."""
        if self._message is None:
            self._message = message_of(self.record, self.pairs)
        return self._message

    @property
    def content_type(self) -> str | None:
        """What its producer says the body is."""
        return content_type_of(self.pairs) if self.record.headers() else None

    @property
    def redrive(self) -> Redrive | None:
        """Which dead letter it is a redrive of; told by a look at the headers for most, which are none."""
        if self.record.headers() and any(name == ID for name, _ in self.pairs):
            return redrive_of(self.message.headers)
        return None

    @property
    def born(self) -> tuple[int, int]:
        """The partition and the offset where its producer put it."""
        return self.partition.number, self.offset

    @property
    def origin(self) -> Origin:
        """Where it came from."""
        partition, offset = self.born
        return Origin(
            transport=NAME,
            source=self.place.source,
            partition=partition,
            offset=offset,
            consumer_group=self.place.group,
            endpoint=self.place.broker,
        )

    def write_trace(self, buffer: Any, at: int) -> None:
        """Partition and offset."""
        _write_trace(buffer, at, RUNNING, self.partition.number, self.offset)

    def has_trace(self, trace: bytes) -> bool:
        """Partition and offset are those of the trace."""
        return _TRACE.unpack_from(trace)[1:] == self.born

    @property
    def alive(self) -> bool:
        """Whether it can still be settled: it was not yet, and its partition is ours."""
        return not self.settled and self.partition.alive

    @property
    def key(self) -> str:
        """Topic, partition and offset: where its producer put it."""
        partition, offset = self.born
        return f"{self.place.source}/{partition}/{offset}"


class WaitedDelivery(KafkaDelivery):
    """One that has waited in a retry topic, and tells of where it was before."""

    journey: Journey = Journey()

    def __post_init__(self) -> None:
        """Its way stands in its headers."""
        self.journey = journey_of(self.pairs)
        self.delivery_count += self.journey.deliveries

    @property
    def message(self) -> Message:
        """The message as its producer sent it."""
        if self._message is None:
            self._message = message_of(self.record, self.pairs, WAY)
        return self._message

    def write_trace(self, buffer: Any, at: int) -> None:
        """The partition and the offset where its producer put it."""
        _write_trace(buffer, at, RUNNING, *self.born)

    @property
    def born(self) -> tuple[int, int]:
        """The partition and the offset where its producer put it."""
        partition, offset = self.journey.partition, self.journey.offset
        return super().born if partition is None or offset is None else (partition, offset)


def delivery_of(record: Record, partition: Partition, place: Place) -> KafkaDelivery:
    """The delivery that comes next of this record."""
    kind = KafkaDelivery if partition.topic == place.source else WaitedDelivery
    offset = record.offset() or 0
    return kind(record, partition, place, offset, partition.count(offset), record.value())
