"""The cold part of a letter comes back bit-exact, and bytes that are not one are refused."""

import contextlib
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, strategies as st

from redrive.errors import FormatError, LetterInvalidError
from redrive.letters import (
    DeadLetter,
    Failure,
    FailureKind,
    Headers,
    HeaderValue,
    Message,
    Origin,
    SystemState,
    TypedValue,
)
from redrive.stores import zstd
from redrive.stores.cold import (
    _Content,
    _encode,
    check_sum,
    pack_content,
    pack_failure,
    unpack_consumer_group,
    unpack_content,
    unpack_failure,
)
from redrive.testing import a_failure, a_letter

PLAIN, ZSTD = b"\x02", b"\x03"
START = 5  # the way and the checksum
WAYS: list[Callable[[bytes], Any]] = [unpack_content, unpack_failure]


def sealed(way: bytes, data: bytes) -> bytes:
    """These bytes, with the checksum that fits them."""
    return way + crc32(data).to_bytes(4) + data


def content_of(letter: DeadLetter) -> dict[str, Any]:
    return {
        name: getattr(letter, name)
        for name in ("key", "message", "origin", "system_state", "derived_from", "prior_redrives")
    }


def with_body(body: bytes | None) -> DeadLetter:
    return a_letter(message=Message(body=body, message_id="m", correlation_id="c"))


FULL = msgspec.structs.replace(
    a_letter(
        "payments/3/17",
        message=Message(
            body=b"\x00\xff" * 10,
            key=b"",
            headers=Headers([("twice", 1), ("twice", True), ("n", Decimal("1.10")), ("t", TypedValue("int16", 5))]),
            content_type="application/json",
            content_encoding="gzip",
            message_id="m-1",
            correlation_id="c-1",
            sent_at=datetime(2026, 2, 11, 11, 59, 59, 123456, tzinfo=UTC),
            properties=Headers({"delivery_mode": 2}),
        ),
        origin=Origin(
            transport="kafka", source="payments", exchange="x", routing_key="r", partition=3, offset=2**62,
            consumer_group="g", endpoint="b", dead_letter_source="payments.dlq",
        ),
        system_state=SystemState(0.75, 0.60),
    ),
    derived_from="01abc", prior_redrives=3,
)  # fmt: skip


@pytest.mark.parametrize(
    "letter",
    [
        FULL,
        a_letter(),
        *(with_body(body) for body in (None, b"", b"\x00", b"x" * 100_000, os.urandom(100_000))),
    ],
    ids=["full", "usual", "null body", "empty body", "one byte", "compressible", "random"],
)
def test_content_comes_back_as_it_was(letter: DeadLetter) -> None:
    assert unpack_content(pack_content(letter)) == content_of(letter)


@given(st.none() | st.binary(max_size=2000), st.none() | st.binary(max_size=50), st.text())
def test_any_body_key_and_name_come_back(body: bytes | None, key: bytes | None, name: str) -> None:
    letter = a_letter(name or "k", message=Message(body=body, key=key, headers=Headers({name: body})))
    assert unpack_content(pack_content(letter)) == content_of(letter)


@given(
    error_type=st.text(),
    text=st.text(),
    kind=st.sampled_from(FailureKind),
    retryable=st.booleans(),
    stack=st.none() | st.text(),
)
def test_a_failure_comes_back_as_it_was(
    error_type: str, text: str, kind: FailureKind, *, retryable: bool, stack: str | None
) -> None:
    failure = a_failure(text, error_type=error_type, kind=kind, retryable=retryable, stack=stack, rule=stack)
    assert unpack_failure(pack_failure(failure)) == failure


def test_a_failure_with_text_that_is_no_unicode_is_kept_as_well_as_it_can_be() -> None:
    failure = a_failure("caf\udce9 closed", stack="at \ud800")
    again = unpack_failure(pack_failure(failure))
    assert (again.text, again.stack) == ("caf? closed", "at ?")
    assert (again.at, again.kind, again.error_type) == (failure.at, failure.kind, failure.error_type)


@pytest.mark.parametrize(
    "letter", [FULL, a_letter(), with_body(b"x" * 100_000)], ids=["full", "usual", "large"]
)
def test_the_consumer_group_is_read_without_the_message(letter: DeadLetter) -> None:
    assert unpack_consumer_group(pack_content(letter)) == letter.origin.consumer_group


@pytest.mark.parametrize("data", [b"", b"\x02", sealed(PLAIN, b"\xc0"), b"\x09" * 20], ids=repr)
def test_the_consumer_group_of_damaged_content_is_unknown(data: bytes) -> None:
    assert unpack_consumer_group(data) is None


def test_content_from_before_prior_redrives_is_read() -> None:
    fields = (FULL.key, FULL.message, FULL.origin, FULL.system_state, FULL.derived_from)
    assert unpack_content(sealed(PLAIN, _encode(fields))) == {**content_of(FULL), "prior_redrives": 0}


# --- compression -----------------------------------------------------------------------------------------


def test_content_is_packed_as_the_value_it_is_read_as() -> None:
    letter = a_letter()
    value = _Content(letter.key, letter.message, letter.origin, letter.system_state, letter.derived_from, 0)
    assert pack_content(letter) == sealed(PLAIN, _encode(value))


def test_what_is_small_or_cannot_be_made_smaller_is_not_compressed() -> None:
    assert pack_content(with_body(b"x" * 50))[:1] == PLAIN
    noise = pack_content(with_body(os.urandom(50_000)))
    assert noise[:1] == PLAIN
    assert len(noise) < 50_300


def test_what_can_be_made_smaller_is_compressed() -> None:
    packed = pack_content(with_body(b'{"order": 12345}' * 5000))
    assert packed[:1] == ZSTD
    assert len(packed) < 5000
    stack = pack_failure(a_failure(stack='  File "a.py", line 1, in f\n' * 500))
    assert stack[:1] == ZSTD
    assert len(stack) < 1000


def test_compression_never_makes_anything_larger() -> None:
    for size in range(0, 3000, 37):
        letter = with_body(os.urandom(size))
        assert len(pack_content(letter)) <= size + 200


def test_threads_may_pack_at_the_same_time() -> None:
    letters = [with_body(bytes([number]) * 20_000) for number in range(8)]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            same = unpack_content(pack_content(letters[number])) == content_of(letters[number])
            wrong.extend([] if same else [number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- garbage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unpack", WAYS)
@pytest.mark.parametrize("number", [0, 1, 4, 127, 255])
def test_a_way_of_packing_that_is_not_known_asks_for_an_upgrade(
    unpack: Callable[[bytes], Any], number: int
) -> None:
    with pytest.raises(FormatError, match="a stored letter has an unknown format; upgrade redrive"):
        unpack(bytes([number]) + pack_content(FULL)[1:])


@pytest.mark.parametrize("unpack", WAYS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        PLAIN,
        ZSTD,
        PLAIN + b"\x00\x00\x00",
        sealed(PLAIN, b""),
        sealed(PLAIN, b"\xff"),
        sealed(PLAIN, b"\x90"),
        sealed(PLAIN, b"\xc0"),
        sealed(PLAIN, b"\x91" * 5000),
        sealed(PLAIN, b"\xdd\xff\xff\xff\xff"),
        sealed(ZSTD, b""),
        sealed(ZSTD, b"no zstandard at all"),
        sealed(ZSTD, zstd.compress(b"\xff\xff\xff")),
        sealed(ZSTD, zstd.compress(pack_content(FULL)[START:])[:-3]),
        b"SQLite format 3\x00",
    ],
)
def test_bytes_that_hold_no_letter_are_refused(unpack: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(FormatError) as problem:
        unpack(data)
    assert "\n" not in str(problem.value)


def test_content_cut_off_at_any_byte_is_refused() -> None:
    for whole, unpack in ((pack_content(FULL), WAYS[0]), (pack_failure(a_failure(stack="s")), WAYS[1])):
        for end in range(len(whole)):
            with pytest.raises(FormatError):
                unpack(whole[:end])


@pytest.mark.parametrize("unpack", WAYS)
@given(st.binary(max_size=100), st.sampled_from([PLAIN, ZSTD, b""]))
def test_any_bytes_are_a_letter_or_refused(unpack: Callable[[bytes], Any], data: bytes, way: bytes) -> None:
    with contextlib.suppress(FormatError):
        unpack(sealed(way, data))


def test_any_flipped_bit_is_noticed() -> None:
    compressed = pack_content(with_body(b"abc" * 800))
    assert compressed[:1] == ZSTD
    for whole in (pack_content(FULL), compressed):
        check_sum(whole)
        for bit in range(len(whole) * 8):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(FormatError):
                unpack_content(bytes(flipped))
            if bit >= 8:
                with pytest.raises(FormatError, match="was modified or damaged after it was written"):
                    check_sum(bytes(flipped))


def test_a_small_value_that_claims_to_be_huge_is_refused_before_it_is_expanded() -> None:
    claims = zstd.ZstdCompressor()
    claims.set_pledged_input_size(2**40)
    bomb = claims.compress(b"x", claims.FLUSH_BLOCK)
    assert zstd.get_frame_info(bomb).decompressed_size == 2**40
    with pytest.raises(FormatError, match="cannot be expanded"):
        unpack_content(sealed(ZSTD, bomb))


def test_headers_nested_too_deeply_are_refused_by_the_letters_name() -> None:
    value: HeaderValue = "core"
    for _ in range(200):
        value = (value,)
    letter = a_letter(message=Message(body=b"", correlation_id="c", headers=Headers({"deep": value})))
    with pytest.raises(LetterInvalidError, match=f"letter {letter.id}: .* nested deeper than 128 levels"):
        pack_content(letter)


def test_a_header_that_cannot_be_stored_is_refused_by_the_letters_name() -> None:
    letter = a_letter(message=Message(body=b"", correlation_id="c", headers=Headers({"n": 10**5000})))
    with pytest.raises(LetterInvalidError, match=f"letter {letter.id}: its message cannot be stored"):
        pack_content(letter)


def test_fields_that_were_added_later_may_be_missing_in_what_was_written_before() -> None:
    letter = a_letter()
    short = msgspec.msgpack.encode((letter.key, (letter.message.body,), ("rabbitmq", "orders")))
    found = unpack_content(sealed(PLAIN, short))
    assert found["message"] == Message(body=letter.message.body)
    assert found["origin"] == Origin(transport="rabbitmq", source="orders")
    assert (found["system_state"], found["derived_from"]) == (None, None)
    old = sealed(PLAIN, msgspec.msgpack.encode(("E", "text", letter.failure.at)))
    assert unpack_failure(old) == Failure(error_type="E", text="text", at=letter.failure.at)
