"""How does SQLite say what is searched for?"""

from collections.abc import Iterable
from typing import Any, Final

from redrive.stores.query import Op, Query
from redrive.stores.search import Search, Statement

_AFTER: Final = (Op.MORE, Op.AT_LEAST)
_GLOB: Final = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})


class SqliteSearch(Search):
    """One table, in which age is the key."""

    key = "created_at"

    def tables(self, names: Iterable[str]) -> str:  # noqa: ARG002  whatever it is, it stands there
        """Everything stands in one table."""
        return "letters"

    def order(self, attribute: str, query: Query) -> list[str]:  # noqa: ARG002
        """The key by itself, because no two letters share it; any other column with the id."""
        return [self.column(attribute)] if attribute == "created_at" else [self.column(attribute), "id"]

    def group(self, column: str, query: Query) -> str:
        """The column, in an expression if the query asks for young letters.

        SQLite would read the whole index of the column to have the groups in order. An expression has no index, so
        it reads the letters of that age alone.
        """
        young = any(each.field == "created" and each.op in _AFTER for each in query.conditions)
        return f"+{column}" if young else column

    def beyond(self, order: list[str], sign: str, value: Any, letter_id: str) -> Statement:
        """Behind a position."""
        if len(order) == 1:
            return f"{order[0]} {sign} ?", [value]
        return f"({', '.join(order)}) {sign} (?, ?)", [value, letter_id]

    def contains(self, column: str) -> str:
        """SQLite's `lower` knows ASCII only."""
        return f"instr(lower({column}), ?) > 0"

    def begins(self, column: str, prefixes: list[str]) -> Statement:
        """GLOB, which an index helps, and which tells case apart."""
        return " OR ".join([f"{column} GLOB ?"] * len(prefixes)), [
            prefix.translate(_GLOB) + "*" for prefix in prefixes
        ]


SEARCH: Final = SqliteSearch()
