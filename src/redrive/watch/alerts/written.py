"""Where are the incidents written down, and how do several change them at once?

The incidents, and the alerts that somebody has not been told of yet, are one document in the store (S46 to S48).
Servers write it when they look, people when they acknowledge. Whoever changes it shows the version that was read; if
somebody else was first, it is read and changed again.

The rule: a change is made on what is there, or not at all. It does not know what a change is, nor who is told.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

import msgspec

from redrive.errors import StoreDamagedError, StoreError
from redrive.stores.base import Store
from redrive.watch.alerts.alarm import Book
from redrive.watch.alerts.alert import Alert

T = TypeVar("T")
NAME: Final = "alarm"
_TRIES: Final = 20  # to be first


class Unsent(msgspec.Struct, frozen=True):
    """An alert, and who has not been told yet."""

    alert: Alert
    to: tuple[str, ...]
    until: datetime  # when somebody else may take it over


class Document(msgspec.Struct):
    """What is written down."""

    book: Book = msgspec.field(default_factory=Book)
    unsent: list[Unsent] = []


def _refuse(error: Exception) -> None:
    raise StoreDamagedError(
        "what the alarm has written down cannot be read; was it a newer redrive? A redrive serve begins it anew"
    ) from error


class Written:
    """The document of a store."""

    def __init__(self, store: Store, unreadable: Callable[[Exception], None] = _refuse) -> None:
        """`unreadable` hears of a document that cannot be read; if it raises nothing, an empty one stands for it."""
        self._store = store
        self._unreadable = unreadable

    async def book(self) -> Book:
        """The incidents as they stand."""
        return (await self._read())[1].book

    async def change(self, change: Callable[[Document], T]) -> T:
        """Change the document, and give what `change` gives, which is called again if somebody else was first."""
        for _ in range(_TRIES):
            version, document = await self._read()
            before = msgspec.msgpack.encode(document)
            answer = change(document)
            after = msgspec.msgpack.encode(document)
            if after == before or await self._store.remember(NAME, after, version=version):
                return answer
        raise StoreError("others write to the alarm all the time; try again")

    async def _read(self) -> tuple[int, Document]:
        memo = await self._store.recall(NAME)
        if memo.body is None:
            return memo.version, Document()
        try:
            return memo.version, msgspec.msgpack.decode(memo.body, type=Document)
        except msgspec.MsgspecError as error:
            self._unreadable(error)
            return memo.version, Document()
