"""Where does a handler run, and who ends it when it takes too long (A5)?

A runner has as many slots as its concurrency. A slot runs one call at a time: a coroutine on the event loop, a plain
function in the slot's own thread. One timer watches all slots of a runner, so that a quick handler costs no timer.

What overruns its budget is cancelled and comes out as a `TimeoutError`. A thread cannot be cancelled: it is left to
itself, the slot gets a new one, and when too many are left over, slots wait for one of them to end. Threads are
daemons: a handler that hangs does not keep the process from ending.
"""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from redrive.rules import format_duration

_MOST_LEFT_OVER: Final = 20


class Slots:
    """The slots of one runner, and the timer that watches them."""

    def __init__(self, budget: timedelta, stuck: Callable[[int], None]) -> None:
        """`stuck` hears of each thread that was left to itself, with how many there are now."""
        self.budget = budget
        self.seconds = budget.total_seconds()
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        self._slots: list[Slot] = []
        self._timer: asyncio.TimerHandle | None = None
        self.is_watching = False
        self._stuck = stuck
        self._left_over = 0
        self._one_ended = asyncio.Event()

    def open(self) -> "Slot":
        """A slot for the task that asks."""
        slot = Slot(self)
        self._slots.append(slot)
        return slot

    def busy(self) -> "list[asyncio.Task[Any]]":
        """The tasks in whose slots something runs."""
        return [slot.task for slot in self._slots if slot.deadline is not None]

    def close(self) -> None:
        """Watch no more, and let idle threads end."""
        if self._timer is not None:
            self._timer.cancel()
        for slot in self._slots:
            slot.close()

    def watch(self, deadline: float) -> None:
        """Something began that must have ended then."""
        self._timer = self._loop.call_at(deadline, self._look)
        self.is_watching = True

    def _look(self) -> None:
        """Cancel what has overrun; look again when the next one could."""
        now = self.time()
        self.is_watching = False
        earliest: float | None = None
        for slot in self._slots:
            if slot.deadline is None:
                continue
            if slot.deadline <= now:
                slot.cancel()
                slot.deadline = now + self.seconds  # one that does not listen is told again
            earliest = slot.deadline if earliest is None else min(earliest, slot.deadline)
        if earliest is not None:
            self.watch(earliest)

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
    """A place where one handler runs at a time: what is done `with` it is held to the budget."""

    __slots__ = ("_lane", "_overran", "_slots", "deadline", "task")

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a slot is opened by the task that works in it
        self.task = task
        self._lane: _Lane | None = None
        self._overran = False
        self.deadline: float | None = None

    def __enter__(self) -> None:
        """For each message: the way of those that end in time is short."""
        slots = self._slots
        self.deadline = slots.time() + slots.seconds
        if not slots.is_watching:
            slots.watch(self.deadline)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.deadline = None
        if error is not None or self._overran:
            self._ended(error)

    def _ended(self, error: BaseException | None) -> None:
        """What was cancelled because it overran comes out as a `TimeoutError`."""
        overran, self._overran = self._overran, False
        if overran:  # also what came to its end by itself, after it was told to
            self.task.uncancel()
        if not isinstance(error, asyncio.CancelledError) or self.task.cancelling():
            return
        if overran:
            budget = format_duration(self._slots.budget)
            raise TimeoutError(f"the handler took longer than its time budget of {budget}") from None
        raise RuntimeError("something that the handler waited for was cancelled") from None

    def cancel(self) -> None:
        """What runs here has overrun."""
        if not self._overran:
            self._overran = True
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
            self.deadline = self._slots.time() + self._slots.seconds  # the wait for a thread was not its own
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


def _succeed(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        if isinstance(error, StopIteration):  # a future refuses it
            error = RuntimeError("the handler raised StopIteration")
        future.set_exception(error)
