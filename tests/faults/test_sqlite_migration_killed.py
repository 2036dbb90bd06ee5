"""A process that migrates a SQLite store is killed at any moment: the next one completes it, and nothing is lost."""

import contextlib
import random
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from redrive.errors import StoreVersionError
from redrive.letters import DeadLetter
from redrive.stores.query import parse_query
from redrive.stores.sqlite import SqliteStore, migrate, schema
from redrive.testing import ManualClock
from tests import soak
from tests.faults.children import a_child
from tests.golden.plain import unpacked

CHILD = Path(__file__).with_name("migration_child.py")
GOLDEN = Path(__file__).parents[1] / "golden" / "v1" / "store.sqlite.zst"
OLDER = schema.migrations()[:3]  # of a program that knows no brokers
KILLS = soak.count(10, in_ci=4)


async def all_letters(path: Path) -> list[DeadLetter]:
    store = await SqliteStore.open(path)
    try:
        assert await store.damage() is None
        page = await store.page(parse_query("sort:created", now=ManualClock().now()), limit=1000)
        return await store.load([head.id for head in page.heads])
    finally:
        await store.close()


def marks(path: Path) -> tuple[int, bool, int]:
    """The version of the file, whether its migration is incomplete, and how many transactions of it are done."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        version = migrate.version_of(db)
        if not migrate._is_incomplete(db):
            return version, False, 0
        step, position = db.execute("SELECT step, position FROM migration").fetchone()
        [letters] = db.execute("SELECT count(*) FROM letters WHERE created_at <= ?", (position,)).fetchone()
        return version, True, (100 if step else 0) + step + letters // 10


def kill_at_some_point(path: Path, chance: random.Random) -> None:
    """A child begins or continues the migration and is killed, as a rule after a few transactions."""
    before = marks(path)[2]
    child = a_child(CHILD, str(path))
    try:
        give_up = time.monotonic() + 30
        while child.poll() is None and marks(path)[2] < before + 1 and time.monotonic() < give_up:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.05))
    finally:
        child.kill()
        child.communicate()


@pytest.mark.soak
async def test_killed_migration_is_continued_until_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "redrive.db"
    path.write_bytes(unpacked(GOLDEN.read_bytes()))
    shutil.copy(path, whole)
    expected = await all_letters(whole)
    chance = random.Random(7)
    incomplete = 0
    for _ in range(KILLS):
        kill_at_some_point(path, chance)
        version, is_incomplete, _ = marks(path)
        incomplete += is_incomplete
        assert version in {3, 4, 5}
        if version > 3:  # an older program refuses the file, whether or not the migration is complete
            with monkeypatch.context() as older:
                older.setattr(schema, "migrations", lambda: OLDER)
                with pytest.raises(StoreVersionError):
                    await SqliteStore.open(path)
        else:
            assert not is_incomplete
    soak.report(kills=KILLS)
    assert incomplete >= KILLS // 2, "the kills came too late to prove anything"
    assert await all_letters(path) == expected
    assert marks(path) == (5, False, 0)
