"""Which statements add letters to the SQLite file?

The columns of its table `letters` are the fields of `LetterHead` by the same names, plus `ready`; `stores.rows` tells
what stands in them.

Python's `sqlite3` binds exact `str`, `int` and `bytearray` at once. For any other value, `None` and `bytes` among them,
it first asks whether somebody adapts it, which takes longer than all the rest. So what goes into every row is bound
as one of these.
"""

from functools import cache
from typing import Final

from redrive.stores.rows import HEAD, OPTIONAL, OWN


def _quoted(name: str) -> str:
    return f'"{name}"'


COLUMNS: Final = ", ".join(map(_quoted, HEAD))
ABSENT: Final = 0  # is bound for NULL: no text equals it
_COPIED: Final = 65_536  # bytes that are copied sooner than asked about


@cache
def insert_letters(count: int) -> str:
    """The statement that adds `count` heads: many in one go, because each go costs a change of threads.

    It binds the time (for `ready`), then the stamp and the own columns of each letter. What SQLite computes stands
    outside the rows, because it would be compiled for each of them. The other columns of a new letter are the same for
    all and come from the table's defaults (S4).
    """
    bound = {name: f"column{place}" for place, name in enumerate(("created_at", *OWN), start=1)}
    written = {name: f"nullif({it}, {ABSENT})" if name in OPTIONAL else it for name, it in bound.items()}
    written |= {"updated_at": bound["created_at"], "ready": f"{bound['next_retry_at']} <= ?"}
    row = f"({', '.join('?' * len(bound))})"
    return (
        f"INSERT INTO letters ({', '.join(map(_quoted, written))}) SELECT {', '.join(written.values())}"
        f" FROM (VALUES {', '.join([row] * count)}) WHERE true ON CONFLICT (id) DO NOTHING"
    )


@cache
def insert_bodies(count: int) -> str:
    """The statement that adds `count` bodies."""
    return f"INSERT INTO bodies (letter, content, failure) VALUES {', '.join(['(?, ?, ?)'] * count)}"


def quickly_bound(data: bytes) -> bytes | bytearray:
    """The bytes as they are bound with the least work."""
    return bytearray(data) if len(data) <= _COPIED else data
