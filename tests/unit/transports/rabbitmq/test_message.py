"""What AMQP carries becomes a message and is the same octets again."""

from datetime import UTC, datetime
from decimal import Decimal
from uuid import uuid4

import pytest
from hypothesis import given, strategies as st

from redrive.amqp.properties import BasicProperties, encode_properties
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
)
from redrive.errors import FormatError
from redrive.letters import Headers, Message, TypedValue
from redrive.letters.headers import pack, unpack
from redrive.transports.rabbitmq.message import to_message, to_properties

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.binary(min_size=1, max_size=8)
    .filter(lambda raw: raw.decode("utf-8", "ignore").encode() != raw)
    .map(RawStr),
    st.binary(min_size=4, max_size=4).map(lambda raw: Float32(0.0, raw)),
    st.integers(0, 2**64 - 1).map(Timestamp),
    st.builds(DecimalValue, st.integers(0, 255), st.integers(-(2**31), 2**31 - 1)),
    st.integers(-(2**7), 2**7 - 1).map(Int8),
    st.integers(0, 2**8 - 1).map(UInt8),
    st.integers(-(2**15), 2**15 - 1).map(Int16),
    st.integers(0, 2**16 - 1).map(UInt16),
    st.integers(-(2**31), 2**31 - 1).map(Int32),
    st.integers(0, 2**32 - 1).map(UInt32),
    st.integers(0, 2**64 - 1).map(UInt64),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
WORDS = st.none() | st.text(max_size=20)
PROPERTIES = st.builds(
    BasicProperties,
    content_type=WORDS,
    content_encoding=WORDS,
    headers=st.none() | st.dictionaries(st.text(max_size=8), VALUES, min_size=1, max_size=5),
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    correlation_id=WORDS,
    reply_to=WORDS,
    expiration=WORDS,
    message_id=WORDS,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=WORDS,
    user_id=WORDS,
    app_id=WORDS,
    cluster_id=WORDS,
)


@given(PROPERTIES, st.binary(max_size=50))
def test_whatever_amqp_can_carry_comes_back_as_the_same_octets(had: BasicProperties, body: bytes) -> None:
    raw = encode_properties(had)

    message = to_message(raw, body)

    assert to_properties(message) == raw
    assert message.body == body
    # And a store keeps it so.
    assert unpack(pack(message.headers)) == message.headers


def test_plain_values_are_plain_and_the_others_tell_their_type() -> None:
    raw = encode_properties(
        BasicProperties(
            headers={
                "a": "text",
                "b": 1,
                "c": Int32(2),
                "d": Timestamp(1_770_811_200),
                "e": DecimalValue(2, 1999),
                "f": Float32(0.5),
                "g": [True, {"h": None}],
                "i": RawStr(b"\xff"),
            },
            timestamp=1_770_811_200,
            delivery_mode=2,
        )
    )

    message = to_message(raw, b"")

    noon = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)
    assert message.sent_at == noon
    assert message.properties == Headers({"delivery_mode": 2})
    assert message.headers == Headers(
        {
            "a": "text",
            "b": 1,
            "c": TypedValue("int32", 2),
            "d": noon,
            "e": Decimal("19.99"),
            "f": TypedValue("float32", 0.5),
            "g": (True, Headers({"h": None})),
            "i": TypedValue("longstr", b"\xff"),
        }
    )


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (uuid4(), "no type for a UUID"),
        (TypedValue("symbol", "x"), "no type 'symbol'"),
        (TypedValue("int32", "x"), "no type 'int32' for this value"),
        (TypedValue("float32", 1e300), "no type 'float32' for this value"),
        (datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=UTC), "whole seconds"),
        (datetime(1969, 1, 1, tzinfo=UTC), "starts in 1970"),
        (Decimal("1E+3"), "does not fit AMQP's decimal"),
        (Decimal("NaN"), "does not fit AMQP's decimal"),
        (Decimal(2**31), "does not fit AMQP's decimal"),
    ],
)
def test_what_amqp_has_no_type_for_is_refused_and_named(value: object, says: str) -> None:
    message = Message(body=b"", headers=Headers([("odd", value)]))  # type: ignore[list-item]  # some of each

    with pytest.raises(FormatError, match="header 'odd'") as refused:
        to_properties(message)

    assert says in str(refused.value)


def test_what_does_not_fit_its_field_is_refused() -> None:
    with pytest.raises(FormatError, match="AMQP cannot carry this message: message_id has 300 octets"):
        to_properties(Message(body=b"", message_id="x" * 300))
    with pytest.raises(FormatError, match=r"the integer .* does not fit 64 bits"):
        to_properties(Message(body=b"", headers=Headers({"n": 2**64})))


def test_properties_of_other_brokers_are_left_behind() -> None:
    assert to_properties(Message(body=b"", properties=Headers({"session_id": "s"}))) == b"\x00\x00"
