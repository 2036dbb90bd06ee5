"""H10: when a source works again, the letters that waited for it are due at once."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from redrive.errors import StoreClosedError
from redrive.letters import DeadLetter
from redrive.recover.retention import NEVER_DUE
from redrive.serve.awaken import Awakening
from redrive.stores.memory import MemoryStore
from redrive.testing import ManualClock
from redrive.testing.factories import a_letter


class Place:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.woken = 0
        self.awakening = Awakening(self.store, self.clock, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def a_letter(
        self, key: str, *, source: str = "orders", strategy: str = "conditional", **fields: object
    ) -> DeadLetter:
        letter = a_letter(key, source=source)
        due = self.clock.now() + timedelta(hours=1)
        return msgspec.structs.replace(letter, **{"strategy": strategy, "next_retry_at": due, **fields})

    async def claimed(self) -> set[str]:
        return {head.id for head in await self.store.claim("w", broker="rabbitmq", limit=1000)}


@pytest.fixture
def place() -> Place:
    return Place()


async def test_only_letters_that_waited_for_this_source_are_due(place: Place) -> None:
    # Given letters of two sources, with several strategies, none of them due
    mine = [place.a_letter(f"m{number}") for number in range(3)]
    others = [
        place.a_letter("another source", source="payments"),
        place.a_letter("another strategy", strategy="scheduled"),
        place.a_letter("is being restored", next_retry_at=NEVER_DUE),
    ]
    await place.store.add([*mine, *others])
    assert await place.claimed() == set()
    # When the source works again
    place.awakening.recovered("orders")
    await place.awakening.turn()
    # Then its own can be claimed, and the workers were told
    assert await place.claimed() == {letter.id for letter in mine}
    assert (place.woken, place.awakening.awakened) == (1, 3)
    assert {line.actor for line in await place.store.journal() if line.action == "schedule"} == {"recovered"}


async def test_more_letters_than_a_page_are_all_due(place: Place) -> None:
    letters = [place.a_letter(f"m{number}") for number in range(1203)]
    await place.store.add(letters)
    place.awakening.recovered("orders")
    await place.awakening.turn()
    assert place.awakening.awakened == 1203
    assert len(await place.store.claim("w", broker="rabbitmq", limit=10_000)) == 1203


async def test_a_letter_that_was_taken_meanwhile_is_left_alone(place: Place) -> None:
    letters = [place.a_letter(f"m{number}") for number in range(5)]
    await place.store.add(letters)
    store = place.store
    first_page = store.page

    async def page_and_take(*args: object, **options: object) -> object:
        found = await first_page(*args, **options)  # type: ignore[arg-type]
        await store.take([letters[2].id], "somebody")
        return found

    store.page = page_and_take  # type: ignore[method-assign, assignment]  # between looking and scheduling
    place.awakening.recovered("orders")
    await place.awakening.turn()
    assert await place.claimed() == {letter.id for letter in letters} - {letters[2].id}
    assert place.awakening.awakened == 4


async def test_it_runs_when_it_is_told_and_ends_when_it_is_stopped(place: Place) -> None:
    await place.store.add([place.a_letter("m")])
    stop = asyncio.Event()
    woken = asyncio.Event()
    awakening = Awakening(place.store, place.clock, woken.set)
    running = asyncio.create_task(awakening.run(stop))
    await asyncio.sleep(0)
    awakening.recovered("orders")
    await asyncio.wait_for(woken.wait(), 10)
    assert len(await place.claimed()) == 1
    stop.set()
    await asyncio.wait_for(running, 10)


async def test_a_source_that_could_not_be_seen_to_is_seen_to_later(place: Place) -> None:
    await place.store.close()
    place.awakening.recovered("orders")
    with pytest.raises(StoreClosedError):
        await place.awakening.turn()
    assert list(place.awakening._recovered) == ["orders"]
