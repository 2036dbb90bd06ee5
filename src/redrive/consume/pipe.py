"""What happens to one delivery, from its arrival to the decision what becomes of it?

    poison check → decode → handler → classify → try again here, or decide

One attempt at a time: `attempt` gives either a decision, which the runner carries out, or `TryAgain`, after which
the runner lets the job wait without a worker. The rules are those of `rules` and nothing else: this file only asks
them in order. It does not know transports, threads, nor how anything is settled.
"""

import inspect
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from random import Random
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, Protocol

import msgspec

from redrive.clock import Clock
from redrive.consume.context import Asked, Context, correlation_id_for
from redrive.consume.decoding import Decode
from redrive.consume.handler import Handler
from redrive.consume.options import ConsumeOptions
from redrive.host import Load
from redrive.letters import DeadLetter, Failure, FailureKind, SystemState
from redrive.letters.redact import Redactor
from redrive.rules import (
    Classifier,
    Complete,
    DeadLetterIt,
    Failed,
    GiveBack,
    ManualDeadLetter,
    ManualGiveBack,
    NotRun,
    Outcome,
    Reason,
    RunHandler,
    Succeeded,
    decide,
    judged,
)
from redrive.transports.base import Delivery

_NOT_RUN: Final = NotRun()
_SUCCEEDED: Final = Succeeded()


class Place(Protocol):
    """Where a handler runs: what is done `with` it is held to the time budget."""

    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        """What the call gives, run in a thread."""

    def passes_on(self, error: BaseException) -> bool:
        """Whether an error ends the consumer instead of being a failed attempt."""


class Job(msgspec.Struct, eq=False):
    """A delivery on its way, and what was tried so far."""

    delivery: Delivery
    attempt: int = 1
    forgiven: int = 0  # earlier deliveries that are known to have done no harm
    first_failed_at: datetime | None = None
    failure: Failure | None = None  # of the attempt that has just failed
    context: Context | None = None  # of the last attempt, if its handler wants one
    is_alone: bool = False  # it is to run with nothing beside it: it may end the process
    crashes: int = 0  # processes that it has certainly ended
    on_trial: bool = False  # run once although it was delivered too often: that may have been another's fault

    @property
    def count(self) -> int | None:
        """How often it was delivered, as far as that speaks against it."""
        count = self.delivery.delivery_count
        if not self.forgiven and not self.crashes:
            return count
        return max((count or 1) - self.forgiven, self.crashes + 1)


class TryAgain(msgspec.Struct, frozen=True):
    """The next attempt follows in this process, after a wait."""

    wait: timedelta
    failure: Failure


class Done(msgspec.Struct, frozen=True):
    """What becomes of the message: completed, or with the failure that says why not."""

    decision: Complete | GiveBack | DeadLetterIt
    failure: Failure | None = None


class Pipe:
    """The way of each delivery of one source."""

    def __init__(
        self,
        handler: Handler,
        source: str,
        options: ConsumeOptions,
        *,
        clock: Clock,
        classifier: Classifier,
        redactor: Redactor,
        random: Random | None = None,
        host: Callable[[], Load | None] | None = None,
    ) -> None:
        """With `host`, dead letters tell how busy the machine was."""
        self._handler = handler
        self._source = source
        self._options = options
        self._clock = clock
        self._classifier = classifier
        self._redactor = redactor
        self._random = random or Random()  # noqa: S311  spreads waits, guards nothing
        self.completed = self._settle(_SUCCEEDED, None, None)  # the matrix says so for any count
        self._host = host
        # Most handlers are coroutines of the message alone. An attempt at a first delivery, which is never poison, then
        # comes down to these two steps: whoever is in a hurry takes them, and comes to `judge` with what was raised.
        self.direct: tuple[Decode, Callable[[Any], Awaitable[Any]]] | None = None
        if handler.is_async and not handler.wants_context and handler.decode is not None:
            self.direct = (handler.decode, handler.function)

    async def attempt(self, job: Job, place: Place) -> Done | TryAgain:
        """One attempt at one delivery."""
        handler, delivery = self._handler, job.delivery
        count = delivery.delivery_count
        if job.crashes or (count is not None and count > 1):  # the first delivery is never poison
            count = job.count
            poison = decide(_NOT_RUN, count, self._options.max_deliveries)
            if isinstance(poison, DeadLetterIt) and not job.on_trial:
                return self._give_up(poison)
        context = None
        if handler.wants_context:
            context = job.context = Context(delivery, self._source, job.attempt)
        try:
            value = None if handler.decode is None else handler.decode(delivery)
            with place:
                if handler.is_async:
                    await handler.call(value, context)
                else:
                    answer = await place.in_thread(partial(handler.call, value, context))
                    if inspect.isawaitable(answer):
                        await answer
        except BaseException as error:
            if place.passes_on(error):
                raise
            return self.judge(job, error, context)
        if context is not None and context.asked is not None:
            return self._as_asked(job, context.asked)
        return self.completed

    def judge(self, job: Job, error: BaseException, context: Context | None = None) -> Done | TryAgain:
        """What follows from an error of a handler: what it has asked for, or what the rules say of it."""
        if isinstance(error, Asked):
            return self._as_asked(job, error.outcome)
        if context is not None and context.asked is not None:
            return self._as_asked(job, context.asked)
        return self._judge(job, error, job.count)

    def letter(self, job: Job, decision: DeadLetterIt, failure: Failure) -> DeadLetter:
        """The dead letter of a delivery that is given up."""
        delivery = job.delivery
        earlier = (job.count or 1) - 1
        tried = 0 if decision.reason == Reason.POISON_MESSAGE else job.attempt
        return DeadLetter.create(
            delivery.message,
            delivery.origin,
            failure,
            # Equal messages of a queue share their key. Each death has one of its own, so that a dead letter that is
            # published twice is recognised, and one of an equal message is not mistaken for it.
            key=delivery.key if delivery.has_exact_key else f"{delivery.key}~{token_hex(8)}",
            reason=decision.reason,
            first_failed_at=job.first_failed_at,
            retry_count=earlier * self._options.attempts + tried,
            correlation_id=correlation_id_for(delivery),
            system_state=self._system_state(),
            tags=() if job.context is None else job.context.tags,
            priority=0 if job.context is None else job.context.priority,
        )

    def _system_state(self) -> SystemState | None:
        load = None if self._host is None else self._host()
        return None if load is None else SystemState(load.cpu, load.memory)

    def _judge(self, job: Job, error: BaseException, count: int | None) -> Done | TryAgain:
        """What follows from an error: another attempt here if that may help, else what the matrix says."""
        options = self._options
        failure, found = judged(
            error, at=self._clock.now(), classifier=self._classifier, redactor=self._redactor
        )
        job.first_failed_at = job.first_failed_at or failure.at
        job.failure = failure
        if found.retryable and job.attempt < options.attempts:
            wait = options.backoff.delay(job.attempt, self._random)
            if wait is not None:
                wait = max(wait, found.retry_after or wait)
                if wait <= options.max_in_process_delay:
                    return TryAgain(wait, failure)
                # Too long a wait for us: the broker keeps it.
                found = msgspec.structs.replace(found, retry_after=wait)
        return self._settle(Failed(found, failure.text), count, failure)

    def _as_asked(self, job: Job, outcome: ManualDeadLetter | ManualGiveBack) -> Done:
        count = job.count
        if isinstance(outcome, ManualGiveBack):
            # A trial is the last delivery there is.
            return self._settle(_NOT_RUN if job.on_trial else outcome, count, None)
        clean = ManualDeadLetter(
            self._redactor.clean(outcome.reason), self._redactor.clean(outcome.description)
        )
        return self._settle(clean, count, None)

    def _settle(self, outcome: Outcome, count: int | None, failure: Failure | None) -> Done:
        decision = decide(outcome, count, self._options.max_deliveries)
        if isinstance(decision, DeadLetterIt) and failure is None:
            return self._give_up(decision)
        assert not isinstance(decision, RunHandler)  # noqa: S101  only `NotRun` is answered with that
        return Done(decision, failure)

    def _give_up(self, decision: DeadLetterIt) -> Done:
        """A dead letter for a reason other than an error: the reason itself is then its failure."""
        poison = decision.reason == Reason.POISON_MESSAGE
        failure = Failure(
            error_type=decision.reason,
            text=decision.description,
            at=self._clock.now(),
            kind=FailureKind.CRASH if poison else FailureKind.BUSINESS,
            retryable=False,
            rule="delivery count" if poison else "requested by the handler",
        )
        return Done(decision, failure)
