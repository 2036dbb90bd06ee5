"""How do records lie in files, so that a crash or a bad disk is always noticed?

A journal is a directory of segment files, numbered upwards. A segment is a header and then blocks; a block is what
one flush wrote (or a part of it, if that was large)::

    segment   "redriveJ" │ version │ salt │ number │ first sequence │ crc │ block │ block │ …
    block     "RDB1" │ length │ crc │ back │ sequence │ payload: whole records, `length` bytes

- `sequence` counts blocks, over all segments, without a gap: a lost block is seen even where a whole file is lost.
- `back` says how many blocks of the same flush stand before this one. A flush starts only after the one before it is
  on disk. So a bad block with a good one of a *later* flush behind it was once whole: that is **damage**, and an
  error. A bad block with nothing of that kind behind it is what an interrupted write leaves: a **torn tail**, which
  nobody was told about; it is cut off and reported. Only the newest segment can have one, because a segment is synced
  before its successor is made.
- The checksum covers every byte of a block but itself, and starts from the journal's salt, a random number: nobody
  can publish a body that is taken for a block when a damaged place is searched for the next good one.

A segment is made under a temporary name, synced, renamed, and its directory synced: it exists with its whole header
or not at all. `segments_repair` takes damaged parts out and leaves a *hole* block in their place, which says with which
sequence it goes on.

It does not know what the records say.
"""

import fcntl
import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from redrive.broker.journal_errors import (
    JournalBusyError,
    JournalDamagedError,
    JournalError,
    JournalReplacedError,
    JournalVersionError,
    is_same_file,
    translated,
)
from redrive.private_files import make_private_directory, private_opener

VERSION: Final = 1
LARGEST_BLOCK: Final = 1 << 20  # a block is cut at this size, give or take one record

_MAGIC: Final = b"redriveJ"
OPENING: Final = Struct("<8sHIQQI")
_BLOCK_MAGIC: Final = b"RDB1"
_BLOCK: Final = Struct("<4sIIIQ")
_COVERED: Final = Struct("<IIQ")  # the fields of a block's head that its checksum covers
HOLE: Final = 0xFFFF_FFFF  # as `back`: the payload is the sequence to go on with
_NAME: Final = re.compile(r"(\d{12})\.journal(\.tmp|\.damaged)?")
_NEIGHBOURS: Final = {"lock", "lost+found"}
_sync_data = getattr(os, "fdatasync", os.fsync)


class Segment:
    """One file: where its blocks begin, and how much of it is still needed.

    Offsets of records count payload bytes only. They are known before anything is written, whatever blocks a flush
    will make of them; `blocks` leads from there to the place in the file.
    """

    __slots__ = ("blocks", "first", "live", "live_bytes", "number", "path", "salt", "size", "written")

    def __init__(self, directory: Path, number: int, salt: int = 0) -> None:
        self.number = number
        self.salt = salt  # known once the header was read
        self.path = directory / f"{number:012}.journal"
        self.first = 0  # the sequence of its first block
        self.blocks = array("I")  # offset of the first record of each block
        self.size = 0  # payload bytes; of the newest segment, those that were there when it was opened
        self.written = 0  # those that can be read back
        self.live = 0  # messages that are needed and lie here
        self.live_bytes = 0


class Block(NamedTuple):
    """A block of a segment whose checksum is right."""

    at: int
    end: int
    sequence: int
    back: int
    payload: bytes

    @property
    def is_hole(self) -> bool:
        """Whether something was lost here and taken out."""
        return self.back == HOLE

    @property
    def following(self) -> int:
        """The sequence of the block after it."""
        return int.from_bytes(self.payload, "little") if self.is_hole else self.sequence + 1

    @property
    def flush(self) -> int:
        """The sequence at which its flush began."""
        return self.sequence if self.is_hole else self.sequence - self.back


def read_record(segment: Segment, file: int, offset: int, length: int) -> bytes:
    """A record of a segment; it is not checked."""
    before = bisect_right(segment.blocks, offset)
    with translated(segment.path, "read"):
        return os.pread(file, length, OPENING.size + before * _BLOCK.size + offset)


def read_block(segment: Segment, file: int, index: int) -> Block:
    """A block of a finished segment, checked."""
    start = segment.blocks[index]
    end = segment.blocks[index + 1] if index + 1 < len(segment.blocks) else segment.written
    at = OPENING.size + index * _BLOCK.size + start
    with translated(segment.path, "read"):
        block = _block_at(os.pread(file, _BLOCK.size + end - start, at), 0, segment.salt)
    if isinstance(block, str):
        raise JournalDamagedError(f"{segment.path} is damaged at byte {at}: {block}; {_ADVICE}")
    return block


def framed(payload: bytes, back: int, sequence: int, salt: int) -> tuple[bytes, bytes]:
    """A block: its head and its payload."""
    crc = crc32(payload, crc32(_COVERED.pack(len(payload), back, sequence), salt))
    return _BLOCK.pack(_BLOCK_MAGIC, len(payload), crc, back, sequence), payload


def opening(segment: Segment, first: int) -> bytes:
    """The header of a segment."""
    covered = OPENING.pack(_MAGIC, VERSION, segment.salt, segment.number, first, 0)[:-4]
    return covered + crc32(covered).to_bytes(4, "little")


def read_opening(segment: Segment, data: bytes) -> int:
    """The first sequence of a segment, from its first bytes."""
    if len(data) < OPENING.size:
        raise JournalDamagedError(f"{segment.path} has a truncated header; {_ADVICE}")
    magic, version, segment.salt, number, first, crc = OPENING.unpack_from(data)
    if magic != _MAGIC:
        raise JournalDamagedError(f"{segment.path} is not a journal file; {_ADVICE}")
    if version != VERSION:
        raise JournalVersionError(
            f"{segment.path} has format {version}, but this version of redrive reads format {VERSION}; "
            "use the version that wrote it"
        )
    if crc != crc32(data[: OPENING.size - 4]) or number != segment.number:
        raise JournalDamagedError(f"{segment.path} has a damaged header; {_ADVICE}")
    return int(first)


_ADVICE: Final = "restore it from a backup, or start with --salvage to keep the readable part"


def _block_at(data: bytes, at: int, salt: int) -> Block | str:
    """The block that starts there, or why there is none."""
    if at + _BLOCK.size > len(data):
        return "a block header is truncated"
    magic, length, crc, back, sequence = _BLOCK.unpack_from(data, at)
    if magic != _BLOCK_MAGIC:
        return "no block starts here"
    start = at + _BLOCK.size
    end = start + length
    if end > len(data):
        return "a block is truncated"
    payload = data[start:end]
    if crc != crc32(payload, crc32(_COVERED.pack(length, back, sequence), salt)):
        return "checksum mismatch"
    return Block(at, end, sequence, back, payload)


def next_block(data: bytes, at: int, sequence: int, salt: int) -> Block | None:
    """The first good block from `at` on that is not older than `sequence`."""
    while (at := data.find(_BLOCK_MAGIC, at)) >= 0:
        block = _block_at(data, at, salt)
        if isinstance(block, Block) and block.sequence >= sequence:
            return block
        at += 1
    return None


class Reading:
    """One pass over a segment; `torn` says afterwards what was cut off at `end`, if anything was."""

    def __init__(self, segment: Segment, *, newest: bool) -> None:
        self.segment = segment
        self.newest = newest
        self.torn: str | None = None
        self.dropped = 0
        self.end = 0

    def blocks(self, expected: int | None) -> Iterator[Block]:
        """The blocks, in order; `expected` is the sequence that the first one must have."""
        path = self.segment.path
        with translated(path, "read"):
            data = path.read_bytes()
        if self.newest and len(data) < OPENING.size:
            self._tear(data, "the header is truncated")
            return
        sequence = self.segment.first = read_opening(self.segment, data)
        if expected is not None and sequence != expected:
            raise JournalDamagedError(
                f"{path} starts with block {sequence}, but block {expected} was expected; {_ADVICE}"
            )
        self.end = OPENING.size
        while self.end < len(data):
            block = _block_at(data, self.end, self.segment.salt)
            if isinstance(block, Block) and block.sequence != sequence:
                block = f"expected block {sequence}, found {block.sequence}"
            if isinstance(block, str):
                later = next_block(data, self.end + 1, sequence + 1, self.segment.salt)
                if not self.newest or (later and later.flush > sequence):
                    raise JournalDamagedError(f"{path} is damaged at byte {self.end}: {block}; {_ADVICE}")
                self._tear(data, block)
                return
            yield block
            self.end = block.end
            sequence = block.following

    def _tear(self, data: bytes, reason: str) -> None:
        self.dropped = len(data) - self.end
        self.torn = (
            f"{self.segment.path} has an incomplete end at byte {self.end}: {reason}; {self.dropped} "
            "bytes were dropped"
        )


def mend(reading: Reading) -> bool:
    """Cut a torn tail off and make sure that what was read is on disk; whether the file is still there."""
    path = reading.segment.path
    with translated(path, "mend"):
        if not reading.end:
            path.unlink()
        else:
            with path.open("r+b") as file:
                if reading.torn:
                    file.truncate(reading.end)
                os.fsync(file.fileno())
        sync_directory(path.parent)
    return bool(reading.end)


class Writing:
    """Where the next block goes. It belongs to the thread that flushes."""

    def __init__(self, segment: Segment, sequence: int) -> None:
        self._segment = segment
        self._sequence = sequence  # of the next block
        with translated(segment.path, "open"):
            self._file = os.open(segment.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            opened = os.fstat(self._file)
        self._opened = (opened.st_dev, opened.st_ino)

    @classmethod
    def start(cls, segment: Segment, sequence: int) -> "Writing":
        """Make the segment's file, durably."""
        segment.first = sequence
        create(segment.path, [opening(segment, sequence)])
        return cls(segment, sequence)

    def roll(self, segment: Segment) -> "Writing":
        """Finish this segment and start the next one."""
        self.sync()
        self.close()
        return Writing.start(segment, self._sequence)

    def write(self, records: list[bytes]) -> None:
        """Write records as one block, or several where they are large."""
        if sum(map(len, records)) <= LARGEST_BLOCK:
            self._write(b"".join(records), 0)
            return
        back = start = taken = 0
        for index, end in enumerate(accumulate(map(len, records)), 1):
            if end - taken >= LARGEST_BLOCK or index == len(records):
                self._write(b"".join(records[start:index]), back)
                back += 1
                start, taken = index, end

    def _write(self, payload: bytes, back: int) -> None:
        parts = framed(payload, back, self._sequence, self._segment.salt)
        with translated(self._segment.path, "write to"):
            written = os.writev(self._file, parts)
            if written < _BLOCK.size + len(
                payload
            ):  # a nearly full disk takes what it can; the rest says why
                rest = memoryview(b"".join(parts))[written:]
                while rest:
                    rest = rest[os.write(self._file, rest) :]
        self._segment.blocks.append(self._segment.written)
        self._segment.written += len(payload)
        self._sequence += 1

    def sync(self) -> None:
        """Return when everything written is on disk, in the file that a restart will find."""
        with translated(self._segment.path, "sync"):
            _sync_data(self._file)
        if not is_same_file(self._segment.path, self._opened):
            raise JournalReplacedError(self._segment.path, self._opened)

    def close(self) -> None:
        """Let the file go."""
        os.close(self._file)


def create(path: Path, parts: Iterable[bytes]) -> None:
    """A file that has its whole content from the moment it has its name."""
    temporary = path.with_name(path.name + ".tmp")
    with translated(path, "create"):
        with open(temporary, "wb", opener=private_opener) as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make names durable: those given and those taken away."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove(segment: Segment) -> None:
    """Delete a segment's file, and return only when it stays deleted: the next older one must never go first."""
    with translated(segment.path, "delete"):
        segment.path.unlink()
        sync_directory(segment.path.parent)


def lock(directory: Path) -> int:
    """Hold the directory against other processes until the returned file is closed or the process ends."""
    with translated(directory, "open"):
        if not directory.is_dir():
            make_private_directory(directory)
            sync_directory(directory.parent)
        file = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise JournalBusyError(
                f"another broker uses the journal {directory}; stop it, or choose another directory"
            ) from None
        except OSError:
            os.close(file)
            raise
    return file


def find(directory: Path) -> list[Segment]:
    """The segments of a directory, oldest first; what an interrupted step left behind is cleaned away."""
    found = []
    with translated(directory, "read"):
        for path in sorted(directory.iterdir()):
            name = _NAME.fullmatch(path.name)
            if name is None:
                if path.name not in _NEIGHBOURS:
                    raise JournalError(
                        f"{directory} contains '{path.name}', which is not part of a journal; choose an "
                        "empty directory"
                    )
            elif name[2] == ".tmp":
                path.unlink()
            elif name[2] is None:
                found.append(Segment(directory, int(name[1])))
    return found
