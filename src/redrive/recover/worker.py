"""Redrive letters that are due.

    conditions → claim → strategy → redrive (durable) → marked as sent, waiting for its verdict

A worker asks `admission` which letters have to wait, claims a batch of the others, asks the rules what to do with each,
publishes those that are to go in one batch, and records what it did. The letter stays `dlq_processing` until the
verdict timeout: a verdict resolves it, a second death brings it back, and when neither comes it is unconfirmed (see
`confirmer`).

Any number of workers in any number of processes share the letters: a claim has a lease and a fence, a heartbeat
extends the lease while a batch is under way, and a worker that has lost its lease can write nothing. It does not know
stores nor brokers, only their contracts.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from redrive.clock import Clock, pause, until_first
from redrive.errors import LetterNotFoundError, RedriveError, StoreError
from redrive.letters import ClaimToken, DeadLetter, LetterHead
from redrive.recover.admission import Admission
from redrive.recover.breaker import Breakers
from redrive.recover.health import Measure
from redrive.rules import Exhausted, Health, Strategy, StrategyOptions, choose
from redrive.stores.base import LEASE, Store
from redrive.stores.changes import Fail, Outcome, Park, Settlement, Unclaim
from redrive.transports.base import Transport
from redrive.transports.redriving import SendOptions, addressee, attempts_of, is_lost, publication

_NOT_SENT: Final = timedelta(minutes=1)
_JUDGED: Final = ("resolved", "failed")  # results of an attempt that somebody has told of


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works."""

    batch: int = 10
    poll: timedelta = timedelta(seconds=30)
    lease: timedelta = LEASE
    verdict_timeout: timedelta = timedelta(hours=1)  # without verdict or death, a redrive is unconfirmed then
    sending: SendOptions = SendOptions()


class WorkerCounts(msgspec.Struct):
    """What a worker has done since it began."""

    claimed: int = 0
    sent: int = 0
    not_sent: int = 0
    parked: int = 0
    exhausted: int = 0
    waiting: int = 0  # claimed, and given back because a condition does not hold
    undeliverable: int = 0  # no consumer would have received them
    stale: int = 0  # writes that came after the lease was lost


class Worker:
    """Sends letters back."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        *,
        name: str,
        broker: str | None = None,
        strategy: StrategyOptions,
        options: WorkerOptions,
        clock: Clock,
        breakers: Breakers,
        measure: Measure = Health,
        admission: Admission | None = None,
        trouble: Callable[[str, Exception], None] = lambda _what, _error: None,
    ) -> None:
        """`admission` is shared by the workers of one process; without it, one is made of `breakers` and `measure`."""
        self._store = store
        self._transport = transport
        self._broker = broker or transport.kind
        self._strategy = strategy
        self._options = options
        self._clock = clock
        self._admission = admission or Admission(clock, strategy, breakers, measure=measure)
        self._trouble = trouble
        self._wake = asyncio.Event()
        self.name = name
        self.counts = WorkerCounts()
        self._consumers_checked_at: timedelta | None = None

    @property
    def undeliverable(self) -> dict[str, str]:
        """Sources whose redrives would reach no consumer, with the reason."""
        return {source: reason for (source, _), reason in self._admission.unreachable.items()}

    def wake(self) -> None:
        """Something became due: look now, not at the next poll."""
        self._wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set."""
        while not stop.is_set():
            if await self.turn():
                continue  # there may be more
            self._wake.clear()
            wait = self._admission.pause(self._options.poll)
            await until_first(self._wake.wait(), pause(self._clock, wait, stop))

    async def turn(self) -> int:
        """Claim once and process what was claimed; how many letters that were."""
        await self._check_consumers()
        heads = await self._claim()
        if heads:
            self.counts.claimed += len(heads)
            beating = asyncio.create_task(self._heartbeat([head.claim_token for head in heads]))
            try:
                await self._process(heads)
            finally:
                beating.cancel()
        return len(heads)

    async def _claim(self) -> list[LetterHead]:
        """Letters that are due and that nothing holds back."""
        reservation = self._admission.reserve(self._options.batch)
        heads: list[LetterHead] = []
        try:
            heads = await self._store.claim(
                self.name,
                broker=self._broker,
                limit=self._options.batch,
                lease=self._options.lease,
                gates=reservation.gates,
            )
        finally:
            self._admission.settle(reservation, heads)
        return heads

    async def _check_consumers(self) -> None:
        """See whether consumers that could not receive redrives can do so now."""
        known = sorted(self._admission.unreachable)
        now = self._clock.monotonic()
        checked_at = self._consumers_checked_at
        if not known or (checked_at is not None and now - checked_at < self._strategy.recheck_interval):
            return
        self._consumers_checked_at = now
        reasons = await self._unreachable(known)
        for consumer in known:
            if consumer in reasons:
                self._admission.unreachable[consumer] = reasons[consumer]
            else:
                self._admission.unreachable.pop(consumer, None)

    async def _unreachable(self, consumers: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        try:
            return await self._transport.unreachable(consumers)
        except RedriveError as error:
            self._trouble("consumer group lookup failed, redrives held back", error)
            return dict.fromkeys(consumers, f"cannot check whether its consumer would receive it: {error}")

    async def _process(self, heads: Sequence[LetterHead]) -> None:
        now = self._clock.now()
        letters = await self._store.load([head.id for head in heads])
        going: list[DeadLetter] = []
        settlements: list[Settlement] = []
        for head, letter in zip(heads, letters, strict=True):
            if letter.fence != head.fence:  # the lease expired meanwhile, and another worker has claimed it
                self.counts.stale += 1
                continue
            if letter.broker != self._broker:
                raise StoreError(
                    f"letter {letter.id} of broker '{letter.broker}' was claimed for '{self._broker}'"
                )
            outcome = self._reason_to_hold(letter, now)
            if outcome is None:
                going.append(letter)
            else:
                settlements.append(Settlement(head.claim_token, outcome))
        if going and self._transport.capabilities.broadcast:
            going, undeliverable = await self._without_unreachable(going, now)
            settlements += undeliverable
        if settlements:
            await self._settle(settlements)
        if going:
            await self._send(going)

    async def _without_unreachable(
        self, letters: Sequence[DeadLetter], now: datetime
    ) -> tuple[list[DeadLetter], list[Settlement]]:
        """The letters whose consumers can receive them, and the release of those whose cannot."""
        consumers = {letter.id: addressee(letter, self._options.sending)[1:] for letter in letters}
        reasons = await self._unreachable(sorted(set(consumers.values())))
        going: list[DeadLetter] = []
        held: list[Settlement] = []
        for letter in letters:
            reason = reasons.get(consumers[letter.id])
            if reason is None:
                going.append(letter)
            else:
                self.counts.undeliverable += 1
                # The letter's own place: that is what the gate of the next claim compares.
                self._admission.unreachable[letter.source, letter.consumer_group or ""] = reason
                held.append(
                    Settlement(
                        letter.claim_token, Unclaim(at=now + self._strategy.recheck_interval, detail=reason)
                    )
                )
        return going, held

    def _reason_to_hold(self, letter: DeadLetter, now: datetime) -> Outcome | None:
        """What becomes of a letter that is not sent back now; None: it is."""
        plan = choose(letter.kind, attempts_of(letter), now, None, self._strategy, failure=letter.failure)
        if isinstance(plan, Exhausted):
            self.counts.exhausted += 1
            return Fail(strategy=letter.strategy, detail=f"redriven {plan.redrives} times")
        name = str(plan.strategy)
        if is_lost(letter, self._options.sending):
            self.counts.parked += 1
            return Park(strategy=str(Strategy.MANUAL), detail="its source is unknown")
        if plan.strategy is Strategy.MANUAL:
            self.counts.parked += 1
            return Park(strategy=name, detail=f"requires a person ({plan.rule})")
        # The claim has checked the strategy that the store knows. Rules and settings may have changed since.
        gate = self._admission.holds_back(plan.strategy) if name != letter.strategy else None
        if gate is not None:
            self.counts.waiting += 1
            return Unclaim(
                at=now + self._strategy.recheck_interval, strategy=name, detail=f"waiting for {gate}"
            )
        return None

    async def _send(self, letters: Sequence[DeadLetter]) -> None:
        tokens = [letter.claim_token for letter in letters]
        options = self._options.sending
        messages = [
            publication(letter, token, options) for letter, token in zip(letters, tokens, strict=True)
        ]
        try:
            outcomes = await self._transport.publish(messages)
        except RedriveError as error:
            outcomes = [error] * len(letters)
        sources = {letter.source for letter in letters}
        accepted = {letter.source for letter, error in zip(letters, outcomes, strict=True) if error is None}
        self._admission.published({source: source in accepted for source in sources})
        await self.mark_as_sent(
            [token for token, error in zip(tokens, outcomes, strict=True) if error is None]
        )
        later = self._clock.now() + _NOT_SENT
        failed = [
            Settlement(token, Unclaim(at=later, detail=f"could not be sent: {error}"))
            for token, error in zip(tokens, outcomes, strict=True)
            if error is not None
        ]
        if failed:
            self.counts.not_sent += len(failed)
            self._trouble(
                f"redrives not sent letters={len(failed)}",
                next(error for error in outcomes if error is not None),
            )
            await self._settle(failed)

    async def mark_as_sent(self, holds: Sequence[ClaimToken]) -> None:
        """They are on their way: the letters wait for their verdicts."""
        if not holds:
            return
        kept = await self._store.extend(holds, lease=self._options.verdict_timeout, sent=True)
        lost = [hold for hold, still_ours in zip(holds, kept, strict=True) if not still_ours]
        stale = len(lost) - (await self._judged(lost) if lost else 0)
        self.counts.sent += len(holds) - stale
        self.counts.stale += stale

    async def _judged(self, holds: Sequence[ClaimToken]) -> int:
        """How many of these are lost only because verdict or death came before we could say that they were sent."""
        try:
            letters = await self._store.load([hold.id for hold in holds])
        except LetterNotFoundError:
            return 0
        return sum(
            any(one.fence == hold.fence and one.result in _JUDGED for one in letter.attempts)
            for hold, letter in zip(holds, letters, strict=True)
        )

    async def _settle(self, settlements: Sequence[Settlement]) -> None:
        done = await self._store.settle(settlements)
        self.counts.stale += len(done) - sum(done)

    async def _heartbeat(self, holds: Sequence[ClaimToken]) -> None:
        """Extend the leases while the batch is under way."""
        while True:
            await self._clock.sleep(self._options.lease / 3)
            try:
                await self._store.extend(holds, lease=self._options.lease)
            except RedriveError as error:
                self._trouble(f"leases not extended letters={len(holds)}", error)
