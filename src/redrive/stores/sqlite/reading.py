"""What does each reading verb read?

Functions of (connection, …) that run on a reading connection, in a thread of their own: the write-ahead log lets them
see one moment while others write. They change nothing.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final, TypeAlias

from redrive.errors import FormatError
from redrive.letters import DeadLetter, Note, State
from redrive.letters.letter import storable
from redrive.stores.base import JournalLine
from redrive.stores.cold import check_sum
from redrive.stores.sqlite.rows import COLUMNS, attempt_of, letter_of, moment
from redrive.stores.sqlite.work import unknown

Connection: TypeAlias = sqlite3.Connection
_BEFORE_ALL: Final = -(2**63)  # a stamp that no letter has
_AT_ONCE: Final = 500  # letters looked at in one go


def load(db: Connection, ids: Sequence[str]) -> list[DeadLetter]:
    """Whole letters in the order asked (S28), all as of one moment."""
    db.execute("BEGIN")
    try:
        letters = {letter_id: _load_one(db, letter_id) for letter_id in dict.fromkeys(ids)}
    finally:
        db.execute("COMMIT")
    return [letters[letter_id] for letter_id in ids]


def _load_one(db: Connection, letter_id: str) -> DeadLetter:
    row = db.execute(
        f"SELECT {COLUMNS}, content, failure, letter FROM letters JOIN bodies ON letter = created_at WHERE id = ?",
        (storable(letter_id),),
    ).fetchone()
    if row is None:
        raise unknown(letter_id)
    *head, content, failure, key = row
    attempts = db.execute("SELECT * FROM attempts WHERE letter = ? ORDER BY number", (key,)).fetchall()
    notes = db.execute(
        "SELECT at, author, text FROM notes WHERE letter = ? ORDER BY number", (key,)
    ).fetchall()
    return letter_of(
        tuple(head),
        content,
        failure,
        attempts=tuple(attempt_of(line) for line in attempts),
        notes=tuple(Note(moment(at), author, text) for at, author, text in notes),
    )


def journal(db: Connection, letter_id: str | None, after_line: int, limit: int) -> list[JournalLine]:
    """Lines of the journal, of one letter or of all (S25)."""
    its, values = ("", []) if letter_id is None else (" AND letter_id = ?", [letter_id])
    rows = db.execute(
        f"SELECT * FROM journal WHERE number > ?{its} ORDER BY number LIMIT ?", [after_line, *values, limit]
    )
    return [
        JournalLine(
            number=number,
            at=moment(at),
            actor=actor,
            letter_id=its_letter,
            action=action,
            before=State(before),
            after=State(now) if now else None,
            detail=detail,
        )
        for number, at, actor, its_letter, action, before, now, detail in rows
    ]


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
