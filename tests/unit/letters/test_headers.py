"""Headers keep what they were given: order, duplicates, types; and bytes that are no headers are refused."""

import random
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, strategies as st

from redrive.errors import FormatError
from redrive.letters.headers import DEEPEST, EMPTY, Headers, HeaderValue, TypedValue, _to_wire, pack, unpack

NAN = float("nan")
NOON = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)
ONE_OF_EACH: dict[str, HeaderValue] = {
    "null": None,
    "bool": True,
    "int": 1,
    "negative": -(2**63),
    "unsigned": 2**64 - 1,
    "big": 2**200,
    "float": 1.0,
    "nan": NAN,
    "infinity": float("-inf"),
    "text": "grüß dich ✓",
    "odd text": "caf\udce9",
    "bytes": bytes(range(256)),
    "decimal": Decimal("12.3400"),
    "time": NOON,
    "uuid": UUID(int=7),
    "typed": TypedValue("int16", 5),
    "table": Headers([("twice", 1), ("twice", 2)]),
    "list": (1, True, "a", (b"b", None), Headers({"deep": TypedValue("symbol", "x")})),
}

# --- what they are ---------------------------------------------------------------------------------------


def test_headers_keep_their_order_and_their_duplicates() -> None:
    pairs: list[tuple[str, HeaderValue]] = [("b", 1), ("a", 2), ("b", 3), ("", None)]
    headers = Headers(pairs)
    assert list(headers) == pairs
    assert len(headers) == 4
    assert headers[0] == ("b", 1)
    assert headers[1:] == Headers(pairs[1:])
    assert headers.names() == {"a", "b", ""}


def test_of_two_headers_with_one_name_the_last_counts_and_both_can_be_had() -> None:
    headers = Headers([("trace", "first"), ("other", 0), ("trace", "last")])
    assert headers.get("trace") == "last"
    assert headers.get_all("trace") == ("first", "last")
    assert headers.get("missing") is None
    assert headers.get("missing", 5) == 5
    assert headers.get_all("missing") == ()


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_value_comes_out_with_the_type_it_went_in_with(name: str) -> None:
    value = ONE_OF_EACH[name]
    assert type(Headers({name: value}).get(name)) is type(value)


def test_lists_become_tuples_and_mappings_become_headers() -> None:
    headers = Headers({"list": [1, [2, {"a": [3]}]], "map": {"x": 1}})  # type: ignore[arg-type]  # what callers do
    assert headers.get("list") == (1, (2, Headers({"a": (3,)})))
    assert headers.get("map") == Headers({"x": 1})


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j, timedelta(1), bytearray(b"x")])
def test_what_no_wire_has_a_type_for_is_refused(value: object) -> None:
    with pytest.raises(FormatError, match=f"a header cannot hold a {type(value).__name__}"):
        Headers({"a": value})  # type: ignore[arg-type]


def test_a_time_without_a_zone_is_refused_at_any_depth() -> None:
    naive = NOON.replace(tzinfo=None)
    for value in (naive, (1, naive), {"a": naive}, [[{"a": (naive,)}]]):
        with pytest.raises(FormatError, match="has no time zone"):
            Headers({"a": value})  # type: ignore[arg-type]


def test_headers_cannot_be_changed() -> None:
    headers = Headers({"a": 1})
    assert not hasattr(headers, "__setitem__")
    assert not hasattr(headers, "__dict__")
    with pytest.raises(AttributeError):
        headers.other = 1  # type: ignore[attr-defined]


# --- equality --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True),
        (0, False),
        (1, 1.0),
        (1.0, True),
        (1, Decimal(1)),
        ("a", b"a"),
        (None, False),
        ((), None),
        ((1,), (True,)),
        (Headers({"a": 1}), Headers({"a": True})),
        (Headers({"a": 1}), Headers({"a": 1.0})),
        (TypedValue("int8", 1), TypedValue("int16", 1)),
        (TypedValue("int8", 1), TypedValue("int8", True)),
        (TypedValue("int8", 1), 1),
        (TypedValue("f", (NAN,)), TypedValue("f", (1.0,))),
        (NAN, 1.0),
        ("5", 5),
        ("", b""),
        (Headers(), ()),
    ],
)
def test_values_that_look_alike_on_another_wire_type_are_not_equal(
    left: HeaderValue, right: HeaderValue
) -> None:
    assert Headers({"a": left}) != Headers({"a": right})
    assert Headers({"a": (left,)}) != Headers({"a": (right,)})
    assert TypedValue("t", left) != TypedValue("t", right)


@pytest.mark.parametrize("value", [NAN, (NAN, 1), TypedValue("float32", NAN), Headers({"x": NAN})])
def test_a_nan_equals_itself(value: HeaderValue) -> None:
    assert Headers({"a": value}) == Headers({"a": value})
    assert TypedValue("t", value) == TypedValue("t", value)


def test_order_and_duplicates_are_part_of_equality() -> None:
    assert Headers([("a", 1), ("b", 2)]) != Headers([("b", 2), ("a", 1)])
    assert Headers([("a", 1)]) != Headers([("a", 1), ("a", 1)])
    assert Headers() == EMPTY
    assert Headers({"a": 1}) != {"a": 1}
    assert Headers({"a": 1}) != (("a", 1),)


def test_equal_headers_have_equal_hashes() -> None:
    left = Headers({"a": (1, TypedValue("k", "v")), "b": Headers({"c": 2})})
    right = Headers([("a", (1, TypedValue("k", "v"))), ("b", Headers([("c", 2)]))])
    assert left == right
    assert hash(left) == hash(right)
    assert len({left, right}) == 1


# --- copies ----------------------------------------------------------------------------------------------


def test_with_replaces_in_place_adds_last_and_leaves_each_name_once() -> None:
    before = Headers([("a", 1), ("b", 2), ("a", 3)])
    after = before.with_({"a": 9, "new": "x"})
    assert list(after) == [("a", 9), ("b", 2), ("new", "x")]
    assert list(before) == [("a", 1), ("b", 2), ("a", 3)]
    assert before.with_({}) == before


def test_without_takes_every_header_of_these_names_away() -> None:
    before = Headers([("a", 1), ("b", 2), ("a", 3), ("c", 4)])
    assert list(before.without("a", "c", "nobody")) == [("b", 2)]
    assert before.without() == before


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (b"bytes", "bytes"),
        ("grün".encode(), "grün"),
        (b"\xff\xfe", None),
        ("", ""),
        (b"", ""),
        (TypedValue("symbol", "abc"), "abc"),
        (TypedValue("binary", b"abc"), "abc"),
        (TypedValue("binary", b"\xff"), None),
        (TypedValue("int8", 5), None),
        (5, None),
        (True, None),
        (None, None),
        (("a",), None),
        (Headers({"a": "b"}), None),
    ],
)
def test_text_is_what_can_be_read_as_text(value: HeaderValue, text: str | None) -> None:
    headers = Headers([("a", "an earlier one"), ("a", value)])
    assert headers.text("a") == text
    assert headers.text("missing") is None


# --- bytes -----------------------------------------------------------------------------------------------

_zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**300])
    | st.floats()
    | st.text(st.characters())
    | st.text(st.characters(categories=["Cs", "Lu"]), max_size=5)
    | st.binary(max_size=40)
    | st.decimals(allow_nan=False)
    | st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=_zones)  # noqa: DTZ001  given a zone there
    | st.uuids()
)
_values: st.SearchStrategy[HeaderValue] = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple)
        | st.lists(st.tuples(st.text(max_size=6), inner), max_size=4).map(Headers)
        | st.builds(TypedValue, st.text(max_size=8), inner)
    ),
    max_leaves=12,
)
_headers = st.lists(st.tuples(st.text(max_size=10), _values), max_size=6).map(Headers)


@given(_headers)
def test_what_went_in_comes_out(headers: Headers) -> None:
    again = unpack(pack(headers))
    assert again == headers
    assert pack(again) == pack(headers)


def test_every_kind_of_value_comes_back_by_its_type() -> None:
    again = unpack(pack(Headers(ONE_OF_EACH)))
    assert again == Headers(ONE_OF_EACH)
    assert [type(value) for _, value in again] == [type(value) for value in ONE_OF_EACH.values()]
    assert str(again.get("decimal")) == "12.3400"


@pytest.mark.parametrize("name", [*ONE_OF_EACH, "namé", "odd n\udce9me"])
def test_a_header_is_packed_as_its_value_is_anywhere_else(name: str) -> None:
    value = ONE_OF_EACH.get(name, "plain")
    packed = msgspec.msgpack.encode([_to_wire(name, DEEPEST), _to_wire(value, DEEPEST)])
    assert pack(Headers([(name, value)])) == msgspec.msgpack.encode(msgspec.msgpack.Ext(1, packed))


def test_a_decimal_that_is_not_a_number_equals_itself_after_the_round_trip() -> None:
    for text in ("NaN", "sNaN"):
        headers = Headers({"amount": Decimal(text)})
        assert unpack(pack(headers)) == headers


def test_no_headers_are_no_bytes() -> None:
    assert pack(EMPTY) == b""
    assert unpack(b"") == EMPTY


# --- garbage ---------------------------------------------------------------------------------------------

WHOLE = pack(Headers(ONE_OF_EACH))


def unpacks_or_refuses(data: bytes) -> Headers | None:
    """The headers, or None where they were refused as they should be."""
    try:
        return unpack(data)
    except FormatError:
        return None


def test_headers_cut_off_at_any_byte_are_refused() -> None:
    for end in range(1, len(WHOLE)):
        with pytest.raises(FormatError, match="stored headers cannot be read"):
            unpack(WHOLE[:end])


@pytest.mark.parametrize("rest", [b"\x00", b"\xc0", b"\xff", WHOLE])
def test_bytes_after_the_headers_are_refused(rest: bytes) -> None:
    with pytest.raises(FormatError):
        unpack(WHOLE + rest)


def test_a_flipped_bit_is_refused_or_gives_other_headers_and_nothing_else() -> None:
    for bit in range(len(WHOLE) * 8):
        flipped = bytearray(WHOLE)
        flipped[bit // 8] ^= 1 << bit % 8
        found = unpacks_or_refuses(bytes(flipped))
        assert found is None or isinstance(found, Headers)


@given(st.binary(max_size=200))
def test_any_bytes_are_headers_or_refused(data: bytes) -> None:
    found = unpacks_or_refuses(data)
    assert found is None or isinstance(found, Headers)


@given(st.integers(0, 255), st.binary(max_size=60))
def test_any_content_of_any_extension_is_headers_or_refused(code: int, content: bytes) -> None:
    inner = msgspec.msgpack.Ext(code - 128, content)
    data = msgspec.msgpack.encode(
        msgspec.msgpack.Ext(1, msgspec.msgpack.encode(["name", inner, "list", [inner]]))
    )
    unpacks_or_refuses(data)


def test_bytes_mixed_from_two_packings_are_headers_or_refused() -> None:
    chance = random.Random(4)
    other = pack(Headers({f"h{number}": ("x" * number, number) for number in range(20)}))
    for _ in range(3000):
        cut, place = chance.randrange(len(WHOLE)), chance.randrange(len(other))
        unpacks_or_refuses(WHOLE[:cut] + other[place : place + chance.randrange(60)] + WHOLE[cut:])


@pytest.mark.parametrize(
    "content",
    [5, None, "text", [1, 2], {"a": 1}, [], True, b"bytes", msgspec.msgpack.Ext(5, b"7")],
    ids=["int", "null", "text", "list", "map", "empty list", "bool", "bytes", "big int"],
)
def test_a_value_that_is_not_a_table_is_refused(content: object) -> None:
    with pytest.raises(FormatError):
        unpack(msgspec.msgpack.encode(content))


@pytest.mark.parametrize(
    "content", [["name"], [1, 2], [b"name", 1], {"name": 1}, "name", [["name", 1]]], ids=repr
)
def test_a_table_that_is_not_made_of_names_and_values_is_refused(content: object) -> None:
    table = msgspec.msgpack.Ext(1, msgspec.msgpack.encode(content))
    with pytest.raises(FormatError):
        unpack(msgspec.msgpack.encode(table))


def test_a_map_is_not_taken_for_a_table_with_names_that_are_not_text() -> None:
    table = msgspec.msgpack.Ext(1, msgspec.msgpack.encode(["a", {1: 2}]))
    found = unpacks_or_refuses(msgspec.msgpack.encode(table))
    assert found is None or all(
        isinstance(name, str) for _, value in found if isinstance(value, Headers) for name, _ in value
    )


@pytest.mark.parametrize(
    "data",
    [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01",
     b"\xdb\xff\xff\xff\xff", b"\xdd\x7f\xff\xff\xff" * 50, b"\x91" * 100_000, b"\x81" * 100_000,
     b"\xc7\xff\x01" * 10_000],
    ids=["array", "map", "bytes", "ext", "text", "arrays", "nested arrays", "nested maps", "nested exts"],
)  # fmt: skip
def test_a_length_that_lies_costs_no_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "wrap", [lambda value: (value,), lambda value: Headers({"k": value}), lambda value: TypedValue("map", value)],
    ids=["list", "table", "typed"],
)  # fmt: skip
def test_values_are_nested_as_deep_as_the_limit_and_no_deeper(
    wrap: Callable[[HeaderValue], HeaderValue],
) -> None:
    value: HeaderValue = None
    for _ in range(DEEPEST - 1):  # the headers themselves are the first level
        value = wrap(value)
    headers = Headers({"deep": value})
    assert pack(unpack(pack(headers))) == pack(headers)
    with pytest.raises(FormatError, match=f"nested deeper than {DEEPEST} levels"):
        pack(Headers({"deep": wrap(value)}))


def test_tables_within_tables_cost_no_more_than_a_few_times_their_bytes() -> None:
    data = msgspec.msgpack.encode(["a", b"x" * 200_000])
    for _ in range(400):
        data = msgspec.msgpack.encode(
            msgspec.msgpack.Ext(2, msgspec.msgpack.encode(["k", msgspec.Raw(data)]))
        )
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(data)
    finally:
        tracemalloc.stop()


# --- by name ---------------------------------------------------------------------------------------------


def test_headers_of_a_table_are_those_of_its_pairs() -> None:
    table: dict[str, HeaderValue] = {"b": 1, "a": "x", "c": None}
    by_table, by_pairs = Headers.of_table(table), Headers(list(table.items()))
    assert by_table == by_pairs
    assert hash(by_table) == hash(by_pairs)
    assert len(Headers.of_table(table)) == 3
    assert list(Headers.of_table(table)) == [("b", 1), ("a", "x"), ("c", None)]
    assert Headers.of_table(table)[1] == ("a", "x")
    assert Headers.of_table(table).get("c", "none") is None
    assert Headers.of_table(table).without("a") == by_pairs.without("a")
    assert Headers.of_table(table).with_({"a": 2}) == by_pairs.with_({"a": 2})
    assert pack(by_table) == pack(by_pairs)
    assert not Headers.of_table({})


def test_by_name_the_last_header_counts() -> None:
    headers = Headers([("a", 1), ("b", 2), ("a", 3)])
    assert headers.by_name == {"a": 3, "b": 2}
    assert list(headers) == [("a", 1), ("b", 2), ("a", 3)]


def test_headers_without_what_they_do_not_have_are_the_same() -> None:
    headers = Headers({"a": 1})
    assert headers.without("b", "c") is headers
