"""Read and change the headers of a message without decoding their values.

A content header carries the basic properties; one of them, `headers`, is a field table. RabbitMQ delivers that table
sorted by name, with the first of several fields of one name, from the first delivery on. Here a table is split into
its encoded fields, changed by name, and put together again. Values are copied octet by octet.
"""

import struct
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from redrive.broker.message import PROPERTIES_AT

_U32 = struct.Struct(">I")
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
    """The properties with their headers sorted by name; the same object if they are already."""
    if not raw[0] & _HEADERS:
        return raw
    start, end = _span(raw)
    names, pos = [], start + 4
    while pos < end:
        name_end = pos + 1 + raw[pos]
        names.append(raw[pos + 1 : name_end])
        pos = _value_end(raw, name_end, end)
    if all(name < following for name, following in pairwise(names)):
        return raw
    return _join(raw, start, end, _fields(raw, start + 4, end))


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


def _join(raw: bytes, start: int, end: int, fields: Mapping[bytes, bytes]) -> bytes:
    table = b"".join([fields[name] for name in sorted(fields)])
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
    if kind + 5 <= end and table[kind] in _SIZED:
        return kind + 5 + int(_U32.unpack_from(table, kind + 1)[0])
    if kind < end and table[kind] in _WIDTHS:
        return kind + 1 + _WIDTHS[table[kind]]
    return end + 1
