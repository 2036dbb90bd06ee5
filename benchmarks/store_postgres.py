"""The PostgreSQL store against what one would have instead, on the same server in the same run.

The peers of claim-and-settle are procrastinate's own worker with a task that does nothing, and the loop that stands in
every tutorial: one row by `SKIP LOCKED`, one row done. Ours go in batches, with lease, fence, attempt and two lines of
journal for each letter, which the peers do not keep. Durability is the same for all: the server flushes each commit.

Then a large store against a small one, and more processes against one.
"""

import asyncio
import contextlib
import dataclasses
import importlib.metadata
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from benchmarks.case import Case, Figure, Speed, cpu_unit
from benchmarks.store_sqlite import claim, letter
from redrive.letters import ClaimToken
from redrive.stores.changes import Resolve, Retry, Settlement
from redrive.stores.postgres import PostgresOptions, PostgresStore
from tests.services import Postgres, PostgresServer, Run
from tests.services.server import Process

BATCH = 100
ADDED_AT_ONCE = 1000
UNIT = "letters/s"
SMALL = 10_000
PROCESSES = (1, 2, 3, 4)
CLAIM_AND_SETTLE = f"claim and settle by {BATCH}"


def run(*, quick: bool) -> Iterator[Case]:
    """All cases."""
    with contextlib.ExitStack() as stack:
        test_run = stack.enter_context(Run.of({}))
        server = stack.enter_context(test_run.private(DurableServer, os.environ))
        yield from against_peers(server.address, 2_000 if quick else 10_000, rounds=2 if quick else 3)
        rates = dict(processes(server.address, 8_000 if quick else 40_000, PROCESSES))
        for number in PROCESSES[1:]:
            yield Case(by_processes(number), rates[number], rates[1], "1 process", 1.0, UNIT)
        large, turns = (50_000, 40) if quick else (1_000_000, 300)
        at_small, at_large = asyncio.run(sizes(server.address, (SMALL, large), turns))
        name, peer_name = f"claim and settle ten, {large:,} letters", f"the same at {SMALL:,}"
        yield Case(name, at_large, at_small, peer_name, 0.667, "ms", less_is_better=True)


def run_ours(*, quick: bool) -> Iterator[Figure]:
    """Adding, claiming and settling without the peers: alone, with a second process, and on the large store.

    The load on the server comes from our statements, so the rate counts as well as the CPU time of our process.
    """
    with contextlib.ExitStack() as stack:
        test_run = stack.enter_context(Run.of({}))
        server = stack.enter_context(test_run.private(DurableServer, os.environ))
        added, runs = [], []
        for _ in range(3 if quick else 5):
            with server.address.fresh() as database:
                added.append(asyncio.run(add(database.url, 10_000)))
            with server.address.fresh() as database:
                runs.append(asyncio.run(ours(database.url, 10_000)))
        yield Figure(f"add by {ADDED_AT_ONCE:,}", max(added), UNIT)
        yield Figure(CLAIM_AND_SETTLE, max(run.rate for run in runs), UNIT)
        yield Figure(f"{CLAIM_AND_SETTLE}, CPU time", min(run.cpu for run in runs) * 1e6, cpu_unit(UNIT))
        for number, rate in processes(server.address, 10_000 if quick else 40_000, (2,)):
            yield Figure(by_processes(number), rate, UNIT)
        large, turns = (50_000, 100) if quick else (1_000_000, 300)
        [took] = asyncio.run(sizes(server.address, (large,), turns))
        yield Figure(f"claim and settle ten, {large:,} letters", took, "ms")


class DurableServer(PostgresServer):
    """As the tests have it, but what is committed has reached the disk."""

    def processes(self) -> tuple[Process, ...]:
        """The same, with one word changed."""
        [process] = super().processes()
        argv = tuple("fsync=on" if word == "fsync=off" else word for word in process.argv)
        return (dataclasses.replace(process, argv=argv),)


async def filled(url: str, count: int) -> PostgresStore:
    store = await PostgresStore.open(url)
    chance = random.Random(1)
    for start in range(0, count, ADDED_AT_ONCE):
        await store.add(
            [letter(number, chance) for number in range(start, min(start + ADDED_AT_ONCE, count))]
        )
    return store


async def add(url: str, count: int) -> float:
    """Letters added per second by one task."""
    chance = random.Random(1)
    letters = [letter(number, chance) for number in range(count)]
    store = await PostgresStore.open(url)
    start = time.perf_counter()
    for first in range(0, count, ADDED_AT_ONCE):
        await store.add(letters[first : first + ADDED_AT_ONCE])
    took = time.perf_counter() - start
    assert await store.count() == count
    await store.close()
    return count / took


# --- (a), (b) claim and settle ---------------------------------------------------------------------------


def against_peers(server: Postgres, count: int, rounds: int) -> Iterator[Case]:
    """The best of several rounds, ours and the peers' in turns, each on a database of its own."""
    rates: dict[str, list[float]] = {"ours": [], "procrastinate": [], "one by one": []}

    async def our_rate(url: str, count: int) -> float:
        return (await ours(url, count)).rate

    for _ in range(rounds):
        for name, measure in (
            ("ours", our_rate),
            ("procrastinate", procrastinate),
            ("one by one", one_by_one),
        ):
            with server.fresh() as database:
                # A single statement for each row is slow: fewer of them tell the same.
                rates[name].append(
                    asyncio.run(measure(database.url, count if name == "ours" else count // 6))
                )
    best = {name: max(found) for name, found in rates.items()}
    version = f"PostgreSQL {server.psql('show server_version').split()[0]}"
    for peer, peer_name, asked in (
        ("procrastinate", f"procrastinate {importlib.metadata.version('procrastinate')}", 10),
        ("one by one", "SKIP LOCKED one by one", 5),
    ):
        yield Case(CLAIM_AND_SETTLE, best["ours"], best[peer], f"{peer_name} on {version}", asked, UNIT)


async def ours(url: str, count: int) -> Speed:
    store = await filled(url, count)
    start, cpu_before = time.perf_counter(), time.process_time()
    done = await claim_and_settle_all(store)
    took, cpu_took = time.perf_counter() - start, time.process_time() - cpu_before
    assert done == count
    await store.close()
    return Speed(rate=count / took, cpu=cpu_took / count)


async def claim_and_settle_all(store: PostgresStore) -> int:
    """Two workers, as `serve` has: while one is with the server, the other prepares."""

    async def worker(name: str) -> int:
        done = 0
        while heads := await claim(store, name, BATCH):
            assert all(await store.settle([Settlement(head.claim_token, Resolve()) for head in heads]))
            done += len(heads)
        return done

    return sum(await asyncio.gather(worker("bench-1"), worker("bench-2")))


async def procrastinate(url: str, count: int) -> float:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=url, min_size=2, max_size=10))
    finished = 0

    @app.task(name="nothing")
    async def nothing(order: int) -> None:  # noqa: ARG001  it is the argument that is stored
        nonlocal finished
        finished += 1

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        orders: list[dict[str, Any]] = [{"order": number} for number in range(count)]
        await nothing.batch_defer_async(*orders)
        start = time.perf_counter()
        await app.run_worker_async(
            wait=False, concurrency=10, listen_notify=False, install_signal_handlers=False
        )
        took = time.perf_counter() - start
    assert finished == count
    return count / took


async def one_by_one(url: str, count: int) -> float:
    connection = await asyncpg.connect(url)
    await connection.execute(
        "CREATE TABLE jobs (id bigserial PRIMARY KEY, state text NOT NULL DEFAULT 'pending', priority int NOT NULL,"
        " due timestamptz NOT NULL, locked_by text, lease_until timestamptz, body bytea NOT NULL);"
        "CREATE INDEX jobs_pending ON jobs (priority DESC, id) WHERE state = 'pending'"
    )
    await connection.execute(
        "INSERT INTO jobs (priority, due, body) SELECT n % 4, now(), decode(repeat('00', 1024), 'hex')"
        " FROM generate_series(1, $1::int) AS n",
        count,
    )
    claim = await connection.prepare(
        "UPDATE jobs SET state = 'held', locked_by = 'bench', lease_until = now() + interval '5 minutes' WHERE id ="
        " (SELECT id FROM jobs WHERE state = 'pending' AND due <= now() ORDER BY priority DESC, id LIMIT 1"
        " FOR UPDATE SKIP LOCKED) RETURNING id, priority, due"
    )
    finish = await connection.prepare("UPDATE jobs SET state = 'done', lease_until = NULL WHERE id = $1")
    start = time.perf_counter()
    done = 0
    while (row := await claim.fetchrow()) is not None:
        await finish.fetch(row["id"])
        done += 1
    took = time.perf_counter() - start
    assert done == count
    await connection.close()
    return count / took


# --- (c) a large store against a small one ---------------------------------------------------------------


async def sizes(server: Postgres, counts: Sequence[int], turns: int) -> list[float]:
    """The median time in ms of the same work on a store of each size, in turns."""
    with contextlib.ExitStack() as stack:
        databases = [stack.enter_context(server.fresh()) for _ in counts]
        stores = [
            await at_rest(database.url, count) for database, count in zip(databases, counts, strict=True)
        ]
        times: list[list[float]] = [[] for _ in stores]
        for turn in range(turns + 10):
            for store, found in zip(stores, times, strict=True):
                start = time.perf_counter()
                await claim_and_put_off(store)
                if turn >= 10:  # the first ones warm the caches
                    found.append(time.perf_counter() - start)
        for store in stores:
            await store.close()
    return [median(found) * 1000 for found in times]


async def at_rest(url: str, count: int) -> PostgresStore:
    """A store with that many due letters; all but the first thousand are copied by the server, which is quicker."""
    store = await filled(url, 1000)
    connection = await asyncpg.connect(url, server_settings={"search_path": "redrive"})
    await connection.execute(
        "CREATE TEMP TABLE more AS SELECT n FROM generate_series(1, $1::int) AS n", count // 1000 - 1
    )
    columns = await names(connection, "letters", without=("number", "id", "created_at"))
    await connection.execute(
        f"INSERT INTO letters (id, created_at, {columns}) SELECT id || '-' || n, created_at + n * 1000, {columns}"
        " FROM letters CROSS JOIN more ORDER BY n, number"
    )
    states = await names(connection, "states", without=("number", "age"))
    await connection.execute(
        f"INSERT INTO states (number, age, {states}) SELECT letters.number, letters.created_at, {states} FROM letters"
        " JOIN letters AS first ON first.id = left(letters.id, 26) JOIN states ON states.number = first.number"
        " WHERE letters.id <> first.id ORDER BY letters.number"
    )
    await connection.execute(
        "INSERT INTO bodies SELECT letters.number, content, failure FROM letters"
        " JOIN letters AS first ON first.id = left(letters.id, 26) JOIN bodies ON letter = first.number"
        " WHERE letters.id <> first.id ORDER BY letters.number"
    )
    assert await store.count() == count
    for table in ("letters", "states"):
        await connection.execute(f"VACUUM (ANALYZE) {table}")  # as autovacuum would within the minute
    await connection.close()
    return store


async def names(connection: Any, table: str, without: tuple[str, ...]) -> str:
    rows = await connection.fetch(
        "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0"
        " AND NOT attisdropped AND attname <> ALL($2::text[])",
        table,
        list(without),
    )
    return ", ".join(row[0] for row in rows)


async def claim_and_put_off(store: PostgresStore) -> None:
    heads = await claim(store, "bench", 10)
    later = datetime.now(UTC) + timedelta(days=1)
    assert len(heads) == 10
    assert all(await store.settle([Settlement(head.claim_token, Retry(at=later)) for head in heads]))


# --- (d) more processes ----------------------------------------------------------------------------------


def by_processes(number: int) -> str:
    return f"{CLAIM_AND_SETTLE}, {number} processes"


def processes(server: Postgres, count: int, numbers: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Letters that so many processes finish in a second; all find the same database."""
    with server.fresh() as pattern:

        async def fill() -> None:
            await (await filled(pattern.url, count)).close()

        asyncio.run(fill())
        for number in numbers:
            with copy_of(server, pattern) as url:
                yield number, together(url, number, count)


@contextlib.contextmanager
def copy_of(server: Postgres, pattern: Postgres) -> Iterator[str]:
    """A database with the same in it, made by the server."""
    name = urlsplit(pattern.url).path.removeprefix("/")
    server.psql(f"create database {name}_copy template {name}")
    try:
        yield f"{pattern.url}_copy"
    finally:
        server.psql(f"drop database {name}_copy with (force)")


def together(url: str, number: int, count: int) -> float:
    """All begin at one moment; the rate is that of all, until the last one has nothing left."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.store_postgres", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(number)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
    start = time.monotonic()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [child.communicate(timeout=600)[0].split() for child in children]
    assert sum(int(done) for done, _ in said) == count
    return count / (max(float(at) for _, at in said) - start)  # the clock is the machine's, the same for all


async def one_of_them(url: str) -> None:
    """A child of `together`."""
    store = await PostgresStore.open(url, PostgresOptions(pool_size=6))
    nothing = Settlement(ClaimToken("nothing", 1), Resolve())
    await asyncio.gather(*(store.take(["nothing"], "bench") for _ in range(3)))  # connect before the start
    await store.settle([nothing])
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    done = await claim_and_settle_all(store)
    print(done, time.monotonic(), flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(one_of_them(sys.argv[1]))
