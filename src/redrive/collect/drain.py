"""How is a queue drained so that nothing is lost?

Two work hand in hand. One receives deliveries and reads them; the other takes all that have been read, hands them to
somebody who makes them durable, and only then accepts them. So the next ones are read while the store writes the last.
When the store fails, what it was to keep stays unsettled and is tried again, with growing waits; the broker keeps
everything meanwhile. What one message alone makes impossible is told apart by trying one by one.

It does not know what the messages are.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from redrive.clock import Clock, pause
from redrive.errors import LetterInvalidError, RedriveError, TransportClosedError
from redrive.transports.base import Delivery, Receiver, Release

T = TypeVar("T")
Trouble: TypeAlias = Callable[[str, Exception], None]
_FIRST_WAIT: Final = timedelta(milliseconds=200)
_LONGEST_WAIT: Final = timedelta(seconds=30)
_LATER: Final = timedelta(minutes=15)


class Read(NamedTuple, Generic[T]):
    """A delivery, and what it says."""

    delivery: Delivery
    value: T


class Drain(Generic[T]):
    """Drains one source."""

    def __init__(
        self,
        receiver: Receiver,
        read: Callable[[Sequence[Delivery]], Iterable[T]],
        keep: Callable[[Sequence[Read[T]]], Awaitable[None]],
        trouble: Trouble,
        clock: Clock,
        kept: Callable[[RedriveError | None], None] = lambda _error: None,
    ) -> None:
        """`read` never fails; `keep` makes a batch durable or raises; `trouble` hears what went wrong.

        `kept` is called with the error of each failed `keep`, and with None when that is over.
        """
        self._receiver = receiver
        self._read = read
        self._keep = keep
        self._trouble = trouble
        self._clock = clock
        self._kept = kept
        self._is_failing = False  # the last `keep` has failed
        self._waiting: list[Read[T]] = []  # no more than the receiver's window
        self._something = asyncio.Event()
        self._ended = False

    async def run(self, stop: asyncio.Event) -> None:
        """Drain until `stop` is set; what is in hand then is kept, if the store takes it at once."""
        others = [asyncio.create_task(self._stop(stop)), asyncio.create_task(self._receive())]
        try:
            await self._keep_all(stop)
            await others[1]  # what went wrong there is told here
        finally:
            self._recovered()
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._receiver.close()

    async def _stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        await self._receiver.stop()

    async def _receive(self) -> None:
        try:
            while True:
                batch = await self._receiver.receive()
                self._waiting += map(Read, batch, self._read(batch))
                self._something.set()
        except TransportClosedError:
            return
        finally:
            self._ended = True
            self._something.set()

    async def _keep_all(self, stop: asyncio.Event) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            while batch := self._waiting:
                self._waiting = []
                await self._settle(batch, stop)
            if self._ended:
                return

    async def _settle(self, batch: Sequence[Read[T]], stop: asyncio.Event) -> None:
        wait = _FIRST_WAIT
        while True:
            batch = [one for one in batch if one.delivery.alive]
            if not batch:
                self._recovered()  # nothing is left to be kept; the next batch shows whether that works
                return
            try:
                await self._keep(batch)
            except LetterInvalidError as error:
                await self._one_by_one(batch, error)
                return
            except RedriveError as error:
                self._is_failing = True
                self._kept(error)
                seconds = wait.total_seconds()
                self._trouble(
                    f"store write failed, messages stay in the queue messages={len(batch)} "
                    f"retry_in={seconds:g}s",
                    error,
                )
                if stop.is_set():
                    return
                await pause(self._clock, wait, stop)
                wait = min(wait * 2, _LONGEST_WAIT)
            else:
                self._receiver.accept([one.delivery for one in batch])
                self._recovered()
                return

    def _recovered(self) -> None:
        if self._is_failing:
            self._is_failing = False
            self._kept(None)

    async def _one_by_one(self, batch: Sequence[Read[T]], error: RedriveError) -> None:
        """One of them cannot be kept at all: the others are, and that one is put aside for a while."""
        if len(batch) > 1:
            for one in batch:
                try:
                    await self._keep([one])
                except LetterInvalidError as its_own:
                    await self._one_by_one([one], its_own)
                else:
                    self._receiver.accept([one.delivery])
            return
        seconds = _LATER.total_seconds()
        self._trouble(f"message not stored, it stays in the queue retry_in={seconds:g}s", error)
        await self._receiver.release([Release(batch[0].delivery, _LATER)])
