"""In which forms do other systems write a fact into a header?

One function for each form that a convention can name (`letters.convention.FORMS`). It takes a value without its wire
type, text or bytes alike, and gives what it stands for.

The one rule: a value that is not in the form raises a ValueError, and nothing else. Binary numbers are read as such
only in the length that their writer documents; digits are never taken for bytes, nor bytes for digits. This file does
not know which header is in which form.
"""

import codecs
import re
from collections.abc import Callable, Container, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from uuid import UUID

from redrive.formats import fields
from redrive.formats.x_death import name
from redrive.letters.letter import EPOCH

# --- text -------------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    """Text or UTF-8; the half of a character that was left where somebody cut it is dropped."""
    if isinstance(value, bytes):
        return codecs.utf_8_decode(value, "strict", False)[0]
    return str(value) if isinstance(value, UUID) else fields.text(value)


def _queue(value: object) -> str:
    if not (queue := name(value)):
        raise ValueError("empty")
    return queue


def _address(value: object) -> str:
    """The queue at the end of an address: `rabbitmq://host/vhost/queue?durable=true`."""
    return _queue(unquote(urlsplit(name(value)).path.rpartition("/")[2]))


_JAVA_TYPE: Final = re.compile(r"[^\W\d][\w$]*(?:\.[^\W\d][\w$]*)*(?=: |$)")


def _java_type(value: object) -> str:
    """The class of an exception as Java prints it: its name, and `: ` with its text where it has one."""
    found = _JAVA_TYPE.match(_text(value))
    if found is None:
        raise ValueError("not a Java exception")
    return found[0]


# Between the tracebacks of an error and of what caused it.
_CHAIN: Final = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
)
# Behind the frames, which are indented, stands the error: its type, and its text where it has one.
_FRAMES_AND_ERROR: Final = re.compile(
    r"(?:[ \t][^\n]*\n)++(?P<type>[^\W\d][\w.]*)(?:: (?P<text>.*))?", re.DOTALL
)


def _raised(value: object, part: str) -> str | None:
    """The type or the text of the error that a Python traceback ends with."""
    last = _CHAIN.split(_text(value))[-1]
    frames = last.find('  File "')
    found = _FRAMES_AND_ERROR.match(last, frames) if frames >= 0 else None
    return found[part].rstrip("\n") if found and found[part] is not None else None


# --- numbers ----------------------------------------------------------------------------------------------


def _count(value: object) -> int:
    return fields.count(_text(value) if isinstance(value, bytes) else value)


def _place(value: object) -> int | None:
    """A partition or an offset; None where Kafka's "unknown" stands."""
    number = fields.whole(_text(value) if isinstance(value, bytes) else value)
    return None if number == -1 else fields.count(number)


def _int_be(value: object) -> int:
    return fields.count(_of_bytes(value, range(1, 9)))


def _next_be(value: object) -> int:
    return fields.count(_of_bytes(value, range(1, 9)) - 1)


def _place_be(size: int) -> Callable[[object], int | None]:
    return lambda value: _place(_of_bytes(value, (size,)))


def _of_bytes(value: object, sizes: Container[int]) -> int:
    if not isinstance(value, bytes):
        return fields.whole(value)  # a client that knows the form has turned it into a number
    if len(value) not in sizes:
        raise ValueError("not a number of this size")
    return int.from_bytes(value, "big", signed=True)


# --- times ------------------------------------------------------------------------------------------------


def _time(value: object) -> datetime:
    """ISO 8601, or a time as the wire itself has it."""
    if isinstance(value, datetime):
        try:
            return value.astimezone(UTC)
        except OverflowError:
            raise ValueError("not a time") from None
    return fields.time(_text(value))


def _nservicebus_time(value: object) -> datetime:
    """`yyyy-MM-dd HH:mm:ss:ffffff Z`."""
    return datetime.strptime(_text(value), "%Y-%m-%d %H:%M:%S:%f Z").replace(tzinfo=UTC)


def _since_1970(count: Callable[[object], int], unit: timedelta) -> Callable[[object], datetime]:
    def read(value: object) -> datetime:
        try:
            return EPOCH + count(value) * unit
        except OverflowError:
            raise ValueError("not a time") from None

    return read


_MILLISECOND: Final = timedelta(milliseconds=1)

READERS: Final[Mapping[str, Callable[[object], Any]]] = {
    "text": _text,
    "name": name,
    "queue": _queue,
    "address": _address,
    "java-type": _java_type,
    "python-type": lambda value: _raised(value, "type"),
    "python-text": lambda value: _raised(value, "text"),
    "count": _count,
    "place": _place,
    "int-be": _int_be,
    "next-be": _next_be,
    "int32-be": _place_be(4),
    "int64-be": _place_be(8),
    "time": _time,
    "unix-s": _since_1970(_count, timedelta(seconds=1)),
    "unix-ms": _since_1970(_count, _MILLISECOND),
    "unix-ms-be": _since_1970(_int_be, _MILLISECOND),
    "nservicebus-time": _nservicebus_time,
}
