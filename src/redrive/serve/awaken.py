"""Make letters due whose source works again.

These are the pending letters of that source with the conditional strategy: they were held back, or wait for the next
check, because of a failure that has just ended. Then the workers are woken. Letters that were claimed in the meantime
are left alone.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from redrive.clock import Clock, until_first
from redrive.letters import LetterState
from redrive.recover.retention import NEVER_DUE
from redrive.rules import Strategy
from redrive.stores.base import Store
from redrive.stores.changes import Schedule
from redrive.stores.many import change_those_that_can, pages
from redrive.stores.query import Condition, Op, Query, Sort

ACTOR: Final = "recovered"
_BATCH: Final = 500


class Awakening:
    """Makes the letters of a source due when its circuit breaker closes; a service."""

    name = "breaker-recovery"

    def __init__(self, store: Store, clock: Clock, wake: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake
        self._recovered: dict[str, None] = {}  # sources, in the order in which they recovered
        self._told = asyncio.Event()
        self.awakened = 0

    def recovered(self, source: str) -> None:
        """This source works again."""
        self._recovered[source] = None
        self._told.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        while not stop.is_set():
            await until_first(self._told.wait(), stop.wait())
            await self.turn()

    async def turn(self) -> None:
        """Process all sources that have recovered. A source that fails is tried again in the next turn."""
        self._told.clear()
        for source in tuple(self._recovered):
            await self._awaken(source)
            self._recovered.pop(source, None)

    async def _awaken(self, source: str) -> None:
        now = self._clock.now()
        query = Query(
            (
                Condition("state", Op.IS, (str(LetterState.PENDING),)),
                Condition("source", Op.IS, (source,)),
                Condition("strategy", Op.IS, (str(Strategy.CONDITIONAL),)),
                Condition("due", Op.MORE, (now,)),
                Condition("due", Op.LESS, (NEVER_DUE,)),  # is just being restored, to wait for a person
            ),
            sort=Sort("created", descending=False),
        )
        async for heads in pages(self._store, query, size=_BATCH):
            ids = [head.id for head in heads]
            self.awakened += await change_those_that_can(
                self._store, Schedule(self._clock.now()), ids, by=ACTOR
            )
        self._wake()
