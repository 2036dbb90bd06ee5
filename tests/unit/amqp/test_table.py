import math
import struct
from contextlib import suppress
from decimal import Decimal
from enum import StrEnum

import pytest
from hypothesis import given, settings, strategies as st

from redrive.amqp import table
from redrive.amqp.errors import FrameSyntaxError, MisuseError
from redrive.amqp.table import (
    decode_bare_table,
    decode_table,
    encode_bare_table,
    encode_table,
    encode_value,
)
from redrive.amqp.values import (
    DecimalValue,
    Float32,
    Int8,
    Int16,
    Int32,
    RawStr,
    Timestamp,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    WireInt,
)


def signed(kind: type[WireInt], bits: int) -> st.SearchStrategy[object]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(kind)


def unsigned(kind: type[WireInt], bits: int) -> st.SearchStrategy[object]:
    return st.integers(0, 2**bits - 1).map(kind)


LEAVES: st.SearchStrategy[object] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.binary(min_size=1, max_size=4).map(lambda raw: RawStr(b"\xff" + raw)),
    signed(Int8, 8),
    unsigned(UInt8, 8),
    signed(Int16, 16),
    unsigned(UInt16, 16),
    signed(Int32, 32),
    unsigned(UInt32, 32),
    unsigned(UInt64, 64),
    unsigned(Timestamp, 64),
    st.floats(width=32, allow_nan=False).map(Float32),
    st.builds(DecimalValue, st.integers(0, 255), st.integers(-(2**31), 2**31 - 1)),
)
KEYS = st.text(max_size=20)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
TABLES = st.dictionaries(KEYS, VALUES, max_size=6)


def shape(value: object) -> object:
    """The value with its types, all the way down."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return (type(value), value)


@given(TABLES)
@settings(max_examples=300, deadline=None)
def test_a_table_comes_back_with_the_same_values_and_the_same_types(table: dict[str, object]) -> None:
    raw = encode_table(table)
    found, end = decode_table(raw)
    assert end == len(raw)
    assert shape(found) == shape(table)
    assert list(found) == list(table)
    assert encode_table(found) == raw


@given(TABLES, st.binary(max_size=8), st.binary(max_size=8))
@settings(max_examples=100, deadline=None)
def test_what_stands_before_and_behind_a_table_is_left_alone(
    table: dict[str, object], before: bytes, behind: bytes
) -> None:
    raw = encode_table(table)
    found, end = decode_table(before + raw + behind, len(before))
    assert found == table
    assert end == len(before) + len(raw)


@given(TABLES)
@settings(max_examples=100, deadline=None)
def test_a_table_cut_short_anywhere_is_a_syntax_error(table: dict[str, object]) -> None:
    raw = encode_table(table)
    for size in range(len(raw)):
        with pytest.raises(FrameSyntaxError):
            decode_table(raw[:size])


@given(st.binary(max_size=60))
@settings(max_examples=500, deadline=None)
def test_garbage_is_a_syntax_error_or_a_table(garbage: bytes) -> None:
    with suppress(FrameSyntaxError):
        decode_table(struct.pack(">I", len(garbage)) + garbage)


VECTORS = [
    (True, "7401"),
    (False, "7400"),
    (1, "6c0000000000000001"),
    (-1, "6cffffffffffffffff"),
    (Int8(-2), "62fe"),
    (UInt8(254), "42fe"),
    (Int16(-2), "73fffe"),
    (UInt16(65534), "75fffe"),
    (Int32(-2), "49fffffffe"),
    (UInt32(4294967294), "69fffffffe"),
    (UInt64(2**64 - 2), "4cfffffffffffffffe"),
    (Timestamp(1700000000), "54000000006553f100"),
    (Float32(1.5), "663fc00000"),
    (1.5, "643ff8000000000000"),
    (DecimalValue(2, 314), "44020000013a"),
    ("é", "5300000002c3a9"),
    (RawStr(b"\xff"), "5300000001ff"),
    (b"\xff", "7800000001ff"),
    (None, "56"),
    ([], "4100000000"),
    ({}, "4600000000"),
    ([None, "a"], "4100000007565300000001" + "61"),
]


@pytest.mark.parametrize(("value", "wire"), VECTORS)
def test_each_type_is_written_and_read_as_the_errata_say(value: object, wire: str) -> None:
    raw = bytes.fromhex(wire)
    assert encode_value(value) == raw
    table, _ = decode_table(struct.pack(">I", len(raw) + 2) + b"\x01k" + raw)
    assert shape(table["k"]) == shape(value)


def test_an_x_death_header_is_exactly_as_rabbitmq_writes_it() -> None:
    # The fields, their order and their types, computed by hand.
    entry = (
        b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x02"
        b"\x06reasonS\x00\x00\x00\x08rejected"
        b"\x05queueS\x00\x00\x00\x06orders"
        b"\x04timeT\x00\x00\x00\x00\x65\x53\xf1\x00"
        b"\x08exchangeS\x00\x00\x00\x00"
        b"\x0crouting-keysA\x00\x00\x00\x0bS\x00\x00\x00\x06orders"
    )
    entry_size, array_size = len(entry), len(entry) + 5
    body = (
        b"\x07x-deathA" + struct.pack(">I", array_size) + b"F" + struct.pack(">I", entry_size) + entry
    )  # fmt: skip
    wire = struct.pack(">I", len(body)) + body
    table: dict[str, object] = {
        "x-death": [
            {
                "count": 2,
                "reason": "rejected",
                "queue": "orders",
                "time": Timestamp(1_700_000_000),
                "exchange": "",
                "routing-keys": ["orders"],
            }
        ]
    }
    assert encode_table(table) == wire
    assert shape(decode_table(wire)[0]) == shape(table)


def test_a_number_that_was_read_in_another_width_behaves_as_a_number() -> None:
    five = Int32(5)
    assert five == 5
    assert five + 1 == 6
    assert type(five + 1) is int
    assert repr(five) == "Int32(5)"
    assert DecimalValue(2, 314).decimal == Decimal("3.14")


def test_the_octets_of_a_short_nan_survive() -> None:
    raw = struct.pack(">I", 7) + b"\x01kf" + bytes.fromhex("7fa00001")
    table, _ = decode_table(raw)
    value = table["k"]
    assert isinstance(value, Float32)
    assert math.isnan(value)
    assert encode_table(table) == raw


def test_of_two_equal_keys_the_last_value_wins() -> None:
    raw = b"\x01kt\x00\x01kt\x01"
    assert decode_bare_table(raw) == {"k": True}


def test_a_key_that_is_not_utf8_keeps_its_octets() -> None:
    raw = b"\x02\xff\xfet\x01"
    assert encode_bare_table(decode_bare_table(raw)) == raw


def test_a_boolean_of_any_other_octet_is_true_and_is_written_as_one() -> None:
    table = decode_bare_table(b"\x01kt\x07")
    assert table == {"k": True}
    assert encode_bare_table(table) == b"\x01kt\x01"


def test_deep_nesting_is_refused_on_reading_and_on_writing() -> None:
    raw = b"A\x00\x00\x00\x00"
    for _ in range(5000):
        raw = b"A" + struct.pack(">I", len(raw)) + raw
    with pytest.raises(FrameSyntaxError, match="nested"):
        decode_bare_table(b"\x01k" + raw)
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(MisuseError, match="nested"):
        encode_table({"k": loop})
    knot: dict[str, object] = {}
    knot["k"] = knot
    with pytest.raises(MisuseError, match="nested"):
        encode_table(knot)


def test_nesting_up_to_the_limit_is_read() -> None:
    value: object = 1
    for _ in range(62):
        value = {"k": value}
    table: dict[str, object] = {"k": value}
    assert decode_table(encode_table(table))[0] == table


@pytest.mark.parametrize(
    "raw",
    [
        b"\x01kl\x00",  # a number that ends early
        b"\x05k",  # a name beyond the end
        b"\x01k",  # a name without a value
        b"\x01kZ\x00",  # a type that nobody knows
        b"\x01kS\xff\xff\xff\xffabc",  # a string that claims four gigabytes
        b"\x01kF\x00\x00\x00\x04\x01at\x01\x01",  # a table whose value reaches over its end
        b"\x01kA\x00\x00\x00\x02I\x00\x00\x00\x00",  # an array likewise
        b"\x01kA\x00\x00\x00\x02f\x00\x00\x00\x00",
        b"\x01kF\xff\xff\xff\xff",
        b"\x01kf\x00",
    ],
)
def test_lengths_that_lie_are_syntax_errors(raw: bytes) -> None:
    with pytest.raises(FrameSyntaxError):
        decode_table(struct.pack(">I", len(raw)) + raw)
    with pytest.raises(FrameSyntaxError):
        decode_table(struct.pack(">I", len(raw)) + raw + b"\x00" * 20)


def test_a_table_longer_than_what_is_there_is_a_syntax_error() -> None:
    with pytest.raises(FrameSyntaxError, match="where 0 are left"):
        decode_table(b"\xff\xff\xff\xff")


class Colour(StrEnum):
    RED = "red"


def test_a_subclass_is_written_as_its_base() -> None:
    assert encode_table({"k": Colour.RED}) == encode_table({"k": "red"})
    assert encode_table({"k": (1, 2)}) == encode_table({"k": [1, 2]})


@pytest.mark.parametrize(
    "value",
    [
        object(),
        2**63,
        -(2**63) - 1,
        Int8(128),
        UInt8(-1),
        Timestamp(-1),
        DecimalValue(256, 0),
        "\ud800",
        {1, 2},
    ],
)
def test_a_value_that_has_no_place_in_a_table_is_a_misuse(value: object) -> None:
    with pytest.raises(MisuseError):
        encode_table({"k": value})


def test_a_key_must_be_a_short_string() -> None:
    with pytest.raises(MisuseError):
        encode_table({"k" * 256: 1})
    with pytest.raises(MisuseError):
        encode_table({1: 1})  # type: ignore[dict-item]


def test_names_are_the_same_string_each_time_and_only_so_many_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table, "_KEYS", {})
    monkeypatch.setattr(table, "_MOST_KEYS", 2)
    for _ in range(2):
        for name in ("one", "two", "three", "x" * 100, "\udcff", ""):
            assert decode_table(encode_table({name: 1}))[0] == {name: 1}
    assert set(table._KEYS) == {b"one", b"two"}
