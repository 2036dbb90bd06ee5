"""What do statements of several verbs have in common?

Pieces of SQL, and no more: what they are put together for is each verb's own.
"""

from collections.abc import Iterable
from typing import Final

# The first value of every statement that writes is the time; without one, the database's clock is asked.
CLOCK: Final = "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
MOMENT: Final = f"WITH moment AS MATERIALIZED (SELECT {CLOCK} AS at)"
NOW: Final = "(SELECT at FROM moment)"
CHANGE_LOG: Final = "INSERT INTO change_log (at, actor, letter_id, action, before, after, detail)"


def names(columns: Iterable[str]) -> str:
    """A list of columns."""
    return ", ".join(f'"{name}"' for name in columns)


def unnest(arrays: Iterable[str], first: int) -> str:
    """Rows that are bound as one array for each column: these types, from the value with number `first` on."""
    return f"unnest({', '.join(f'${number}::{array}' for number, array in enumerate(arrays, first))})"
