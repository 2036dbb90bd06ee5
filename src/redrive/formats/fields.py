"""How is a value taken out of a record that somebody else wrote?

By name, one at a time, through a function that says what it must be. What is missing or wrong becomes a line
in `problems`; what nobody took is what was not understood, and is there to be kept.

The one rule: no input raises out of `Fields.take` or `json_object`, and no problem repeats the content it is
about, which may be secret. This file does not know any convention.
"""

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from redrive.letters import HeaderValue, TypedValue

_T = TypeVar("_T")
_INT64: Final = range(-(2**63), 2**63)
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")


class Fields:
    """Named values, taken one by one. `left` is what was not taken, `taken` what was."""

    def __init__(
        self, values: Mapping[str, object], problems: list[str], prefix: str = "", *, required: bool
    ) -> None:
        self.left = dict(values)
        self.taken: dict[str, object] = {}
        self.problems = problems
        self._prefix = prefix
        self._required = required

    def take(self, name: str, parse: Callable[[object], _T], *, required: bool = True) -> _T | None:
        """The value of this name; None where it is missing or not what `parse` wants, which is a problem.

        `parse` raises a `ValueError` that goes on after "is": "not a time".
        """
        if name not in self.left:
            if required and self._required:
                self.problems.append(f"{self._prefix}{name} is missing")
            return None
        try:
            value = parse(self.left[name])
        except ValueError as error:
            self.problems.append(f"{self._prefix}{name} is {error}")
            return None
        self.taken[name] = self.left.pop(name)
        return value


def json_object(data: bytes | None, problems: list[str]) -> dict[str, object] | None:
    """The JSON object that the bytes are; None, and a problem noted, where they are none."""
    try:
        return mapping(_json(data or b""))
    except ValueError as error:
        problems.append(f"payload is {error}" if data else "payload is empty")
        return None


def _json(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    try:  # it takes what others write: a byte order mark, NaN, long numbers, half a surrogate pair
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def header_text(value: HeaderValue) -> str | None:
    """A header's value as text if it is text or UTF-8 bytes, else None."""
    if isinstance(value, TypedValue):
        value = value.value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else None


# --- what a value must be ---------------------------------------------------------------------------------


def mapping(value: object) -> dict[str, object]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004  # wrong data, not a wrong call
    return value


def text(value: object) -> str:
    """Text."""
    if not isinstance(value, str):
        raise ValueError("not text")  # noqa: TRY004  # likewise
    return value


def utf8(value: object) -> bytes:
    """Text, as the bytes it stands for."""
    try:
        return text(value).encode()
    except UnicodeEncodeError:
        raise ValueError("not whole text: it has half a surrogate pair") from None


def base64(value: object) -> bytes:
    """Base 64, as the bytes it stands for."""
    try:
        return b64decode(utf8(value), validate=True)
    except binascii.Error:
        raise ValueError("not base64") from None


def whole(value: object) -> int:
    """A whole number of 64 bits, also as digits or as 3.0."""
    match value:
        case bool():
            raise ValueError("not an integer")
        case int():
            number = value
        case str() if _NUMBER.fullmatch(value):
            number = int(value)
        case float() if value.is_integer():
            number = int(value)
        case _:
            raise ValueError("not an integer")
    if number not in _INT64:
        raise ValueError("too large a number")
    return number


def count(value: object) -> int:
    """A whole number from zero on."""
    number = whole(value)
    if number < 0:
        raise ValueError("less than zero")
    return number


def fraction(value: object) -> float:
    """A share of one, as a number or as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a number")  # noqa: TRY004  # likewise
    share = float(value)
    if not 0 <= share <= 1:
        raise ValueError("not between 0 and 1")
    return share


def time(value: object) -> datetime:
    """An ISO-8601 time, in UTC where it names no zone."""
    try:
        at = datetime.fromisoformat(text(value))
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError("not an ISO-8601 time") from None
