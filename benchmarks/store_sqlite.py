"""The SQLite store against SQLite itself, and a large store against a small one.

The peers of the adds are plain `executemany` of the same bytes into one table, one commit per 1,000 rows, with the
same durability: once into a table that could answer the same questions (the same columns and the same indexes), once
into a bare heap that can answer none. Ours are awaited one by one, idempotent, with head and body apart.
"""

import asyncio
import functools
import gc
import inspect
import random
import resource
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import uvloop

from benchmarks.case import Case, Figure, Speed, cpu_unit
from redrive.letters import DeadLetter, Failure, FailureKind, Headers, LetterHead, Message, letter_id
from redrive.stores.base import Store
from redrive.stores.changes import Retry, Settlement
from redrive.stores.query import parse_query
from redrive.stores.rows import OWN, new_row
from redrive.stores.sqlite import SqliteStore
from redrive.testing.factories import a_letter

TASKS = 1000
UNIT = "letters/s"
SMALL = 10_000
ADDS = f"durable adds of 1 KB, {TASKS} tasks"
MEMORY_MB = 200
INDEXED = ("id", "priority", "source", "error_type", "group", "correlation_id", "message_id", "next_retry_at")
ERRORS = [
    ("TimeoutError", FailureKind.TIMEOUT),
    ("ValueError", FailureKind.MALFORMED),
    ("ConnectionError", FailureKind.NETWORK),
]


def run(*, quick: bool) -> Iterator[Case]:
    """All cases."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        place = Path(folder)
        yield from adds(place, 20_000, rounds=5 if quick else 10)
        large, turns = (150_000, 60) if quick else (1_000_000, 200)
        for name, (at_small, at_large) in asyncio.run(sizes(place, (SMALL, large), turns)):
            yield Case(
                f"{name}, {large:,} letters",
                at_large,
                at_small,
                f"the same at {SMALL:,}",
                0.667,
                "ms",
                less_is_better=True,
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Case("peak memory of all the above", peak, MEMORY_MB, "limit", 1.0, "MB", less_is_better=True)


def run_ours(*, quick: bool) -> Iterator[Figure]:
    """Adds, and the work on the large store, without the peers."""
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        place, letters = Path(folder), made_letters(20_000)
        runs = [
            uvloop.run(add_one_by_one(place / f"ours{turn}.db", letters))
            for turn in range(3 if quick else 10)
        ]
        yield Figure(ADDS, median(run.rate for run in runs), UNIT)
        yield Figure(f"{ADDS}, CPU time", median(run.cpu for run in runs) * 1e6, cpu_unit(UNIT))
        large, turns = (150_000, 100) if quick else (1_000_000, 200)
        for name, [took] in asyncio.run(sizes(place, (large,), turns)):
            yield Figure(f"{name}, {large:,} letters", took, "ms")


def letter(number: int, chance: random.Random) -> DeadLetter:
    """A letter with a body of 1 KB, half of which compresses away, as JSON does."""
    error, kind = ERRORS[number % 3]
    at = datetime.now(UTC) - timedelta(minutes=5)
    body = f'{{"order": {number}, "note": "{chance.randbytes(300).hex()}"'.encode().ljust(1023) + b"}"
    return a_letter(
        f"bench/{number}",
        message=Message(
            body=body,
            headers=Headers({"x-tenant": "north", "x-hops": number % 7}),
            content_type="application/json",
            message_id=f"message-{number}",
            correlation_id=f"{chance.getrandbits(64):016x}",
        ),
        source=f"orders.{number % 20}",
        failure=Failure(
            error_type=error, text=f"step {chr(97 + number % 11)} failed for order {number}", at=at, kind=kind
        ),
        priority=number % 4,
    )


async def claim(store: Store, worker: str, limit: int) -> list[LetterHead]:
    """Claim due letters, also on a commit whose `Store.claim` requires the letters' broker."""
    return await store.claim(worker, limit=limit, **_claim_options(type(store)))


@functools.cache
def _claim_options(store: type[Store]) -> dict[str, Any]:
    return (
        {"broker": getattr(a_letter(), "broker", None)}
        if "broker" in inspect.signature(store.claim).parameters
        else {}
    )


# --- (a) adds --------------------------------------------------------------------------------------------


def adds(place: Path, count: int, rounds: int) -> Iterator[Case]:
    """Durable adds, awaited one by one by many tasks. The median of several rounds, ours and the peers' in turns."""
    letters = made_letters(count)
    ours: list[float] = []
    indexed: list[float] = []
    bare: list[float] = []
    for turn in range(rounds):
        ours.append(
            uvloop.run(add_one_by_one(place / f"ours{turn}.db", letters)).rate
        )  # as `redrive serve` does
        indexed.append(add_plainly(place / f"indexed{turn}.db", letters, INDEXED))
        bare.append(add_plainly(place / f"bare{turn}.db", letters, ()))
    for case, rates, peer in ((ADDS, indexed, "same indexes"), (f"{ADDS}, bare", bare, "no index")):
        yield Case(case, median(ours), median(rates), f"executemany, one table, {peer}", 0.5, UNIT)


def made_letters(count: int) -> list[DeadLetter]:
    """Letters to add."""
    chance = random.Random(1)
    letters = [letter(number, chance) for number in range(count)]
    gc.freeze()  # they are the benchmark's, and a service would not hold them: the collector need not walk them again
    return letters


async def add_one_by_one(path: Path, letters: list[DeadLetter]) -> Speed:
    store = await SqliteStore.open(path)
    left = iter(letters)

    async def task() -> None:
        for one in left:
            await store.add([one])

    gc.collect()
    start, cpu_before = time.perf_counter(), time.process_time()
    await asyncio.gather(*(task() for _ in range(TASKS)))
    took, cpu_took = time.perf_counter() - start, time.process_time() - cpu_before
    assert await store.count() == len(letters)
    await store.close()
    return Speed(rate=len(letters) / took, cpu=cpu_took / len(letters))


def add_plainly(path: Path, letters: list[DeadLetter], indexed: tuple[str, ...]) -> float:
    rows = [(*columns, content, failure) for columns, content, failure in map(new_row, letters)]
    names = [*OWN, "content", "failure"]
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"CREATE TABLE letters ({', '.join(map(_quoted, names))})")
    for name in indexed:
        db.execute(f'CREATE INDEX "by_{name}" ON letters ("{name}")')
    insert = f"INSERT INTO letters VALUES ({', '.join('?' * len(rows[0]))})"
    gc.collect()
    start = time.perf_counter()
    for first in range(0, len(rows), 1000):
        db.execute("BEGIN IMMEDIATE")
        db.executemany(insert, rows[first : first + 1000])
        db.execute("COMMIT")
    took = time.perf_counter() - start
    db.close()
    return len(rows) / took


def _quoted(name: str) -> str:
    return f'"{name}"'


# --- (b), (c) the same work at two sizes -----------------------------------------------------------------


async def sizes(place: Path, counts: Sequence[int], turns: int) -> list[tuple[str, list[float]]]:
    """What was done, and the median time of it in ms on a store of each size."""
    stores = [await filled(place / f"{count}.db", count) for count in counts]
    now = datetime.now(UTC)
    found = [("claim and settle ten", await timed(stores, turns, claim_and_settle))]
    for text in (
        "state:pending source:orders.7",
        "error:ValueError since:1d",
        "source:orders.3 error:TimeoutError priority>=1",
        f"group:{(await stores[0].page(limit=1)).heads[0].group}",
        '"step c failed"',
    ):
        query = parse_query(text, now=now)

        async def page(store: SqliteStore, query: object = query) -> None:
            heads = (await store.page(query, limit=50)).heads  # type: ignore[arg-type]
            assert len(heads) == 50

        label = "group:…" if text.startswith("group") else text
        found.append((f"page of 50, {label}", await timed(stores, turns, page)))
    for store in stores:
        await store.close()
    return found


async def filled(path: Path, count: int) -> SqliteStore:
    store = await SqliteStore.open(path)
    chance = random.Random(2)
    patterns = [letter(number, chance) for number in range(660)]  # every mix of source, error and priority

    async def batches() -> AsyncIterator[list[DeadLetter]]:
        for first in range(0, count, 1000):
            batch = []
            for number in range(first, min(first + 1000, count)):
                pattern = patterns[number % len(patterns)]
                key = f"fill/{number}"
                trace = f"{chance.getrandbits(64):016x}"
                made = letter_id(key, pattern.last_failed_at + timedelta(milliseconds=number))
                batch.append(msgspec.structs.replace(pattern, id=made, key=key, correlation_id=trace))
            yield batch

    async for batch in batches():
        await store.add(batch)
    return store


async def claim_and_settle(store: SqliteStore) -> None:
    heads = await claim(store, "bench", 10)
    later = datetime.now(UTC) + timedelta(days=1)
    assert len(heads) == 10
    assert all(await store.settle([Settlement(head.claim_token, Retry(at=later)) for head in heads]))


async def timed(
    stores: Sequence[SqliteStore], turns: int, work: Callable[[SqliteStore], Awaitable[None]]
) -> list[float]:
    """The median time in ms of the same work on each store, in turns."""
    times: list[list[float]] = [[] for _ in stores]
    for turn in range(turns + 10):
        for store, found in zip(stores, times, strict=True):
            start = time.perf_counter()
            await work(store)
            if turn >= 10:  # the first ones warm the caches
                found.append(time.perf_counter() - start)
    return [median(found) * 1000 for found in times]
