"""What happens to letters that waited for a source that works again (H10)?

They are due now. Those are the pending letters of the source with the conditional strategy: they were held back, or
wait for their next look, because of what has just ended. The workers are woken to send them.

A letter that somebody took in the meantime is left alone; which letters that are is known to the store only.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from redrive.clock import Clock
from redrive.errors import LetterNotFoundError, LifecycleError
from redrive.letters import State
from redrive.recover.retention import NEVER_DUE
from redrive.rules import Strategy
from redrive.stores.base import Store
from redrive.stores.changes import Schedule
from redrive.stores.query import Condition, Op, Query, Sort

ACTOR: Final = "recovered"
_BATCH: Final = 500


class Awakening:
    """Makes the letters of a source due, once it works again."""

    name = "awakening"

    def __init__(self, store: Store, clock: Clock, wake: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake
        self._recovered: dict[str, None] = {}  # sources, in the order they were told
        self._told = asyncio.Event()
        self.awakened = 0

    def recovered(self, source: str) -> None:
        """This source works again."""
        self._recovered[source] = None
        self._told.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Listen until `stop` is set."""
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                telling = asyncio.ensure_future(self._told.wait())
                await asyncio.wait((telling, stopping), return_when=asyncio.FIRST_COMPLETED)
                telling.cancel()
                await self.turn()
        finally:
            stopping.cancel()

    async def turn(self) -> None:
        """See to all sources that were told of. One that fails stays told."""
        self._told.clear()
        for source in tuple(self._recovered):
            await self._awaken(source)
            self._recovered.pop(source, None)

    async def _awaken(self, source: str) -> None:
        now = self._clock.now()
        query = Query(
            (
                Condition("state", Op.IS, (str(State.PENDING),)),
                Condition("source", Op.IS, (source,)),
                Condition("strategy", Op.IS, (str(Strategy.CONDITIONAL),)),
                Condition("due", Op.MORE, (now,)),
                Condition("due", Op.LESS, (NEVER_DUE,)),  # is just being restored, to wait for a person
            ),
            sort=Sort("created", descending=False),
        )
        cursor: str | None = None
        while True:
            page = await self._store.page(query, limit=_BATCH, cursor=cursor)
            await self._schedule([head.id for head in page.heads])
            cursor = page.cursor
            if cursor is None:
                break
        self._wake()

    async def _schedule(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        change = Schedule(self._clock.now())
        try:
            await self._store.apply(change, ids, by=ACTOR)
        except (LifecycleError, LetterNotFoundError):  # one was taken meanwhile: the others one by one
            if len(ids) > 1:
                for each in ids:
                    with contextlib.suppress(LifecycleError, LetterNotFoundError):
                        await self._store.apply(change, [each], by=ACTOR)
                        self.awakened += 1
        else:
            self.awakened += len(ids)
