"""How does Erlang print a value?

RabbitMQ's error texts show what was wrong as Erlang shows it, and clients compare texts. Only what those texts need is
here: the types of field tables and their values, on one line.
"""

from collections.abc import Mapping
from typing import Any, Final

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
)


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_WIRE_TYPES: Final = (
    bool,
    Int8,
    UInt8,
    Int16,
    UInt16,
    Int32,
    UInt32,
    Timestamp,
    int,
    Float32,
    float,
    DecimalValue,
)
_OTHER_TYPES: Final = (str, RawStr, bytes, dict, list, tuple, type(None))
_NAMES: Final = _split(
    "bool byte unsignedbyte short unsignedshort signedint unsignedint timestamp long float double decimal"
    " longstr longstr binary table array array void"
)
_TYPE_NAMES: Final[Mapping[type, str]] = dict(zip(_WIRE_TYPES + _OTHER_TYPES, _NAMES, strict=True))
_ESCAPES: Final = {
    ord(char): f"\\{name}" for char, name in zip('"\\\n\r\t\v\b\f\x1b', '"\\nrtvbfe', strict=True)
}


def type_name(value: object) -> str:
    """What RabbitMQ calls the wire type of `value`."""
    return next(_TYPE_NAMES[kind] for kind in type(value).__mro__ if kind in _TYPE_NAMES)


def erlang_string(text: str) -> str:
    """`text` as Erlang prints a list of characters: quoted, or as numbers where one of them cannot be shown."""
    if text and all(32 <= code < 127 or 160 <= code < 256 or code in _ESCAPES for code in map(ord, text)):
        return f'"{text.translate(_ESCAPES)}"'
    return f"[{','.join(str(ord(char)) for char in text)}]"


def erlang_binary(raw: bytes) -> str:
    """`raw` as Erlang prints a binary."""
    text = raw.decode("utf-8", "replace")
    if raw and (text.isascii() or text.isprintable()) and "\ufffd" not in text and "\0" not in text:
        return f'<<"{text.translate(_ESCAPES)}"{"" if text.isascii() else "/utf8"}>>'
    return f"<<{','.join(map(str, raw))}>>"


def erlang_term(value: Any) -> str:
    """A value of a field table as Erlang prints it."""
    match value:
        case None:
            return "undefined"
        case bool():
            return str(value).lower()
        case str() | bytes():
            return erlang_binary(octets(value))
        case Mapping():
            return f"[{','.join(f'{{{erlang_term(k)},{type_name(v)},{erlang_term(v)}}}' for k, v in value.items())}]"
        case DecimalValue():
            return f"{{{value.scale},{value.value}}}"
        case list() | tuple():
            return f"[{','.join(f'{{{type_name(each)},{erlang_term(each)}}}' for each in value)}]"
        case _:
            return str(int(value)) if isinstance(value, int) else repr(float(value))


def octets(value: str | bytes) -> bytes:
    """The octets of a string, whatever they are."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)


def shown(value: Any) -> str:
    """A string as it is, anything else as a term."""
    return octets(value).decode("utf-8", "replace") if isinstance(value, str | bytes) else erlang_term(value)
