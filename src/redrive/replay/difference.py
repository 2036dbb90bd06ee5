"""What did an edit change?

`diff` says it to people, as unified text: properties and headers one per line, a JSON body pretty-printed, any other
body as its lines or as hexadecimal. `changes` says the same as data: each place with what was there and what is.

The rule: what differs is shown, and nothing that a terminal would act upon. Neither hides anything: who may not see
payloads must not be given a difference.
"""

import difflib
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from redrive.errors import FormatError, on_one_line
from redrive.letters import Headers, HeaderValue, Message, TypedValue
from redrive.replay.plain import Json, Opaque, body_of, same

_PROPERTIES: Final = ("content_type", "content_encoding", "message_id", "correlation_id", "sent_at")
_PER_LINE: Final = 32  # bytes of a body that is not text
_MOST_COMPARED: Final = 3000  # lines: beyond, all that differs counts as one piece, for the sake of time
_CONTEXT: Final = 3
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """One place that is not as it was. A side that is missing was or is not there."""

    where: str  # body, header, or the name of a property
    path: str = ""  # within the body a JSON Pointer, the name of a header; empty: all of it
    before: Any | UnsetType = UNSET
    after: Any | UnsetType = UNSET


# --- for people ------------------------------------------------------------------------------------------


def diff(old: Message, new: Message) -> str:
    """The difference as unified text; empty: there is none."""
    before, after = _lines(old), _lines(new)
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    if start == len(before) == len(after):
        return "" if old == new else "--- before\n+++ after\n no visible difference, but the bytes differ\n"
    if len(before) + len(after) - 2 * (start + end) <= _MOST_COMPARED:
        first = max(0, start - _CONTEXT)
        lines = difflib.unified_diff(
            before[first : len(before) - max(0, end - _CONTEXT)],
            after[first : len(after) - max(0, end - _CONTEXT)],
            "before", "after", n=_CONTEXT, lineterm="",
        )  # fmt: skip
        told = [line for line in lines if not line.startswith("@@")]
    else:
        told = ["--- before", "+++ after"]
        told += [f" {line}" for line in before[max(0, start - _CONTEXT) : start]]
        told += [f"-{line}" for line in before[start : len(before) - end]]
        told += [f"+{line}" for line in after[start : len(after) - end]]
        told += [f" {line}" for line in before[len(before) - end :][:_CONTEXT]]
    return "".join(f"{line}\n" for line in told)


def _lines(message: Message) -> list[str]:
    lines = [
        f"{name.replace('_', ' ')}: {value}"
        for name in _PROPERTIES
        if (value := getattr(message, name)) is not None
    ]
    if message.key is not None:
        lines.append(f"key: {_shown(message.key)}")
    lines += [f"property {name}: {_shown(value)}" for name, value in message.properties]
    lines += [f"header {name}: {_shown(value)}" for name, value in message.headers]
    lines.append("")
    return [on_one_line(line) for line in (*lines, *_body_lines(message))]


def _body_lines(message: Message) -> list[str]:
    body = message.body
    if body is None:
        return ["(null)"]
    try:
        return msgspec.json.format(_encode(body_of(message)), indent=2).decode().split("\n")
    except FormatError:
        pass
    try:
        return body.decode().split("\n")
    except UnicodeDecodeError:
        return [body[at : at + _PER_LINE].hex(" ") for at in range(0, len(body), _PER_LINE)]


def _shown(value: HeaderValue) -> str:
    """A header's value with its type, where JSON does not tell it."""
    match value:
        case TypedValue():
            return f"{_shown(value.value)} ({value.kind})"
        case bytes():
            try:
                return f"{_shown(value.decode())} (bytes)"
            except UnicodeDecodeError:
                return f"{value.hex()} (bytes)"
        case Headers():
            return "{" + ", ".join(f"{name}: {_shown(item)}" for name, item in value) + "}"
        case tuple():
            return "[" + ", ".join(map(_shown, value)) + "]"
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


# --- for programs ----------------------------------------------------------------------------------------


def changes(old: Message, new: Message) -> list[Difference]:
    """The difference as data; empty: there is none."""
    found: list[Difference] = []
    for name in (*_PROPERTIES, "key", "properties"):
        was, is_ = getattr(old, name), getattr(new, name)
        if was != is_:
            found.append(Difference(name, "", _data(was), _data(is_)))
    found += _header_changes(old.headers, new.headers)
    if old.body != new.body:
        found += _body_changes(old, new)
    return found


def _header_changes(old: Headers, new: Headers) -> Iterator[Difference]:
    for name in dict.fromkeys(name for name, _ in (*old, *new)):
        was, is_ = old.get_all(name), new.get_all(name)
        if Headers({name: was}) != Headers({name: is_}):
            yield Difference("header", name, _several(was), _several(is_))


def _several(values: tuple[HeaderValue, ...]) -> Any:
    if not values:
        return UNSET
    return _data(values[0]) if len(values) == 1 else [_data(value) for value in values]


def _body_changes(old: Message, new: Message) -> list[Difference]:
    try:
        found = list(_walk("", body_of(old), body_of(new)))
    except (FormatError, RecursionError):
        found = []
    return found or [Difference("body", "", _data(old.body), _data(new.body))]


def _walk(path: str, old: Json, new: Json) -> Iterator[Difference]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            inner = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
            yield from _place(inner, old.get(name, UNSET), new.get(name, UNSET))
    elif isinstance(old, list) and isinstance(new, list):
        for number in range(max(len(old), len(new))):
            was = old[number] if number < len(old) else UNSET
            yield from _place(f"{path}/{number}", was, new[number] if number < len(new) else UNSET)
    elif not same(old, new):
        yield Difference("body", path, _data(old), _data(new))


def _place(path: str, old: Json, new: Json) -> Iterator[Difference]:
    if old is UNSET or new is UNSET:
        yield Difference("body", path, _data(old), _data(new))
    else:
        yield from _walk(path, old, new)


def _data(value: Any) -> Any:
    """What can be written as JSON; bytes that are no text are told as hexadecimal."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"bytes": value.hex()}
        case TypedValue():
            return {"type": value.kind, "value": _data(value.value)}
        case Headers():
            return {on_one_line(name): _data(item) for name, item in value}
        case Opaque():
            return _data(value.value)
        case tuple() | list():
            return [_data(item) for item in value]
        case dict():
            return {name: _data(item) for name, item in value.items()}
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return value
