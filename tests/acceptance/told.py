"""A callback for dead letters that tests can wait for."""

import asyncio
from collections.abc import Callable

from redrive.letters.event import DeadLettered


class Told:
    """A callback that remembers, and lets wait."""

    def __init__(self) -> None:
        self.events: list[DeadLettered] = []
        self._changed = asyncio.Event()

    async def __call__(self, event: DeadLettered) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, holds: Callable[[list[DeadLettered]], bool], seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            while not holds(self.events):
                self._changed.clear()
                await self._changed.wait()
