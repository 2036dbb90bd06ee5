"""How does a query become SQL?

`Query.matches` is the meaning; this is its translation, and the conformance suite holds the two together. Names
come from our own table of fields, values are always bound.
"""

from datetime import datetime
from typing import Any, Final

from redrive.stores.query import FIELDS, TEXT_ATTRIBUTES, Condition, FieldKind, Op, Position, Query, Value
from redrive.stores.sqlite.rows import COLUMNS, ticks

_GLOB: Final = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})


def where(query: Query, position: Position | None = None) -> tuple[str, list[Any]]:
    """The WHERE clause, or nothing, and the values it binds."""
    clauses: list[str] = []
    values: list[Any] = []
    for condition in query.conditions:
        clause, bound = _condition(condition)
        clauses.append(clause)
        values += bound
    for needle in query.text:
        clauses.append("(" + " OR ".join(f'instr(lower("{name}"), ?) > 0' for name in TEXT_ATTRIBUTES) + ")")
        values += [needle] * len(TEXT_ATTRIBUTES)
    if position is not None:
        clause, bound = _beyond(query, position)
        clauses.append(clause)
        values += bound
    return (" WHERE " + " AND ".join(clauses) if clauses else ""), values


def page_sql(query: Query, position: Position | None, limit: int) -> tuple[str, list[Any]]:
    """The statement that reads one page, in the query's order."""
    clause, values = where(query, position)
    column = FIELDS[query.sort.field].attribute
    way = "DESC" if query.sort.descending else "ASC"
    order = f'"{column}" {way}' if column == "created_at" else f'"{column}" {way}, id {way}'
    return f"SELECT {COLUMNS} FROM letters{clause} ORDER BY {order} LIMIT ?", [*values, limit]


def tally_sql(field: str, query: Query) -> tuple[str, list[Any]]:
    """The statement that counts letters by the value of a field."""
    clause, values = where(query)
    if FIELDS[field].kind is FieldKind.TAGS:
        return (
            f"SELECT tag, count(*) FROM tags JOIN letters ON created_at = letter{clause} GROUP BY tag",
            values,
        )
    column = f'"{FIELDS[field].attribute}"'
    clause += f"{' AND ' if clause else ' WHERE '}{column} IS NOT NULL"
    return f"SELECT {column}, count(*) FROM letters{clause} GROUP BY {column}", values


def _beyond(query: Query, position: Position) -> tuple[str, list[Any]]:
    column = FIELDS[query.sort.field].attribute
    sign = "<" if query.sort.descending else ">"
    if column == "created_at":  # the key by itself: no two letters share it
        return f"created_at {sign} ?", [_bind(position.value)]
    return f'("{column}", id) {sign} (?, ?)', [_bind(position.value), position.id]


def _condition(condition: Condition) -> tuple[str, list[Any]]:
    values: list[Any]
    field = FIELDS[condition.field]
    column = "tag" if field.kind is FieldKind.TAGS else f'"{field.attribute}"'
    if condition.op is Op.PREFIX:
        clause = " OR ".join([f"{column} GLOB ?"] * len(condition.values))
        values = [str(value).translate(_GLOB) + "*" for value in condition.values]
    elif condition.op is Op.IS:
        clause = f"{column} IN ({', '.join('?' * len(condition.values))})"
        values = [_bind(value) for value in condition.values]
    else:
        clause, values = f"{column} {condition.op.value} ?", [_bind(condition.values[0])]
    if field.kind is FieldKind.TAGS:
        clause = f"EXISTS (SELECT 1 FROM tags WHERE letter = created_at AND ({clause}))"
    return (f"({clause}) IS NOT TRUE" if condition.negated else f"({clause})"), values


def _bind(value: Value) -> str | int:
    return ticks(value) if isinstance(value, datetime) else value
