"""Incidents are kept in memory while the store is not available, and merged when it is back."""

from datetime import timedelta

import pytest

from redrive.errors import StoreError
from redrive.stores.memory import MemoryStore
from redrive.testing import ManualClock
from redrive.watch.alerts.alarm import Alarm
from redrive.watch.alerts.alert import Alert
from redrive.watch.alerts.rules import AlertRule, Measured
from redrive.watch.alerts.written import Document, Written

RULES = [AlertRule(name="full", measure="backlog", critical=0, text="{subject}")]


class BrokenStore(MemoryStore):
    """Refuses to be written while it is broken."""

    is_broken = False

    async def remember(self, name: str, body: bytes, *, version: int) -> bool:
        if self.is_broken:
            raise StoreError("no")
        return await super().remember(name, body, version=version)


class Place:
    """A server's view of the incidents."""

    def __init__(
        self, store: BrokenStore, clock: ManualClock, prefix: str, *, in_memory: bool = True
    ) -> None:
        self.available = True
        self.written = Written(store, is_available=(lambda: self.available) if in_memory else None)
        numbers = iter(range(100))
        self._alarm = Alarm(RULES, make_id=lambda _key: f"{prefix}{next(numbers)}")
        self._clock = clock

    async def measure(self, subject: str, value: float) -> list[Alert]:
        measured = [Measured(measure="backlog", subject=subject, value=value)]

        def change(document: Document) -> list[Alert]:
            return self._alarm.looked(document.book, measured, self._clock.now())

        return await self.written.change(change)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> BrokenStore:
    return BrokenStore(clock)


async def subjects(store: BrokenStore) -> dict[str, str]:
    """Subject → id of the incidents that are stored."""
    book = await Written(store).book()
    return {incident.subject: incident.id for incident in book.current.values()}


@pytest.mark.parametrize("known", [False, True], ids=["found by the write", "known before"])
async def test_incident_is_raised_once_while_the_store_is_broken_and_stored_later(
    store: BrokenStore, clock: ManualClock, *, known: bool
) -> None:
    place = Place(store, clock, "a")
    assert len(await place.measure("one", 1)) == 1
    store.is_broken = True
    place.available = not known
    # Raised from memory, and once
    assert len(await place.measure("two", 1)) == 1
    assert await place.measure("two", 1) == []
    book = await place.written.book()
    assert {incident.subject for incident in book.current.values()} == {"one", "two"}
    # When the store is back, it has both, and nothing is raised again
    store.is_broken = False
    place.available = True
    assert await place.measure("two", 1) == []
    assert set(await subjects(store)) == {"one", "two"}


async def test_incident_that_ended_in_memory_is_over_in_the_store(
    store: BrokenStore, clock: ManualClock
) -> None:
    place = Place(store, clock, "a")
    await place.measure("one", 1)
    store.is_broken = True
    await place.measure("one", 0)
    clock.advance(timedelta(minutes=10))
    [over] = await place.measure("one", 0)
    assert over.is_over
    store.is_broken = False
    assert await place.measure("other", 0) == []
    book = await Written(store).book()
    assert (book.current, [incident.id for incident in book.over]) == ({}, ["a0"])


async def test_changes_of_others_survive_the_merge(store: BrokenStore, clock: ManualClock) -> None:
    here, there = Place(store, clock, "a"), Place(store, clock, "b")
    await here.measure("one", 1)
    here.available = False
    await here.measure("two", 1)
    # Meanwhile another server finds something, and somebody acknowledges the first
    await there.measure("three", 1)
    await there.written.change(lambda document: document.book.acknowledge("a0", "mary", clock.now()))
    here.available = True
    await here.measure("two", 1)
    assert await subjects(store) == {"one": "a0", "two": "a1", "three": "b0"}
    book = await Written(store).book()
    assert {incident.subject: incident.acknowledged_by for incident in book.current.values()}["one"] == "mary"


async def test_change_fails_with_the_store_where_nothing_is_kept_in_memory(
    store: BrokenStore, clock: ManualClock
) -> None:
    place = Place(store, clock, "a", in_memory=False)
    store.is_broken = True
    with pytest.raises(StoreError):
        await place.measure("one", 1)
