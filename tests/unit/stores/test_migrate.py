"""A file of an earlier version is brought up to date, in steps that can be interrupted at any point."""

import contextlib
import logging
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import StoreBusyError, StoreVersionError
from redrive.letters import DeadLetter
from redrive.stores.query import parse_query
from redrive.stores.sqlite import SqliteStore, migrate, schema
from redrive.testing import ManualClock, a_letter
from tests.golden.plain import unpacked

GOLDEN = Path(__file__).parents[2] / "golden" / "v1" / "store.sqlite.zst"  # of version 3, with 1,000 letters
OLDER = schema.migrations()[:3]  # of a program that knows no brokers
BATCHES = 15  # of 70 letters each
STATEMENTS = list(migrate.statements(dict(schema.migrations())[4]))
NOW = ManualClock().now()
# What the second and the third migration added.
TO_VERSION_2 = ("DROP TABLE memos", "PRAGMA user_version = 2")
TO_VERSION_1 = (
    *TO_VERSION_2, "DROP TABLE operations", "DROP TABLE items", "DROP TABLE outcomes", "DROP INDEX letters_group",
    'CREATE INDEX letters_group ON letters ("group")', "PRAGMA user_version = 1",
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of version 3."""
    path = tmp_path / "redrive.db"
    path.write_bytes(unpacked(GOLDEN.read_bytes()))
    return path


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one batch, and no pause."""
    monkeypatch.setattr(migrate, "_BATCH_SIZE", 70)
    monkeypatch.setattr(migrate, "_PAUSE_S", 0)


def prepare(path: Path, *, busy_timeout: timedelta = timedelta(seconds=10)) -> None:
    schema.prepare(path, busy_timeout=busy_timeout, integrity_check_timeout=timedelta(seconds=2))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


def is_incomplete(path: Path) -> bool:
    with opened(path) as db:
        return migrate._is_incomplete(db)


async def all_letters(path: Path) -> list[DeadLetter]:
    store = await SqliteStore.open(path)
    try:
        page = await store.page(parse_query("sort:created", now=NOW), limit=1000)
        assert await store.damage() is None
        return await store.load([head.id for head in page.heads])
    finally:
        await store.close()


async def migrated(path: Path) -> list[DeadLetter]:
    """The letters of a copy that is migrated without interruption."""
    whole = path.with_name("whole.db")
    shutil.copy(path, whole)
    return await all_letters(whole)


# --- what becomes of a file ------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [(), TO_VERSION_2, TO_VERSION_1], ids=["3", "2", "1"])
async def test_file_of_each_version_keeps_its_letters(path: Path, changes: tuple[str, ...]) -> None:
    with opened(path) as db:
        kinds = dict(db.execute("SELECT id, transport FROM letters").fetchall())
        lines = db.execute("SELECT * FROM journal ORDER BY number").fetchall()
        for change in changes:
            db.execute(change)
    letters = await all_letters(path)
    assert len(letters) == 1000
    assert {letter.id: letter.broker for letter in letters} == {
        letter_id: f"unnamed:{kind}" for letter_id, kind in kinds.items()
    }
    assert all(letter.consumer_group == letter.origin.consumer_group for letter in letters)
    assert {letter.consumer_group for letter in letters} == {None, "billing", "audit"}
    assert not any(letter.unconfirmed or letter.prior_redrives for letter in letters)
    with opened(path) as db:
        assert db.execute("SELECT * FROM change_log ORDER BY number").fetchall() == lines
        assert db.execute("PRAGMA user_version").fetchone() == (schema.migrations()[-1][0],)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_migrated_file_has_the_same_tables_and_indexes_as_a_new_one(path: Path, tmp_path: Path) -> None:
    def shape(of: Path) -> list[Any]:
        with opened(of) as db:
            names = db.execute("SELECT type, name, tbl_name FROM sqlite_schema ORDER BY 1, 2").fetchall()
            return [row for row in names if not row[1].startswith("sqlite_stat")]

    prepare(path)
    prepare(tmp_path / "new.db")
    assert shape(path) == shape(tmp_path / "new.db")


async def test_migrated_file_works_like_a_new_one(path: Path) -> None:
    clock = ManualClock(ManualClock().now() + timedelta(days=1000))
    store = await SqliteStore.open(path, clock=clock)
    assert await store.add([a_letter("new", broker="shop")]) == [True]
    assert [head.id for head in await store.claim("w", broker="shop")] == [a_letter("new", broker="shop").id]
    assert {head.broker for head in await store.claim("w", broker="unnamed:kafka")} == {"unnamed:kafka"}
    waiting = await store.overdue(broker="unnamed:rabbitmq", lease=timedelta(minutes=5))
    assert waiting
    assert await store.count(parse_query("unconfirmed:yes", now=NOW)) == len(waiting)
    await store.close()


async def test_content_that_is_damaged_does_not_stop_the_migration(path: Path) -> None:
    with opened(path) as db:
        [key] = db.execute("SELECT created_at FROM letters WHERE transport = 'kafka' LIMIT 1").fetchone()
        db.execute("UPDATE bodies SET content = x'0209090909' WHERE letter = ?", (key,))
    prepare(path)
    with opened(path) as db:
        found = db.execute("SELECT broker, consumer_group FROM letters WHERE created_at = ?", (key,))
        assert found.fetchone() == ("unnamed:kafka", None)


# --- interruptions ---------------------------------------------------------------------------------------


class InterruptedMigrationError(Exception):
    """A migration is interrupted here."""


def stop_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The migration ends after so many transactions."""
    take_step = migrate._Stepwise._take_step
    left = iter(range(count))

    def stopping(self: Any, batch: Any) -> bool:
        if next(left, None) is None:
            raise InterruptedMigrationError
        return take_step(self, batch)

    monkeypatch.setattr(migrate._Stepwise, "_take_step", stopping)


@pytest.mark.parametrize("count", range(2 * BATCHES + len(STATEMENTS) + 2))
async def test_interrupted_migration_is_resumed_and_refused_until_then(
    path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    expected = await migrated(path)
    with monkeypatch.context() as patch:
        stop_after(count, patch)
        with pytest.raises(InterruptedMigrationError):
            prepare(path)
    assert is_incomplete(path)
    with monkeypatch.context() as older:
        older.setattr(schema, "migrations", lambda: OLDER)
        with pytest.raises(StoreVersionError, match=r"newer redrive \(schema 4, this version supports 3\)"):
            prepare(path)
    assert is_incomplete(path)
    assert await all_letters(path) == expected
    assert not is_incomplete(path)


async def test_step_that_fails_changes_nothing_and_is_repeated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await migrated(path)

    def failing(self: Any, batch: Any) -> None:
        change(self, batch)
        raise InterruptedMigrationError

    change = migrate._Stepwise._change
    with monkeypatch.context() as patch:
        patch.setattr(migrate._Stepwise, "_change", failing)
        for _ in range(3):
            with pytest.raises(InterruptedMigrationError):
                prepare(path)
    with opened(path) as db:
        assert db.execute("SELECT count(*) FROM letters WHERE ready > 1").fetchone() == (0,)
    assert await all_letters(path) == expected


# --- several processes -----------------------------------------------------------------------------------


async def test_threads_that_open_an_old_file_at_once_migrate_it_once(path: Path) -> None:
    expected = await migrated(path)
    start, problems = threading.Barrier(4), list[BaseException]()

    def work() -> None:
        start.wait()
        try:
            prepare(path)
            assert not is_incomplete(path)
        except BaseException as error:  # noqa: BLE001  the test reports it
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert await all_letters(path) == expected


def test_second_opener_gives_up_after_its_busy_timeout(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(InterruptedMigrationError):
            prepare(path)
    with opened(path) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError, match="is being migrated to schema 4 by another process"):
            prepare(path, busy_timeout=timedelta(seconds=0.05))
        other.execute("COMMIT")
    prepare(path)


def test_processes_that_open_an_old_file_at_once_all_wait_until_it_is_complete(path: Path) -> None:
    code = (
        "import sys, asyncio\n"
        "from redrive.stores.sqlite import SqliteStore, migrate\n"
        "migrate._BATCH_SIZE, migrate._PAUSE_S = 20, 0.001\n"
        "async def main():\n"
        "    store = await SqliteStore.open(sys.argv[1])\n"
        "    print(await store.tally('broker'))\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    said = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0] * 3, said
    counts = {"unnamed:kafka": 397, "unnamed:memory": 205, "unnamed:rabbitmq": 398}
    assert {out for out, _ in said} == {f"{counts}\n"}
    assert any("store migration started" in err for _, err in said)


def test_migration_logs_its_start_its_progress_and_its_end(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "_REPORT_EVERY_S", 0)
    with caplog.at_level(logging.INFO, "redrive.stores"):
        prepare(path)
    said = [record.getMessage() for record in caplog.records if record.name == "redrive.stores"]
    assert said[0].startswith(f"store migration started path={path} schema=4")
    assert f"store migration running path={path} step=3/{len(STATEMENTS) + 2}" in said
    assert any(" percent=" in line for line in said)
    assert said[-1].startswith(f"store migration complete path={path} schema=4 seconds=")


# --- indexes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        ("SELECT created_at FROM letters WHERE ready = 1 AND broker = ? ORDER BY priority DESC, created_at LIMIT 9",
         "letters_ready (broker=?)"),
        ("SELECT created_at FROM letters WHERE ready = 0 AND broker = ? AND next_retry_at <= 5 ORDER BY next_retry_at",
         "letters_waiting (broker=? AND next_retry_at<?)"),
        ("SELECT id FROM letters WHERE sent_at IS NULL AND lease_until <= ? ORDER BY lease_until, id LIMIT 9",
         "letters_leased (lease_until<?)"),
        ("SELECT id FROM letters WHERE sent_at IS NOT NULL AND broker = ? AND lease_until <= 5 ORDER BY lease_until",
         "letters_sent (broker=? AND lease_until<?)"),
        ('SELECT id FROM letters WHERE ("unconfirmed" = 1) ORDER BY created_at DESC LIMIT ?', "letters_unconfirmed"),
    ],
    ids=["claim", "due", "rescue", "overdue", "unconfirmed"],
)  # fmt: skip
def test_each_verb_finds_its_letters_by_an_index(path: Path, statement: str, index: str) -> None:
    prepare(path)
    with opened(path) as db:
        plan = "; ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", ("x",)))
    assert index in plan
    assert "SCAN" not in plan
