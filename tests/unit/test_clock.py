"""The machine's clock and the one that only a test moves keep the same promises."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from redrive.clock import Clock, SystemClock, pause, until_first
from redrive.testing import ManualClock

NOON = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ZERO = timedelta(0)


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=["system", "manual"])
async def test_a_clock_tells_utc_and_never_goes_back(clock: Clock) -> None:
    assert clock.now().tzinfo is UTC
    readings = [clock.monotonic() for _ in range(100)]
    assert all(early <= late for early, late in pairwise(readings))
    for duration in (ZERO, -MINUTE):
        await clock.sleep(duration)  # gives way, and waits for nothing


async def test_the_system_clock_is_the_machines() -> None:
    before = datetime.now(UTC)
    now = SystemClock().now()
    assert before <= now <= datetime.now(UTC)


async def test_the_system_clock_waits_at_least_as_long_as_asked() -> None:
    clock = SystemClock()
    start = clock.monotonic()
    await clock.sleep(timedelta(milliseconds=5))
    assert clock.monotonic() - start >= timedelta(milliseconds=4)


async def test_sleeping_for_nothing_gives_way_to_others() -> None:
    seen: list[str] = []

    async def other() -> None:
        seen.append("other")

    task = asyncio.create_task(other())
    await SystemClock().sleep(ZERO)
    assert seen == ["other"]
    await task


def test_the_manual_clock_stands_still() -> None:
    clock = ManualClock(NOON)
    assert clock.now() == clock.now() == NOON
    assert clock.monotonic() == ZERO


async def test_sleepers_wake_when_their_time_has_come_and_not_before() -> None:
    clock = ManualClock(NOON)
    woken: list[int] = []

    async def sleeper(minutes: int) -> None:
        await clock.sleep(minutes * MINUTE)
        woken.append(minutes)

    tasks = [asyncio.create_task(sleeper(minutes)) for minutes in (3, 1, 2, 1)]
    await asyncio.sleep(0)
    assert clock.sleepers == 4

    clock.advance(MINUTE - timedelta(microseconds=1))
    await asyncio.sleep(0)
    assert woken == []

    clock.advance(timedelta(microseconds=1))
    await asyncio.sleep(0)
    assert woken == [1, 1]

    clock.advance(2 * MINUTE)
    await asyncio.gather(*tasks)
    assert woken == [1, 1, 2, 3]
    assert clock.sleepers == 0
    assert clock.now() == NOON + 3 * MINUTE


async def test_a_sleeper_that_gave_up_is_passed_over() -> None:
    clock = ManualClock()
    gone, stays = (asyncio.create_task(clock.sleep(MINUTE)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert clock.sleepers == 1
    clock.advance(MINUTE)
    await stays


async def test_a_jump_moves_the_time_of_day_and_wakes_nobody() -> None:
    clock = ManualClock(NOON)
    task = asyncio.create_task(clock.sleep(MINUTE))
    await asyncio.sleep(0)
    clock.jump(timedelta(days=1))
    await asyncio.sleep(0)
    assert not task.done()
    assert clock.now() == NOON + timedelta(days=1)
    assert clock.monotonic() == ZERO
    clock.jump(timedelta(days=-2))
    assert clock.now() == NOON - timedelta(days=1)
    clock.advance(MINUTE)
    await task


def test_time_cannot_be_advanced_backwards() -> None:
    with pytest.raises(ValueError, match="use jump"):
        ManualClock().advance(-MINUTE)


async def test_a_pause_ends_when_its_time_is_over_or_when_it_is_stopped() -> None:
    clock, stop = ManualClock(NOON), asyncio.Event()
    pausing = asyncio.create_task(pause(clock, MINUTE, stop))
    await asyncio.sleep(0)
    assert not pausing.done()
    await asyncio.sleep(0)
    clock.advance(MINUTE)
    await asyncio.wait_for(pausing, 5)
    pausing = asyncio.create_task(pause(clock, MINUTE, stop))
    stop.set()
    await asyncio.wait_for(pausing, 5)
    assert clock.now() == NOON + MINUTE


async def test_who_waits_for_the_first_of_several_gives_up_the_others_even_when_cancelled() -> None:
    given_up: list[str] = []

    async def for_ever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append(name)

    await asyncio.wait_for(until_first(for_ever("a"), asyncio.sleep(0), for_ever("b")), 5)
    await asyncio.sleep(0)
    assert given_up == ["a", "b"]
    waiting = asyncio.create_task(until_first(for_ever("c"), for_ever("d")))
    for _ in range(5):  # both have begun
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(0)
    assert given_up == ["a", "b", "c", "d"]
