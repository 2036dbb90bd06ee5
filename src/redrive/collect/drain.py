"""How is a queue drained so that nothing is lost?

Batches are received, handed to somebody who makes them durable, and only then accepted. When that fails the batch
stays unsettled and is tried again, with growing waits; the broker keeps everything meanwhile. What one message alone
makes impossible is told apart by trying one by one.

It does not know what the messages are.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, TypeAlias

from redrive.clock import Clock
from redrive.errors import LetterInvalidError, RedriveError, TransportClosedError
from redrive.transports.base import Delivery, Receiver, Release

Keep: TypeAlias = Callable[[Sequence[Delivery]], Awaitable[None]]
Trouble: TypeAlias = Callable[[str, Exception], None]
_FIRST_WAIT: Final = timedelta(milliseconds=200)
_LONGEST_WAIT: Final = timedelta(seconds=30)
_LATER: Final = timedelta(minutes=15)


class Drain:
    """Drains one source."""

    def __init__(self, receiver: Receiver, keep: Keep, trouble: Trouble, clock: Clock) -> None:
        """`keep` makes a batch durable or raises; `trouble` hears what went wrong."""
        self._receiver = receiver
        self._keep = keep
        self._trouble = trouble
        self._clock = clock

    async def run(self, stop: asyncio.Event) -> None:
        """Drain until `stop` is set."""
        stopping = asyncio.create_task(self._stop(stop))
        try:
            while True:
                try:
                    batch = await self._receiver.receive()
                except TransportClosedError:
                    return
                await self._settle(batch, stop)
        finally:
            stopping.cancel()
            await self._receiver.close()

    async def _stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        await self._receiver.stop()

    async def _settle(self, batch: Sequence[Delivery], stop: asyncio.Event) -> None:
        wait = _FIRST_WAIT
        while not stop.is_set():
            batch = [delivery for delivery in batch if delivery.alive]
            if not batch:
                return
            try:
                await self._keep(batch)
            except LetterInvalidError as error:
                await self._one_by_one(batch, error)
                return
            except RedriveError as error:
                self._trouble("dead letters cannot be kept; they stay with the broker", error)
                await self._clock.sleep(wait)
                wait = min(wait * 2, _LONGEST_WAIT)
            else:
                self._receiver.accept(batch)
                return

    async def _one_by_one(self, batch: Sequence[Delivery], error: RedriveError) -> None:
        """One of them cannot be kept at all: the others are, and that one is put aside for a while."""
        if len(batch) > 1:
            for delivery in batch:
                try:
                    await self._keep([delivery])
                except LetterInvalidError as its_own:
                    await self._one_by_one([delivery], its_own)
                else:
                    self._receiver.accept([delivery])
            return
        self._trouble(f"a dead letter cannot be kept; the broker keeps it, next look in {_LATER}", error)
        await self._receiver.release([Release(batch[0], _LATER)])
