"""Many letters are read and changed, whatever becomes of some of them meanwhile."""

import pytest
from hypothesis import given, strategies as st

from redrive.letters import Headers, LetterState
from redrive.stores.changes import Assign, Delete, Discard, Park, Resolve, Settlement
from redrive.stores.many import change_those_that_can, load_those_there, pages, portions
from redrive.stores.memory import MemoryStore
from redrive.stores.query import EVERYTHING
from redrive.testing import ManualClock, a_letter, letters
from redrive.testing.factories import a_message


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
async def test_pages_tell_every_letter_once(store: MemoryStore, count: int) -> None:
    given = letters(count)
    await store.add(given)
    found = [head.id async for heads in pages(store, EVERYTHING, size=3) for head in heads]
    assert sorted(found) == sorted(letter.id for letter in given)


async def test_portions_hold_what_fits_and_a_letter_that_never_fits_goes_alone(store: MemoryStore) -> None:
    sizes = [1, 2, 3, 50, 1, 6]
    given = [
        a_letter(f"orders/{number}", message=a_message(b"x" * size, headers=Headers()))
        for number, size in enumerate(sizes)
    ]
    await store.add(given)
    heads = {head.id: head for head in (await store.page(EVERYTHING)).heads}
    in_order = [heads[letter.id] for letter in given]
    least = min(head.size for head in in_order)
    for most in (least, 3 * least, 1000 * least):
        parts = list(portions(in_order, most))
        assert [each for part in parts for each in part] == [letter.id for letter in given]
        assert all(len(part) == 1 or sum(heads[each].size for each in part) <= most for part in parts)
    assert len(list(portions(in_order, least))) == len(given)
    assert len(list(portions(in_order, 1000 * least))) == 1
    assert list(portions([], 10)) == []


@given(gone=st.sets(st.integers(0, 12)))
async def test_letters_that_are_gone_are_left_out_and_the_others_keep_their_order(gone: set[int]) -> None:
    store, given = MemoryStore(ManualClock()), letters(13)
    await store.add(given)
    held = await store.take([given[each].id for each in gone], "test") if gone else []
    assert len(held) == len(gone)
    await _delete(store, [given[each].id for each in sorted(gone)])
    found = await load_those_there(store, [letter.id for letter in given])
    assert [letter.id for letter in found] == [
        letter.id for number, letter in enumerate(given) if number not in gone
    ]


async def _delete(store: MemoryStore, ids: list[str]) -> None:
    if ids:
        held = [letter.claim_token for letter in await store.load(ids)]
        await store.settle([Settlement(hold, Resolve()) for hold in held])
        await store.apply(Delete(), ids, by="test")


async def test_where_one_cannot_be_changed_all_others_are(store: MemoryStore) -> None:
    # Given ten letters that wait for a person, two of which somebody has discarded meanwhile
    given = letters(10)
    await store.add(given)
    ids = [letter.id for letter in given]
    await _park(store, ids)
    await store.apply(Discard("twice"), [ids[2], ids[9]], by="bert")
    # When all are discarded, and one that never was
    done = await change_those_that_can(store, Discard("old"), [*ids, "0" * 26], by="anna")
    # Then the other eight are
    assert done == 8
    assert {letter.state for letter in await store.load(ids)} == {LetterState.ARCHIVED}
    assert await change_those_that_can(store, Assign("bert"), [], by="anna") == 0


async def _park(store: MemoryStore, ids: list[str]) -> None:
    held = await store.take(ids, "test")
    await store.settle([Settlement(head.claim_token, Park()) for head in held])
