"""How does Kafka hear what is done?

What is done and what may be handed out next is written in one commit for all partitions, and one commit is under way
at a time: it is sent, polling goes on, and librdkafka calls back in a poll when the broker has answered. A transaction
commits by itself, and holds the others back meanwhile.

The rules: a record is handed over only after a durable note says that it may be delivered (`partitions`); what was
settled is committed before a partition is given up.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from redrive.transports.kafka import commits
from redrive.transports.kafka.commits import Note
from redrive.transports.kafka.faults import PASSING, error_of, translated
from redrive.transports.kafka.holdings import Holdings, Where
from redrive.transports.kafka.partitions import Mark, Partition
from redrive.transports.telling import Tell

_PATIENCE: Final = 3.0  # seconds that the last commit may take
_NOTE: Final = 3500  # characters; brokers take 4096 as a rule


class Settled(Protocol):
    """A record of a partition."""

    @property
    def partition(self) -> Partition:
        """Where it came from."""

    @property
    def offset(self) -> int:
        """Its place there."""


class Ledger:
    """The commits of one member."""

    def __init__(
        self, consumer: Consumer, holdings: Holdings, group: str, tell: Tell, *, transactions: bool
    ) -> None:
        self._consumer = consumer
        self._holdings = holdings
        self._group = group
        self._tell = tell
        self._transactions = transactions
        self._in_flight: dict[Where, Mark] = {}
        self._note_room = _NOTE
        self._is_held = False
        self._metadata: object = None

    @property
    def is_waiting(self) -> bool:
        """Whether the broker has not answered yet."""
        return bool(self._in_flight)

    # --- as a rule -----------------------------------------------------------------------------------------------

    def commit(self, claims: Callable[[Where, Partition], int]) -> None:
        """Write down what is done, and claim records up to the offset that `claims` tells for a partition."""
        if self._in_flight or self._is_held:
            return
        if self._transactions:
            self._metadata = self._consumer.consumer_group_metadata()
        marks: dict[Where, Mark] = {}
        with self._holdings.lock:
            for where, partition in self._holdings.partitions.items():
                wanted = claims(where, partition)
                if wanted > partition.claimed or partition.is_changed:
                    mark = partition.claim(wanted)
                    if mark is not None:
                        marks[where] = mark
                        partition.is_changed = False
        if not marks:
            return
        self._in_flight = marks
        try:
            self._consumer.commit(offsets=self._places(marks), asynchronous=True)
        except KafkaException as error:
            self._not_committed(error_of(error))

    def answered(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> bool:
        """Whether what is under way is committed, by the broker's answer."""
        failed = error or next((place.error for place in places if place.error is not None), None)
        if failed is not None:
            self._not_committed(failed)
            return False
        marks, self._in_flight = self._in_flight, {}
        with self._holdings.lock:
            for where, mark in marks.items():
                partition = self._holdings.partitions.get(where)
                if partition is not None:
                    partition.claimed = max(partition.claimed, mark.claimed)
        return True

    def _not_committed(self, error: KafkaError) -> None:
        marks, self._in_flight = self._in_flight, {}
        with self._holdings.lock:
            for where in marks:
                if where in self._holdings.partitions:
                    self._holdings.partitions[where].is_changed = True
        if error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
            self._note_room //= 2
        elif error.code() not in PASSING:
            self._tell(f"offset commit failed, retrying group={self._group}", translated(error))

    def _places(self, marks: Mapping[Where, Mark]) -> list[TopicPartition]:
        owner, room = self._holdings.owner, self._note_room
        return [
            TopicPartition(topic, number, mark.offset, commits.write(Note(owner, mark.runs), room))
            for (topic, number), mark in marks.items()
        ]

    # --- for transactions ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def held(self) -> Iterator[object]:
        """No commits for as long as a transaction commits; it is given what it needs to know of this member."""
        self._is_held = True
        try:
            yield self._metadata
        finally:
            self._is_held = False

    def if_settled(self, deliveries: Sequence[Settled]) -> list[TopicPartition] | None:
        """What a transaction has to commit if these are to be done; None if one of them is not ours any more."""
        found: dict[Where, list[int]] = {}
        ours = self._holdings.partitions
        with self._holdings.lock:
            for delivery in deliveries:
                partition = delivery.partition
                where = (partition.topic, partition.number)
                if ours.get(where) is not partition:
                    return None
                found.setdefault(where, []).append(delivery.offset)
            marks = {
                where: mark
                for where, offsets in found.items()
                if (mark := ours[where].if_settled(offsets)) is not None
            }
        return self._places(marks)

    # --- when partitions go --------------------------------------------------------------------------------------

    def forget(self, places: Sequence[TopicPartition]) -> None:
        """The answer for these matters no more."""
        for place in places:
            self._in_flight.pop((place.topic, place.partition), None)

    def give_up(self, gone: Sequence[Partition]) -> None:
        """Write down what was done of these, and wait for it: somebody else is to have them.

        It is nobody's fault, so that none of their deliveries counts.
        """
        marks = _exact(gone, counting=False)
        if not marks:
            return
        try:
            self._consumer.commit(offsets=self._places(marks), asynchronous=False)
        except KafkaException as error:
            self._tell(
                f"offset commit failed, processed messages will be delivered again group={self._group}",
                translated(error_of(error)),
            )

    def last_words(self, gone: Sequence[Partition]) -> None:
        """Write down what was done of these at the end, and how often the others were delivered."""
        marks = _exact(gone, counting=True)
        if not marks:
            return
        deadline = time.monotonic() + _PATIENCE
        with contextlib.suppress(KafkaException, RuntimeError):
            self._answers_until(deadline)
            self._in_flight = marks
            self._consumer.commit(offsets=self._places(marks), asynchronous=True)
            self._answers_until(deadline)

    def _answers_until(self, deadline: float) -> None:
        while self._in_flight and time.monotonic() < deadline:
            self._consumer.poll(0.01)


def _exact(gone: Sequence[Partition], *, counting: bool) -> dict[Where, Mark]:
    return {
        (partition.topic, partition.number): mark
        for partition in gone
        if (mark := partition.exact(counting=counting)) is not None
    }
