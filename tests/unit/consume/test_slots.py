"""A slot: what runs in it is ended when its time is over, and nobody else's cancelling is mistaken for that."""

import asyncio
from datetime import timedelta

import pytest

from redrive.consume.slots import Slot, Slots

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
        with pytest.raises(TimeoutError, match="longer than its time budget of 1ms"), slot:
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

    with pytest.raises(RuntimeError, match="waited for was cancelled"), slots.open():
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
