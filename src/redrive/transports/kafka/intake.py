"""How do records come to us?

A member of a consumer group has to be asked for records all the time, or it is thrown out. So it lives in a thread of
its own: the thread polls, hands records over in batches, and answers when partitions come and go. It never waits for a
handler; when nobody takes records it pauses partitions and polls on. Which partitions are ours is kept in `holdings`,
what is committed in the `ledger`.

The rule: a record is handed over only once it is claimed. It does not know deliveries, windows or handlers.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from itertools import groupby
from typing import Final, Protocol, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message as Record, TopicPartition

from redrive.errors import TransportError
from redrive.transports.kafka.faults import PASSING, error_of, translated
from redrive.transports.kafka.holdings import Holdings, Where
from redrive.transports.kafka.ledger import Ledger
from redrive.transports.kafka.partitions import AHEAD, Partition
from redrive.transports.kafka.references import is_reference, restore
from redrive.transports.kafka.url import BrokerUrl
from redrive.transports.telling import Tell

BATCH: Final = 500  # records that are asked for at once, as a rule
MOST: Final = 4000  # and where there is plenty
_SMALLEST: Final = 8  # and where they are large
_BATCH_BYTES: Final = 8 * 1024 * 1024
_TICK: Final = 0.05  # seconds that a poll waits
_MOMENT: Final = 0.002  # seconds
_FULL_FOR: Final = 20  # ticks after which partitions are paused rather than left waiting


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
        self._url = url
        self._group = group
        self._topics = list(topics)
        self._taker = taker
        self._tell = tell
        self._log = log
        self._fetched: dict[Where, list[Record]] = {}  # not handed over yet
        self._paused: set[Where] = set()
        self._most = max(
            _SMALLEST, min(MOST, url.max_offset_gap // 4)
        )  # what is under way when a partition is paused
        self.batch = min(BATCH, self._most)
        self._last_commit = 0.0
        self._interval = url.commit_interval.total_seconds()
        self._full_for = 0
        self._is_resting = False
        self.waits_for_room = False  # each record that comes next is claimed when it can be handed out
        self._is_quiet = False  # takes no more records
        self._is_leaving = False
        self._wake = threading.Event()
        self._consumer = Consumer(
            {**url.consumer(), "group.id": group, "on_commit": self._committed, "error_cb": self._heard},
            logger=log,
        )
        self.holdings = Holdings(forgives=forgives)
        self.ledger = Ledger(self._consumer, self.holdings, group, tell, transactions=url.transactions)
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
        waits = bool(self._fetched) and not self.ledger.is_waiting
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
        unread = {where for where in found if self.holdings.is_unread(where)}
        for where, some in found.items():
            if where in unread:
                self.holdings.read(self._consumer, where, some[0].offset() or 0)
                continue
            with self.holdings.lock:
                partition = self.holdings.partitions.get(where)
                if partition is None:
                    continue  # no longer ours
                left = self._without_done(partition, some)
            if left:
                self._fetched.setdefault(where, []).extend(left)
        for record in others:
            if _where(record) not in unread:  # else its records come again, and the end behind them
                self._not_a_record(record)  # the end of a partition lies behind the records that came with it
        self._hand_over()

    def _not_a_record(self, record: Record) -> None:
        """The end of a partition, or an error."""
        error, where = record.error(), _where(record)
        if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            with self.holdings.lock:
                partition = self.holdings.partitions.get(where)
                if partition is not None and not self.holdings.is_unread(where):
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
            partition = self.holdings.partitions.get(where)
            if partition is None:
                del self._fetched[where]
                continue
            claimed = partition.claimed if self._url.count_deliveries else (records[-1].offset() or 0) + 1
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
            self.ledger.commit(self._to_be_claimed)

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
            self.ledger.commit(self._to_be_claimed)

    def _committed(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        """Called by librdkafka in a poll, when the broker has answered."""
        if self.ledger.answered(error, places):
            self._hand_over()

    def _to_be_claimed(self, where: Where, partition: Partition) -> int:
        if not self._url.count_deliveries:
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
        return self._url.count_deliveries and any(map(self._runs_short, self.holdings.partitions.values()))

    # --- partitions come and go ------------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        if places:
            self.holdings.assigned(consumer, places)

    def _revoked(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        """Somebody else is to have them: what was done is written down first."""
        gone = self._taken_away(places)
        self.ledger.give_up(gone)
        self._taker.gone(gone)

    def _lost(self, _consumer: Consumer, places: list[TopicPartition]) -> None:
        """We were thrown out, or nobody has answered for too long: it is too late to write anything."""
        gone = self._taken_away(places)
        self.holdings.may_return(gone)
        self._taker.gone(gone)

    def _taken_away(self, places: Sequence[TopicPartition]) -> list[Partition]:
        gone = self.holdings.take_away(places)
        self.ledger.forget(places)
        for place in places:
            self._fetched.pop((place.topic, place.partition), None)
            self._paused.discard((place.topic, place.partition))
        return gone

    def _mind_the_gaps(self) -> None:
        """Pause partitions of which too much waits behind one record, and all of them where nobody takes any."""
        full = self._full_for > _FULL_FOR or self._is_quiet
        pause, resume = [], []
        for where, partition in self.holdings.partitions.items():
            # Of a retry topic, the first few are those that are due first.
            widest = (
                self._url.max_offset_gap
                if where[0] == self._topics[0]
                else min(self._url.max_offset_gap, BATCH)
            )
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
        if error is not None and error.code() not in PASSING:
            self._tell(f"kafka client error group={self._group}", translated(error))

    def _end(self) -> None:
        """The last commit, and out of the group."""
        try:
            gone = self._taken_away([TopicPartition(*where) for where in list(self.holdings.partitions)])
            self._taker.gone(gone)
            self.ledger.last_words(gone)
        finally:
            with contextlib.suppress(KafkaException, RuntimeError):
                self._consumer.close()
            self._taker.gone(self.holdings.take_all_away())


def _where(record: Record) -> Where:
    return record.topic() or "", record.partition() or 0
