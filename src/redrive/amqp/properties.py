"""What the properties of a message say, read and changed at the least cost.

The rule: properties belong to the sender. They travel as raw octets (flags and fields, the content header
from its thirteenth octet on); one field can be looked at without decoding the others, and a change touches
only the fields it names: every other octet stays as the sender wrote it.

The fourteen fields follow the flags in the order of `FIELDS`, first field in the highest bit. The two
lowest bits mean nothing in AMQP 0-9-1 (one would announce more flags than there are fields) and must be 0.
This module does not know what a broker does with an expiration or a priority.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import asdict

from redrive.amqp.errors import SHORTSTR_MAX, FrameSyntaxError, MisuseError
from redrive.amqp.table import decode_table, encode_table
from redrive.amqp.values import FieldTable

FieldName: TypeAlias = Literal[
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
]

NO_PROPERTIES: Final = b"\x00\x00"

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")

_SHORTSTR, _TABLE, _OCTET, _LONGLONG = 0, -1, 1, 8  # the fixed widths, and two that are not


class _Field(NamedTuple):
    name: FieldName
    width: int
    flag: int


_WIDTHS: Final[Mapping[FieldName, int]] = {
    "content_type": _SHORTSTR,
    "content_encoding": _SHORTSTR,
    "headers": _TABLE,
    "delivery_mode": _OCTET,
    "priority": _OCTET,
    "correlation_id": _SHORTSTR,
    "reply_to": _SHORTSTR,
    "expiration": _SHORTSTR,
    "message_id": _SHORTSTR,
    "timestamp": _LONGLONG,
    "type": _SHORTSTR,
    "user_id": _SHORTSTR,
    "app_id": _SHORTSTR,
    "cluster_id": _SHORTSTR,
}
FIELDS: Final[tuple[_Field, ...]] = tuple(
    _Field(name, width, 0x8000 >> place) for place, (name, width) in enumerate(_WIDTHS.items())
)
_BY_NAME: Final[Mapping[str, _Field]] = {field.name: field for field in FIELDS}
_HEADERS: Final = _BY_NAME["headers"]
_UNUSED_FLAGS: Final = 0x0003


class BasicProperties(Struct, frozen=True):
    """All properties of a message; `None` is a field that the sender did not set."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: FieldTable | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


def decode_properties(raw: bytes) -> BasicProperties:
    """All fields of the raw properties."""
    return BasicProperties(**decode_fields(raw))


def decode_fields(raw: bytes) -> dict[str, Any]:
    """The fields that are set, by name."""
    values: dict[str, Any] = {}
    pos = 2
    try:
        for name, width in _fields_of(_flags(raw)):
            start = pos
            if width == _SHORTSTR:
                pos += 1 + raw[pos]
                # A message's properties are passed on, not judged: odd octets survive as surrogates.
                values[name] = raw[start + 1 : pos].decode("utf-8", "surrogateescape")
            elif width == _TABLE:
                values[name], pos = decode_table(raw, pos)
            else:
                pos += width
                values[name] = int.from_bytes(raw[start:pos], "big")
    except IndexError:
        pos = -1
    if pos != len(raw):
        raise FrameSyntaxError(_BAD_END)
    return values


def encode_properties(properties: BasicProperties) -> bytes:
    """The raw properties. A value that does not fit its field is a `MisuseError`."""
    return encode_fields(asdict(properties))


def encode_fields(values: Mapping[str, Any]) -> bytes:
    """The same of fields by name; None is a field that is not set."""
    flags = 0
    parts = [b""]
    for name, width, flag in FIELDS:
        value = values.get(name)
        if value is not None:
            flags |= flag
            parts.append(_write(name, width, value))
    parts[0] = _U16.pack(flags)
    return b"".join(parts)


def read_field(raw: bytes, name: FieldName) -> object:
    """One field, or None if it is not set. Fields behind it are not looked at."""
    wanted = _BY_NAME[name]
    flags = _flags(raw)
    if not flags & wanted.flag:
        return None
    start = pos = 2
    try:
        for _, width, flag in FIELDS:
            if flags & flag:
                start, pos = pos, pos + _length(width, raw, pos)
                if flag == wanted.flag:
                    break
    except (struct.error, IndexError):
        pos = len(raw) + 1
    if pos > len(raw):
        raise FrameSyntaxError(f"the properties end before or in {name}")
    return _read(wanted, raw, start, pos)


def read_content_type(raw: bytes) -> str | None:
    """The content type; None if there is none, or if the properties cannot be read. The first field: it is quick."""
    if len(raw) < 3 or not raw[0] & 0x80 or len(raw) < 3 + raw[2]:
        return None
    return _content_type(raw[3 : 3 + raw[2]])


@lru_cache(256)
def _content_type(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")


def read_headers(raw: bytes) -> dict[str, object]:
    """The headers; empty if there are none."""
    value = read_field(raw, "headers")
    return cast("dict[str, object]", value) if value is not None else {}


def read_expiration(raw: bytes) -> str | None:
    """The expiration as the sender wrote it: a string, which should be of digits and may be anything."""
    return cast("str | None", read_field(raw, "expiration"))


def read_priority(raw: bytes) -> int:
    """The priority; 0 if the sender set none."""
    return cast("int | None", read_field(raw, "priority")) or 0


def is_persistent(raw: bytes) -> bool:
    """Whether the delivery mode is 2."""
    return read_field(raw, "delivery_mode") == 2


def replace_fields(raw: bytes, drop: tuple[FieldName, ...] = (), **changes: object) -> bytes:
    """The raw properties with `changes` in place, without the fields in `drop`, all else untouched.

    `replace_fields(raw, drop=("expiration",), headers=headers)` is what dead-lettering does.
    """
    for name in (*drop, *changes):
        if name not in _BY_NAME:
            raise MisuseError(f"no property is called {name!r}; there are: {', '.join(_BY_NAME)}")
    present = {field.flag: raw[start:stop] for field, start, stop in _spans(raw)}
    for name in drop:
        present.pop(_BY_NAME[name].flag, None)
    for name, value in changes.items():
        field = _BY_NAME[name]
        if value is None:
            present.pop(field.flag, None)
        else:
            present[field.flag] = _write(field.name, field.width, value)
    flags = sorted(present, reverse=True)
    return b"".join([_U16.pack(sum(flags)), *(present[flag] for flag in flags)])


def add_headers(raw: bytes, fields: bytes) -> bytes:
    """The raw properties with `fields`, a table without its length, behind the headers they have; all else untouched.

    A name that the headers have already would then be there twice: whoever adds has looked.
    """
    flags, at, end = _flags(raw) | _HEADERS.flag, 2, 2
    for field, start, stop in _spans(raw):
        if field.flag >= _HEADERS.flag:  # up to the headers, which have a place even where there are none
            at, end = (start, stop) if field is _HEADERS else (stop, stop)
    had = raw[at + 4 : end]
    size = _U32.pack(len(had) + len(fields))
    return b"".join((_U16.pack(flags), raw[2:at], size, had, fields, raw[end:]))


def check_properties(raw: bytes) -> None:
    """Raise a `FrameSyntaxError` unless every field has its length. Tables inside are not opened."""
    _spans(raw)


def _flags(raw: bytes) -> int:
    if len(raw) < 2:
        raise FrameSyntaxError("a content header without property flags")
    return raw[0] << 8 | raw[1]


_BAD_END: Final = "the properties do not end where their frame ends"


@lru_cache(256)
def _fields_of(flags: int) -> tuple[tuple[FieldName, int], ...]:
    """Name and width of the fields that are set; producers set a few and always the same."""
    if flags & _UNUSED_FLAGS:
        raise FrameSyntaxError("property flags that AMQP 0-9-1 does not have")
    return tuple((field.name, field.width) for field in FIELDS if flags & field.flag)


def _spans(raw: bytes) -> list[tuple[_Field, int, int]]:
    """Where each field that is set begins and ends, its own length octets included."""
    spans: list[tuple[_Field, int, int]] = []
    pos = 2
    try:
        for name, _ in _fields_of(_flags(raw)):
            field = _BY_NAME[name]
            start, pos = pos, pos + _length(field.width, raw, pos)
            spans.append((field, start, pos))
    except (struct.error, IndexError):
        pos = -1
    if pos != len(raw):
        raise FrameSyntaxError(_BAD_END)
    return spans


def _length(width: int, raw: bytes, pos: int) -> int:
    """How many octets the field at `pos` takes."""
    if width > 0:
        return width
    if width == _SHORTSTR:
        return 1 + raw[pos]
    size: int = _U32.unpack_from(raw, pos)[0]
    return 4 + size


def _read(field: _Field, raw: bytes, start: int, stop: int) -> object:
    if field.width == _SHORTSTR:
        # A message's properties are passed on, not judged: odd octets survive as surrogates.
        return raw[start + 1 : stop].decode("utf-8", "surrogateescape")
    if field.width == _TABLE:
        return decode_table(raw, start)[0]
    return int.from_bytes(raw[start:stop], "big")


def _write(name: str, width: int, value: object) -> bytes:
    if width == _TABLE and (type(value) is dict or isinstance(value, Mapping)):  # the latter takes its time
        return encode_table(value)
    if width == _SHORTSTR and isinstance(value, str):
        try:
            text = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise MisuseError(f"{name} cannot be written as UTF-8") from None
        if len(text) > SHORTSTR_MAX:
            raise MisuseError(f"{name} has {len(text)} octets; at most {SHORTSTR_MAX} fit")
        return bytes((len(text),)) + text
    if width > 0 and isinstance(value, int):
        try:
            return value.to_bytes(width, "big")
        except OverflowError:
            raise MisuseError(f"{name} {value} is out of range") from None
    raise MisuseError(f"{name} cannot be a {type(value).__name__}")
