"""How does PostgreSQL keep memos?

Functions of (session, …) and of (connection, …) for S46 to S48, like those of `work` and `reading`. The version is
compared by the statement that writes: whoever comes second waits for the commit of the first, and then finds another
version, or a row where none was.
"""

from typing import Any

from redrive.stores.memos import NOTHING, Memo
from redrive.stores.postgres.link import Session


async def remember(db: Session, name: str, body: bytes, version: int) -> bool:
    """Write a memo if it has this version (S46, S47)."""
    if version == 0:
        done = await db.fetch(
            "INSERT INTO documents VALUES ($1, 1, $2) ON CONFLICT (name) DO NOTHING RETURNING version",
            name,
            body,
        )
    else:
        done = await db.fetch(
            "UPDATE documents SET version = version + 1, body = $2 WHERE name = $1 AND version = $3 RETURNING version",
            name,
            body,
            version,
        )
    db.unchanged = not done
    return bool(done)


async def recall(db: Any, name: str) -> Memo:
    """A memo as it was last written (S48)."""
    row = await db.fetchrow("SELECT version, body FROM documents WHERE name = $1", name)
    return NOTHING if row is None else Memo(*row)
