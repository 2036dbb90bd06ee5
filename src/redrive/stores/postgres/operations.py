"""How does PostgreSQL keep operations, and how does it find groups?

Functions of (session, …, now) and of (connection, …) for S34 to S45, like those of `work` and `reading`. What may
happen to an operation is decided by `stores.operations`; here it is only carried out, each verb in one transaction that
holds the operation's row.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

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
from redrive.stores.postgres.link import Session
from redrive.stores.postgres.search import SEARCH
from redrive.stores.postgres.statements import CLOCK
from redrive.stores.query import Query
from redrive.stores.rows import bind, moment

_OPERATION: Final = (
    f"SELECT number, {', '.join(FIELDS)}, (SELECT json_object_agg(outcome, count)::text FROM operation_outcomes"
    " WHERE operation = number) AS outcomes"
)
_ITEMS: Final = (
    "INSERT INTO operation_items (operation, position, letter_id) SELECT $1::bigint, place, letter_id"
    " FROM unnest($2::text[]) WITH ORDINALITY AS input (letter_id, place)"
)
_PER_STATE: Final = ", ".join(f"count(*) FILTER (WHERE state = '{state}')" for state in LetterState)
_decode_outcomes = msgspec.json.Decoder(dict[str, int]).decode


# --- writing, inside a transaction -----------------------------------------------------------------------


async def begin(db: Session, operation: Operation, letters: list[str], now: int | None) -> bool:
    """Write down an operation and its list (S34 to S36)."""
    [[at]] = await db.fetch(f"SELECT {CLOCK}", now)
    marks = ", ".join(f"${number}" for number in range(1, len(FIELDS) + 1))
    added = await db.fetch(
        f"INSERT INTO operations ({', '.join(FIELDS)}) VALUES ({marks}) ON CONFLICT (id) DO NOTHING RETURNING number",
        *values_of(begun(operation, len(letters), moment(at))),
    )
    if not added:
        return False
    await db.execute(_ITEMS, added[0][0], letters)
    return True


async def record(
    db: Session, operation_id: str, outcomes: Sequence[tuple[str, str, str]], now: int | None
) -> None:
    """Write down what became of letters (S39, S40)."""
    number, _, at = await _locked(db, operation_id, now)
    firsts: dict[str, tuple[str, str]] = {}
    for letter_id, outcome, detail in outcomes:
        firsts.setdefault(letter_id, (outcome, detail))
    there = await db.fetch(
        "SELECT letter_id, outcome FROM operation_items WHERE operation = $1 AND letter_id = ANY($2::text[])",
        number,
        list(firsts),
    )
    before = {row[0]: row[1] for row in there}
    for letter_id in firsts:
        if letter_id not in before:
            raise not_listed(operation_id, letter_id)
    new = [(letter_id, *said) for letter_id, said in firsts.items() if before[letter_id] is None]
    if not new:
        return
    await db.execute(
        "UPDATE operation_items SET outcome = input.outcome, detail = input.detail, at = $1::bigint"
        " FROM unnest($3::text[], $4::text[], $5::text[]) AS input (letter_id, outcome, detail)"
        " WHERE operation = $2 AND operation_items.letter_id = input.letter_id",
        at, number, *map(list, zip(*new, strict=True)),
    )  # fmt: skip
    counts = Counter(outcome for _, outcome, _ in new)
    await db.execute(
        "INSERT INTO operation_outcomes SELECT $1::bigint, * FROM unnest($2::text[], $3::bigint[])"
        " ON CONFLICT (operation, outcome) DO UPDATE SET count = operation_outcomes.count + excluded.count",
        number, list(counts), list(counts.values()),
    )  # fmt: skip


async def run_operation(
    db: Session,
    operation_id: str,
    runner: str,
    lease: timedelta,
    now: int | None,
    *,
    resume: bool,
    replaces: str | None,
) -> bool:
    """Give an operation to its runner (S41, S42)."""
    return await _change(
        db, operation_id, lambda it, at: run(it, runner, lease, at, resume=resume, replaces=replaces), now
    )


async def end_operation(
    db: Session, operation_id: str, state: OperationState, by: str, note: str, now: int | None
) -> bool:
    """End or stop an operation (S43)."""
    return await _change(db, operation_id, lambda it, at: end(it, state, by, note, at), now)


async def _change(
    db: Session,
    operation_id: str,
    decide: Callable[[Operation, datetime], Operation | None],
    now: int | None,
) -> bool:
    """Carry out what was decided about an operation; False: nothing was."""
    number, operation, at = await _locked(db, operation_id, now)
    changed = decide(operation, moment(at))
    if changed is None:
        return False
    await db.execute(
        "UPDATE operations SET state = $1, note = $2, ended_at = $3, ended_by = $4, runner = $5, lease_until = $6"
        " WHERE number = $7",
        changed.state, changed.note, bind(changed.ended_at), changed.ended_by, changed.runner,
        bind(changed.lease_until), number,
    )  # fmt: skip
    return True


async def _locked(db: Session, operation_id: str, now: int | None) -> tuple[int, Operation, int]:
    """The operation's number, the operation, which nobody else changes until the commit, and the time."""
    rows = await db.fetch(
        f"{_OPERATION}, {CLOCK} AS now FROM operations WHERE id = $2 FOR NO KEY UPDATE",
        now,
        storable(operation_id),
    )
    if not rows:
        raise unknown_operation(operation_id)
    return rows[0]["number"], _operation(rows[0]), rows[0]["now"]


# --- reading ---------------------------------------------------------------------------------------------


async def operation(db: Any, operation_id: str) -> Operation:
    """One operation (S37)."""
    row = await db.fetchrow(f"{_OPERATION} FROM operations WHERE id = $1", storable(operation_id))
    if row is None:
        raise unknown_operation(operation_id)
    return _operation(row)


async def operations(db: Any, limit: int) -> list[Operation]:
    """The newest operations (S37)."""
    rows = await db.fetch(f"{_OPERATION} FROM operations ORDER BY number DESC LIMIT $1", limit)
    return [_operation(row) for row in rows]


def _operation(row: Any) -> Operation:
    return operation_of([row[name] for name in FIELDS], _decode_outcomes(row["outcomes"] or "{}"))


async def _number(db: Any, operation_id: str) -> int:
    number = await db.fetchval("SELECT number FROM operations WHERE id = $1", storable(operation_id))
    if number is None:
        raise unknown_operation(operation_id)
    return int(number)


async def remaining(db: Any, operation_id: str, limit: int) -> list[str]:
    """The next letters of the list without an outcome (S38)."""
    rows = await db.fetch(
        "SELECT letter_id FROM operation_items WHERE operation = $1 AND outcome IS NULL ORDER BY position LIMIT $2",
        await _number(db, operation_id),
        limit,
    )
    return [row[0] for row in rows]


async def items(db: Any, operation_id: str, after: int, limit: int) -> list[Item]:
    """The list from a place on (S38)."""
    rows = await db.fetch(
        "SELECT letter_id, outcome, detail, at FROM operation_items WHERE operation = $1 AND position > $2"
        " ORDER BY position LIMIT $3",
        await _number(db, operation_id),
        after,
        limit,
    )
    return [item_of(*row) for row in rows]


async def groups(db: Any, query: Query, limit: int) -> list[Group]:
    """The largest groups (S45). The letter that came last is the one with the highest number."""
    clause, values = SEARCH.where(query)
    statement, values = SEARCH.finished(
        'SELECT counted."group", many, first, last, sources, states, error_type, error_text FROM'
        ' (SELECT "group", count(*) AS many, min(first_failed_at) AS first, max(last_failed_at) AS last,'
        f" max(number) AS newest, array_agg(DISTINCT source) AS sources, ARRAY[{_PER_STATE}] AS states"
        f" FROM letters JOIN states USING (number){clause}"
        ' GROUP BY "group" ORDER BY many DESC, "group" LIMIT ?) AS counted'
        ' JOIN letters ON number = newest ORDER BY many DESC, counted."group"',
        [*values, limit],
    )
    rows = await db.fetch(statement, *values)
    return [
        group_of(
            row["group"], row["many"], first=row["first"], last=row["last"], sources=row["sources"],
            counts=row["states"], error_type=row["error_type"], error_text=row["error_text"],
        )
        for row in rows
    ]  # fmt: skip
