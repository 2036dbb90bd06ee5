"""How do letters get into the tables?

By two statements for any number of letters, inside a transaction that the caller commits: heads first, so that it is
known which of them are new, then the rest of those (S2, S5). `now` is as in `work`. It knows no pool and no event loop.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from redrive.stores.postgres.link import Session
from redrive.stores.postgres.search import STATES
from redrive.stores.postgres.statements import MOMENT, NOW, names, unnest
from redrive.stores.rows import ID, OWN, TAGS, NewRow, read_tags

_BYTES_AT_ONCE: Final = 32_000_000  # of bodies, in one statement
# What a letter says of itself, by the table it goes to.
_OF_LETTERS: Final = tuple(name for name in OWN if name not in STATES)
_OF_STATES: Final = tuple(name for name in OWN if name in STATES)
_NUMBERS: Final = frozenset({"size", "retry_count", "first_failed_at", "last_failed_at", "next_retry_at"})


def _array(name: str) -> str:
    return "bigint[]" if name in _NUMBERS else "integer[]" if name == "priority" else "text[]"


# Which of the letters are new is known only after the insert; bodies of those that are not, are never sent.
_ADD_LETTERS: Final = (
    f"{MOMENT}, first AS MATERIALIZED (SELECT greatest(at, $2::bigint) AS stamp FROM moment),"
    f" new AS (INSERT INTO letters (created_at, {names(_OF_LETTERS)})"
    f" SELECT (SELECT stamp FROM first) + place, {names(_OF_LETTERS)}"
    f" FROM {unnest(['bigint[]', *map(_array, _OF_LETTERS)], 3)} AS input (place, {names(_OF_LETTERS)})"
    " ORDER BY place ON CONFLICT (id) DO NOTHING RETURNING id, number, created_at)"
    " SELECT stamp, at, id, number, created_at FROM moment, first LEFT JOIN new ON true"
)
_ADD_REST: Final = (
    f"{MOMENT}, input AS MATERIALIZED (SELECT * FROM"
    f" {unnest(['bigint[]', 'bigint[]', *map(_array, _OF_STATES), 'bytea[]', 'bytea[]'], 2)}"
    f" AS input (number, age, {names(_OF_STATES)}, content, failure)),"
    f" stand AS (INSERT INTO states (number, age, updated_at, ready, {names(_OF_STATES)})"
    f" SELECT number, age, age, next_retry_at <= {NOW}, {names(_OF_STATES)} FROM input)"
    " INSERT INTO bodies (letter, content, failure) SELECT number, content, failure FROM input"
)


async def add(
    db: Session, rows: Sequence[NewRow], after_stamp: int, now: int | None
) -> tuple[list[bool], int]:
    """Which letters are new (S2, S4, S5), and the last stamp that was given out."""
    last = after_stamp
    answers: list[bool] = []
    for some in _portions(rows):
        fresh, last = await _add_some(db, some, last, now)
        answers += fresh
    return answers, last


def _portions(rows: Sequence[NewRow]) -> Iterable[Sequence[NewRow]]:
    """Few enough bytes for one statement each; a single letter may be larger."""
    start, size = 0, 0
    for number, (_, content, failure) in enumerate(rows):
        size += len(content) + len(failure)
        if size > _BYTES_AT_ONCE and number > start:
            yield rows[start:number]
            start, size = number, len(content) + len(failure)
    yield rows[start:]


async def _add_some(
    db: Session, rows: Sequence[NewRow], last: int, now: int | None
) -> tuple[list[bool], int]:
    firsts: dict[str, tuple[int, NewRow]] = {}
    for place, row in enumerate(rows):
        firsts.setdefault(row[0][ID], (place, row))
    columns = dict(zip(OWN, zip(*(row[0] for _, row in firsts.values()), strict=True), strict=True))
    places = [place for place, _ in firsts.values()]
    found = await db.fetch(_ADD_LETTERS, now, last + 1, places, *(columns[name] for name in _OF_LETTERS))
    stamp, at = found[0]["stamp"], found[0]["at"]
    new = [(row["number"], row["created_at"], firsts[row["id"]]) for row in found if row["id"] is not None]
    if new:
        own = dict(zip(OWN, zip(*(row[0] for _, _, (_, row) in new), strict=True), strict=True))
        await db.execute(
            _ADD_REST,
            at,
            [number for number, _, _ in new],
            [created_at for _, created_at, _ in new],
            *(own[name] for name in _OF_STATES),
            [content for _, _, (_, (_, content, _)) in new],
            [failure for _, _, (_, (_, _, failure)) in new],
        )
        await write_tags(db, [(number, row[0][TAGS]) for number, _, (_, row) in new if row[0][TAGS]])
    added = {place for _, _, (place, _) in new}
    return [place in added for place in range(len(rows))], stamp + len(rows) - 1


async def write_tags(db: Session, tagged: Sequence[tuple[int, str | None]]) -> None:
    """Letters, by their numbers, can be found by the tags in these columns."""
    pairs = [(tag, number) for number, column in tagged for tag in read_tags(column)]
    if pairs:
        await db.execute(
            "INSERT INTO tags (tag, letter) SELECT * FROM unnest($1::text[], $2::bigint[])",
            *map(list, zip(*pairs, strict=True)),
        )
