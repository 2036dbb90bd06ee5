"""Operations outlive their process, their runner and the version of the file they are in."""

import asyncio
import contextlib
import os
import re
import selectors
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.errors import LetterNotFoundError, SettingsError
from redrive.stores.operations import (
    LARGEST_LIST,
    Operation,
    OperationState,
    begun,
    check_end,
    check_operation,
    end,
    run,
)
from redrive.stores.sqlite import SqliteStore, operations as sqlite_operations, schema
from redrive.testing import ManualClock, a_letter
from redrive.testing.factories import letters

NOW = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
REPLAY = Operation(id="op-1", kind="replay", by="ann")
RUNNING, STOPPED = OperationState.RUNNING, OperationState.STOPPED
CANCELLED, DONE = OperationState.CANCELLED, OperationState.DONE


# --- decisions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "runner", "left", "resume", "has_it"),
    [
        (RUNNING, None, None, False, True),
        (RUNNING, "me", MINUTE, False, True),
        (RUNNING, "me", -MINUTE, False, True),
        (RUNNING, "you", MINUTE, True, False),
        (RUNNING, "you", timedelta(0), False, True),
        (STOPPED, None, None, True, True),
        (STOPPED, None, None, False, False),
        (CANCELLED, None, None, True, False),
        (DONE, None, None, True, False),
    ],
)
def test_who_can_run_an_operation(
    state: OperationState,
    runner: str | None,
    left: timedelta | None,
    resume: bool,
    has_it: bool,
) -> None:
    lease_until = None if left is None else NOW + left
    operation = msgspec.structs.replace(REPLAY, state=state, runner=runner, lease_until=lease_until)
    after = run(operation, "me", MINUTE, NOW, resume=resume)
    assert (after is not None) is has_it
    if after is not None:
        assert (after.state, after.runner, after.lease_until) == (RUNNING, "me", NOW + MINUTE)


@pytest.mark.parametrize("state", OperationState)
def test_only_what_is_running_or_stopped_can_end(state: OperationState) -> None:
    operation = msgspec.structs.replace(REPLAY, state=state, runner="me", lease_until=NOW)
    after = end(operation, CANCELLED, "bob", "enough", NOW)
    assert (after is None) is operation.is_over is (state in {DONE, CANCELLED})


def test_what_is_begun_keeps_only_what_was_asked_for() -> None:
    copy = Operation(
        id="op-1", kind="replay", by="ann", query="tag:vip", options=b"\xff", state=DONE, note="x", total=3,
        outcomes={"sent": 3}, created_at=NOW, ended_at=NOW, ended_by="bob", runner="me", lease_until=NOW,
    )  # fmt: skip
    later = NOW + MINUTE
    assert begun(copy, 7, later) == Operation(
        id="op-1", kind="replay", by="ann", query="tag:vip", options=b"\xff", total=7, created_at=later
    )


def test_an_end_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        SettingsError, match="cannot end in the state 'running'; use one of done, cancelled, stopped"
    ):
        check_end(RUNNING, "ann", "")


def test_a_list_may_have_as_many_letters_as_is_said_and_no_more() -> None:
    check_operation(REPLAY, ["a"] * LARGEST_LIST)
    with pytest.raises(SettingsError, match="lists 1000001 letters; the limit is 1000000"):
        check_operation(REPLAY, ["a"] * (LARGEST_LIST + 1))


def test_one_bad_id_among_many_is_found() -> None:
    many = [f"l{number}" for number in range(50_000)]
    check_operation(REPLAY, many)
    for bad in ("", "  ", "a\x00", "\udc80", "x" * 65_537):
        with pytest.raises(SettingsError, match="a letter's id"):
            check_operation(REPLAY, [*many, bad])


# --- the file --------------------------------------------------------------------------------------------


def make_an_old_file(path: Path) -> None:
    """An empty store as the first migration alone leaves it."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA page_size = 8192")
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(schema.migrations()[0][1])
        db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        db.execute("PRAGMA user_version = 1")


async def test_a_file_whose_second_migration_cannot_run_stays_of_the_first_version(tmp_path: Path) -> None:
    # Given an old file in which somebody made a table of a name that the second migration needs
    path = tmp_path / "redrive.db"
    make_an_old_file(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE outcomes (x)")
        before = db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    # When it is opened, then it says so, and no half of the migration is there.
    with pytest.raises(Exception, match="table outcomes already exists"):
        await SqliteStore.open(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        assert db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall() == before


def plan_of(path: Path, sql: str, values: tuple[Any, ...]) -> str:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return "; ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values))


async def test_what_remains_is_found_without_walking_over_what_is_done(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    store = await SqliteStore.open(path)
    await store.close()
    plan = plan_of(path, sqlite_operations._REMAINING, (1, 100))
    assert plan == "SEARCH operation_items USING INDEX items_remaining (operation=?)"


async def test_groups_and_the_letters_of_a_group_by_age_are_read_from_one_index(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    store = await SqliteStore.open(path)
    await store.add(letters(20))
    seen: list[str] = []
    await store._read(lambda db: db.set_trace_callback(seen.append))
    for _ in range(8):  # whichever reader answers, one of these is the one that is traced
        await store.groups()
    await store.close()
    counting = next(statement for statement in seen if "count(*)" in statement)
    assert "USING COVERING INDEX letters_group" in plan_of(path, counting, ())
    listing = 'SELECT * FROM letters WHERE "group" = ? ORDER BY created_at DESC LIMIT 50'
    assert plan_of(path, listing, ("x",)) == "SEARCH letters USING INDEX letters_group (group=?)"


# --- crowds ----------------------------------------------------------------------------------------------


async def test_a_long_list_is_worked_off_in_portions_each_letter_once(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "redrive.db")
    ids = [a_letter(str(number)).id for number in range(25_000)]
    assert await store.begin(REPLAY, [*ids, *ids[:100]])
    done: list[str] = []
    while portion := await store.remaining("op-1", limit=2000):
        await store.record("op-1", [(letter_id, "sent", "") for letter_id in portion])
        done += portion
    operation = await store.operation("op-1")
    assert done == ids
    assert (operation.total, operation.outcomes, operation.recorded) == (25_000, {"sent": 25_000}, 25_000)
    await store.close()


async def test_letters_are_added_and_claimed_in_the_same_group_commit_as_operations(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "redrive.db")
    lot = letters(10)
    answers: list[Any] = await asyncio.gather(  # type: ignore[assignment]  # a list it is
        store.add(lot),
        store.begin(REPLAY, [letter.id for letter in lot]),
        store.record("op-1", [(lot[0].id, "sent", "")]),
        store.record("op-1", [(lot[1].id, "sent", ""), ("not listed", "sent", "")]),
        store.run_operation("op-1", "r1"),
        return_exceptions=True,
    )
    assert answers[:3] == [[True] * 10, True, None]
    assert isinstance(answers[3], LetterNotFoundError)
    assert answers[4] is True
    operation = await store.operation("op-1")
    assert (operation.outcomes, operation.runner) == ({"sent": 1}, "r1")
    await store.close()


async def test_two_stores_on_one_file_share_operations_and_one_runs_them(tmp_path: Path) -> None:
    clock = ManualClock()
    here = await SqliteStore.open(tmp_path / "redrive.db", clock=clock)
    there = await SqliteStore.open(tmp_path / "redrive.db", clock=clock)
    answers = await asyncio.gather(here.begin(REPLAY, ["a"]), there.begin(REPLAY, ["b"]))
    assert sorted(answers) == [False, True]
    answers = await asyncio.gather(here.run_operation("op-1", "here"), there.run_operation("op-1", "there"))
    assert sorted(answers) == [False, True]
    assert await here.operation("op-1") == await there.operation("op-1")
    await here.close()
    await there.close()


async def test_the_runner_of_the_reference_stops_when_told_to_and_goes_on_where_it_stood(
    tmp_path: Path,
) -> None:
    # Given the runner as the reference shows it, and a person who stops it after 150 of 250 letters
    page = (Path(__file__).parents[3] / "docs" / "reference" / "store-contract.md").read_text("utf-8")
    code = re.findall(r"```python\n(async def work_off.*?)```", page, re.DOTALL)[0]
    names: dict[str, Any] = {"OperationState": OperationState}
    exec(code, names)
    store = await SqliteStore.open(tmp_path / "redrive.db")
    ids = [f"l{number}" for number in range(250)]
    await store.begin(REPLAY, ids)
    done: list[str] = []

    async def do(letter_id: str) -> str:
        done.append(letter_id)
        if len(done) == 150:
            await store.end_operation("op-1", STOPPED, by="bob", note="lunch")
        return "sent"

    # When it has run, then it has ended with the portion it was in.
    await names["work_off"](store, "op-1", "r1", do)
    stopped = await store.operation("op-1")
    assert (stopped.state, stopped.note, stopped.recorded) == (STOPPED, "lunch", 200)
    # And when it is run again, the rest is done, each letter once.
    await names["work_off"](store, "op-1", "r2", do)
    assert (await store.operation("op-1")).state is DONE
    assert done == ids
    await names["work_off"](store, "op-1", "r3", do)
    assert done == ids
    await store.close()


# --- killed ----------------------------------------------------------------------------------------------

CHILD = """
import asyncio, os, sys
from redrive.stores.operations import Operation
from redrive.stores.sqlite import SqliteStore

async def main(path, life):
    store = await SqliteStore.open(path)
    for number in range(1000):
        name = f"{life}-{number}"
        await store.begin(Operation(id=name, kind="replay", by="ann"), [f"l{n}" for n in range(50)])
        os.write(1, f"begun {name}\\n".encode())
        while portion := await store.remaining(name, limit=7):
            await store.record(name, [(letter_id, "sent", "") for letter_id in portion])
            os.write(1, f"recorded {name} {len(portion)}\\n".encode())

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


def told_by_a_killed_process(path: Path, life: int, lines: int) -> list[str]:
    """Let a process work operations off, kill it after it has said so many lines, and hear all it said."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), str(life)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    heard = b""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while heard.count(b"\n") < lines:
                assert selector.select(60), "the child said nothing for a minute"
                piece = os.read(child.stdout.fileno(), 1 << 16)
                assert piece, "the child died by itself"
                heard += piece
    finally:
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate(timeout=60)
    whole = (heard + rest).decode().splitlines(keepends=True)
    return [line for line in whole if line.endswith("\n")]  # a torn last line was never said


async def test_a_killed_process_loses_no_operation_and_no_outcome_it_was_told_of(tmp_path: Path) -> None:
    path = tmp_path / "redrive.db"
    told: dict[str, int] = {}
    for life in range(5):
        # Given a process that works operations off; when it is killed
        for line in await asyncio.to_thread(told_by_a_killed_process, path, life, 10 + 17 * life):
            what, name, *count = line.split()
            told[name] = told.get(name, 0) + (int(count[0]) if what == "recorded" else 0)
        # Then all it said is there, in whole portions, and what it did not say is not there by halves.
        store = await SqliteStore.open(path)
        assert await store.damage() is None
        kept = {operation.id: operation for operation in await store.operations(limit=1000)}
        assert told.keys() <= kept.keys()
        for name, operation in kept.items():
            items = await store.items(name, limit=100)
            assert [item.letter_id for item in items] == [f"l{n}" for n in range(50)]
            recorded = sum(item.outcome == "sent" for item in items)
            assert operation.recorded == recorded >= told.get(name, 0)
            assert recorded % 7 == 0 or recorded == 50
            assert await store.remaining(name, limit=100) == [f"l{n}" for n in range(recorded, 50)]
        await store.close()
    assert len(told) >= 5
