"""How does a query become SQL?

`Query.matches` is the meaning; this is its translation, and the conformance suite holds the two together. Names
come from our own table of fields, values are always bound.

`Search` says what all databases say alike. What one of them says in its own way is a method that it overrides; clauses
hold a `?` for each value that is bound.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeAlias

from redrive.letters.letter import storable
from redrive.stores.query import FIELDS, TEXT_ATTRIBUTES, Condition, FieldKind, Op, Position, Query, Value
from redrive.stores.rows import HEAD, ticks

Statement: TypeAlias = tuple[str, list[Any]]


class Search(ABC):
    """Makes the statements that read letters by a query."""

    key: str  # the column that other tables know a letter by

    # --- statements --------------------------------------------------------------------------------------

    def page(self, query: Query, position: Position | None, limit: int) -> Statement:
        """The statement that reads one page, in the query's order."""
        clause, values = self.where(query, position)
        attribute = FIELDS[query.sort.field].attribute
        way = "DESC" if query.sort.descending else "ASC"
        order = ", ".join(f"{column} {way}" for column in self.order(attribute, query))
        columns = ", ".join(self.column(name) for name in HEAD)
        return self.finished(
            f"SELECT {columns} FROM {self.tables(HEAD)}{clause} ORDER BY {order} LIMIT ?", [*values, limit]
        )

    def count(self, query: Query) -> Statement:
        """The statement that counts letters."""
        clause, values = self.where(query)
        return self.finished(f"SELECT count(*) FROM {self.tables(attributes(query))}{clause}", values)

    def tally(self, field: str, query: Query) -> Statement:
        """The statement that counts letters by the value of a field."""
        clause, values = self.where(query)
        attribute = FIELDS[field].attribute
        tables = self.tables({*attributes(query), attribute})
        if FIELDS[field].kind is FieldKind.TAGS:
            statement = (
                f"SELECT tag, count(*) FROM tags JOIN {tables} ON letter = {self.key}{clause} GROUP BY tag"
            )
            return self.finished(statement, values)
        column = self.column(attribute)
        clause += f"{' AND ' if clause else ' WHERE '}{column} IS NOT NULL"
        group = self.group(column, query)
        return self.finished(f"SELECT {column}, count(*) FROM {tables}{clause} GROUP BY {group}", values)

    def where(self, query: Query, position: Position | None = None) -> Statement:
        """The WHERE clause, or nothing, and the values it binds. The statement around it is still to be finished."""
        clauses: list[str] = []
        values: list[Any] = []
        for condition in query.conditions:
            clause, bound = self._condition(condition)
            clauses.append(clause)
            values += bound
        for needle in query.text:
            found = " OR ".join(self.contains(self.column(name)) for name in TEXT_ATTRIBUTES)
            clauses.append(f"({found})")
            values += [storable(needle)] * len(TEXT_ATTRIBUTES)
        if position is not None:
            attribute = FIELDS[query.sort.field].attribute
            sign = "<" if query.sort.descending else ">"
            clause, bound = self.beyond(
                self.order(attribute, query), sign, _bind(position.value), storable(position.id)
            )
            clauses.append(clause)
            values += bound
        return (" WHERE " + " AND ".join(clauses) if clauses else ""), values

    def _condition(self, condition: Condition) -> Statement:
        field = FIELDS[condition.field]
        column = "tag" if field.kind is FieldKind.TAGS else self.column(field.attribute)
        values = [_bind(value) for value in condition.values]
        if condition.op is Op.PREFIX:
            clause, values = self.begins(column, [str(value) for value in values])
        elif field.kind is FieldKind.FLAG:
            clause, values = self.is_flag(column, [int(value) for value in values]), []
        elif condition.op is Op.IS:
            clause, values = self.is_one_of(column, values)
        else:
            clause = f"{column} {condition.op.value} {self.mark(values[0])}"
        if field.kind is FieldKind.TAGS:
            clause = f"EXISTS (SELECT 1 FROM tags WHERE letter = {self.key} AND ({clause}))"
        return (f"({clause}) IS NOT TRUE" if condition.negated else f"({clause})"), values

    # --- what databases say differently ------------------------------------------------------------------

    @abstractmethod
    def tables(self, names: Iterable[str]) -> str:
        """What is read FROM for these attributes of a head."""

    @abstractmethod
    def order(self, attribute: str, query: Query) -> list[str]:
        """The columns that tell which of two letters comes first, by this attribute."""

    @abstractmethod
    def beyond(self, order: list[str], sign: str, value: Any, letter_id: str) -> Statement:
        """The letters behind a position in this order."""

    @abstractmethod
    def contains(self, column: str) -> str:
        """Whether a column holds a text; ASCII letters in lower case."""

    @abstractmethod
    def begins(self, column: str, prefixes: list[str]) -> Statement:
        """Whether a column begins with one of these."""

    def group(self, column: str, query: Query) -> str:  # noqa: ARG002
        """What letters are grouped by to count them by this column."""
        return column

    def column(self, attribute: str) -> str:
        """Where an attribute of a head stands."""
        return f'"{attribute}"'

    def is_one_of(self, column: str, values: list[Any]) -> Statement:
        """Whether a column is one of these."""
        return f"{column} IN ({', '.join(map(self.mark, values))})", values

    def is_flag(self, column: str, values: list[int]) -> str:
        """Whether a column of yes (1) and no (0) is one of these; written out, so that a partial index is used."""
        return " OR ".join(f"{column} = {value}" for value in values)

    def mark(self, value: Any) -> str:  # noqa: ARG002  a database may have to be told the type
        """What stands in a clause for a value that is bound."""
        return "?"

    def finished(self, statement: str, values: list[Any]) -> Statement:
        """The whole statement, as the database wants it."""
        return statement, values


def attributes(query: Query) -> set[str]:
    """The attributes of a head that a query looks at, other than its tags."""
    named = {FIELDS[condition.field].attribute for condition in query.conditions} - {"tags"}
    return named | set(TEXT_ATTRIBUTES if query.text else ())


def _bind(value: Value) -> str | int:
    if isinstance(value, str):
        return storable(value)
    return ticks(value) if isinstance(value, datetime) else value
