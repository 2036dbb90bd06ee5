"""How is a letter resolved by the word of the consumer that processed it (E5)?

The queue of verdicts is drained like any other: settle first, accept then. A verdict whose claim is over, or that comes
twice, changes nothing and is counted; one that cannot be read is told and dropped: the letter's quiet time decides.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from redrive.clock import Clock
from redrive.collect.drain import Drain, Read, Trouble
from redrive.errors import FormatError
from redrive.letters.verdict import QUEUE, Verdict, from_body
from redrive.stores.base import Store
from redrive.stores.changes import Resolve, Settlement
from redrive.transports.base import Delivery, Source, Transport


class VerdictCounts(msgspec.Struct):
    """What was heard since it began."""

    resolved: int = 0
    late: int = 0
    unreadable: int = 0


class VerdictCollector:
    """Resolves letters by verdicts."""

    name = "verdicts"

    def __init__(
        self,
        transport: Transport,
        store: Store,
        *,
        clock: Clock,
        trouble: Trouble,
        queue: str = QUEUE,
        batch: int = 500,
        resolved: Callable[[Verdict], None] = lambda _verdict: None,
    ) -> None:
        self._transport = transport
        self._store = store
        self._clock = clock
        self._trouble = trouble
        self._queue = queue
        self._batch = batch
        self._resolved = resolved
        self.counts = VerdictCounts()

    async def run(self, stop: asyncio.Event) -> None:
        """Listen until `stop` is set."""
        receiver = await self._transport.receiver(Source(name=self._queue, window=2 * self._batch))
        await Drain(receiver, self._read, self._carry_out, self._trouble, self._clock).run(stop)

    async def keep(self, batch: Sequence[Delivery]) -> None:
        """Carry out these verdicts."""
        await self._carry_out(list(map(Read, batch, self._read(batch))))

    def _read(self, batch: Sequence[Delivery]) -> list[Sequence[Verdict]]:
        return list(map(self._read_one, batch))

    def _read_one(self, delivery: Delivery) -> Sequence[Verdict]:
        try:
            return from_body(delivery.body)
        except FormatError as error:
            self.counts.unreadable += 1
            self._trouble("a verdict cannot be read; it is dropped", error)
            return ()

    async def _carry_out(self, batch: Sequence[Read[Sequence[Verdict]]]) -> None:
        verdicts = [verdict for one in batch for verdict in one.value]
        if not verdicts:
            return
        settlements = [Settlement(verdict.hold, _processed_by(verdict.source)) for verdict in verdicts]
        for verdict, done in zip(verdicts, await self._store.settle(settlements), strict=True):
            if done:
                self.counts.resolved += 1
                self._resolved(verdict)
            else:
                self.counts.late += 1


@lru_cache(256)
def _processed_by(source: str) -> Resolve:
    """One for all letters of a source, so that a store sees that they are alike."""
    return Resolve(detail=f"processed by a consumer of {source or 'its source'}")
