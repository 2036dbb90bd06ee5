"""How does PostgreSQL say what is searched for?

A head stands in two tables (0025): `letters` says what died and why, `states` where it stands. A statement reads only
those that it needs. Age stands in both (`created_at`, `age`), so that either can give its letters in order from one
index.
"""

from collections.abc import Iterable
from typing import Any, Final

from redrive.stores.query import Query
from redrive.stores.rows import HEAD
from redrive.stores.search import Search, Statement, attributes

# What a head has in the table `states`; all else stands in `letters`.
STATES: Final = frozenset(
    {
        "state", "priority", "strategy", "dlq_retry_count", "next_retry_at", "updated_at", "fence", "locked_by",
        "locked_at", "lease_until", "sent_at", "presumed", "broker", "unconfirmed", "waits_for",
    }
)  # fmt: skip
_BOTH: Final = "letters JOIN states USING (number)"
# Text whose index holds its beginning only, because an entry of an index cannot be long.
_INDEXED: Final = frozenset({"source", "error_type", "group", "tag"})
_INDEXED_LENGTH: Final = 100


class PostgresSearch(Search):
    """Two tables, joined where a query needs both."""

    key = "number"

    def tables(self, names: Iterable[str]) -> str:
        """The tables in which these attributes stand."""
        hot = {name in STATES for name in names}
        return _BOTH if len(hot) == 2 else "states" if True in hot else "letters"

    def order(self, attribute: str, query: Query) -> list[str]:
        """Letters of one state lie in order of age in `states`; all others in `letters`."""
        if attribute == "created_at" and "state" in attributes(query):
            return ["age", "id"]
        return [self.column(attribute), "id"]

    def beyond(self, order: list[str], sign: str, value: Any, letter_id: str) -> Statement:
        """The first half is what an index can find; the columns may stand in two tables."""
        column, key = order
        return (
            f"{column} {sign}= ?::bigint AND ({column} {sign} ?::bigint OR {key} {sign} ?)",
            [value, value, letter_id],
        )

    def contains(self, column: str) -> str:
        """By the collation of the column, `lower` knows ASCII only."""
        return f"strpos(lower({column}), ?) > 0"

    def begins(self, column: str, prefixes: list[str]) -> Statement:
        """An index in byte order helps."""
        return " OR ".join([f"starts_with({column}, ?)"] * len(prefixes)), list(prefixes)

    def is_one_of(self, column: str, values: list[Any]) -> Statement:
        """The values, and where an index holds beginnings only, these as well."""
        clause, bound = super().is_one_of(column, values)
        if column.strip('"') not in _INDEXED:
            return clause, bound
        also, beginnings = super().is_one_of(
            f"left({column}, {_INDEXED_LENGTH})", [str(value)[:_INDEXED_LENGTH] for value in values]
        )
        return f"{clause} AND {also}", [*bound, *beginnings]

    def is_flag(self, column: str, values: list[int]) -> str:
        """The columns are boolean."""
        return " OR ".join(column if value else f"NOT {column}" for value in values)

    def mark(self, value: Any) -> str:
        """A number may be larger than the column that it is compared with."""
        return "?::bigint" if isinstance(value, int) else "?"

    def finished(self, statement: str, values: list[Any]) -> Statement:
        """With numbered marks."""
        first, *rest = statement.split("?")
        return first + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1)), values


SEARCH: Final = PostgresSearch()
COLUMNS: Final = ", ".join(SEARCH.column(name) for name in HEAD)
