"""What does each reading verb read?

Functions of (connection, …) that run on a reading connection. They change nothing and lock nothing: a server with
versions of rows lets them see one moment while others write.
"""

from collections.abc import Sequence
from typing import Any, Final

from redrive.errors import FormatError
from redrive.letters import DeadLetter, Note, RedriveAttempt
from redrive.letters.letter import storable
from redrive.stores.base import LINE_OVERHEAD, JournalLine, LogSize, OldLine, Page, unknown_letter
from redrive.stores.cold import check_sum
from redrive.stores.postgres.search import COLUMNS, SEARCH
from redrive.stores.query import Position, Query, write_cursor
from redrive.stores.rows import HEAD, attempt_of, head_of, letter_of, line_of, moment
from redrive.stores.search import Statement

_AT_ONCE: Final = 500  # letters looked at in one go
_LARGEST_NUMBER: Final = 2**63 - 1
_WHOLE: Final = (
    f"SELECT {COLUMNS}, content, failure, number FROM letters JOIN states USING (number)"
    " JOIN bodies ON letter = number WHERE id = ANY($1::text[])"
)


async def load(db: Any, ids: Sequence[str]) -> list[DeadLetter]:
    """Whole letters in the order asked (S28)."""
    wanted = list(dict.fromkeys(letter_id for letter_id in ids if letter_id == storable(letter_id)))
    letters: dict[str, DeadLetter] = {}
    for start in range(0, len(wanted), _AT_ONCE):
        letters |= await _load_some(db, wanted[start : start + _AT_ONCE])
    for letter_id in ids:
        if letter_id not in letters:
            raise unknown_letter(letter_id)
    return [letters[letter_id] for letter_id in ids]


async def _load_some(db: Any, ids: Sequence[str]) -> dict[str, DeadLetter]:
    """Those of these letters that are there."""
    rows = [tuple(row) for row in await db.fetch(_WHOLE, ids)]
    keys = [row[-1] for row in rows]
    attempts: dict[int, list[RedriveAttempt]] = {}
    for line in await db.fetch(
        "SELECT * FROM attempts WHERE letter = ANY($1::bigint[]) ORDER BY letter, number", keys
    ):
        attempts.setdefault(line[0], []).append(attempt_of(tuple(line)))
    notes: dict[int, list[Note]] = {}
    for key, at, author, text in await db.fetch(
        "SELECT letter, at, author, text FROM notes WHERE letter = ANY($1::bigint[]) ORDER BY number", keys
    ):
        notes.setdefault(key, []).append(Note(moment(at), author, text))
    letters = (
        letter_of(
            row[: len(HEAD)],
            content,
            failure,
            attempts=tuple(attempts.get(key, ())),
            notes=tuple(notes.get(key, ())),
        )
        for row in rows
        for content, failure, key in [row[len(HEAD) :]]
    )
    return {letter.id: letter for letter in letters}


async def page(db: Any, query: Query, limit: int, position: Position | None) -> Page:
    """Heads in the query's order, and where the next ones begin (S26, S27)."""
    rows = await _select(db, SEARCH.page(query, position, limit + 1))
    heads = tuple(head_of(tuple(row)) for row in rows[:limit])
    return Page(heads, write_cursor(query, heads[-1]) if len(rows) > limit else None)


async def count(db: Any, query: Query) -> int:
    """How many letters match (S29)."""
    return int((await _select(db, SEARCH.count(query)))[0][0])


async def tally(db: Any, by: str, query: Query) -> dict[str, int]:
    """How many letters match, for each value of a field (S29)."""
    return dict(await _select(db, SEARCH.tally(by, query)))


async def _select(db: Any, statement: Statement) -> list[Any]:
    text, values = statement
    rows: list[Any] = await db.fetch(text, *values)
    return rows


async def journal(db: Any, letter_id: str | None, after_line: int, limit: int) -> list[JournalLine]:
    """Lines of the journal, of one letter or of all (S25)."""
    its, values = ("", []) if letter_id is None else (" AND letter_id = $3", [storable(letter_id)])
    rows = await db.fetch(
        f"SELECT * FROM change_log WHERE number > $1::bigint{its} ORDER BY number LIMIT $2",
        max(-1, min(after_line, _LARGEST_NUMBER)),
        limit,
        *values,
    )
    return [line_of(row) for row in rows]


_TEXTS: Final = ("actor", "letter_id", "action", "before", "coalesce(after, '')", "detail")
_LINE_BYTES: Final = " + ".join(f"octet_length({text})" for text in _TEXTS)


async def measure_change_log(db: Any, after: int, limit: int) -> LogSize:
    """The size of the next lines (S57)."""
    [row] = await db.fetch(
        f"SELECT max(number) AS last, coalesce(sum(size), 0)::bigint AS size FROM (SELECT number, {LINE_OVERHEAD}"
        f" + {_LINE_BYTES} AS size FROM change_log WHERE number > $1::bigint ORDER BY number LIMIT $2) AS line",
        after,
        limit,
    )
    return LogSize(after if row["last"] is None else row["last"], row["size"])


async def old_lines(db: Any, after: int, limit: int) -> list[OldLine]:
    """The next lines, with the states of their letters (S58)."""
    rows = await db.fetch(
        "SELECT line.number, line.at, state FROM (SELECT number, at, letter_id FROM change_log"
        " WHERE number > $1::bigint ORDER BY number LIMIT $2) AS line LEFT JOIN letters ON id = letter_id"
        " LEFT JOIN states ON states.number = letters.number ORDER BY line.number",
        after,
        limit,
    )
    return [OldLine(*row) for row in rows]


async def damaged_letter(db: Any) -> str | None:
    """What is wrong with the first letter that is not as it was written; None: all are."""
    seen = -1
    while (
        rows
        := await db.fetch(  # by portions: one long look would keep the server from clearing old rows away
            "SELECT letters.number, id, states.number, content, failure FROM letters"
            " LEFT JOIN states ON states.number = letters.number LEFT JOIN bodies ON letter = letters.number"
            f" WHERE letters.number > $1 ORDER BY letters.number LIMIT {_AT_ONCE}",
            seen,
        )
    ):
        for number, letter_id, stands, content, failure in rows:
            seen = number
            if stands is None or content is None:
                return f"letter {letter_id}: its {'state' if stands is None else 'message'} is missing"
            try:
                check_sum(content)
                check_sum(failure)
            except FormatError as error:
                return f"letter {letter_id}: {error}"
    return None
