"""How is settled what cannot be settled without waiting for the broker?

Deliveries that are given back or dead-lettered are gathered and handed to the transport in batches. What the
transport could not make durable stays unsettled and is tried again, with growing waits; `troubled` says so meanwhile,
and the runner slows down (A6). A delivery whose connection is gone is dropped: it will come again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, Generic, Protocol, TypeVar

from redrive.clock import Clock
from redrive.errors import RedriveError
from redrive.transports.base import Delivery, Outcomes


class _Settles(Protocol):
    @property
    def delivery(self) -> Delivery: ...


T = TypeVar("T", bound=_Settles)
_FIRST_WAIT: Final = timedelta(milliseconds=200)
_LONGEST_WAIT: Final = timedelta(seconds=15)


class Settling(Generic[T]):
    """One way of settling, for one source."""

    def __init__(
        self,
        settle: Callable[[Sequence[T]], Awaitable[Outcomes]],
        told: Callable[[T, RedriveError | None], bool],
        dropped: Callable[[int], None],
        clock: Clock,
    ) -> None:
        """`told` hears of each outcome and says whether a failed one is to be tried again."""
        self._settle = settle
        self._told = told
        self._dropped = dropped
        self._clock = clock
        self._waiting: list[T] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._wait = _FIRST_WAIT
        self.troubled = False  # the last try has failed

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def pace(self) -> timedelta:
        """How long the runner had better wait before it takes the next delivery."""
        return self._wait if self.troubled else timedelta(0)

    def add(self, item: T) -> None:
        """To be settled with the next batch."""
        self._waiting.append(item)
        self._idle.clear()
        self._wake.set()

    async def empty(self) -> None:
        """Wait until everything is settled."""
        await self._idle.wait()

    async def run(self) -> None:
        """Settle until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._turn()
            if self._waiting and self.troubled:
                await self._clock.sleep(self._wait)
                self._wait = min(self._wait * 2, _LONGEST_WAIT)
                self._wake.set()
            elif not self._waiting:
                self._idle.set()

    async def _turn(self) -> None:
        batch = [item for item in self._waiting if item.delivery.alive]
        if gone := len(self._waiting) - len(batch):
            self._dropped(gone)
        self._waiting = []
        if not batch:
            self.troubled = False
            return
        try:
            outcomes = await self._settle(batch)
        except RedriveError as error:
            outcomes = [error] * len(batch)
        except BaseException:
            self._waiting[:0] = batch
            raise
        failed = [
            item
            for item, error in zip(batch, outcomes, strict=True)
            if self._told(item, error) and error is not None
        ]
        self._waiting[:0] = failed
        self.troubled = bool(failed)
        if not failed:
            self._wait = _FIRST_WAIT
