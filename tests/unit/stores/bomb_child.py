"""Reads one bomb, and prints by how many megabytes the process has grown and what was said.

Run as a process of its own, because memory that was once taken stays in the maximum.
"""

import asyncio
import resource
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from zlib import crc32

import msgspec

from redrive.errors import FormatError
from redrive.settings import LimitSettings
from redrive.stores import cold_files, wire, zstd
from redrive.stores.memory import MemoryStore
from redrive.testing.factories import a_letter

SIZE = 512 * 1024 * 1024
ZEROS = bytes(1024 * 1024)


def zeros(*, announced: bool) -> bytes:
    """The compressed form of many zeros, with its size in the header or without."""
    compressor = zstd.ZstdCompressor(level=1)
    compressor.set_pledged_input_size(SIZE if announced else None)
    pieces = [compressor.compress(ZEROS) for _ in range(SIZE // len(ZEROS))]
    return b"".join((*pieces, compressor.flush()))


def letter_with(content: bytes) -> bytes:
    """A request to add a letter whose content is packed like this."""
    packed = b"\x03" + crc32(content).to_bytes(4) + content
    letter = wire._letter_out(a_letter())
    return msgspec.msgpack.encode({"letters": [msgspec.structs.replace(letter, content=packed)]})


def answer(question: bytes) -> None:
    asyncio.run(wire.answer(MemoryStore(), "add", question))


def import_file(path: Path) -> None:
    for _ in cold_files.read(path, LimitSettings()):
        pass


def bombs(directory: Path) -> dict[str, Callable[[], None]]:
    """What explodes, by name."""
    return {
        "announced": lambda: answer(letter_with(zeros(announced=True))),
        "unannounced": lambda: answer(letter_with(zeros(announced=False))),
        "nested": lambda: answer(b"\x81\xa7letters" + b"\x91" * 200_000 + b"\xc0"),
        "nested content": lambda: answer(letter_with(zstd.compress(b"\x91" * 200_000 + b"\xc0"))),
        "file of one line": lambda: import_file(file_of(directory, b"0" * len(ZEROS))),
        "file of empty lines": lambda: import_file(file_of(directory, b"\n" * len(ZEROS))),
        "file of a nested line": lambda: import_file(nested_file(directory)),
    }


def file_of(directory: Path, piece: bytes) -> Path:
    path = directory / "bomb.jsonl.zst"
    with zstd.ZstdFile(path, "wb", level=1) as stream:
        stream.write(cold_files._sealed(b"file", b'{"format":"redrive-letters","version":2}'))
        for _ in range(SIZE // len(piece)):
            stream.write(piece)
    return path


def nested_file(directory: Path) -> Path:
    line = cold_files._sealed(b"letter", b'{"x":' + b"[" * 500_000 + b"]" * 500_000 + b"}")
    return cold_files.write_lines(directory, [line], day=date(2026, 2, 11))


def main() -> None:
    answer(b"\x81\xa7letters\x90")  # what is loaded once is not counted
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        bombs(Path(sys.argv[2]))[sys.argv[1]]()
        said = "accepted"
    except FormatError as error:
        said = str(error)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    sys.stdout.write(f"{grown} {said}\n")


if __name__ == "__main__":
    main()
