"""How do records come to us, and how does Kafka hear what is done?

A member of a consumer group has to be asked for records all the time, or it is thrown out. So it lives in a thread of
its own: the thread polls, hands records over in batches, commits, and answers when partitions come and go. It never
waits for a handler; when nobody takes records it pauses partitions and polls on.

The rules: a record is handed over only after a durable note says that it may be delivered (`partitions`); what was
settled is committed before a partition is given up; a partition that is gone is not `alive` before anybody else can
have it. It does not know deliveries, windows or handlers.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from secrets import token_hex
from typing import Final, Protocol, TypeAlias, cast

from confluent_kafka import (
    OFFSET_STORED,
    Consumer,
    KafkaError,
    KafkaException,
    Message as Record,
    TopicPartition,
)

from redrive.errors import TransportError
from redrive.transports.kafka import commits
from redrive.transports.kafka.commits import Note
from redrive.transports.kafka.faults import error_of, translated
from redrive.transports.kafka.partitions import AHEAD, Mark, Partition
from redrive.transports.kafka.references import is_reference, restore
from redrive.transports.kafka.url import BrokerUrl

Tell: TypeAlias = Callable[[str, BaseException | None], None]
Where: TypeAlias = tuple[str, int]
BATCH: Final = 500  # records that are asked for at once, as a rule
MOST: Final = 4000  # and where there is plenty
_SMALLEST: Final = 8  # and where they are large
_BATCH_BYTES: Final = 8 * 1024 * 1024
_TICK: Final = 0.05  # seconds that a poll waits
_MOMENT: Final = 0.002  # seconds
_PATIENCE: Final = 3.0  # seconds that the last commit may take, and the first question
_FULL_FOR: Final = 20  # ticks after which partitions are paused rather than left waiting
_NOTE: Final = 3500  # characters; brokers take 4096 as a rule


class Settled(Protocol):
    """A record of a partition."""

    @property
    def partition(self) -> Partition:
        """Where it came from."""

    @property
    def offset(self) -> int:
        """Its place there."""


class Taker(Protocol):
    """Who takes the records. All of it is called in the intake's thread."""

    def is_full(self) -> bool:
        """Whether it has enough for now."""

    def room(self) -> int:
        """How many records it could hand out at once."""

    def arrived(self, partition: Partition, records: Sequence[Record]) -> None:
        """These are claimed: they may be handed out."""

    def gone(self, partitions: Sequence[Partition]) -> None:
        """These are no longer ours."""

    def failed(self, error: TransportError) -> None:
        """Nothing will come any more, unless it is begun anew."""


class Intake:
    """One member of a consumer group."""

    def __init__(
        self,
        url: BrokerUrl,
        group: str,
        topics: Sequence[str],
        taker: Taker,
        tell: Tell,
        log: logging.Logger,
        *,
        forgives: bool = False,
    ) -> None:
        self._forgives = forgives
        self.lock = threading.Lock()  # of the partitions
        self.partitions: dict[Where, Partition] = {}
        self._url = url
        self._group = group
        self._topics = list(topics)
        self._taker = taker
        self._tell = tell
        self._log = log
        self._owner = token_hex(3)
        self._former: dict[Where, Partition] = {}  # lost, and perhaps ours again before anybody else had them
        self._fetched: dict[Where, list[Record]] = {}  # not handed over yet
        self._in_flight: dict[Where, Mark] = {}
        self._paused: set[Where] = set()
        self._unread: set[Where] = set()  # ours, but the broker has not told yet what was committed
        self._note_room = _NOTE
        self._most = max(_SMALLEST, min(MOST, url.gap // 4))  # what is under way when a partition is paused
        self.batch = min(BATCH, self._most)
        self._last_commit = 0.0
        self._interval = url.commit_interval.total_seconds()
        self._full_for = 0
        self._is_held = False
        self._metadata: object = None
        self._is_resting = False
        self.waits_for_room = False  # each record that comes next is claimed when it can be handed out
        self._is_quiet = False  # takes no more records
        self._is_leaving = False
        self._wake = threading.Event()
        self._consumer = Consumer(
            {**url.consumer(), "group.id": group, "on_commit": self._committed, "error_cb": self._heard},
            logger=log,
        )
        self.thread = threading.Thread(target=self._live, name=f"redrive-kafka-{topics[0]}", daemon=True)

    def start(self) -> None:
        """Join the group; records come as soon as it has given us partitions."""
        self.thread.start()

    # --- what the loop asks for ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is room again. To be called when it matters, not for each record: a thread is dear to wake."""
        if self._is_resting:
            self._wake.set()

    def be_quiet(self) -> None:
        """Take no more records; what is out can still be settled."""
        self._is_quiet = True
        self._wake.set()

    def leave(self) -> None:
        """Commit what is done and leave the group; the thread then ends."""
        self._is_leaving = True
        self._wake.set()

    def partitions_of(self, topic: str) -> list[Partition]:
        """Those that are ours; to be asked for under the lock."""
        return [partition for partition in self.partitions.values() if partition.topic == topic]

    @contextlib.contextmanager
    def no_commits(self) -> Iterator[object]:
        """For as long as a transaction commits; it is given what it needs to know of this member."""
        self._is_held = True
        try:
            yield self._metadata
        finally:
            self._is_held = False

    def if_settled(self, deliveries: Sequence[Settled]) -> list[TopicPartition] | None:
        """What a transaction has to commit if these are to be done; None if one of them is not ours any more."""
        found: dict[Where, list[int]] = {}
        with self.lock:
            for delivery in deliveries:
                partition = delivery.partition
                where = (partition.topic, partition.number)
                if self.partitions.get(where) is not partition:
                    return None
                found.setdefault(where, []).append(delivery.offset)
            marks = {
                where: mark
                for where, offsets in found.items()
                if (mark := self.partitions[where].if_settled(offsets)) is not None
            }
        return self._places(marks)

    # --- the thread ----------------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            self._consumer.subscribe(
                self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            while not self._is_leaving:
                self._turn()
        except KafkaException as error:
            self._taker.failed(translated(error_of(error)))
        except Exception as error:  # noqa: BLE001  # whoever waits for records must hear that none will come
            self._taker.failed(TransportError(f"the intake of group '{self._group}' has failed: {error!r}"))
        finally:
            self._end()

    def _turn(self) -> None:
        self._commit_if_due()
        self._mind_the_gaps()
        # For room: those that may have been delivered before are claimed when they can go out.
        waits = bool(self._fetched) and not self._in_flight
        if self._is_quiet or waits or self._taker.is_full():
            self._rest(waits=waits)
            return
        if sum(map(len, self._fetched.values())) >= self.batch:
            self._await_claims()
            return
        if self._full_for:
            self._full_for = 0
            self._mind_the_gaps()
        records = self._consumer.consume(self.batch, 0)
        if not records:  # a poll waits for the first one only, a consume for all that it was asked for
            first = self._consumer.poll(_TICK)
            records = [] if first is None else [first]
        if records:
            self._took(records)
            self._fit_batch(records)

    def _fit_batch(self, records: Sequence[Record]) -> None:
        """Larger batches while there is plenty: each costs a turn of the interpreter's lock, which is dear."""
        fits = _BATCH_BYTES // max(1, len(records[0]))  # as large as the first, the others may be
        wanted = 2 * self.batch if len(records) == self.batch else BATCH
        self.batch = max(_SMALLEST, min(wanted, self._most, fits))

    def _await_claims(self) -> None:
        """Enough has been fetched that is not claimed yet: do not fetch more before the broker has answered."""
        self._wake.wait(_MOMENT)
        if (record := self._consumer.poll(0)) is not None:
            self._took([record])

    def _rest(self, *, waits: bool) -> None:
        """Nobody wants records: wait for that to change, and go on polling, which is what keeps us in the group."""
        self._full_for += 1
        self._is_resting, self.waits_for_room = True, waits
        # It may have changed just before we said that we rest.
        if self._is_quiet or self._taker.is_full() or (waits and self._taker.room() <= 0):
            self._wake.wait(_TICK)
        self._is_resting = self.waits_for_room = False
        self._wake.clear()
        if self._is_leaving or not (self._is_quiet or waits or self._taker.is_full()):
            return  # records are asked for next, which is a poll as well
        if (record := self._consumer.poll(0)) is not None:
            self._took([record])

    def _took(self, records: Sequence[Record]) -> None:
        """Sort what has come by partition. They come in runs, so that nothing is looked at in Python for each."""
        others: list[Record] = []
        if any(map(Record.error, records)):
            others = [record for record in records if record.error() is not None]
            records = [record for record in records if record.error() is None]
        found: dict[Where, list[Record]] = {}
        for _, run in groupby(records, Record.partition if len(self._topics) == 1 else _where):
            some = list(run)
            found.setdefault(_where(some[0]), []).extend(some)
        for where, some in found.items():
            if where in self._unread:
                self._read_now(where, some[0].offset() or 0)
                continue
            with self.lock:
                partition = self.partitions.get(where)
                if partition is None:
                    continue  # no longer ours
                left = self._without_done(partition, some)
            if left:
                self._fetched.setdefault(where, []).extend(left)
        for record in others:
            self._not_a_record(record)  # the end of a partition lies behind the records that came with it
        self._hand_over()

    def _not_a_record(self, record: Record) -> None:
        """The end of a partition, or an error."""
        error, where = record.error(), _where(record)
        if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            with self.lock:
                partition = self.partitions.get(where)
                if partition is not None:
                    partition.reached(record.offset() or 0)
        else:
            self._heard(error)

    def _without_done(self, partition: Partition, records: list[Record]) -> list[Record]:
        offsets = cast("list[int]", list(map(Record.offset, records)))  # whatever has come has one
        known = partition.take(offsets)
        if known:
            records = records[known:]
        if records and partition.was_told_of(offsets[known]):
            return [record for record in records if not partition.is_done(record.offset() or 0)]
        return records

    def _hand_over(self) -> None:
        """Give the taker what is claimed; claim what is not."""
        for where, records in list(self._fetched.items()):
            partition = self.partitions.get(where)
            if partition is None:
                del self._fetched[where]
                continue
            claimed = partition.claimed if self._url.counts else (records[-1].offset() or 0) + 1
            if (records[-1].offset() or 0) < claimed:
                ready, left = records, []
            else:
                ready = [record for record in records if (record.offset() or 0) < claimed]
                left = records[len(ready) :]
            ready, early = self._restored(ready)
            if early or left:
                self._fetched[where] = early + left
            else:
                del self._fetched[where]
            if ready:
                self._taker.arrived(partition, ready)
        if self._fetched:
            self._commit()

    def _restored(self, records: list[Record]) -> tuple[list[Record], list[Record]]:
        """The records with values that were too large to be copied; and those that cannot be had at the moment."""
        if all(map(Record.value, records)):  # as a rule: then none of them needs to be looked at
            return records, []
        for at, record in enumerate(records):
            if record.value() is None and is_reference(record) and not restore(record, self._url, self._log):
                return records[:at], records[at:]
        return records, []

    # --- committing ----------------------------------------------------------------------------------------------

    def _commit_if_due(self) -> None:
        now = time.monotonic()
        if self._fetched:
            self._hand_over()
        if now - self._last_commit >= self._interval or self._is_short_of_claims():
            self._last_commit = now
            self._commit()

    def _commit(self) -> None:
        """Write down what is done, and claim what waits to be handed over. One commit is under way at a time."""
        if self._in_flight or self._is_held:
            return
        if self._url.transactions:
            self._metadata = self._consumer.consumer_group_metadata()
        marks: dict[Where, Mark] = {}
        with self.lock:
            for where, partition in self.partitions.items():
                wanted = self._to_be_claimed(where, partition)
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

    def _to_be_claimed(self, where: Where, partition: Partition) -> int:
        if not self._url.counts:
            return partition.claimed
        records = self._fetched.get(where)
        if records is None:
            return partition.claimed + self._ahead if self._runs_short(partition) else partition.claimed
        first = records[0].offset() or 0
        if partition.is_doubted(first):
            at_once = records[: self._taker.room()]
            return (at_once[-1].offset() or 0) + 1 if at_once else partition.claimed
        return (records[-1].offset() or 0) + 1 + self._ahead

    @property
    def _ahead(self) -> int:
        """How many offsets are claimed at once: more where records come in plenty, so that none waits for its claim."""
        return AHEAD * self.batch

    def _runs_short(self, partition: Partition) -> bool:
        """Whether it is time to claim more, before what is claimed is used up; not where each is claimed by itself."""
        position = partition.position
        return position is not None and 0 < partition.claimed - position < self._ahead // 2

    def _is_short_of_claims(self) -> bool:
        return self._url.counts and any(map(self._runs_short, self.partitions.values()))

    def _places(self, marks: dict[Where, Mark]) -> list[TopicPartition]:
        return [
            TopicPartition(
                topic, number, mark.offset, commits.write(Note(self._owner, mark.runs), self._note_room)
            )
            for (topic, number), mark in marks.items()
        ]

    def _committed(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        """Called by librdkafka in a poll, when the broker has answered."""
        failed = error or next((place.error for place in places if place.error is not None), None)
        if failed is not None:
            self._not_committed(failed)
            return
        marks, self._in_flight = self._in_flight, {}
        with self.lock:
            for where, mark in marks.items():
                partition = self.partitions.get(where)
                if partition is not None:
                    partition.claimed = max(partition.claimed, mark.claimed)
        self._hand_over()

    def _not_committed(self, error: KafkaError) -> None:
        marks, self._in_flight = self._in_flight, {}
        with self.lock:
            for where in marks:
                if where in self.partitions:
                    self.partitions[where].is_changed = True
        if error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE:
            self._note_room //= 2
        elif error.code() not in _PASSING:
            self._tell(
                f"offsets of group '{self._group}' could not be committed; tried again", translated(error)
            )

    # --- partitions come and go ------------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        if not places:
            return
        known = self._committed_before(places)
        begin: list[TopicPartition] = []
        with self.lock:
            for place in places:
                where = (place.topic, place.partition)
                if where in known:
                    partition = self._begun(where, known[where])
                else:
                    partition = Partition(*where, None, forgives=self._forgives)
                    self._unread.add(where)
                self.partitions[where] = partition
                mark = partition.mark
                begin.append(TopicPartition(*where, OFFSET_STORED if mark is None else mark))
        consumer.incremental_assign(begin)
        consumer.resume(begin)  # librdkafka remembers that a partition was paused when it was ours before

    def _committed_before(self, places: list[TopicPartition]) -> dict[Where, TopicPartition]:
        """What was committed for them, as far as it can be told: not while a transaction over it is open."""
        with contextlib.suppress(KafkaException):
            found = self._consumer.committed(places, timeout=_PATIENCE)
            return {(place.topic, place.partition): place for place in found if place.error is None}
        return {}

    def _read_now(self, where: Where, first: int) -> None:
        """Records have come, so that what was committed can be told by now. Ask, and let them come again."""
        place = self._committed_before([TopicPartition(*where)]).get(where)
        if place is not None:
            partition = self._begun(where, place)
            with self.lock:
                self.partitions[where] = partition
            self._unread.discard(where)
            first = first if partition.mark is None else partition.mark
        self._consumer.seek(TopicPartition(*where, first))

    def _begun(self, where: Where, place: TopicPartition) -> Partition:
        """A partition as it was left: by whoever had it, or by ourselves if nobody had it since."""
        former = self._former.pop(where, None)
        if place.offset < 0:
            return Partition(*where, None, forgives=self._forgives)
        note = commits.read(place.metadata)
        if former is not None and note.owner == self._owner:
            mark = former.exact(counting=True)
            if mark is not None:
                partition = Partition(*where, mark.offset, mark.runs)  # here nothing is in doubt
                partition.is_changed = True  # we know more than was committed
                return partition
        return Partition(*where, place.offset, note.runs, forgives=self._forgives)

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Somebody else is to have them: what was done is written down first. It is nobody's fault, so none counts."""
        self._give_up(consumer, self._taken_away(places), counting=False)

    def _lost(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        """We were thrown out, or nobody has answered for too long: it is too late to write anything."""
        gone = self._taken_away(places)
        for partition in gone:
            self._former[partition.topic, partition.number] = partition
        self._taker.gone(gone)

    def _taken_away(self, places: Sequence[TopicPartition]) -> list[Partition]:
        gone: list[Partition] = []
        with self.lock:
            for place in places:
                where = (place.topic, place.partition)
                partition = self.partitions.pop(where, None)
                self._fetched.pop(where, None)
                self._in_flight.pop(where, None)
                self._paused.discard(where)
                self._unread.discard(where)
                if partition is not None:
                    partition.alive = False
                    gone.append(partition)
        return gone

    def _give_up(self, consumer: Consumer, gone: Sequence[Partition], *, counting: bool) -> None:
        marks = {
            (partition.topic, partition.number): mark
            for partition in gone
            if (mark := partition.exact(counting=counting)) is not None
        }
        if marks:
            try:
                consumer.commit(offsets=self._places(marks), asynchronous=False)
            except KafkaException as error:
                self._tell(
                    f"group '{self._group}': what was done could not be committed, and comes again",
                    translated(error_of(error)),
                )
        self._taker.gone(gone)

    def _mind_the_gaps(self) -> None:
        """Pause partitions of which too much waits behind one record, and all of them where nobody takes any."""
        full = self._full_for > _FULL_FOR or self._is_quiet
        pause, resume = [], []
        for where, partition in self.partitions.items():
            # Of a retry topic, the first few are those that are due first.
            widest = self._url.gap if where[0] == self._topics[0] else min(self._url.gap, BATCH)
            too_wide = partition.gap > (widest // 2 if where in self._paused else widest)
            if full or too_wide:
                if where not in self._paused:
                    pause.append(where)
            elif where in self._paused:
                resume.append(where)
        if pause:
            self._consumer.pause([TopicPartition(*where) for where in pause])
            self._paused.update(pause)
        if resume:
            self._consumer.resume([TopicPartition(*where) for where in resume])
            self._paused.difference_update(resume)

    def _heard(self, error: KafkaError | None) -> None:
        if error is not None and error.code() not in _PASSING:
            self._tell(f"group '{self._group}'", translated(error))

    def _end(self) -> None:
        """The last commit, and out of the group."""
        try:
            self._last_words()
        finally:
            with contextlib.suppress(KafkaException, RuntimeError):
                self._consumer.close()
            with self.lock:
                gone = list(self.partitions.values())
                self.partitions.clear()
                for partition in gone:
                    partition.alive = False
            self._taker.gone(gone)

    def _last_words(self) -> None:
        gone = self._taken_away([TopicPartition(*where) for where in list(self.partitions)])
        marks = {
            (partition.topic, partition.number): mark
            for partition in gone
            if (mark := partition.exact(counting=True)) is not None
        }
        self._taker.gone(gone)
        if not marks:
            return
        deadline = time.monotonic() + _PATIENCE
        with contextlib.suppress(KafkaException, RuntimeError):
            while self._in_flight and time.monotonic() < deadline:
                self._consumer.poll(0.01)
            self._in_flight = dict(marks)
            self._consumer.commit(offsets=self._places(marks), asynchronous=True)
            while self._in_flight and time.monotonic() < deadline:
                self._consumer.poll(0.01)


def _where(record: Record) -> Where:
    return record.topic() or "", record.partition() or 0


# What librdkafka gets over by itself, and what it says over and over meanwhile.
_PASSING: Final = frozenset(
    {
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError._WAIT_COORD,  # noqa: SLF001  librdkafka's own codes begin so
        KafkaError._NO_OFFSET,  # noqa: SLF001
        KafkaError._PARTITION_EOF,  # noqa: SLF001
        KafkaError._DESTROY,  # noqa: SLF001
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001
    }
)
