"""Read and change the headers of a message without decoding their values.

A content header carries the basic properties; one of them, `headers`, is a field table. RabbitMQ delivers that table
sorted by name, with the first of several fields of one name, from the first delivery on. Here a table is split into
its encoded fields, changed by name, and put together again. Values are copied octet by octet.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from redrive.broker.message import PROPERTIES_AT

_U32 = struct.Struct(">I")
_u32 = _U32.unpack_from
_I64 = struct.Struct(">q")
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS = 0x80, 0x40, 0x20  # in the first octet of the property flags

# How many octets a value takes behind its type code; the four others begin with their length.
_WIDTHS: Final = dict(zip(b"tbBsuIifDlLdTV", (1, 1, 1, 2, 2, 4, 4, 4, 5, 8, 8, 8, 8, 0), strict=True))
_SIZED: Final = frozenset(b"SAFx")


def headers_of(raw: bytes) -> dict[bytes, bytes]:
    """The encoded fields of the headers in valid properties, by name; of equal names the first."""
    start, end = _span(raw)
    return _fields(raw, start + 4, end)


def sort_headers(raw: bytes) -> bytes:
    """The properties with their headers sorted by name, the first of a name kept; the same object if they are so.

    A table that cannot be read to its end stays as it is.
    """
    if not raw[0] & _HEADERS:
        return raw
    start, end = _span(raw)
    pos = start + 4
    fields: dict[bytes, bytes] = {}
    count = 0
    try:
        while pos < end:
            kind = pos + 1 + raw[pos]
            code = raw[kind]
            stop = kind + 5 + _u32(raw, kind + 1)[0] if code in _SIZED else kind + 1 + _WIDTHS[code]
            fields.setdefault(raw[pos + 1 : kind], raw[pos:stop])
            pos = stop
            count += 1
    except (IndexError, KeyError, struct.error):
        return raw
    names = sorted(fields)
    if pos != end or (len(names) == count and names == list(fields)):
        return raw
    return _join(raw, start, end, fields, names)


def with_headers(header: bytes, changes: Iterable[tuple[bytes, bytes]] | Mapping[bytes, bytes]) -> bytes:
    """The content header with these encoded fields set, all headers sorted by name."""
    raw = header[PROPERTIES_AT:]
    start, end = _span(raw)
    fields = _fields(raw, start + 4, end)
    fields.update(changes)
    return header[:PROPERTIES_AT] + _join(raw, start, end, fields)


def without_header(raw: bytes, name: bytes) -> bytes:
    """The properties without this header."""
    start, end = _span(raw)
    fields = _fields(raw, start + 4, end)
    fields.pop(name, None)
    return _join(raw, start, end, fields)


def long_field(name: bytes, value: int) -> bytes:
    """A field that holds a signed integer of 64 bits."""
    return b"%c%bl%b" % (len(name), name, _I64.pack(value))


def _join(
    raw: bytes, start: int, end: int, fields: Mapping[bytes, bytes], names: Sequence[bytes] | None = None
) -> bytes:
    """The properties with these headers; `names` are theirs in order, where the caller has sorted them."""
    table = b"".join([fields[name] for name in names or sorted(fields)])
    flags = bytes((raw[0] | _HEADERS, raw[1]))
    return b"".join((flags, raw[2:start], _U32.pack(len(table)), table, raw[end:]))


def _span(raw: bytes) -> tuple[int, int]:
    """Where the headers, or the place for them, begin and end in valid properties."""
    start = 2
    for flag in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if raw[0] & flag:
            start += 1 + raw[start]
    return start, start + 4 + _U32.unpack_from(raw, start)[0] if raw[0] & _HEADERS else start


def _fields(table: bytes, pos: int, end: int) -> dict[bytes, bytes]:
    """The encoded fields between two offsets, up to the first one that cannot be read."""
    fields: dict[bytes, bytes] = {}
    while pos < end:
        start = pos
        kind = start + 1 + table[start]
        pos = _value_end(table, kind, end)
        if pos > end:
            break
        fields.setdefault(table[start + 1 : kind], table[start:pos])
    return fields


def _value_end(table: bytes, kind: int, end: int) -> int:
    """Where the value whose type code is at `kind` ends; beyond `end` if it cannot be read."""
    if kind >= end:
        return end + 1
    code = table[kind]
    if code in _SIZED:
        return kind + 5 + int.from_bytes(table[kind + 1 : kind + 5]) if kind + 5 <= end else end + 1
    width = _WIDTHS.get(code)
    return end + 1 if width is None else kind + 1 + width
