"""Store the incidents so that several servers and commands can change them.

The incidents, and the alerts that were not delivered yet, are one document in the store (S46 to S48). Servers write it
after a measurement, and commands when a person acknowledges an incident. A write names the version that was read; if
another process was faster, the document is read and changed again.

A server must send alerts while the store is unavailable, most of all those about the store. It then changes a copy of
the document in memory, which begins as the document was last seen, and merges the copy into the stored document once
the store is back. Alerts of that time are sent at least once: a crash forgets the copy; other servers do not see it.

A change is applied to the stored state or not at all.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from redrive.errors import StoreDamagedError, StoreError
from redrive.stores.base import Store
from redrive.watch.alerts.alarm import Book
from redrive.watch.alerts.alert import Alert

T = TypeVar("T")
K = TypeVar("K")
NAME: Final = "alarm"
_MAX_CONFLICTS: Final = 20
_MAX_OVER: Final = 200  # incidents that are over


class Unsent(msgspec.Struct, frozen=True):
    """An alert, and the notifiers that have not delivered it yet."""

    alert: Alert
    to: tuple[str, ...]
    until: datetime  # when another server may take it over


class Document(msgspec.Struct):
    """The stored state of the alerts."""

    book: Book = msgspec.field(default_factory=Book)
    unsent: list[Unsent] = []


def _refuse(error: Exception) -> None:
    raise StoreDamagedError(
        "the stored alert state cannot be read, perhaps because a newer version of redrive wrote it; use that version,"
        " or start redrive serve of this version, which replaces it by an empty one"
    ) from error


class Written:
    """The document of a store."""

    def __init__(
        self,
        store: Store,
        unreadable: Callable[[Exception], None] = _refuse,
        *,
        is_available: Callable[[], bool] | None = None,
    ) -> None:
        """`unreadable` is called if the document cannot be read; if it does not raise, an empty one is used.

        With `is_available`, changes are made in memory while the store is not available. Without, they fail then.
        """
        self._store = store
        self._unreadable = unreadable
        self._is_available = is_available
        self._seen = msgspec.msgpack.encode(Document())  # as it was last read or written
        self._memory: Document | None = None  # changed while the store was not available

    async def book(self) -> Book:
        """The current incidents."""
        if self._has_store():
            try:
                return self._merged((await self._read())[1]).book
            except StoreError:
                if self._is_available is None:
                    raise
        return self._in_memory().book

    async def change(self, change: Callable[[Document], T]) -> T:
        """Change the document and return the result of `change`, which is called again after a conflict."""
        if self._has_store():
            try:
                return await self._change_stored(change)
            except StoreError:
                if self._is_available is None:
                    raise
        self._memory = self._in_memory()
        return change(self._memory)

    async def _change_stored(self, change: Callable[[Document], T]) -> T:
        for _ in range(_MAX_CONFLICTS):
            version, document = await self._read()
            before = msgspec.msgpack.encode(document)
            document = self._merged(document)
            answer = change(document)
            after = msgspec.msgpack.encode(document)
            if after == before or await self._store.remember(NAME, after, version=version):
                self._seen, self._memory = after, None
                return answer
        raise StoreError("the alert state was changed by other processes too often; try again")

    async def _read(self) -> tuple[int, Document]:
        memo = await self._store.recall(NAME)
        if memo.body is None:
            return memo.version, Document()
        try:
            return memo.version, msgspec.msgpack.decode(memo.body, type=Document)
        except msgspec.MsgspecError as error:
            self._unreadable(error)
            return memo.version, Document()

    # --- while the store is not available --------------------------------------------------------------------------

    def _has_store(self) -> bool:
        return self._is_available is None or self._is_available()

    def _in_memory(self) -> Document:
        return self._last_seen() if self._memory is None else self._memory

    def _last_seen(self) -> Document:
        return msgspec.msgpack.decode(self._seen, type=Document)

    def _merged(self, stored: Document) -> Document:
        """The stored document with the changes that were made in memory; what others have changed meanwhile stays."""
        memory = self._memory
        if memory is None:
            return stored
        base = self._last_seen()
        current = _merge(base.book.current, stored.book.current, memory.book.current)
        ended = [incident for incident in memory.book.over if incident not in base.book.over]
        over = [*stored.book.over, *(each for each in ended if each not in stored.book.over)][-_MAX_OVER:]
        unsent = _merge(*(_by_alert(each.unsent) for each in (base, stored, memory)))
        return Document(Book(current=current, over=over), list(unsent.values()))


def _by_alert(unsent: list[Unsent]) -> dict[tuple[str, datetime], Unsent]:
    return {(one.alert.incident, one.alert.time): one for one in unsent}


def _merge(base: Mapping[K, T], theirs: Mapping[K, T], ours: Mapping[K, T]) -> dict[K, T]:
    """Of each entry that only we have changed, our state; of every other one, theirs."""
    merged: dict[K, T] = {}
    for key in {**theirs, **ours}:
        chosen = ours if theirs.get(key) == base.get(key) else theirs
        if key in chosen:
            merged[key] = chosen[key]
    return merged
