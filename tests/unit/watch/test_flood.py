"""A flood of equal lines is cut to a few, and what was cut is told."""

import asyncio
from datetime import timedelta

import pytest

from redrive.errors import SettingsError
from redrive.testing import ManualClock
from redrive.watch.flood import Flood

SECOND = timedelta(seconds=1)


class Told(list[tuple[str, int]]):
    def __call__(self, kind: str, count: int) -> None:
        self.append((kind, count))


def test_the_first_lines_of_a_kind_pass_and_the_rest_is_counted() -> None:
    clock, told = ManualClock(), Told()
    flood = Flood(3, told, clock)
    assert [flood.lets("a") for _ in range(5)] == [True, True, True, False, False]
    assert flood.lets("b"), "another kind is another flood"
    assert told == []
    clock.advance(SECOND)
    assert flood.lets("a")
    assert told == [("a", 2)], "before the next of its kind"
    flood.tell()
    assert told == [("a", 2)], "told once, and nothing where nothing was kept back"


async def test_a_flood_that_has_ended_is_told_of_by_itself() -> None:
    clock, told = ManualClock(), Told()
    flood = Flood(1, told, clock)
    for _ in range(4_322):
        flood.lets("a")
    await asyncio.sleep(0)  # the one that tells begins to wait
    assert clock.sleepers == 1, "one, however many lines"
    clock.advance(SECOND)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert told == [("a", 4_321)]


async def test_a_flood_that_goes_on_is_told_of_every_second() -> None:
    clock, told = ManualClock(), Told()
    flood = Flood(10, told, clock)
    passed = 0
    for _ in range(50):
        passed += sum(flood.lets("a") for _ in range(100))
        clock.advance(SECOND / 10)
        for _ in range(3):
            await asyncio.sleep(0)
    flood.tell()
    assert passed + sum(count for _, count in told) == 5_000, "each line was written or counted"
    assert 50 <= passed <= 110
    assert 5 <= len(told) <= 11


def test_a_loop_that_ends_leaves_nothing_untold() -> None:
    told = Told()

    async def burst() -> None:
        flood = Flood(2, told, ManualClock())
        for _ in range(10):
            flood.lets("a")
        await asyncio.sleep(0)

    asyncio.run(burst())
    assert told == [("a", 8)]


def test_kinds_without_end_do_not_stay() -> None:
    told = Told()
    flood = Flood(1, told, ManualClock())
    for number in range(5_000):
        flood.lets(f"{number}")
        flood.lets(f"{number}")
    assert len(flood._seconds) <= 1_000
    flood.tell()
    assert len(told) == 5_000


@pytest.mark.parametrize("most", [0, -1, 1.5, True, "20"])
def test_a_limit_that_is_none_is_refused(most: int) -> None:
    with pytest.raises(SettingsError, match="lines per second must be an integer of at least 1"):
        Flood(most, Told(), ManualClock())
