"""Keep `SystemExit` and `KeyboardInterrupt` of a handler's own tasks from ending the event loop.

asyncio passes these two out of the loop when a task raises them, past everything that waits for the task. A handler
that calls `asyncio.gather` would so end the process by an exit in one of its branches. While a consumer runs, tasks
that are created by handlers raise `RuntimeError` instead, which the handler gets from what it awaits, as any error.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

IN_HANDLER: Final[ContextVar[bool]] = ContextVar("redrive_in_handler", default=False)


@contextmanager
def contained_tasks() -> Iterator[None]:
    """Contain the tasks of handlers on this loop, unless the loop has a task factory of its own."""
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is not None:
        yield
        return
    loop.set_task_factory(_make_task)
    try:
        yield
    finally:
        if loop.get_task_factory() is _make_task:
            loop.set_task_factory(None)


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    if IN_HANDLER.get() and asyncio.iscoroutine(coroutine):
        coroutine = _contained(coroutine)
    return asyncio.Task(coroutine, loop=loop, **options)


async def _contained(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"{type(error).__name__} was raised in a task of the handler: {error}") from error
