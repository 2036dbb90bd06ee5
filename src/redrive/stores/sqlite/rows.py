"""Which statements add letters to the SQLite file?

The columns of its table `letters` are the fields of `LetterHead` by the same names, plus `ready`; `stores.rows` tells
what stands in them.
"""

from functools import cache
from typing import Final

from redrive.stores.rows import HEAD, OWN

COLUMNS: Final = ", ".join(f'"{name}"' for name in HEAD)
# What an add writes: first what is known only when the row is written, then what the letter says. The rest of
# a new letter is the same for all of them and comes from the table's defaults (S4).
ADDED: Final = ("created_at", "updated_at", "ready", *OWN)


@cache
def insert_letters(count: int) -> str:
    """The statement that adds `count` heads: many in one go, because each go costs a change of threads."""
    row = f"({', '.join('?' * len(ADDED))})"
    names = ", ".join(f'"{name}"' for name in ADDED)
    return f"INSERT INTO letters ({names}) VALUES {', '.join([row] * count)} ON CONFLICT (id) DO NOTHING"


@cache
def insert_bodies(count: int) -> str:
    """The statement that adds `count` bodies."""
    return f"INSERT INTO bodies (letter, content, failure) VALUES {', '.join(['(?, ?, ?)'] * count)}"
