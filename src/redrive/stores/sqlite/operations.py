"""How does the SQLite file keep operations, and how does it find groups?

Functions of (connection, …) for S34 to S45, like those of `work` and `reading`: what writes runs in the writer's
thread, inside its transaction, and is told the time. What may happen to an operation is decided by `stores.operations`;
here it is only carried out. They know no thread and no clock.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import msgspec

from redrive.letters import LetterState
from redrive.letters.letter import storable
from redrive.stores.operation_rows import FIELDS, group_of, item_of, operation_of, values_of
from redrive.stores.operations import (
    Group,
    Item,
    Operation,
    OperationState,
    begun,
    end,
    not_listed,
    run,
    unknown_operation,
)
from redrive.stores.query import Query
from redrive.stores.rows import bind, moment
from redrive.stores.sqlite.reading import one_moment
from redrive.stores.sqlite.search import SEARCH

Connection: TypeAlias = sqlite3.Connection

_COLUMNS: Final = ", ".join(FIELDS)
# The index has to be named: left to itself, SQLite walks the list from its beginning, over all that is done.
_REMAINING: Final = (
    "SELECT letter_id FROM operation_items INDEXED BY items_remaining WHERE operation = ? AND outcome IS NULL"
    " ORDER BY position LIMIT ?"
)
_PER_STATE: Final = ", ".join(f"sum(state = '{state}')" for state in LetterState)
_decode_sources = msgspec.json.Decoder(list[str]).decode


# --- in the writer's thread, inside a transaction --------------------------------------------------------


def begin(db: Connection, operation: Operation, letters: list[str], now: int) -> bool:
    """Write down an operation and its list (S34 to S36); one text, which SQLite takes apart, is quicker than rows."""
    added = db.execute(
        f"INSERT INTO operations ({_COLUMNS}) VALUES ({', '.join('?' * len(FIELDS))})"
        " ON CONFLICT (id) DO NOTHING RETURNING number",
        values_of(begun(operation, len(letters), moment(now))),
    ).fetchone()
    if added is None:
        return False
    db.execute(
        "INSERT INTO operation_items (operation, position, letter_id) SELECT ?, key + 1, value FROM json_each(?)",
        (added[0], msgspec.json.encode(letters).decode()),
    )
    return True


def record(db: Connection, operation_id: str, outcomes: Sequence[tuple[str, str, str]], now: int) -> None:
    """Write down what became of letters (S39, S40)."""
    number = _number(db, operation_id)
    counts: Counter[str] = Counter()
    for letter_id, outcome, detail in outcomes:
        found = db.execute(
            "SELECT position, outcome FROM operation_items WHERE operation = ? AND letter_id = ?",
            (number, letter_id),
        ).fetchone()
        if found is None:
            raise not_listed(operation_id, letter_id)
        position, before = found
        if before is None:
            db.execute(
                "UPDATE operation_items SET outcome = ?, detail = ?, at = ? WHERE operation = ? AND position = ?",
                (outcome, detail, now, number, position),
            )
            counts[outcome] += 1
    db.executemany(
        "INSERT INTO operation_outcomes VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET count = count + excluded.count",
        [(number, outcome, count) for outcome, count in counts.items()],
    )


def run_operation(
    db: Connection,
    operation_id: str,
    runner: str,
    lease: timedelta,
    now: int,
    *,
    resume: bool,
    replaces: str | None,
) -> bool:
    """Give an operation to its runner (S41, S42)."""
    return _change(
        db, operation_id, lambda it, at: run(it, runner, lease, at, resume=resume, replaces=replaces), now
    )


def end_operation(
    db: Connection, operation_id: str, state: OperationState, by: str, note: str, now: int
) -> bool:
    """End or stop an operation (S43)."""
    return _change(db, operation_id, lambda it, at: end(it, state, by, note, at), now)


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


def operation(db: Connection, operation_id: str) -> Operation:
    """One operation (S37)."""
    with one_moment(db):
        return _find(db, operation_id)[1]


def operations(db: Connection, limit: int) -> list[Operation]:
    """The newest operations (S37)."""
    with one_moment(db):
        rows = db.execute(f"SELECT number, {_COLUMNS} FROM operations ORDER BY number DESC LIMIT ?", (limit,))
        return [operation_of(row, _outcomes(db, number)) for number, *row in rows.fetchall()]


def _number(db: Connection, operation_id: str) -> int:
    row = db.execute("SELECT number FROM operations WHERE id = ?", (storable(operation_id),)).fetchone()
    if row is None:
        raise unknown_operation(operation_id)
    return int(row[0])


def _find(db: Connection, operation_id: str) -> tuple[int, Operation]:
    number = _number(db, operation_id)
    row = db.execute(f"SELECT {_COLUMNS} FROM operations WHERE number = ?", (number,)).fetchone()
    return number, operation_of(row, _outcomes(db, number))


def _outcomes(db: Connection, number: int) -> dict[str, int]:
    rows = db.execute("SELECT outcome, count FROM operation_outcomes WHERE operation = ?", (number,))
    return dict(rows.fetchall())


def remaining(db: Connection, operation_id: str, limit: int) -> list[str]:
    """The next letters of the list without an outcome (S38)."""
    rows = db.execute(_REMAINING, (_number(db, operation_id), limit))
    return [letter_id for (letter_id,) in rows]


def items(db: Connection, operation_id: str, after: int, limit: int) -> list[Item]:
    """The list from a place on (S38)."""
    rows = db.execute(
        "SELECT letter_id, outcome, detail, at FROM operation_items WHERE operation = ? AND position > ?"
        " ORDER BY position LIMIT ?",
        (_number(db, operation_id), after, limit),
    )
    return [item_of(*row) for row in rows]


def groups(db: Connection, query: Query, limit: int) -> list[Group]:
    """The largest groups (S45).

    Counted by one walk along the index `letters_group`, which holds all that is counted; no row is read for it.
    """
    clause, values = SEARCH.where(query)
    with one_moment(db):
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
    return group_of(
        name, size, first=first, last=last, sources=_decode_sources(sources), counts=counts,
        error_type=error_type, error_text=error_text,
    )  # fmt: skip
