"""How does the broker keep its promises over `kill -9`? (B8, A7)

Everything durable that happens is appended to one log, in the order in which it happened: definitions (vhosts,
queues, bindings, …) and messages tell one story, and recovery is reading it again. `records` knows how an event is
written, `segments` how records lie in files; here is what is alive, where it lies, and what may be deleted.

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
import secrets
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from redrive.broker import records, segments
from redrive.broker.records import (
    DEFINE,
    DELIVERED,
    DELIVERED_HEAD,
    ENQUEUE,
    ENQUEUE_HEAD,
    MESSAGE,
    MESSAGE_HEAD,
    PUBLISH,
    PUBLISH_HEAD,
    PURGE,
    PURGE_HEAD,
    SETTLE,
    SETTLE_HEAD,
    UNDEFINE,
    MalformedError,
    StoredMessage,
)
from redrive.broker.segments import JournalDamagedError, JournalError, Reading, Segment, Writing, translated

SEGMENT_BYTES: Final = 64 << 20
_LARGEST_SEGMENT: Final = 1 << 31
_PUBLISH_SIZE: Final = PUBLISH_HEAD.size
_MESSAGE_SIZE: Final = MESSAGE_HEAD.size
_ENQUEUE_SIZE: Final = ENQUEUE_HEAD.size
_SETTLE_SIZE: Final = SETTLE_HEAD.size
_KNOWN_ROUTES: Final = 4096
_OPEN_FILES: Final = 32  # segments that are kept open for reading

# Where a message lies, in one number: a tuple would take three times the memory.
# segment │ offset of its record: 32 bits │ length of the part before the body: 24 │ length of the body: 32
_SEGMENT_AT: Final = 88
_OFFSET_AT: Final = 56
_PREFIX_AT: Final = 32
_LENGTH: Final = 0xFFFF_FFFF
_PREFIX: Final = 0xFF_FFFF
_TOO_LONG: Final = "a message's header and keys are longer than 16 MiB; the journal cannot keep it"


class RecoveredEntry(NamedTuple):
    """A message's place in a queue, as it was before the restart."""

    number: int
    place: int
    expires_at: int
    deliveries: int  # the count last given to `delivered`
    redelivered: bool  # it was delivered before
    size: int  # of the body


class RecoveredQueue:
    """The entries of one queue, ordered by number; made one at a time, because there may be millions."""

    def __init__(self, queue: "_Queue", places: dict[int, int], expiries: dict[int, int]) -> None:
        numbers = sorted(queue.entries)
        self._numbers = array("q", numbers)
        self._places = array("Q", [queue.entries[number] for number in numbers])
        self._expiries = array("q", [expiries.get(number, 0) for number in numbers])
        self._sizes = array("I", [places[place] & _LENGTH for place in self._places])
        self._delivered = dict(queue.delivered)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[RecoveredEntry]:
        delivered = self._delivered
        for number, place, expires_at, size in zip(
            self._numbers, self._places, self._expiries, self._sizes, strict=True
        ):
            yield RecoveredEntry(
                number, place, expires_at, delivered.get(number, 0), number in delivered, size
            )


class Recovered(NamedTuple):
    """What a journal held when it was opened."""

    definitions: dict[str, bytes]  # in no particular order
    queues: dict[int, RecoveredQueue]  # those with entries
    next_place: int  # larger than any place that was read
    torn: str | None  # what was cut off at the end, where and why
    damage: list[str]  # what salvage had to leave out
    segments: int
    messages: int
    entries: int
    records: int
    bytes: int  # payload that was read
    dropped: int  # bytes that were cut off


class _Queue:
    __slots__ = ("delivered", "entries")

    def __init__(self) -> None:
        self.entries: dict[int, int] = {}  # number → place
        self.delivered: dict[int, int] = {}  # number → count, of those that were delivered


class Journal:
    """The log and the index of what is alive in it. All but `flush` and `close` belong to one thread."""

    def __init__(self, directory: Path, lock: int, segment_bytes: int, compact_above: int) -> None:
        self._directory = directory
        self._lock = lock
        self._segment_bytes = min(segment_bytes, _LARGEST_SEGMENT)
        self._compact_above = compact_above
        # what is alive, and where
        self._definitions: dict[str, bytes] = {}
        self._defined_in: dict[str, Segment] = {}
        self._queues: dict[int, _Queue] = {}
        self._places: dict[int, int] = {}  # place → where it lies
        self._shared: dict[int, tuple[int, ...]] = {}  # place → queue, number, expiry, queue, …: of `enqueue`
        self._bare: set[int] = set()  # places whose record itself puts them into no queue, or not any more
        self._adding = 0  # the latest of `add_message`: one queue may settle it before it comes to the next
        self._segments: dict[int, Segment] = {}  # oldest first
        self._routes: dict[tuple[str, tuple[str, ...]], bytes] = {}
        # the end of the log, as the event loop sees it
        self._head: Segment
        self._head_bits = 0
        self._offset = 0
        self._appended = 0
        # handed from the event loop to the flushing thread
        self._pending: list[bytes] = []
        self._rolls: deque[tuple[int, Segment]] = deque()  # from this position on, the segment
        self._retired: deque[tuple[int, Segment]] = deque()  # to be deleted when this position is durable
        # the flushing thread's own
        self._flushing = Lock()
        self._writing: Writing
        self._durable = 0
        self._failure: BaseException | None = None
        self._closed = False
        # reading back and compaction
        self._files: dict[int, int] = {}
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

    def _recover(self, *, salvage: bool) -> Recovered:
        found = segments.find(self._directory)
        damage = segments.repair(found) if salvage else []
        torn, dropped, records_read, next_place = None, 0, 0, 1
        sequence: int | None = None
        expiries: dict[int, dict[int, int]] = {}
        for segment in found:
            reading = Reading(segment, newest=segment is found[-1])
            self._enter(segment)
            for block in reading.blocks(sequence):
                segment.blocks.append(segment.size)
                if not block.is_hole:
                    try:
                        seen, place = self._replay(block.payload, expiries)
                    except MalformedError as error:
                        raise JournalDamagedError(
                            f"{segment.path} is damaged at byte {block.at}: {error}; restore it from a copy"
                        ) from None
                    records_read += seen
                    next_place = max(next_place, place + 1)
                segment.size += len(block.payload)
                segment.written = self._offset = segment.size
                sequence = block.following
            sequence = segment.first if sequence is None else sequence
            if reading.newest:
                torn, dropped = reading.torn, reading.dropped
                if not segments.mend(reading):
                    del self._segments[segment.number]
        self._forget_unreachable()
        self._continue(sequence or 0)
        queues = {
            queue_id: RecoveredQueue(queue, self._places, expiries.get(queue_id, {}))
            for queue_id, queue in self._queues.items()
            if queue.entries
        }
        return Recovered(
            definitions=dict(self._definitions),
            queues=queues,
            next_place=next_place,
            torn=torn,
            damage=damage,
            segments=len(self._segments),
            messages=len(self._places),
            entries=sum(map(len, queues.values())),
            records=records_read,
            bytes=sum(segment.size for segment in self._segments.values()),
            dropped=dropped,
        )

    def _replay(self, block: bytes, expiries: dict[int, dict[int, int]]) -> tuple[int, int]:
        """Do again what a block says; how many records it has and the largest place in it."""
        largest = seen = 0
        base = self._offset
        for at, end, fields in records.walk(block):
            seen += 1
            kind = fields[0]
            if kind == PUBLISH:
                _, length, place, queue_id, number, expires_at, route, header = fields
                prefix = _PUBLISH_SIZE + route + header
                self._locate(place, base + at, prefix, length - prefix)
                self._queue(queue_id).entries[number] = place
                if expires_at:
                    expiries.setdefault(queue_id, {})[number] = expires_at
                largest = max(largest, place)
            elif kind == SETTLE:
                self._forget(fields[1], fields[2])
            elif kind == MESSAGE:
                _, length, place, route, header = fields
                prefix = _MESSAGE_SIZE + route + header
                self._locate(place, base + at, prefix, length - prefix)
                self._turn_to(place)
                largest = max(largest, place)
            elif kind == ENQUEUE:
                _, place, queue_id, number, expires_at = fields
                if place in self._places and self._queue(queue_id).entries.get(number) != place:
                    self._share(place, queue_id, number, expires_at)
                    if expires_at:
                        expiries.setdefault(queue_id, {})[number] = expires_at
                largest = max(largest, place)
            elif kind == DELIVERED:
                queue = self._queues.get(fields[1])
                if queue is not None and fields[2] in queue.entries:
                    queue.delivered[fields[2]] = fields[3]
            elif kind == PURGE:
                self._forget_all(fields[1])
            elif kind == DEFINE:
                self._define(*records.read_definition(block[at:end], fields))
            elif kind == UNDEFINE:
                self._undefine(records.read_definition(block[at:end], fields)[0])
        return seen, largest

    def _forget_unreachable(self) -> None:
        """A message in no queue: its enqueueing was in the torn tail, or it was never routed."""
        for place in [place for place in self._bare if not self._shared.get(place)]:
            self._drop(place)

    def _continue(self, sequence: int) -> None:
        """Go on at the end of the newest segment, or begin the first one."""
        if self._segments:
            newest = next(reversed(self._segments.values()))
            self._enter(newest)
            self._writing = Writing(newest, sequence)
        else:
            self._enter(Segment(self._directory, 1, secrets.randbits(32)))
            self._writing = Writing.start(self._head, sequence)

    def _enter(self, segment: Segment) -> None:
        self._segments[segment.number] = segment
        self._head = segment
        self._head_bits = segment.number << _SEGMENT_AT
        self._offset = segment.size

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
        prefix = _PUBLISH_SIZE + len(route) + len(header)
        if prefix > _PREFIX:
            raise JournalError(_TOO_LONG)
        size = len(body)
        length = prefix + size
        head = PUBLISH_HEAD.pack(
            PUBLISH, length, place, queue_id, number, expires_at, len(route), len(header)
        )
        offset = self._offset
        self._places[place] = self._head_bits | offset << _OFFSET_AT | prefix << _PREFIX_AT | size
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
        prefix = _MESSAGE_SIZE + len(route) + len(header)
        if prefix > _PREFIX:
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

    def holds(self, place: int) -> bool:
        """Whether the message can be enqueued once more. It cannot if every queue it went to has settled it."""
        return place in self._places

    def settle(self, queue_id: int, number: int) -> None:
        """This queue's entry is gone. An entry that is not in the journal is none of its business."""
        if self._forget(queue_id, number):
            self._pending.append(SETTLE_HEAD.pack(SETTLE, queue_id, number))
            self._appended += 1
            self._offset = offset = self._offset + _SETTLE_SIZE
            if offset >= self._segment_bytes:
                self._roll()

    def delivered(self, queue_id: int, number: int, count: int) -> None:
        """An entry was handed out; after a restart it is a redelivery, with this delivery count."""
        queue = self._queues.get(queue_id)
        if queue is not None and number in queue.entries:
            queue.delivered[number] = count
            self._append(DELIVERED_HEAD.pack(DELIVERED, queue_id, number, count))

    def purge_queue(self, queue_id: int) -> None:
        """All entries of a queue are gone."""
        if self._forget_all(queue_id):
            self._append(PURGE_HEAD.pack(PURGE, queue_id))

    def put_definition(self, key: str, value: bytes) -> None:
        """A definition is new or has changed."""
        record = records.define(key, value)
        self._define(key, value)
        self._append(record)

    def definition_keys(self, start: str) -> list[str]:
        """The keys of the definitions in force that begin so."""
        return [key for key in self._definitions if key.startswith(start)]

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

    # The index: the same for appending and for recovery

    def _queue(self, queue_id: int) -> _Queue:
        queue = self._queues.get(queue_id)
        if queue is None:
            queue = self._queues[queue_id] = _Queue()
        return queue

    def _locate(self, place: int, offset: int, prefix: int, size: int) -> None:
        """Note where a message lies, and that it does not lie where it did before."""
        shared = len(self._shared.get(place, ())) // 3 * _ENQUEUE_SIZE
        earlier = self._places.get(place)
        if earlier is not None:
            self._lighten(earlier, shared)
        self._places[place] = self._head_bits | offset << _OFFSET_AT | prefix << _PREFIX_AT | size
        self._head.live += 1
        self._head.live_bytes += prefix + size + shared

    def _lighten(self, where: int, more: int = 0) -> None:
        segment = self._segments[where >> _SEGMENT_AT]
        segment.live -= 1
        segment.live_bytes -= (where >> _PREFIX_AT & _PREFIX) + (where & _LENGTH) + more

    def _drop(self, place: int) -> None:
        """A message without entries is not needed."""
        self._shared.pop(place, None)
        self._bare.discard(place)
        self._lighten(self._places.pop(place))

    def _turn_to(self, place: int) -> None:
        """A message that is in no queue yet was added: the one before it gets no more entries."""
        before, self._adding = self._adding, place
        self._bare.add(place)
        if before != place and before in self._bare and not self._shared.get(before):
            self._drop(before)

    def _share(self, place: int, queue_id: int, number: int, expires_at: int) -> None:
        self._shared[place] = (*self._shared.get(place, ()), queue_id, number, expires_at)
        self._queue(queue_id).entries[number] = place
        self._segments[self._places[place] >> _SEGMENT_AT].live_bytes += _ENQUEUE_SIZE

    def _unshare(self, place: int, queue_id: int, number: int) -> None:
        entries = self._shared[place]
        for at in range(0, len(entries), 3):
            if entries[at] == queue_id and entries[at + 1] == number:
                entries = entries[:at] + entries[at + 3 :]
                self._segments[self._places[place] >> _SEGMENT_AT].live_bytes -= _ENQUEUE_SIZE
                break
        else:
            self._bare.add(place)  # it was the entry that its own record made
        if entries:
            self._shared[place] = entries
        else:
            del self._shared[place]
            if place in self._bare and place != self._adding:
                self._drop(place)

    def _forget(self, queue_id: int, number: int) -> bool:
        """Take an entry off the index, and its message with the last one; whether it was there."""
        queue = self._queues.get(queue_id)
        if queue is None:
            return False
        place = queue.entries.pop(number, 0)
        if not place:
            return False
        if queue.delivered:
            queue.delivered.pop(number, None)
        if place in self._shared:
            self._unshare(place, queue_id, number)
        else:
            self._lighten(self._places.pop(place))
        return True

    def _forget_all(self, queue_id: int) -> bool:
        queue = self._queues.get(queue_id)
        if queue is None:
            return False
        numbers = list(queue.entries)
        for number in numbers:
            self._forget(queue_id, number)
        del self._queues[queue_id]
        return bool(numbers)

    def _define(self, key: str, value: bytes) -> None:
        self._undefine(key)
        self._definitions[key] = value
        self._defined_in[key] = self._head
        self._head.live_bytes += len(key) + len(value)

    def _undefine(self, key: str) -> bool:
        value = self._definitions.pop(key, None)
        if value is None:
            return False
        self._defined_in.pop(key).live_bytes -= len(key) + len(value)
        return True

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

    # Reading back

    def is_readable(self, place: int) -> bool:
        """Whether the message is on disk, so that its body may be dropped from memory."""
        where = self._places.get(place)
        if where is None:
            return False
        return (where >> _OFFSET_AT & _LENGTH) < self._segments[where >> _SEGMENT_AT].written

    def read_message(self, place: int) -> StoredMessage:
        """A live message, from disk."""
        where = self._places.get(place)
        if where is None:
            raise JournalError(f"message {place} is not in the journal; it was settled or never added")
        segment = self._segments[where >> _SEGMENT_AT]
        offset = where >> _OFFSET_AT & _LENGTH
        if offset >= segment.written:
            raise JournalError(f"message {place} is not on disk yet; flush first")
        length = (where >> _PREFIX_AT & _PREFIX) + (where & _LENGTH)
        record = segments.read_record(segment, self._file(segment), offset, length)
        try:
            found, message = records.read_message(record)
        except MalformedError:
            found = 0
        else:
            if found == place:
                return message
        raise JournalDamagedError(f"{segment.path} lost message {place} while in use; restore it from a copy")

    def read_body(self, place: int) -> bytes:
        """The body of a live message, from disk."""
        return self.read_message(place).body

    def _file(self, segment: Segment) -> int:
        file = self._files.get(segment.number)
        if file is None:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            with translated(segment.path, "read"):
                file = self._files[segment.number] = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        return file

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
                    if where >> _OFFSET_AT == (segment.number << 32 | start + at):
                        self._copy(fields, block.payload[at:end])
                yield end - at

    def _copy(self, fields: tuple[int, ...], record: bytes) -> None:
        """A message, every queue it is in, and what they know about it."""
        place = fields[2]
        entries = self._shared.get(place, ())
        if place not in self._bare:
            own = fields[3:6]
            prefix = _PUBLISH_SIZE + fields[-2] + fields[-1]
        elif entries:
            own = ()
            prefix = _MESSAGE_SIZE + fields[-2] + fields[-1]
            if fields[0] == PUBLISH:  # the queue that it names has settled it
                record = records.without_queue(record, fields)
        else:
            self._drop(place)
            return
        self._locate(place, self._offset, prefix, len(record) - prefix)
        self._append(record)
        for queue_id, number, expires_at in _triples(entries):
            self._append(ENQUEUE_HEAD.pack(ENQUEUE, place, queue_id, number, expires_at))
        for queue_id, number, _ in _triples(own + entries):
            delivered = self._queues[queue_id].delivered.get(number)
            if delivered is not None:
                self._append(DELIVERED_HEAD.pack(DELIVERED, queue_id, number, delivered))


def _triples(entries: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    return zip(entries[::3], entries[1::3], entries[2::3], strict=True)
