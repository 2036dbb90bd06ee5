"""How do bytes travel inside JSON without losing one?

As text where they are UTF-8, so that people and other programs read them; else as base 64 with its name
beside it. A missing name means plain text: that is what writers who know none of this have always meant.

The one rule: `restore(*hold(data)) == data` for any bytes and for None, and `restore_headers(hold_headers(h))
== h`, order, duplicates, nulls and types included. This file does not know what it carries.
"""

from base64 import b64encode
from typing import TypeAlias

from redrive.errors import FormatError
from redrive.formats import fields
from redrive.letters import Headers, HeaderValue
from redrive.letters.headers import pack, unpack

# Name and text, name and null, or name, text and the name of its encoding.
HeldHeader: TypeAlias = tuple[str, str | None] | tuple[str, str, str]


def hold(data: bytes | None) -> tuple[str, str | None]:
    """The data as text, and the name of its encoding where it needs one."""
    if data is None:
        return "", "null"
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return b64encode(data).decode(), "base64"


def restore(text: object, encoding: str | None) -> bytes | None:
    """The data that `hold` made this of. A ValueError says what is wrong with it."""
    match encoding, text:
        case (None, None) | ("null", ""):
            return None
        case None, _:
            return fields.utf8(text)
        case "base64", _:
            return fields.base64(text)
    raise ValueError("not in an encoding known here")


def hold_headers(headers: Headers) -> list[HeldHeader]:
    """The headers as JSON arrays, in their order."""
    return [_hold_header(name, value) for name, value in headers]


def restore_headers(value: object) -> Headers:
    """The headers that `hold_headers` made this of. A ValueError says what is wrong with it."""
    if not isinstance(value, list):
        raise ValueError("not a list")  # noqa: TRY004  # wrong data, not a wrong call
    return Headers(map(_restore_header, value))


def _hold_header(name: str, value: HeaderValue) -> HeldHeader:
    if value is None:
        return name, None
    if isinstance(value, bytes):
        text, encoding = hold(value)
        return (name, text) if encoding is None else (name, text, encoding)
    if isinstance(value, str):
        return name, value, "text"
    # No Kafka client gives anything else, but a header from elsewhere is not lost for that.
    return name, b64encode(pack(Headers([("", value)]))).decode(), "packed"


def _restore_header(item: object) -> tuple[str, HeaderValue]:
    match item:
        case [str(name), None]:
            return name, None
        case [str(name), text]:
            return name, fields.utf8(text)
        case [str(name), str(text), "text"]:
            return name, text
        case [str(name), text, "base64"]:
            return name, fields.base64(text)
        case [str(name), text, "packed"]:
            try:
                return name, unpack(fields.base64(text))[0][1]
            except (FormatError, IndexError):
                pass
    raise ValueError("not a list of names and values")
