"""How field tables and arrays become Python values, and how they become octets again.

The rule: a table from a stranger can do no harm. Every length is checked against the table it stands in,
nesting has a limit, and whatever is wrong comes out as one `FrameSyntaxError`. What was read is written
again bit by bit (see `values` for the mapping), with two exceptions that nobody relies on: of two equal
keys the last value wins, and a boolean octet other than 0 is written as 1.

Keys that are not UTF-8 keep their octets by way of `surrogateescape`: headers belong to the client, and a
broker passes on what it does not understand.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from redrive.amqp.errors import SHORTSTR_MAX, FrameSyntaxError, MisuseError
from redrive.amqp.values import (
    DecimalValue,
    FieldTable,
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

# Deeper than any honest header, far from Python's own limit (two frames per level).
MAX_DEPTH: Final = 64

_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")
_F64 = struct.Struct(">d")
_DEC = struct.Struct(">Bi")
_STRING_HEAD = struct.Struct(">BI")

_FORMATS: Final[dict[type[WireInt], struct.Struct]] = {
    Int8: struct.Struct(">b"),
    UInt8: struct.Struct(">B"),
    Int16: struct.Struct(">h"),
    UInt16: struct.Struct(">H"),
    Int32: struct.Struct(">i"),
    UInt32: struct.Struct(">I"),
    UInt64: struct.Struct(">Q"),
    Timestamp: struct.Struct(">Q"),
}
_SIZED_INTS: Final = {kind.code[0]: (fmt, fmt.size, kind) for kind, fmt in _FORMATS.items()}

_TOO_LONG: Final = "a field value of 4 GiB or more does not fit a table"

_S, _L, _T, _F, _A, _X, _V, _D64, _F32, _DECIMAL = b"SltFAxVdfD"


def decode_table(data: bytes, offset: int = 0, max_depth: int = MAX_DEPTH) -> tuple[dict[str, object], int]:
    """The table whose length stands at `offset`, and where it ends."""
    try:
        (size,) = _U32.unpack_from(data, offset)
        start: int = offset + 4
        end: int = start + size
        if end > len(data):
            raise FrameSyntaxError(f"a table of {size} octets where {len(data) - start} are left")
        return _read_table(data, start, end, max_depth), end
    except (struct.error, IndexError):
        raise FrameSyntaxError("a field table ends in the middle of a value") from None


def decode_bare_table(data: bytes, max_depth: int = MAX_DEPTH) -> dict[str, object]:
    """The table that fills `data` without a length in front, as an AMQPLAIN response is."""
    try:
        return _read_table(data, 0, len(data), max_depth)
    except (struct.error, IndexError):
        raise FrameSyntaxError("a field table ends in the middle of a value") from None


def _read_table(data: bytes, pos: int, end: int, depth: int) -> dict[str, object]:
    if depth <= 0:
        raise FrameSyntaxError("field tables are nested too deeply")
    table: dict[str, object] = {}
    while pos < end:
        behind = pos + data[pos] + 2  # the name and the code of the type
        key = _TEXTS.get(data[pos:behind])
        if key is None:
            start, pos = pos + 1, behind - 1
            if pos >= end:
                raise FrameSyntaxError("a field name reaches beyond its table")
            key = _key(data[start:pos], data[pos])
            table[key], pos = _read_value(data, pos, end, depth)
            continue
        # A string under a name that was seen before, as most headers are: worth the repetition.
        (size,) = _U32.unpack_from(data, behind)
        start = behind + 4
        pos = start + size
        raw = data[start:pos]
        try:
            table[key] = raw.decode()
        except UnicodeDecodeError:
            table[key] = RawStr(raw)
    # What is not checked one by one, since it cannot come back, shows up here.
    if pos != end:
        raise FrameSyntaxError("a value reaches beyond its table")
    return table


# Names of fields are few and come again and again. Those of strings, as the wire has them, with the length in front and
# the code of the type behind: one look tells name and type.
_TEXTS: Final[dict[bytes, str]] = {}
_KEYS: Final[dict[bytes, str]] = {}  # one string for each, whose hash is known from the first time on
_MOST_KEYS: Final = 1024
_LONGEST_KEY: Final = 64


def _key(name: bytes, code: int) -> str:
    if (known := _KEYS.get(name)) is not None and code != _S:
        return known
    try:
        key = name.decode()
    except UnicodeDecodeError:
        return name.decode("utf-8", "surrogateescape")
    if len(_KEYS) < _MOST_KEYS and len(name) <= _LONGEST_KEY:
        key = _KEYS.setdefault(name, key)
        if code == _S:
            _TEXTS[bytes((len(name), *name, code))] = key
    return key


def _read_array(data: bytes, pos: int, end: int, depth: int) -> list[object]:
    if depth <= 0:
        raise FrameSyntaxError("field arrays are nested too deeply")
    items: list[object] = []
    while pos < end:
        value, pos = _read_value(data, pos, end, depth)
        items.append(value)
    if pos != end:
        raise FrameSyntaxError("a value reaches beyond its array")
    return items


def _read_value(data: bytes, pos: int, end: int, depth: int) -> tuple[object, int]:
    code = data[pos]
    pos += 1
    if code == _L:
        return _I64.unpack_from(data, pos)[0], pos + 8
    if code == _T:
        return data[pos] != 0, pos + 1
    if code in _SIZED_INTS:
        fmt, width, kind = _SIZED_INTS[code]
        return kind(fmt.unpack_from(data, pos)[0]), pos + width
    if code in b"SFAx":
        (size,) = _U32.unpack_from(data, pos)
        start = pos + 4
        stop = start + size
        if stop > end:
            raise FrameSyntaxError(f"a value of {size} octets reaches beyond what holds it")
        if code == _F:
            return _read_table(data, start, stop, depth - 1), stop
        if code == _A:
            return _read_array(data, start, stop, depth - 1), stop
        raw = data[start:stop]
        if code == _X:
            return raw, stop
        try:
            return raw.decode(), stop
        except UnicodeDecodeError:
            return RawStr(raw), stop
    if code == _V:
        return None, pos
    if code == _D64:
        return _F64.unpack_from(data, pos)[0], pos + 8
    if code == _F32:
        if pos + 4 > end:
            raise FrameSyntaxError("a float reaches beyond what holds it")
        return Float32(0.0, data[pos : pos + 4]), pos + 4
    if code == _DECIMAL:
        return DecimalValue(*_DEC.unpack_from(data, pos)), pos + 5
    raise FrameSyntaxError(f"a field value of the unknown type {bytes((code,))!r}")


def encode_table(table: FieldTable, max_depth: int = MAX_DEPTH) -> bytes:
    """`table` with its length in front. A value that has no place in a table is a `MisuseError`."""
    return _write_table(table, max_depth)


def encode_bare_table(table: FieldTable, max_depth: int = MAX_DEPTH) -> bytes:
    """`table` without its length, as an AMQPLAIN response is."""
    return _write_table(table, max_depth)[4:]


def encode_value(value: object, max_depth: int = MAX_DEPTH) -> bytes:
    """One value with its type code in front."""
    return _writer_for(value)(value, max_depth)


def _write_table(table: FieldTable, depth: int) -> bytes:
    if depth <= 0:
        raise MisuseError("a field table is nested too deeply; a list that contains itself?")
    parts: list[bytes] = []
    try:
        for key, value in table.items():
            # Strings are most of what headers hold; they are worth the repetition.
            if type(value) is str and value.isascii():
                raw = value.encode()
                parts += (_write_name(key), _STRING_HEAD.pack(_S, len(raw)), raw)
            else:
                parts += (_write_name(key), (_WRITERS.get(type(value)) or _writer_for(value))(value, depth))
    except struct.error:
        raise MisuseError(_TOO_LONG) from None
    body = b"".join(parts)
    return _size(len(body)) + body


@lru_cache(1024)
def _write_name(key: str) -> bytes:
    """A field's name; there are few of them, and they come again and again."""
    name = _encode_text(key)
    if len(name) > SHORTSTR_MAX:
        raise MisuseError(f"a field name of {len(name)} octets; at most {SHORTSTR_MAX} fit")
    return bytes((len(name),)) + name


def _write_array(items: "list[object] | tuple[object, ...]", depth: int) -> bytes:
    if depth <= 0:
        raise MisuseError("a field array is nested too deeply; a list that contains itself?")
    body = b"".join([_writer_for(item)(item, depth) for item in items])
    return b"A" + _size(len(body)) + body


def _size(size: int) -> bytes:
    try:
        return _U32.pack(size)
    except struct.error:
        raise MisuseError(_TOO_LONG) from None


def _encode_text(text: object) -> bytes:
    if not isinstance(text, str):
        raise MisuseError(f"a field name must be a string, not {type(text).__name__}")
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise MisuseError("a string that cannot be written as UTF-8") from None


def _write_str(value: str, _depth: int) -> bytes:
    raw = _encode_text(value)
    return b"S" + _size(len(raw)) + raw


def _write_int(value: int, _depth: int) -> bytes:
    try:
        return b"l" + _I64.pack(value)
    except struct.error:
        raise MisuseError(f"the integer {value} does not fit 64 bits") from None


def _write_wire_int(value: WireInt, _depth: int) -> bytes:
    try:
        return value.code + _SIZED_INTS[value.code[0]][0].pack(value)
    except struct.error:
        raise MisuseError(f"{value!r} is out of range") from None


def _write_decimal(value: DecimalValue, _depth: int) -> bytes:
    try:
        return b"D" + _DEC.pack(*value)
    except struct.error:
        raise MisuseError(f"{value!r} is out of range") from None


_Writer = Callable[[Any, int], bytes]
_WRITERS: Final[dict[type, _Writer]] = {
    str: _write_str,
    int: _write_int,
    bool: lambda value, _: b"t\x01" if value else b"t\x00",
    dict: lambda value, depth: b"F" + _write_table(value, depth - 1),
    list: lambda value, depth: _write_array(value, depth - 1),
    tuple: lambda value, depth: _write_array(value, depth - 1),
    float: lambda value, _: b"d" + _F64.pack(value),
    type(None): lambda _value, _depth: b"V",
    bytes: lambda value, _: b"x" + _size(len(value)) + value,
    RawStr: lambda value, _: b"S" + _size(len(value)) + value,
    Float32: lambda value, _: b"f" + value.wire,
    DecimalValue: _write_decimal,
    **dict.fromkeys(_FORMATS, _write_wire_int),
}


def _writer_for(value: object) -> _Writer:
    """The writer of the value's own type, else of the nearest base (a `StrEnum` is a string)."""
    for kind in type(value).__mro__:
        writer = _WRITERS.get(kind)
        if writer is not None:
            return writer
    raise MisuseError(f"a field table cannot hold a value of type {type(value).__name__}")
