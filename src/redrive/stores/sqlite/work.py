"""What does each verb read and write inside its transaction?

Functions of (connection, …, now) that run in the writer's thread, after `BEGIN IMMEDIATE`: between what they read
and what they write, nobody else writes. They commit nothing and know no thread, no event loop and no clock.
`now` is in microseconds, as everywhere in the file.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from redrive.letters import ClaimToken, LetterHead, LetterState, Step
from redrive.letters.letter import storable
from redrive.letters.lifecycle import after
from redrive.stores.base import Rescued, unknown_letter
from redrive.stores.changes import (
    RECLAIMED,
    RELEASED,
    STEP_OF,
    Annotate,
    Assign,
    Change,
    Outcome,
    Prioritise,
    Resolve,
    Retry,
    Schedule,
    SetBroker,
    Settlement,
    Tag,
    Unclaim,
    action_of,
    attempt_strategy,
    describe,
    failure_fields,
    result_of,
    retagged,
    state_after,
)
from redrive.stores.cold import pack_failure
from redrive.stores.gates import Gate, Gatekeeper
from redrive.stores.rows import HEAD, ID, TAGS, NewRow, bind, head_of, read_tags, span, tags_column
from redrive.stores.sqlite.rows import COLUMNS, insert_bodies, insert_letters, quickly_bound

Connection: TypeAlias = sqlite3.Connection
T = TypeVar("T")
_LET_IN: Final = 10_000  # how many letters may fall due in one claim (S13)
_LOOKED_AT: Final = 2000  # due letters that one claim looks at for those that pass its gates
_AT_ONCE: Final = 500  # ids bound in one statement, or letters looked at by one
# Rows that one statement adds. Few sizes, because each of them is a program that SQLite makes and keeps; the largest is
# SQLite's limit for such a list.
_SIZES: Final = (500, 250, 125, 64, 32)
# Another process wrote at the same microseconds.
_STAMP_TAKEN: Final = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_ROWID)
_PRIORITY: Final = HEAD.index("priority")
_CREATED_AT: Final = HEAD.index("created_at")
_TAKING: Final = {LetterState.PENDING: Step.CLAIM, LetterState.MANUAL: Step.REPLAY}


# --- adding ----------------------------------------------------------------------------------------------


class Stamps:
    """Hands out the stamps that letters are keyed by: the time, but each one later than any before."""

    __slots__ = ("_last",)

    def __init__(self, last: int) -> None:
        self._last = last

    def take(self, count: int, now: int) -> range:
        """As many stamps as there are letters."""
        first = max(now, self._last + 1)
        self._last = first + count - 1
        return range(first, first + count)

    def skip(self, last: int) -> None:
        """The stamps up to `last` are taken by somebody else."""
        self._last = max(self._last, last)


def add(db: Connection, batches: Sequence[Sequence[NewRow]], stamps: Stamps, now: int) -> list[list[bool]]:
    """Many adds as one: which letters of each batch are new (S2, S4, S5)."""
    rows = [row for batch in batches for row in batch]
    new: list[tuple[int, NewRow]] = []
    for some_rows in _in_sizes(rows):
        new += _add_heads(db, some_rows, stamps, now)
    for some in _in_sizes(new):
        values: list[Any] = []
        for key, (_, content, failure) in some:
            values += (key, quickly_bound(content), quickly_bound(failure))
        db.executemany(insert_bodies(len(some)), (values,))
    tags = [(tag, key) for key, (columns, _, _) in new if columns[TAGS] for tag in read_tags(columns[TAGS])]
    if tags:
        db.executemany("INSERT INTO tags (tag, letter) VALUES (?, ?)", tags)
    if len(new) == len(rows):
        return [[True] * len(batch) for batch in batches]
    fresh = {columns[ID] for _, (columns, _, _) in new}
    return [[_is_first(columns[ID], fresh) for columns, _, _ in batch] for batch in batches]


def _add_heads(db: Connection, rows: Sequence[NewRow], stamps: Stamps, now: int) -> list[tuple[int, NewRow]]:
    """The letters that are new, with their keys; their heads are in the file now."""
    keyed = list(zip(stamps.take(len(rows), now), rows, strict=True))
    values: list[Any] = [now]
    for key, (columns, _, _) in keyed:
        values.append(key)
        values += columns
    try:
        # One statement with many rows. `execute` would give the interpreter's lock away twice, to ask for the last row.
        added = db.executemany(insert_letters(len(rows)), (values,)).rowcount
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode not in _STAMP_TAKEN:
            raise
        stamps.skip(db.execute("SELECT max(created_at) FROM letters").fetchone()[0])
        return _add_heads(db, rows, stamps, now)
    if added == len(rows):
        return keyed
    there = dict(_of_ids(db, "id, created_at", [columns[ID] for columns, _, _ in rows]))
    return [(key, row) for key, row in keyed if there[row[0][ID]] == key]


def _in_sizes(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """The rows in pieces of `_SIZES`; the last few as they are."""
    start = 0
    while left := len(rows) - start:
        size = next((size for size in _SIZES if size <= left), left)
        yield rows[start : start + size]
        start += size


def _is_first(letter_id: str, new: set[str]) -> bool:
    """True once for each new id."""
    if letter_id in new:
        new.remove(letter_id)
        return True
    return False


# --- claiming --------------------------------------------------------------------------------------------


class Claimed(NamedTuple):
    """The letters of a claim, and whether it has not looked at all that are due."""

    heads: list[LetterHead]
    more: bool = False


_FALLEN_DUE: Final = "SELECT created_at FROM letters WHERE ready = 0 AND broker = ? AND next_retry_at <= ?"
_DUE: Final = "FROM letters WHERE ready = 1 AND broker = ? ORDER BY priority DESC, created_at LIMIT ?"
# A look is cheaper than an update of nothing.
_LOOK: Final = (
    f"SELECT EXISTS ({_FALLEN_DUE}),"
    " EXISTS (SELECT 1 FROM letters WHERE waits_for IS NOT NULL AND broker = ?)"
)
# The gates at which letters wait, each found by one step in the index.
_GATES: Final = (
    "WITH RECURSIVE gates (name) AS (SELECT min(waits_for) FROM letters WHERE broker = ?1 AND waits_for IS NOT NULL"
    " UNION ALL SELECT (SELECT min(waits_for) FROM letters WHERE broker = ?1 AND waits_for > name)"
    " FROM gates WHERE name IS NOT NULL) SELECT name FROM gates WHERE name IS NOT NULL"
)


def claim(
    db: Connection,
    worker: str,
    broker: str,
    limit: int,
    lease: timedelta,
    gates: Sequence[Gate],
    now: int,
) -> Claimed:
    """Due letters of one broker that no gate stops, by priority, then by age (S6 to S9, S52 to S55)."""
    fallen_due, waiting = db.execute(_LOOK, (broker, now, broker)).fetchone()
    if fallen_due:
        db.execute(
            f"UPDATE letters SET ready = 1 WHERE created_at IN ({_FALLEN_DUE} ORDER BY next_retry_at LIMIT ?)",
            (broker, now, _LET_IN),
        )
    if not gates and not waiting:
        return Claimed(_claim(db, f"SELECT created_at {_DUE}", [broker, limit], worker, lease, now))
    keeper = Gatekeeper(gates, limit)
    if waiting:
        _let_in_waiting(db, broker, keeper)
    picked, more = _pick(db, broker, limit, keeper)
    if not picked:
        return Claimed([], more)
    return Claimed(_claim(db, ", ".join("?" * len(picked)), picked, worker, lease, now))


def _claim(
    db: Connection, which: str, values: list[Any], worker: str, lease: timedelta, now: int
) -> list[LetterHead]:
    rows = _hold(db, which, values, worker, lease, now)
    rows.sort(key=lambda row: (-row[_PRIORITY], row[_CREATED_AT]))
    _journal_claims(db, now, [row[_CREATED_AT] for row in rows])
    return [head_of(row) for row in rows]


def _let_in_waiting(db: Connection, broker: str, keeper: Gatekeeper) -> None:
    """The first letters at each gate that is open can be claimed. The others stay where they cost nothing."""
    for (name,) in db.execute(_GATES, (broker,)).fetchall():
        if count := keeper.let_in(name):
            db.execute(
                "UPDATE letters SET ready = 1, waits_for = NULL WHERE created_at IN (SELECT created_at FROM letters"
                " WHERE broker = ? AND waits_for = ? ORDER BY priority DESC, created_at LIMIT ?)",
                (broker, name, count),
            )


def _pick(db: Connection, broker: str, limit: int, keeper: Gatekeeper) -> tuple[list[int], bool]:
    """The keys of the first due letters that pass; those before them that do not pass wait from now on."""
    picked: list[int] = []
    stopped: dict[str, list[int]] = {}
    seen = 0
    due = db.execute(
        f"SELECT created_at, source, consumer_group, kind, strategy {_DUE}", (broker, _LOOKED_AT)
    )
    for key, source, group, kind, strategy in due:
        seen += 1
        gate = keeper.stop(source, group, kind, strategy)
        if gate is not None:
            stopped.setdefault(gate, []).append(key)
            continue
        picked.append(key)
        if len(picked) == limit:
            break
    due.close()
    for gate, keys in stopped.items():
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            db.execute(
                "UPDATE letters SET ready = NULL, waits_for = ?"
                f" WHERE created_at IN ({', '.join('?' * len(some))})",
                [gate, *some],
            )
    return picked, seen == _LOOKED_AT


def take(
    db: Connection,
    ids: Sequence[str],
    worker: str,
    brokers: Sequence[str] | None,
    lease: timedelta,
    now: int,
    *,
    reclaim: bool,
) -> list[LetterHead]:
    """Chosen letters of these brokers (None: of any), as far as they can be had (S10)."""
    found = {
        letter_id: (LetterState(state), key, locked_by == worker and sent_at is None)
        for letter_id, state, key, broker, locked_by, sent_at in _of_ids(
            db, "id, state, created_at, broker, locked_by, sent_at", ids
        )
        if brokers is None or broker in brokers
    }
    heads: list[LetterHead] = []
    for letter_id in dict.fromkeys(ids):
        before, key, is_own = found.get(letter_id, (None, None, False))
        if reclaim and is_own:
            line = (now, worker, letter_id, RELEASED, LetterState.PROCESSING, LetterState.PENDING, RECLAIMED)
            write_journal(db, [line])
            before = LetterState.PENDING
        if before not in _TAKING:
            continue
        heads += map(head_of, _hold(db, "?", [key], worker, lease, now, waiting=True))
        write_journal(db, [(now, worker, letter_id, _TAKING[before], before, LetterState.PROCESSING, "")])
    return heads


def _hold(
    db: Connection,
    which: str,
    values: list[Any],
    worker: str,
    lease: timedelta,
    now: int,
    *,
    waiting: bool = False,
) -> list[tuple[Any, ...]]:
    """Give letters to a worker; the rows of their heads. `waiting`: some of them may wait at a gate."""
    also = ", waits_for = NULL" if waiting else ""
    return db.execute(
        "UPDATE letters SET state = ?, ready = NULL, fence = fence + 1, locked_by = ?, locked_at = ?,"
        f" lease_until = ?, updated_at = ?{also} WHERE created_at IN ({which}) RETURNING {COLUMNS}",
        [LetterState.PROCESSING, worker, now, now + span(lease), now, *values],
    ).fetchall()


def extend(
    db: Connection, holds: Sequence[ClaimToken], lease: timedelta, now: int, *, sent: bool
) -> list[bool]:
    """Move the ends of leases that still run (S11, S12)."""
    held = _held(db, holds, now, "created_at, locked_by, sent_at")
    until = {"lease_until": now + span(lease), "updated_at": now}
    first = {hold: row for hold, row in held.items() if sent and row[2] is None}
    _update(db, until, [row[0] for hold, row in held.items() if hold not in first])
    if first:
        _update(db, {**until, "sent_at": now}, [row[0] for row in first.values()])
        told = [hold for hold in dict.fromkeys(map(_stored, holds)) if hold in first]  # in the order asked
        processing = LetterState.PROCESSING
        write_journal(
            db, [(now, first[hold][1], hold[0], "sent", processing, processing, "") for hold in told]
        )
    return [_stored(hold) in held for hold in holds]


def _held(
    db: Connection, holds: Sequence[ClaimToken], now: int, columns: str, *, or_sent: bool = False
) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Columns of the letters whose lease still runs, or that were sent, by id and fence of these holds (S11, S15)."""
    wanted = {_stored(hold) for hold in holds}
    until = "iif(sent_at IS NOT NULL, 9e18, lease_until)" if or_sent else "lease_until"
    rows = _of_ids(db, f"id, fence, {until}, {columns}", [letter_id for letter_id, _ in wanted])
    return {
        (letter_id, fence): tuple(found)
        for letter_id, fence, until, *found in rows
        if until is not None and until > now and (letter_id, fence) in wanted
    }


def _stored(hold: ClaimToken) -> tuple[str, int]:
    return storable(hold.id), hold.fence


def _update(db: Connection, columns: dict[str, Any], keys: Sequence[int], *, tried: bool = False) -> None:
    """The same for all these letters, in few statements: each costs a change of threads."""
    assignments = ", ".join(f'"{name}" = ?' for name in columns)
    values = [int(tried), *map(bind, columns.values())]
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        db.execute(
            f"UPDATE letters SET dlq_retry_count = dlq_retry_count + ?, {assignments}"
            f" WHERE created_at IN ({', '.join('?' * len(some))})",
            [*values, *some],
        )


# --- settling --------------------------------------------------------------------------------------------


def settle(db: Connection, settlements: Sequence[Settlement], now: int) -> list[bool]:
    """Carry out each outcome whose hold is good (S14 to S18); those that change the same are written together."""
    holds = [one.claim_token for one in settlements]
    columns_held = "created_at, locked_by, locked_at, dlq_retry_count, next_retry_at, unconfirmed, strategy"
    held = _held(db, holds, now, columns_held, or_sent=True)
    answers: list[bool] = []
    alike: dict[tuple[bool, tuple[tuple[str, Any], ...]], list[int]] = {}
    attempts: list[tuple[Any, ...]] = []
    lines: list[tuple[Any, ...]] = []
    # By outcome, being due, and being unconfirmed: many letters share one.
    endings: dict[tuple[int, bool, int], tuple[str | None, LetterState, list[int]]] = {}
    for hold, outcome in [(one.claim_token, one.outcome) for one in settlements]:
        row = held.pop(_stored(hold), None)  # only once: after that nobody holds it
        answers.append(row is not None)
        if row is None:
            continue
        key, worker, locked_at, count, due, unconfirmed, strategy = row
        if not isinstance(outcome, Resolve | Unclaim) and outcome.failure is not None:
            db.execute("UPDATE bodies SET failure = ? WHERE letter = ?", (pack_failure(outcome.failure), key))
        ending = endings.get((id(outcome), due <= now, unconfirmed))
        if ending is None:
            result = result_of(outcome)
            columns = _let_go_columns(STEP_OF[type(outcome)], now, due, **_effects_of(outcome))
            if unconfirmed:
                columns["unconfirmed"] = 0
            same = alike.setdefault((result is not None, tuple(columns.items())), [])
            ending = endings[id(outcome), due <= now, unconfirmed] = (result, columns["state"], same)
        result, state, same = ending
        same.append(key)
        if result is not None:
            attempts.append(
                (
                    key,
                    count + 1,
                    locked_at,
                    now,
                    worker,
                    attempt_strategy(outcome, strategy),
                    result,
                    hold.fence,
                    outcome.detail,
                )
            )
        lines.append(
            (now, worker, hold.id, action_of(outcome), LetterState.PROCESSING, state, outcome.detail)
        )
    for (tried, items), keys in alike.items():
        _update(db, dict(items), keys, tried=tried)
    _write_attempts(db, attempts)
    write_journal(db, lines)
    return answers


def _effects_of(outcome: Outcome) -> dict[str, Any]:
    """The columns of the head that an outcome sets, beside the end of the claim."""
    changes: dict[str, Any] = {} if outcome.strategy is None else {"strategy": outcome.strategy}
    if isinstance(outcome, Resolve):
        changes["presumed"] = outcome.presumed
    elif not isinstance(outcome, Unclaim) and outcome.failure is not None:
        changes |= failure_fields(outcome.failure)
    if isinstance(outcome, Retry | Unclaim) and outcome.at is not None:
        changes["next_retry_at"] = bind(outcome.at)
    return changes


def rescue(db: Connection, retry_in: timedelta, max_redrives: int, limit: int, now: int) -> list[Rescued]:
    """End expired leases of letters that were not sent (S19 to S21)."""
    ended = db.execute(
        "SELECT created_at, id, locked_by, locked_at, dlq_retry_count, next_retry_at, strategy, fence"
        " FROM letters WHERE sent_at IS NULL AND lease_until <= ? ORDER BY lease_until, id LIMIT ?",
        (now, limit),
    ).fetchall()
    rescued: list[Rescued] = []
    for key, letter_id, worker, locked_at, count, old_due, strategy, fence in ended:
        step, due = Step.EXHAUST, old_due
        if count + 1 < max_redrives:
            step, due = Step.RETRY, now + span(retry_in)
        columns = _let_go_columns(step, now, due, next_retry_at=due)
        state: LetterState = columns["state"]
        _update(db, columns, [key], tried=True)
        _write_attempts(
            db, [(key, count + 1, locked_at, now, worker, strategy, "crashed", fence, "the lease expired")]
        )
        write_journal(db, [(now, "rescuer", letter_id, step, LetterState.PROCESSING, state, "crashed")])
        rescued.append(Rescued(letter_id, worker, state))
    return rescued


def overdue(db: Connection, broker: str, lease: timedelta, limit: int, now: int) -> list[LetterHead]:
    """Letters of one broker that were sent and got no verdict in time: unconfirmed, with a new lease (S49, S50)."""
    expired = db.execute(
        "SELECT created_at, id, unconfirmed FROM letters WHERE sent_at IS NOT NULL AND broker = ?"
        " AND lease_until <= ? ORDER BY lease_until, id LIMIT ?",
        (broker, now, limit),
    ).fetchall()
    keys = [key for key, _, _ in expired]
    _update(db, {"lease_until": now + span(lease), "unconfirmed": 1, "updated_at": now}, keys)
    processing = LetterState.PROCESSING
    write_journal(
        db,
        [
            (now, "rescuer", letter_id, "unconfirmed", processing, processing, "")
            for _, letter_id, again in expired
            if not again
        ],
    )
    heads: dict[int, LetterHead] = {}
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        rows = db.execute(
            f"SELECT created_at, {COLUMNS} FROM letters WHERE created_at IN ({', '.join('?' * len(some))})",
            some,
        )
        heads |= {key: head_of(tuple(row)) for key, *row in rows}
    return [heads[key] for key in keys]


def _let_go_columns(step: Step, now: int, due: int, **changes: Any) -> dict[str, Any]:
    """What changes in a head when the letter takes its step and is held by nobody (S18).

    `due` is when it was due until now, unless a new time is among the `changes`.
    """
    state = after(LetterState.PROCESSING, step)
    assert state is not None  # noqa: S101  no step from processing leads outside
    return {
        "state": state,
        "ready": _ready(state, changes.get("next_retry_at", due), now),
        "updated_at": now,
        "locked_by": None,
        "locked_at": None,
        "lease_until": None,
        "sent_at": None,
        **changes,
    }


def _ready(state: LetterState, due: int, now: int) -> int | None:
    return int(due <= now) if state is LetterState.PENDING else None


def _write_attempts(db: Connection, attempts: Sequence[tuple[Any, ...]]) -> None:
    _insert(db, "attempts", attempts)


def _insert(db: Connection, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Many rows by few statements."""
    for some in _in_sizes(rows):
        row = f"({', '.join('?' * len(some[0]))})"
        values = [value for each in some for value in each]
        db.execute(f"INSERT INTO {into} VALUES {', '.join([row] * len(some))}", values)


# --- changing --------------------------------------------------------------------------------------------


def apply(db: Connection, change: Change, ids: Sequence[str], by: str, now: int) -> None:
    """One change on all letters named, or on none (S22 to S25)."""
    wanted = tuple(dict.fromkeys(ids))
    found = {row[0]: row[1:] for row in _of_ids(db, "id, state, created_at, tags", wanted)}
    if missing := [letter_id for letter_id in wanted if letter_id not in found]:
        raise unknown_letter(missing[0])
    for letter_id in wanted:
        before, key, tags = LetterState(found[letter_id][0]), *found[letter_id][1:]
        state = state_after(change, before)
        if state is None:
            _delete(db, key)
        else:
            columns = {**_effects(db, change, key, tags, by, now), "state": state, "updated_at": now}
            assignments = ", ".join(f'"{name}" = ?' for name in columns)
            db.execute(
                f"UPDATE letters SET {assignments} WHERE created_at = ?", [*map(bind, columns.values()), key]
            )
        write_journal(db, [(now, by, letter_id, action_of(change), before, state, describe(change))])


def _effects(db: Connection, change: Change, key: int, tags: str | None, by: str, now: int) -> dict[str, Any]:
    """The columns of the head that a change sets; what it writes elsewhere is written here."""
    match change:
        case Schedule(at):
            return {
                "next_retry_at": at,
                "ready": _ready(LetterState.PENDING, bind(at), now),
                "waits_for": None,
            }
        case Assign(to):
            return {"assignee": to}
        case Prioritise(priority):
            return {"priority": priority}
        case SetBroker(broker):
            return {"broker": broker}
        case Tag():
            after_it = retagged(read_tags(tags), change)
            db.execute(
                "DELETE FROM tags WHERE letter = ? AND tag IN (SELECT value FROM json_each(?))",
                (key, tags or "[]"),
            )
            db.executemany("INSERT INTO tags (tag, letter) VALUES (?, ?)", [(tag, key) for tag in after_it])
            return {"tags": tags_column(after_it)}
        case Annotate(text):
            db.execute(
                "INSERT INTO notes (letter, at, author, text) VALUES (?, ?, ?, ?)", (key, now, by, text)
            )
            return {}
        case _:
            return {}


def _delete(db: Connection, key: int) -> None:
    tags = db.execute("SELECT tags FROM letters WHERE created_at = ?", (key,)).fetchone()[0]
    if tags is not None:
        db.execute(
            "DELETE FROM tags WHERE letter = ? AND tag IN (SELECT value FROM json_each(?))", (key, tags)
        )
    db.execute("DELETE FROM attempts WHERE letter = ?", (key,))
    db.execute("DELETE FROM notes WHERE letter = ?", (key,))
    db.execute("DELETE FROM bodies WHERE letter = ?", (key,))
    db.execute("DELETE FROM letters WHERE created_at = ?", (key,))


def write_journal(db: Connection, lines: Iterable[tuple[Any, ...]]) -> None:
    """Lines of (at, actor, letter, action, state before, state after, detail) (S25)."""
    rows = [
        (at, actor, letter_id, str(action), str(old), None if new is None else str(new), detail)
        for at, actor, letter_id, action, old, new, detail in lines  # plain texts are bound quickest (`rows`)
    ]
    _insert(db, "change_log (at, actor, letter_id, action, before, after, detail)", rows)


def delete_lines(db: Connection, numbers: Sequence[int]) -> None:
    """Delete lines of the change log (S58)."""
    for start in range(0, len(numbers), _AT_ONCE):
        some = numbers[start : start + _AT_ONCE]
        db.execute(f"DELETE FROM change_log WHERE number IN ({', '.join('?' * len(some))})", some)


def _journal_claims(db: Connection, now: int, keys: Sequence[int]) -> None:
    """A line for each of these letters, which were pending and are being processed: by priority, then by age."""
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        db.execute(
            "INSERT INTO change_log (at, actor, letter_id, action, before, after, detail)"
            " SELECT ?, locked_by, id, ?, ?, state, '' FROM letters"
            f" WHERE created_at IN ({', '.join('?' * len(some))}) ORDER BY priority DESC, created_at",
            [now, str(Step.CLAIM), str(LetterState.PENDING), *some],
        )


def _of_ids(db: Connection, columns: str, ids: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Rows of `columns` of the letters with these ids, in no particular order."""
    for start in range(0, len(ids), _AT_ONCE):
        some = [storable(letter_id) for letter_id in ids[start : start + _AT_ONCE]]
        yield from db.execute(
            f"SELECT {columns} FROM letters WHERE id IN ({', '.join('?' * len(some))})", some
        )
