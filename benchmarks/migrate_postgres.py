"""How long does the migration of a large PostgreSQL store hold up a process of the earlier version that still writes?

Half of the letters are of RabbitMQ, half of Kafka. The writer is a process of its own. Each of its transactions adds a
letter and changes another one, chosen at random, with the statements of schema 3; it ends with the migration.
"""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec

from benchmarks.store_postgres import DurableServer
from benchmarks.store_sqlite import letter
from redrive.letters import Origin
from redrive.stores.cold import pack_content, pack_failure
from redrive.stores.postgres import PostgresStore, schema
from redrive.stores.postgres.broker_migration import VERSION
from tests.services import Run

PATTERNS = 100  # different messages
_LETTER = (
    "INSERT INTO letters (created_at, id, transport, source, message_id, correlation_id, size, reason, error_type,"
    ' error_text, kind, "group", retry_count, first_failed_at, last_failed_at)'
    " SELECT {number}, 'letter-' || {number}, CASE {number} % 2 WHEN 0 THEN 'rabbitmq' ELSE 'kafka' END,"
    " 'orders.' || {number} % 20, 'message-' || {number}, md5({number}::text), 1024, 'NonRetryableError', 'ValueError',"
    " 'step failed for order ' || {number}, 'unknown', md5(({number} % 50)::text), 3, {number}, {number}"
)
_STATE = (
    "INSERT INTO states (number, age, state, ready, priority, next_retry_at, updated_at)"
    " SELECT {number}, {number}, CASE {number} % 4 WHEN 0 THEN 'dlq_resolved' ELSE 'dlq_pending' END,"
    " CASE {number} % 4 WHEN 0 THEN NULL ELSE {number} % 4 = 1 END, {number} % 4, {number}, {number}"
)


def measure(count: int) -> tuple[float, float]:
    """The longest wait of a writer, and the time that the migration of this many letters takes; in seconds."""
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(Run.of({}))
        server = stack.enter_context(run.private(DurableServer, os.environ))
        database = stack.enter_context(server.address.fresh())
        asyncio.run(fill(database.url, count))
        return migrate(database.url)


async def fill(url: str, count: int) -> None:
    """Make a store of schema 3."""
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE SCHEMA {schema.SCHEMA}; SET search_path = {schema.SCHEMA}")
    await connection.execute("CREATE TABLE migrations (version integer PRIMARY KEY)")
    for number, script in schema.migrations():
        if number < VERSION:
            await connection.execute(script)
            await connection.execute("INSERT INTO migrations VALUES ($1)", number)
    await connection.execute("CREATE TEMP TABLE patterns (number int, content bytea, failure bytea)")
    await connection.copy_records_to_table("patterns", records=patterns(), schema_name="pg_temp")
    await connection.execute(f"{_LETTER.format(number='number')} FROM generate_series(1, {count}) AS number")
    await connection.execute(f"{_STATE.format(number='number')} FROM generate_series(1, {count}) AS number")
    await connection.execute(
        "INSERT INTO bodies SELECT letter, content, failure FROM"
        f" generate_series(1, {count}) AS letter JOIN patterns ON number = letter % {PATTERNS}"
    )
    for table in ("letters", "states", "bodies"):
        await connection.execute(f"VACUUM (ANALYZE) {table}")  # as autovacuum would within the minute
    await connection.close()


def patterns() -> Iterator[tuple[int, bytes, bytes]]:
    """Packed messages and failures; those with odd numbers are of Kafka."""
    chance = random.Random(1)
    for number in range(PATTERNS):
        one = letter(number, chance)
        if number % 2:
            origin = Origin(transport="kafka", source="orders", consumer_group=f"group-{number % 7}")
            one = msgspec.structs.replace(one, origin=origin)
        yield number, pack_content(one), pack_failure(one.failure)


def migrate(url: str) -> tuple[float, float]:
    """The longest wait of the writer, and the time that the migration takes."""
    command = [sys.executable, "-m", "benchmarks.migrate_postgres", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        started = time.monotonic()
        asyncio.run(_open(url))
        took = time.monotonic() - started
        longest = float(writer.stdout.readline())
    return longest, took


async def _open(url: str) -> None:
    await (await PostgresStore.open(url)).close()


async def write(url: str) -> None:
    """The writer: until the schema is another one."""
    connection = await asyncpg.connect(url, server_settings={"search_path": schema.SCHEMA})
    count = await connection.fetchval("SELECT max(number) FROM letters")
    longest = 0.0
    print("ready", flush=True)
    with contextlib.suppress(asyncpg.UndefinedColumnError, asyncpg.UndefinedTableError):
        while True:
            started = time.monotonic()
            await write_once(connection, random.randrange(1, count))
            longest = max(longest, time.monotonic() - started)
    await connection.close()
    print(longest, flush=True)


async def write_once(connection: Any, other: int) -> None:
    async with connection.transaction():
        await connection.execute(f"INSERT INTO commits (ticket) VALUES ('{uuid4()}')")
        await connection.execute(
            "UPDATE states SET fence = fence + 1, updated_at = updated_at + 1 WHERE number = $1", other
        )
        number = await connection.fetchval(
            f"{_LETTER.format(number='number')} FROM (SELECT max(number) + 1 AS number FROM letters) AS next"
            " RETURNING number"
        )
        await connection.execute(_STATE.format(number=number))
        await connection.execute(
            "INSERT INTO bodies SELECT $1, content, failure FROM bodies WHERE letter = $2", number, other
        )
        await connection.execute(
            "INSERT INTO journal (at, actor, letter_id, action, before, after, detail)"
            " VALUES (1, 'worker', 'letter', 'retry', 'dlq_processing', 'dlq_pending', '')"
        )


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1]))
