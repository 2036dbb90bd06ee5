"""How is settled what cannot be settled without waiting for the broker?

Deliveries that are given back or dead-lettered are gathered and handed to the transport in batches. What the
transport could not make durable stays unsettled and is tried again, with growing waits; `troubled` says so meanwhile,
and the runner slows down. A delivery whose connection is gone is dropped: it will come again.
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
_MOST_FLYING: Final = 4  # batches whose durability is awaited at the same time


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
        flying: set[asyncio.Task[None]] = set()
        try:
            while True:
                # Something is to be settled, or a batch has ended.
                await self._wake.wait()
                self._wake.clear()
                for task in [task for task in flying if task.done()]:
                    flying.remove(task)
                    task.result()
                if self.troubled and self._waiting and not flying:
                    await self._clock.sleep(self._wait)
                    self._wait = min(self._wait * 2, _LONGEST_WAIT)
                # In trouble one batch at a time finds out whether it is over.
                if self._waiting and len(flying) < (1 if self.troubled else _MOST_FLYING):
                    turn = asyncio.create_task(self._turn())
                    turn.add_done_callback(self._has_turned)
                    flying.add(turn)
                elif not self._waiting and not flying:
                    self._idle.set()
        finally:
            for task in flying:
                task.cancel()
            await asyncio.gather(*flying, return_exceptions=True)

    def _has_turned(self, _turn: "asyncio.Task[None]") -> None:
        self._wake.set()

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
        if failed:
            self._wake.set()
        else:
            self._wait = _FIRST_WAIT
