"""What of the log is alive, and where does it lie?

A place is the number of a message, whatever becomes of it; the index knows for each live one in which segment its
record lies and which queues it is in, and for each segment how much of it is needed. Appending, recovery and
compaction change it through the same methods, so that a log that is read again gives the same index. The rule: a
message is here as long as a queue has it or may still get it (`_adding`), and its segment counts it exactly as long.

A message that was published to one queue is not in `_shared`: its own record names the queue. Nearly all are like that,
and there may be millions. `publish` in `journal` does by hand what `_locate` does, because it is called most.

It does not know how anything comes to disk, or when; what is there already it can read back.
"""

import os
from pathlib import Path
from typing import Final

from redrive.broker import records, segments
from redrive.broker.journal_errors import JournalDamagedError, JournalError, translated
from redrive.broker.memory import shrink
from redrive.broker.records import ENQUEUE_HEAD, MESSAGE_HEAD, PUBLISH_HEAD, MalformedError, StoredMessage
from redrive.broker.segments import Segment

PUBLISH_SIZE: Final = PUBLISH_HEAD.size
MESSAGE_SIZE: Final = MESSAGE_HEAD.size
_ENQUEUE_SIZE: Final = ENQUEUE_HEAD.size
_OPEN_FILES: Final = 32  # segments that are kept open for reading

# Where a message lies, in one number: a tuple would take three times the memory.
# segment │ offset of its record: 32 bits │ length of the part before the body: 24 │ length of the body: 32
SEGMENT_AT: Final = 88
OFFSET_AT: Final = 56
PREFIX_AT: Final = 32
LENGTH: Final = 0xFFFF_FFFF
LARGEST_PREFIX: Final = 0xFF_FFFF
FAILURE_BITS: Final = 32  # of the two counts of an entry in one number
FAILURES: Final = 0xFFFF_FFFF


class LiveQueue:
    """What a queue has."""

    __slots__ = ("checked_out", "counts", "entries", "held")

    def __init__(self) -> None:
        self.entries: dict[int, int] = {}  # number → place
        self.counts: dict[
            int, int
        ] = {}  # number → acquired << 32 | failures, if there are any; last return last
        self.checked_out: set[int] = set()  # numbers of deliveries that are under way
        self.held: dict[
            int, tuple[int, int]
        ] = {}  # number → why and since or until when, as in `hold` records


class Index:
    """What is alive in a log. It belongs to one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._definitions: dict[str, bytes] = {}
        self._defined_in: dict[str, Segment] = {}
        self._queues: dict[int, LiveQueue] = {}
        self._places: dict[int, int] = {}  # place → where it lies
        self._shared: dict[int, list[int]] = {}  # place → queue, number, expiry, queue, …: of `enqueue`
        self._bare: set[int] = set()  # places whose record itself puts them into no queue, or not any more
        self._adding = 0  # the latest of `add_message`: one queue may settle it before it comes to the next
        self._segments: dict[int, Segment] = {}  # oldest first
        # the end of the log: what is appended next lies here
        self._head: Segment
        self._head_bits = 0
        self._offset = 0
        self._files: dict[int, int] = {}  # segments open for reading

    def _enter(self, segment: Segment) -> None:
        """What comes next lies in this segment."""
        self._segments[segment.number] = segment
        self._head = segment
        self._head_bits = segment.number << SEGMENT_AT
        self._offset = segment.size

    # Asking

    def holds(self, place: int) -> bool:
        """Whether the message can be enqueued once more. It cannot if every queue it went to has settled it."""
        return place in self._places

    def definition_keys(self, start: str) -> list[str]:
        """The keys of the definitions in force that begin so."""
        return [key for key in self._definitions if key.startswith(start)]

    # Coming and going: the same for appending, recovery and compaction

    def _queue(self, queue_id: int) -> LiveQueue:
        queue = self._queues.get(queue_id)
        if queue is None:
            queue = self._queues[queue_id] = LiveQueue()
        return queue

    def _locate(self, place: int, offset: int, prefix: int, size: int) -> None:
        """Note where a message lies, and that it does not lie where it did before."""
        shared = len(self._shared.get(place, ())) // 3 * _ENQUEUE_SIZE
        earlier = self._places.get(place)
        if earlier is not None:
            self._lighten(earlier, shared)
        self._places[place] = self._head_bits | offset << OFFSET_AT | prefix << PREFIX_AT | size
        self._head.live += 1
        self._head.live_bytes += prefix + size + shared

    def _lighten(self, where: int, more: int = 0) -> None:
        segment = self._segments[where >> SEGMENT_AT]
        segment.live -= 1
        segment.live_bytes -= (where >> PREFIX_AT & LARGEST_PREFIX) + (where & LENGTH) + more

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
        entries = self._shared.get(place)
        if entries is None:
            self._shared[place] = [queue_id, number, expires_at]
        else:
            entries += (queue_id, number, expires_at)  # a fan-out may have thousands: none is copied
        self._queue(queue_id).entries[number] = place
        self._segments[self._places[place] >> SEGMENT_AT].live_bytes += _ENQUEUE_SIZE

    def _unshare(self, place: int, queue_id: int, number: int) -> None:
        entries = self._shared[place]
        at = _find_entry(entries, queue_id, number)
        if at >= 0:
            del entries[at : at + 3]
            self._segments[self._places[place] >> SEGMENT_AT].live_bytes -= _ENQUEUE_SIZE
        else:
            self._bare.add(place)  # it was the entry that its own record made
        if not entries:
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
        if queue.counts:
            queue.counts.pop(number, None)
        if queue.checked_out:
            queue.checked_out.discard(number)
        if queue.held:
            queue.held.pop(number, None)
        if place in self._shared:
            self._unshare(place, queue_id, number)
        else:
            self._lighten(self._places.pop(place))
        return True

    def _count(self, queue_id: int, number: int, acquired: int, failures: int) -> bool:
        """Note the counts of an entry whose delivery ended or that came with them; whether it is there."""
        queue = self._queues.get(queue_id)
        if queue is None or number not in queue.entries:
            return False
        queue.checked_out.discard(number)
        queue.counts.pop(number, None)
        queue.counts[number] = acquired << FAILURE_BITS | failures
        return True

    def _check_out(self, queue_id: int, first: int, last: int) -> bool:
        """Note that these entries were delivered; whether one of them is there."""
        queue = self._queues.get(queue_id)
        if queue is None:
            return False
        numbers = [number for number in range(first, last + 1) if number in queue.entries]
        queue.checked_out.update(numbers)
        if queue.held:
            for number in numbers:
                queue.held.pop(number, None)
        return bool(numbers)

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

    def release_memory(self) -> None:
        """Give up the memory of tables that once held much more than now."""
        self._places = shrink(self._places)
        self._shared = shrink(self._shared)
        for queue in self._queues.values():
            queue.entries = shrink(queue.entries)
            queue.counts = shrink(queue.counts)

    # Reading back

    def is_readable(self, place: int) -> bool:
        """Whether the message is on disk, so that its body may be dropped from memory."""
        where = self._places.get(place)
        if where is None:
            return False
        return (where >> OFFSET_AT & LENGTH) < self._segments[where >> SEGMENT_AT].written

    def read_message(self, place: int) -> StoredMessage:
        """A live message, from disk."""
        where = self._places.get(place)
        if where is None:
            raise JournalError(f"message {place} is not in the journal; it was settled or never added")
        segment = self._segments[where >> SEGMENT_AT]
        offset = where >> OFFSET_AT & LENGTH
        if offset >= segment.written:
            raise JournalError(f"message {place} is not on disk yet; flush first")
        length = (where >> PREFIX_AT & LARGEST_PREFIX) + (where & LENGTH)
        record = segments.read_record(segment, self._file(segment), offset, length)
        try:
            found, message = records.read_message(record)
        except MalformedError:
            found = 0
        else:
            if found == place:
                return message
        raise JournalDamagedError(
            f"{segment.path} lost message {place} while in use; restore it from a backup"
        )

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


def _find_entry(entries: list[int], queue_id: int, number: int) -> int:
    """Where a queue's entry begins in a list of queue, number, expiry, queue, …; below zero if it is not there."""
    at = -1
    while True:
        try:
            at = entries.index(queue_id, at + 1)
        except ValueError:
            return -1
        if not at % 3 and entries[at + 1] == number:
            return at
