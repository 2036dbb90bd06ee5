"""End expired leases of letters whose worker is gone.

A crash counts as a redrive, and a letter that keeps killing its workers ends in `dlq_failed`. Letters that were sent
and wait for their verdict are the business of `confirmer`.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from redrive.clock import Clock, pause
from redrive.stores.base import Rescued, Store


class Rescuer:
    """Ends leases that ran out."""

    name = "rescuer"

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        every: timedelta = timedelta(seconds=15),
        retry_in: timedelta = timedelta(minutes=1),
        max_redrives: int = 5,
        rescued: Callable[[Sequence[Rescued]], None] = lambda _rescued: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._every = every
        self._retry_in = retry_in
        self._max_redrives = max_redrives
        self._rescued = rescued

    async def run(self, stop: asyncio.Event) -> None:
        """Look again and again until `stop` is set."""
        while not stop.is_set():
            while found := await self.turn():
                if len(found) < 1000:
                    break
            await pause(self._clock, self._every, stop)

    async def turn(self) -> list[Rescued]:
        """Look once."""
        found = await self._store.rescue(retry_in=self._retry_in, max_redrives=self._max_redrives)
        if found:
            self._rescued(found)
        return found
