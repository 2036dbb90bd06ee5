"""How does one read or change more letters than a page holds, while others are at work on them too?

Page after page; in portions whose bodies fit into memory; and where a store refuses all of them because of one that was
taken or deleted meanwhile, the others all the same. It knows the store's contract only, not which store it is.
"""

from collections.abc import AsyncIterator, Iterator, Sequence

from redrive.errors import LetterNotFoundError, LifecycleError
from redrive.letters import DeadLetter, LetterHead
from redrive.stores.base import Store
from redrive.stores.changes import Change
from redrive.stores.query import Query


async def pages(store: Store, query: Query, *, size: int = 1000) -> AsyncIterator[Sequence[LetterHead]]:
    """All heads that match, as many at a time as a page holds."""
    cursor: str | None = None
    while True:
        page = await store.page(query, limit=size, cursor=cursor)
        yield page.heads
        if (cursor := page.cursor) is None:
            return


def portions(heads: Sequence[LetterHead], most: int) -> Iterator[list[str]]:
    """Their ids in pieces whose bodies have so many bytes together, or which are one letter."""
    ids: list[str] = []
    size = 0
    for head in heads:
        if ids and size + head.size > most:
            yield ids
            ids, size = [], 0
        ids.append(head.id)
        size += head.size
    if ids:
        yield ids


async def load_those_there(store: Store, ids: Sequence[str]) -> list[DeadLetter]:
    """The letters, in this order; those that are gone are left out."""
    if not ids:
        return []
    try:
        return await store.load(ids)
    except LetterNotFoundError:
        first, second = _halves(ids)
        return await load_those_there(store, first) + await load_those_there(store, second)


async def change_those_that_can(store: Store, change: Change, ids: Sequence[str], *, by: str) -> int:
    """Change all of them, or, where somebody was quicker with some, the others; how many that were."""
    if not ids:
        return 0
    try:
        await store.apply(change, ids, by=by)
    except (LifecycleError, LetterNotFoundError):
        first, second = _halves(ids)
        return await change_those_that_can(store, change, first, by=by) + await change_those_that_can(
            store, change, second, by=by
        )
    return len(ids)


def _halves(ids: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Where to look for the one that a store refuses; one alone is it."""
    if len(ids) == 1:
        return (), ()
    half = len(ids) // 2
    return ids[:half], ids[half:]
