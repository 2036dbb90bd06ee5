"""Bytes that others have compressed expand to no more than the limits allow."""

import random
import subprocess
import sys
from datetime import date
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

from redrive.errors import FormatError
from redrive.letters import DeadLetter
from redrive.settings import LimitSettings
from redrive.stores import cold, cold_files, wire, zstd
from redrive.stores.expansion import ExpansionBudget
from redrive.stores.memory import MemoryStore
from redrive.testing.factories import a_letter, a_message
from tests.unit.stores import bomb_child

LIMITS = LimitSettings(letter_bytes=400_000, compression_ratio=20, request_bytes=1_000_000)


def noise(size: int) -> bytes:
    """Bytes that do not compress."""
    return random.Random(size).randbytes(size)


def letter_of(size: int, key: str = "orders/1", *, body: bytes | None = None) -> DeadLetter:
    """A letter whose cold part has exactly so many bytes."""
    letter = a_letter(key=key, message=a_message(body=noise(size) if body is None else body))
    if body is None:
        surplus = cold.size_of(letter) + 1 - size  # one byte for the number of redrives
        letter = msgspec.structs.replace(letter, message=a_message(body=noise(size - surplus)))
    return letter


async def add(*letters: DeadLetter, limits: LimitSettings = LIMITS) -> None:
    await wire.answer(MemoryStore(), "add", wire.ask("add", {"letters": letters}), limits)


async def test_letter_at_the_limit_is_accepted_and_a_byte_more_is_refused() -> None:
    for size in (LIMITS.letter_bytes - 1, LIMITS.letter_bytes):
        await add(letter_of(size))
    with pytest.raises(FormatError, match=r"more than 400000 bytes; raise limits\.letter_bytes"):
        await add(letter_of(LIMITS.letter_bytes + 1))


async def test_request_at_the_limit_is_accepted_and_a_byte_more_is_refused() -> None:
    sizes = (400_000, 400_000, 200_000)
    await add(*(letter_of(size, f"orders/{at}") for at, size in enumerate(sizes)))
    with pytest.raises(FormatError, match=r"more than 1000000 bytes.*limits\.request_bytes"):
        await add(*(letter_of(size, f"orders/{at}") for at, size in enumerate((*sizes[:2], 200_001))))


@pytest.mark.parametrize("announced", [True, False])
def test_ratio_at_the_limit_is_accepted_and_a_byte_more_is_refused(announced: bool) -> None:
    packed = packed_zeros(300_000, announced=announced)
    ratio = -(-300_000 // len(packed))
    for limit, is_accepted in ((ratio + 1, True), (ratio, True), (ratio - 1, False)):
        budget = ExpansionBudget(LimitSettings(compression_ratio=limit))
        data = b"\x03" + crc32(packed).to_bytes(4) + packed
        if is_accepted:
            assert len(cold._expand(data, budget)) == 300_000
        else:
            with pytest.raises(
                FormatError, match=rf"more than {limit} times; raise limits\.compression_ratio"
            ):
                cold._expand(data, budget)


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536])
def test_ratio_of_small_parts_is_not_limited(size: int, announced: bool) -> None:
    packed = packed_zeros(size, announced=announced)
    data = b"\x03" + crc32(packed).to_bytes(4) + packed
    assert len(cold._expand(data, ExpansionBudget(LimitSettings(compression_ratio=1)))) == size


def packed_zeros(size: int, *, announced: bool) -> bytes:
    compressor = zstd.ZstdCompressor()
    compressor.set_pledged_input_size(size if announced else None)
    packed = compressor.compress(bytes(size)) + compressor.flush()
    assert zstd.get_frame_info(packed).decompressed_size == (size if announced else None)
    return packed


async def test_letter_that_compresses_well_is_sent_uncompressed_and_accepted() -> None:
    letter = letter_of(0, body=bytes(2_000_000))
    await add(letter, limits=LimitSettings())
    assert len(wire.ask("add", {"letters": [letter]})) > 2_000_000
    assert len(cold.pack_content(letter)) < 2000  # in a database it is not


def test_letters_of_a_database_are_not_limited() -> None:
    letter = letter_of(0, body=bytes(2_000_000))
    assert cold.unpack_content(cold.pack_content(letter))["message"] == letter.message


def test_a_damaged_letter_is_refused_whatever_it_announces() -> None:
    packed = packed_zeros(70_000, announced=True)[:-5]
    data = b"\x03" + crc32(packed).to_bytes(4) + packed
    with pytest.raises(FormatError, match="cannot be expanded"):
        cold._expand(data, ExpansionBudget(LimitSettings(compression_ratio=100_000)))


# --- files ---


def written(directory: Path, *letters: DeadLetter) -> Path:
    return cold_files.write(directory, letters, day=date(2026, 2, 11))


def test_letter_of_a_file_at_the_limit_is_read_and_a_byte_more_is_refused(tmp_path: Path) -> None:
    limits = LimitSettings(letter_bytes=100_000)
    for size in (99_999, 100_000):
        path = written(tmp_path, letter := letter_of(size))
        assert list(cold_files.read(path, limits)) == [letter]
    path = written(tmp_path, letter_of(100_002))
    with pytest.raises(
        FormatError, match=r"line 2: a letter has more than 100000 bytes.*limits\.letter_bytes"
    ):
        list(cold_files.read(path, limits))
    assert len(list(cold_files.read(path))) == 1  # a file of our own


def test_line_of_a_file_that_compresses_well_is_read_up_to_a_megabyte(tmp_path: Path) -> None:
    small, large = letter_of(0, body=b"x" * 1_000_000), letter_of(0, body=b"x" * 1_100_000)
    assert list(cold_files.read(written(tmp_path, small), LimitSettings())) == [small]
    path = written(tmp_path, large)
    with pytest.raises(FormatError, match=r"more than 200 times; raise limits\.compression_ratio"):
        list(cold_files.read(path, LimitSettings()))
    assert list(cold_files.read(path, LimitSettings(compression_ratio=100_000))) == [large]


def test_file_that_compresses_well_is_read_up_to_the_size_of_a_letter(tmp_path: Path) -> None:
    letters = [letter_of(0, f"orders/{at}", body=b"x" * 20_000) for at in range(40)]
    path = written(tmp_path, *letters)
    size = sum(len(cold_files.line_of(letter)) for letter in letters)
    assert size > 60 * path.stat().st_size
    limits = LimitSettings(letter_bytes=size + 1000, compression_ratio=10)
    assert list(cold_files.read(path, limits)) == letters
    with pytest.raises(FormatError, match=r"more than 10 times"):
        list(cold_files.read(path, LimitSettings(letter_bytes=size // 2, compression_ratio=10)))


# --- bombs ---


@pytest.mark.parametrize("name", list(bomb_child.bombs(Path())))
def test_a_bomb_costs_little_memory_and_is_refused_with_the_limit(tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.stores.bomb_child", name, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    grown, _, said = done.stdout.partition(" ")
    assert int(grown) < 200, said
    assert "raise limits." in said or "nest" in name or "not a complete line" in said, said
    assert "accepted" not in said
