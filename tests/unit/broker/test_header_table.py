"""Headers are sorted and changed by name without decoding their values."""

from hypothesis import given, strategies as st

from redrive.amqp.properties import BasicProperties, decode_properties, encode_properties
from redrive.broker.header_table import headers_of, long_field, sort_headers, with_headers, without_header

NAMES = st.text(max_size=20).filter(lambda name: len(name.encode()) < 256)
VALUES = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.text(max_size=20),
        st.binary(max_size=20),
        st.none(),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)


def field(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + b"S" + len(value).to_bytes(4, "big") + value


def raw_of(*fields: bytes, before: bytes = b"", after: bytes = b"", flags: int = 0x2000) -> bytes:
    table = b"".join(fields)
    return flags.to_bytes(2, "big") + before + len(table).to_bytes(4, "big") + table + after


@given(headers=st.dictionaries(NAMES, VALUES, max_size=8))
def test_headers_are_sorted_by_the_octets_of_their_names(headers: dict[str, object]) -> None:
    properties = BasicProperties(content_type="text/plain", headers=headers, priority=3, message_id="id")
    ordered = decode_properties(sort_headers(encode_properties(properties)))
    assert list((ordered.headers or {}).items()) == sorted(headers.items(), key=lambda one: one[0].encode())
    assert (ordered.content_type, ordered.priority, ordered.message_id) == ("text/plain", 3, "id")


def test_of_equal_names_the_first_is_kept() -> None:
    raw = raw_of(field(b"b", b"1"), field(b"a", b"2"), field(b"b", b"3"), field(b"a", b"4"))
    assert sort_headers(raw) == raw_of(field(b"a", b"2"), field(b"b", b"1"))
    twice = raw_of(field(b"a", b"1"), field(b"a", b"2"))
    assert sort_headers(twice) == raw_of(field(b"a", b"1"))


def test_sorted_headers_are_not_copied() -> None:
    for raw in (b"\x00\x00", raw_of(), raw_of(field(b"a", b"1"), field(b"b", b"2"))):
        assert sort_headers(raw) is raw


def test_a_table_that_cannot_be_read_stays_as_it_is() -> None:
    for broken in (b"\x01a?", b"\x09a", b"\x01aS\x00\x00\x00\x09x", b"\x01aS\x00"):
        raw = raw_of(field(b"b", b"1"), broken)
        assert sort_headers(raw) is raw


def test_headers_are_set_and_removed_by_name() -> None:
    header = bytes(12) + raw_of(field(b"b", b"1"), before=b"\x01t", after=b"\x02", flags=0xB000)
    changed = with_headers(header, {b"c": long_field(b"c", -1), b"a": field(b"a", b"0")})
    properties = decode_properties(changed[12:])
    assert list((properties.headers or {}).items()) == [("a", "0"), ("b", "1"), ("c", -1)]
    assert (properties.content_type, properties.delivery_mode) == ("t", 2)
    assert list(headers_of(without_header(changed[12:], b"b"))) == [b"a", b"c"]
    assert with_headers(bytes(12) + b"\x00\x00", {b"a": field(b"a", b"0")}) == bytes(12) + raw_of(
        field(b"a", b"0")
    )
