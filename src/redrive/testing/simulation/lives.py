"""What is a process that can be killed and stopped, on one event loop?

A life: everything that a process has begun since it was last started. When it dies, none of its tasks can do anything
more to the outside: its tasks are cancelled, and what their `finally` still tries is refused at the edge. When it is
frozen, as by SIGSTOP, whoever of it would go on waits at the edge until it is thawed, and does not know that time has
passed.

It does not know what the process does.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from redrive.testing.simulation.virtual import VirtualClock

_LIFE: Final[contextvars.ContextVar["Life | None"]] = contextvars.ContextVar("life", default=None)
_MANY: Final = 64


class Losable(Protocol):
    """Something that ends with the process that holds it."""

    def lose(self) -> None:
        """The process is gone."""


class Life:
    """One run of a process, from its start to its end."""

    def __init__(self, name: str, number: int, clock: VirtualClock) -> None:
        self.process = name
        self.consumes = name.startswith("consumer")
        self.number = number
        self.clock = LifeClock(self, clock)
        self.dead = False
        self.over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._frozen_until = 0.0
        self._tasks: list[asyncio.Task[Any]] = []
        self._held: list[Losable] = []

    @property
    def name(self) -> str:
        """The process and which of its lives this is."""
        return f"{self.process}#{self.number}"

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run this as the process's main task; everything that it starts belongs to the same life."""
        context = contextvars.copy_context()
        context.run(_LIFE.set, self)
        task: asyncio.Task[None] = context.run(self._loop.create_task, work)
        task.add_done_callback(lambda _: self.over.set())
        return task

    def owns(self, task: "asyncio.Task[Any]") -> None:
        """This task is part of this life."""
        if len(self._tasks) > _MANY:
            self._tasks = [each for each in self._tasks if not each.done()]
        self._tasks.append(task)

    def holds(self, thing: Losable) -> None:
        """This ends when the life does."""
        self._held.append(thing)

    def die(self) -> None:
        """Be killed: nothing that it does from now on reaches anybody."""
        if self.dead:
            return
        self.dead = True
        for thing in self._held:
            thing.lose()
        for task in self._tasks:
            task.cancel()
        self.over.set()

    def freeze(self, duration: timedelta) -> None:
        """Be stopped for so long."""
        self._frozen_until = max(self._frozen_until, self._loop.time() + duration.total_seconds())

    @property
    def frozen(self) -> bool:
        """Whether it stands still."""
        return not self.dead and self._frozen_until > self._loop.time()

    async def gate(self) -> None:
        """Wait while it is frozen; who is dead comes no further."""
        while self.frozen:  # noqa: ASYNC110  a time is waited for, and it may be frozen again meanwhile
            await asyncio.sleep(self._frozen_until - self._loop.time())
        if self.dead:
            raise asyncio.CancelledError


class LifeClock:
    """The clock as a process sees it: its own time of day may be wrong, and it stands still while it is frozen."""

    def __init__(self, life: Life, clock: VirtualClock) -> None:
        self._life = life
        self._clock = clock
        self.wrong_by = timedelta(0)

    def now(self) -> datetime:
        """The time of day, as far as this process knows."""
        return self._clock.now() + self.wrong_by

    def monotonic(self) -> timedelta:
        """Time since some fixed moment."""
        return self._clock.monotonic()

    async def sleep(self, duration: timedelta) -> None:
        """Wait for `duration`, and until the process runs."""
        await self._clock.sleep(duration)
        await self._life.gate()


class Process:
    """Something that is started again whenever it ends."""

    def __init__(
        self,
        name: str,
        work: Callable[[Life], Awaitable[None]],
        clock: VirtualClock,
        restart: Callable[[], timedelta],
        told: Callable[[Life, str], None],
    ) -> None:
        """`restart` says how long it takes to be started again; `told` hears of starts and ends."""
        self.name = name
        self._work = work
        self._clock = clock
        self._restart = restart
        self._told = told
        self.life: Life | None = None

    async def run(self) -> None:
        """Live again and again until cancelled."""
        number = 0
        while True:
            number += 1
            self.life = life = Life(self.name, number, self._clock)
            self._told(life, "starts")
            task = life.start(self._live(life))
            await life.over.wait()
            why = "is killed" if life.dead else "ends"
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                why = f"ends: {type(error).__name__}: {error}"
            life.die()
            self._told(life, why)
            await self._clock.sleep(self._restart())

    async def _live(self, life: Life) -> None:
        await self._work(life)


class Tasks:
    """All tasks of a loop that may still run."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def add(self, task: "asyncio.Task[Any]") -> None:
        """This one has begun."""
        if len(self._tasks) > 4 * _MANY:
            self._tasks = self.running()
        self._tasks.append(task)

    def running(self) -> "list[asyncio.Task[Any]]":
        """Those that have not ended."""
        return [task for task in self._tasks if not task.done()]


def adopt(loop: asyncio.AbstractEventLoop) -> Tasks:
    """From now on, tasks of this loop belong to the life that makes them; all tasks from now on."""
    tasks = Tasks()

    def made(
        loop: asyncio.AbstractEventLoop,
        coroutine: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        **more: Any,
    ) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **more)
        tasks.add(task)
        life = _LIFE.get()
        if life is not None:
            if life.dead:
                task.cancel()
            life.owns(task)
        return task

    loop.set_task_factory(made)
    return tasks
