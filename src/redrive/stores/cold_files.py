"""Where do letters go that the database should not keep for ever?

Into files named `letters-YYYY-MM-DD-NNN.jsonl.zst`: compressed lines of JSON, one per letter, that a person can read
with `zstd -dc` and that give back every byte, type and time. The first line says what the file is, the last one how
many letters it has; each line carries a checksum of itself, and the last one a checksum of them all.

The rule: a file is whole or is not there. It is written beside its name, flushed to the disk, and only then named. What
is damaged later is found when it is read, and everything before the damage is given. A letter is written only if the
line gives it back exactly; it knows the letters' shape and nothing of why they are put away.
"""

import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from redrive.errors import FormatError, LetterInvalidError, StoreError, StoreFullError, StoreReadOnlyError
from redrive.letters import DeadLetter
from redrive.private_files import make_private_directory
from redrive.settings import LimitSettings
from redrive.stores.cold import size_of
from redrive.stores.cold_lines import from_json, to_json
from redrive.stores.expansion import too_high_ratio, too_large_letter
from redrive.stores.zstd import (
    CompressionParameter,
    DecompressionParameter,
    ZstdDecompressor,
    ZstdError,
    ZstdFile,
)

FORMAT: Final = "redrive-letters"
VERSION: Final = 2  # 1 had `transport` instead of `broker`; it is still read
LONGEST_LINE: Final = 1_800_000_000  # the largest letter that a store takes, as JSON
_NAME: Final = re.compile(r"letters-(\d{4}-\d{2}-\d{2})-(\d{3,})\.jsonl\.zst")
_TEMPORARY: Final = ".letters-"
_PIECE: Final = 1024  # small, because a piece in which the damage begins gives nothing
_COMPRESSION: Final[Mapping[int, int]] = {
    CompressionParameter.compression_level: 9,
    CompressionParameter.checksum_flag: 1,
}
# A file may request 128 MiB of memory.
_MAX_WINDOW: Final[Mapping[int, int]] = {DecompressionParameter.window_log_max: 27}
_FREE_LINE_BYTES: Final = 2**20  # a line of this length may have any ratio: letters repeat themselves
_MAX_JSON_GROWTH: Final = 2  # how many times its size a letter may have as JSON
# {"sum":"0123456789abcdef","letter":{…}}
_LINE: Final = re.compile(rb'\{"sum":"([0-9a-f]{16})","(file|letter|end)":(\{.*\})\}', re.DOTALL)


class ColdFile(msgspec.Struct, frozen=True):
    """A file of letters."""

    path: Path
    day: date
    number: int
    size: int


class _Opening(msgspec.Struct, frozen=True):
    format: str
    version: int


class _End(msgspec.Struct, frozen=True):
    count: int
    sum: str


# --- writing ---------------------------------------------------------------------------------------------


def line_of(letter: DeadLetter) -> bytes:
    """The letter as a line, or a `LetterInvalidError` if the line would not give it back exactly."""
    try:
        content = to_json(letter)
        again = from_json(content, version=VERSION)
    except (ValueError, TypeError, RecursionError, OverflowError, FormatError) as error:
        raise LetterInvalidError(
            f"letter {letter.id} cannot be written to an archive file: {error}"
        ) from error
    if again != letter:
        raise LetterInvalidError(f"letter {letter.id} cannot be written to an archive file without loss")
    return _sealed(b"letter", content)


def write(directory: Path, letters: Iterable[DeadLetter], *, day: date) -> Path:
    """A new file with these letters, safe on the disk; one that cannot be written exactly stops it."""
    return write_lines(directory, [line_of(letter) for letter in letters], day=day)


def write_lines(directory: Path, lines: Sequence[bytes], *, day: date) -> Path:
    """A new file of what `line_of` gave, safe on the disk."""
    if not lines:
        raise StoreError("an archive file must contain at least one letter")
    try:
        make_private_directory(directory)
        handle, name = tempfile.mkstemp(".tmp", f"{_TEMPORARY}{day.isoformat()}-", directory)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                _write(file, lines)
                file.flush()
                os.fsync(file.fileno())
            path = _named(temporary, directory, day)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        _sync(directory)
    except OSError as error:
        raise _translated(error, directory) from error
    return path


def _write(file: IO[bytes], lines: Sequence[bytes]) -> None:
    whole = blake2b(digest_size=8)
    with ZstdFile(file, "w", options=_COMPRESSION) as stream:
        stream.write(_sealed(b"file", msgspec.json.encode(_Opening(FORMAT, VERSION))))
        for line in lines:
            whole.update(line)
            stream.write(line)
        stream.write(_sealed(b"end", msgspec.json.encode(_End(len(lines), whole.hexdigest()))))


def _sealed(kind: bytes, content: bytes) -> bytes:
    return b'{"sum":"%b","%b":%b}\n' % (_sum(kind + content), kind, content)


def _sum(content: bytes) -> bytes:
    return blake2b(content, digest_size=8).hexdigest().encode()


def _named(temporary: Path, directory: Path, day: date) -> Path:
    """The file under the next free name. A link never replaces a file, as a rename would: two may write at once."""
    number = max((file.number for file in listing(directory) if file.day == day), default=0)
    while True:
        number += 1
        path = directory / f"letters-{day.isoformat()}-{number:03}.jsonl.zst"
        try:
            os.link(temporary, path)
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}:
                raise
            if path.exists():  # no links on this file system: a look and a rename have to do
                continue
            temporary.rename(path)
        else:
            temporary.unlink()
        return path


def _sync(directory: Path) -> None:
    """Make the names in a directory durable, and its own name in the one above."""
    for place in (directory, directory.parent):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _translated(error: OSError, place: Path) -> StoreError:
    told = f"archive files cannot be written to {place}: {error.strerror or error}"
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return StoreFullError(f"{told}; free disk space")
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return StoreReadOnlyError(f"{told}; make it writable")
    return StoreError(told)


# --- reading ---------------------------------------------------------------------------------------------


def read(path: Path, limits: LimitSettings | None = None) -> Iterator[DeadLetter]:
    """The letters of a file. At damage a `FormatError` says so, after every letter before it was given.

    `limits` are for files of others: what is beyond one of them is refused before it is expanded.
    """
    whole = blake2b(digest_size=8)
    count = 0
    ended = opened = False
    version = VERSION
    for number, line in enumerate(_lines(path, limits), 1):
        if ended:
            raise FormatError(f"{path.name}: unexpected data after the end")
        kind, content = _opened(path, number, line)
        if opened is (kind == b"file"):
            raise FormatError(f"{path.name}, line {number}: unexpected '{kind.decode()}'")
        if kind == b"file":
            version = _read_opening(path, content)
            opened = True
        elif kind == b"letter":
            try:
                letter = from_json(content, version=version)
            except (ValueError, TypeError, RecursionError, FormatError) as error:
                raise FormatError(f"{path.name}, line {number}: not a letter: {error}") from error
            if (
                limits is not None
                and len(line) > limits.letter_bytes // 8
                and size_of(letter) > limits.letter_bytes
            ):
                raise FormatError(f"{path.name}, line {number}: {too_large_letter(limits)}")
            whole.update(line)
            count += 1
            yield letter
        else:
            _check_end(path, content, count, whole.hexdigest())
            ended = True
    if not ended:
        raise FormatError(f"{path.name} ends after {count} letters, before its last line: it is truncated")


def _opened(path: Path, number: int, line: bytes) -> tuple[bytes, bytes]:
    found = _LINE.fullmatch(line, 0, len(line) - 1) if line.endswith(b"\n") else None
    if found is None:
        raise FormatError(f"{path.name}, line {number}: not a complete line of an archive file")
    total, kind, content = found.groups()
    if _sum(kind + content) != total:
        raise FormatError(f"{path.name}, line {number}: it was modified or damaged after it was written")
    return kind, content


def _read_opening(path: Path, content: bytes) -> int:
    """The version of the file, if it is one that can be read."""
    opening: _Opening = _decoded(path, content, _Opening)
    if opening.format != FORMAT:
        raise FormatError(f"{path.name} contains '{opening.format:.40}', not letters")
    if opening.version > VERSION:
        raise FormatError(f"{path.name} was written by a newer redrive (version {opening.version}); upgrade")
    return opening.version


def _check_end(path: Path, content: bytes, count: int, total: str) -> None:
    end = _decoded(path, content, _End)
    if (end.count, end.sum) != (count, total):
        raise FormatError(
            f"{path.name} was written with {end.count} letters, but contains {count} or different ones"
        )


def _decoded(path: Path, content: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise FormatError(f"{path.name}: {error}") from error


def _lines(path: Path, limits: LimitSettings | None) -> Iterator[bytes]:
    """The lines of a file as far as it can be expanded; the last may be without its end."""
    meter = _Meter(path.name, limits)
    pieces: list[bytes] = []
    for packed, data in _expanded(path):
        meter.read(packed)
        start = 0
        while (end := data.find(b"\n", start) + 1) > 0:
            meter.expanded(end - start)
            yield b"".join((*pieces, data[start:end]))
            pieces = []
            meter.begin_line(packed)
            start = end
        if start < len(data):
            meter.expanded(len(data) - start)
            pieces.append(data[start:])
    if pieces:
        yield b"".join(pieces)


class _Meter:
    """How much of a file was read and what it has expanded to, and whether that is within the limits."""

    def __init__(self, name: str, limits: LimitSettings | None) -> None:
        self._name = name
        self._limits = limits
        self._file_read = self._file_expanded = 0
        self._line_read = self._line_expanded = 0

    def read(self, count: int) -> None:
        """So many bytes of the file have been read."""
        self._file_read += count
        self._line_read += count

    def expanded(self, count: int) -> None:
        """So many bytes more belong to the current line."""
        self._file_expanded += count
        self._line_expanded += count
        limits = self._limits
        if limits is None:
            if self._line_expanded > LONGEST_LINE:
                raise FormatError(f"{self._name} has a line of more than {LONGEST_LINE} bytes")
            return
        if self._line_expanded > max(_FREE_LINE_BYTES, limits.compression_ratio * self._line_read) or (
            self._file_expanded > max(limits.letter_bytes, limits.compression_ratio * self._file_read)
        ):
            raise FormatError(f"{self._name}: {too_high_ratio(limits)}")
        if self._line_expanded > _MAX_JSON_GROWTH * limits.letter_bytes:
            raise FormatError(f"{self._name}: {too_large_letter(limits)}")

    def begin_line(self, read: int) -> None:
        """A line has ended; so many bytes of the file, at most, belong to what is there of the next one."""
        self._line_read, self._line_expanded = read, 0


def _expanded(path: Path) -> Iterator[tuple[int, bytes]]:
    """Pieces of the file: how many bytes each has, and what it expands to, which is 32 MB at the most."""
    try:
        with path.open("rb", buffering=1 << 16) as file:
            stream = ZstdDecompressor(options=_MAX_WINDOW)
            while piece := file.read(_PIECE):
                if stream.eof:
                    raise FormatError(f"{path.name}: unexpected data after the end")
                yield len(piece), stream.decompress(piece)
            if stream.unused_data:
                raise FormatError(f"{path.name}: unexpected data after the end")
            if not stream.eof:
                raise FormatError(f"{path.name} is truncated: its end is missing")
    except ZstdError as error:
        raise FormatError(f"{path.name} is damaged or is not an archive file: {error}") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error


# --- looking ---------------------------------------------------------------------------------------------


def listing(directory: Path) -> list[ColdFile]:
    """The files of a directory, the oldest first; anything else in there is passed over."""
    try:
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{directory} cannot be read: {error.strerror or error}") from error
    files = []
    for name in names:
        if (found := _NAME.fullmatch(name)) is None:
            continue
        with suppress(ValueError, OSError):  # no such day; gone meanwhile
            day, path = date.fromisoformat(found[1]), directory / name
            files.append(ColdFile(path, day, int(found[2]), path.stat().st_size))
    return sorted(files, key=lambda file: (file.day, file.number))


def sweep(directory: Path, *, before: datetime) -> int:
    """Remove what writers that were killed have left, if it is older than `before`; how many files that were."""
    removed = 0
    for path in directory.glob(f"{_TEMPORARY}*.tmp"):
        with suppress(OSError):
            if path.stat().st_mtime < before.timestamp():
                path.unlink()
                removed += 1
    return removed
