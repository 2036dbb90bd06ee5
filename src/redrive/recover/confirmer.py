"""Decide what becomes of redrives for which neither verdict nor death came.

After the verdict timeout a redrive is *unconfirmed*: the letter stays open, is shown, counted and alerted on. Nothing
is stored as a success without evidence. A verdict or a death that comes later still counts. Consumers that send no
verdicts leave only indirect evidence: everything that was sent to them before some moment has been taken from the
source. If that was seen, and nothing died for another verdict timeout, the letter is *presumed* resolved. If the
consumer group is gone, no consumer will ever process the redrive: the letter is pending again.

Evidence is kept in memory. A restart forgets it and waits again, which errs on the safe side.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeAlias

import msgspec

from redrive.clock import Clock, pause
from redrive.errors import RedriveError
from redrive.letters import ClaimToken, LetterHead
from redrive.rules import format_duration
from redrive.stores.base import Store
from redrive.stores.changes import Resolve, Retry, Settlement
from redrive.transports.base import Transport

_BATCH_SIZE: Final = 1000
_MAX_INTERVAL: Final = timedelta(seconds=15)
_MAX_RECHECK: Final = timedelta(minutes=15)
Consumer: TypeAlias = tuple[str, str]  # source and group


class ConfirmerCounts(msgspec.Struct):
    """What became of redrives without a verdict since it began."""

    unconfirmed: int = 0  # letters that became unconfirmed
    presumed: int = 0
    returned: int = 0  # pending again: their consumer group is gone


class _Evidence(msgspec.Struct):
    """What is known of one unconfirmed redrive, by the monotonic clock."""

    since: timedelta  # when it was first found unconfirmed
    checked_at: timedelta
    taken_at: timedelta | None = None  # when it was seen that everything sent before `since` had been taken


class Confirmer:
    """Looks after unconfirmed redrives of one broker."""

    name = "confirmer"

    def __init__(
        self,
        store: Store,
        transport: Transport,
        *,
        clock: Clock,
        verdict_timeout: timedelta,
        retry_in: timedelta,
        broker: str | None = None,
        every: timedelta = _MAX_INTERVAL,
        find: Callable[[LetterHead], Awaitable[Consumer | None]] | None = None,
        trouble: Callable[[str, Exception], None] = lambda _what, _error: None,
    ) -> None:
        """`retry_in` is when a letter is due again whose consumer group is gone.

        `find` gives the consumer that a letter was sent to, or None where that is not one consumer or not known; by
        default it is the one that failed.
        """
        self._store = store
        self._transport = transport
        self._clock = clock
        self._timeout = verdict_timeout
        self._retry_in = retry_in
        self._broker = broker or transport.kind
        self._trouble = trouble
        self._recheck = min(verdict_timeout / 4, _MAX_RECHECK)
        self._interval = min(every, self._recheck)
        self._evidence: dict[ClaimToken, _Evidence] = {}
        self._find = find or consumer_of
        self.counts = ConfirmerCounts()

    async def run(self, stop: asyncio.Event) -> None:
        """Check again and again until `stop` is set."""
        while not stop.is_set():
            while await self.turn() == _BATCH_SIZE:
                pass
            await pause(self._clock, self._interval, stop)

    async def turn(self) -> int:
        """Check the redrives that are overdue; how many there were."""
        heads = await self._store.overdue(broker=self._broker, lease=self._recheck, limit=_BATCH_SIZE)
        now = self._clock.monotonic()
        consumers: dict[str, Consumer | None] = {}
        for head in heads:
            if head.claim_token not in self._evidence:
                self._evidence[head.claim_token] = _Evidence(now, now)
                self.counts.unconfirmed += 1
            self._evidence[head.claim_token].checked_at = now
            consumers[head.id] = await self._find(head)
        known = sorted({consumer for consumer in consumers.values() if consumer is not None})
        gone = await self._unreachable(known) if known else {}
        taken = {consumer: await self._taken_until(consumer) for consumer in known if consumer not in gone}
        settlements: list[Settlement] = []
        for head in heads:
            consumer = consumers[head.id]
            if consumer is None:
                continue
            if consumer in gone:
                settlements.append(Settlement(head.claim_token, self._pending_again(gone[consumer])))
            elif self._is_quiet(self._evidence[head.claim_token], taken[consumer]):
                settlements.append(Settlement(head.claim_token, self._presumed(consumer)))
        await self._settle(settlements)
        self._forget()
        return len(heads)

    async def _unreachable(self, consumers: Sequence[Consumer]) -> Mapping[Consumer, str]:
        try:
            return await self._transport.unreachable(consumers)
        except RedriveError as error:
            self._trouble("consumer group lookup failed", error)
            return {}

    async def _taken_until(self, consumer: Consumer) -> timedelta | None:
        try:
            return await self._transport.taken_until(*consumer)
        except RedriveError as error:
            self._trouble(f"consumer progress lookup failed source={consumer[0]}", error)
            return None

    def _is_quiet(self, evidence: _Evidence, taken_until: timedelta | None) -> bool:
        """Whether the redrive was taken, and nothing died for the verdict timeout after that was seen.

        It must still be taken then: a consumer that crashes gives its deliveries back.
        """
        if taken_until is None or taken_until < evidence.since:
            return False
        now = self._clock.monotonic()
        if evidence.taken_at is None:
            evidence.taken_at = now
        return now - evidence.taken_at >= self._timeout

    def _presumed(self, consumer: Consumer) -> Resolve:
        timeout = format_duration(self._timeout)
        return Resolve(
            presumed=True,
            detail=(f"consumed from {consumer[0]}; no verdict and no dead letter within {timeout}"),
        )

    def _pending_again(self, reason: str) -> Retry:
        return Retry(at=self._clock.now() + self._retry_in, result="unconfirmed", detail=reason)

    async def _settle(self, settlements: Sequence[Settlement]) -> None:
        if not settlements:
            return
        for settlement, done in zip(settlements, await self._store.settle(settlements), strict=True):
            self._evidence.pop(settlement.claim_token, None)
            if done and isinstance(settlement.outcome, Resolve):
                self.counts.presumed += 1
            elif done:
                self.counts.returned += 1

    def _forget(self) -> None:
        """Drop the evidence of redrives that others have settled: they are not overdue any more."""
        oldest = self._clock.monotonic() - 2 * self._timeout - _MAX_RECHECK
        self._evidence = {
            hold: evidence for hold, evidence in self._evidence.items() if evidence.checked_at > oldest
        }


async def consumer_of(head: LetterHead) -> Consumer | None:
    """The consumer that a worker sends a letter to: the one that failed."""
    return head.source, head.consumer_group or ""
