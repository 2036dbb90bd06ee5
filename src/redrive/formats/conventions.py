"""What do the conventions of other systems tell of a message?

A table of rows (`letters.convention`) is made ready once: which name of a header concerns which row, and how each fact
is read. A message that no row concerns costs one look at the names of its headers, and, where its body is a JSON
object, one search in it for each row that stands in bodies.

The one rule: no input raises out of `recognised`. What a convention does not tell is not in `Facts.values`; a header
that is not in the form its row says is named in `unreadable`, never quoted. This file does not know what a fact is
used for.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from redrive.formats import fields
from redrive.formats.forms import READERS
from redrive.formats.systems import SYSTEMS
from redrive.formats.x_death import plain
from redrive.letters import FailureKind, Headers, HeaderValue, Message
from redrive.letters.convention import FACTS, Convention

# Whoever tells one of these has told what went wrong.
ERROR_FACTS: Final = ("reason", "error_type", "error_text", "stack")


# --- a table that is ready --------------------------------------------------------------------------------


class _Row:
    """One convention, and how each of its facts is read."""

    def __init__(self, convention: Convention) -> None:
        self.convention = convention
        self.plan: tuple[tuple[str, Callable[[object], Any], tuple[str, ...]], ...] = tuple(
            (
                fact,
                READERS[convention.forms.get(fact) or FACTS[fact]],
                (said,) if isinstance(said, str) else said,
            )
            for fact, said in convention.fields.items()
        )
        self.kinds = {reason: FailureKind(kind) for reason, kind in convention.kinds.items()}
        # A quick look, so that not every body is decoded.
        self.needles = tuple(
            f'"{path.partition(".")[0]}"'.encode("utf-8", "replace") for path in convention.recognised_by
        )

    def may_be_in(self, body: bytes) -> bool:
        if self.convention.needs_all and self.needles[0] not in body:
            return False
        enough = all if self.convention.needs_all else any
        return enough(needle in body for needle in self.needles)

    def recognises(self, values: Mapping[str, object]) -> bool:
        row = self.convention
        enough = all if row.needs_all else any
        if row.in_body:
            return enough(_at(values, path) is not _NOTHING for path in row.recognised_by)
        return enough(name in values for name in row.recognised_by)


class Table:
    """Rows in their order: of several that recognise a message, the first one is heard."""

    def __init__(self, rows: Iterable[Convention]) -> None:
        self.rows = tuple(map(_Row, rows))
        self.in_bodies = frozenset(number for number, row in enumerate(self.rows) if row.convention.in_body)
        self.by_name: dict[str, tuple[int, ...]] = {}
        for number, row in enumerate(self.rows):
            if not row.convention.in_body:
                for name in row.convention.recognised_by:
                    self.by_name[name] = (*self.by_name.get(name, ()), number)
        self.names = frozenset(self.by_name)

    def concerned(self, names: Mapping[str, object], body: bytes | None) -> list[_Row]:
        """The rows that may recognise a message with these names of headers and this body."""
        if not body and self.names.isdisjoint(names):
            return []
        numbers: set[int] = set()
        if not self.names.isdisjoint(names):
            numbers.update(*(self.by_name[name] for name in names if name in self.names))
        if body and self.in_bodies and _OBJECT.match(body):
            numbers.update(number for number in self.in_bodies if self.rows[number].may_be_in(body))
        return [self.rows[number] for number in sorted(numbers)] if numbers else []


_OBJECT: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
BUILT_IN: Final = Table(SYSTEMS)


def with_own(rows: Sequence[Convention]) -> Table:
    """The table with rows of one's own in front; one that has the name of a built-in row stands for it."""
    if not rows:
        return BUILT_IN
    own = {row.name for row in rows}
    return Table((*rows, *(row for row in SYSTEMS if row.name not in own)))


# --- reading ----------------------------------------------------------------------------------------------


class Facts(msgspec.Struct, frozen=True):
    """What one convention tells of one message."""

    convention: Convention
    values: dict[str, Any]  # by the names of `FACTS`, and `kind`
    unreadable: tuple[str, ...]


def recognised(
    message: Message,
    headers: Mapping[str, HeaderValue],
    table: Table = BUILT_IN,
    *,
    in_bodies: bool = True,
) -> Iterator[Facts]:
    """What those conventions tell that recognise the message, in their order.

    `headers` are the message's by name; of those that share one, the last. `in_bodies`: its body is looked at as well.
    """
    body: Mapping[str, object] | None = None
    for row in table.concerned(headers, message.body if in_bodies else None):
        values: Mapping[str, object] = headers
        if row.convention.in_body:
            if body is None:
                body = fields.json_object(message.body, []) or {}
            values = body
        if row.recognises(values):
            yield _facts(row, values)


def _facts(row: _Row, values: Mapping[str, object]) -> Facts:
    told: dict[str, Any] = {}
    unreadable: list[str] = []
    in_body = row.convention.in_body
    for fact, form, keys in row.plan:
        for key in keys:
            value = _at(values, key) if in_body else plain(values.get(key))
            if value is None or value is _NOTHING:  # no such header, or a null: nothing is told
                continue
            try:
                known = form(value)
            except ValueError:
                unreadable.append(key)
                continue
            if known is not None:
                told[fact] = known
                break
    if (kind := row.kinds.get(told.get("reason", ""))) is not None:
        told["kind"] = kind
    return Facts(row.convention, told, tuple(dict.fromkeys(unreadable)))


_NOTHING: Final = object()


def _at(values: object, path: str) -> object:
    for key in path.split("."):
        if not isinstance(values, Mapping) or key not in values:
            return _NOTHING
        values = values[key]
    return values


def without_added(headers: Headers, found: Sequence[Facts]) -> Headers:
    """The headers without those that the conventions have added; one that cannot be read is kept."""
    if not found:
        return headers
    return Headers(
        (header, value)
        for header, value in headers
        if not any(facts.convention.added(header) and header not in facts.unreadable for facts in found)
    )
