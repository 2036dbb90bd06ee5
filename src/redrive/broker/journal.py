"""How does the broker keep its promises over `kill -9`?

Everything durable that happens is appended to one log, in the order in which it happened: definitions (vhosts,
queues, bindings, …) and messages tell one story, and recovery is reading it again. `records` knows how an event is
written, `segments` how records lie in files, `journal_index` what is alive and where it lies, `journal_recovery` how it
is read again; here is how the log grows, comes to disk, and what of it may be deleted.

Two threads share a journal, and no lock::

    event loop   publish() settle() …  ──►  list of bytes  ──►  flush()   worker thread
                 index of what is alive                        blocks, files, fdatasync
                 compact_step()                                deletes what is not needed

The event loop only appends to a list and keeps the index. `flush` takes what is on the list at that moment, writes
it, waits for the disk and returns the position up to which everything is durable. Appending, taking off a slice and
handing over a segment are single steps of the interpreter, so neither thread ever sees half of one. Where the next
segment begins is decided while appending; therefore a record's place is known before it is written.

Invariants

1. Whatever is needed about a live message stands in the log at or behind the record that holds it: its entries, how
   often it was delivered. So a segment that holds no live message and no definition in force is not needed, once no
   older one is there: what else it has (settlements, purges) speaks only of messages before it.
2. Segments are deleted oldest first, one durable step after the other, and only after everything that was appended
   up to the decision is durable. A dead letter is on disk before the message it came from is forgotten.
3. Compaction copies what is alive in the oldest segment to the end of the log, through the same list as everything
   else: a later settlement stands behind the copy, an earlier one has already taken the message off the index. After
   a crash in between, both copies are read and the later one counts.
4. After a failed write or sync the journal is over. A later sync that succeeds would not mean that the earlier data
   is there (the kernel forgets it), so nothing is written any more; reopening shows what the disk really has.

It does not know what definitions and headers mean, what time it is, or what a queue is beyond its number.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from redrive.broker import records, segments
from redrive.broker.journal_errors import JournalError
from redrive.broker.journal_index import (
    FAILURE_BITS,
    FAILURES,
    LARGEST_PREFIX,
    MESSAGE_SIZE,
    OFFSET_AT,
    PREFIX_AT,
    PUBLISH_SIZE,
)
from redrive.broker.journal_recovery import Recovered, Recovery
from redrive.broker.records import (
    CHECK_OUT,
    CHECK_OUT_HEAD,
    COUNT,
    COUNT_HEAD,
    ENQUEUE,
    ENQUEUE_HEAD,
    HOLD,
    HOLD_HEAD,
    MESSAGE,
    MESSAGE_HEAD,
    PUBLISH,
    PUBLISH_HEAD,
    PURGE,
    PURGE_HEAD,
    SETTLE,
    SETTLE_HEAD,
)
from redrive.broker.segments import Segment

SEGMENT_BYTES: Final = 64 << 20
_LARGEST_SEGMENT: Final = 1 << 31
_SETTLE_SIZE: Final = SETTLE_HEAD.size
_KNOWN_ROUTES: Final = 4096
_TOO_LONG: Final = "a message's header and keys are longer than 16 MiB; the journal cannot keep it"


class Journal(Recovery):
    """The log and the index of what is alive in it. All but `flush` and `close` belong to one thread."""

    def __init__(self, directory: Path, lock: int, segment_bytes: int, compact_above: int) -> None:
        super().__init__(directory)
        self._lock = lock
        self._segment_bytes = min(segment_bytes, _LARGEST_SEGMENT)
        self._compact_above = compact_above
        self._routes: dict[tuple[str, tuple[str, ...]], bytes] = {}
        self._appended = 0  # records; the position of the event loop
        # handed from the event loop to the flushing thread
        self._pending: list[bytes] = []
        self._rolls: deque[tuple[int, Segment]] = deque()  # from this position on, the segment
        self._retired: deque[tuple[int, Segment]] = deque()  # to be deleted when this position is durable
        # the flushing thread's own
        self._flushing = Lock()
        self._durable = 0
        self._failure: BaseException | None = None
        self._closed = False
        # compaction
        self._compacting: Iterator[int] | None = None
        self._compactable = True

    # Opening

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        compact_above: int = 4,
        salvage: bool = False,
    ) -> tuple["Journal", Recovered]:
        """Lock the directory and read the journal in it; an empty or missing one is a new journal.

        `compact_above`: with up to so many segments nothing is copied. `salvage`: leave out what is damaged, say so
        in `Recovered.damage` and keep the damaged files beside; without it, damage is a `JournalDamagedError`.
        """
        lock = segments.lock(directory)
        journal = cls(directory, lock, segment_bytes, compact_above)
        try:
            return journal, journal._recover(salvage=salvage)
        except BaseException:
            os.close(lock)
            raise

    # Appending: the event loop's side, no system call in it

    def publish(
        self,
        place: int,
        queue_id: int,
        number: int,
        expires_at: int,
        exchange: str,
        keys: tuple[str, ...],
        header: bytes,
        body: bytes,
    ) -> None:
        """A message and its place in a queue, usually the only one it goes to. `place` is new and not 0."""
        route = self._routes.get((exchange, keys)) or self._route(exchange, keys)
        prefix = PUBLISH_SIZE + len(route) + len(header)
        if prefix > LARGEST_PREFIX:
            raise JournalError(_TOO_LONG)
        size = len(body)
        length = prefix + size
        head = PUBLISH_HEAD.pack(
            PUBLISH, length, place, queue_id, number, expires_at, len(route), len(header)
        )
        offset = self._offset
        self._places[place] = self._head_bits | offset << OFFSET_AT | prefix << PREFIX_AT | size
        queue = self._queues.get(queue_id) or self._queue(queue_id)
        queue.entries[number] = place
        segment = self._head
        segment.live += 1
        segment.live_bytes += length
        self._pending.append(b"".join((head, route, header, body)))
        self._appended += 1
        self._offset = offset = offset + length
        if offset >= self._segment_bytes:
            self._roll()

    def add_message(
        self, place: int, exchange: str, keys: tuple[str, ...], header: bytes, body: bytes
    ) -> None:
        """A message for several queues; an `enqueue` for each follows at once. `place` is new and not 0."""
        route = self._routes.get((exchange, keys)) or self._route(exchange, keys)
        prefix = MESSAGE_SIZE + len(route) + len(header)
        if prefix > LARGEST_PREFIX:
            raise JournalError(_TOO_LONG)
        head = MESSAGE_HEAD.pack(MESSAGE, prefix + len(body), place, len(route), len(header))
        self._locate(place, self._offset, prefix, len(body))
        self._turn_to(place)
        self._append(b"".join((head, route, header, body)))

    def enqueue(self, place: int, queue_id: int, number: int, expires_at: int) -> None:
        """One more queue for a message that the journal holds."""
        if place not in self._places:
            raise JournalError(f"message {place} is not in the journal; add it before it is enqueued")
        self._share(place, queue_id, number, expires_at)
        self._append(ENQUEUE_HEAD.pack(ENQUEUE, place, queue_id, number, expires_at))

    def settle(self, queue_id: int, number: int) -> None:
        """This queue's entry is gone. An entry that is not in the journal is none of its business."""
        if self._forget(queue_id, number):
            self._pending.append(SETTLE_HEAD.pack(SETTLE, queue_id, number))
            self._appended += 1
            self._offset = offset = self._offset + _SETTLE_SIZE
            if offset >= self._segment_bytes:
                self._roll()

    def count(self, queue_id: int, number: int, acquired: int, failures: int) -> None:
        """The counts of an entry, after a delivery that was not acknowledged or because it came with them."""
        if self._count(queue_id, number, acquired, failures):
            self._append(COUNT_HEAD.pack(COUNT, queue_id, number, acquired, failures))

    def check_out(self, queue_id: int, first: int, last: int) -> None:
        """The entries with these numbers were delivered; if the broker is killed, the deliveries have failed."""
        if self._check_out(queue_id, first, last):
            self._append(CHECK_OUT_HEAD.pack(CHECK_OUT, queue_id, first, last))

    def hold(self, queue_id: int, number: int, why: int, at: int) -> None:
        """An entry stays in its queue but is not delivered; see `records` for `why` and `at`."""
        queue = self._queues.get(queue_id)
        if queue is not None and number in queue.entries:
            queue.held[number] = (why, at)
            self._append(HOLD_HEAD.pack(HOLD, queue_id, number, why, at))

    def purge_queue(self, queue_id: int) -> None:
        """All entries of a queue are gone."""
        if self._forget_all(queue_id):
            self._append(PURGE_HEAD.pack(PURGE, queue_id))

    def put_definition(self, key: str, value: bytes) -> None:
        """A definition is new or has changed."""
        record = records.define(key, value)
        self._define(key, value)
        self._append(record)

    def delete_definition(self, key: str) -> None:
        """A definition is gone."""
        if self._undefine(key):
            self._append(records.undefine(key))

    def position(self) -> int:
        """Everything appended so far is durable when `flush` has returned this number or a larger one."""
        return self._appended

    def _append(self, record: bytes) -> None:
        self._pending.append(record)
        self._appended += 1
        self._offset += len(record)
        if self._offset >= self._segment_bytes:
            self._roll()

    def _roll(self) -> None:
        """What is appended from now on goes to a new segment."""
        self._head.size = self._offset
        segment = Segment(self._directory, self._head.number + 1, self._head.salt)
        self._enter(segment)
        self._rolls.append((self._appended, segment))

    def _route(self, exchange: str, keys: tuple[str, ...]) -> bytes:
        if len(self._routes) >= _KNOWN_ROUTES:
            self._routes.clear()
        route = self._routes[exchange, keys] = records.route_of(exchange, keys)
        return route

    # Flushing: the other thread's side

    def flush(self) -> int:
        """Write what was appended and wait for the disk; the position that is durable now.

        After an error nothing more is written, and every further call says so: what was not yet reported durable
        may be lost. Only opening the journal anew shows what is there.
        """
        with self._flushing:
            if self._failure is not None:
                raise JournalError(f"the journal stopped: {self._failure}") from self._failure
            if self._closed:
                raise JournalError(f"the journal {self._directory} is closed")
            try:
                self._write()
                self._delete_retired()
            except (
                BaseException
            ) as error:  # whatever it was: records were taken off the list and are not on disk
                self._failure = error
                raise
            return self._durable

    def _write(self) -> None:
        taken = len(self._pending)
        if not taken:
            return
        batch = self._pending[:taken]
        del self._pending[:taken]
        written = 0
        while self._rolls and self._rolls[0][0] < self._durable + taken:
            position, segment = self._rolls.popleft()
            until = position - self._durable
            if until > written:
                self._writing.write(batch[written:until])
            self._writing = self._writing.roll(segment)
            written = until
        self._writing.write(batch[written:] if written else batch)
        self._writing.sync()
        self._durable += taken

    def _delete_retired(self) -> None:
        while self._retired and self._retired[0][0] <= self._durable:
            segments.remove(self._retired.popleft()[1])

    @property
    def dirty(self) -> bool:
        """Whether a flush would have something to do."""
        return bool(self._pending or self._retired)

    def close(self) -> None:
        """Flush what is left, unless the journal has failed, and let go of everything."""
        if self._closed:
            return
        try:
            if self._failure is None:
                self.flush()
        finally:
            self._closed = True
            self._writing.close()
            for file in self._files.values():
                os.close(file)
            os.close(self._lock)

    # Compaction: the event loop's side, in slices

    def compact_step(self, budget: int = 256 << 10) -> bool:
        """Copy about `budget` bytes of what keeps an old segment alive; whether there is more to do.

        Call it once per turn as long as it says so; the copies go with the next flush, the files after it.
        """
        if self._compacting is None:
            self._retire_dead()
            if not self._is_sparse():
                return False
            self._compacting = self._copying(next(iter(self._segments.values())))
        try:
            for looked_at in self._compacting:
                budget -= looked_at
                if budget <= 0:
                    return True
        except JournalError:
            self._compactable = False  # the broker can go on without; trying again would only say the same
            self._compacting = None
            raise
        self._compacting = None
        self._retire_dead()
        return self._is_sparse()

    def _is_sparse(self) -> bool:
        """Whether less than half of what lies in finished segments is needed, and copying can help."""
        if len(self._segments) <= self._compact_above or not self._compactable:
            return False
        finished = list(self._segments.values())[:-1]
        if finished[0].written < finished[0].size:
            return False  # the flushing thread has still to write it
        return 2 * sum(segment.live_bytes for segment in finished) < sum(segment.size for segment in finished)

    def _retire_dead(self) -> None:
        """Give up the oldest segments as long as no message in them is needed."""
        for segment in list(self._segments.values()):
            if segment is self._head or segment.live:
                return
            for key in [key for key, where in self._defined_in.items() if where is segment]:
                self.put_definition(key, self._definitions[key])
            del self._segments[segment.number]
            file = self._files.pop(segment.number, None)
            if file is not None:
                os.close(file)
            self._retired.append((self._appended, segment))

    def _copying(self, segment: Segment) -> Iterator[int]:
        """Append what is alive in a segment once more; yields the bytes that were looked at."""
        for index, start in enumerate(segment.blocks):
            if not segment.live:
                return
            block = segments.read_block(segment, self._file(segment), index)
            if block.is_hole:
                continue
            for at, end, fields in records.walk(block.payload):
                if fields[0] <= MESSAGE:
                    where = self._places.get(fields[2], 0)
                    if where >> OFFSET_AT == (segment.number << 32 | start + at):
                        self._copy(fields, block.payload[at:end])
                yield end - at

    def _copy(self, fields: tuple[int, ...], record: bytes) -> None:
        """A message, every queue it is in, and what they know about it."""
        place = fields[2]
        entries: Sequence[int] = self._shared.get(place, ())
        if place not in self._bare:
            own = fields[3:6]
            prefix = PUBLISH_SIZE + fields[-2] + fields[-1]
        elif entries:
            own = ()
            prefix = MESSAGE_SIZE + fields[-2] + fields[-1]
            if fields[0] == PUBLISH:  # the queue that it names has settled it
                record = records.without_queue(record, fields)
        else:
            self._drop(place)
            return
        self._locate(place, self._offset, prefix, len(record) - prefix)
        self._append(record)
        for queue_id, number, expires_at in _triples(entries):
            self._append(ENQUEUE_HEAD.pack(ENQUEUE, place, queue_id, number, expires_at))
        for queue_id, number, _ in _triples((*own, *entries)):
            queue = self._queues[queue_id]
            counts = queue.counts.get(number)
            if counts is not None:
                acquired, failures = counts >> FAILURE_BITS, counts & FAILURES
                self._append(COUNT_HEAD.pack(COUNT, queue_id, number, acquired, failures))
            if number in queue.checked_out:
                self._append(CHECK_OUT_HEAD.pack(CHECK_OUT, queue_id, number, number))
            held = queue.held.get(number)
            if held is not None:
                self._append(HOLD_HEAD.pack(HOLD, queue_id, number, *held))


def _triples(entries: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    return zip(entries[::3], entries[1::3], entries[2::3], strict=True)
