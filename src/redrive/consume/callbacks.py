"""Who is called when a message was dead-lettered?

The rule: one callback that fails, hangs or is slow hurts neither another callback nor the consumer. Events are told
in order, one after the other, beside the consumer; a plain function is called in a thread. Events that cannot be told
because the callbacks are too slow are dropped, and that is reported.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from redrive.letters.event import DeadLettered

Callback: TypeAlias = Callable[[DeadLettered], Awaitable[None] | None]
Failed: TypeAlias = Callable[[str, Exception], None]
_MOST_WAITING: Final = 10_000
_TIME_BUDGET: Final = 30.0  # seconds for one callback and one event


class Callbacks:
    """The callbacks of one consumer."""

    def __init__(self, callbacks: Sequence[Callback], failed: Failed) -> None:
        self._callbacks = [(callback, _is_async(callback)) for callback in callbacks]
        self._failed = failed
        self._waiting: deque[DeadLettered] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def tell(self, event: DeadLettered) -> None:
        """Call them all, soon."""
        if not self._callbacks:
            return
        if len(self._waiting) >= _MOST_WAITING:
            problem = RuntimeError(
                f"more than {_MOST_WAITING} events are queued for callbacks; the event of letter "
                f"{event.letter_id} was dropped"
            )
            self._failed("callbacks", problem)
            return
        self._waiting.append(event)
        self._idle.clear()
        self._wake.set()

    async def empty(self) -> None:
        """Wait until every event was told."""
        await self._idle.wait()

    async def run(self) -> None:
        """Tell events until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                event = self._waiting.popleft()
                for callback, is_async in self._callbacks:
                    await self._call(callback, event, is_async=is_async)
            self._idle.set()

    async def _call(self, callback: Callback, event: DeadLettered, *, is_async: bool) -> None:
        try:
            async with asyncio.timeout(_TIME_BUDGET):
                answer = callback(event) if is_async else await asyncio.to_thread(_called, callback, event)
                if inspect.isawaitable(answer):
                    await answer
        except BaseException as error:
            # Whatever it is, it is the callback's own, unless this task is cancelled or closed.
            task = asyncio.current_task()
            if task is None or (isinstance(error, asyncio.CancelledError) and task.cancelling()):
                raise
            name = getattr(callback, "__qualname__", type(callback).__name__)
            self._failed(f"callback {name}", _as_exception(error))


def _called(callback: Callback, event: DeadLettered) -> Awaitable[None] | None:
    """Call in a thread. A future cannot carry every exception, `GeneratorExit` for example, to who waits for it."""
    try:
        return callback(event)
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise _as_exception(error) from None


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"{type(error).__name__} was raised: {error}").with_traceback(error.__traceback__)


def _is_async(callback: Callback) -> bool:
    call = callback if inspect.isroutine(callback) else type(callback).__call__
    return inspect.iscoroutinefunction(call)
