"""How many records of a topic wait for a group, and which come first?

What waits is what lies between the group's mark and the end of each partition, without what its note calls done. A
member of ours knows more than was committed: what it has settled or has out does not wait. A look takes nothing and
counts for nothing: it belongs to no group.

Offsets that hold no record (of transactions, or where compaction has been) are counted as if they held one.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, Message as Record, TopicPartition

from redrive.transports.kafka import commits
from redrive.transports.kafka.commits import DONE
from redrive.transports.kafka.partitions import Partition
from redrive.transports.kafka.topics import Topics
from redrive.transports.kafka.url import BrokerUrl

_POLL: Final = 0.1  # seconds


class Waiting(NamedTuple):
    """What waits in a partition: from here to there, apart from some."""

    begin: int
    end: int
    done: frozenset[int]

    @property
    def total(self) -> int:
        """How many offsets wait."""
        return max(0, self.end - self.begin - len(self.done))


async def waiting(topics: Topics, group: str, topic: str) -> dict[int, Waiting]:
    """What waits for a group, by partition."""
    numbers = await topics.partitions(topic)
    ends = await topics.ends(topic, numbers)
    committed = await topics.committed(group, topic, numbers)
    return {number: _waiting(*ends[number], committed.get(number)) for number in numbers}


def _waiting(first: int, end: int, committed: TopicPartition | None) -> Waiting:
    begin = first if committed is None else max(first, committed.offset)
    done: list[int] = []
    if committed is not None:
        at = committed.offset
        for length, count in commits.read(committed.metadata).runs:
            if count == DONE:
                done += range(max(at, begin), min(at + length, end))
            at += length
    return Waiting(begin, end, frozenset(done))


def not_waiting(found: Mapping[int, Waiting], partitions: Iterable[Partition]) -> int:
    """How many of those that seem to wait are out with us, or settled and not committed yet."""
    known = 0
    for partition in partitions:
        seen = found.get(partition.number)
        if seen is not None and partition.mark is not None:
            known += max(0, min(partition.mark, seen.end) - seen.begin) + partition.settled + partition.out
            known -= len(seen.done)
    return known


def first_records(
    url: BrokerUrl, topic: str, found: Mapping[int, Waiting], count: int, log: logging.Logger
) -> list[Record]:
    """The first records of those that wait; blocks for as long as the broker takes."""
    consumer = Consumer({**url.consumer(), "group.id": f"redrive-look-{uuid4()}"}, logger=log)
    left = {number: seen for number, seen in found.items() if seen.total}
    taken: dict[int, list[Record]] = {number: [] for number in left}
    deadline = time.monotonic() + url.connect_timeout.total_seconds()
    try:
        consumer.assign([TopicPartition(topic, number, seen.begin) for number, seen in left.items()])
        while left and time.monotonic() < deadline:
            for record in consumer.consume(count, _POLL):
                _sort(record, left, taken, count)
    finally:
        consumer.close()
    return [record for number in sorted(taken) for record in taken[number]][:count]


def _sort(record: Record, left: dict[int, Waiting], taken: dict[int, list[Record]], count: int) -> None:
    number = record.partition()
    if number is None or number not in left:
        return
    seen, offset = left[number], record.offset() or 0
    if record.error() is None and offset < seen.end and offset not in seen.done:
        taken[number].append(record)
    if record.error() is not None or offset >= seen.end - 1 or len(taken[number]) >= count:
        del left[number]


def one_record(url: BrokerUrl, topic: str, number: int, offset: int, log: logging.Logger) -> Record | None:
    """The record at this place; None if it is no longer there."""
    found = first_records(url, topic, {number: Waiting(offset, offset + 1, frozenset())}, 1, log)
    return found[0] if found else None
