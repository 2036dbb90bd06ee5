"""Retention that is killed at any moment loses no letter: each is in the store, in a file, or in both."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.letters import DeadLetter, LetterState
from redrive.recover.retention import Restored, restore
from redrive.stores import cold_files
from redrive.stores.changes import Archive, Fail, Settlement
from redrive.stores.memory import MemoryStore
from redrive.stores.query import EVERYTHING
from redrive.stores.sqlite import SqliteStore
from redrive.testing import ManualClock, letters

CHILD = Path(__file__).with_name("retention_child.py")
MOST_LIVES = 200


class Place:
    """A store with old letters in it, and a directory for files."""

    def __init__(self, tmp_path: Path) -> None:
        self.database = tmp_path / "redrive.db"
        self.cold = tmp_path / "cold"
        self.given: dict[str, DeadLetter] = {}

    async def fill(self, failed: int, archived: int) -> None:
        store = await SqliteStore.open(self.database, clock=ManualClock())
        for given, change in ((letters(failed, "failed"), None), (letters(archived, "archived"), Archive())):
            await store.add(given)
            ids = [letter.id for letter in given]
            held = await store.take(ids, "worker")
            assert all(await store.settle([Settlement(head.claim_token, Fail()) for head in held]))
            if change is not None and ids:
                await store.apply(change, ids, by="test")
            self.given |= {letter.id: letter for letter in given}
        await store.close()

    def start(self, deadly: str = "") -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, str(CHILD), str(self.database), str(self.cold), deadly],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def live(self, deadly: str = "") -> tuple[int, bytes]:
        """Let a child live until it ends by itself."""
        with self.start(deadly) as child:
            told, errors = child.communicate(timeout=60)
        assert not errors, errors.decode()
        return child.returncode, told

    async def stored(self) -> dict[str, LetterState]:
        store = await SqliteStore.open(self.database, clock=ManualClock())
        page = await store.page(EVERYTHING, limit=1000)
        assert page.cursor is None
        for letter in await store.load([head.id for head in page.heads]):
            assert letter.message == self.given[letter.id].message
        await store.close()
        return {head.id: head.state for head in page.heads}

    def filed(self) -> list[str]:
        """The ids in all files, each of which is whole."""
        found = [letter for file in cold_files.listing(self.cold) for letter in cold_files.read(file.path)]
        for letter in found:
            assert letter.message == self.given[letter.id].message
        return [letter.id for letter in found]


@pytest.mark.parametrize(("deadly", "failed", "archived"), [("Archive", 5, 0), ("Delete", 0, 5)])
async def test_a_crash_between_file_and_change_gives_a_letter_twice_and_never_a_loss(
    tmp_path: Path, deadly: str, failed: int, archived: int
) -> None:
    # Given
    place = Place(tmp_path)
    await place.fill(failed, archived)
    # When
    code, told = place.live(deadly)
    # Then
    assert (code, told) == (-signal.SIGKILL, b"open\n")
    before = await place.stored()
    assert set(before) == set(place.given), "the store was changed before the file was written"
    assert set(before.values()) == {LetterState.FAILED if failed else LetterState.ARCHIVED}
    assert sorted(place.filed()) == sorted(place.given)
    # When
    code, told = place.live()
    # Then
    assert (code, told) == (0, b"open\ndone\n")
    assert set((await place.stored()).values()) <= {LetterState.ARCHIVED}
    assert len(await place.stored()) == failed
    assert sorted(place.filed()) == sorted([*place.given, *place.given]), "each letter is in two files"
    # And both files together bring each letter back once.
    store = MemoryStore(ManualClock())
    counts = [await restore(store, file.path, by="ann") for file in cold_files.listing(place.cold)]
    assert counts == [Restored(read=5, added=5, parked=5), Restored(read=5, present=5)]


@pytest.mark.slow
async def test_retention_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    place = Place(tmp_path)
    await place.fill(failed=200, archived=200)
    kills = 0
    for _ in range(MOST_LIVES):
        with place.start() as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"open\n"
            try:
                # It lives for a moment, or, every now and then, until it is done.
                told, _ = child.communicate(timeout=chance.random() * 0.12)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                told, _ = child.communicate(timeout=60)
        stored, filed = await place.stored(), set(place.filed())
        assert stored.keys() | filed == place.given.keys(), "a letter is gone"
        if told == b"done\n":
            break
        kills += 1
    else:
        pytest.fail(f"not done after {MOST_LIVES} lives")
    assert kills >= 3, "hardly anything was killed: the test shows nothing"
    assert set(stored.values()) == {LetterState.ARCHIVED}
    assert len(stored) == 200
    assert filed == place.given.keys()
