"""Several change what the alarm has written down at once: every change is made on what is there, or not at all."""

import asyncio

import msgspec
import pytest

from redrive.errors import StoreDamagedError, StoreError
from redrive.stores.memory import MemoryStore
from redrive.watch.alerts.alarm import Book
from redrive.watch.alerts.written import NAME, Document, Unsent, Written
from tests.unit.watch.alerts.examples import TIME, alert


def unsent(name: str) -> Unsent:
    return Unsent(alert(incident=name), ("mail",), TIME)


async def test_where_nothing_was_written_there_is_an_empty_book() -> None:
    store = MemoryStore()
    assert await Written(store).book() == Book()
    assert (await store.recall(NAME)).version == 0


async def test_of_changes_at_the_same_time_none_is_lost() -> None:
    store = MemoryStore()
    names = [f"i-{number}" for number in range(15)]

    async def add(name: str) -> None:
        await Written(store).change(lambda document: document.unsent.append(unsent(name)))

    await asyncio.gather(*map(add, names))
    document = await Written(store).change(lambda document: document)
    assert sorted(one.alert.incident for one in document.unsent) == sorted(names)


async def test_a_change_that_somebody_else_was_faster_than_is_made_again_on_what_is_there() -> None:
    store = MemoryStore()
    rival = msgspec.msgpack.encode(Document(unsent=[unsent("rival")]))
    seen: list[int] = []

    class Overtaken(Written):
        async def _read(self) -> tuple[int, Document]:
            read = await super()._read()
            if not seen:
                assert await store.remember(NAME, rival, version=0)
            return read

    def change(document: Document) -> str:
        seen.append(len(document.unsent))
        document.unsent.append(unsent("ours"))
        return "done"

    assert await Overtaken(store).change(change) == "done"
    assert seen == [0, 1]
    assert (await store.recall(NAME)).version == 2


async def test_what_changes_nothing_is_not_written() -> None:
    store = MemoryStore()
    assert await Written(store).change(lambda document: len(document.unsent)) == 0
    assert (await store.recall(NAME)).version == 0


async def test_a_change_that_is_refused_leaves_everything_as_it_was() -> None:
    store = MemoryStore()

    def change(document: Document) -> None:
        document.unsent.append(unsent("i-1"))
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await Written(store).change(change)
    assert (await store.recall(NAME)).body is None


async def test_whoever_is_never_first_is_told_so() -> None:
    class Crowded(MemoryStore):
        async def remember(self, name: str, body: bytes, *, version: int) -> bool:
            return False

    with pytest.raises(StoreError, match="others write to the alarm all the time; try again"):
        await Written(Crowded()).change(lambda document: document.unsent.append(unsent("i-1")))


@pytest.mark.parametrize("body", [b"", b"\xc1 no document", b"[]", msgspec.msgpack.encode({"book": 7})])
async def test_what_cannot_be_read_is_refused_and_left_alone(body: bytes) -> None:
    store = MemoryStore()
    assert await store.remember(NAME, body, version=0)
    for verb in (Written(store).book(), Written(store).change(lambda document: document.unsent.clear())):
        with pytest.raises(StoreDamagedError, match="cannot be read"):
            await verb
    assert (await store.recall(NAME)).body == body


async def test_whoever_may_begin_anew_hears_why_and_does() -> None:
    store, heard = MemoryStore(), list[Exception]()
    assert await store.remember(NAME, b"\xc1", version=0)
    written = Written(store, heard.append)
    assert await written.book() == Book()
    await written.change(lambda document: document.unsent.append(unsent("i-1")))
    assert len(heard) == 2
    assert (await store.recall(NAME)).version == 2
