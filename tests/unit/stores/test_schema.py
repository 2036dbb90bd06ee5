"""A file becomes a store of this version, or is refused and left as it was."""

import asyncio
import hashlib
import re
import sqlite3
import subprocess
import sys
import threading
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import FormatError, StoreBusyError, StoreDamagedError, StoreError, StoreVersionError
from redrive.stores.sqlite import SqliteOptions, SqliteStore, migrate, schema
from redrive.testing import a_letter

WAIT = timedelta(seconds=10)
NEWEST = schema.migrations()[-1][0]


def prepare(path: Path) -> None:
    schema.prepare(path, busy_timeout=WAIT, integrity_check_timeout=None)


def ask(path: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def run_sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            connection.execute(statement)
    finally:
        connection.close()


def tables(path: Path) -> set[str]:
    return {row[0] for row in ask(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def prints(folder: Path) -> dict[str, str]:
    """Every file of a folder and its hash."""
    return {entry.name: hashlib.sha256(entry.read_bytes()).hexdigest() for entry in folder.iterdir()}


# --- migrations ------------------------------------------------------------------------------------------


def test_migrations_are_numbered_from_one_without_gaps() -> None:
    assert [number for number, _ in schema.migrations()] == list(range(1, NEWEST + 1))


def test_migrations_are_files_named_by_number_and_purpose() -> None:
    names = [entry.name for entry in (files("redrive.stores") / "sql" / "sqlite").iterdir()]
    assert all(re.fullmatch(r"\d{4}_[a-z_]+\.sql", name) for name in names)


def test_migrations_are_split_into_whole_statements() -> None:
    for _, script in schema.migrations():
        statements = list(migrate.statements(script))
        assert all(sqlite3.complete_statement(statement) for statement in statements)
        left = script[len("".join(statements)) :]
        assert not re.sub(r"--.*", "", left).strip(), "the last statement has no semicolon"


def test_a_new_file_is_ours_and_of_the_newest_version(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    prepare(path)
    assert ask(path, "PRAGMA user_version") == [(NEWEST,)]
    assert ask(path, "PRAGMA application_id") == [(schema.APPLICATION_ID,)]
    assert ask(path, "PRAGMA journal_mode") == [("wal",)]
    assert {"letters", "bodies", "tags", "attempts", "notes", "change_log"} <= tables(path)


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    path.touch()
    prepare(path)
    assert ask(path, "PRAGMA user_version") == [(NEWEST,)]


async def test_preparing_a_store_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    store = await SqliteStore.open(path)
    await store.add([a_letter()])
    await store.close()
    before = prints(tmp_path)
    prepare(path)
    assert prints(tmp_path) == before


async def test_an_older_file_is_brought_to_the_newest_version(tmp_path: Path) -> None:
    # Given a file from before the first migration: ours by its mark, without a table.
    path = tmp_path / "redrive.db"
    run_sql(path, f"PRAGMA application_id = {schema.APPLICATION_ID}", "PRAGMA user_version = 0")
    assert path.stat().st_size > 0
    # When it is opened
    store = await SqliteStore.open(path)
    # Then it is a store like any other.
    assert await store.add([a_letter()]) == [True]
    await store.close()
    assert ask(path, "PRAGMA user_version") == [(NEWEST,)]


async def test_a_new_migration_keeps_the_letters_of_an_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "redrive.db"
    store = await SqliteStore.open(path)
    await store.add([a_letter()])
    await store.close()
    script = "CREATE TABLE later (x INTEGER);\nINSERT INTO later VALUES (5);\n"
    newer = [*schema.migrations(), (NEWEST + 1, script)]
    monkeypatch.setattr(schema, "migrations", lambda: newer)
    store = await SqliteStore.open(path)
    assert (await store.load([a_letter().id]))[0].key == "orders/1"
    await store.close()
    assert ask(path, "PRAGMA user_version") == [(NEWEST + 1,)]
    assert ask(path, "SELECT x FROM later") == [(5,)]


def test_a_migration_that_fails_half_way_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "redrive.db"
    prepare(path)
    before = tables(path)
    script = "CREATE TABLE half (x INTEGER);\nINSERT INTO nowhere VALUES (1);\n"
    broken = [*schema.migrations(), (NEWEST + 1, script)]
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", lambda: broken)
        with pytest.raises(StoreError, match="nowhere"):
            prepare(path)
    assert tables(path) == before
    assert ask(path, "PRAGMA user_version") == [(NEWEST,)]
    prepare(path)


# --- at the same time ------------------------------------------------------------------------------------


# SQLite does not wait, whatever the timeout, when a file is to become a write-ahead log while another connection is
# about to write to it. Those that open a new file at once have to wait by themselves.


def test_a_new_file_that_somebody_writes_to_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    end = threading.Timer(0.2, other.execute, ["COMMIT"])
    end.start()
    try:
        prepare(path)
    finally:
        end.join()
        other.close()


def test_threads_that_open_a_new_file_at_once_all_find_a_store(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / f"{number}.db"
        start = threading.Barrier(4)
        problems: list[BaseException] = []

        def work(
            path: Path = path, start: threading.Barrier = start, problems: list[BaseException] = problems
        ) -> None:
            start.wait()
            try:
                prepare(path)
            except BaseException as error:  # noqa: BLE001  the test reports it
                problems.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert ask(path, "PRAGMA user_version") == [(NEWEST,)]


def test_processes_that_open_a_new_file_at_once_all_can_use_it(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    code = (
        "import asyncio, sys\n"
        "from redrive.stores.sqlite import SqliteStore\n"
        "from redrive.testing import a_letter\n"
        "async def main():\n"
        "    sys.stdin.readline()\n"
        "    store = await SqliteStore.open(sys.argv[1])\n"
        "    print(await store.add([a_letter(sys.argv[2])]))\n"
        "    await store.close()\n"
        "print('ready', flush=True)\n"
        "asyncio.run(main())\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(4)
    ]  # fmt: skip
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [child.communicate(timeout=60) for child in children]
    assert said == [("[True]\n", "")] * 4
    assert ask(path, "SELECT count(*) FROM letters") == [(4,)]


def test_a_store_made_between_two_looks_at_the_file_is_not_taken_for_a_strangers(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"

    class Slow(sqlite3.Connection):
        """Between its first and its second statement, another process makes the store."""

        statements = 0

        def execute(self, *args: Any) -> sqlite3.Cursor:
            self.statements += 1
            if self.statements == 2:
                prepare(path)
            return super().execute(*args)

    connection = sqlite3.connect(path, factory=Slow, isolation_level=None)
    try:
        schema._check_owner(connection, path)
    finally:
        connection.close()


async def test_a_file_that_somebody_holds_for_too_long_is_busy(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    store = await SqliteStore.open(path, SqliteOptions(busy_timeout=timedelta(milliseconds=20)))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(
        StoreBusyError, match=r"is locked by another process: try again, or raise store\.busy_timeout"
    ):
        await store.add([a_letter()])
    other.execute("ROLLBACK")
    other.close()
    assert await store.add([a_letter()]) == [True]
    await store.close()


# --- what is refused -------------------------------------------------------------------------------------


def refused(path: Path, kind: type[StoreError], says: str) -> None:
    """It is refused, in one line, and not one byte of it has changed."""
    before = prints(path.parent)
    with pytest.raises(kind) as problem:
        prepare(path)
    assert type(problem.value) is kind
    assert says in str(problem.value)
    assert str(path) in str(problem.value)
    assert "\n" not in str(problem.value)
    assert prints(path.parent) == before


def test_the_database_of_another_program_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    run_sql(path, "CREATE TABLE customers (name TEXT)", "INSERT INTO customers VALUES ('Ann')")
    refused(path, StoreDamagedError, "is the database of another program; choose another file for the store")


def test_the_marked_database_of_another_program_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    run_sql(path, "PRAGMA application_id = 12345", "CREATE TABLE x (y)", "DROP TABLE x")
    refused(path, StoreDamagedError, "is the database of another program")


def test_a_file_of_a_newer_version_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    prepare(path)
    run_sql(path, f"PRAGMA user_version = {NEWEST + 1}")
    refused(
        path, StoreVersionError, f"(schema {NEWEST + 1}, this version supports {NEWEST}); upgrade redrive"
    )


@pytest.mark.parametrize(
    "content",
    [b"x", b"hello, this is a text file\n" * 100, b"\x00" * 8192, b"SQLite format 3", b"PK\x03\x04" * 50],
    ids=["one byte", "text", "zeros", "half a mark", "archive"],
)
def test_a_file_that_is_no_database_is_refused_and_untouched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "redrive.db"
    path.write_bytes(content)
    refused(path, StoreDamagedError, "is not a database")


@pytest.mark.parametrize("size", [16, 50, 99, 100, 500])
def test_the_mere_beginning_of_a_database_is_refused(tmp_path: Path, size: int) -> None:
    whole = tmp_path / "whole.db"
    prepare(whole)
    path = tmp_path / "redrive.db"
    path.write_bytes(whole.read_bytes()[:size])
    with pytest.raises(StoreError):
        prepare(path)


def test_a_file_that_is_refused_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open connection is a warning from Python 3.13 on, and keeps the file open on every version."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remembered(*args: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", remembered)
    prepare(tmp_path / "whole.db")
    path = tmp_path / "redrive.db"
    path.write_bytes((tmp_path / "whole.db").read_bytes()[:100])
    with pytest.raises(StoreError):
        prepare(path)
    assert len(opened) == 2
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            connection.execute("SELECT 1")


def test_a_directory_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreDamagedError, match="is a directory; name a file in it"):
        prepare(tmp_path)
    with pytest.raises(StoreError, match="does not exist; create it"):
        prepare(tmp_path / "no" / "such" / "redrive.db")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError, match="does not exist; create it"):
        prepare(tmp_path / "loop" / "redrive.db")
    (tmp_path / "loop").unlink()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x" * 300, "a\x00b"], ids=["too long", "NUL"])
def test_a_name_no_file_can_have_is_refused_as_a_store_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError):
        prepare(tmp_path / name)


async def test_sqlites_name_for_a_database_in_memory_is_refused() -> None:
    with pytest.raises(StoreError, match="for a store in memory write memory:"):
        await SqliteStore.open(":memory:")


# --- looking for damage ----------------------------------------------------------------------------------


async def test_looking_for_damage_ends_when_its_time_is_over(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    store = await SqliteStore.open(path)
    await store.add([a_letter(str(number)) for number in range(2000)])
    await store.close()
    connection = schema.connect(path, busy_timeout=WAIT)
    looks: list[str] = []
    connection.set_trace_callback(looks.append)
    assert schema.damage(connection, timedelta(0)) is None
    assert schema.damage(connection, None) is None
    connection.close()
    assert len([look for look in looks if "quick_check" in look]) == 2
    prepare(path)


@pytest.mark.parametrize("part", ["content", "failure"])
async def test_a_letter_that_was_changed_behind_our_back_is_found_and_named(
    tmp_path: Path, part: str
) -> None:
    path = tmp_path / "redrive.db"
    store = await SqliteStore.open(path)
    await store.add([a_letter(str(number)) for number in range(1200)])
    assert await store.damage() is None
    victim = a_letter("1111").id
    its = f"letter = (SELECT created_at FROM letters WHERE id = '{victim}')"
    run_sql(path, f"UPDATE bodies SET {part} = CAST({part} || 'x' AS BLOB) WHERE {its}")
    assert (await store.damage() or "").startswith(
        f"letter {victim}: a stored letter was modified or damaged"
    )
    with pytest.raises(FormatError, match="was modified or damaged after it was written"):
        await store.load([victim])
    run_sql(path, f"DELETE FROM bodies WHERE {its}")
    assert await store.damage() == f"letter {victim}: its message is missing"
    await store.close()


async def test_a_store_is_the_same_from_two_loops_one_after_the_other(tmp_path: Path) -> None:
    def one_life(key: str) -> list[bool]:
        async def life() -> list[bool]:
            store = await SqliteStore.open(tmp_path / "redrive.db")
            try:
                return await store.add([a_letter(key)])
            finally:
                await store.close()

        return asyncio.run(life())

    assert await asyncio.to_thread(one_life, "a") == [True]
    assert await asyncio.to_thread(one_life, "a") == [False]
