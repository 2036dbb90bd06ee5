"""Old letters are put away by state and age, durable first; a file brings them back, and nothing is sent unasked."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from redrive.errors import FormatError, SettingsError, StoreError
from redrive.letters import DeadLetter, LetterHead, LetterState, SystemState
from redrive.recover.retention import NEVER_DUE, Restored, Retention, RetentionOptions, restore
from redrive.stores import cold_files
from redrive.stores.base import Store
from redrive.stores.changes import (
    Annotate,
    Archive,
    Change,
    Delete,
    Discard,
    Fail,
    Outcome,
    Park,
    Resolve,
    Settlement,
)
from redrive.stores.memory import MemoryStore
from redrive.stores.query import EVERYTHING
from redrive.stores.sqlite import SqliteStore
from redrive.testing import ManualClock, a_letter, letters

DAY = timedelta(days=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store = (
        MemoryStore(clock)
        if request.param == "memory"
        else await SqliteStore.open(tmp_path / "redrive.db", clock=clock)
    )
    yield opened
    await opened.close()


@pytest.fixture
def options(tmp_path: Path) -> RetentionOptions:
    return RetentionOptions(directory=tmp_path / "cold")


@pytest.fixture
def retention(store: Store, clock: ManualClock, options: RetentionOptions) -> Retention:
    return Retention(store, clock, options)


async def settled(store: Store, given: Sequence[DeadLetter], outcome: Outcome) -> list[str]:
    """Add letters, claim them and say an outcome."""
    await store.add(given)
    held = await store.take([letter.id for letter in given], "worker")
    assert all(await store.settle([Settlement(head.claim_token, outcome) for head in held]))
    return [head.id for head in held]


async def heads(store: Store) -> dict[str, LetterHead]:
    page = await store.page(EVERYTHING, limit=1000)
    return {head.id: head for head in page.heads}


def in_files(options: RetentionOptions) -> list[DeadLetter]:
    return [letter for file in cold_files.listing(options.directory) for letter in cold_files.read(file.path)]


# --- by state and age ------------------------------------------------------------------------------------


async def test_resolved_letters_are_deleted_after_thirty_days(
    store: Store, clock: ManualClock, retention: Retention, options: RetentionOptions
) -> None:
    await settled(store, letters(3), Resolve())
    clock.advance(30 * DAY)
    await retention.turn()
    assert len(await heads(store)) == 3
    clock.advance(timedelta(seconds=1))
    await retention.turn()
    assert await heads(store) == {}
    assert retention.counts.deleted == 3
    assert in_files(options) == []


async def test_failed_letters_are_written_and_archived_after_ninety_days(
    store: Store, clock: ManualClock, retention: Retention, options: RetentionOptions
) -> None:
    ids = await settled(store, letters(3), Fail(detail="gone"))
    clock.advance(90 * DAY)
    await retention.turn()
    assert in_files(options) == []
    before = await store.load(ids)
    clock.advance(DAY)
    await retention.turn()
    assert {head.state for head in (await heads(store)).values()} == {LetterState.ARCHIVED}
    assert sorted(in_files(options), key=lambda letter: letter.id) == sorted(
        before, key=lambda letter: letter.id
    )
    assert {letter.state for letter in before} == {LetterState.FAILED}
    assert [file.path.name for file in cold_files.listing(options.directory)] == [
        "letters-2026-05-13-001.jsonl.zst"
    ]
    assert [line.actor for line in await store.journal(ids[0])][-1] == "retention"


async def test_archived_letters_are_written_once_more_and_deleted_after_a_year(
    store: Store, clock: ManualClock, retention: Retention, options: RetentionOptions
) -> None:
    [failed] = await settled(store, [a_letter("a")], Fail())
    [discarded] = await settled(store, [a_letter("b")], Park())
    await store.apply(Discard("no use"), [discarded], by="ann")
    clock.advance(91 * DAY)
    await retention.turn()
    await store.apply(Annotate("noted after it was archived"), [failed], by="ann")
    clock.advance(365 * DAY + timedelta(seconds=1))
    await retention.turn()
    assert await heads(store) == {}
    last = {letter.id: letter for letter in in_files(options)}
    assert set(last) == {failed, discarded}
    assert [note.text for note in last[failed].notes] == ["noted after it was archived"]
    assert retention.counts == msgspec.structs.replace(
        retention.counts, deleted=2, archived=1, written=3, files=2, changed=0, refused=0
    )


async def test_what_is_pending_held_or_manual_is_never_touched(
    store: Store, clock: ManualClock, retention: Retention, options: RetentionOptions
) -> None:
    await settled(store, [a_letter("manual")], Park())
    await store.add(letters(2))
    await store.claim("worker", broker="rabbitmq", limit=1)
    before = await heads(store)
    clock.advance(10_000 * DAY)
    await retention.turn()
    assert await heads(store) == before
    assert in_files(options) == []


async def test_many_letters_go_in_batches(
    store: Store, clock: ManualClock, options: RetentionOptions
) -> None:
    await settled(store, letters(25), Fail())
    clock.advance(91 * DAY)
    retention = Retention(store, clock, msgspec.structs.replace(options, batch=10))
    await retention.turn()
    assert (retention.counts.files, retention.counts.written, retention.counts.archived) == (3, 25, 25)
    assert len({letter.id for letter in in_files(options)}) == 25


async def test_large_letters_go_in_smaller_files(
    store: Store, clock: ManualClock, retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.recover.retention._PORTION", 40)  # bytes; each of the bodies has 16
    await settled(store, letters(5), Fail())
    clock.advance(91 * DAY)
    await retention.turn()
    assert (retention.counts.files, retention.counts.archived) == (3, 5)


# --- when something is in the way ------------------------------------------------------------------------


class Meddling(MemoryStore):
    """Somebody else is quicker: what is to be changed is changed before it is our turn."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.first: list[tuple[Change, str]] = []

    async def apply(self, change: Change, ids: Sequence[str], *, by: str) -> None:
        while self.first:
            other, letter_id = self.first.pop()
            await super().apply(other, [letter_id], by="somebody else")
        await super().apply(change, ids, by=by)


@pytest.mark.parametrize("outcome", [Resolve(), Fail()])
async def test_a_letter_that_somebody_else_changed_does_not_stop_the_rest(
    clock: ManualClock, options: RetentionOptions, outcome: Outcome
) -> None:
    store = Meddling(clock)
    ids = await settled(store, letters(5), outcome)
    clock.advance(91 * DAY)
    store.first = [(Delete(), ids[2])] if isinstance(outcome, Resolve) else [(Archive(), ids[2])]
    retention = Retention(store, clock, options)
    await retention.turn()
    assert retention.counts.changed == 1
    assert retention.counts.deleted + retention.counts.archived == 4
    assert {head.state for head in (await heads(store)).values()} <= {LetterState.ARCHIVED}


class Noting(MemoryStore):
    """Somebody writes a note between the first look at a letter and the second."""

    async def load(self, ids: Sequence[str]) -> list[DeadLetter]:
        found = await super().load(ids)
        if not any(letter.notes for letter in found):
            await super().apply(Annotate("wait"), ids[:1], by="ann")
        return found


async def test_a_note_written_meanwhile_is_never_deleted_unwritten(
    clock: ManualClock, options: RetentionOptions
) -> None:
    store = Noting(clock)
    ids = await settled(store, letters(2), Fail())
    await store.apply(Archive(), ids, by="ann")
    clock.advance(366 * DAY)
    retention = Retention(store, clock, options)
    await retention.turn()
    assert len(await heads(store)) == 1
    clock.advance(366 * DAY)
    await retention.turn()
    assert await heads(store) == {}
    assert [note.text for letter in in_files(options) for note in letter.notes] == ["wait"]


async def test_a_letter_that_cannot_be_written_exactly_stays_and_is_told(
    store: Store, clock: ManualClock, options: RetentionOptions
) -> None:
    odd = msgspec.structs.replace(a_letter("odd"), system_state=SystemState(float("nan"), 0.5))
    ids = await settled(store, [odd, *letters(2)], Fail())
    clock.advance(91 * DAY)
    told: list[Exception] = []
    retention = Retention(store, clock, options, trouble=lambda _what, error: told.append(error))
    await retention.turn()
    assert (retention.counts.refused, retention.counts.archived) == (1, 2)
    assert (await heads(store))[ids[0]].state is LetterState.FAILED
    assert ids[0] in str(told[0])


async def test_without_a_place_for_files_nothing_is_changed_but_what_needs_none(
    store: Store, clock: ManualClock, options: RetentionOptions
) -> None:
    options.directory.write_bytes(b"a file, not a directory")
    await settled(store, [a_letter("resolved")], Resolve())
    [failed] = await settled(store, [a_letter("failed")], Fail())
    clock.advance(91 * DAY)
    with pytest.raises(StoreError):
        await Retention(store, clock, options).turn()
    assert {letter_id: head.state for letter_id, head in (await heads(store)).items()} == {
        failed: LetterState.FAILED
    }


@pytest.mark.parametrize("name", ["resolved", "failed", "archived", "every"])
def test_durations_that_make_no_sense_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        RetentionOptions(directory=tmp_path, **{name: timedelta(0)})  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [0, -1, 1001, True])
def test_batches_that_make_no_sense_are_refused(tmp_path: Path, batch: int) -> None:
    with pytest.raises(SettingsError, match="batch"):
        RetentionOptions(directory=tmp_path, batch=batch)


class Watched(ManualClock):
    """Tells when somebody goes to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.asleep = asyncio.Event()

    async def sleep(self, duration: timedelta) -> None:
        self.asleep.set()
        await super().sleep(duration)


async def test_the_service_looks_again_and_stops_when_told(options: RetentionOptions) -> None:
    # Given
    clock = Watched()
    store = MemoryStore(clock)
    await settled(store, letters(1), Resolve())
    stop = asyncio.Event()
    retention = Retention(store, clock, options)
    async with asyncio.timeout(30):
        running = asyncio.create_task(retention.run(stop))
        await clock.asleep.wait()
        assert len(await heads(store)) == 1
        # When
        clock.asleep.clear()
        clock.advance(31 * DAY)
        await clock.asleep.wait()
        # Then
        assert await heads(store) == {}
        stop.set()
        await running
    assert retention.counts.deleted == 1


# --- the way back ----------------------------------------------------------------------------------------


async def put_away(store: Store, clock: ManualClock, retention: Retention, count: int) -> list[str]:
    """Letters that are in files only."""
    ids = await settled(store, letters(count), Fail(detail="gone"))
    await store.apply(Annotate("look at the address"), ids[:1], by="ann")
    clock.advance(91 * DAY)
    await retention.turn()
    clock.advance(366 * DAY)
    await retention.turn()
    assert await heads(store) == {}
    return ids


async def test_a_file_brings_letters_back_and_nothing_is_sent_unasked(
    store: Store, clock: ManualClock, retention: Retention, options: RetentionOptions
) -> None:
    ids = await put_away(store, clock, retention, 3)
    path = cold_files.listing(options.directory)[-1].path
    originals = {letter.id: letter for letter in cold_files.read(path)}
    assert await restore(store, path, by="ann") == Restored(read=3, added=3, parked=3)
    assert {head.state for head in (await heads(store)).values()} == {LetterState.MANUAL}
    assert await store.claim("worker", broker="rabbitmq", limit=10) == []
    for letter in await store.load(ids):
        assert letter.message == originals[letter.id].message
        assert letter.origin == originals[letter.id].origin
        assert letter.failure == originals[letter.id].failure
    [first] = await store.load(ids[:1])
    assert [note.text.partition(": ")[2] for note in first.notes] == ["look at the address"]
    assert first.notes[0].text.startswith("ann at 2026-02-11T12:00:00")
    last = (await store.journal(ids[0]))[-1]
    assert (last.actor, last.detail) == (
        "ann", f"restored from {path.name}; it was dlq_archived after 1 redrives",
    )  # fmt: skip


async def test_a_file_that_is_restored_twice_changes_nothing(
    store: Store, clock: ManualClock, retention: Retention, options: RetentionOptions
) -> None:
    await put_away(store, clock, retention, 3)
    first, last = (file.path for file in cold_files.listing(options.directory))
    await restore(store, last, by="ann")
    before = await heads(store)
    assert await restore(store, last, by="ann") == Restored(read=3, present=3)
    assert await restore(store, first, by="ann") == Restored(read=3, present=3)
    assert await heads(store) == before


async def test_a_restore_that_was_cut_short_is_finished_by_the_next(
    store: Store, clock: ManualClock, retention: Retention, options: RetentionOptions
) -> None:
    await put_away(store, clock, retention, 3)
    path = cold_files.listing(options.directory)[-1].path
    # Given: a run that was killed after the add.
    added = [msgspec.structs.replace(each, next_retry_at=NEVER_DUE) for each in cold_files.read(path)]
    await store.add(added)
    clock.advance(10_000 * DAY)
    assert await store.claim("worker", broker="rabbitmq", limit=10) == []
    # When, then
    assert await restore(store, path, by="ann") == Restored(read=3, present=3, parked=3)
    assert {head.state for head in (await heads(store)).values()} == {LetterState.MANUAL}


async def test_a_letter_that_is_pending_in_the_file_is_pending_again(store: Store, tmp_path: Path) -> None:
    path = cold_files.write(tmp_path, letters(2), day=ManualClock().now().date())
    assert await restore(store, path, by="ann") == Restored(read=2, added=2)
    assert len(await store.claim("worker", broker="rabbitmq", limit=10)) == 2


async def test_a_letter_that_died_again_meanwhile_is_left_alone(
    store: Store, clock: ManualClock, retention: Retention, options: RetentionOptions
) -> None:
    ids = await put_away(store, clock, retention, 2)
    await store.add([a_letter("orders/0")])
    counts = await restore(store, cold_files.listing(options.directory)[-1].path, by="ann")
    assert counts == Restored(read=2, added=1, present=1, parked=1)
    assert (await heads(store))[ids[0]].state is LetterState.PENDING


async def test_what_is_whole_before_the_damage_is_restored(store: Store, tmp_path: Path) -> None:
    failed = [msgspec.structs.replace(letter, state=LetterState.FAILED) for letter in letters(1200)]
    path = cold_files.write(tmp_path, failed, day=ManualClock().now().date())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 100])
    with pytest.raises(FormatError, match=r"the \d+ letters before that were restored"):
        await restore(store, path, by="ann")
    count = await store.count()
    assert 500 < count < 1200
    assert await store.tally("state") == {"dlq_manual": count}
