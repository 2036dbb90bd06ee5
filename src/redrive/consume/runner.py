"""How is one source consumed?

Deliveries come in batches and wait in one line; workers take them from its head and send each through the `Pipe`.
What is done is accepted once per turn of the event loop, all together. What is to be tried again is a `Job` that waits
without a worker, and goes before the line when its time has come; while many wait, the window is widened so that they
block nobody. What is given back or dead-lettered goes to `Settling`. The circuit breaker and troubled settling hold
the workers, never the broker.

The rules: a delivery is settled once, and never before its dead letter is durable; when it stops, what runs may
end within `shutdown_timeout` and everything else goes back to the source.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from redrive.clock import Clock, pause
from redrive.consume.callbacks import Callback, Callbacks
from redrive.consume.containment import IN_HANDLER
from redrive.consume.context import correlation_id_for
from redrive.consume.crash_log import CrashLog
from redrive.consume.decoding import Decode
from redrive.consume.innocent import Innocent
from redrive.consume.observer import Listeners, Observer
from redrive.consume.options import ConsumeOptions
from redrive.consume.pipe import Done, Job, Pipe, TryAgain
from redrive.consume.settling import Settling
from redrive.consume.slots import Slot, Slots
from redrive.errors import ConsumerTimeoutError, RedriveError, TransportClosedError
from redrive.letters.event import DeadLettered
from redrive.letters.redact import Redactor
from redrive.letters.stack import stack_of
from redrive.letters.verdict import QUEUE, Verdict, resolved, to_messages
from redrive.rules import Complete, DeadLetterIt, GiveBack
from redrive.rules.breaker import Breaker
from redrive.transports.base import (
    Death,
    Delivery,
    Narrows,
    Outcomes,
    Publication,
    Receiver,
    Release,
    Target,
    TimesOut,
)

Function: TypeAlias = Callable[[Any], Awaitable[Any]]
Publish: TypeAlias = Callable[[Sequence[Publication]], Awaitable[Outcomes]]
_is_alive: Final = attrgetter("alive")
_FIRST: Final = (1, None)  # counts of a delivery that none was before, as far as anybody knows
_FAIR: Final = 64  # messages a worker runs in a row before it lets the loop do something else


class Word(msgspec.Struct, frozen=True):
    """A redrive that was processed, and the verdict to be sent before it is accepted."""

    delivery: Delivery
    verdict: Verdict


class Runner:
    """Consumes one source until it is stopped."""

    def __init__(
        self,
        receiver: Receiver,
        pipe: Pipe,
        options: ConsumeOptions,
        *,
        observers: Sequence[Observer] = (),
        callbacks: Sequence[Callback] = (),
        clock: Clock,
        redactor: Redactor,
        publish: Publish | None = None,
        crash_log: CrashLog | None = None,
    ) -> None:
        """With `publish`, verdicts are sent for messages that are redrives.

        `crash_log` is None where messages do not outlive the process.
        """
        self._receiver = receiver
        self._pipe = pipe
        self._completed = pipe.completed
        self._options = options
        self._listeners = Listeners(observers)
        self._tell = self._listeners.tell
        self._clock = clock
        self._redactor = redactor
        self._loop = asyncio.get_running_loop()
        self.source = receiver.source.name
        self._line: deque[Delivery] = deque()
        self._again: deque[Job] = deque()  # those that have waited for their next attempt
        self._more = asyncio.Event()
        self._waiting: dict[asyncio.Task[None], Job] = {}
        self._window = receiver.source.window
        self._accepted: list[Delivery] = []
        self._breaker = Breaker(options.breaker) if options.breaker is not None else None
        self._slots = Slots(options.handler_timeout, self._thread_is_stuck)
        self._releases = Settling[Release](receiver.release, self._released, self._gone, clock)
        self._deaths = Settling[Death](receiver.dead_letter, self._buried, self._gone, clock)
        self._publish = publish
        self._words = Settling[Word](
            self._send_words, lambda _word, error: error is not None, self._gone, clock
        )
        self._callbacks = Callbacks(callbacks, self._callback_failed)
        self._innocent = Innocent()
        self._returned = Innocent()  # deliveries that this process gave back as failed: those do count
        self._crash_log = crash_log
        self._is_isolating = False  # one message runs, and nothing beside it
        self._isolated = asyncio.Event()
        self._parked = asyncio.Event()
        self._is_narrow = False  # one delivery is out at a time
        self._has_succeeded = False  # some message was processed in this process
        self._paused = False
        self._calm = asyncio.Event()
        self._is_stopping = False
        if isinstance(receiver, TimesOut):
            receiver.on_consumer_timeout = self._timed_out

    def _timed_out(self, error: ConsumerTimeoutError) -> None:
        self._tell("failed", self.source, "acknowledgement", error)

    # --- from start to stop ------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set; then let what runs end, and give back the rest."""
        beside = [
            asyncio.create_task(work)
            for work in (self._releases.run(), self._deaths.run(), self._words.run(), self._callbacks.run())
        ]
        workers = [asyncio.create_task(self._work()) for _ in range(self._options.concurrency)]
        intake = asyncio.create_task(self._take_in())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([intake, stopping, *workers, *beside], return_when=asyncio.FIRST_COMPLETED)
            for task in (intake, *workers, *beside):  # none of them ends by itself, unless by an error
                if task.done():
                    task.result()
        finally:
            stopping.cancel()
            await self._end(intake, workers, beside)

    async def _end(
        self,
        intake: "asyncio.Task[None]",
        workers: "list[asyncio.Task[None]]",
        beside: "list[asyncio.Task[None]]",
    ) -> None:
        self._is_stopping = self._slots.is_stopping = True
        for task in self._waiting:
            task.cancel()
        await self._receiver.stop()
        try:
            async with asyncio.timeout(self._options.shutdown_timeout.total_seconds()):
                await asyncio.wait((intake,))  # it takes in what is still under way
                await self._give_back_what_nobody_began()
                if busy := self._slots.busy():
                    await asyncio.wait(busy)
                self._accept()
                await self._releases.empty()
                await self._deaths.empty()
                await self._words.empty()
                await self._callbacks.empty()
        except TimeoutError:
            self._tell_failed(
                "shutdown",
                TimeoutError(
                    "handlers or dead letters did not finish within the shutdown "
                    "timeout; their messages are released"
                ),
            )
        await _ended(intake, *workers, *beside)
        self._accept()
        self._slots.close()
        await self._receiver.close()
        if self._crash_log is not None:
            self._crash_log.close()

    async def _give_back_what_nobody_began(self) -> None:
        """A stop in order must not count against messages that no handler has seen: three of them would make poison."""
        held = [*self._line, *(job.delivery for job in self._again if job.is_alone)]
        untouched = [delivery for delivery in held if delivery.alive]
        self._line.clear()
        self._again.clear()
        if untouched:
            await self._receiver.release([Release(delivery, counts=False) for delivery in untouched])

    # --- coming in ---------------------------------------------------------------------------------------------

    async def _take_in(self) -> None:
        while True:
            try:
                batch = await self._receiver.receive()
            except TransportClosedError:
                return
            self._tell("received", self.source, len(batch))
            if self._crash_log is not None and (self._crash_log.is_alert or self._is_narrow):
                batch = self._without_suspects(self._crash_log, batch)
            self._line.extend(batch)
            self._more.set()

    # --- working -----------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        slot = self._slots.open()
        IN_HANDLER.set(True)
        direct = None if self._listeners.tracers else self._pipe.direct
        in_a_row = 0
        records = None if self._crash_log is None else self._crash_log.records
        at = CrashLog.offset_of(slot.number)
        while not self._is_stopping:
            if self._must_park():
                self._parked.set()
                await self._isolated.wait()
                continue
            if not self._line and not self._again:
                in_a_row = 0
                self._more.clear()
                await self._more.wait()
                continue
            if self._is_held():
                if not await self._let_go():
                    continue
                if self._must_park():
                    self._no_probe()
                    continue
            if self._again:
                if self._again[0].is_alone and self._crash_log is not None:
                    await self._run_alone(self._crash_log, slot)
                else:
                    await self._run(self._again.popleft(), slot)
                in_a_row += 1
            elif direct is None:
                await self._run(self._job(self._line.popleft()), slot)
                in_a_row += 1
            else:
                in_a_row += await self._run_first_ones(slot, *direct)
            if records is not None:
                records[at] = 0  # nothing runs here
            if in_a_row >= _FAIR:
                in_a_row = 0
                await asyncio.sleep(0)

    async def _run(self, job: Job, slot: Slot) -> None:
        if not job.delivery.alive:  # its connection is gone: it will come again
            self._no_probe()
            if job.attempt == 1:
                self._innocent.add(job.delivery)
            return
        if job.attempt == 1 and job.delivery.is_for_another_group:
            self._skip(job.delivery)
            return
        log = self._crash_log
        if log is not None and not job.is_alone:
            if job.attempt == 1 and self._must_be_alone(log, job):
                self._no_probe()
                job.is_alone = True
                self._again.append(job)
                return
            job.delivery.write_trace(log.records, CrashLog.offset_of(slot.number))
        attempt = self._traced if self._listeners.tracers else self._pipe.attempt
        self._follow(job, await attempt(job, slot))

    async def _run_first_ones(self, slot: Slot, decode: Decode, function: Function) -> int:
        """Run first deliveries from the head of the line, until there is something else to be looked at; how many.

        This is the way of most: for each of them, nothing is done here that only a few need.
        """
        line, accepted = self._line, self._accepted
        deaths, releases, breaker = self._deaths, self._releases, self._breaker
        records = None if self._crash_log is None else self._crash_log.records
        at = CrashLog.offset_of(slot.number)
        self._slots.watch()
        for number in range(1, _FAIR + 1):
            delivery = line.popleft()
            if not delivery.alive or delivery.delivery_count not in _FIRST or delivery.redrive is not None:
                await self._run(self._job(delivery), slot)
                return number
            if records is not None:
                delivery.write_trace(records, at)
            slot.turn += 1
            try:
                await function(decode(delivery))
            except BaseException as error:
                told = slot.failed(error)
                if slot.passes_on(told):
                    raise
                job = self._job(delivery)
                self._follow(job, self._pipe.judge(job, told))
                return number
            slot.turn += 1
            if not accepted:
                self._loop.call_soon(self._accept)
            accepted.append(delivery)
            if breaker is not None and not breaker.is_calm:
                self._note(breaker, self._completed)
                if breaker.is_open:
                    return number
            if slot.overran:
                slot.forgive()
            if not line or self._again or self._is_stopping or deaths.troubled or releases.troubled:
                return number
        return _FAIR

    def _job(self, delivery: Delivery) -> Job:
        """Of a delivery of which there is more to be remembered than that it is done."""
        forgiven = self._innocent.count(delivery)
        log = self._crash_log
        if log is not None and (count := delivery.delivery_count or 1) > 1:
            forgiven += log.running(delivery)
            # Every crash may have raised its count, but for the deliveries that have failed here.
            unexplained = count - 1 - forgiven - self._returned.count(delivery)
            forgiven += max(0, min(log.crashes, unexplained))
        return Job(delivery, forgiven=forgiven)

    # --- messages that may end the process -----------------------------------------------------------------------

    def _without_suspects(self, log: CrashLog, batch: Sequence[Delivery]) -> Sequence[Delivery]:
        """Put those aside that are to run alone; the others."""
        others: list[Delivery] = []
        for delivery in batch:
            if delivery.is_redelivered and log.is_suspect(delivery):
                job = self._job(delivery)
                job.is_alone = True
                self._again.append(job)
                continue
            if self._is_narrow and not self._is_isolating and not self._is_doubtful(log, self._job(delivery)):
                self._widen()
            others.append(delivery)
        return others

    def _must_be_alone(self, log: CrashLog, job: Job) -> bool:
        """Whether a message may be the one that ended a process, and is not known to be innocent."""
        if (job.delivery.delivery_count or 1) <= 1:
            return False
        log.look()
        if log.is_alert and log.is_suspect(job.delivery):
            return True
        if (job.count or 1) - 1 <= self._returned.count(job.delivery):
            return False  # every earlier delivery is accounted for
        if not log.remembers and not self._has_succeeded:
            return True  # it is not known what ran when it was delivered before: one has to succeed first
        return self._is_doubtful(log, job)

    def _is_doubtful(self, log: CrashLog, job: Job) -> bool:
        """Whether a message was delivered too often, and not all of it by failing in this process.

        Where the log remembers no crash of it, it may have been beside the one that crashed, each time. Where there is
        no log, only the last delivery was certainly its own: it was then the only one that was out.
        """
        count, limit = job.count or 1, self._options.max_deliveries
        if count <= limit or count - 1 <= self._returned.count(job.delivery):
            return False
        return log.remembers or count == limit + 1

    async def _run_alone(self, log: CrashLog, slot: Slot) -> None:
        """Run the first of those that may end the process, with nothing beside it."""
        job = self._again[0]
        self._is_isolating = True
        self._isolated.clear()
        try:
            while self._slots.is_anything_beside(slot):
                self._parked.clear()
                await self._parked.wait()
            if self._is_stopping or not self._again or self._again[0] is not job:
                return
            self._again.popleft()
            if not log.remembers:
                await self._narrow()
            await self._try_alone(log, job, slot)
        finally:
            self._is_isolating = False
            self._isolated.set()

    async def _try_alone(self, log: CrashLog, job: Job, slot: Slot) -> None:
        delivery = job.delivery
        if not delivery.alive:  # its connection is gone: it will come again
            await self._run(job, slot)
            return
        job.crashes = log.put_on_trial(delivery).crashes
        job.on_trial = not job.crashes and self._is_doubtful(log, job)
        if job.crashes:
            delivery.raise_count(job.crashes + 1)
        log.begin_alone(slot.number, delivery)
        await self._run(job, slot)
        log.end(slot.number)
        if (
            job.crashes < self._options.max_deliveries
        ):  # one that is given up is cleared when its letter is durable
            log.clear(delivery)
        if self._is_narrow and not job.on_trial:
            self._widen()
        job.is_alone = job.on_trial = False

    def _must_park(self) -> bool:
        """Whether nothing may be begun because a message runs alone."""
        return self._is_isolating

    async def _narrow(self) -> None:
        """Let nothing else be out, so that the broker counts a crash against this message alone."""
        if not self._is_narrow:
            self._is_narrow = True
            self._receiver.resize(1)
            if isinstance(self._receiver, Narrows):
                await self._receiver.narrowed()
                await asyncio.sleep(0)  # what has come until then is taken in
        others = [*self._line, *(job.delivery for job in self._again if job.is_alone)]
        self._line.clear()
        self._again = deque(job for job in self._again if not job.is_alone)
        if others := [delivery for delivery in others if delivery.alive]:
            await self._receiver.release([Release(delivery, counts=False) for delivery in others])

    def _widen(self) -> None:
        self._is_narrow = False
        self._window = self._receiver.source.window
        if not self._is_stopping:
            self._receiver.resize(self._window)
            self._fit_window()

    # --- holding back --------------------------------------------------------------------------------------------

    def _is_held(self) -> bool:
        breaker = self._breaker
        return self._deaths.troubled or self._releases.troubled or (breaker is not None and breaker.is_open)

    async def _let_go(self) -> bool:
        """Wait while dead letters cannot be written, or most of what comes fails; whether one is to be run then."""
        if self._deaths.troubled or self._releases.troubled:
            await self._clock.sleep(max(self._deaths.pace, self._releases.pace))
        if self._breaker is not None and self._breaker.is_open:
            await self._let_through(self._breaker)
        if (self._line or self._again) and not self._is_stopping:
            return True
        self._no_probe()
        return False

    async def _let_through(self, breaker: Breaker) -> None:
        """Wait until the circuit breaker lets a message run."""
        while (wait := breaker.wait(self._clock.monotonic())) is not None:
            if not self._paused:
                self._paused = True
                self._calm.clear()
                self._tell("paused", self.source, "most deliveries fail")
            await pause(self._clock, wait, self._calm)

    def _no_probe(self) -> None:
        """What the breaker has let through was not run."""
        if self._breaker is not None:
            self._breaker.no_probe()

    def _follow(self, job: Job, step: Done | TryAgain) -> None:
        """Do what follows from an attempt."""
        breaker = self._breaker
        if breaker is not None and not (step is self._completed and breaker.is_calm):
            self._note(breaker, step)
        if job.failure is not None:
            self._tell("attempt_failed", self.source, job.delivery, job.attempt, job.failure)
            job.failure = None
        if isinstance(step, TryAgain):
            self._try_again(job, step)
        else:
            self._carry_out(job, step)

    def _note(self, breaker: Breaker, step: Done | TryAgain) -> None:
        if step is self._completed and not breaker.is_open:
            # What most are while some fail. It may be the last that the breaker has to see before it opens.
            breaker.record(failed=False, now=self._clock.monotonic())
            return
        if isinstance(step, TryAgain):
            if not breaker.is_open:
                return  # not yet an outcome; only a probe has said enough with its first attempt
            failed = True
        else:
            failed = _is_failure(step)
        breaker.record(failed=failed, now=self._clock.monotonic())
        if self._paused and not breaker.is_open:
            self._paused = False
            self._calm.set()
            self._tell("resumed", self.source)

    async def _traced(self, job: Job, slot: Slot) -> Done | TryAgain:
        ids = correlation_id_for(job.delivery)
        with self._listeners.spans(self.source, job.delivery, job.attempt, ids) as spans:
            step = await self._pipe.attempt(job, slot)
            if step.failure is not None:
                spans.failed(step.failure)
            return step

    # --- what follows ------------------------------------------------------------------------------------------

    def _carry_out(self, job: Job, done: Done) -> None:
        decision = done.decision
        if isinstance(decision, Complete):
            redrive = job.delivery.own_redrive if self._publish is not None else None
            if redrive is not None:
                group = job.delivery.origin.consumer_group or ""
                verdict = resolved(redrive, self.source, self._clock.now(), group)
                self._words.add(Word(job.delivery, verdict))
                return
            self._complete(job.delivery)
        elif isinstance(decision, GiveBack):
            if self._crash_log is not None:
                self._returned.add(job.delivery)
            self._tell("given_back", self.source, job.delivery, decision.after, done.failure)
            self._releases.add(Release(job.delivery, decision.after))
        elif done.failure is not None:
            self._deaths.add(Death(job.delivery, self._pipe.letter(job, decision, done.failure)))

    def _skip(self, delivery: Delivery) -> None:
        """Accept a redrive that another consumer group is meant to process."""
        self._no_probe()
        late = self._receiver.accept([delivery])
        self._tell("skipped", self.source, 1)
        if late:
            self._tell("too_late", self.source, late)

    def _complete(self, delivery: Delivery) -> None:
        if not self._accepted:
            self._loop.call_soon(self._accept)
        self._accepted.append(delivery)

    def _accept(self) -> None:
        """Everything that was completed in this turn."""
        done = self._accepted.copy()
        self._accepted.clear()
        if not done:
            return
        if not all(map(_is_alive, done)):
            for delivery in done:
                if not delivery.alive:
                    self._innocent.add(delivery)
        self._has_succeeded = True
        late = self._receiver.accept(done)
        self._tell("completed", self.source, len(done))
        if late:
            self._tell("too_late", self.source, late)

    async def _send_words(self, words: Sequence[Word]) -> Outcomes:
        """Say what became of redrives, then accept them. A verdict that is lost is no reason to do the work twice."""
        assert self._publish is not None  # noqa: S101  there are no words without it
        target = Target(name=QUEUE)
        messages = to_messages([word.verdict for word in words])
        outcomes = await self._publish([Publication(message, target) for message in messages])
        if lost := [error for error in outcomes if error is not None]:
            self._tell_failed("verdicts", lost[0])
        self._accepted += [word.delivery for word in words]
        self._accept()
        return [None] * len(words)

    def _try_again(self, job: Job, step: TryAgain) -> None:
        self._tell("retrying", self.source, job.delivery, job.attempt, step.failure, step.wait)
        task = asyncio.create_task(self._wait(job, step.wait))
        self._waiting[task] = job
        task.add_done_callback(self._has_waited)
        self._fit_window()

    async def _wait(self, job: Job, wait: timedelta) -> None:
        await self._clock.sleep(wait)
        job.attempt += 1
        self._again.append(job)
        self._more.set()

    def _has_waited(self, task: "asyncio.Task[None]") -> None:
        del self._waiting[task]
        self._fit_window()

    def _fit_window(self) -> None:
        """Those who wait between two attempts take no place from others: the window grows with them.

        Not so a window of one: who asks for that wants the messages one after the other.
        """
        usual = self._receiver.source.window
        if self._is_stopping or self._is_narrow or usual == 1:
            return
        over = min(len(self._waiting), self._options.max_waiting_retries) - usual // 2
        # In steps of the usual window, and one step late on the way down: a change costs a subscription.
        wanted = usual * (1 + max(0, -(-over // usual)))
        if wanted > self._window or wanted < self._window - usual:
            self._window = wanted
            self._receiver.resize(wanted)

    def _released(self, _release: Release, error: RedriveError | None) -> bool:
        if error is None:
            return False
        self._tell_failed("release", error)
        return True

    def _buried(self, death: Death, error: RedriveError | None) -> bool:
        """Tell of a dead letter; whether one that is not durable is to be tried again."""
        letter, lost = death.letter, error is not None and self._options.best_effort
        event = DeadLettered.of(
            letter,
            at=self._clock.now(),
            description=letter.failure.text,
            dead_letter_queue=self._receiver.source.dlq,
            delivery_count=death.delivery.delivery_count,
            error=None if error is None else self._redactor.clean(str(error)),
            error_stack=None if error is None else self._redactor.clean(_stack_of(error)),
            lost=lost,
        )
        self._tell("dead_lettered", event)
        self._callbacks.tell(event)
        if lost:
            self._receiver.accept([death.delivery])
        if self._crash_log is not None and self._crash_log.is_alert and (error is None or lost):
            self._crash_log.clear(death.delivery)
        return error is not None and not lost

    def _gone(self, count: int) -> None:
        self._tell("too_late", self.source, count)

    def _thread_is_stuck(self, count: int) -> None:
        problem = RuntimeError(
            "a handler did not stop after its timeout (consume.handler_timeout) and cannot be "
            f"interrupted; {count} threads are stuck"
        )
        self._tell_failed("handler-thread", problem)

    def _callback_failed(self, component: str, error: Exception) -> None:
        self._tell_failed(component, error)

    def _tell_failed(self, component: str, error: Exception) -> None:
        self._tell("failed", self.source, component, error)


def _stack_of(error: RedriveError) -> str:
    """The traceback of an error; one that was returned and never raised gets that of its caller."""
    if error.__traceback__ is None:
        try:
            raise error
        except RedriveError:
            pass
    return stack_of(error)


def _is_failure(done: Done) -> bool:
    """Whether the circuit breaker counts it: what a handler asked for itself is no failure."""
    if isinstance(done.decision, DeadLetterIt):
        return done.failure is None or done.failure.rule != "requested by the handler"
    return done.failure is not None


async def _ended(*tasks: "asyncio.Task[None]") -> None:
    """Cancel them and wait until they are gone, however they went."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
