"""How do many tasks write durably without each waiting for its own commit?

What tasks ask for while a transaction is under way gathers, and goes together in the next one (group commit). A task's
future is done only after the commit, so whoever awaited it can rely on it. Where one of a group cannot be stored, each
of the group is tried by itself, so that it disturbs no other.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from redrive.errors import LetterInvalidError

J = TypeVar("J")
A = TypeVar("A")


class _Waiting(NamedTuple, Generic[J, A]):
    job: J
    weight: int
    future: "asyncio.Future[A]"


class Lane(Generic[J, A]):
    """Carries out jobs in groups, one group at a time. `carry_out` gives one answer for each job of a group."""

    def __init__(self, carry_out: Callable[[Sequence[J]], Awaitable[list[A]]], *, largest: int) -> None:
        """`largest` is the weight of a group, give or take one job."""
        self._carry_out = carry_out
        self._largest = largest
        self._waiting: deque[_Waiting[J, A]] = deque()
        self._running: asyncio.Task[None] | None = None

    def submit(self, job: J, weight: int) -> "asyncio.Future[A]":
        """The answer to come."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        self._waiting.append(_Waiting(job, weight, future))
        if self._running is None:
            self._running = loop.create_task(self._run())
        return future

    async def drain(self) -> None:
        """Until all that was asked for is done."""
        while self._running is not None:
            await asyncio.wait((self._running,))

    async def _run(self) -> None:
        try:
            await asyncio.sleep(0)  # whatever else this turn of the loop asks for, goes along
            while self._waiting:
                await self._carry(self._group())
        finally:
            self._running = None

    def _group(self) -> list[_Waiting[J, A]]:
        group: list[_Waiting[J, A]] = []
        weight = 0
        while self._waiting and weight < self._largest:
            group.append(self._waiting.popleft())
            weight += group[-1].weight
        return group

    async def _carry(self, group: list[_Waiting[J, A]]) -> None:
        try:
            answers = await self._carry_out([each.job for each in group])
        except LetterInvalidError as error:
            if len(group) == 1:
                _tell(group[0].future, error)
                return
            for each in group:
                await self._carry([each])
        except asyncio.CancelledError:  # the loop comes to its end
            for each in group:
                each.future.cancel()
            raise
        except Exception as error:  # noqa: BLE001  whoever waits must hear of it, whatever it is
            for each in group:
                _tell(each.future, error)
        else:
            for each, answer in zip(group, answers, strict=True):
                if not each.future.done():  # cancelled meanwhile; the work itself is done
                    each.future.set_result(answer)


def _tell(future: "asyncio.Future[A]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
