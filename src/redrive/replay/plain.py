"""How does a message look to an edit?

As plain JSON values: the body decoded, each header with its wire type put aside. On the way back a header keeps the
type it had wherever the new value fits it, and a number in a body keeps its digits: JSON's fractions are `Decimal`
here, so that 19.90 stays 19.90 and a hundred times 19.99 is 1999.

The rule: what is not understood is refused, never guessed. This file does not know what an edit is.
"""

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec

from redrive.errors import FormatError
from redrive.letters import Headers, HeaderValue, Message, TypedValue

# None, bool, int, Decimal, str, list, dict; within headers also `Opaque`.
Json: TypeAlias = Any

_decode: Final = msgspec.json.Decoder(float_hook=Decimal).decode
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
_JSON_TYPE: Final = re.compile(r"\s*[\w.+-]+/(?:[\w.+-]*\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_NO_TYPE: Final = frozenset({"", "application/octet-stream"})
_NO_ENCODING: Final = frozenset({"", "identity", "binary", "utf-8", "utf8"})  # producers write these as well


class Opaque:
    """A header value that JSON has no word for: it can be moved to another header, but not computed with.

    A class of the plainest kind, because the encoder would write any other one into a body.
    """

    __slots__ = ("value",)

    def __init__(self, value: HeaderValue) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and Headers({"": self.value}) == Headers({"": other.value})

    def __hash__(self) -> int:
        return hash(self.value)


# --- bodies ----------------------------------------------------------------------------------------------


def read_json(data: bytes | str, what: str) -> Json:
    """The value that this JSON text is; `what` names it in the error."""
    try:
        value = _decode(data)
    except (msgspec.MsgspecError, UnicodeError, ArithmeticError) as error:
        raise FormatError(f"{what} is not JSON: {error}") from None
    except RecursionError:
        raise FormatError(f"{what} is nested too deeply") from None
    _refuse_repeated_names(data, what)
    return value


def write_json(value: Json, what: str) -> bytes:
    """The value as compact JSON."""
    try:
        return _encode(value)
    except UnicodeError:
        raise FormatError(f"{what} would contain text that is not valid Unicode") from None
    except RecursionError:
        raise FormatError(f"{what} would be nested too deeply") from None
    except TypeError:
        raise FormatError(f"{what} would contain a header value that JSON cannot represent") from None


def body_of(message: Message) -> Json:
    """The body as a value, or a `FormatError` that says why it can only be replaced as a whole."""
    if message.body is None:
        raise FormatError("the body is null; it can only be replaced as a whole")
    if not _is_plain(message):
        raise FormatError(
            f"the body is encoded ({message.content_encoding!r:.40}); it can only be replaced as a whole"
        )
    try:
        return read_json(message.body, "the body")
    except FormatError as error:
        raise FormatError(f"{error}; it can only be replaced as a whole") from None


def check_body(old: Message, new: Message) -> None:
    """A new body is JSON where the content type, or the old body in its absence, says so."""
    if new.body is not None and new.body != old.body and _is_plain(new) and _is_json(old):
        read_json(new.body, "the new body")


def _is_json(message: Message) -> bool:
    kind = message.content_type or ""
    if kind.strip().lower() not in _NO_TYPE:
        return _JSON_TYPE.fullmatch(kind) is not None
    try:
        return isinstance(_decode(message.body or b""), dict | list)
    except (msgspec.MsgspecError, UnicodeError, ArithmeticError, RecursionError):
        return False


def _is_plain(message: Message) -> bool:
    return (message.content_encoding or "").strip().lower() in _NO_ENCODING


def _refuse_repeated_names(data: bytes | str, what: str) -> None:
    """A decoder keeps one of two members with the same name: an edit would drop the other in silence."""

    def members(pairs: list[tuple[str, object]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise FormatError(f"{what} has the name '{twice:.40}' twice in one object")

    try:
        json.loads(data, object_pairs_hook=members, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        raise FormatError(f"{what} is nested too deeply or is not JSON") from None


# --- headers ---------------------------------------------------------------------------------------------


def header_to_json(value: HeaderValue) -> Json:
    """The value without its wire type."""
    match value:
        case TypedValue():
            return header_to_json(value.value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return Opaque(value)
        case float():
            return Decimal(repr(value)) if math.isfinite(value) else Opaque(value)
        case Headers():
            return {name: header_to_json(item) for name, item in value}
        case tuple():
            return [header_to_json(item) for item in value]
        case datetime() | UUID():
            return Opaque(value)
    return value


def header_from_json(name: str, value: Json, before: HeaderValue = None) -> HeaderValue:
    """The value for a header, of the type that `before` had where it fits."""
    if isinstance(before, TypedValue):
        return _typed(name, value, before)
    match value:
        case Opaque():
            return value.value
        case str() if isinstance(before, bytes):
            return _bytes(name, value)
        case int() if type(before) is float and type(value) is int:
            return _float(name, Decimal(value))
        case int() if isinstance(before, Decimal) and type(value) is int:
            return Decimal(value)
        case Decimal():
            return value if isinstance(before, Decimal) else _float(name, value)
        case list():
            return tuple(header_from_json(name, item) for item in value)
        case dict():
            old = before if isinstance(before, Headers) else Headers()
            return Headers({key: header_from_json(key, item, old.get(key)) for key, item in value.items()})
    return value  # type: ignore[no-any-return]  # None, bool, int and str are what they are


_SIZED: Final = re.compile(r"(u?)int(8|16|32|64)")


def _typed(name: str, value: Json, before: TypedValue) -> HeaderValue:
    old = before.value
    if type(value) is int and type(old) is int:
        if sized := _SIZED.fullmatch(before.kind):
            bits = int(sized[2])
            fits = range(2**bits) if sized[1] else range(-(2 ** (bits - 1)), 2 ** (bits - 1))
            if value not in fits:
                raise FormatError(f"header '{name:.60}' is an {before.kind} and cannot hold {value}")
        return TypedValue(before.kind, value)
    if isinstance(value, Decimal | int) and not isinstance(value, bool) and before.kind.startswith("float"):
        return TypedValue(before.kind, _float(name, Decimal(value)))
    if isinstance(value, str) and isinstance(old, bytes):
        return TypedValue(before.kind, _bytes(name, value))
    if isinstance(value, str) and isinstance(old, str):
        return TypedValue(before.kind, value)
    return header_from_json(name, value)


def _float(name: str, value: Decimal) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise FormatError(f"header '{name:.60}' cannot hold a number as large as {value!s:.40}")
    return number


def _bytes(name: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise FormatError(f"header '{name:.60}' would contain text that is not valid Unicode") from None


def with_headers(headers: Headers, changes: Mapping[str, Json]) -> Headers:
    """The headers with these names set, each of the type it had."""
    return headers.with_(
        {name: header_from_json(name, value, headers.get(name)) for name, value in changes.items()}
    )


# --- comparing -------------------------------------------------------------------------------------------


def same(left: Json, right: Json) -> bool:
    """JSON's equality: numbers by value, and true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | Decimal) and isinstance(right, int | Decimal):
        return left == right
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(item, right[key]) for key, item in left.items())
    return bool(left == right)
