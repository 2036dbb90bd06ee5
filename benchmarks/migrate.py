"""The longest time that a store blocks another writer while it is migrated from schema 3.

A child process writes one row after another into a table of its own, in the same database, and measures each of its
transactions; on PostgreSQL, where a lock on one table holds up nobody who uses another, it writes letters as an earlier
version does. The store is opened meanwhile, which migrates it. The peer is the limit: one second.
"""

import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks import migrate_postgres
from benchmarks.case import Case
from redrive.letters import Origin
from redrive.stores.cold import pack_content, pack_failure
from redrive.stores.sqlite import schema
from redrive.testing import a_letter, a_message

LIMIT_S = 1.0
FIRST = 1_700_000_000_000_000  # the age of the oldest letter, in microseconds
BATCH = 10_000
# Columns of `letters` in schema 3 that a new letter sets.
COLUMNS = (
    "created_at", "id", "transport", "source", "message_id", "correlation_id", "size", "reason", "error_type",
    "error_text", "kind", "group", "priority", "retry_count", "first_failed_at", "last_failed_at", "next_retry_at",
    "updated_at", "ready",
)  # fmt: skip


def run(*, quick: bool) -> Iterator[Case]:
    """All cases."""
    count = 100_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory(prefix="redrive-bench-") as folder:
        yield from sqlite(Path(folder) / "redrive.db", count)
    yield case("PostgreSQL", count, *migrate_postgres.measure(count))


def case(store: str, count: int, blocked: float, took: float) -> Case:
    """The longest block, with the duration of the whole migration in its name."""
    name = f"longest block of a writer, {store}, {count:,} letters, migrated in {took:.1f} s"
    return Case(name, blocked, LIMIT_S, "limit", 1.0, "s", less_is_better=True)


def batches(count: int) -> Iterator[tuple[list[tuple[Any, ...]], list[tuple[int, bytes, bytes]]]]:
    """Letters of schema 3 in batches: rows of `COLUMNS`, and rows of (key, content, failure)."""
    chance = random.Random(1)
    message = a_message(b"x" * 300)
    kinds = [
        (kind, pack_content(a_letter(message=message, origin=origin)))
        for kind, group in (("rabbitmq", None), ("kafka", "billing"))
        for origin in [Origin(transport=kind, source="orders", consumer_group=group)]
    ]
    failure = pack_failure(a_letter().failure)
    for start in range(0, count, BATCH):
        rows: list[tuple[Any, ...]] = []
        bodies: list[tuple[int, bytes, bytes]] = []
        for number in range(start, min(start + BATCH, count)):
            kind, content = kinds[number % 2]
            at = FIRST + number
            rows.append(
                (
                    at, f"{number:026}", kind, f"orders.{number % 20}", f"message-{number}",
                    f"{chance.getrandbits(64):016x}", 300, "NonRetryableError", "TimeoutError",
                    f"step failed for order {number}", "timeout", f"{number % 50:016x}", number % 4, 3, at, at, at, at,
                    int(number % 10 > 0),
                )
            )  # fmt: skip
            bodies.append((at, content, failure))
        yield rows, bodies


# --- SQLite ----------------------------------------------------------------------------------------------

WRITER = """
import sqlite3, sys, threading, time
db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
end = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), end.set()), daemon=True).start()
longest = 0.0
print("ready", flush=True)
while not end.is_set():
    start = time.perf_counter()
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE writer SET count = count + 1")
    db.execute("COMMIT")
    longest = max(longest, time.perf_counter() - start)
    time.sleep(0.002)
print(longest, flush=True)
"""


def sqlite(path: Path, count: int) -> Iterator[Case]:
    """A SQLite file."""
    fill_sqlite(path, count)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    start = time.perf_counter()
    schema.prepare(path, busy_timeout=timedelta(seconds=60), integrity_check_timeout=timedelta(0))
    took = time.perf_counter() - start
    said, _ = writer.communicate(timeout=60)
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT broker, consumer_group, count(*) FROM letters GROUP BY 1, 2").fetchall()
    assert sorted(found) == [
        ("unnamed:kafka", "billing", count // 2),
        ("unnamed:rabbitmq", None, count - count // 2),
    ]
    yield case("SQLite", count, float(said), took)


def fill_sqlite(path: Path, count: int) -> None:
    """A file of schema 3, and the table of the writer."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA page_size = 8192")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = OFF")
        for _, script in schema.migrations()[:3]:
            db.executescript(script)
        db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        db.execute("PRAGMA user_version = 3")
        db.executescript("CREATE TABLE writer (count INTEGER); INSERT INTO writer VALUES (0);")
        columns = ", ".join(f'"{name}"' for name in COLUMNS)
        insert = f"INSERT INTO letters ({columns}) VALUES ({', '.join('?' * len(COLUMNS))})"
        for rows, bodies in batches(count):
            db.execute("BEGIN")
            db.executemany(insert, rows)
            db.executemany("INSERT INTO bodies VALUES (?, ?, ?)", bodies)
            db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
