"""How does what a broker said become plain values that two brokers can be compared by?

The one rule: everything that was on the wire is kept, with its type, except what no two runs can agree on. That
is replaced by a word in angle brackets, and only after a check that it is what it should be: a time has to
be now, a name made by the server has to look like one.

    {"count": 1}                      [["count", "l", 1]]
    {"x-death": [{"reason": "x"}]}    [["x-death", "A", [["F", [["reason", "S", "x"]]]]]]

Tables are lists, so that their order counts. This file knows no sockets and no brokers.
"""

import difflib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from redrive.amqp.methods import Method
from redrive.amqp.properties import BasicProperties
from redrive.amqp.values import DecimalValue, Float32, RawStr, WireInt

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

_CODES: Mapping[type, str] = {
    bool: "t",
    int: "l",
    float: "d",
    Float32: "f",
    str: "S",
    RawStr: "S",
    bytes: "x",
    type(None): "V",
    list: "A",
    dict: "F",
    DecimalValue: "D",
}


@dataclass(frozen=True)
class Entry:
    """One thing that a script did or waited for, and what it got."""

    where: str  # connection.channel, for example "1.2"
    step: str
    got: Plain


Record: TypeAlias = list[Entry]


class Names:
    """Replaces what differs from run to run."""

    def __init__(self, vhost: str, user: str, since: float) -> None:
        self._words = {vhost: "<vhost>"} if vhost != "/" else {}
        self._user = user
        self._since = since
        self._made: dict[str, str] = {}

    def call(self, name: str, word: str) -> None:
        """From now on `name` is recorded as `<word>`."""
        self._words = {name: f"<{word}>", **self._words}

    def text(self, text: str) -> str:
        """`text` without names that were made for this run or by this server."""
        for name, word in self._words.items():
            text = text.replace(name, word)
        text = (
            text.replace(f"user '{self._user}'", "user '<user>'")
            .replace(f"user was '{self._user}'", "user was '<user>'")
            .replace("vhost '/'", "vhost '<vhost>'")
        )
        text = re.sub(r"amq\.rabbitmq\.reply-to\.[\w+/=.\-]+", "<reply-to>", text)
        return re.sub(r"amq\.(gen|ctag)-[\w\-]{22}", self._number, text)

    def _number(self, match: re.Match[str]) -> str:
        """The same name always has the same number: whether two are the same can still be seen."""
        return self._made.setdefault(match[0], f"<{match[1]} {len(self._made) + 1}>")

    def time(self, seconds: int) -> Plain:
        """A time that is now; any other is kept."""
        return "<now>" if self._since - 2 <= seconds <= time.time() + 2 else seconds


# --- Values -------------------------------------------------------------------------------------------


def plain_table(table: Mapping[str, object], names: Names) -> list[Plain]:
    """A field table in wire order, each value with its type."""
    return [[names.text(key), *plain_value(value, names)] for key, value in table.items()]


def plain_value(value: object, names: Names) -> list[Plain]:
    """A field value as [type code, value]."""
    code = value.code.decode() if isinstance(value, WireInt) else _CODES[type(value)]
    match value:
        case dict():
            return [code, plain_table(value, names)]
        case list():
            return [code, [plain_value(item, names) for item in value]]
        case str():
            return [code, names.text(value)]
        case bytes():
            return [code, value.hex()]
        case WireInt() if code == "T":
            return [code, names.time(value)]
        case DecimalValue():
            return [code, [value.scale, value.value]]
        case bool() | None:
            return [code, value]
        case int():
            return [code, int(value)]
        case float():
            return [code, float(value)]
    raise AssertionError(f"no wire value: {value!r}")


def plain_properties(properties: BasicProperties, names: Names) -> dict[str, Plain]:
    """The properties that are set."""
    fields = msgspec.structs.asdict(properties)
    plain: dict[str, Plain] = {}
    for name, value in fields.items():
        if name == "headers" and value is not None:
            plain[name] = plain_table(value, names)
        elif value is not None:
            plain[name] = names.text(value) if isinstance(value, str) else value
    return plain


def plain_method(method: Method, names: Names) -> dict[str, Plain]:
    """The fields of a method."""
    plain: dict[str, Plain] = {}
    for name, value in msgspec.structs.asdict(method).items():
        if isinstance(value, Mapping):
            plain[name] = plain_table(value, names)
        elif isinstance(value, bytes):
            plain[name] = value.decode("utf-8", "backslashreplace")
        else:
            plain[name] = names.text(value) if isinstance(value, str) else value
    return plain


# --- Comparing ----------------------------------------------------------------------------------------


def lines(record: Sequence[Entry]) -> list[str]:
    """The record for people: a line per step, and one for each thing that it got."""
    shown: list[str] = []
    for entry in record:
        several = isinstance(entry.got, list) and all(isinstance(part, list) for part in entry.got)
        parts = entry.got if several and isinstance(entry.got, list) else [entry.got]
        shown.append(f"{entry.where:<4} {entry.step}")
        shown += [f"       {_line(part)}" for part in parts]
    return shown


def _line(part: Plain) -> str:
    if isinstance(part, list):
        return " ".join(json.dumps(item, ensure_ascii=False) for item in part)
    return json.dumps(part, ensure_ascii=False)


def difference(expected: Sequence[Entry], found: Sequence[Entry], names: tuple[str, str]) -> str:
    """What is not the same in two records, as a unified diff; empty if nothing is."""
    if list(expected) == list(found):
        return ""
    return "\n".join(difflib.unified_diff(lines(expected), lines(found), *names, n=30, lineterm=""))
