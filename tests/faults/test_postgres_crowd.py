"""Many clients on one PostgreSQL: worker processes, servers that start, waiting tasks, a long transaction."""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from redrive.errors import StoreBusyError
from redrive.letters import LetterState
from redrive.stores.changes import Resolve, Settlement
from redrive.stores.postgres import PostgresOptions, PostgresStore, schema
from redrive.testing import a_letter, letters
from redrive.testing.factories import BROKER
from tests import soak
from tests.services import Postgres

CHILD = Path(__file__).with_name("postgres_child.py")
PROCESSES = 10
LETTERS = soak.count(100_000)


async def fill(store: PostgresStore, count: int) -> None:
    for start in range(0, count, 1000):
        await store.add([a_letter(f"crowd/{number}") for number in range(start, min(start + 1000, count))])


# --- processes -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.soak
def test_ten_processes_finish_every_letter_exactly_once(postgres: Postgres) -> None:
    async def before() -> None:
        store = await PostgresStore.open(postgres.url)
        await fill(store, LETTERS)
        await store.close()

    async def after() -> None:
        store = await PostgresStore.open(postgres.url)
        assert await store.tally("state") == {LetterState.RESOLVED: LETTERS}
        assert await store.damage() is None
        await store.close()

    asyncio.run(before())
    children = [
        subprocess.Popen(
            [sys.executable, str(CHILD), postgres.url, f"worker-{number}", "100"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(PROCESSES)
    ]  # fmt: skip
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
        start = time.monotonic()
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        said = [json.loads(child.communicate(timeout=100)[0]) for child in children]
        took = time.monotonic() - start
    finally:
        for child in children:
            child.kill()
            child.wait()
    print(f"{PROCESSES} processes: {LETTERS} letters in {took:.1f} s, {LETTERS / took:.0f}/s")  # noqa: T201
    finished = Counter(letter for each in said for letter in each["finished"])
    assert len(finished) == LETTERS, "a letter was lost"
    assert set(finished.values()) == {1}, "a letter was finished twice"
    assert [each["refused"] for each in said] == [0] * PROCESSES
    assert sum(bool(each["finished"]) for each in said) > 1, "only one of them found something to do"
    asyncio.run(after())
    counts = "SELECT count(*), count(DISTINCT letter_id) FROM redrive.change_log WHERE action = 'resolve'"
    assert postgres.psql(counts) == f"{LETTERS}|{LETTERS}"


# --- instances that start --------------------------------------------------------------------------------


async def test_instances_that_start_at_once_migrate_once(postgres: Postgres) -> None:
    stores = await asyncio.gather(*(PostgresStore.open(postgres.url) for _ in range(8)))
    versions = [str(number) for number, _ in schema.migrations()]
    assert postgres.psql("SELECT version FROM redrive.migrations ORDER BY 1").split() == versions
    answers = await asyncio.gather(*(store.add([a_letter()]) for store in stores))
    assert sum(new for [new] in answers) == 1
    for store in stores:
        await store.close()


async def test_an_instance_that_starts_waits_for_one_that_migrates(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    other = await asyncpg.connect(postgres.url)
    migrating = other.transaction()
    await migrating.start()
    await other.execute(f"SELECT pg_advisory_xact_lock({schema._LOCK})")
    opening = asyncio.create_task(PostgresStore.open(postgres.url))
    async with asyncio.timeout(30):
        while "waiting for the migration by another process" not in caplog.text:
            assert not opening.done()
            await asyncio.sleep(0.01)
    assert "waited_s=" in caplog.text
    await migrating.rollback()
    store = await opening
    assert await store.add([a_letter()]) == [True]
    await store.close()
    await other.close()


# --- tasks that wait -------------------------------------------------------------------------------------


async def test_where_all_connections_are_in_use_one_waits_and_is_then_told(postgres: Postgres) -> None:
    options = PostgresOptions(pool_size=2, busy_timeout=timedelta(seconds=0.5))
    store = await PostgresStore.open(postgres.url, options)
    await store.add(letters(3))
    other = await asyncpg.connect(postgres.url)
    holding = other.transaction()
    await holding.start()
    await other.execute("LOCK TABLE redrive.states IN ACCESS EXCLUSIVE MODE")
    first = asyncio.create_task(store.claim("w1", broker=BROKER, limit=1))
    await asyncio.sleep(0)  # it has the one connection there is for writing
    with pytest.raises(StoreBusyError, match=r"all 1 connections .* raise store.pool_size"):
        await store.take([a_letter("orders/2").id], "w2")
    await holding.rollback()
    assert len(await first) == 1
    assert len(await store.claim("w2", broker=BROKER, limit=1)) == 1
    await other.close()
    await store.close()


async def test_many_more_tasks_than_connections_all_get_their_answer(postgres: Postgres) -> None:
    store = await PostgresStore.open(postgres.url, PostgresOptions(pool_size=2))
    await asyncio.gather(*(store.add([letter]) for letter in letters(200)))
    claimed = await asyncio.gather(*(store.claim(f"w{n}", broker=BROKER, limit=1) for n in range(200)))
    assert len({head.id for heads in claimed for head in heads}) == 200
    await store.close()


async def test_a_statement_that_takes_too_long_is_ended_and_said(postgres: Postgres) -> None:
    options = PostgresOptions(statement_timeout=timedelta(seconds=0.3))
    store = await PostgresStore.open(postgres.url, options)
    await store.add([a_letter()])
    other = await asyncpg.connect(postgres.url)
    holding = other.transaction()
    await holding.start()
    await other.execute("LOCK TABLE redrive.states IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(StoreBusyError, match=r"took too long: .* store\.statement_timeout"):
        await store.claim("w", broker=BROKER)
    with pytest.raises(StoreBusyError, match=r"took too long: .* store\.statement_timeout"):
        await store.tally("state")
    await holding.rollback()
    assert len(await store.claim("w", broker=BROKER)) == 1
    await other.close()
    await store.close()


# --- somebody who holds a transaction --------------------------------------------------------------------


async def test_claims_stay_right_behind_a_transaction_that_is_held_open(postgres: Postgres) -> None:
    count, batch = 3000, 50
    store = await PostgresStore.open(postgres.url)
    other = await asyncpg.connect(postgres.url)

    async def cycle(prefix: str) -> float:
        await store.add(letters(count, prefix))
        start = time.perf_counter()
        finished: set[str] = set()
        while heads := await store.claim("w", broker=BROKER, limit=batch):
            assert all(await store.settle([Settlement(head.claim_token, Resolve()) for head in heads]))
            assert not finished & {head.id for head in heads}
            finished |= {head.id for head in heads}
        assert len(finished) == count
        return time.perf_counter() - start

    await cycle("first")  # connects, and lets the server plan
    alone = await cycle("alone")
    holding = other.transaction(isolation="repeatable_read")
    await holding.start()
    assert await other.fetchval("SELECT count(*) FROM redrive.states") == 2 * count
    behind = [await cycle(f"behind{turn}") for turn in range(3)]
    await holding.rollback()
    slower = ", ".join(f"{took / alone:.1f}" for took in behind)
    print(f"behind a transaction that is held open, {count} letters take {slower} times as long")  # noqa: T201
    assert await store.tally("state") == {LetterState.RESOLVED: 5 * count}
    await other.close()
    await store.close()
