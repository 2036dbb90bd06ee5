"""Whatever librdkafka gives, in whatever order: records reach their taker by partition, whole and in order."""

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaError, Message as Record
from hypothesis import given, strategies as st

from redrive.errors import TransportError
from redrive.transports.kafka.commits import DONE, Run
from redrive.transports.kafka.intake import Intake
from redrive.transports.kafka.partitions import Partition
from redrive.transports.kafka.url import parse_url

TOPICS = ("orders", "orders.retry.1s")
Where = tuple[str, int]
places = st.tuples(st.sampled_from(TOPICS), st.integers(0, 2))
values = st.sampled_from([b"x", b"", None])
steps = st.lists(st.tuples(places, values, st.booleans()), max_size=40)


class Taker:
    """One that takes everything and remembers it."""

    def __init__(self) -> None:
        self.came: dict[Where, list[tuple[int, bytes | None]]] = {}

    def is_full(self) -> bool:
        return False

    def room(self) -> int:
        return 1

    def arrived(self, partition: Partition, records: Sequence[Record]) -> None:
        into = self.came.setdefault((partition.topic, partition.number), [])
        into += [(record.offset() or 0, record.value()) for record in records]

    def gone(self, partitions: Sequence[Partition]) -> None:
        """It forgets nothing."""

    def failed(self, error: TransportError) -> None:
        raise error


@pytest.fixture(scope="module")
def intake() -> Iterator[Intake]:
    """One that is in no group: it is given records by hand, and needs no claims."""
    url = parse_url("kafka://127.0.0.1:1/?count_deliveries=false")
    made = Intake(url, "g", TOPICS, Taker(), lambda _what, _error: None, logging.getLogger("test"))
    yield made
    made._consumer.close()


def given_by(
    intake: Intake, topics: Sequence[str], partitions: dict[Where, Partition], batches: Sequence[list[Record]]
) -> dict[Where, list[tuple[int, bytes | None]]]:
    """What a taker gets of these batches."""
    taker = Taker()
    intake._taker, intake._topics, intake.holdings.partitions = taker, list(topics), partitions
    for batch in batches:
        intake._took(batch)
    return taker.came


@given(st.lists(steps, max_size=4), st.sampled_from([TOPICS, TOPICS[:1]]))
def test_records_reach_their_taker_by_partition_and_in_order_with_errors_among_them(
    intake: Intake, batches: list[list[tuple[Where, bytes | None, bool]]], topics: Sequence[str]
) -> None:
    partitions = {(topic, number): Partition(topic, number, 0) for topic in topics for number in range(2)}
    expected: dict[Where, list[tuple[int, bytes | None]]] = {}
    ends: dict[Where, int] = {}
    sent: list[list[Record]] = []
    for batch in batches:
        sent.append([])
        for where, value, at_end in batch:
            if where[0] not in topics:
                continue
            offset = ends.get(where, 0)
            if at_end:
                end = KafkaError(KafkaError._PARTITION_EOF)
                sent[-1].append(Record(topic=where[0], partition=where[1], offset=offset, error=end))
                continue
            sent[-1].append(Record(topic=where[0], partition=where[1], offset=offset, value=value))
            ends[where] = offset + 1
            if where in partitions:  # the third one is not ours
                expected.setdefault(where, []).append((offset, value))

    assert given_by(intake, topics, partitions, sent) == expected
    assert all(partition.position == ends.get(where, 0) for where, partition in partitions.items())


@given(
    st.lists(st.sampled_from([1, DONE]), max_size=12), st.lists(st.integers(1, 5), min_size=1, max_size=12)
)
def test_what_a_note_calls_done_does_not_reach_the_taker_and_everything_else_does(
    intake: Intake, counts: list[int], sizes: list[int]
) -> None:
    partition = Partition("orders", 0, 100, [Run(1, count) for count in counts])
    ends = [100 + sum(sizes[:at]) for at in range(len(sizes) + 1)]
    batches = [
        [Record(topic="orders", partition=0, offset=offset, value=b"x") for offset in range(begin, end)]
        for begin, end in pairwise(ends)
    ]

    came = given_by(intake, TOPICS[:1], {("orders", 0): partition}, batches)

    done = {100 + at for at, count in enumerate(counts) if count == DONE}
    assert [offset for offset, _ in came.get(("orders", 0), [])] == [
        offset for offset in range(100, ends[-1]) if offset not in done
    ]


def test_end_of_a_partition_does_not_count_for_records_that_come_again(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they would be committed before they were handed out."""
    where = ("orders", 0)
    end = Record(topic="orders", partition=0, offset=2, error=KafkaError(KafkaError._PARTITION_EOF))
    records = [Record(topic="orders", partition=0, offset=offset, value=b"x") for offset in range(2)]
    partition = Partition("orders", 0, None)
    monkeypatch.setattr(intake.holdings, "_unread", {where})
    monkeypatch.setattr(intake.holdings, "read", lambda *_: intake.holdings._unread.discard(where))

    assert given_by(intake, TOPICS[:1], {where: partition}, [[end], [*records, end]]) == {}
    assert partition.mark is None
    assert len(given_by(intake, TOPICS[:1], {where: partition}, [[*records, end]])[where]) == 2
    assert partition.mark == 0


class Out(NamedTuple):
    """A record that is out."""

    partition: Partition
    offset: int


def test_a_transaction_has_nothing_to_commit_for_a_partition_that_is_somebody_elses(intake: Intake) -> None:
    """Else it would commit the dead letter without the offset, and the next member would write it a second time."""
    ours, other = Partition("orders", 0, 0), Partition("orders", 1, 0)
    for partition in (ours, other):
        partition.take([0, 1])
        partition.handed_out(0)
    holdings, ledger = intake.holdings, intake.ledger
    holdings.partitions = {("orders", 0): ours, ("orders", 1): other}
    [place] = ledger.if_settled([Out(ours, 0)]) or []
    assert (place.topic, place.partition, place.offset) == ("orders", 0, 1)
    del holdings.partitions["orders", 1]
    assert ledger.if_settled([Out(ours, 0), Out(other, 0)]) is None, "revoked"
    holdings.partitions["orders", 1] = Partition("orders", 1, 0)
    assert ledger.if_settled([Out(other, 0)]) is None, "revoked, and given back to us from its mark on"
