"""Resolve letters by the verdicts of consumers.

The queue of verdicts is drained like any other: settle first, accept then. A verdict counts only if it was sent by the
consumer that the redrive was meant for, on this server's broker, under a claim that still holds. Others change nothing
and are counted by reason; one that cannot be read is reported and dropped: the letter's verdict timeout decides.

Consumers send their reports on dead letters that they cannot publish to the same queue.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from redrive.clock import Clock
from redrive.collect.drain import Drain, Read, Trouble
from redrive.errors import FormatError, RedriveError
from redrive.letters import ConsumerRef, DeadLetter
from redrive.letters.report import PublishReport, decode_report
from redrive.letters.verdict import QUEUE, Verdict, from_body
from redrive.stores.base import Store
from redrive.stores.changes import Resolve, Settlement
from redrive.stores.many import load_those_there
from redrive.transports.base import Delivery, Source, Transport


class VerdictCounts(msgspec.Struct):
    """What became of the verdicts since it began."""

    resolved: int = 0
    replays: int = 0  # of these, that a replay had sent
    late: int = 0  # the claim was over
    unreadable: int = 0
    other_consumer: int = 0  # sent by a consumer that the redrive was not meant for
    other_broker: int = 0  # of a letter that belongs to another broker


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
        broker: str | None = None,
        queue: str = QUEUE,
        batch: int = 500,
        resolved: Callable[[Verdict], None] = lambda _verdict: None,
        reported: Callable[[PublishReport], None] = lambda _report: None,
        kept: Callable[[RedriveError | None], None] = lambda _error: None,
    ) -> None:
        self._transport = transport
        self._store = store
        self._clock = clock
        self._trouble = trouble
        self._broker = broker or transport.kind
        self._queue = queue
        self._batch = batch
        self._resolved = resolved
        self._reported = reported
        self._kept = kept
        self.counts = VerdictCounts()

    async def run(self, stop: asyncio.Event) -> None:
        """Listen until `stop` is set."""
        receiver = await self._transport.receiver(Source(name=self._queue, window=2 * self._batch))
        drain = Drain(receiver, self._read, self._carry_out, self._trouble, self._clock, self._kept)
        await drain.run(stop)

    async def keep(self, batch: Sequence[Delivery]) -> None:
        """Carry out these verdicts."""
        await self._carry_out(list(map(Read, batch, self._read(batch))))

    def _read(self, batch: Sequence[Delivery]) -> list[Sequence[Verdict]]:
        return list(map(self._read_one, batch))

    def _read_one(self, delivery: Delivery) -> Sequence[Verdict]:
        try:
            return from_body(delivery.body)
        except FormatError as error:
            if self._is_report(delivery):
                return ()
            self.counts.unreadable += 1
            self._trouble("verdict unreadable, dropped", error)
            return ()

    def _is_report(self, delivery: Delivery) -> bool:
        try:
            self._reported(decode_report(delivery.body))
        except FormatError:
            return False
        return True

    async def _carry_out(self, batch: Sequence[Read[Sequence[Verdict]]]) -> None:
        received = [verdict for one in batch for verdict in one.value]
        old = [verdict.id for verdict in received if verdict.to is None]
        letters = {letter.id: letter for letter in await load_those_there(self._store, old)} if old else {}
        verdicts = [verdict for verdict in received if self._counts(verdict, letters.get(verdict.id))]
        if not verdicts:
            return
        settlements = [Settlement(verdict.claim_token, _processed_by(verdict.source)) for verdict in verdicts]
        for verdict, done in zip(verdicts, await self._store.settle(settlements), strict=True):
            if done:
                self.counts.resolved += 1
                self.counts.replays += verdict.operation is not None
                self._resolved(verdict)
            else:
                self.counts.late += 1

    def _counts(self, verdict: Verdict, letter: DeadLetter | None) -> bool:
        """Whether the consumer that sent this verdict is the one that the redrive was meant for."""
        if verdict.to is not None:
            to = ConsumerRef.parse(verdict.to)
        elif letter is None:
            self.counts.late += 1
            return False
        elif self._transport.capabilities.broadcast:
            # Version 1 names no consumer group, and any group of the topic may have sent it.
            to = None
        else:
            to = ConsumerRef(letter.broker, letter.source)
        if to is None or (to.source, to.group) != (verdict.source, verdict.group):
            self.counts.other_consumer += 1
            return False
        if to.broker != self._broker:
            self.counts.other_broker += 1
            return False
        return True


@lru_cache(256)
def _processed_by(source: str) -> Resolve:
    """One for all letters of a source, so that a store sees that they are alike."""
    return Resolve(detail=f"processed by a consumer of {source or 'its source'}")
