from contextlib import suppress

import pytest
from hypothesis import given, settings, strategies as st

from redrive.amqp.errors import FrameSyntaxError, MisuseError
from redrive.amqp.properties import (
    FIELDS,
    NO_PROPERTIES,
    BasicProperties,
    FieldName,
    add_headers,
    check_properties,
    decode_properties,
    encode_properties,
    is_persistent,
    read_expiration,
    read_field,
    read_headers,
    read_priority,
    replace_fields,
)
from redrive.amqp.table import encode_bare_table

TEXT = st.none() | st.text(max_size=20)
OCTET = st.none() | st.integers(0, 255)
PROPERTIES = st.builds(
    BasicProperties,
    content_type=TEXT,
    content_encoding=TEXT,
    headers=st.none()
    | st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.integers(0, 9), max_size=3),
    delivery_mode=OCTET,
    priority=OCTET,
    correlation_id=TEXT,
    reply_to=TEXT,
    expiration=TEXT,
    message_id=TEXT,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=TEXT,
    user_id=TEXT,
    app_id=TEXT,
    cluster_id=TEXT,
)
NAMES: list[FieldName] = [field.name for field in FIELDS]


@given(PROPERTIES)
@settings(max_examples=200, deadline=None)
def test_properties_come_back_as_they_were(properties: BasicProperties) -> None:
    raw = encode_properties(properties)
    assert decode_properties(raw) == properties
    assert encode_properties(decode_properties(raw)) == raw


@given(PROPERTIES)
@settings(max_examples=100, deadline=None)
def test_one_field_reads_the_same_alone_as_with_all_others(properties: BasicProperties) -> None:
    raw = encode_properties(properties)
    for name in NAMES:
        assert read_field(raw, name) == getattr(properties, name)


@given(PROPERTIES)
@settings(max_examples=60, deadline=None)
def test_properties_cut_short_anywhere_or_too_long_are_a_syntax_error(properties: BasicProperties) -> None:
    raw = encode_properties(properties)
    for size in range(len(raw)):
        with pytest.raises(FrameSyntaxError):
            check_properties(raw[:size])
    with pytest.raises(FrameSyntaxError):
        decode_properties(raw + b"\x00")


def test_one_field_is_read_even_if_what_follows_it_is_broken() -> None:
    raw = encode_properties(BasicProperties(priority=7, expiration="60000"))
    assert read_priority(raw[:-3]) == 7
    for size in range(3, len(raw)):
        with pytest.raises(FrameSyntaxError):
            read_expiration(raw[:size])


@given(st.binary(max_size=40))
@settings(max_examples=300, deadline=None)
def test_garbage_is_a_syntax_error_or_properties(garbage: bytes) -> None:
    with suppress(FrameSyntaxError):
        decode_properties(garbage)


@given(PROPERTIES, st.sampled_from(NAMES))
@settings(max_examples=100, deadline=None)
def test_dropping_a_field_leaves_the_others_bit_by_bit(properties: BasicProperties, name: FieldName) -> None:
    raw = encode_properties(properties)
    changed = replace_fields(raw, drop=(name,))
    assert read_field(changed, name) is None
    for other in NAMES:
        if other != name:
            assert read_field(changed, other) == getattr(properties, other)


def test_dead_lettering_changes_headers_and_expiration_and_nothing_else() -> None:
    # The headers of a client that wrote a small integer (I): another encoder would widen it to l.
    headers = b"\x00\x00\x00\x07\x01nI\x00\x00\x00\x05"
    raw = b"\xb1\x40" + b"\x01t" + headers + b"\x02" + b"\x0560000" + b"\x00\x00\x00\x00\x00\x00\x00\x09"
    assert decode_properties(raw) == BasicProperties(
        content_type="t", headers={"n": 5}, delivery_mode=2, expiration="60000", timestamp=9
    )
    kept = read_headers(raw)
    changed = replace_fields(raw, drop=("expiration",), headers={**kept, "r": "x"})
    assert changed == (
        b"\xb0\x40\x01t\x00\x00\x00\x0f\x01nI\x00\x00\x00\x05\x01rS\x00\x00\x00\x01x\x02"
        b"\x00\x00\x00\x00\x00\x00\x00\x09"
    )


def test_odd_octets_in_a_message_id_survive() -> None:
    raw = b"\x00\x80\x02\xff\xfe"
    assert encode_properties(decode_properties(raw)) == raw


def test_helpers_answer_for_what_is_not_set() -> None:
    assert read_headers(NO_PROPERTIES) == {}
    assert read_expiration(NO_PROPERTIES) is None
    assert read_priority(NO_PROPERTIES) == 0
    assert not is_persistent(NO_PROPERTIES)
    assert is_persistent(encode_properties(BasicProperties(delivery_mode=2)))
    assert read_priority(encode_properties(BasicProperties(priority=9))) == 9


@pytest.mark.parametrize("flags", [b"\x00\x01", b"\x00\x02", b"\x80\x01\x01t"])
def test_flags_that_do_not_exist_are_a_syntax_error(flags: bytes) -> None:
    with pytest.raises(FrameSyntaxError, match="flags"):
        decode_properties(flags)


@pytest.mark.parametrize(
    "properties",
    [
        BasicProperties(message_id="m" * 256),
        BasicProperties(priority=256),
        BasicProperties(timestamp=-1),
        BasicProperties(app_id="\ud800"),
        BasicProperties(headers={"a": object()}),
        BasicProperties(priority="9"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_does_not_fit_is_a_misuse(properties: BasicProperties) -> None:
    with pytest.raises(MisuseError):
        encode_properties(properties)


def test_a_property_that_nobody_knows_is_a_misuse_that_names_the_known_ones() -> None:
    with pytest.raises(MisuseError, match="message_id"):
        replace_fields(NO_PROPERTIES, mesage_id="m")


def test_replacing_by_none_drops() -> None:
    raw = encode_properties(BasicProperties(expiration="1", priority=3))
    assert replace_fields(raw, expiration=None) == encode_properties(BasicProperties(priority=3))


@given(PROPERTIES, st.dictionaries(st.text(min_size=9, max_size=12), st.integers(0, 9), max_size=3))
@settings(max_examples=100, deadline=None)
def test_headers_that_are_added_stand_behind_those_that_were_there(
    properties: BasicProperties, added: dict[str, object]
) -> None:
    raw = encode_properties(properties)
    both = {**(properties.headers or {}), **added}
    assert add_headers(raw, encode_bare_table(added)) == replace_fields(raw, headers=both)


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_to_garbage_nothing_is_added(garbage: bytes) -> None:
    try:
        check_properties(garbage)
    except FrameSyntaxError:
        with pytest.raises(FrameSyntaxError):
            add_headers(garbage, b"\x01xV")
    else:
        check_properties(add_headers(garbage, b"\x01xV"))
