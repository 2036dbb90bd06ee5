"""How does PostgreSQL keep operations, and how does it find groups?

`PostgresOperations` is the part of the store's door that S34 to S45 speak of; below it stands what each of its verbs
reads and writes. What may happen to an operation is decided by `stores.operations`; here it is only carried out, each
verb in one transaction that holds the operation's row.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

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
from redrive.stores.postgres.link import Link, Session
from redrive.stores.postgres.search import SEARCH
from redrive.stores.query import EVERYTHING, Query
from redrive.stores.rows import bind, moment

T = TypeVar("T")

_FIELDS: Final = (
    "id", "kind", "by", "query", "options", "state", "note", "total", "created_at", "ended_at", "ended_by",
    "runner", "lease_until",
)  # fmt: skip
_TIMES: Final = ("created_at", "ended_at", "lease_until")
_CLOCK: Final = "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
_OPERATION: Final = (
    f"SELECT number, {', '.join(_FIELDS)}, (SELECT json_object_agg(outcome, count)::text FROM outcomes"
    " WHERE operation = number) AS outcomes"
)
_ITEMS: Final = (
    "INSERT INTO items (operation, position, letter_id) SELECT $1::bigint, place, letter_id"
    " FROM unnest($2::text[]) WITH ORDINALITY AS input (letter_id, place)"
)
_PER_STATE: Final = ", ".join(f"count(*) FILTER (WHERE state = '{state}')" for state in State)
_decode_outcomes = msgspec.json.Decoder(dict[str, int]).decode


class PostgresOperations:
    """The verbs about operations and groups."""

    _link: Link

    def _now(self) -> int | None:
        raise NotImplementedError

    async def _write(self, work: Callable[[Session], Awaitable[T]]) -> T:
        raise NotImplementedError

    async def begin(self, operation: Operation, ids: Sequence[str]) -> bool:
        """S34 to S36."""
        check_operation(operation, ids)
        letters = list(dict.fromkeys(ids))
        return await self._write(lambda db: _begin(db, operation, letters, self._now()))

    async def operation(self, operation_id: str) -> Operation:
        """S37."""
        return await self._link.read(lambda db: _find(db, operation_id))

    async def operations(self, *, limit: int = 50) -> list[Operation]:
        """S37."""
        check_limit(limit, LARGEST_PAGE)
        rows = await self._link.read(
            lambda db: db.fetch(f"{_OPERATION} FROM operations ORDER BY number DESC LIMIT $1", limit)
        )
        return [_operation(row) for row in rows]

    async def remaining(self, operation_id: str, *, limit: int) -> list[str]:
        """S38."""
        check_limit(limit, LARGEST_CLAIM)
        return await self._link.read(lambda db: _remaining(db, operation_id, limit))

    async def items(self, operation_id: str, *, after: int = 0, limit: int) -> list[Item]:
        """S38."""
        check_limit(limit, LARGEST_CLAIM)
        check_after(after)
        return await self._link.read(lambda db: _items(db, operation_id, after, limit))

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
        rows = await self._link.read(lambda db: _groups(db, query, limit))
        return [_group(*row) for row in rows]


# --- writing, inside a transaction -----------------------------------------------------------------------


async def _begin(db: Session, operation: Operation, letters: list[str], now: int | None) -> bool:
    [[at]] = await db.fetch(f"SELECT {_CLOCK}", now)
    new = begun(operation, len(letters), moment(at))
    values = [bind(getattr(new, name)) for name in _FIELDS]
    marks = ", ".join(f"${number}" for number in range(1, len(_FIELDS) + 1))
    added = await db.fetch(
        f"INSERT INTO operations ({', '.join(_FIELDS)}) VALUES ({marks}) ON CONFLICT (id) DO NOTHING RETURNING number",
        *values,
    )
    if not added:
        return False
    await db.execute(_ITEMS, added[0][0], letters)
    return True


async def _record(
    db: Session, operation_id: str, outcomes: Sequence[tuple[str, str, str]], now: int | None
) -> None:
    number, _, at = await _locked(db, operation_id, now)
    firsts: dict[str, tuple[str, str]] = {}
    for letter_id, outcome, detail in outcomes:
        firsts.setdefault(letter_id, (outcome, detail))
    there = await db.fetch(
        "SELECT letter_id, outcome FROM items WHERE operation = $1 AND letter_id = ANY($2::text[])",
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
        "UPDATE items SET outcome = input.outcome, detail = input.detail, at = $1::bigint"
        " FROM unnest($3::text[], $4::text[], $5::text[]) AS input (letter_id, outcome, detail)"
        " WHERE operation = $2 AND items.letter_id = input.letter_id",
        at, number, *map(list, zip(*new, strict=True)),
    )  # fmt: skip
    counts = Counter(outcome for _, outcome, _ in new)
    await db.execute(
        "INSERT INTO outcomes SELECT $1::bigint, * FROM unnest($2::text[], $3::bigint[])"
        " ON CONFLICT (operation, outcome) DO UPDATE SET count = outcomes.count + excluded.count",
        number, list(counts), list(counts.values()),
    )  # fmt: skip


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
        f"{_OPERATION}, {_CLOCK} AS now FROM operations WHERE id = $2 FOR NO KEY UPDATE",
        now,
        storable(operation_id),
    )
    if not rows:
        raise unknown_operation(operation_id)
    return rows[0]["number"], _operation(rows[0]), rows[0]["now"]


# --- reading ---------------------------------------------------------------------------------------------


async def _find(db: Any, operation_id: str) -> Operation:
    row = await db.fetchrow(f"{_OPERATION} FROM operations WHERE id = $1", storable(operation_id))
    if row is None:
        raise unknown_operation(operation_id)
    return _operation(row)


def _operation(row: Any) -> Operation:
    fields = {name: row[name] for name in _FIELDS}
    for name in _TIMES:
        if fields[name] is not None:
            fields[name] = moment(fields[name])
    fields["state"] = OperationState(fields["state"])
    return Operation(**fields, outcomes=_decode_outcomes(row["outcomes"] or "{}"))


async def _number(db: Any, operation_id: str) -> int:
    number = await db.fetchval("SELECT number FROM operations WHERE id = $1", storable(operation_id))
    if number is None:
        raise unknown_operation(operation_id)
    return int(number)


async def _remaining(db: Any, operation_id: str, limit: int) -> list[str]:
    rows = await db.fetch(
        "SELECT letter_id FROM items WHERE operation = $1 AND outcome IS NULL ORDER BY position LIMIT $2",
        await _number(db, operation_id),
        limit,
    )
    return [row[0] for row in rows]


async def _items(db: Any, operation_id: str, after: int, limit: int) -> list[Item]:
    rows = await db.fetch(
        "SELECT letter_id, outcome, detail, at FROM items WHERE operation = $1 AND position > $2"
        " ORDER BY position LIMIT $3",
        await _number(db, operation_id),
        after,
        limit,
    )
    return [
        Item(letter_id, outcome, detail, None if at is None else moment(at))
        for letter_id, outcome, detail, at in rows
    ]


async def _groups(db: Any, query: Query, limit: int) -> list[Any]:
    """The letter that came last is the one with the highest number."""
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
    rows: list[Any] = await db.fetch(statement, *values)
    return rows


def _group(
    name: str,
    size: int,
    first: int,
    last: int,
    sources: list[str],
    counts: list[int],
    error_type: str,
    error_text: str,
) -> Group:
    return Group(
        group=name,
        count=size,
        error_type=error_type,
        error_text=error_text,
        sources=tuple(sorted(sources)),
        first_seen=moment(first),
        last_seen=moment(last),
        states={state.value: count for state, count in zip(State, counts, strict=True) if count},
    )
