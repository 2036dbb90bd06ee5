"""Where does a handler run, and who ends it when it takes too long?

A runner has as many slots as its concurrency. A slot runs one call at a time: a coroutine on the event loop, a plain
function in the slot's own thread. A call that begins or ends costs a number that is counted up, and no look at the
clock: while something runs, one timer looks at all slots of a runner from time to time, and tells by those numbers what
has been running since when. So a call may take longer than its budget by a part of it, `_LATE`, before it is noticed.

What overruns its budget is cancelled and comes out as a `TimeoutError`. A thread cannot be cancelled: it is left to
itself, the slot gets a new one, and when too many are left over, slots wait for one of them to end. Threads are
daemons: a handler that hangs does not keep the process from ending.
"""

import asyncio
import contextvars
import queue
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from redrive.rules import format_duration

E = TypeVar("E", bound=BaseException)
_MOST_LEFT_OVER: Final = 20
_LATE: Final = 1 / 16  # of the budget


class Slots:
    """The slots of one runner, and the timer that watches them."""

    def __init__(self, budget: timedelta, stuck: Callable[[int], None]) -> None:
        """`stuck` hears of each thread that was left to itself, with how many there are now."""
        self.budget = budget
        self._seconds = budget.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._slots: list[Slot] = []
        self._timer: asyncio.TimerHandle | None = None
        self._stuck = stuck
        self._left_over = 0
        self._one_ended = asyncio.Event()
        self.is_stopping = False

    def open(self) -> "Slot":
        """A slot for the task that asks."""
        slot = Slot(self, len(self._slots))
        self._slots.append(slot)
        return slot

    def busy(self) -> "list[asyncio.Task[Any]]":
        """The tasks in whose slots something runs."""
        return [slot.task for slot in self._slots if slot.turn % 2]

    def is_anything_beside(self, slot: "Slot") -> bool:
        """Whether something runs in another slot."""
        return any(other.turn % 2 for other in self._slots if other is not slot)

    def close(self) -> None:
        """Watch no more, and let idle threads end."""
        if self._timer is not None:
            self._timer.cancel()
        for slot in self._slots:
            slot.close()

    def watch(self) -> None:
        """Something begins. To be called once before calls that follow each other without a pause."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds * _LATE, self._look)

    def _look(self) -> None:
        """Cancel what has overrun; look again while anything runs."""
        now = self._loop.time()
        self._timer = None
        for slot in self._slots:
            if slot.turn % 2 == 0:
                continue
            if slot.seen != slot.turn:
                slot.seen, slot.since = slot.turn, now
            elif now - slot.since >= self._seconds:
                slot.cancel()
                slot.since = now  # one that does not listen is told again
            self.watch()

    async def room_for_a_thread(self) -> None:
        """Wait while too many threads are left to themselves."""
        while self._left_over >= _MOST_LEFT_OVER:
            self._one_ended.clear()
            await self._one_ended.wait()

    def left(self) -> None:
        """A thread is left to itself."""
        self._left_over += 1
        self._stuck(self._left_over)

    def ended(self) -> None:
        """One of those has ended after all."""
        self._left_over -= 1
        self._one_ended.set()


class Slot:
    """A place where one handler runs at a time: what is done `with` it is held to the budget.

    Who cannot spare that for each message counts `turn` up by hand, before and after, and asks `failed` or `overran`.
    """

    __slots__ = ("_lane", "_slots", "number", "overran", "seen", "since", "task", "turn")

    def __init__(self, slots: Slots, number: int) -> None:
        self._slots = slots
        self.number = number
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a slot is opened by the task that works in it
        self.task = task
        self.turn = 0  # odd: something runs
        self.seen = 0  # which one ran when the timer looked last
        self.since = 0.0  # when it was first seen
        self.overran = False
        self._lane: _Lane | None = None

    def __enter__(self) -> None:
        self._slots.watch()
        self.turn += 1

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and (told := self.failed(error)) is not error:
            raise told from None
        if error is None:
            self.turn += 1
            if self.overran:
                self.forgive()

    def failed(self, error: E) -> E | Exception:
        """What ran has ended with this error; by what it is to be judged: what was cancelled has taken too long."""
        self.turn += 1
        _free_memory(error)
        overran = self.overran
        if overran:
            self.forgive()
        if not isinstance(error, asyncio.CancelledError) or self.task.cancelling():
            return error
        if overran:
            budget = format_duration(self._slots.budget)
            return TimeoutError(f"the handler did not finish within its timeout of {budget}")
        return RuntimeError("an operation that the handler awaited was cancelled")

    def passes_on(self, error: BaseException) -> bool:
        """Whether an error that was raised in this slot is not the message's: it ends the consumer.

        That is a cancellation of the task, a second Ctrl-C while the consumer stops, and the end of the coroutine
        itself. Everything else that a handler raises is a failed attempt, also `SystemExit` and `KeyboardInterrupt`.
        """
        if isinstance(error, asyncio.CancelledError):
            return self.task.cancelling() > 0
        if isinstance(error, KeyboardInterrupt):
            return self._slots.is_stopping
        return isinstance(error, GeneratorExit) and not _is_running(self.task)

    def forgive(self) -> None:
        """What ran came to its end, after it was told to: the next one is not to blame."""
        self.overran = False
        self.task.uncancel()

    def cancel(self) -> None:
        """What runs here has overrun."""
        if not self.overran:
            self.overran = True
            self.task.cancel()

    def close(self) -> None:
        """Nothing more runs here."""
        if self._lane is not None:
            self._lane.leave()
            self._lane = None

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        """What the call gives, run in the thread of this slot."""
        if self._lane is None:
            await self._slots.room_for_a_thread()
            self.turn += 2  # the wait for a thread was not its own
            self._lane = _Lane()
        lane = self._lane
        try:
            return await lane.run(call)
        except asyncio.CancelledError:
            self._lane = None
            self._slots.left()
            lane.leave(self._slots.ended)
            raise


class _Lane:
    """A thread that runs one call after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._ended: Callable[[], None] | None = None
        threading.Thread(target=self._work, name="redrive-handler", daemon=True).start()

    def run(self, call: Callable[[], Any]) -> "asyncio.Future[Any]":
        """What the call will have given."""
        future: asyncio.Future[Any] = self._loop.create_future()
        context = contextvars.copy_context()
        self._calls.put((lambda: context.run(call), future))
        return future

    def leave(self, ended: Callable[[], None] | None = None) -> None:
        """End after what is running; `ended` is called on the loop then."""
        self._ended = ended
        self._calls.put(None)

    def _work(self) -> None:
        while (job := self._calls.get()) is not None:
            call, future = job
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001  it belongs to whoever waits for the result
                _free_memory(error)
                self._tell(_fail, future, error)
            else:
                self._tell(_succeed, future, result)
            del call, future
        if self._ended is not None:
            self._tell(self._ended)

    def _tell(self, what: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *args)
        except RuntimeError:
            return  # the loop has ended, and with it whoever waited


def _free_memory(error: BaseException) -> None:
    """Release the local variables of a handler that ran out of memory: what follows an error needs some of it."""
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)


def _is_running(task: "asyncio.Task[Any]") -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # the loop has ended
        return False


def _succeed(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        if isinstance(error, StopIteration | GeneratorExit):  # a future refuses it, or a coroutine ends by it
            error = RuntimeError(f"{type(error).__name__} was raised").with_traceback(error.__traceback__)
        future.set_exception(error)
