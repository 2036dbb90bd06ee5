"""How does a log become what it was about again?

By reading it from its oldest segment to its end and doing to the index what each record says. The rule: recovery
decides nothing. A record that speaks of what is not there changes nothing, a message that is read twice counts where
it was read last, and only what no queue can ever get is dropped at the end.

A torn tail is cut off and reported; damage is an error, unless salvage is asked for (`segments_repair`).

It does not know what definitions and headers mean, and nothing of queues but their numbers.
"""

import secrets
from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from redrive.broker import records, segments, segments_repair
from redrive.broker.journal_errors import JournalDamagedError
from redrive.broker.journal_index import (
    FAILURE_BITS,
    FAILURES,
    LENGTH,
    MESSAGE_SIZE,
    PUBLISH_SIZE,
    Index,
    LiveQueue,
)
from redrive.broker.message import PROPERTIES_AT
from redrive.broker.records import (
    CHECK_OUT,
    COUNT,
    DEFINE,
    DELIVERED,
    ENQUEUE,
    HOLD,
    MESSAGE,
    PUBLISH,
    PURGE,
    SETTLE,
    UNDEFINE,
    MalformedError,
)
from redrive.broker.segments import Reading, Segment, Writing

_FLAG_BITS: Final = 8
_FLAGS: Final = 0xFF


class RecoveredEntry(NamedTuple):
    """A message's place in a queue, as it was before the restart."""

    number: int
    place: int
    expires_at: int
    size: int  # of the body
    header_size: int
    flags: int  # the first octet of the properties in the header: which of them are set
    acquired: int = 0
    failures: int = 0
    checked_out: bool = False  # it was delivered, and the end of the delivery is not in the journal
    held: tuple[int, int] | None = None  # why and since or until when it is not delivered, as in `hold`


class RecoveredQueue:
    """The entries of one queue, ordered by number; made one at a time, because there may be millions."""

    def __init__(
        self, queue: LiveQueue, places: dict[int, int], expiries: dict[int, int], headers: dict[int, int]
    ) -> None:
        numbers = sorted(queue.entries)
        self._numbers = array("q", numbers)
        self._places = array("Q", [queue.entries[number] for number in numbers])
        self._expiries = array("q", [expiries.get(number, 0) for number in numbers])
        self._sizes = array("I", [places[place] & LENGTH for place in self._places])
        self._headers = array("I", [headers[place] for place in self._places])
        self._counts = dict(queue.counts)
        self._checked_out = set(queue.checked_out)
        self._held = dict(queue.held)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[RecoveredEntry]:
        for number, place, expires_at, size, header in zip(
            self._numbers, self._places, self._expiries, self._sizes, self._headers, strict=True
        ):
            counts = self._counts.get(number, 0)
            yield RecoveredEntry(
                number,
                place,
                expires_at,
                size,
                header >> _FLAG_BITS,
                header & _FLAGS,
                counts >> FAILURE_BITS,
                counts & FAILURES,
                number in self._checked_out,
                self._held.get(number),
            )

    @property
    def returned(self) -> list[int]:
        """The numbers of the entries that were returned, in the order of their last return."""
        return [number for number, counts in self._counts.items() if counts >> FAILURE_BITS]


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


class Recovery(Index):
    """An index that is read from the log, up to the point where the log can go on."""

    _writing: Writing  # where it goes on; from then on the flushing thread's own

    def _recover(self, *, salvage: bool) -> Recovered:
        found = segments.find(self._directory)
        damage = segments_repair.repair(found) if salvage else []
        torn, dropped, records_read, next_place = None, 0, 0, 1
        sequence: int | None = None
        expiries: dict[int, dict[int, int]] = {}
        headers: dict[int, int] = {}  # place → size of the header, and its flags
        for segment in found:
            reading = Reading(segment, newest=segment is found[-1])
            self._enter(segment)
            for block in reading.blocks(sequence):
                segment.blocks.append(segment.size)
                if not block.is_hole:
                    try:
                        seen, place = self._replay(block.payload, expiries, headers)
                    except MalformedError as error:
                        raise JournalDamagedError(
                            f"{segment.path} is damaged at byte {block.at}: {error}; restore it from a backup"
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
            queue_id: RecoveredQueue(queue, self._places, expiries.get(queue_id, {}), headers)
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

    def _replay(
        self, block: bytes, expiries: dict[int, dict[int, int]], headers: dict[int, int]
    ) -> tuple[int, int]:
        """Do again what a block says; how many records it has and the largest place in it."""
        largest = seen = 0
        base = self._offset
        for at, end, fields in records.walk(block):
            seen += 1
            kind = fields[0]
            if kind == PUBLISH:
                _, length, place, queue_id, number, expires_at, route, header = fields
                prefix = PUBLISH_SIZE + route + header
                self._locate(place, base + at, prefix, length - prefix)
                headers[place] = _header(block, at + prefix - header, header)
                self._queue(queue_id).entries[number] = place
                if expires_at:
                    expiries.setdefault(queue_id, {})[number] = expires_at
                largest = max(largest, place)
            elif kind == SETTLE:
                self._forget(fields[1], fields[2])
            elif kind == MESSAGE:
                _, length, place, route, header = fields
                prefix = MESSAGE_SIZE + route + header
                self._locate(place, base + at, prefix, length - prefix)
                headers[place] = _header(block, at + prefix - header, header)
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
                self._count(fields[1], fields[2], max(1, fields[3]), fields[3])
            elif kind == COUNT:
                self._count(*fields[1:])
            elif kind == CHECK_OUT:
                self._check_out(*fields[1:])
            elif kind == HOLD:
                queue = self._queues.get(fields[1])
                if queue is not None and fields[2] in queue.entries:
                    queue.held[fields[2]] = (fields[3], fields[4])
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


def _header(block: bytes, at: int, size: int) -> int:
    """The size of a content header and the first octet of its properties, in one number."""
    return size << _FLAG_BITS | (block[at + PROPERTIES_AT] if size > PROPERTIES_AT else 0)
