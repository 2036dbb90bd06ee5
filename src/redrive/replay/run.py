"""How is a replay carried out, so that it can be stopped, watched, and gone on with after a crash?

    hold the operation → health → canary → batches: take, publish, mark as sent, record → report

Each batch is taken under a lease, published durably, written down in the letters (they wait for their verdicts), and
then recorded in the operation. A crash between publish and mark sends one batch twice at most; what is marked is never
sent again: whoever resumes looks at the letters first (E6, H4).

It does not know where letters come from nor what a console shows; `progress` hears everything.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from redrive.clock import Clock, pause
from redrive.errors import (
    BrokerRefusedError,
    PublishError,
    RedriveError,
    SettingsError,
    StoreError,
    TransportError,
)
from redrive.letters import DeadLetter, LetterHead, State
from redrive.replay.options import FAILED, SENT, SKIPPED, WORKER_PREFIX, ReplayOptions, unpack
from redrive.replay.plan import REPLAYABLE
from redrive.rules import Health, StrategyOptions, in_words, unmet_conditions
from redrive.stores.base import Store
from redrive.stores.changes import Release, Retry, Settlement
from redrive.stores.many import load_those_there, pages
from redrive.stores.operations import Operation, OperationState
from redrive.stores.query import Condition, Op, Query
from redrive.transports.base import Transport
from redrive.transports.redriving import addressee, attempts_of, is_lost, publication, target

_LOOK_EVERY: Final = timedelta(milliseconds=500)
_PAGE: Final = 1000
_ENDED_ELSEWHERE: Final = "ended elsewhere"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replay is."""

    operation: str
    total: int
    sent: int
    skipped: int
    failed: int
    resolved: int  # of those sent in this run
    died: int  # likewise: dead again
    phase: str  # canary, sending, waiting, done, stopped, cancelled


Hear = Callable[[Progress], None]


def check_health(health: Health, strategy: StrategyOptions) -> None:
    """Raise a `RedriveError` if this is no moment to send anything."""
    if unmet := unmet_conditions(health, strategy):
        raise RedriveError(
            f"the system is not well, so nothing was sent: {in_words(unmet)}; --force sends all the same"
        )


class Replay:
    """Runs one operation."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        operation: Operation,
        *,
        runner: str,
        clock: Clock,
        broker: str | None = None,
        measure: Callable[[], Health] = Health,
        strategy: StrategyOptions | None = None,
        progress: Hear = lambda _progress: None,
    ) -> None:
        self._store = store
        self._transport = transport
        self._operation = operation
        self._id = operation.id
        self._options: ReplayOptions = unpack(operation.options)
        self._runner = runner
        self._broker = broker or transport.kind
        self._worker = f"{WORKER_PREFIX}{operation.id}"
        self._clock = clock
        self._measure = measure
        self._strategy = strategy or StrategyOptions()
        self._progress = progress
        self._judging: dict[str, int] = {}  # letter → fence it was sent under, until something is heard of it
        self._resolved = self._died = 0
        self._lost = asyncio.Event()  # somebody else has ended it, or runs it now

    async def run(self, stop: asyncio.Event) -> Operation:
        """Run until everything has its outcome, or it is stopped; the operation as it is then."""
        if not await self._store.run_operation(self._id, self._runner, lease=self._options.lease):
            now = await self._store.operation(self._id)
            if now.is_over:
                return now
            raise SettingsError(f"operation {self._id} is run by {now.runner} already; wait, or cancel it")
        self._lost = asyncio.Event()
        holding = asyncio.create_task(self._hold(self._lost))
        try:
            await self._take_up_the_thread()
            if self._options.health_check:
                await self._check_health()
            why = await self._send_all(stop)
            return await self._end(why)
        except TransportError as error:
            await self._store.end_operation(
                self._id, OperationState.STOPPED, by=self._runner, note=str(error)
            )
            raise
        finally:
            holding.cancel()

    # --- before ------------------------------------------------------------------------------------------------

    async def _take_up_the_thread(self) -> None:
        """What an earlier run had in its hands when it ended: those that were sent are recorded, others freed."""
        query = Query((Condition("worker", Op.IS, (self._worker,)),))
        sent: list[LetterHead] = []
        free: list[LetterHead] = []
        async for heads in pages(self._store, query):
            for head in heads:
                (sent if head.sent_at is not None else free).append(head)
        if sent:
            await self._record([(head.id, SENT, "") for head in sent])
            self._judging.update((head.id, head.fence) for head in sent)
        if free:
            detail = f"{self._id} was interrupted before it was sent"
            await self._store.settle([Settlement(head.hold, Release(detail=detail)) for head in free])

    async def _check_health(self) -> None:
        """Nothing is sent into a system that is not well (seed 004)."""
        check_health(self._measure(), self._strategy)
        first = await self._store.remaining(self._id, limit=100)
        heads = await self._heads(first)
        letters = await self._store.load([head.id for head in heads])
        for name in sorted({target(letter, self._options.sending).name for letter in letters}):
            with contextlib.suppress(
                BrokerRefusedError
            ):  # whoever may only publish hears of it when publishing
                await self._transport.depth(name)  # raises if there is no such queue

    # --- sending -----------------------------------------------------------------------------------------------

    async def _send_all(self, stop: asyncio.Event) -> str | None:
        """Send until nothing remains; why it was stopped before, if it was."""
        number = 0
        while not stop.is_set():
            if (
                self._lost.is_set()
                or (await self._store.operation(self._id)).state is not OperationState.RUNNING
            ):
                return _ENDED_ELSEWHERE
            size, is_canary = self._size(number)
            ids = await self._store.remaining(self._id, limit=size)
            if not ids:
                return None
            began = self._clock.monotonic()
            await self._send(ids)
            self._tell("canary" if is_canary else "sending")
            if is_canary:
                await self._wait_for_verdicts(stop)
            await self._judge()
            if self._too_many_died():
                return f"{self._died} of {self._died + self._resolved} died again"
            if self._options.rate is not None:
                spent = self._clock.monotonic() - began
                await pause(self._clock, timedelta(seconds=len(ids) / self._options.rate) - spent, stop)
            number += 1
        return "stopped"

    def _size(self, number: int) -> tuple[int, bool]:
        options = self._options
        done = self._operation.recorded
        if number == 0 and options.canary and not done:
            return min(options.canary, options.batch), True
        step = number - 1 if options.canary else number
        size = options.ramp[step] if 0 <= step < len(options.ramp) else options.batch
        return min(size, options.batch), False

    async def _send(self, ids: Sequence[str]) -> None:
        """One batch: take, publish, mark, record."""
        known = {head.id: head for head in await self._heads(ids)}
        at_limit = await self._release_unconfirmed(known.values())
        heads = await self._store.take(ids, self._worker, brokers=(self._broker,), lease=self._options.lease)
        taken = {head.id for head in heads}
        outcomes = [
            (letter_id, *self._why_not_taken(known.get(letter_id)))
            for letter_id in ids
            if letter_id not in taken and letter_id not in at_limit
        ]
        outcomes += [(letter_id, FAILED, reason) for letter_id, reason in at_limit.items()]
        loaded = await self._store.load([head.id for head in heads])
        # One whose lease ended meanwhile may be somebody else's by now; it stays without an outcome.
        letters = [one for one, head in zip(loaded, heads, strict=True) if one.hold == head.hold]
        done = await self._done_elsewhere(letters) if self._options.skip_done else set[str]()
        outcomes += [(letter_id, SKIPPED, "its message was processed already") for letter_id in done]
        exhausted = [letter for letter in letters if letter.id not in done and self._is_exhausted(letter)]
        outcomes += [(letter.id, FAILED, _at_limit(letter)) for letter in exhausted]
        not_sent = done.union(letter.id for letter in exhausted)
        going = [letter for letter in letters if letter.id not in not_sent]
        errors = await self._publish(going)
        sent = [letter for letter, error in zip(going, errors, strict=True) if error is None]
        kept = (
            await self._store.extend(
                [one.hold for one in sent], lease=self._options.verdict_timeout, sent=True
            )
            if sent
            else []
        )
        for letter, still_ours in zip(sent, kept, strict=True):
            outcomes.append(
                (letter.id, SENT, "" if still_ours else "it was judged before, or its lease had ended")
            )
            self._judging[letter.id] = letter.fence
        back: list[Settlement] = [
            Settlement(letter.hold, Release(detail="processed already"))
            for letter in letters
            if letter.id in done
        ]
        back += [Settlement(letter.hold, Release(detail=_at_limit(letter))) for letter in exhausted]
        for letter, error in zip(going, errors, strict=True):
            if error is not None:
                outcomes.append((letter.id, FAILED, str(error)))
                back.append(Settlement(letter.hold, Release(detail=f"could not be sent: {error}")))
        if back:
            await self._store.settle(back)
        await self._record(outcomes)

    def _is_exhausted(self, letter: DeadLetter, under_way: int = 0) -> bool:
        """Whether its message was redriven as often as the limit permits, and no person has asked for more.

        The next worker closes such a letter. It may be pending: its message was redriven as another letter before.
        """
        return not self._options.over_limit and attempts_of(letter) + under_way >= self._strategy.max_redrives

    async def _release_unconfirmed(self, heads: Iterable[LetterHead]) -> dict[str, str]:
        """End the redrives that nobody has confirmed: a person has decided to send these letters again.

        Those whose message was redriven as often as the limit permits stay unconfirmed: nothing would be sent for them,
        and what they wait for may still come. They are given back, each with the reason.
        """
        unconfirmed = [head.id for head in heads if head.unconfirmed and head.broker == self._broker]
        letters = await load_those_there(self._store, unconfirmed) if unconfirmed else []
        at = self._clock.now() + self._options.lease  # not before we have taken them
        again = Retry(at=at, result="unconfirmed", detail=f"sent again by {self._id}")
        settlements: list[Settlement] = []
        at_limit: dict[str, str] = {}
        for letter in letters:
            if not letter.unconfirmed:
                continue
            if self._is_exhausted(letter, under_way=1):
                at_limit[letter.id] = _at_limit(letter, under_way=1)
            else:
                settlements.append(Settlement(letter.hold, again))
        if settlements:
            await self._store.settle(settlements)
        return at_limit

    def _why_not_taken(self, head: LetterHead | None) -> tuple[str, str]:
        is_open = head is not None and (head.state in REPLAYABLE or head.unconfirmed)
        if head is not None and is_open and head.broker != self._broker:
            return FAILED, f"it belongs to broker '{head.broker}', and this replay sends to '{self._broker}'"
        return SKIPPED, "it is claimed by a worker or another replay, or closed"

    async def _publish(self, letters: Sequence[DeadLetter]) -> Sequence[RedriveError | None]:
        """Send them; one answer for each, in order."""
        sending = self._options.sending
        going = [one for one in letters if not is_lost(one, sending)]
        errors: dict[str, RedriveError | None] = {
            one.id: PublishError("its source is unknown; name a queue to send it to (--to QUEUE)")
            for one in letters
            if is_lost(one, sending)
        }
        if going and self._transport.capabilities.broadcast and sending.to != "exchange":
            consumers = {one.id: addressee(one, sending)[1:] for one in going}
            reasons = await self._transport.unreachable(sorted(set(consumers.values())))
            errors |= {
                one.id: PublishError(reasons[consumers[one.id]])
                for one in going
                if consumers[one.id] in reasons
            }
            going = [one for one in going if one.id not in errors]
        messages = [publication(one, one.hold, sending, self._id) for one in going]
        answers = await self._transport.publish(messages) if messages else ()
        errors |= {one.id: answer for one, answer in zip(going, answers, strict=True)}
        return [errors[one.id] for one in letters]

    async def _done_elsewhere(self, letters: Sequence[DeadLetter]) -> set[str]:
        """Letters whose message another letter of the same consumer has resolved."""
        named = sorted({letter.message_id for letter in letters if letter.message_id})
        done: set[tuple[str, str, str | None, str | None]] = set()
        for start in range(0, len(named), _PAGE):
            # Asked for the state as well, a store may walk through all that were ever resolved.
            query = Query((Condition("message", Op.IS, tuple(named[start : start + _PAGE])),))
            async for heads in pages(self._store, query):
                done.update(map(_message_of, (head for head in heads if head.state is State.RESOLVED)))
        return {letter.id for letter in letters if letter.message_id and _message_of(letter) in done}

    async def _record(self, outcomes: Sequence[tuple[str, str, str]]) -> None:
        await self._store.record(self._id, outcomes)
        self._operation = await self._store.operation(self._id)

    # --- listening ---------------------------------------------------------------------------------------------

    async def _wait_for_verdicts(self, stop: asyncio.Event) -> None:
        end = self._clock.monotonic() + self._options.canary_wait
        while self._judging and self._clock.monotonic() < end and not stop.is_set():
            await pause(self._clock, _LOOK_EVERY, stop)
            await self._judge()
            self._tell("canary")

    async def _judge(self) -> None:
        """What has become of those that were sent."""
        waiting = list(self._judging)[:_PAGE]
        for head in await self._heads(waiting):
            if head.state is State.RESOLVED:
                self._resolved += 1
            elif head.state is State.PROCESSING and head.fence == self._judging[head.id]:
                continue
            else:
                self._died += 1
            del self._judging[head.id]

    def _too_many_died(self) -> bool:
        judged = self._died + self._resolved
        if self._options.stop_at is None or judged < min(
            self._options.judge_after, self._options.canary or judged + 1
        ):
            return False
        return judged > 0 and self._died >= self._options.stop_at * judged

    async def _heads(self, ids: Sequence[str]) -> Sequence[LetterHead]:
        heads: list[LetterHead] = []
        for start in range(0, len(ids), _PAGE):
            query = Query((Condition("id", Op.IS, tuple(ids[start : start + _PAGE])),))
            heads += (await self._store.page(query, limit=_PAGE)).heads
        return heads

    # --- after -------------------------------------------------------------------------------------------------

    async def _end(self, why: str | None) -> Operation:
        if why is None:
            await self._store.end_operation(self._id, OperationState.DONE, by=self._runner)
        elif why != _ENDED_ELSEWHERE:
            await self._store.end_operation(self._id, OperationState.STOPPED, by=self._runner, note=why)
        self._operation = await self._store.operation(self._id)
        self._tell(str(self._operation.state))
        return self._operation

    async def _hold(self, lost: asyncio.Event) -> None:
        """Stay the one who runs it, unless somebody has ended it or runs it now."""
        while not lost.is_set():
            await self._clock.sleep(self._options.lease / 3)
            try:
                ours = await self._store.run_operation(
                    self._id, self._runner, lease=self._options.lease, resume=False
                )
            except StoreError:
                continue  # it may answer again before the lease ends; the run itself says if it does not
            if not ours:
                lost.set()

    def _tell(self, phase: str) -> None:
        counts = self._operation.outcomes
        self._progress(
            Progress(
                operation=self._id,
                total=self._operation.total,
                sent=counts.get(SENT, 0),
                skipped=counts.get(SKIPPED, 0),
                failed=counts.get(FAILED, 0),
                resolved=self._resolved,
                died=self._died,
                phase=phase,
            )
        )


def _message_of(head: LetterHead) -> tuple[str, str, str | None, str | None]:
    """The message that a letter is about: equal ids at different consumers are different messages."""
    return head.broker, head.source, head.consumer_group, head.message_id


def _at_limit(letter: DeadLetter, under_way: int = 0) -> str:
    redrives = attempts_of(letter) + under_way
    return f"its message was redriven {redrives} times, which is the limit; only a copy can be sent"
