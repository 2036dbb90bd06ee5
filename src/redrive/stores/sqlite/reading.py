"""What does each reading verb read?

Functions of (connection, …) that run on a reading connection, in a thread of their own: the write-ahead log lets them
see one moment while others write. They change nothing.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

from redrive.errors import FormatError
from redrive.letters import DeadLetter, Note, RedriveAttempt
from redrive.letters.letter import storable
from redrive.stores.base import LINE_OVERHEAD, JournalLine, LogSize, OldLine, Page, unknown_letter
from redrive.stores.cold import check_sum
from redrive.stores.query import Position, Query, write_cursor
from redrive.stores.rows import attempt_of, head_of, letter_of, line_of, moment
from redrive.stores.sqlite.rows import COLUMNS
from redrive.stores.sqlite.search import SEARCH

Connection: TypeAlias = sqlite3.Connection
_BEFORE_ALL: Final = -(2**63)  # a stamp that no letter has
_AT_ONCE: Final = 500  # letters looked at in one go


@contextmanager
def one_moment(db: Connection) -> Iterator[None]:
    """Several statements that see the same state of the file."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("COMMIT")


def load(db: Connection, ids: Sequence[str]) -> list[DeadLetter]:
    """Whole letters in the order asked (S28), all as of one moment."""
    asked = [storable(letter_id) for letter_id in ids]
    wanted = list(dict.fromkeys(asked))
    letters: dict[str, DeadLetter] = {}
    with one_moment(db):
        for start in range(0, len(wanted), _AT_ONCE):
            letters |= _load_some(db, wanted[start : start + _AT_ONCE])
    for letter_id, stored in zip(ids, asked, strict=True):
        if stored not in letters:
            raise unknown_letter(letter_id)
    return [letters[letter_id] for letter_id in asked]


def _load_some(db: Connection, ids: Sequence[str]) -> dict[str, DeadLetter]:
    """Those of these letters that are there. Few statements for all of them: each costs a change of threads."""
    rows = db.execute(
        f"SELECT {COLUMNS}, content, failure, letter FROM letters JOIN bodies ON letter = created_at"
        f" WHERE id IN ({_marks(ids)})",
        ids,
    ).fetchall()
    keys = [row[-1] for row in rows]
    attempts: dict[int, list[RedriveAttempt]] = {}
    for line in db.execute(
        f"SELECT * FROM attempts WHERE letter IN ({_marks(keys)}) ORDER BY letter, number", keys
    ):
        attempts.setdefault(line[0], []).append(attempt_of(line))
    notes: dict[int, list[Note]] = {}
    for key, at, author, text in db.execute(
        f"SELECT letter, at, author, text FROM notes WHERE letter IN ({_marks(keys)}) ORDER BY number", keys
    ):
        notes.setdefault(key, []).append(Note(moment(at), author, text))
    letters = (
        letter_of(
            tuple(head),
            content,
            failure,
            attempts=tuple(attempts.get(key, ())),
            notes=tuple(notes.get(key, ())),
        )
        for *head, content, failure, key in rows
    )
    return {letter.id: letter for letter in letters}


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def page(db: Connection, query: Query, limit: int, position: Position | None) -> Page:
    """Heads in the query's order, and where the next ones begin (S26, S27)."""
    rows = db.execute(*SEARCH.page(query, position, limit + 1)).fetchall()
    heads = tuple(head_of(row) for row in rows[:limit])
    return Page(heads, write_cursor(query, heads[-1]) if len(rows) > limit else None)


def count(db: Connection, query: Query) -> int:
    """How many letters match (S29)."""
    return int(db.execute(*SEARCH.count(query)).fetchone()[0])


def tally(db: Connection, by: str, query: Query) -> dict[str, int]:
    """How many letters match, for each value of a field (S29)."""
    return dict(db.execute(*SEARCH.tally(by, query)).fetchall())


def journal(db: Connection, letter_id: str | None, after_line: int, limit: int) -> list[JournalLine]:
    """Lines of the journal, of one letter or of all (S25)."""
    its, values = ("", []) if letter_id is None else (" AND letter_id = ?", [letter_id])
    rows = db.execute(
        f"SELECT * FROM change_log WHERE number > ?{its} ORDER BY number LIMIT ?",
        [after_line, *values, limit],
    )
    return [line_of(row) for row in rows]


_TEXTS: Final = ("actor", "letter_id", "action", "before", "coalesce(after, '')", "detail")
_LINE_BYTES: Final = " + ".join(f"length(CAST({text} AS BLOB))" for text in _TEXTS)


def measure_change_log(db: Connection, after: int, limit: int) -> LogSize:
    """The size of the next lines (S57)."""
    last, size = db.execute(
        f"SELECT max(number), coalesce(sum(size), 0) FROM (SELECT number, {LINE_OVERHEAD} + {_LINE_BYTES} AS size"
        " FROM change_log WHERE number > ? ORDER BY number LIMIT ?)",
        (after, limit),
    ).fetchone()
    return LogSize(after if last is None else last, size)


def old_lines(db: Connection, after: int, limit: int) -> list[OldLine]:
    """The next lines, with the states of their letters (S58)."""
    rows = db.execute(
        "SELECT line.number, line.at, state FROM (SELECT number, at, letter_id FROM change_log WHERE number > ?"
        " ORDER BY number LIMIT ?) AS line LEFT JOIN letters ON id = letter_id ORDER BY line.number",
        (after, limit),
    )
    return [OldLine(*row) for row in rows]


def damaged_letter(db: Connection) -> str | None:
    """What is wrong with the first letter whose cold part is not as it was written; None: all are."""
    start, seen = None, _BEFORE_ALL
    while start != seen:  # by portions: one long look would keep the log from being cleared
        start = seen
        for key, letter_id, content, failure in db.execute(
            "SELECT created_at, id, content, failure FROM letters LEFT JOIN bodies ON letter = created_at"
            " WHERE created_at > ? ORDER BY created_at LIMIT ?",
            (start, _AT_ONCE),
        ):
            seen = key
            if content is None:
                return f"letter {letter_id}: its message is missing"
            try:
                check_sum(content)
                check_sum(failure)
            except FormatError as error:
                return f"letter {letter_id}: {error}"
    return None
