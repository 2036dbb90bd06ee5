"""How are the headers of any broker held without losing a bit?

A Kafka record may carry the same header name twice, in an order that matters. An AMQP table knows eleven
kinds of number and nests. So headers are an ordered list of pairs, and a value is either a plain Python
value, where the wire has exactly one type for it, or `TypedValue`, which remembers the wire's name for it.

The one rule: what went in comes out, order, duplicates and types included. `unpack(pack(h)) == h`.
This file does not know what any header means.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, Self, TypeAlias, Union, overload
from uuid import UUID

import msgspec

from redrive.errors import FormatError

HeaderValue: TypeAlias = Union[
    bool,
    int,
    float,
    str,
    bytes,
    Decimal,
    datetime,
    UUID,
    "TypedValue",
    "Headers",
    tuple["HeaderValue", ...],
    None,
]


class TypedValue(msgspec.Struct, frozen=True, order=False):
    """A value with the wire's name of its type, where Python has no such type.

    `TypedValue("int16", 5)`, `TypedValue("float32", 0.5)`, `TypedValue("symbol", "abc")`. The transport defines the
    names; a transport that does not know a name refuses to send the header.
    """

    kind: str
    value: HeaderValue

    def __eq__(self, other: object) -> bool:
        """Equal when kind, Python type and value are: 1 is not True, and a NaN equals itself."""
        return isinstance(other, TypedValue) and self.kind == other.kind and _same(self.value, other.value)

    def __hash__(self) -> int:
        return hash((self.kind, self.value))


class Headers(Sequence[tuple[str, HeaderValue]]):
    """An immutable, ordered list of (name, value). Names may repeat; the last one counts.

    Held as pairs, or by name where no name repeats, as in AMQP; the one is made of the other when it is asked for.
    """

    __slots__ = ("_by_name", "_made", "packed")

    def __init__(self, pairs: Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]] = ()) -> None:
        items = pairs.items() if isinstance(pairs, Mapping) else pairs
        self._made: tuple[tuple[str, HeaderValue], ...] | None = tuple(
            [(name, value if type(value) in _EXACT else _checked(value)) for name, value in items]
        )
        self._by_name: dict[str, HeaderValue] | None = None
        self.packed: bytes | None = None  # what `pack` has made of them, once it has

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, HeaderValue]]) -> Self:
        """Headers of pairs that are known to be right, as those of a decoder or of other headers: not looked at."""
        made = cls.__new__(cls)
        made._made, made._by_name, made.packed = tuple(pairs), None, None  # noqa: SLF001  it is one of ours
        return made

    @classmethod
    def of_table(cls, table: dict[str, HeaderValue]) -> Self:
        """The same of a table, which nobody changes from now on."""
        made = cls.__new__(cls)
        made._made, made._by_name, made.packed = None, table, None  # noqa: SLF001  likewise
        return made

    @property
    def _pairs(self) -> tuple[tuple[str, HeaderValue], ...]:
        if self._made is None:
            self._made = tuple((self._by_name or {}).items())
        return self._made

    @property
    def by_name(self) -> Mapping[str, HeaderValue]:
        """The headers by name; of those that share one, the last."""
        if self._by_name is None:
            self._by_name = dict(self._made or ())
        return self._by_name

    @overload
    def __getitem__(self, index: int) -> tuple[str, HeaderValue]: ...
    @overload
    def __getitem__(self, index: slice) -> "Headers": ...
    def __getitem__(self, index: int | slice) -> "tuple[str, HeaderValue] | Headers":
        return Headers.of(self._pairs[index]) if isinstance(index, slice) else self._pairs[index]

    def __len__(self) -> int:
        return len((self._by_name or ()) if self._made is None else self._made)

    def __iter__(self) -> Iterator[tuple[str, HeaderValue]]:
        return iter(self._pairs)

    def __eq__(self, other: object) -> bool:
        """Equal when every name, type and value is, in the same order."""
        return isinstance(other, Headers) and _same(self._pairs, other._pairs)

    def __hash__(self) -> int:
        return hash(self._pairs)

    def __repr__(self) -> str:
        return f"Headers({list(self._pairs)!r})"

    def get(self, name: str, default: HeaderValue = None) -> HeaderValue:
        """The value of the last header of this name."""
        return self.by_name.get(name, default)

    def get_all(self, name: str) -> tuple[HeaderValue, ...]:
        """The values of all headers of this name, in order."""
        return tuple(value for key, value in self._pairs if key == name)

    def text(self, name: str) -> str | None:
        """The value as text if it is text or UTF-8 bytes, else None."""
        value = self.get(name)
        if isinstance(value, TypedValue):
            value = value.value
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                return None
        return value if isinstance(value, str) else None

    def names(self) -> frozenset[str]:
        """The names that occur."""
        return frozenset(self.by_name)

    def with_(self, changes: Mapping[str, HeaderValue]) -> Self:
        """A copy in which each of these names occurs once: replaced in place, or added last."""
        left = dict(changes)
        pairs: list[tuple[str, HeaderValue]] = []
        for name, value in self._pairs:
            if name not in changes:
                pairs.append((name, value))
            elif name in left:
                pairs.append((name, left.pop(name)))
        return type(self)([*pairs, *left.items()])

    def without(self, *names: str) -> Self:
        """A copy in which none of these names occurs."""
        if self is EMPTY or self.by_name.keys().isdisjoint(names):
            return self
        return self.of([pair for pair in self._pairs if pair[0] not in names])


EMPTY: Final = Headers()

_PLAIN: Final = frozenset(
    {type(None), bool, int, float, str, bytes, Decimal, datetime, UUID, TypedValue, Headers}
)
_EXACT: Final = _PLAIN - {datetime}  # nothing about them can be wrong


def _checked(value: Any) -> HeaderValue:
    """The value if it can be kept exactly; lists become tuples and mappings become `Headers`."""
    if type(value) in _PLAIN:
        if isinstance(value, datetime) and value.tzinfo is None:
            raise FormatError(f"header time {value} has no time zone; give it one, for example UTC")
        return value  # type: ignore[no-any-return]  # its exact type was just looked up
    if isinstance(value, list | tuple):
        return tuple(_checked(item) for item in value)
    if isinstance(value, Mapping):
        return Headers(value)
    raise FormatError(f"a header cannot hold a {type(value).__name__}; use text, bytes, a number or a time")


def _same(left: object, right: object) -> bool:
    """Equality that tells 1 from True and from 1.0, and holds a NaN equal to itself."""
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right if not math.isnan(left) else math.isnan(right)
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return left.as_tuple() == right.as_tuple()
    return left == right


# --- bytes ---------------------------------------------------------------------------------------------
# MessagePack holds most values by itself. The rest travels as extensions, numbered here for good.

_TABLE, _TYPED, _DECIMAL, _UUID, _BIG_INT, _TIME, _ODD_TEXT = 1, 2, 3, 4, 5, 6, 7
# Twice what AMQP lets in: each of its tables may stand within a `TypedValue` as well.
DEEPEST: Final = 128
_INT_RANGE: Final = range(-(2**63), 2**64)
_FEW: Final = 64
_encode: Final = msgspec.msgpack.Encoder().encode
_AS_IT_IS: Final = frozenset({type(None), bool, float, bytes})


def pack(headers: Headers) -> bytes:
    """The headers as bytes."""
    if headers.packed is None:
        headers.packed = _encode(_to_wire(headers, DEEPEST)) if len(headers) else b""
    return headers.packed


def unpack(data: bytes) -> Headers:
    """The headers that `pack` made these bytes of."""
    if not data:
        return EMPTY
    return _unpack_known(data) if len(data) <= _FEW else _unpack(data)


def _unpack(data: bytes) -> Headers:
    try:
        value = _decode(data, DEEPEST)
    except (msgspec.MsgspecError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise FormatError(f"stored headers cannot be read: {error}") from error
    if not isinstance(value, Headers):
        raise FormatError("stored headers cannot be read: not a list of headers")
    return value


_unpack_known: Final = lru_cache(256)(
    _unpack
)  # few bytes are often the same: a delivery mode and nothing else


def _to_wire(value: HeaderValue, depth: int) -> object:
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return value if value in _INT_RANGE else msgspec.msgpack.Ext(_BIG_INT, str(value).encode())
    if isinstance(value, tuple):
        inner = _one_deeper(depth)
        return [_to_wire(item, inner) for item in value]
    if isinstance(value, Headers):
        inner = _one_deeper(depth)
        flat: list[object] = []
        for name, item in value:
            kind = type(item)
            if (  # most are like this; the look spares them a call each
                kind in _AS_IT_IS
                or (kind is str and item.isascii())  # type: ignore[union-attr]  # its exact type is known
                or (kind is int and item in _INT_RANGE)
            ):
                flat += (name if name.isascii() else _text(name), item)
            else:
                flat += (_text(name), _to_wire(item, inner))
        return msgspec.msgpack.Ext(_TABLE, _encode(flat))
    if isinstance(value, TypedValue):
        pair = [_text(value.kind), _to_wire(value.value, _one_deeper(depth))]
        return msgspec.msgpack.Ext(_TYPED, _encode(pair))
    if isinstance(value, Decimal):
        return msgspec.msgpack.Ext(_DECIMAL, str(value).encode())
    if isinstance(value, UUID):
        return msgspec.msgpack.Ext(_UUID, value.bytes)
    if isinstance(value, datetime):
        return msgspec.msgpack.Ext(_TIME, value.astimezone(UTC).isoformat().encode())
    raise FormatError(f"a header cannot hold a {kind.__name__}")


def _one_deeper(depth: int) -> int:
    if depth == 0:
        raise FormatError(f"headers are nested deeper than {DEEPEST} levels")
    return depth - 1


def _text(value: str) -> object:
    """Text that came from bytes that are not UTF-8 holds lone surrogates; it is kept as well."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return msgspec.msgpack.Ext(_ODD_TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def _from_wire(value: object, depth: int) -> HeaderValue:
    if isinstance(value, list):
        inner = _one_deeper(depth)
        return tuple(_from_wire(item, inner) for item in value)
    if isinstance(value, msgspec.msgpack.Ext):
        return _extension(value.code, memoryview(value.data), depth)
    if isinstance(value, dict):
        raise ValueError("a map is not a valid value")  # noqa: TRY004  told as damage, not as misuse
    return value  # type: ignore[return-value]  # the decoder makes nothing but plain values and extensions


def _extension(code: int, data: memoryview, depth: int) -> HeaderValue:
    match code:
        case 1:
            flat = _decode(data, depth)
            if not isinstance(flat, tuple) or len(flat) % 2 or not all(isinstance(n, str) for n in flat[::2]):
                raise ValueError("a table must consist of names and values")
            return Headers(zip(flat[::2], flat[1::2], strict=True))  # type: ignore[arg-type]  # checked above
        case 2:
            pair = _decode(data, depth)
            if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
                raise ValueError("a typed value must consist of a kind and a value")
            return TypedValue(pair[0], pair[1])
        case 3:
            return Decimal(str(data, "utf-8"))
        case 4:
            return UUID(bytes=bytes(data))
        case 5:
            return int(bytes(data))
        case 6:
            return datetime.fromisoformat(str(data, "utf-8"))
        case 7:
            return str(data, "utf-8", "surrogatepass")
        case _:
            raise ValueError(f"unknown kind {code}")


# Extensions stay views of the bytes they stand in, so that tables within tables are not copied at each level.
_decoder: Final = msgspec.msgpack.Decoder(ext_hook=msgspec.msgpack.Ext)


def _decode(data: bytes | memoryview, depth: int) -> HeaderValue:
    return _from_wire(_decoder.decode(data), depth)
