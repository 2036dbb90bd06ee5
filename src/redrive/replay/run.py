"""How is a replay carried out, so that it can be stopped, watched, and gone on with after a crash?

    acquire the operation → targets exist → canary → ramp → batches: claim, publish, mark as sent, record → report

Each batch is claimed under a lease, published durably, written down in the letters (they wait for their verdicts), and
then recorded in the operation. A crash between publish and mark sends one batch twice at most; what is marked is never
sent again. A run that resumes the operation records what was marked and claims what the killed run had only claimed:
the letters are held in the name of the operation, and a new fence ends the old claim.

Every letter of the list gets an outcome: sent, skipped because there is nothing to send (resolved, archived, deleted,
or sent by a worker meanwhile), or failed with the reason.

It does not know where letters come from nor what a console shows; `progress` is called with everything.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from redrive.letters import DeadLetter, LetterHead, LetterState
from redrive.replay.edit import is_new_edit
from redrive.replay.options import FAILED, SENT, SKIPPED, WORKER_PREFIX, ReplayOptions, unpack
from redrive.replay.results import SentLetters, heads_of
from redrive.replay.runner import describe_runner, has_ended
from redrive.rules import StrategyOptions, format_duration
from redrive.stores.base import Store
from redrive.stores.changes import Retry, Settlement, Unclaim
from redrive.stores.many import load_those_there, pages
from redrive.stores.operations import Operation, OperationState
from redrive.stores.query import Condition, Op, Query
from redrive.transports.base import Transport
from redrive.transports.redriving import addressee, attempts_of, is_lost, publication, target

_POLL_INTERVAL: Final = timedelta(milliseconds=500)
_CLAIM_TIMEOUT: Final = timedelta(seconds=10)  # in one run, for letters that workers are just sending
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
    phase: str  # waiting, canary, ramp, sending, done, stopped, cancelled
    note: str = ""  # what is waited for


class _Step(msgspec.Struct, frozen=True):
    """What is sent next, and whether its results are waited for."""

    phase: str
    size: int

    @property
    def is_judged(self) -> bool:
        return self.phase != "sending"


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
        strategy: StrategyOptions | None = None,
        progress: Callable[[Progress], None] = lambda _progress: None,
        assume_success: bool = False,
    ) -> None:
        """`assume_success` holds for this run, whatever the options of the operation say."""
        self._store = store
        self._transport = transport
        self._operation = operation
        self._id = operation.id
        self._options: ReplayOptions = unpack(operation.options)
        self._assumes_success = assume_success or self._options.assume_success
        self._runner = runner
        self._broker = broker or transport.kind
        self._worker = f"{WORKER_PREFIX}{operation.id}"
        self._clock = clock
        self._strategy = strategy or StrategyOptions()
        self._progress = progress
        self._results = SentLetters(store)
        self._claim_timeout = _CLAIM_TIMEOUT
        self._lost = asyncio.Event()  # it was ended by a person, or another runner has it

    async def run(self, stop: asyncio.Event) -> Operation:
        """Run until every letter has its outcome, or it is stopped; the operation as it is then."""
        ended = await self._acquire(stop)
        if ended is not None:
            return ended
        self._lost = asyncio.Event()
        holding = asyncio.create_task(self._hold(self._lost))
        try:
            await self._resume_state()
            if self._options.health_check:
                await self._check_targets()
            reason = await self._send_all(stop)
            return await self._end(reason)
        except TransportError as error:
            await self._store.end_operation(
                self._id, OperationState.STOPPED, by=self._runner, note=str(error)
            )
            raise
        finally:
            holding.cancel()

    # --- before ------------------------------------------------------------------------------------------------

    async def _acquire(self, stop: asyncio.Event) -> Operation | None:
        """Become the runner; the operation if it has ended before.

        A runner that was killed on this machine is replaced at once. Of any other it is not known whether it still
        runs: its lease is waited for once, and if it is renewed meanwhile, this is an error.
        """
        first_seen: Operation | None = None
        until = self._clock.monotonic() + self._options.lease + _POLL_INTERVAL
        while True:
            now = await self._store.operation(self._id)
            gone = now.runner if now.runner is not None and has_ended(now.runner) else None
            if await self._store.run_operation(
                self._id, self._runner, lease=self._options.lease, replaces=gone
            ):
                return None
            now = await self._store.operation(self._id)
            if now.is_over:
                return now
            first_seen = first_seen or now
            runner = describe_runner(now.runner or "")
            if (now.runner, now.lease_until) != (first_seen.runner, first_seen.lease_until):
                raise SettingsError(
                    f"operation {self._id} is run by {runner}, which has just renewed its lease; wait, or cancel it"
                )
            if stop.is_set() or self._clock.monotonic() > until:
                raise SettingsError(f"operation {self._id} is run by {runner}; wait, or cancel it")
            self._operation = now
            self._tell("waiting", self._describe_wait(now))
            await pause(self._clock, _POLL_INTERVAL, stop)

    def _describe_wait(self, operation: Operation) -> str:
        until = operation.lease_until or self._clock.now()
        seconds = max(1, round((until - self._clock.now()).total_seconds()))
        seconds = min(seconds, round(self._options.lease.total_seconds()))
        return (
            f"{describe_runner(operation.runner or '')} may still run this operation; "
            f"its lease expires in {format_duration(timedelta(seconds=seconds))}"
        )

    async def _resume_state(self) -> None:
        """Record the letters that an earlier run has sent and not recorded; those wait for their verdicts."""
        query = Query((Condition("worker", Op.IS, (self._worker,)),))
        sent: list[LetterHead] = []
        async for heads in pages(self._store, query):
            sent += [head for head in heads if head.sent_at is not None]
        if sent:
            self._results.add(sent)
        await self._record([(head.id, SENT, "") for head in sent])

    async def _check_targets(self) -> None:
        """Raise a `SourceMissingError` if a queue does not exist that letters are to be sent to."""
        first = await self._store.remaining(self._id, limit=100)
        heads = await heads_of(self._store, first)
        letters = await self._store.load([head.id for head in heads])
        for name in sorted({target(letter, self._options.sending).name for letter in letters}):
            with contextlib.suppress(BrokerRefusedError):  # a user may be allowed to publish and nothing else
                await self._transport.depth(name)

    # --- sending -----------------------------------------------------------------------------------------------

    async def _send_all(self, stop: asyncio.Event) -> str | None:
        """Send until nothing remains; why it was stopped before, if it was."""
        for step in self._steps():
            if stop.is_set():
                return "stopped"
            if (
                self._lost.is_set()
                or (await self._store.operation(self._id)).state is not OperationState.RUNNING
            ):
                return _ENDED_ELSEWHERE
            ids = await self._store.remaining(self._id, limit=step.size) if step.size else []
            if step.size and not ids:
                return None
            began = self._clock.monotonic()
            sent = await self._send(ids, stop) if ids else []
            self._tell(step.phase)
            if self._operation.recorded == self._operation.total:
                continue
            if step.is_judged:
                await self._wait_for_results(step, stop)
            await self._results.check()
            if not stop.is_set() and (reason := self._reason_to_stop(step, sent)) is not None:
                return reason
            await self._keep_pace(len(ids), began, stop)
        return None

    def _steps(self) -> Iterator[_Step]:
        """The canaries that are still to be sent or to report, the ramp, and batches of full size."""
        options = self._options
        if options.canary and self._sent <= options.canary and self._results.unreported():
            yield _Step("canary", 0)
        while self._sent < options.canary:
            yield _Step("canary", min(options.canary - self._sent, options.batch))
        for size in options.ramp:
            yield _Step("ramp", min(size, options.batch))
        while True:
            yield _Step("sending", options.batch)

    @property
    def _sent(self) -> int:
        return self._operation.outcomes.get(SENT, 0)

    def _reason_to_stop(self, step: _Step, sent: Sequence[str]) -> str | None:
        """Why nothing more is sent: too many died again, or canary and ramp reported nothing."""
        results, options = self._results, self._options
        least = min(options.judge_after, options.canary or options.judge_after)
        if (
            options.stop_at is not None
            and results.reported >= max(1, least)
            and results.died >= options.stop_at * results.reported
        ):
            return f"{results.died} of {results.reported} failed again"
        if self._assumes_success or not step.is_judged:
            return None
        within = f"reported within {format_duration(options.canary_wait)}"
        advice = (
            "check that redrive serve is running on this store and that the consumers report verdicts, "
            "or send the rest with --assume-success"
        )
        if step.phase == "canary" and (silent := results.unreported()):
            return f"{self._sent - silent} of {self._sent} canaries {within}; {advice}"
        if step.phase == "ramp" and sent and results.unreported(sent) == len(sent):
            return f"0 of {len(sent)} letters of the ramp {within}; {advice}"
        return None

    async def _keep_pace(self, count: int, began: timedelta, stop: asyncio.Event) -> None:
        """Wait between two batches, as rate and pause ask for."""
        wait = self._options.pause
        if self._options.rate is not None:
            spent = self._clock.monotonic() - began
            wait = max(wait, timedelta(seconds=count / self._options.rate) - spent)
        if wait > timedelta(0):
            await pause(self._clock, wait, stop)

    async def _send(self, ids: Sequence[str], stop: asyncio.Event) -> list[str]:
        """One batch: claim, publish, mark, record; the letters that were sent."""
        at_limit = await self._release_unconfirmed(await heads_of(self._store, ids))
        outcomes = [(letter_id, FAILED, reason) for letter_id, reason in at_limit.items()]
        heads = await self._claim([letter_id for letter_id in ids if letter_id not in at_limit])
        claimed = {head.id for head in heads}
        others = [each for each in ids if each not in claimed and each not in at_limit]
        if others:
            late, reasons = await self._claim_when_free(others, stop)
            outcomes += reasons
            places = {letter_id: place for place, letter_id in enumerate(ids)}
            heads = sorted([*heads, *late], key=lambda head: places[head.id])
        loaded = await self._store.load([head.id for head in heads])
        # One whose lease ended meanwhile may have another owner by now; it stays without an outcome.
        letters = [
            one for one, head in zip(loaded, heads, strict=True) if one.claim_token == head.claim_token
        ]
        done = await self._done_elsewhere(letters) if self._options.skip_done else set[str]()
        outcomes += [(letter_id, SKIPPED, "its message was already processed") for letter_id in done]
        exhausted = [letter for letter in letters if letter.id not in done and self._is_exhausted(letter)]
        outcomes += [(letter.id, FAILED, _at_limit(letter)) for letter in exhausted]
        not_sent = done.union(letter.id for letter in exhausted)
        going = [letter for letter in letters if letter.id not in not_sent]
        errors = await self._publish(going)
        sent = [letter for letter, error in zip(going, errors, strict=True) if error is None]
        kept = (
            await self._store.extend(
                [one.claim_token for one in sent], lease=self._options.verdict_timeout, sent=True
            )
            if sent
            else []
        )
        outcomes += [
            (
                letter.id,
                SENT,
                "" if still_ours else ("its result was already recorded, or its lease has expired"),
            )
            for letter, still_ours in zip(sent, kept, strict=True)
        ]
        self._results.add(sent)
        back: list[Settlement] = [
            Settlement(letter.claim_token, Unclaim(detail="processed already"))
            for letter in letters
            if letter.id in done
        ]
        back += [Settlement(letter.claim_token, Unclaim(detail=_at_limit(letter))) for letter in exhausted]
        for letter, error in zip(going, errors, strict=True):
            if error is not None:
                outcomes.append((letter.id, FAILED, str(error)))
                back.append(Settlement(letter.claim_token, Unclaim(detail=f"could not be sent: {error}")))
        if back:
            await self._store.settle(back)
        await self._record(outcomes)
        return [letter.id for letter in sent]

    # --- claiming ----------------------------------------------------------------------------------------------

    async def _claim(self, ids: Sequence[str]) -> list[LetterHead]:
        """Claim what is free, and what an earlier run of this operation had claimed and not sent."""
        return await self._store.take(
            ids, self._worker, brokers=(self._broker,), lease=self._options.lease, reclaim=True
        )

    async def _claim_when_free(
        self, ids: Sequence[str], stop: asyncio.Event
    ) -> tuple[list[LetterHead], list[tuple[str, str, str]]]:
        """Claim letters that others have claimed, once they are free; the outcomes of those that cannot be sent.

        A worker sends what it has claimed within moments, or its lease expires; this run waits for that, but not for
        long. When it is stopped meanwhile, what is not free stays without an outcome.
        """
        claimed: list[LetterHead] = []
        while True:
            heads = {head.id: head for head in await heads_of(self._store, ids)}
            outcomes = {each: self._outcome_of(heads.get(each)) for each in ids}
            held = [each for each in ids if outcomes[each] is None]
            if not held or self._claim_timeout <= timedelta(0) or stop.is_set():
                break
            self._tell("waiting", f"{len(held)} letters are claimed by others")
            await pause(self._clock, _POLL_INTERVAL, stop)
            self._claim_timeout -= _POLL_INTERVAL
            got = await self._claim(held)
            claimed += got
            ids = [each for each in ids if each not in {head.id for head in got}]
        known = [(each, *outcome) for each, outcome in outcomes.items() if outcome is not None]
        if not stop.is_set():
            known += [(each, FAILED, _claimed_by(heads[each])) for each in held]
        return claimed, known

    def _outcome_of(self, head: LetterHead | None) -> tuple[str, str] | None:
        """The outcome of a letter that could not be claimed; None: it may be free later."""
        if head is None:
            return SKIPPED, "it is no longer in the store"
        if head.state in {LetterState.RESOLVED, LetterState.ARCHIVED}:
            return SKIPPED, f"it is already {str(head.state).removeprefix('dlq_')}"
        if head.state is LetterState.FAILED:
            return (
                FAILED,
                "it is failed: it was redriven or interrupted too often; --include-closed sends a copy",
            )
        if head.state is LetterState.PROCESSING and head.sent_at is not None and not head.unconfirmed:
            if head.locked_by == self._worker:
                return SENT, ""
            return SKIPPED, f"it was sent by {head.locked_by} and is waiting for its verdict"
        if head.broker != self._broker:
            return FAILED, (
                f"it belongs to broker '{head.broker}', but this replay sends to '{self._broker}'"
            )
        return None

    def _is_exhausted(self, letter: DeadLetter, under_way: int = 0) -> bool:
        """Whether its message was redriven as often as the limit permits, and no person has asked for more.

        The next worker closes such a letter. It may be pending: its message was redriven as another letter before. An
        edited copy that was never sent is what a person has asked for.
        """
        if self._options.over_limit or is_new_edit(letter):
            return False
        return attempts_of(letter) + under_way >= self._strategy.max_redrives

    async def _release_unconfirmed(self, heads: Iterable[LetterHead]) -> dict[str, str]:
        """End the redrives that no consumer has confirmed: a person has decided to send these letters again.

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
                settlements.append(Settlement(letter.claim_token, again))
        if settlements:
            await self._store.settle(settlements)
        return at_limit

    # --- publishing --------------------------------------------------------------------------------------------

    async def _publish(self, letters: Sequence[DeadLetter]) -> Sequence[RedriveError | None]:
        """Send them; one answer for each, in order."""
        sending = self._options.sending
        going = [one for one in letters if not is_lost(one, sending)]
        errors: dict[str, RedriveError | None] = {
            one.id: PublishError("its source is unknown; pass a target queue with --to QUEUE")
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
        messages = [publication(one, one.claim_token, sending, self._id) for one in going]
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
                done.update(map(_message_of, (head for head in heads if head.state is LetterState.RESOLVED)))
        return {letter.id for letter in letters if letter.message_id and _message_of(letter) in done}

    async def _record(self, outcomes: Sequence[tuple[str, str, str]]) -> None:
        if outcomes:
            await self._store.record(self._id, outcomes)
        self._operation = await self._store.operation(self._id)

    # --- results -----------------------------------------------------------------------------------------------

    async def _wait_for_results(self, step: _Step, stop: asyncio.Event) -> None:
        """Wait until everything that was sent has a result, `canary_wait` at most."""
        end = self._clock.monotonic() + self._options.canary_wait
        while self._results.unreported() and self._clock.monotonic() < end and not stop.is_set():
            await pause(self._clock, _POLL_INTERVAL, stop)
            await self._results.check()
            self._tell(step.phase)

    # --- after -------------------------------------------------------------------------------------------------

    async def _end(self, reason: str | None) -> Operation:
        if reason is None:
            await self._results.check()
            died, is_complete = self._results.died, self._sent == self._operation.total
            note = f"{'sent all, ' if is_complete else ''}{died} failed again so far" if died else ""
            await self._store.end_operation(self._id, OperationState.DONE, by=self._runner, note=note)
        elif reason != _ENDED_ELSEWHERE:
            await self._store.end_operation(self._id, OperationState.STOPPED, by=self._runner, note=reason)
        self._operation = await self._store.operation(self._id)
        self._tell(str(self._operation.state))
        return self._operation

    async def _hold(self, lost: asyncio.Event) -> None:
        """Stay the runner, unless the operation was ended or another runner has it."""
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

    def _tell(self, phase: str, note: str = "") -> None:
        counts = self._operation.outcomes
        self._progress(
            Progress(
                operation=self._id,
                total=self._operation.total,
                sent=counts.get(SENT, 0),
                skipped=counts.get(SKIPPED, 0),
                failed=counts.get(FAILED, 0),
                resolved=self._results.resolved,
                died=self._results.died,
                phase=phase,
                note=note,
            )
        )


def _message_of(head: LetterHead) -> tuple[str, str, str | None, str | None]:
    """The message that a letter is about: equal ids at different consumers are different messages."""
    return head.broker, head.source, head.consumer_group, head.message_id


def _claimed_by(head: LetterHead) -> str:
    if head.locked_by is None:
        return "it was claimed by others whenever this replay tried"
    until = "" if head.lease_until is None else f", lease until {head.lease_until:%Y-%m-%d %H:%M:%S} UTC"
    return f"it is claimed by {head.locked_by} and was not sent{until}"


def _at_limit(letter: DeadLetter, under_way: int = 0) -> str:
    redrives = attempts_of(letter) + under_way
    return f"its message was redriven {redrives} times, which is the limit; only a copy can be sent"
