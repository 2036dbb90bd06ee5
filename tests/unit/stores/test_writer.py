"""The writing thread: one commit for many jobs, and no job in another's way."""

import asyncio
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from redrive.errors import (
    LetterInvalidError,
    LetterNotFoundError,
    StoreClosedError,
    StoreError,
    StoreFullError,
)
from redrive.stores.changes import Assign
from redrive.stores.sqlite import SqliteStore
from redrive.stores.sqlite.writer import Bundle, Job, Writer
from redrive.testing import a_letter, a_message


class Watched(sqlite3.Connection):
    """A connection that remembers what it was told, and stops before a transaction while its gate is shut."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.said: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.waits = False  # at the gate

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "BEGIN IMMEDIATE":
            self.waits = not self.gate.is_set()
            self.gate.wait()
        self.said.append(sql)
        return super().execute(sql, *args)

    @property
    def commits(self) -> int:
        return self.said.count("COMMIT")


def one_by_one(group: list[Job[Any]]) -> Iterable[Bundle]:
    return map(Bundle.of, group)


def connect(path: Path) -> Watched:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Watched)
    connection.execute("CREATE TABLE IF NOT EXISTS lines (text TEXT UNIQUE NOT NULL)")
    return connection


def lines(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return [row[0] for row in connection.execute("SELECT text FROM lines ORDER BY rowid")]
    finally:
        connection.close()


def lines_of_the_first_commit(path: Path) -> int:
    """How many lines others see first, while the event loop is busy with this very question."""
    until = time.monotonic() + 30
    while not (found := lines(path)) and time.monotonic() < until:
        time.sleep(0.01)
    return len(found)


def write(text: str | None) -> Callable[[sqlite3.Connection], str | None]:
    def work(db: sqlite3.Connection) -> str | None:
        db.execute("INSERT INTO lines VALUES (?)", (text,))
        return text

    return work


def write_and_raise(text: str, error: BaseException) -> Callable[[sqlite3.Connection], str]:
    def work(db: sqlite3.Connection) -> str:
        db.execute("INSERT INTO lines VALUES (?)", (text,))
        raise error

    return work


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lines.db"


@contextmanager
def shut(connection: Watched) -> Iterator[None]:
    """While it lasts, the thread cannot begin a transaction: what is handed over gathers."""
    connection.gate.clear()
    try:
        yield
    finally:
        connection.gate.set()


async def answers(writer: Writer, *works: Callable[[sqlite3.Connection], Any]) -> list[Any]:
    """What each of these jobs, handed over in one turn of the loop, came to."""
    return await asyncio.gather(*(writer.submit(Job(work)) for work in works), return_exceptions=True)


# --- groups ----------------------------------------------------------------------------------------------


async def test_jobs_of_one_turn_share_one_commit(path: Path) -> None:
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    assert await answers(writer, *(write(str(number)) for number in range(100))) == [
        str(n) for n in range(100)
    ]
    assert connection.commits == 1
    await writer.close()
    assert lines(path) == [str(number) for number in range(100)]


async def test_jobs_that_come_while_the_disk_works_share_the_next_commit(path: Path) -> None:
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    with shut(connection):
        first = writer.submit(Job(write("first")))
        while not connection.waits:  # noqa: ASYNC110  a thread sets no asyncio.Event
            await asyncio.sleep(0)  # until the thread has the first job, and waits at the gate
        rest = []
        for number in range(20):
            rest.append(writer.submit(Job(write(str(number)))))
            await asyncio.sleep(0)  # each in a turn of its own
        assert not first.done()
    await asyncio.gather(first, *rest)
    assert connection.commits == 2
    await writer.close()


async def test_jobs_that_wait_for_each_other_are_committed_one_by_one(path: Path) -> None:
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    for number in range(5):
        await writer.submit(Job(write(str(number))))
    assert connection.commits == 5
    await writer.close()


async def test_a_job_is_done_only_after_its_commit(path: Path) -> None:
    writer = Writer(connect(path), path, one_by_one)
    for number in range(10):
        await writer.submit(Job(write(str(number))))
        assert lines(path)[-1] == str(number), "another connection does not see it yet"
    await writer.close()


async def test_a_crowd_of_thousands_is_committed_in_few_groups(path: Path) -> None:
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    found = await answers(writer, *(write(str(number)) for number in range(12_000)))
    assert found == [str(number) for number in range(12_000)]
    assert connection.commits <= 120
    await writer.close()


@pytest.mark.parametrize("count", [249, 250, 251, 499, 500])
async def test_a_turn_with_many_jobs_is_handed_over_in_portions_and_committed_once(
    path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.writer._PATIENCE_S", 60)  # however busy the machine is
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    for _ in range(2):  # the thread is still there for the next turn
        texts = [f"{uuid4()}" for _ in range(count)]
        assert await asyncio.gather(*(writer.submit(Job(write(text))) for text in texts)) == texts
    assert connection.commits == 2
    await writer.close()
    assert len(lines(path)) == 2 * count


@pytest.mark.parametrize("count", [501, 750, 2000])
async def test_a_turn_with_very_many_jobs_is_committed_in_several_groups(
    path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.writer._PATIENCE_S", 60)  # likewise
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    texts = [f"{number}" for number in range(count)]
    assert await asyncio.gather(*(writer.submit(Job(write(text))) for text in texts)) == texts
    assert 1 <= connection.commits <= count // 500 + 1
    await writer.close()
    assert lines(path) == texts


async def test_enough_jobs_are_committed_although_their_turn_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.writer._PATIENCE_S", 60)
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    futures = [writer.submit(Job(write(f"{number}"))) for number in range(510)]
    assert lines_of_the_first_commit(path) == 500
    assert len(await asyncio.gather(*futures)) == 510
    await writer.close()


async def test_a_busy_loop_pauses_for_the_thread_only_while_that_is_at_work(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("redrive.stores.sqlite.writer.time.sleep", pauses.append)
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    await answers(writer, *(write(f"idle {number}") for number in range(100)))
    assert not pauses
    with shut(connection):
        first = writer.submit(Job(write("first")))
        while not writer._is_busy:  # noqa: ASYNC110  as above
            await asyncio.sleep(0)
        rest = [writer.submit(Job(write(f"busy {number}"))) for number in range(100)]
    await asyncio.gather(first, *rest)
    assert len(pauses) == 4
    await writer.close()


async def test_a_turn_that_takes_too_long_does_not_keep_the_file(path: Path) -> None:
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    futures = [writer.submit(Job(write(f"{number}"))) for number in range(300)]
    assert lines_of_the_first_commit(path) == 250
    assert len(await asyncio.gather(*futures)) == 300
    await writer.close()


async def test_a_job_of_a_later_portion_that_fails_hurts_no_other(path: Path) -> None:
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    texts = [f"{number}" for number in range(600)]
    texts[300] = texts[0]  # refused: the column is unique
    answers = await asyncio.gather(
        *(writer.submit(Job(write(text))) for text in texts), return_exceptions=True
    )
    assert [number for number, answer in enumerate(answers) if isinstance(answer, BaseException)] == [300]
    assert len(lines(path)) == 599
    await writer.close()


async def test_adds_of_many_tasks_to_a_store_share_commits(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "redrive.db")
    said: list[str] = []
    store._writer._connection.set_trace_callback(said.append)
    found = await asyncio.gather(*(store.add([a_letter(str(number))]) for number in range(100)))
    assert found == [[True]] * 100
    assert said.count("COMMIT") == 1
    await store.close()


# --- jobs that raise -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [LetterInvalidError("no"), ValueError("no"), TypeError("no"), OverflowError("no"), StoreError("no")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
async def test_a_job_that_raises_changes_nothing_and_disturbs_no_other(path: Path, error: Exception) -> None:
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    found = await answers(writer, write("before"), write_and_raise("gone", error), write("after"))
    assert found == ["before", error, "after"]
    assert connection.commits == 1
    await writer.close()
    assert lines(path) == ["before", "after"]


async def test_jobs_run_behind_savepoints_only_where_one_of_them_raises(path: Path) -> None:
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    assert await answers(writer, write("a"), write("b")) == ["a", "b"]
    assert "SAVEPOINT bundle" not in connection.said
    problem = ValueError("no")
    assert await answers(writer, write("c"), write_and_raise("gone", problem)) == ["c", problem]
    assert connection.said.count("SAVEPOINT bundle") == 2
    await writer.close()
    assert lines(path) == ["a", "b", "c"]


async def test_letters_are_added_beside_a_change_that_is_refused(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "redrive.db")
    one, two = a_letter("one"), a_letter("two")
    found = await asyncio.gather(
        store.add([one]),
        store.apply(Assign("alice"), ["nobody"], by="bob"),
        store.add([one, two, two]),
        return_exceptions=True,
    )
    assert isinstance(found[1], LetterNotFoundError)
    assert [found[0], found[2]] == [[True], [False, True, False]]
    assert [letter.message for letter in await store.load([one.id, two.id])] == [one.message, two.message]
    assert await store.count() == 2
    await store.close()


@pytest.mark.parametrize("text", [None, "", "0", "0.0", "nobody"])
async def test_what_a_letter_does_not_have_is_told_from_whatever_it_has(
    tmp_path: Path, text: str | None
) -> None:
    store = await SqliteStore.open(tmp_path / "redrive.db")
    letters = [
        msgspec.structs.replace(a_letter(f"{name}"), **{name: text})
        for name in ("message_id", "strategy", "assignee")
    ]
    await store.add(letters)
    loaded = await store.load([letter.id for letter in letters])
    assert [(letter.message_id, letter.strategy, letter.assignee) for letter in loaded] == [
        (letter.message_id, letter.strategy, letter.assignee) for letter in letters
    ]
    await store.close()


@pytest.mark.parametrize("size", [0, 65_000, 70_000, 1_000_000])
async def test_a_body_of_any_size_comes_back(tmp_path: Path, size: int) -> None:
    store = await SqliteStore.open(tmp_path / "redrive.db")
    # Random, so that it is not compressed.
    letter = a_letter(message=a_message(body=random.Random(size).randbytes(size)))
    await store.add([letter])
    (loaded,) = await store.load([letter.id])
    assert loaded.message == letter.message
    await store.close()


async def test_letters_that_were_there_before_are_told_from_new_ones_in_one_statement(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "redrive.db")
    letters = [a_letter(f"{number}", tags=("vip",)) for number in range(600)]
    assert all(await store.add(letters[::3]))
    found = await asyncio.gather(*(store.add([letter]) for letter in letters))
    assert found == [[number % 3 != 0] for number in range(600)]
    loaded = await store.load([letter.id for letter in letters])
    assert [letter.message for letter in loaded] == [letter.message for letter in letters]
    assert await store.tally("tag") == {"vip": 600}
    await store.close()


@pytest.mark.parametrize(
    "error",
    [KeyError("no"), AttributeError("no"), RuntimeError("no"), ZeroDivisionError("no"), AssertionError("no"),
     sqlite3.ProgrammingError("no"), sqlite3.InterfaceError("no"), sqlite3.DataError("no")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
async def test_a_job_with_a_mistake_of_its_own_disturbs_no_other(path: Path, error: Exception) -> None:
    writer = Writer(connect(path), path, one_by_one)
    found = await answers(writer, write("before"), write_and_raise("gone", error), write("after"))
    await writer.close()
    assert found == ["before", error, "after"]
    assert lines(path) == ["before", "after"]


async def test_a_row_the_table_refuses_is_the_matter_of_its_job_alone(path: Path) -> None:
    writer = Writer(connect(path), path, one_by_one)
    first, second, third = await answers(writer, write("same"), write("same"), write(None))
    assert first == "same"
    assert isinstance(second, sqlite3.IntegrityError)
    assert isinstance(third, sqlite3.IntegrityError)
    await writer.close()
    assert lines(path) == ["same"]


async def test_where_one_of_a_bundle_raises_the_others_are_done_one_by_one(path: Path) -> None:
    def all_as_one(group: list[Job[Any]]) -> Iterable[Bundle]:
        yield Bundle(group, lambda db: [job.work(db) for job in group])

    writer = Writer(connect(path), path, all_as_one)
    problem = LetterInvalidError("no")
    found = await answers(writer, write("a"), write_and_raise("gone", problem), write("b"), write("c"))
    assert found == ["a", problem, "b", "c"]
    await writer.close()
    assert lines(path) == ["a", "b", "c"]


async def test_where_the_database_fails_the_whole_group_is_told_and_nothing_is_left(path: Path) -> None:
    connection = connect(path)
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    writer = Writer(connection, path, one_by_one)
    found = await answers(writer, write("small"), write("x" * 100_000), write("small too"))
    assert [type(one) for one in found] == [StoreFullError] * 3
    assert "is full: free disk space or raise store.max_bytes" in str(found[0])
    assert await answers(writer, write("next")) == ["next"], "the thread goes on"
    await writer.close()
    assert lines(path) == ["next"]


async def test_the_thread_survives_any_number_of_failures(path: Path) -> None:
    writer = Writer(connect(path), path, one_by_one)
    for number in range(20):
        found = await answers(writer, write_and_raise("x", ValueError("no")), lambda db: db.execute("no SQL"))
        assert all(isinstance(one, Exception) for one in found), number
    assert await answers(writer, write("still here")) == ["still here"]
    await writer.close()


# --- futures that are given up, closing ------------------------------------------------------------------


async def test_a_caller_that_gave_up_disturbs_nobody_and_its_work_is_done(path: Path) -> None:
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    with shut(connection):
        futures = [writer.submit(Job(write(text))) for text in ("a", "given up", "b")]
        await asyncio.sleep(0)
        futures[1].cancel()
    assert [await futures[0], await futures[2]] == ["a", "b"]
    assert futures[1].cancelled()
    await writer.close()
    assert lines(path) == ["a", "given up", "b"]


async def test_the_thread_keeps_nothing_of_what_is_done_while_it_waits(path: Path) -> None:
    writer = Writer(connect(path), path, one_by_one)
    work = write("a")
    kept = weakref.ref(work)
    assert await writer.submit(Job(work)) == "a"
    del work
    until = time.monotonic() + 5
    while kept() is not None and time.monotonic() < until:  # noqa: ASYNC110  a thread sets no asyncio.Event
        await asyncio.sleep(0.001)  # the thread is on its way back to waiting
    assert kept() is None
    await writer.close()


async def test_closing_runs_what_waits_and_then_refuses(path: Path) -> None:
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    with shut(connection):
        futures = [
            writer.submit(Job(write(str(number)))) for number in range(300)
        ]  # handed over and gathered
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
        with pytest.raises(StoreClosedError, match="is closed"):
            writer.submit(Job(write("too late")))
        assert not any(future.done() for future in futures)
    await closing
    assert [future.result() for future in futures] == [str(number) for number in range(300)]
    assert lines(path) == [str(number) for number in range(300)]


async def test_closing_twice_and_at_once_is_fine(path: Path) -> None:
    writer = Writer(connect(path), path, one_by_one)
    await asyncio.gather(writer.close(), writer.close())
    await writer.close()
    assert not writer._thread.is_alive()


async def test_closing_without_work_ends_the_thread_and_the_connection(path: Path) -> None:
    connection = connect(path)
    writer = Writer(connection, path, one_by_one)
    await writer.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_a_loop_that_ended_first_leaves_what_was_handed_over_written(path: Path) -> None:
    connection = connect(path)
    gate = shut(connection)

    async def begin() -> Writer:
        gate.__enter__()
        writer = Writer(connection, path, one_by_one)
        writer.submit(Job(write("orphan")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return writer

    writer = asyncio.run(begin())
    gate.__exit__(None, None, None)
    writer._handed_over.put(None)
    writer._thread.join()
    assert lines(path) == ["orphan"]
