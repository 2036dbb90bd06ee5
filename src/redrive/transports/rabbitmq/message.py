"""Conversion between `Message` and the properties of AMQP.

It is exact both ways. Where the wire has one type for a Python value, the header has that value; every other one is
`TypedValue` with the wire's name of its type:

    int8 uint8 int16 uint16 int32 uint32 uint64 float32     numbers (a plain int is int64, a plain float float64)
    longstr                                                 a string that is not UTF-8, as bytes
    timestamp                                               seconds beyond what a datetime reaches

A datetime in the headers is AMQP's timestamp, which has whole seconds; so has `sent_at`, the property of that name.
The other properties are in `Message.properties` by AMQP's names. What AMQP has no type for is refused, never guessed.
"""

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from redrive.amqp.errors import FrameSyntaxError, MisuseError
from redrive.amqp.properties import decode_fields, encode_fields
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
from redrive.errors import FormatError
from redrive.letters import Headers, HeaderValue, Message, TypedValue
from redrive.letters.headers import EMPTY

_RAW: Final = "raw"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_LAST_SECOND: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _SECOND
_INTS: Final[dict[str, type[WireInt]]] = {
    "int8": Int8, "uint8": UInt8, "int16": Int16, "uint16": UInt16,
    "int32": Int32, "uint32": UInt32, "uint64": UInt64, "timestamp": Timestamp,
}  # fmt: skip
_AS_IT_IS: Final = frozenset({str, int, bool, float, bytes, type(None)})  # the same in Python and on the wire
_OTHERS: Final = frozenset(
    {"delivery_mode", "priority", "reply_to", "expiration", "type", "user_id", "app_id", "cluster_id"}
)


# --- from the wire ----------------------------------------------------------------------------------------


def to_message(properties: bytes, body: bytes, fields: dict[str, Any] | None = None) -> Message:
    """The message that raw properties and a body make; what cannot be read of them is kept as it is, as `raw`.

    `fields` are the properties, where somebody has read them already.
    """
    try:
        had = fields or decode_fields(properties)
    except FrameSyntaxError:
        return Message(body=body, properties=Headers({_RAW: properties}))
    others = {name: value for name, value in had.items() if name in _OTHERS}
    sent_at = None
    if (seconds := had.get("timestamp")) is not None:
        sent_at = _time(seconds)
        if sent_at is None:
            others["timestamp"] = seconds
    field = had.get
    return Message(
        body=body,
        headers=_headers(table) if (table := field("headers")) else EMPTY,
        content_type=field("content_type"),
        content_encoding=field("content_encoding"),
        message_id=field("message_id"),
        correlation_id=field("correlation_id"),
        sent_at=sent_at,
        properties=_properties(tuple(others.items())) if others else EMPTY,
    )


@lru_cache(256)
def _properties(others: tuple[tuple[str, Any], ...]) -> Headers:
    """One for all messages alike: most have a delivery mode and nothing else."""
    return Headers.of(others)


def _headers(table: dict[str, Any]) -> Headers:
    if not _AS_IT_IS.issuperset(map(type, table.values())):
        table = {name: _from_wire(value) for name, value in table.items()}
    return Headers.of_table(table)


def _time(seconds: int) -> datetime | None:
    return _EPOCH + seconds * _SECOND if seconds <= _LAST_SECOND else None


def _float32(value: Float32) -> HeaderValue:
    # A NaN has bits that a Python float does not keep.
    plain = float(value)
    return TypedValue("float32", plain if struct.pack(">f", plain) == value.wire else value.wire)


def _timestamp(value: Timestamp) -> HeaderValue:
    return _time(value) or TypedValue("timestamp", int(value))


def _sized_int(name: str) -> Callable[[int], HeaderValue]:
    return lambda value: TypedValue(name, int(value))


_FROM_WIRE: Final[dict[type, Callable[[Any], HeaderValue]]] = {
    dict: _headers,
    list: lambda value: tuple(map(_from_wire, value)),
    Timestamp: _timestamp,
    Float32: _float32,
    RawStr: lambda value: TypedValue("longstr", bytes(value)),
    DecimalValue: lambda value: Decimal(value.value).scaleb(-value.scale),
    **{kind: _sized_int(name) for name, kind in _INTS.items() if kind is not Timestamp},
}


def _from_wire(value: Any) -> HeaderValue:
    convert = _FROM_WIRE.get(type(value))
    return value if convert is None else convert(value)


# --- to the wire ------------------------------------------------------------------------------------------


def to_properties(message: Message) -> bytes:
    """The raw properties of a message; a `FormatError` if AMQP cannot carry one of them."""
    if isinstance(raw := message.properties.get(_RAW), bytes):
        return raw
    fields: dict[str, Any] = {
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "headers": _table(message.headers) or None,
        "correlation_id": message.correlation_id,
        "message_id": message.message_id,
    }
    for name, value in message.properties:
        if name in _OTHERS or name == "timestamp":
            fields[name] = _plain(value)
    if message.sent_at is not None:
        fields["timestamp"] = max(0, (message.sent_at - _EPOCH) // _SECOND)
    try:
        return encode_fields(fields)
    except MisuseError as error:
        raise FormatError(f"AMQP cannot carry this message: {error.text}") from error


def _plain(value: HeaderValue) -> Any:
    return value.value if isinstance(value, TypedValue) else value


def _table(headers: Headers) -> Mapping[str, object]:
    table = headers.by_name
    if _AS_IT_IS.issuperset(map(type, table.values())):
        return table
    return {name: to_wire(name, value) for name, value in table.items()}


def to_wire(name: str, value: HeaderValue) -> object:
    """The value that `amqp.table` writes for a header; `name` is for the error."""
    if type(value) in _AS_IT_IS:
        return value
    if isinstance(value, Headers):
        return _table(value)
    if isinstance(value, tuple):
        return [to_wire(name, item) for item in value]
    if isinstance(value, TypedValue):
        return _typed_to_wire(name, value)
    if isinstance(value, datetime):
        seconds, rest = divmod(value - _EPOCH, _SECOND)
        if rest or seconds < 0:
            raise FormatError(
                f"header '{name}': an AMQP timestamp has whole seconds and starts in 1970; send it as text"
            )
        return Timestamp(seconds)
    if isinstance(value, Decimal):
        return _decimal_to_wire(name, value)
    if isinstance(value, UUID):
        raise FormatError(f"header '{name}': AMQP 0-9-1 has no type for a UUID; send it as text")
    return value


def _typed_to_wire(name: str, typed: TypedValue) -> object:
    kind, value = typed.kind, typed.value
    if kind in _INTS and type(value) is int:
        return _INTS[kind](value)
    if kind == "float32" and isinstance(value, float):
        try:
            return Float32(value)
        except OverflowError:
            pass
    if kind == "float32" and isinstance(value, bytes) and len(value) == 4:
        return Float32(0.0, value)
    if kind == "longstr" and isinstance(value, bytes):
        return RawStr(value)
    raise FormatError(f"header '{name}': AMQP 0-9-1 has no type '{kind}' for this value; send it as text")


def _decimal_to_wire(name: str, value: Decimal) -> DecimalValue:
    sign, digits, exponent = value.as_tuple()
    if isinstance(exponent, int) and -255 <= exponent <= 0 and len(digits) <= 10:
        number = int("".join(map(str, digits))) * (-1 if sign else 1)
        if -(2**31) <= number < 2**31:
            return DecimalValue(-exponent, number)
    raise FormatError(f"header '{name}': the number {value} does not fit AMQP's decimal; send it as text")
