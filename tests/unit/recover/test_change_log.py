"""The change log is kept for a time and up to a size, and the history of open letters survives."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from redrive.errors import SettingsError
from redrive.letters import LetterState
from redrive.recover.change_log import ChangeLogOptions, ChangeLogRetention
from redrive.stores.changes import Annotate, Resolve, Settlement
from redrive.stores.memory import MemoryStore
from redrive.testing import ManualClock
from redrive.testing.factories import BROKER, letters

DAY = timedelta(days=1)


class Log:
    """A store with a change log, and the service that trims it."""

    def __init__(self, *, segment: int = 10, **options: Any) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.retention = ChangeLogRetention(
            self.store, self.clock, ChangeLogOptions(**options), segment=segment
        )

    async def resolve(self, count: int, prefix: str) -> None:
        """Two lines for each of some letters that are done with."""
        await self.store.add(letters(count, prefix))
        heads = await self.store.claim("worker", broker=BROKER, limit=count)
        await self.store.settle([Settlement(head.claim_token, Resolve()) for head in heads])

    async def size(self) -> int:
        return (await self.store.measure_change_log()).bytes

    async def lines(self) -> int:
        return len(await self.store.journal(limit=10_000))


async def test_lines_older_than_the_period_are_deleted() -> None:
    log = Log()
    await log.resolve(30, "old")
    log.clock.advance(20 * DAY)
    await log.resolve(5, "new")
    await log.retention.turn()
    assert await log.lines() == 70
    log.clock.advance(11 * DAY)
    await log.retention.turn()
    assert await log.lines() == 10
    assert log.retention.deleted == 60


async def test_oldest_lines_are_deleted_when_the_log_is_too_large() -> None:
    log = Log(max_bytes=10_000)
    for number in range(40):
        await log.resolve(10, f"batch-{number}")
        await log.retention.turn()
        assert await log.size() <= 10_000
    assert log.retention.bytes == await log.size()
    assert await log.size() > 5_000, "no more than needed"
    newest = (await log.store.journal(limit=10_000))[-1]
    assert newest.number == 800


async def test_history_of_an_open_letter_survives_age_and_size() -> None:
    log = Log(max_bytes=5_000)
    [waiting] = letters(1, "waiting", retry_in=400 * DAY)
    await log.store.add([waiting])
    for number in range(5):
        await log.store.apply(Annotate(f"note {number}"), [waiting.id], by="ann")
    for number in range(10):
        await log.resolve(10, f"batch-{number}")
    log.clock.advance(100 * DAY)
    await log.retention.turn()
    lines = await log.store.journal(limit=10_000)
    assert [line.detail for line in lines] == [f"note {number}" for number in range(5)]
    assert (await log.store.load([waiting.id]))[0].state is LetterState.PENDING


async def test_trimming_ends_between_two_batches_and_goes_on_later() -> None:
    log = Log(max_bytes=2_000)
    await log.resolve(100, "batch")
    await log.retention._measure(None)
    stop = asyncio.Event()
    stop.set()
    await log.retention.turn(stop)
    assert await log.lines() == 200
    await log.retention.turn()
    assert await log.size() <= 2_000


async def test_service_trims_until_it_is_stopped() -> None:
    log = Log(age=DAY, every=timedelta(hours=1))
    await log.resolve(10, "old")
    stop = asyncio.Event()
    task = asyncio.create_task(log.retention.run(stop))
    for _ in range(1000):
        log.clock.advance(timedelta(hours=1))
        await asyncio.sleep(0)
        if not await log.lines():
            break
    stop.set()
    await asyncio.wait_for(task, 30)
    assert (await log.lines(), log.retention.deleted) == (0, 20)


@pytest.mark.parametrize("options", [{"age": timedelta(0)}, {"max_bytes": 0}, {"every": timedelta(0)}])
def test_limits_that_would_keep_nothing_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="greater than 0"):
        ChangeLogOptions(**options)  # type: ignore[arg-type]
