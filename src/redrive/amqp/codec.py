"""How a method becomes a payload, and how it comes back.

The rule: the layout comes from the classes in `methods` alone; neighbouring bits share an octet, the first
in the lowest place. A payload is read whole: a missing or a spare octet is a `FrameSyntaxError`. Short
strings in methods are names that the broker has to speak about, so they must be UTF-8; only texts for people
may hold anything, and are read as well as they can be.

Reserved fields are written as zeros and skipped on reading. Payloads of the hot methods have quicker
readers and writers in `hot`; this one is for everything, and is their reference in the tests.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, get_type_hints

from redrive.amqp import methods
from redrive.amqp.errors import SHORTSTR_MAX, FrameSyntaxError, HardError, MisuseError, ReplyCode
from redrive.amqp.methods import METHODS, Kind, Method
from redrive.amqp.table import decode_table, encode_table

_U32 = struct.Struct(">I")
_NUMBERS: Final[Mapping[str, struct.Struct]] = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": _U32,
    "longlong": struct.Struct(">Q"),
}


class _Step(NamedTuple):
    """One field, or a run of bits; the name of a reserved field is empty."""

    kind: Kind
    names: tuple[str, ...]


def _layout(method: type[Method]) -> tuple[_Step, ...]:
    hints = get_type_hints(method, include_extras=True)
    fields: list[tuple[Kind, str]] = [(kind, "") for kind in method.spec.leading]
    fields += [(hints[name].__metadata__[0], name) for name in method.__struct_fields__]
    fields += [(kind, "") for kind in method.spec.trailing]
    steps: list[_Step] = []
    for kind, name in fields:
        if kind == "bit" and steps and steps[-1].kind == "bit":
            steps[-1] = _Step("bit", (*steps[-1].names, name))
        else:
            steps.append(_Step(kind, (name,)))
    return tuple(steps)


_LAYOUTS: Final[Mapping[type[Method], tuple[_Step, ...]]] = {
    method: _layout(method) for method in methods.ALL
}


def describe(index: int) -> str:
    """The name of a method by its number, for error texts."""
    method = METHODS.get(index)
    return method.wire_name() if method else f"method {index >> 16}.{index & 0xFFFF}"


def encode(method: Method) -> bytes:
    """The payload of a method frame. A value that does not fit its field is a `MisuseError`."""
    parts = [_U32.pack(method.spec.number)]
    for kind, names in _LAYOUTS[type(method)]:
        if kind == "bit":
            octet = 0
            for place, name in enumerate(names):
                if name and getattr(method, name):
                    octet |= 1 << place
            parts.append(bytes((octet,)))
            continue
        name = names[0]
        value: Any = getattr(method, name) if name else None
        if kind in ("shortstr", "text"):
            parts.append(encode_shortstr(value or ""))
        elif kind == "table":
            parts.append(encode_table(value or {}))
        elif kind == "longstr":
            parts += (_U32.pack(len(value or b"")), value or b"")
        else:
            try:
                parts.append(_NUMBERS[kind].pack(value or 0))
            except struct.error:
                raise MisuseError(f"{method.wire_name()}: {name} {value!r} is out of range") from None
    return b"".join(parts)


def encode_shortstr(text: str) -> bytes:
    """A short string with its length; at most 255 octets fit."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise MisuseError("a string that cannot be written as UTF-8") from None
    if len(raw) > SHORTSTR_MAX:
        raise MisuseError(f"a short string of {len(raw)} octets; at most {SHORTSTR_MAX} fit")
    return bytes((len(raw),)) + raw


def decode(payload: bytes) -> Method:
    """The method in the payload of a method frame."""
    if len(payload) < 4:
        raise FrameSyntaxError("a method frame without a method")
    (index,) = _U32.unpack_from(payload)
    method = METHODS.get(index)
    class_id, method_id = index >> 16, index & 0xFFFF
    if method is None:
        raise HardError(
            ReplyCode.COMMAND_INVALID, f"unknown method {class_id}.{method_id}", class_id, method_id
        )
    try:
        return _read(method, payload)
    except FrameSyntaxError as error:
        text = f"{method.wire_name()}: {error.text}"
    except (struct.error, IndexError):
        text = f"{method.wire_name()}: the arguments end too early"
    except UnicodeDecodeError:
        text = f"{method.wire_name()}: a name that is not UTF-8"
    raise FrameSyntaxError(text, class_id, method_id)


def _read(method: type[Method], payload: bytes) -> Method:
    values: list[object] = []
    pos = 4
    value: object
    for kind, names in _LAYOUTS[method]:
        if kind == "bit":
            octet = payload[pos]
            pos += 1
            values += [bool(octet >> place & 1) for place, name in enumerate(names) if name]
            continue
        if kind == "shortstr":
            start = pos + 1
            pos = start + payload[pos]
            value = payload[start:pos].decode()
        elif kind == "text":
            start = pos + 1
            pos = start + payload[pos]
            value = payload[start:pos].decode("utf-8", "replace")
        elif kind == "table":
            value, pos = decode_table(payload, pos)
        elif kind == "longstr":
            start = pos + 4
            pos = start + _U32.unpack_from(payload, pos)[0]
            value = payload[start:pos]
        else:
            number = _NUMBERS[kind]
            (value,) = number.unpack_from(payload, pos)
            pos += number.size
        if names[0]:
            values.append(value)
    # A string cut short by the end of the payload leaves `pos` beyond it.
    if pos != len(payload):
        raise FrameSyntaxError("the arguments do not end where the frame ends")
    return method(*values)
