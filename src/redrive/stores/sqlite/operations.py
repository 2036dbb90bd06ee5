"""How does the SQLite file keep operations, and how does it find groups?

`SqliteOperations` is the part of the store's door that S34 to S45 speak of; below it stands what each of its verbs
reads and writes. What may happen to an operation is decided by `stores.operations`; here it is only carried out, each
verb inside one transaction of the one writer. It knows no thread: the store that mixes it in says where work is done.
"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from redrive.letters import State
from redrive.letters.letter import storable
from redrive.stores.base import LEASE
from redrive.stores.checks import LARGEST_CLAIM, LARGEST_PAGE, check_limit
from redrive.stores.operations import (
    Group,
    Item,
    Operation,
    OperationState,
    begun,
    check_after,
    check_end,
    check_operation,
    check_outcomes,
    check_run,
    end,
    not_listed,
    run,
    unknown_operation,
)
from redrive.stores.query import EVERYTHING, Query
from redrive.stores.rows import bind, moment
from redrive.stores.sqlite.search import SEARCH

Connection: TypeAlias = sqlite3.Connection
T = TypeVar("T")

_FIELDS: Final = (
    "id", "kind", "by", "query", "options", "state", "note", "total", "created_at", "ended_at", "ended_by",
    "runner", "lease_until",
)  # fmt: skip
_TIMES: Final = ("created_at", "ended_at", "lease_until")
_COLUMNS: Final = ", ".join(_FIELDS)
_LISTED_AT_ONCE: Final = 10_000  # letters that the event loop lists by itself; more goes to a thread
# The index has to be named: left to itself, SQLite walks the list from its beginning, over all that is done.
_REMAINING: Final = (
    "SELECT letter_id FROM items INDEXED BY items_remaining WHERE operation = ? AND outcome IS NULL"
    " ORDER BY position LIMIT ?"
)
_PER_STATE: Final = ", ".join(f"sum(state = '{state}')" for state in State)
_decode_sources = msgspec.json.Decoder(list[str]).decode


class SqliteOperations:
    """The verbs about operations and groups."""

    async def _write(self, verb: Callable[[Connection], T]) -> T:
        """Run in the writer's thread, in a transaction."""
        raise NotImplementedError

    async def _read(self, verb: Callable[[Connection], T]) -> T:
        """Run on a reading connection."""
        raise NotImplementedError

    def _now(self) -> int:
        raise NotImplementedError

    async def begin(self, operation: Operation, ids: Sequence[str]) -> bool:
        """S34 to S36."""
        if len(ids) <= _LISTED_AT_ONCE:
            text, total = _list(operation, ids)
        else:
            text, total = await asyncio.to_thread(_list, operation, tuple(ids))
        return await self._write(lambda db: _begin(db, operation, text, total, self._now()))

    async def operation(self, operation_id: str) -> Operation:
        """S37."""
        return await self._read(lambda db: _at_one_moment(db, lambda: _find(db, operation_id)[1]))

    async def operations(self, *, limit: int = 50) -> list[Operation]:
        """S37."""
        check_limit(limit, LARGEST_PAGE)
        return await self._read(lambda db: _at_one_moment(db, lambda: _newest(db, limit)))

    async def remaining(self, operation_id: str, *, limit: int) -> list[str]:
        """S38."""
        check_limit(limit, LARGEST_CLAIM)
        return await self._read(lambda db: _remaining(db, operation_id, limit))

    async def items(self, operation_id: str, *, after: int = 0, limit: int) -> list[Item]:
        """S38."""
        check_limit(limit, LARGEST_CLAIM)
        check_after(after)
        return await self._read(lambda db: _items(db, operation_id, after, limit))

    async def record(self, operation_id: str, outcomes: Sequence[tuple[str, str, str]]) -> None:
        """S39, S40."""
        check_outcomes(outcomes)
        await self._write(lambda db: _record(db, operation_id, outcomes, self._now()))

    async def run_operation(
        self, operation_id: str, runner: str, *, lease: timedelta = LEASE, resume: bool = True
    ) -> bool:
        """S41, S42."""
        check_run(runner, lease)

        def decide(operation: Operation, now: datetime) -> Operation | None:
            return run(operation, runner, lease, now, resume=resume)

        return await self._write(lambda db: _change(db, operation_id, decide, self._now()))

    async def end_operation(
        self, operation_id: str, state: OperationState, *, by: str, note: str = ""
    ) -> bool:
        """S43."""
        check_end(state, by, note)

        def decide(operation: Operation, now: datetime) -> Operation | None:
            return end(operation, state, by, note, now)

        return await self._write(lambda db: _change(db, operation_id, decide, self._now()))

    async def groups(self, query: Query = EVERYTHING, *, limit: int = 50) -> list[Group]:
        """S45."""
        check_limit(limit, LARGEST_PAGE)
        return await self._read(lambda db: _at_one_moment(db, lambda: _groups(db, query, limit)))


def _list(operation: Operation, ids: Sequence[str]) -> tuple[str, int]:
    """The list as one text, which SQLite takes apart without holding up Python, and how many letters are in it."""
    check_operation(operation, ids)
    letters = list(dict.fromkeys(ids))
    return msgspec.json.encode(letters).decode(), len(letters)


# --- in the writer's thread, inside a transaction --------------------------------------------------------


def _begin(db: Connection, operation: Operation, letters: str, total: int, now: int) -> bool:
    new = begun(operation, total, moment(now))
    values = [bind(getattr(new, name)) for name in _FIELDS]
    added = db.execute(
        f"INSERT INTO operations ({_COLUMNS}) VALUES ({', '.join('?' * len(_FIELDS))})"
        " ON CONFLICT (id) DO NOTHING RETURNING number",
        values,
    ).fetchone()
    if added is None:
        return False
    db.execute(
        "INSERT INTO items (operation, position, letter_id) SELECT ?, key + 1, value FROM json_each(?)",
        (added[0], letters),
    )
    return True


def _record(db: Connection, operation_id: str, outcomes: Sequence[tuple[str, str, str]], now: int) -> None:
    number = _number(db, operation_id)
    counts: Counter[str] = Counter()
    for letter_id, outcome, detail in outcomes:
        found = db.execute(
            "SELECT position, outcome FROM items WHERE operation = ? AND letter_id = ?", (number, letter_id)
        ).fetchone()
        if found is None:
            raise not_listed(operation_id, letter_id)
        position, before = found
        if before is None:
            db.execute(
                "UPDATE items SET outcome = ?, detail = ?, at = ? WHERE operation = ? AND position = ?",
                (outcome, detail, now, number, position),
            )
            counts[outcome] += 1
    db.executemany(
        "INSERT INTO outcomes VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
        [(number, outcome, count) for outcome, count in counts.items()],
    )


def _change(
    db: Connection, operation_id: str, decide: Callable[[Operation, datetime], Operation | None], now: int
) -> bool:
    """Carry out what was decided about an operation; False: nothing was."""
    number, operation = _find(db, operation_id)
    changed = decide(operation, moment(now))
    if changed is None:
        return False
    db.execute(
        "UPDATE operations SET state = ?, note = ?, ended_at = ?, ended_by = ?, runner = ?, lease_until = ?"
        " WHERE number = ?",
        (
            changed.state, changed.note, bind(changed.ended_at), changed.ended_by, changed.runner,
            bind(changed.lease_until), number,
        ),
    )  # fmt: skip
    return True


# --- reading ---------------------------------------------------------------------------------------------


def _at_one_moment(db: Connection, look: Callable[[], T]) -> T:
    """Several statements that see the same state of the file."""
    db.execute("BEGIN")
    try:
        return look()
    finally:
        db.execute("COMMIT")


def _number(db: Connection, operation_id: str) -> int:
    row = db.execute("SELECT number FROM operations WHERE id = ?", (storable(operation_id),)).fetchone()
    if row is None:
        raise unknown_operation(operation_id)
    return int(row[0])


def _find(db: Connection, operation_id: str) -> tuple[int, Operation]:
    number = _number(db, operation_id)
    row = db.execute(f"SELECT {_COLUMNS} FROM operations WHERE number = ?", (number,)).fetchone()
    return number, _operation(db, number, row)


def _newest(db: Connection, limit: int) -> list[Operation]:
    rows = db.execute(f"SELECT number, {_COLUMNS} FROM operations ORDER BY number DESC LIMIT ?", (limit,))
    return [_operation(db, number, row) for number, *row in rows.fetchall()]


def _operation(db: Connection, number: int, row: Sequence[Any]) -> Operation:
    fields = dict(zip(_FIELDS, row, strict=True))
    for name in _TIMES:
        if fields[name] is not None:
            fields[name] = moment(fields[name])
    fields["state"] = OperationState(fields["state"])
    counts = db.execute("SELECT outcome, count FROM outcomes WHERE operation = ?", (number,))
    return Operation(**fields, outcomes=dict(counts.fetchall()))


def _remaining(db: Connection, operation_id: str, limit: int) -> list[str]:
    rows = db.execute(_REMAINING, (_number(db, operation_id), limit))
    return [letter_id for (letter_id,) in rows]


def _items(db: Connection, operation_id: str, after: int, limit: int) -> list[Item]:
    rows = db.execute(
        "SELECT letter_id, outcome, detail, at FROM items WHERE operation = ? AND position > ?"
        " ORDER BY position LIMIT ?",
        (_number(db, operation_id), after, limit),
    )
    return [
        Item(letter_id, outcome, detail, None if at is None else moment(at))
        for letter_id, outcome, detail, at in rows
    ]


def _groups(db: Connection, query: Query, limit: int) -> list[Group]:
    """Counted by one walk along the index `letters_group`, which holds all that is counted; no row is read for it."""
    clause, values = SEARCH.where(query)
    rows = db.execute(
        f'SELECT "group", count(*) AS size, min(first_failed_at), max(last_failed_at), max(created_at),'
        f" json_group_array(DISTINCT source), {_PER_STATE} FROM letters{clause}"
        ' GROUP BY "group" ORDER BY size DESC, "group" LIMIT ?',
        [*values, limit],
    )
    return [_group(db, *row) for row in rows.fetchall()]


def _group(
    db: Connection, name: str, size: int, first: int, last: int, newest: int, sources: str, *counts: int
) -> Group:
    error_type, error_text = db.execute(
        "SELECT error_type, error_text FROM letters WHERE created_at = ?", (newest,)
    ).fetchone()
    return Group(
        group=name,
        count=size,
        error_type=error_type,
        error_text=error_text,
        sources=tuple(sorted(_decode_sources(sources))),
        first_seen=moment(first),
        last_seen=moment(last),
        states={state.value: count for state, count in zip(State, counts, strict=True) if count},
    )
