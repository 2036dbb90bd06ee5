"""Cold files give back every letter exactly, are whole or not there, and tell where they are damaged."""

import contextlib
import errno
import json
import os
import stat
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from redrive.errors import FormatError, LetterInvalidError, RedriveError, StoreError, StoreFullError
from redrive.letters import (
    DeadLetter,
    Failure,
    FailureKind,
    Headers,
    HeaderValue,
    LetterState,
    Message,
    Note,
    Origin,
    RedriveAttempt,
    SystemState,
    TypedValue,
)
from redrive.stores import cold_files, zstd
from redrive.stores.cold_lines import from_json, to_json
from redrive.testing import a_letter, letters

DAY = date(2026, 2, 11)
NOW = datetime(2026, 2, 11, 12, 0, 0, 123456, tzinfo=UTC)


def lines_in(path: Path) -> list[bytes]:
    return zstd.decompress(path.read_bytes()).splitlines(keepends=True)


def as_file(path: Path, lines: list[bytes]) -> Path:
    checksum: dict[int, int] = {zstd.CompressionParameter.checksum_flag: 1}
    path.write_bytes(zstd.compress(b"".join(lines), options=checksum))
    return path


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def give(path: Path) -> tuple[list[DeadLetter], str]:
    """All letters before the damage, and what was said of it."""
    found: list[DeadLetter] = []
    try:
        for letter in cold_files.read(path):
            found.append(letter)  # noqa: PERF402  what came before the error counts
    except RedriveError as error:
        return found, str(error)
    return found, ""


# --- the round trip --------------------------------------------------------------------------------------

FULL = msgspec.structs.replace(
    a_letter("payments/3/17", tags=("vip", "late"), priority=-4),
    message=Message(
        body=b"\x00\xff", key=b"", content_type="application/json", content_encoding="gzip", message_id="m",
        correlation_id="c", sent_at=NOW,
        headers=Headers(
            [("twice", 1), ("twice", True), ("twice", 1.0), ("n", Decimal("1.10")), ("t", TypedValue("int16", 5)),
             ("big", 2**70), ("nan", float("nan")), ("inf", float("-inf")), ("bytes", b"north"), ("raw", b"\xfe"),
             ("time", NOW), ("uuid", UUID(int=9)), ("odd", "a\udcff"), ("nul", "a\x00"), ("none", None),
             ("table", Headers([("x", (1, "2", b"3")), ("x", Headers())])), ("", "")]
        ),
        properties=Headers({"delivery_mode": TypedValue("uint8", 2)}),
    ),
    origin=Origin(transport="kafka", source="orders", partition=3, offset=17, consumer_group="shop", endpoint="b",
                  dead_letter_source="orders.dlq"),
    failure=Failure(error_type="E", text="multi\nline", at=NOW, kind=FailureKind.TIMEOUT, stack="s\n",
                    retry_after=timedelta(days=1, microseconds=1)),
    system_state=SystemState(0.75, 0.6), derived_from="older", consumer_group="shop",
    state=LetterState.FAILED, dlq_retry_count=5, fence=9,
    strategy="immediate", assignee="ann", created_at=NOW, updated_at=NOW, sent_at=NOW, presumed=True,
    attempts=(
        RedriveAttempt(number=1, started_at=NOW, ended_at=NOW, worker="w", strategy=None, result="failed", fence=1),
    ),
    notes=(Note(NOW, "ann", "a note"), Note(NOW, "bob", "two\nlines")),
)  # fmt: skip


def test_a_full_letter_comes_back_exactly(tmp_path: Path) -> None:
    path = cold_files.write(tmp_path, [FULL], day=DAY)
    [letter] = cold_files.read(path)
    assert letter == FULL
    assert letter.message.headers == FULL.message.headers
    assert type(letter.message.headers[2][1]) is float


def test_a_line_can_be_read_by_a_person(tmp_path: Path) -> None:
    path = cold_files.write(tmp_path, [a_letter("orders/1")], day=DAY)
    opening, line, end = map(json.loads, lines_in(path))
    assert opening["file"] == {"format": "redrive-letters", "version": 2}
    assert end["end"]["count"] == 1
    letter = line["letter"]
    assert letter["state"] == "dlq_pending"
    assert letter["message"]["body"] == {"text": '{"order": 12345}'}
    assert letter["message"]["headers"] == [["x-tenant", "north"], ["x-hops", 2]]
    assert letter["origin"]["routing_key"] == "orders"
    assert letter["failure"]["text"] == "External API timeout after 5000ms"
    assert letter["last_failed_at"] == "2026-02-11T11:00:00Z"


header_values: st.SearchStrategy[HeaderValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary()
    | st.decimals(allow_nan=False) | st.uuids()
    | st.datetimes(timezones=st.just(UTC) | st.just(timezone(timedelta(hours=2))),
                   min_value=datetime(1900, 1, 1), max_value=datetime(9000, 1, 1)),  # noqa: DTZ001
    lambda inner: st.lists(inner, max_size=3).map(tuple)
    | st.lists(st.tuples(st.text(st.characters()), inner), max_size=3).map(Headers)
    | st.builds(TypedValue, st.text(max_size=8), inner),
    max_leaves=8,
)  # fmt: skip
headers = st.lists(st.tuples(st.text(st.characters()) | st.just("twice"), header_values), max_size=4).map(
    Headers
)
odd_text = st.text(st.characters())
messages = st.builds(
    Message, body=st.none() | st.binary(), key=st.none() | st.binary(), headers=headers, properties=headers,
    content_type=st.none() | odd_text, message_id=st.none() | odd_text, correlation_id=st.none() | odd_text,
    sent_at=st.none() | st.datetimes(timezones=st.just(UTC)),
)  # fmt: skip


@settings(max_examples=300)
@given(messages, odd_text)
def test_any_message_comes_back_exactly(message: Message, error_text: str) -> None:
    failure = Failure(error_type="E", text=error_text, at=NOW)
    letter = msgspec.structs.replace(a_letter(), message=message, failure=failure)
    line = cold_files.line_of(letter)
    again = from_json(to_json(letter), version=cold_files.VERSION)
    assert again == letter
    assert again.message.body == message.body
    assert again.message.headers == message.headers
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]


def test_headers_as_deep_as_a_store_takes_them_come_back(tmp_path: Path) -> None:
    value: HeaderValue = 1
    for _ in range(60):
        value = TypedValue("table", Headers({"in": value}))
    letter = a_letter(message=Message(body=b"", headers=Headers({"deep": value}), correlation_id="c"))
    assert list(cold_files.read(cold_files.write(tmp_path, [letter], day=DAY))) == [letter]


def test_a_letter_that_would_be_changed_is_not_written(tmp_path: Path) -> None:
    letter = msgspec.structs.replace(a_letter(), system_state=SystemState(float("nan"), 0.5))
    with pytest.raises(LetterInvalidError, match="cannot be written to an archive file"):
        cold_files.write(tmp_path, [letter], day=DAY)
    assert names_in(tmp_path) == []


# --- files -----------------------------------------------------------------------------------------------


def test_files_are_numbered_within_a_day_and_listed_by_age(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "cold"
    one, two = letters(2)
    paths = [
        cold_files.write(directory, [one], day=DAY),
        cold_files.write(directory, [two], day=DAY),
        cold_files.write(directory, [one, two], day=DAY - timedelta(days=1)),
    ]
    assert [path.name for path in paths] == [
        "letters-2026-02-11-001.jsonl.zst", "letters-2026-02-11-002.jsonl.zst", "letters-2026-02-10-001.jsonl.zst",
    ]  # fmt: skip
    assert [file.path for file in cold_files.listing(directory)] == [paths[2], paths[0], paths[1]]
    assert [letter.key for letter in cold_files.read(paths[2])] == ["orders/0", "orders/1"]


def test_the_thousandth_file_of_a_day_has_a_name_too(tmp_path: Path) -> None:
    (tmp_path / "letters-2026-02-11-999.jsonl.zst").touch()
    assert cold_files.write(tmp_path, letters(1), day=DAY).name == "letters-2026-02-11-1000.jsonl.zst"
    assert [file.number for file in cold_files.listing(tmp_path)] == [999, 1000]


def test_a_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = cold_files.write(tmp_path, letters(1), day=DAY)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_not_a_cold_file_is_passed_over(tmp_path: Path) -> None:
    for name in (
        "notes.txt",
        ".letters-2026-02-11-x.tmp",
        "letters-2026-99-99-001.jsonl.zst",
        "letters-1.jsonl.zst",
    ):
        (tmp_path / name).write_bytes(b"torn")
    path = cold_files.write(tmp_path, letters(1), day=DAY)
    assert [file.path for file in cold_files.listing(tmp_path)] == [path]
    assert cold_files.listing(tmp_path / "nothing") == []


def test_what_killed_writers_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    old, new = tmp_path / ".letters-2026-02-11-a.tmp", tmp_path / ".letters-2026-02-11-b.tmp"
    old.write_bytes(b"torn")
    new.write_bytes(b"torn")
    os.utime(old, (0, NOW.timestamp() - 10))
    os.utime(new, (0, NOW.timestamp() + 10))
    assert cold_files.sweep(tmp_path, before=NOW) == 1
    assert names_in(tmp_path) == [new.name]


def test_a_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="archive files cannot be written to"):
        cold_files.write(tmp_path / "file", letters(1), day=DAY)


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFullError, match="free disk space"):
        cold_files.write(tmp_path, letters(1), day=DAY)
    assert names_in(tmp_path) == []


def test_a_file_system_without_links_is_served_by_a_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    paths = [cold_files.write(tmp_path, letters(1), day=DAY) for _ in range(2)]
    assert names_in(tmp_path) == [path.name for path in paths]


def test_an_empty_file_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="at least one letter"):
        cold_files.write(tmp_path, [], day=DAY)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        list(cold_files.read(tmp_path / "letters-2026-02-11-001.jsonl.zst"))


# --- damage ----------------------------------------------------------------------------------------------


def test_every_length_of_a_cut_file_is_noticed(tmp_path: Path) -> None:
    path = cold_files.write(tmp_path, letters(20), day=DAY)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        found, told = give(path)
        assert told, f"a file cut at {length} of {len(data)} bytes was taken for whole"
        assert [letter.key for letter in found] == [f"orders/{n}" for n in range(len(found))]


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    whole = letters(20)
    path = cold_files.write(tmp_path, whole, day=DAY)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        found, told = give(path)
        assert found == whole[: len(found)], f"a flipped byte at {at} gave a wrong letter"
        # What a flip leaves as it was is no damage: some bits of a frame's head say nothing about its content.
        assert told or found == whole


def test_what_is_whole_before_the_damage_is_given(tmp_path: Path) -> None:
    whole = [
        a_letter(f"orders/{n}", message=Message(body=os.urandom(2000), correlation_id="c"))
        for n in range(500)
    ]
    path = cold_files.write(tmp_path, whole, day=DAY)
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 0xFF
    path.write_bytes(data)
    found, told = give(path)
    assert told
    assert found == whole[: len(found)]
    assert 250 < len(found) < 400


def changed(line: bytes, old: bytes, new: bytes) -> bytes:
    assert old in line
    return line.replace(old, new)


def test_a_line_that_was_changed_added_or_lost_is_noticed(tmp_path: Path) -> None:
    path = cold_files.write(tmp_path, letters(3), day=DAY)
    opening, one, two, three, end = lines_in(path)
    cases = {
        "line 3: it was modified or damaged": [opening, one, changed(two, b"12345", b"12346"), three, end],
        "was written with 3 letters, but contains 2": [opening, one, three, end],
        "or different ones": [opening, two, one, three, end],
        "was written with 3 letters, but contains 4": [opening, one, two, three, three, end],
        "before its last line": [opening, one, two, three],
        "line 1: unexpected 'letter'": [one, two, three, end],
        "unexpected data after the end": [opening, one, two, three, end, one],
        "line 2: unexpected 'file'": [opening, opening, one, two, three, end],
        "line 2: not a complete line of an archive file": [opening, b"{}\n", end],
        "not a complete line of an archive file": [opening, one[:-9]],
    }
    for told, lines in cases.items():
        assert told in give(as_file(path, lines))[1]


def test_a_file_of_a_newer_redrive_is_refused(tmp_path: Path) -> None:
    newer = cold_files._sealed(b"file", b'{"format":"redrive-letters","version":3}')
    assert "newer redrive" in give(as_file(tmp_path / "x", [newer]))[1]


def test_two_files_in_one_are_noticed(tmp_path: Path) -> None:
    path = cold_files.write(tmp_path, letters(2), day=DAY)
    path.write_bytes(path.read_bytes() * 2)
    found, told = give(path)
    assert len(found) == 2
    assert "unexpected data after the end" in told


@given(st.binary(max_size=300))
def test_bytes_that_are_no_cold_file_are_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    assert give(path)[1]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(
            ["text", "base64", "int", "float64", "decimal", "time", "uuid", "typed", "table", "odd text", "x"]),
        inner, max_size=2),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=300)
@given(
    st.sampled_from(
        ["message", "origin", "failure", "state", "headers", "body", "notes", "transport", "broker"]
    ),
    json_values,
    st.sampled_from([1, 2]),
)
def test_a_sealed_line_with_nonsense_in_it_is_a_clear_error(name: str, value: Any, version: int) -> None:
    fields = json.loads(to_json(FULL))
    (fields["message"] if name in {"headers", "body"} else fields)[name] = value
    with contextlib.suppress(FormatError, ValueError):  # what `read` turns into a FormatError with the place
        from_json(json.dumps(fields).encode(), version=version)


# --- version 1 -------------------------------------------------------------------------------------------


def as_version_1(letter: DeadLetter) -> bytes:
    """The line that the first version wrote."""
    fields = json.loads(to_json(letter))
    fields["transport"] = fields.pop("broker")
    for name in ("consumer_group", "unconfirmed", "prior_redrives"):
        del fields[name]
    origin = fields["origin"]
    origin["group"], origin["broker"] = origin.pop("consumer_group"), origin.pop("endpoint")
    return json.dumps(fields).encode()


@pytest.mark.parametrize("letter", [FULL, a_letter()], ids=["kafka", "rabbitmq"])
def test_a_letter_of_a_version_1_file_has_the_kind_of_its_broker(letter: DeadLetter, tmp_path: Path) -> None:
    line = cold_files._sealed(b"letter", as_version_1(letter))
    opening = cold_files._sealed(b"file", b'{"format":"redrive-letters","version":1}')
    end = cold_files._End(1, blake2b(line, digest_size=8).hexdigest())
    closing = cold_files._sealed(b"end", msgspec.json.encode(end))
    [found], problem = give(as_file(tmp_path / "x", [opening, line, closing]))
    assert problem == ""
    assert found == msgspec.structs.replace(
        letter, broker=f"unnamed:{letter.broker}", consumer_group=letter.origin.consumer_group
    )
    assert found.origin == letter.origin


def test_a_line_of_version_2_without_new_fields_has_the_defaults() -> None:
    fields = json.loads(to_json(FULL))
    for name in ("consumer_group", "unconfirmed", "prior_redrives"):
        del fields[name]
    found = from_json(json.dumps(fields).encode(), version=2)
    assert (found.consumer_group, found.unconfirmed, found.prior_redrives) == (None, False, 0)
