"""What does each verb write about letters that are there, inside its transaction?

Functions of (session, …, now), each of one or two statements whatever the number of letters: a statement costs a round
trip. `now` is in microseconds; None is the database's own clock, which all processes share. They commit nothing and
know no pool, no event loop and no other clock. How letters get in is told by `adding`.

Rows are locked in the order of their numbers, by whatever verb, so that no two verbs wait for each other. A claim and a
rescue wait for nobody: they leave out what is locked.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from redrive.letters import ClaimToken, LetterHead, LetterState, Step
from redrive.letters.letter import EPOCH, storable
from redrive.letters.lifecycle import after
from redrive.stores.base import Rescued, unknown_letter
from redrive.stores.changes import (
    RECLAIMED,
    RELEASED,
    STEP_OF,
    Annotate,
    Assign,
    Change,
    Delete,
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
    describe,
    failure_fields,
    result_of,
    retagged,
    state_after,
)
from redrive.stores.cold import pack_failure
from redrive.stores.gates import Gate, Gatekeeper
from redrive.stores.postgres.adding import write_tags
from redrive.stores.postgres.link import Session
from redrive.stores.postgres.search import COLUMNS, STATES
from redrive.stores.postgres.statements import CHANGE_LOG, MOMENT, NOW, names, unnest
from redrive.stores.rows import HEAD, bind, head_of, read_tags, span, tags_column

_LET_IN: Final = 10_000  # how many letters may fall due in one claim (S13)
_LOOKED_AT: Final = 2000  # due letters that one claim looks at for those that pass its gates
_LARGEST_FENCE: Final = 2**63 - 1
_TAKING: Final = {LetterState.PENDING: Step.CLAIM, LetterState.MANUAL: Step.REPLAY}
_TAKEN_FROM: Final = ", ".join(f"'{state}'" for state in _TAKING)
_TAKEN_BY: Final = " ".join(f"WHEN '{state}' THEN '{step}'" for state, step in _TAKING.items())


# --- claiming --------------------------------------------------------------------------------------------

_HOLD: Final = (
    f"UPDATE states SET state = '{LetterState.PROCESSING}', ready = NULL, fence = fence + 1, locked_by = $2,"
    f" locked_at = {NOW}, lease_until = {NOW} + $3::bigint, updated_at = {NOW}"
)
_HELD: Final = ", ".join(["states.number", *(f'states."{name}"' for name in HEAD if name in STATES)])


class Claimed(NamedTuple):
    """The letters of a claim, and what the next one has to know."""

    heads: list[LetterHead]
    more: bool = False  # it has not looked at all that are due
    waiting: bool = False  # letters wait at gates


_HEADS: Final = (
    f" heads AS MATERIALIZED (SELECT {COLUMNS} FROM held JOIN letters USING (number)),"
    f" lines AS ({CHANGE_LOG} SELECT {NOW}, $2, id, '{Step.CLAIM}', '{LetterState.PENDING}',"
    f" '{LetterState.PROCESSING}', '' FROM heads ORDER BY priority DESC, created_at)"
)
_ORDER: Final = "ORDER BY priority DESC, created_at, id"
_AT_A_GATE: Final = f"waits_for IS NOT NULL AND state = '{LetterState.PENDING}'"


@lru_cache(maxsize=64)
def claim_statement(limit: int) -> str:
    """The statement that claims. The limit stands in it, so that the planner knows how little is wanted.

    What has fallen due competes with what was due before; what of it is not claimed now is let in, so that the next
    claim finds it in its place. Both are found by the broker first. Each row says whether letters wait at gates; there
    is always one row.
    """
    return (
        f"{MOMENT}, fallen_due AS MATERIALIZED (SELECT number, priority, age FROM states"
        f" WHERE NOT ready AND broker = $4 AND next_retry_at <= {NOW} ORDER BY next_retry_at LIMIT {_LET_IN}"
        " FOR UPDATE SKIP LOCKED),"
        " due AS MATERIALIZED (SELECT number, priority, age FROM states WHERE ready AND broker = $4"
        f" ORDER BY priority DESC, age LIMIT {limit} FOR UPDATE SKIP LOCKED),"
        " picked AS MATERIALIZED (SELECT number FROM (SELECT * FROM due UNION ALL SELECT * FROM fallen_due) AS found"
        f" ORDER BY priority DESC, age LIMIT {limit}),"
        " let_in AS (UPDATE states SET ready = true FROM fallen_due WHERE states.number = fallen_due.number"
        " AND fallen_due.number NOT IN (SELECT number FROM picked)),"
        f" held AS ({_HOLD} FROM picked WHERE states.number = picked.number RETURNING {_HELD}),{_HEADS}"
        f" SELECT heads.*, EXISTS (SELECT FROM states WHERE broker = $4 AND {_AT_A_GATE}) AS waiting"
        f" FROM (VALUES (1)) AS one LEFT JOIN heads ON true {_ORDER}"
    )


async def claim(
    db: Session, worker: str, broker: str, limit: int, lease: timedelta, now: int | None
) -> Claimed:
    """Due letters of a broker, by priority, then by age (S6 to S9). It looks at no gate."""
    rows = [tuple(row) for row in await db.fetch(claim_statement(limit), now, worker, span(lease), broker)]
    heads = [head_of(row[:-1]) for row in rows if row[0] is not None]
    db.unchanged = not heads
    return Claimed(heads, waiting=rows[0][-1])


_LET_IN_FALLEN_DUE: Final = (
    f"{MOMENT}, fallen_due AS MATERIALIZED (SELECT number FROM states WHERE NOT ready AND broker = $2"
    f" AND next_retry_at <= {NOW} ORDER BY next_retry_at LIMIT {_LET_IN} FOR UPDATE SKIP LOCKED)"
    " UPDATE states SET ready = true FROM fallen_due WHERE states.number = fallen_due.number RETURNING states.number"
)
# The gates at which letters wait, each found by one step in the index.
_GATES: Final = (
    "WITH RECURSIVE gates AS (SELECT (SELECT min(waits_for) FROM states WHERE broker = $1 AND waits_for IS NOT NULL)"
    " AS name UNION ALL SELECT (SELECT min(waits_for) FROM states WHERE broker = $1 AND waits_for > name)"
    " FROM gates WHERE name IS NOT NULL) SELECT name FROM gates WHERE name IS NOT NULL"
)
_LET_IN_WAITING: Final = (
    "WITH first AS MATERIALIZED (SELECT number FROM unnest($2::text[], $3::bigint[]) AS gate (name, count),"
    " LATERAL (SELECT number FROM states WHERE broker = $1 AND waits_for = name"
    f" AND state = '{LetterState.PENDING}' ORDER BY priority DESC, age LIMIT count FOR UPDATE SKIP LOCKED) AS letter)"
    " UPDATE states SET ready = true, waits_for = NULL FROM first WHERE states.number = first.number"
    " RETURNING states.number"
)
_STOP: Final = (
    "UPDATE states SET ready = NULL, waits_for = gate FROM unnest($1::bigint[], $2::text[]) AS input (number, gate)"
    " WHERE states.number = input.number"
)
_CLAIM_PICKED: Final = (
    f"{MOMENT}, held AS ({_HOLD} WHERE number = ANY($4::bigint[]) RETURNING {_HELD}),{_HEADS}"
    f" SELECT * FROM heads {_ORDER}"
)


@lru_cache(maxsize=64)
def _due_statement(limit: int) -> str:
    return (
        "WITH due AS MATERIALIZED (SELECT number, priority, age, strategy FROM states WHERE ready AND broker = $1"
        f" AND number <> ALL($2::bigint[]) ORDER BY priority DESC, age LIMIT {limit} FOR UPDATE SKIP LOCKED)"
        " SELECT number, source, consumer_group, kind, strategy FROM due JOIN letters USING (number)"
        " ORDER BY priority DESC, age"
    )


async def claim_past_gates(
    db: Session,
    worker: str,
    broker: str,
    limit: int,
    lease: timedelta,
    gates: Sequence[Gate],
    now: int | None,
) -> Claimed:
    """Due letters of a broker that no gate stops, by priority, then by age (S52 to S55)."""
    keeper = Gatekeeper(gates, limit)
    changed = bool(await db.fetch(_LET_IN_FALLEN_DUE, now, broker))
    names = [row["name"] for row in await db.fetch(_GATES, broker)]
    opened = {name: count for name in names if (count := keeper.let_in(name))}
    if opened:
        changed |= bool(await db.fetch(_LET_IN_WAITING, broker, list(opened), list(opened.values())))
    picked: list[int] = []
    stopped: dict[int, str] = {}
    seen, window, more = 0, limit, True
    while more and len(picked) < limit and seen < _LOOKED_AT:
        # Few at first: letters that are looked at are locked, and other claims leave them out.
        window = min(window, _LOOKED_AT)
        due = await db.fetch(_due_statement(window), broker, [*picked, *stopped])
        more = len(due) == window
        seen += len(due)
        window *= 4
        for number, *values in due:
            if len(picked) == limit:
                break
            gate = keeper.stop(*values)
            if gate is None:
                picked.append(number)
            else:
                stopped[number] = gate
    if stopped:
        await db.execute(_STOP, list(stopped), list(stopped.values()))
    rows = await db.fetch(_CLAIM_PICKED, now, worker, span(lease), picked) if picked else []
    db.unchanged = not (changed or stopped or rows)
    return Claimed([head_of(tuple(row)) for row in rows], more, waiting=bool(names or stopped))


_TAKE: Final = (
    f"{MOMENT}, chosen AS MATERIALIZED (SELECT states.number, state AS before, place"
    " FROM unnest($4::text[]) WITH ORDINALITY AS input (id, place) JOIN letters USING (id) JOIN states USING (number)"
    f" WHERE (state IN ({_TAKEN_FROM})"
    f" OR ($6::boolean AND state = '{LetterState.PROCESSING}' AND locked_by = $2 AND sent_at IS NULL))"
    " AND ($5::text[] IS NULL OR broker = ANY($5::text[]))"
    " ORDER BY states.number FOR UPDATE OF states),"
    f" held AS ({_HOLD}, waits_for = NULL FROM chosen WHERE states.number = chosen.number"
    f" RETURNING {_HELD}, before, place),"
    f" heads AS MATERIALIZED (SELECT {COLUMNS}, before, place FROM held JOIN letters USING (number)),"
    f" told AS (SELECT id, place, 1 AS turn, CASE before {_TAKEN_BY} ELSE '{Step.CLAIM}' END AS action,"
    f" CASE before WHEN '{LetterState.PROCESSING}' THEN '{LetterState.PENDING}' ELSE before END AS before,"
    f" '{LetterState.PROCESSING}' AS after, '' AS detail FROM heads"
    f" UNION ALL SELECT id, place, 0, '{RELEASED}', before, '{LetterState.PENDING}', '{RECLAIMED}' FROM heads"
    f" WHERE before = '{LetterState.PROCESSING}'),"
    f" lines AS ({CHANGE_LOG} SELECT {NOW}, $2, id, action, before, after, detail FROM told ORDER BY place, turn)"
    f" SELECT {COLUMNS} FROM heads ORDER BY place"
)


async def take(
    db: Session,
    ids: Sequence[str],
    worker: str,
    brokers: Sequence[str] | None,
    lease: timedelta,
    now: int | None,
    *,
    reclaim: bool,
) -> list[LetterHead]:
    """Chosen letters of these brokers, as far as they can be had (S10)."""
    chosen_brokers = None if brokers is None else list(brokers)
    rows = await db.fetch(_TAKE, now, worker, span(lease), _stored_ids(ids), chosen_brokers, reclaim)
    db.unchanged = not rows
    return [head_of(tuple(row)) for row in rows]


def _held(condition: str) -> str:
    """The letters whose fence is that of the hold and whose lease meets the condition, locked."""
    return (
        " JOIN letters USING (id) JOIN states USING (number, fence)"
        f" WHERE {condition} ORDER BY number FOR UPDATE OF states)"
    )


_EXTEND: Final = (
    f"{MOMENT}, held AS MATERIALIZED (SELECT number, id, fence, locked_by, sent_at, place"
    " FROM unnest($2::text[], $3::bigint[]) WITH ORDINALITY AS input (id, fence, place)"
    f"{_held(f'lease_until > {NOW}')},"
    f" moved AS (UPDATE states SET lease_until = {NOW} + $4::bigint, updated_at = {NOW},"
    f" sent_at = CASE WHEN $5::boolean THEN coalesce(states.sent_at, {NOW}) ELSE states.sent_at END"
    " FROM held WHERE states.number = held.number),"
    f" lines AS ({CHANGE_LOG} SELECT {NOW}, locked_by, id, 'sent', '{LetterState.PROCESSING}',"
    f" '{LetterState.PROCESSING}', '' FROM held WHERE $5::boolean AND sent_at IS NULL ORDER BY place)"
    " SELECT id, fence FROM held"
)


async def extend(
    db: Session, holds: Sequence[ClaimToken], lease: timedelta, now: int | None, *, sent: bool
) -> list[bool]:
    """Move the ends of leases that still run (S11, S12)."""
    wanted = list(dict.fromkeys(_stored(hold) for hold in holds))
    rows = await db.fetch(
        _EXTEND, now, [letter for letter, _ in wanted], [fence for _, fence in wanted], span(lease), sent
    )
    db.unchanged = not rows
    held = {(row["id"], row["fence"]) for row in rows}
    return [_stored(hold) in held for hold in holds]


def _stored(hold: ClaimToken) -> tuple[str, int]:
    """The hold as the database can compare it; a fence that no claim can have is one that none has."""
    return storable(hold.id), hold.fence if 0 <= hold.fence <= _LARGEST_FENCE else -1


# --- settling --------------------------------------------------------------------------------------------

_RETRY: Final = action_of(Retry(at=EPOCH))  # names the strategy of the next attempt (`attempt_strategy`)
# What is said about each letter, and its type. NULL: as it was.
_SAID: Final = {
    "id": "text", "fence": "bigint", "state": "text", "presumed": "boolean", "strategy": "text",
    "next_retry_at": "bigint", "error_type": "text", "error_text": "text", "kind": "text", "group": "text",
    "last_failed_at": "bigint", "failure": "bytea", "result": "text", "action": "text", "detail": "text",
}  # fmt: skip
_OF_INPUT: Final = ", ".join(f'input."{name}"' for name in _SAID)
_FREE: Final = "locked_by = NULL, locked_at = NULL, lease_until = NULL, sent_at = NULL, unconfirmed = false"
_SETTLE: Final = (
    f"{MOMENT}, held AS MATERIALIZED (SELECT number, locked_by, locked_at, dlq_retry_count, place,"
    f" CASE input.action WHEN '{_RETRY}' THEN coalesce(states.strategy, input.strategy)"
    f" ELSE coalesce(input.strategy, states.strategy) END AS used, {_OF_INPUT}"
    f" FROM {unnest([f'{kind}[]' for kind in _SAID.values()], 2)} WITH ORDINALITY"
    f" AS input ({names(_SAID)}, place){_held(f'(lease_until > {NOW} OR sent_at IS NOT NULL)')},"
    " settled AS (UPDATE states SET state = held.state,"
    " presumed = coalesce(held.presumed, states.presumed), strategy = coalesce(held.strategy, states.strategy),"
    " next_retry_at = coalesce(held.next_retry_at, states.next_retry_at),"
    f" ready = CASE held.state WHEN '{LetterState.PENDING}'"
    f" THEN coalesce(held.next_retry_at, states.next_retry_at) <= {NOW} END,"
    f" dlq_retry_count = states.dlq_retry_count + (held.result IS NOT NULL)::int, updated_at = {NOW}, {_FREE}"
    " FROM held WHERE states.number = held.number),"
    " told AS (UPDATE letters SET error_type = held.error_type, error_text = held.error_text, kind = held.kind,"
    ' "group" = held."group", last_failed_at = held.last_failed_at'
    " FROM held WHERE letters.number = held.number AND held.failure IS NOT NULL),"
    " shown AS (UPDATE bodies SET failure = held.failure FROM held"
    " WHERE letter = held.number AND held.failure IS NOT NULL),"
    f" tried AS (INSERT INTO attempts SELECT number, dlq_retry_count + 1, locked_at, {NOW}, locked_by, used,"
    " result, fence, detail FROM held WHERE result IS NOT NULL),"
    f" lines AS ({CHANGE_LOG} SELECT {NOW}, locked_by, id, action, '{LetterState.PROCESSING}', state, detail"
    " FROM held ORDER BY place)"
    " SELECT place FROM held"
)


async def settle(db: Session, settlements: Sequence[Settlement], now: int | None) -> list[bool]:
    """Carry out each outcome whose hold is good (S14 to S18). Only the first for a hold: then nobody holds it."""
    firsts: dict[tuple[str, int], int] = {}
    for place, one in enumerate(settlements):
        firsts.setdefault(_stored(one.claim_token), place)
    if not firsts:
        return []
    said = [(*hold, *_said(settlements[place].outcome)) for hold, place in firsts.items()]
    rows = await db.fetch(_SETTLE, now, *map(list, zip(*said, strict=True)))
    db.unchanged = not rows
    places = list(firsts.values())
    done = {places[row["place"] - 1] for row in rows}
    return [place in done for place in range(len(settlements))]


def _said(outcome: Outcome) -> tuple[Any, ...]:
    """What an outcome says, in the order of `_SAID` from the state on."""
    presumed = outcome.presumed if isinstance(outcome, Resolve) else None
    at = outcome.at if isinstance(outcome, Retry | Unclaim) else None
    shown = None if isinstance(outcome, Resolve | Unclaim) else outcome.failure
    fields = failure_fields(shown) if shown is not None else {}
    return (
        after(LetterState.PROCESSING, STEP_OF[type(outcome)]), presumed, outcome.strategy,
        None if at is None else bind(at),
        fields.get("error_type"), fields.get("error_text"), fields.get("kind"), fields.get("group"),
        bind(fields.get("last_failed_at")), None if shown is None else pack_failure(shown),
        result_of(outcome), action_of(outcome), outcome.detail,
    )  # fmt: skip


# Tickets are asked for within `busy_timeout`, which is an hour at most.
_FORGET: Final = (
    "DELETE FROM commits WHERE ticket IN (SELECT ticket FROM commits WHERE at < clock_timestamp() - interval '2 hours'"
    " ORDER BY at LIMIT 10000 FOR UPDATE SKIP LOCKED)"
)


@lru_cache(maxsize=64)
def rescue_statement(limit: int) -> str:
    """The statement that ends expired leases of letters that were not sent."""
    again, given_up = (after(LetterState.PROCESSING, step) for step in (Step.RETRY, Step.EXHAUST))
    return (
        f"{MOMENT}, ended AS MATERIALIZED (SELECT number, id, locked_by, locked_at, lease_until, dlq_retry_count,"
        " strategy, fence, dlq_retry_count + 1 < $3::bigint AS below"
        f" FROM states JOIN letters USING (number) WHERE lease_until <= {NOW} AND sent_at IS NULL"
        f" ORDER BY lease_until, id LIMIT {limit} FOR UPDATE OF states SKIP LOCKED),"
        " judged AS MATERIALIZED (SELECT *,"
        f" CASE WHEN below THEN '{again}' ELSE '{given_up}' END AS after,"
        f" CASE WHEN below THEN '{Step.RETRY}' ELSE '{Step.EXHAUST}' END AS step,"
        f" CASE WHEN below THEN {NOW} + $2::bigint END AS due FROM ended),"
        " freed AS (UPDATE states SET state = after, next_retry_at = coalesce(due, next_retry_at),"
        f" ready = due <= {NOW}, dlq_retry_count = states.dlq_retry_count + 1, updated_at = {NOW}, {_FREE}"
        " FROM judged WHERE states.number = judged.number),"
        f" tried AS (INSERT INTO attempts SELECT number, dlq_retry_count + 1, locked_at, {NOW}, locked_by, strategy,"
        " 'crashed', fence, 'the lease expired' FROM judged),"
        f" lines AS ({CHANGE_LOG} SELECT {NOW}, 'rescuer', id, step, '{LetterState.PROCESSING}', after, 'crashed'"
        " FROM judged ORDER BY lease_until, id)"
        " SELECT id, locked_by, after FROM judged ORDER BY lease_until, id"
    )


async def rescue(
    db: Session, retry_in: timedelta, max_redrives: int, limit: int, now: int | None
) -> list[Rescued]:
    """End expired leases of letters that were not sent (S19 to S21)."""
    await db.execute(_FORGET)
    rows = await db.fetch(rescue_statement(limit), now, span(retry_in), max_redrives)
    return [Rescued(row["id"], row["locked_by"], LetterState(row["after"])) for row in rows]


@lru_cache(maxsize=64)
def overdue_statement(limit: int) -> str:
    """The statement that marks letters as unconfirmed."""
    return (
        f"{MOMENT}, ended AS MATERIALIZED (SELECT number, lease_until AS ended_at, unconfirmed AS known"
        " FROM states JOIN letters USING (number)"
        f" WHERE broker = $2 AND sent_at IS NOT NULL AND lease_until <= {NOW}"
        f" ORDER BY lease_until, id LIMIT {limit} FOR UPDATE OF states SKIP LOCKED),"
        f" marked AS (UPDATE states SET unconfirmed = true, lease_until = {NOW} + $3::bigint, updated_at = {NOW}"
        f" FROM ended WHERE states.number = ended.number RETURNING {_HELD}, ended_at, known),"
        f" heads AS MATERIALIZED (SELECT {COLUMNS}, ended_at, known FROM marked JOIN letters USING (number)),"
        f" lines AS ({CHANGE_LOG} SELECT {NOW}, 'rescuer', id, 'unconfirmed', '{LetterState.PROCESSING}',"
        f" '{LetterState.PROCESSING}', '' FROM heads WHERE NOT known ORDER BY ended_at, id)"
        f" SELECT {COLUMNS} FROM heads ORDER BY ended_at, id"
    )


async def overdue(
    db: Session, broker: str, lease: timedelta, limit: int, now: int | None
) -> list[LetterHead]:
    """Letters of a broker that were sent and whose lease has expired (S49, S50)."""
    rows = await db.fetch(overdue_statement(limit), now, broker, span(lease))
    db.unchanged = not rows
    return [head_of(tuple(row)) for row in rows]


# --- changing --------------------------------------------------------------------------------------------

_LOCK: Final = (
    f"{MOMENT} SELECT id, number, state, at FROM letters JOIN states USING (number), moment"
    " WHERE id = ANY($2::text[]) ORDER BY number FOR UPDATE OF states"
)


async def apply(db: Session, change: Change, ids: Sequence[str], by: str, now: int | None) -> None:
    """One change on all letters named, or on none (S22 to S25, S51)."""
    wanted = {storable(letter_id): letter_id for letter_id in ids}
    found = {row["id"]: row for row in await db.fetch(_LOCK, now, list(wanted))}
    for stored, letter_id in wanted.items():
        if stored not in found or stored != letter_id:
            raise unknown_letter(letter_id)
    letters = [found[letter_id] for letter_id in wanted]
    befores = [LetterState(letter["state"]) for letter in letters]
    afters = [state_after(change, before) for before in befores]
    if not letters:
        return
    at, numbers = letters[0]["at"], [letter["number"] for letter in letters]
    if isinstance(change, Delete):
        await _delete(db, numbers)
    else:
        await _change(db, change, letters, afters, by, at)
    await db.execute(
        f"{CHANGE_LOG} SELECT $1::bigint, $2, id, $3, before, after, $4"
        " FROM unnest($5::text[], $6::text[], $7::text[]) WITH ORDINALITY AS input (id, before, after, place)"
        " ORDER BY place",
        at, by, action_of(change), describe(change), list(wanted), befores, afters,
    )  # fmt: skip


async def _change(
    db: Session,
    change: Change,
    letters: Sequence[Any],
    afters: Sequence[LetterState | None],
    by: str,
    at: int,
) -> None:
    """Where the letters stand now, and what else the change writes."""
    numbers = [letter["number"] for letter in letters]
    due = bind(change.at) if isinstance(change, Schedule) else None
    await db.execute(
        "UPDATE states SET state = input.state, updated_at = $1::bigint,"
        " next_retry_at = coalesce($2::bigint, next_retry_at), ready = coalesce($2::bigint <= $1::bigint, ready),"
        " waits_for = CASE WHEN $2::bigint IS NULL THEN waits_for END,"
        " priority = coalesce($3::integer, priority), broker = coalesce($6::text, broker)"
        " FROM unnest($4::bigint[], $5::text[]) AS input (number, state) WHERE states.number = input.number",
        at, due, change.priority if isinstance(change, Prioritise) else None, numbers, afters,
        change.broker if isinstance(change, SetBroker) else None,
    )  # fmt: skip
    match change:
        case Assign(to):
            await db.execute("UPDATE letters SET assignee = $1 WHERE number = ANY($2::bigint[])", to, numbers)
        case Annotate(text):
            await db.execute(
                "INSERT INTO notes (letter, at, author, text) SELECT number, $1::bigint, $2, $3"
                " FROM unnest($4::bigint[]) AS input (number)",
                at, by, text, numbers,
            )  # fmt: skip
        case Tag():
            # Only now: before the lock was had, somebody else may have changed them.
            found = await db.fetch(
                "SELECT number, tags FROM letters WHERE number = ANY($1::bigint[])", numbers
            )
            before = {row["number"]: read_tags(row["tags"]) for row in found}
            tags = [tags_column(retagged(before[number], change)) for number in numbers]
            await db.execute("DELETE FROM tags WHERE letter = ANY($1::bigint[])", numbers)
            await db.execute(
                "UPDATE letters SET tags = input.tags FROM unnest($1::bigint[], $2::text[]) AS input (number, tags)"
                " WHERE letters.number = input.number",
                numbers,
                tags,
            )
            await write_tags(db, list(zip(numbers, tags, strict=True)))
        case _:
            pass


async def _delete(db: Session, numbers: Sequence[int]) -> None:
    """Row by row, without a lock on any table: others read and write as before."""
    for table, key in (
        ("tags", "letter"), ("attempts", "letter"), ("notes", "letter"), ("bodies", "letter"),
        ("states", "number"), ("letters", "number"),
    ):  # fmt: skip
        await db.execute(f"DELETE FROM {table} WHERE {key} = ANY($1::bigint[])", numbers)


async def delete_lines(db: Session, numbers: Sequence[int]) -> None:
    """Delete lines of the change log (S58)."""
    await db.execute("DELETE FROM change_log WHERE number = ANY($1::bigint[])", numbers)


def _stored_ids(ids: Sequence[str]) -> list[str]:
    """Each once, without those that no letter can have."""
    return list(dict.fromkeys(letter_id for letter_id in ids if letter_id == storable(letter_id)))
