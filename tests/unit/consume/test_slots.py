"""A slot: what runs in it is ended when its time is over, and nobody else's cancelling is mistaken for that."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest

from redrive.consume.slots import Slot, Slots
from redrive.testing.simulation.virtual import VirtualLoop

LONG = timedelta(minutes=1)
AT_ONCE = timedelta(milliseconds=1)


def slots_of(budget: timedelta) -> Slots:
    return Slots(budget, lambda _: None)


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_what_overruns_its_budget_comes_out_as_a_timeout_and_the_task_goes_on() -> None:
    slots = slots_of(AT_ONCE)
    slot = slots.open()

    for _ in range(2):
        with pytest.raises(TimeoutError, match="within its timeout of 1ms"), slot:
            await for_ever()

    assert not slot.task.cancelling()
    slots.close()


async def in_its_own_way() -> None:
    try:
        await for_ever()
    except asyncio.CancelledError:
        raise ValueError("its own") from None


async def test_what_was_told_to_end_and_does_so_in_its_own_way_leaves_nothing_behind() -> None:
    slots = slots_of(AT_ONCE)
    slot = slots.open()

    with pytest.raises(ValueError, match="its own"), slot:
        await in_its_own_way()

    assert not slot.task.cancelling()
    slots.close()


async def test_something_that_was_waited_for_and_cancelled_does_not_end_the_worker() -> None:
    slots = slots_of(LONG)
    other = asyncio.get_running_loop().create_future()
    other.cancel()

    with pytest.raises(RuntimeError, match="awaited was cancelled"), slots.open():
        await other

    slots.close()


@pytest.mark.parametrize("overran", [False, True])
async def test_a_worker_that_is_cancelled_is_cancelled_also_when_its_handler_has_just_overrun(
    overran: bool,
) -> None:
    slots = slots_of(LONG)
    opened: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        slot = slots.open()
        opened.set_result(slot)
        with slot:
            await for_ever()

    worker = asyncio.create_task(work())
    slot = await opened
    assert slots.busy() == [worker]

    if overran:
        slot.cancel()
    worker.cancel()

    with pytest.raises(asyncio.CancelledError):
        await worker
    assert slots.busy() == []
    slots.close()


# --- when it is noticed: in virtual time, so that seconds are exact ---------------------------------------------


def in_virtual_time(work: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


@pytest.mark.parametrize("idle", [0.0, 0.3, 1.0, 40.5])
def test_what_overruns_is_noticed_at_once_or_within_a_sixteenth_of_the_budget(idle: float) -> None:
    async def work() -> None:
        slots, now = slots_of(timedelta(seconds=16)), asyncio.get_running_loop().time
        slot = slots.open()
        with slot:
            await asyncio.sleep(0.1)  # the timer was begun by another call
        await asyncio.sleep(idle)
        begun = now()
        with pytest.raises(TimeoutError), slot:
            await for_ever()
        assert 16 <= now() - begun <= 17
        slots.close()

    in_virtual_time(work())


def test_calls_that_each_keep_to_their_budget_are_not_ended_however_many_follow_each_other() -> None:
    async def work() -> None:
        slots = slots_of(timedelta(seconds=16))
        slot = slots.open()
        slots.watch()
        for _ in range(10):
            slot.turn += 1
            await asyncio.sleep(15.9)
            slot.turn += 1
        assert not slot.overran
        slots.close()

    in_virtual_time(work())


def test_nothing_is_watched_while_nothing_runs() -> None:
    """A timer that never rests would keep an idle process busy, and the virtual loop from seeing that it is stuck."""

    async def work() -> None:
        slots, loop = slots_of(timedelta(seconds=16)), asyncio.get_running_loop()
        with slots.open():
            await asyncio.sleep(15)
        await asyncio.sleep(2)
        assert not loop._scheduled  # type: ignore[attr-defined]  # asyncio's own list of timers
        slots.close()

    in_virtual_time(work())
