"""Which part of a list, in which order and with which fields, is asked for?

`page`, `page_size`, `name` and `use_regex` choose rows, `sort` and `sort_reverse` order them, `columns` chooses
fields, a dot leading into objects. A row is made only if it is shown or has to be sorted by what is in it.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from redrive.broker.management.answers import Answer, Json, RefusalError, bad_request
from redrive.broker.management.ask import Ask
from redrive.broker.patterns import PatternError

_PAGE_SIZE: Final = 100
_LARGEST_PAGE: Final = 500
_AT_ONCE: Final = 250  # rows, some milliseconds, before the broker goes on
_INVALID: Final = "Pagination parameters are invalid"


class Row(NamedTuple):
    """A thing of a list: what it is sorted by, what `name` looks at, and how it is made."""

    order: tuple[Any, ...]
    name: str
    make: Callable[[], Json]


class LazyRows:
    """A list that is yet to be made: in portions, so that the broker gets its turns in between."""

    def __init__(self, ask: Ask, rows: Iterable[Row]) -> None:
        self._ask = ask
        self._rows = rows

    async def make(self) -> object:
        """The list, or the page of it, that is asked for."""
        ask = self._ask
        found = sorted(self._rows, key=lambda row: row.order)
        if by := ask.query.get("sort"):
            made = list(zip(found, await _in_portions([row.make for row in found]), strict=True))
            made.sort(key=lambda pair: _sortable(_inside(pair[1], by)))
            found = [row._replace(make=partial(_same, shown)) for row, shown in made]
        if ask.flag("sort_reverse"):
            found.reverse()
        if "page" in ask.query:
            return await _page(ask, found)
        return await _in_portions([partial(_made, ask, row) for row in found])


async def _in_portions(makes: Iterable[Callable[[], Json]]) -> list[Json]:
    made = []
    for number, make in enumerate(makes, 1):
        made.append(make())
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return made


def listed(ask: Ask, rows: Iterable[Row]) -> Answer:
    """The list that is asked for."""
    return Answer(body=LazyRows(ask, rows))


def one(ask: Ask, shown: Json) -> Answer:
    """One thing, with the fields that are asked for."""
    return Answer(body=chosen(ask, shown))


def chosen(ask: Ask, shown: Json) -> Json:
    """The fields that `columns` names, or all."""
    columns = ask.query.get("columns")
    if columns is None:
        return shown
    picked: Json = {}
    for column in filter(None, columns.split(",")):
        source, target, parts = shown, picked, column.split(".")
        for part in parts[:-1]:
            inner = source.get(part)
            if not isinstance(inner, dict):
                break
            source, target = inner, target.setdefault(part, {})
        else:
            if parts[-1] in source:
                target[parts[-1]] = source[parts[-1]]
    return picked


async def _page(ask: Ask, rows: list[Row]) -> Json:
    page, size = _number(ask, "page", 1), _number(ask, "page_size", _PAGE_SIZE)
    if page < 1 or not 1 <= size <= _LARGEST_PAGE:
        text = f"Invalid pagination parameters: page number {page}, page size {size}"
        raise RefusalError(400, "invalid_pagination_parameters", text)
    matching = await _named(ask, rows)
    pages = -(-len(matching) // size)
    if page > max(pages, 1):
        text = f"Page out of range, page: {page} page size: {size}, len: {len(matching)}"
        raise RefusalError(400, "page_out_of_range", text)
    items = [chosen(ask, row.make()) for row in matching[(page - 1) * size : page * size]]
    return {
        "filtered_count": len(matching),
        "item_count": len(items),
        "items": items,
        "page": page,
        "page_count": pages,
        "page_size": size,
        "total_count": len(rows),
    }


async def _named(ask: Ask, rows: list[Row]) -> list[Row]:
    wanted = ask.query.get("name", "")
    if not wanted:
        return rows
    if not ask.flag("use_regex"):
        return [row for row in rows if wanted.lower() in row.name.lower()]
    try:
        matches = await ask.desk.names.filter(wanted, [row.name for row in rows])
    except PatternError:
        raise bad_request(_INVALID) from None
    return [row for row, is_match in zip(rows, matches, strict=True) if is_match]


def _number(ask: Ask, key: str, default: int) -> int:
    try:
        return int(ask.query.get(key, default))
    except ValueError:
        raise bad_request(_INVALID) from None


def _made(ask: Ask, row: Row) -> Json:
    return chosen(ask, row.make())


def _same(shown: Json) -> Json:
    return shown


def _inside(shown: Json, path: str) -> Any:
    value: Any = shown
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _sortable(value: Any) -> tuple[int, Any]:
    """Numbers before texts before anything else, so that any two can be compared."""
    if isinstance(value, int | float):
        return 0, value
    return (1, value) if isinstance(value, str) else (2, "")
