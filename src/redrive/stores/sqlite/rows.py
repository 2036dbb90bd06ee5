"""Which statements add letters to the SQLite file?

The columns of its table `letters` are the fields of `LetterHead` by the same names, plus `ready`; `stores.rows` tells
what stands in them.
"""

from functools import cache
from typing import Final

from redrive.stores.rows import DUE, HEAD, OWN

COLUMNS: Final = ", ".join(f'"{name}"' for name in HEAD)


@cache
def insert_letters(count: int) -> str:
    """The statement that adds `count` heads: many in one go, because each go costs a change of threads.

    It binds the time, the first of `count` stamps in a row, then what each letter says of itself. The rest of a new
    letter is the same for all of them and comes from the table's defaults (S4).
    """
    names = ", ".join(f'"{name}"' for name in ("created_at", "updated_at", *OWN, "ready"))
    own = ", ".join("?" * len(OWN))
    rows = ", ".join(f"(?2 + {n}, ?2 + {n}, {own}, ?{3 + n * len(OWN) + DUE} <= ?1)" for n in range(count))
    return f"INSERT INTO letters ({names}) VALUES {rows} ON CONFLICT (id) DO NOTHING"


@cache
def insert_bodies(count: int) -> str:
    """The statement that adds `count` bodies."""
    return f"INSERT INTO bodies (letter, content, failure) VALUES {', '.join(['(?, ?, ?)'] * count)}"
