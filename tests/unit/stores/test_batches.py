"""What is settled or extended in one go is written as if each had come by itself."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.errors import LetterNotFoundError
from redrive.letters import ClaimToken, LetterState
from redrive.stores.changes import Annotate, Fail, Resolve, Retry, Settlement, Unclaim
from redrive.stores.sqlite import SqliteStore
from redrive.testing import ManualClock
from redrive.testing.factories import BROKER, a_failure, a_letter

MANY = 1203  # more than one statement takes


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "letters.db", clock=clock)
    yield store
    await store.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def held(store: SqliteStore, count: int) -> list[ClaimToken]:
    assert all(await store.add([a_letter(key=f"orders/{number}") for number in range(count)]))
    heads = await store.claim("worker-1", broker=BROKER, limit=count)
    assert len(heads) == count
    return [head.claim_token for head in heads]


async def test_a_hold_that_is_settled_twice_in_one_go_counts_once(store: SqliteStore) -> None:
    (hold,) = await held(store, 1)
    assert await store.settle([Settlement(hold, Resolve()), Settlement(hold, Fail())]) == [True, False]
    (letter,) = await store.load([hold.id])
    assert (letter.state, letter.dlq_retry_count) == (LetterState.RESOLVED, 1)
    assert [attempt.result for attempt in letter.attempts] == ["resolved"]
    assert [line.action for line in await store.journal(hold.id)] == ["claim", "resolve"]


async def test_unlike_outcomes_in_one_go_each_do_their_own(store: SqliteStore, clock: ManualClock) -> None:
    one, two, three, four, five = await held(store, 5)
    soon, late = clock.now() + timedelta(minutes=1), clock.now() + timedelta(hours=1)
    failure = a_failure(text="closed for today", at=clock.now())
    answers = await store.settle(
        [
            Settlement(one, Retry(at=soon, failure=failure)),
            Settlement(two, Resolve()),
            Settlement(ClaimToken(three.id, three.fence + 1), Resolve()),
            Settlement(four, Retry(at=late)),
            Settlement(five, Unclaim(at=late, strategy="conditional")),
        ]
    )
    assert answers == [True, True, False, True, True]
    letters = await store.load([hold.id for hold in (one, two, three, four, five)])
    states = [
        LetterState.PENDING,
        LetterState.RESOLVED,
        LetterState.PROCESSING,
        LetterState.PENDING,
        LetterState.PENDING,
    ]
    assert [letter.state for letter in letters] == states
    assert [letter.dlq_retry_count for letter in letters] == [1, 1, 0, 1, 0]
    assert [letters[place].next_retry_at for place in (0, 3, 4)] == [soon, late, late]
    assert letters[0].failure == failure
    assert letters[3].failure != failure
    assert letters[4].strategy == "conditional"


async def test_a_lease_that_is_extended_twice_in_one_go_is_sent_once(store: SqliteStore) -> None:
    (hold,) = await held(store, 1)
    stale = ClaimToken(hold.id, hold.fence - 1)
    assert await store.extend([hold, stale, hold], sent=True) == [True, False, True]
    assert [line.action for line in await store.journal(hold.id)] == ["claim", "sent"]


async def test_a_large_batch_goes_all_the_way(store: SqliteStore) -> None:
    holds = await held(store, MANY)
    assert all(await store.extend(holds, sent=True))
    assert all(await store.settle([Settlement(hold, Resolve()) for hold in holds]))
    assert await store.tally("state") == {LetterState.RESOLVED: MANY}
    assert len(await store.journal(limit=10_000)) == 3 * MANY


async def test_whole_letters_come_in_the_order_asked_with_what_is_theirs(store: SqliteStore) -> None:
    holds = await held(store, MANY)
    first, last = holds[0].id, holds[-1].id
    await store.settle([Settlement(holds[0], Fail(detail="for good"))])
    for text in ("one", "two"):
        await store.apply(Annotate(text), [last], by="alice")
    asked = [last, *reversed([hold.id for hold in holds]), first]
    letters = await store.load(asked)
    assert [letter.id for letter in letters] == asked
    assert [note.text for note in letters[0].notes] == ["one", "two"]
    assert [attempt.detail for attempt in letters[-1].attempts] == ["for good"]
    assert not any(letter.notes or letter.attempts for letter in letters[2:-2])


async def test_one_letter_that_is_not_there_is_named(store: SqliteStore) -> None:
    (hold,) = await held(store, 1)
    with pytest.raises(LetterNotFoundError, match="nobody"):
        await store.load([hold.id, "nobody"])


@pytest.mark.parametrize("count", [1, 31, 32, 33, 63, 65, 124, 251, 499, 500, 501, 971, 1000, 1001])
async def test_a_batch_of_any_size_is_added_whole_and_in_order(store: SqliteStore, count: int) -> None:
    lot = [a_letter(key=f"orders/{number}") for number in range(count)]
    known = lot[count // 2]
    await store.add([known])
    assert await store.add(lot) == [letter is not known for letter in lot]
    found = await store.load([letter.id for letter in lot])
    assert [letter.message for letter in found] == [letter.message for letter in lot]
    ages = [letter.created_at for letter in found if letter.id != known.id]
    assert ages == sorted(ages)
    assert len(set(ages)) == count - 1
