"""How does the SQLite file keep memos?

Functions of (connection, …) for S46 to S48, like those of `work` and `reading`. The version is compared by the
statement that writes.
"""

import sqlite3

from redrive.stores.memos import NOTHING, Memo


def remember(db: sqlite3.Connection, name: str, body: bytes, version: int) -> bool:
    """Write a memo if it has this version (S46, S47)."""
    if version == 0:
        done = db.execute("INSERT INTO documents VALUES (?, 1, ?) ON CONFLICT DO NOTHING", (name, body))
    else:
        done = db.execute(
            "UPDATE documents SET version = version + 1, body = ? WHERE name = ? AND version = ?",
            (body, name, version),
        )
    return done.rowcount == 1


def recall(db: sqlite3.Connection, name: str) -> Memo:
    """A memo as it was last written (S48)."""
    row = db.execute("SELECT version, body FROM documents WHERE name = ?", (name,)).fetchone()
    return NOTHING if row is None else Memo(*row)
