"""How is a letter written so that a person can read it, and come back bit for bit?

As JSON with names. Bytes stand there as `{"text": "…"}` where they are text, else as `{"base64": "…"}`. A header is a
pair of name and value; a value that JSON has no type for is an object with one member that names its type, such as
`{"time": "…"}`, `{"typed": ["int16", 5]}` or `{"table": [["name", value], …]}`. No value stands there as a bare object,
so none is mistaken for another.

The rule: `from_json(to_json(letter)) == letter`. New fields of a letter have defaults, so that old lines can be read;
fields that were renamed are translated by the version of the file.
"""

import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import msgspec

from redrive.errors import FormatError
from redrive.letters import (
    DeadLetter,
    Failure,
    Headers,
    HeaderValue,
    Message,
    Origin,
    SystemState,
    TypedValue,
)
from redrive.letters.headers import DEEPEST

_ODD: Final = "odd text"  # text that holds lone surrogates, which JSON cannot carry as they are
_WITH_BROKERS: Final = 2  # the first version whose letters name their broker
_INT_RANGE: Final = range(-(2**63), 2**64)
_decode: Final = msgspec.json.Decoder().decode
# Written by position elsewhere, by name here: field of a letter → its type.
_INNER: Final[Mapping[str, type[msgspec.Struct]]] = MappingProxyType(
    {"message": Message, "origin": Origin, "failure": Failure, "system_state": SystemState}
)


def to_json(letter: DeadLetter) -> bytes:
    """The letter as JSON, on one line."""
    fields = {name: getattr(letter, name) for name in letter.__struct_fields__}
    for name in _INNER:
        if (inner := fields[name]) is not None:
            fields[name] = {key: _value(getattr(inner, key)) for key in inner.__struct_fields__}
    try:
        return msgspec.json.encode(fields)
    except UnicodeEncodeError:
        return msgspec.json.encode(_marked(msgspec.to_builtins(fields)))


def from_json(data: bytes, *, version: int) -> DeadLetter:
    """The letter that `to_json` wrote in a file of this version."""
    fields: Any = _decode(data)
    if b'"odd text"' in data:
        fields = _unmarked(fields)
    if not isinstance(fields, dict):
        raise FormatError("not an object")
    if version < _WITH_BROKERS:
        _name_broker(fields)
    for name, kind in _INNER.items():
        if (inner := fields.get(name)) is not None:
            if not isinstance(inner, dict):
                raise FormatError(f"its {name} is not an object")
            fields[name] = [_restored(key, inner[key]) for key in kind.__struct_fields__ if key in inner]
    return msgspec.convert(fields, DeadLetter, dec_hook=_as_it_is)


def _name_broker(fields: dict[str, Any]) -> None:
    """Give a letter of version 1 the fields of version 2."""
    if isinstance(transport := fields.pop("transport", None), str):
        fields["broker"] = f"unnamed:{transport}"
    if isinstance(origin := fields.get("origin"), dict):
        for old, new in (("group", "consumer_group"), ("broker", "endpoint")):
            if old in origin:
                origin[new] = origin.pop(old)
        fields["consumer_group"] = origin.get("consumer_group")


def _as_it_is(_: type, value: Any) -> Any:
    return value  # headers, which are built already


def _value(value: Any) -> Any:
    """A field of a message, an origin or a failure."""
    if isinstance(value, bytes):
        return _bytes(value)
    return _pairs(value, DEEPEST) if isinstance(value, Headers) else value


def _restored(name: str, value: Any) -> Any:
    if name in {"headers", "properties"}:
        return _headers(value)
    if name in {"body", "key"} and value is not None:
        return _from_tagged(value)
    return value


# --- values ----------------------------------------------------------------------------------------------


def _bytes(value: bytes) -> dict[str, str]:
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def _pairs(headers: Headers, depth: int) -> list[list[Any]]:
    return [[name, _header(value, depth)] for name, value in headers]


def _header(value: HeaderValue, depth: int) -> Any:
    if depth < 0:
        raise FormatError(f"headers are nested deeper than {DEEPEST} levels")
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if value in _INT_RANGE else {"int": str(value)}
        case float():
            return value if math.isfinite(value) else {"float64": struct.pack(">d", value).hex()}
        case bytes():
            return _bytes(value)
        case Decimal():
            return {"decimal": str(value)}
        case datetime():
            return {"time": value.astimezone(UTC).isoformat()}
        case UUID():
            return {"uuid": str(value)}
        case TypedValue():
            return {"typed": [value.kind, _header(value.value, depth - 1)]}
        case Headers():
            return {"table": _pairs(value, depth - 1)}
    return [_header(item, depth - 1) for item in value]


def _headers(value: Any) -> Headers:
    if not isinstance(value, list):
        raise FormatError("its headers are not a list")
    pairs = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise FormatError("a header is not a pair of name and value")
        pairs.append((pair[0], _from_header(pair[1])))
    return Headers(pairs)


def _from_header(value: Any) -> HeaderValue:
    if isinstance(value, dict):
        return _from_tagged(value)  # type: ignore[no-any-return]  # a row of _TAGS gives a header value
    if isinstance(value, list):
        return tuple(_from_header(item) for item in value)
    return value  # type: ignore[no-any-return]  # JSON's own types are header values


def _from_typed(pair: Any) -> TypedValue:
    kind, value = pair
    if not isinstance(kind, str):
        raise FormatError("the name of a type is not a string")
    return TypedValue(kind, _from_header(value))


_TAGS: Final[Mapping[str, Callable[[Any], HeaderValue]]] = MappingProxyType(
    {
        "text": lambda text: text.encode(),
        "base64": lambda text: b64decode(text, validate=True),
        "int": int,
        "float64": lambda text: struct.unpack(">d", bytes.fromhex(text))[0],
        "decimal": Decimal,
        "time": datetime.fromisoformat,
        "uuid": UUID,
        "typed": _from_typed,
        "table": _headers,
    }
)


def _from_tagged(value: Any) -> Any:
    if not isinstance(value, dict) or len(value) != 1:
        raise FormatError("a value is not an object with one member")
    [(tag, inner)] = value.items()
    if tag not in _TAGS:
        raise FormatError(f"a value of unknown type '{tag:.40}'")
    try:
        return _TAGS[tag](inner)
    except (ValueError, TypeError, AttributeError, ArithmeticError, struct.error) as error:
        raise FormatError(f"a value of type '{tag}' cannot be read: {error}") from error


# --- odd text --------------------------------------------------------------------------------------------


def _marked(value: Any) -> Any:
    """The same with every text that JSON cannot carry written as base 64."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return {_ODD: b64encode(value.encode("utf-8", "surrogatepass")).decode()}
        return value
    if isinstance(value, list | tuple):
        return [_marked(item) for item in value]
    if isinstance(value, dict):
        return {name: _marked(item) for name, item in value.items()}
    return value


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {_ODD}:
            try:
                return b64decode(value[_ODD], validate=True).decode("utf-8", "surrogatepass")
            except (ValueError, TypeError) as error:
                raise FormatError(f"encoded text cannot be read: {error}") from error
        return {name: _unmarked(item) for name, item in value.items()}
    return value
