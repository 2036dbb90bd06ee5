"""Which Python values stand for the values of a field table.

The rule: what was read is written again bit by bit. Where Python and the wire agree one to one the plain
value is used; where the wire has several widths the value is a subclass that remembers its code, and
still adds, compares and prints as the number or string that it is.

    ===== ====================== ==================================
    code  on the wire            in Python
    ===== ====================== ==================================
    t     boolean octet          bool (any octet but 0 reads as True and is written as 1)
    l     int64                  int; every plain int is written so
    d     float64                float
    S     long string, UTF-8     str
    S     long string, other     `RawStr` (a bytes)
    x     byte array             bytes
    V     nothing                None
    A     array                  list (a tuple is written so too)
    F     table                  dict
    T     uint64 seconds         `Timestamp` (an int)
    b B   int8 uint8             `Int8` `UInt8`
    s u   int16 uint16           `Int16` `UInt16`
    I i   int32 uint32           `Int32` `UInt32`
    L     uint64                 `UInt64`
    f     float32                `Float32` (a float)
    D     scale octet, int32     `DecimalValue`
    ===== ====================== ==================================

The letters are RabbitMQ's errata to the specification, not the specification's own. A timestamp stays a
number: what time zone or precision a client meant is not for this module to know.
"""

import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import ClassVar, NamedTuple, Self, TypeAlias

FieldTable: TypeAlias = Mapping[str, object]


class WireInt(int):
    """An integer that remembers its width on the wire."""

    __slots__ = ()
    code: ClassVar[bytes] = b"l"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"


class Int8(WireInt):
    """`b`, a signed octet."""

    __slots__ = ()
    code = b"b"


class UInt8(WireInt):
    """`B`, an unsigned octet."""

    __slots__ = ()
    code = b"B"


class Int16(WireInt):
    """`s`, a signed 16-bit number."""

    __slots__ = ()
    code = b"s"


class UInt16(WireInt):
    """`u`, an unsigned 16-bit number."""

    __slots__ = ()
    code = b"u"


class Int32(WireInt):
    """`I`, a signed 32-bit number: what most clients send for a small integer."""

    __slots__ = ()
    code = b"I"


class UInt32(WireInt):
    """`i`, an unsigned 32-bit number."""

    __slots__ = ()
    code = b"i"


class UInt64(WireInt):
    """`L`, an unsigned 64-bit number: in the specification, hardly ever on a wire."""

    __slots__ = ()
    code = b"L"


class Timestamp(WireInt):
    """`T`, whole seconds since 1970 as the sender counted them."""

    __slots__ = ()
    code = b"T"


class Float32(float):
    """`f`, a 32-bit float. Its four octets are kept: a NaN would not survive the way through 64 bits."""

    __slots__ = ("wire",)
    wire: bytes

    def __new__(cls, value: float, wire: bytes | None = None) -> Self:
        """`value` as near as 32 bits come to it, or exactly the number that `wire` holds."""
        octets = struct.pack(">f", value) if wire is None else wire
        self = super().__new__(cls, struct.unpack(">f", octets)[0])
        self.wire = octets
        return self

    def __repr__(self) -> str:
        return f"Float32({float(self)!r})"


class RawStr(bytes):
    """`S`, a long string that is not UTF-8."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"RawStr({bytes(self)!r})"


class DecimalValue(NamedTuple):
    """`D`: `value` divided by ten to the power of `scale`."""

    scale: int
    value: int

    @property
    def decimal(self) -> Decimal:
        """The number itself."""
        return Decimal(self.value).scaleb(-self.scale)
