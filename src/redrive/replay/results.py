"""Track what becomes of the letters that a replay has sent.

A letter that was sent waits for its verdict. It is resolved, or dead-lettered again, or nothing is reported. The states
in the store show which; nothing else is queried.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from redrive.letters import LetterHead, LetterState
from redrive.stores.base import Store
from redrive.stores.query import Condition, Op, Query

_PAGE_SIZE: Final = 1000


async def heads_of(store: Store, ids: Sequence[str]) -> list[LetterHead]:
    """These letters as they are now; those that do not exist are left out."""
    heads: list[LetterHead] = []
    for start in range(0, len(ids), _PAGE_SIZE):
        query = Query((Condition("id", Op.IS, tuple(ids[start : start + _PAGE_SIZE])),))
        heads += (await store.page(query, limit=_PAGE_SIZE)).heads
    return heads


class SentLetters:
    """The letters that were sent in this run, and their results."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fences: dict[str, int] = {}  # letters without a result, with the fence they were sent under
        self.resolved = 0
        self.died = 0

    def add(self, letters: Iterable[LetterHead]) -> None:
        """These were sent."""
        self._fences.update((letter.id, letter.fence) for letter in letters)

    def unreported(self, ids: Iterable[str] | None = None) -> int:
        """How many letters, of all or of these, have no result yet."""
        return len(self._fences) if ids is None else sum(each in self._fences for each in ids)

    @property
    def reported(self) -> int:
        """How many letters have a result."""
        return self.resolved + self.died

    async def check(self) -> None:
        """Read the results of those that have waited longest since they were last looked at, a page at most."""
        ids = list(self._fences)[:_PAGE_SIZE]
        for head in await heads_of(self._store, ids):
            fence = self._fences.pop(head.id)
            if head.state is LetterState.RESOLVED:
                self.resolved += 1
            elif head.state is LetterState.PROCESSING and head.fence == fence:
                self._fences[head.id] = fence  # behind the others
            else:
                self.died += 1
