"""A PostgreSQL store of schema 3 is migrated under difficult conditions: kills, other processes, long transactions."""

import asyncio
import random
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from redrive.errors import StoreBusyError
from redrive.stores.cold import unpack_consumer_group
from redrive.stores.memos import NOTHING
from redrive.stores.postgres import PostgresStore, broker_migration, schema
from redrive.stores.postgres.broker_migration import BrokerMigration
from redrive.stores.query import parse_query
from redrive.testing.factories import LONG_AGO
from tests.faults.children import a_child
from tests.golden.plain import unpacked
from tests.services import Postgres

CHILD = Path(__file__).with_name("postgres_migration_child.py")
DUMP = Path(__file__).parents[1] / "golden" / "v1" / "store.postgres.sql.zst"
KILLS = 10
COPIES = 30  # of the 1,000 letters of the recording: the migration takes about two seconds
TABLES = (
    "letters", "states", "bodies", "tags", "attempts", "notes", "change_log", "operations", "operation_items",
    "operation_outcomes", "documents",
)  # fmt: skip
# A process of schema 3 that is still connected adds a letter like an existing one.
ADD_AS_BEFORE = (
    "WITH one AS (INSERT INTO redrive.letters (created_at, id, transport, source, correlation_id, size, reason,"
    ' error_type, error_text, kind, "group", retry_count, first_failed_at, last_failed_at)'
    ' SELECT created_at, $1, transport, source, correlation_id, size, reason, error_type, error_text, kind, "group",'
    " retry_count, first_failed_at, last_failed_at FROM redrive.letters WHERE number = $2 RETURNING number)"
    " INSERT INTO redrive.bodies SELECT one.number, content, failure FROM one, redrive.bodies WHERE letter = $2"
    " RETURNING letter"
)
ADD_STATE_AS_BEFORE = (
    "INSERT INTO redrive.states (number, age, priority, next_retry_at, updated_at, ready)"
    " VALUES ($1, 1, 0, 1, 1, true)"
)


def load_schema_3(postgres: Postgres) -> None:
    """Load the recorded store of schema 3."""
    subprocess.run(
        [postgres.program, postgres.url, "-Xq", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null"],
        input=unpacked(DUMP.read_bytes()),
        check=True,
    )


def multiply(postgres: Postgres, copies: int) -> None:
    """Add copies of all letters."""
    columns = (
        'transport, source, message_id, correlation_id, size, reason, error_type, error_text, kind, "group",'
        " retry_count, first_failed_at, last_failed_at"
    )
    states = (
        "state, ready, presumed, priority, dlq_retry_count, fence, next_retry_at, updated_at, locked_at, lease_until,"
        " sent_at, locked_by, strategy"
    )
    postgres.psql(
        "SET search_path = redrive;"
        f" INSERT INTO letters (id, created_at, {columns}) SELECT id || '-' || n, created_at + n, {columns}"
        f" FROM letters CROSS JOIN generate_series(1, {copies}) AS n ORDER BY n, number;"
        " CREATE TEMP TABLE twins AS SELECT twin.number, first.number AS first, twin.created_at FROM letters AS twin"
        " JOIN letters AS first ON twin.id LIKE '%-%' AND first.id = split_part(twin.id, '-', 1);"
        f" INSERT INTO states (number, age, {states}) SELECT twins.number, created_at, {states} FROM twins"
        " JOIN states ON states.number = first;"
        " INSERT INTO bodies SELECT number, content, failure FROM twins JOIN bodies ON letter = first"
    )


@pytest.fixture
def old(each_postgres: Postgres) -> Postgres:
    """A database of schema 3 with the recorded letters."""
    load_schema_3(each_postgres)
    return each_postgres


@contextmanager
def copy_of(pattern: Postgres, name: str) -> Iterator[Postgres]:
    """A copy of a database; nobody may be connected to it."""
    parts = urlsplit(pattern.url)
    server = Postgres(parts._replace(path="/postgres").geturl(), pattern.program)
    source = parts.path.removeprefix("/")
    server.psql(f"CREATE DATABASE {source}_{name} TEMPLATE {source}")
    try:
        yield Postgres(f"{pattern.url}_{name}", pattern.program)
    finally:
        server.psql(f"DROP DATABASE {source}_{name} WITH (FORCE)")


async def open_and_close(url: str) -> None:
    await (await PostgresStore.open(url)).close()


def content_of(postgres: Postgres) -> dict[str, str]:
    """A digest of every table, and the definitions of all tables and indexes."""
    found = {
        table: postgres.psql(
            "SELECT count(*), md5(string_agg(row::text, '/' ORDER BY row::text COLLATE \"C\"))"
            f" FROM redrive.{table} AS row"
        )
        for table in TABLES
    }
    found["columns"] = postgres.psql(
        "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns"
        " WHERE table_schema = 'redrive' ORDER BY 1, 2"
    )
    found["indexes"] = postgres.psql(
        "SELECT indexdef, indisvalid FROM pg_indexes JOIN pg_index"
        " ON indexrelid = (quote_ident(schemaname) || '.' || quote_ident(indexname))::regclass"
        " WHERE schemaname = 'redrive' ORDER BY 1"
    )
    found["others"] = postgres.psql(
        "SELECT (SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal),"
        " (SELECT count(*) FROM pg_proc WHERE pronamespace = 'redrive'::regnamespace),"
        " (SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND connamespace = 'redrive'::regnamespace)"
    )
    return found


@asynccontextmanager
async def a_migration(postgres: Postgres) -> AsyncIterator[tuple[BrokerMigration, Any]]:
    """A migration that has no lock, and its connection."""

    async def nothing() -> None: ...

    connection = await asyncpg.connect(postgres.url)
    [script] = [text for number, text in schema.migrations() if number == broker_migration.VERSION]
    yield BrokerMigration(connection, "test", script, nothing), connection
    await connection.close()


@asynccontextmanager
async def begun(postgres: Postgres) -> AsyncIterator[tuple[BrokerMigration, Any]]:
    """A migration that has done its first part, and its connection."""
    async with a_migration(postgres) as (migration, connection):
        await migration._start()
        yield migration, connection


async def add_as_before(connection: Any, letter_id: str, like: int) -> None:
    async with connection.transaction():
        number = await connection.fetchval(ADD_AS_BEFORE, letter_id, like)
        await connection.execute(ADD_STATE_AS_BEFORE, number)


async def number_of(postgres: Postgres, transport: str) -> int:
    """A letter of this transport; one of Kafka has a consumer group."""
    connection = await asyncpg.connect(postgres.url)
    rows = await connection.fetch(
        "SELECT number, content FROM redrive.letters JOIN redrive.bodies ON letter = number WHERE transport = $1",
        transport,
    )
    await connection.close()
    return next(
        int(number) for number, content in rows if transport != "kafka" or unpack_consumer_group(content)
    )


# --- kills -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.soak
async def test_migration_continues_after_kills_at_random_points(postgres: Postgres) -> None:
    await asyncio.to_thread(load_schema_3, postgres)
    await asyncio.to_thread(multiply, postgres, COPIES)
    with copy_of(postgres, "whole") as whole:
        started = time.monotonic()
        await open_and_close(whole.url)
        duration = time.monotonic() - started
        expected = content_of(whole)
    chance = random.Random()
    kills = round_number = 0
    while kills < KILLS:
        round_number += 1
        with copy_of(postgres, f"killed_{round_number}") as killed:
            while kills < KILLS:
                if not await asyncio.to_thread(_killed, killed.url, chance.uniform(0, duration / 5)):
                    break  # it has finished
                kills += 1
                assert killed.psql("SELECT max(version) FROM redrive.migrations") in {"3", "4", "5"}
            await open_and_close(killed.url)
            assert content_of(killed) == expected, f"after {kills} kills in {round_number} rounds"


def _killed(url: str, seconds: float) -> bool:
    """Whether a child was killed that long after it had begun to migrate; False: it had finished."""
    with a_child(CHILD, url) as child:
        assert child.stderr is not None
        assert b"store migration" in child.stderr.readline() or child.wait() == 0
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            return True
        return False


# --- other processes -------------------------------------------------------------------------------------


async def test_second_process_waits_for_the_migration_and_says_so(
    old: Postgres, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_LOG_AFTER", 0.0)
    stores = await asyncio.gather(*(PostgresStore.open(old.url) for _ in range(4)))
    assert caplog.text.count("store migration started") == 1
    assert "waiting for the migration by another process" in caplog.text
    assert {await store.count() for store in stores} == {1000}
    for store in stores:
        await store.close()


async def test_second_process_gives_up_after_a_time(old: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "TIMEOUT", schema.TIMEOUT / 3000)
    other = await asyncpg.connect(old.url)
    async with other.transaction():
        await other.execute(f"SELECT pg_advisory_xact_lock({schema._LOCK})")
        with pytest.raises(StoreBusyError, match="is being migrated by another process"):
            await PostgresStore.open(old.url)
    await other.close()
    assert old.psql("SELECT max(version) FROM redrive.migrations") == "3"


async def test_migration_works_through_a_pooler_for_several_processes_at_once(
    postgres: Postgres, pgbouncer: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(load_schema_3, postgres)
    with copy_of(postgres, "direct") as direct:
        await open_and_close(direct.url)
        expected = content_of(direct)
    caplog.clear()
    stores = await asyncio.gather(*(PostgresStore.open(pgbouncer.url) for _ in range(6)))
    for store in stores:
        assert await store.count(parse_query("broker:unnamed:kafka", now=LONG_AGO)) > 0
        await store.close()
    assert content_of(postgres) == expected
    assert caplog.text.count("store migration started") == 1


async def test_two_processes_that_migrate_without_the_lock_do_no_harm(old: Postgres) -> None:
    with copy_of(old, "one") as one:
        await open_and_close(one.url)
        expected = content_of(one)
    async with a_migration(old) as (first, _), a_migration(old) as (second, _):
        ends = await asyncio.gather(
            first.run(unfinished=False), second.run(unfinished=False), return_exceptions=True
        )
    assert all(end is None or isinstance(end, asyncpg.PostgresError) for end in ends)
    await open_and_close(old.url)  # completes it if both have failed
    assert content_of(old) == expected


async def test_half_migrated_database_is_refused_by_earlier_versions_and_completed_by_this_one(
    old: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    async with begun(old):
        # This is what earlier versions compare with their own newest schema, 3.
        assert old.psql("SELECT max(version) FROM redrive.migrations") == "4"
    store = await PostgresStore.open(old.url)
    assert "store migration resumed" in caplog.text
    assert await store.count(parse_query("broker:unnamed:*", now=LONG_AGO)) == 1000
    await store.close()


async def test_letters_of_processes_of_the_earlier_version_are_completed(old: Postgres) -> None:
    kafka, rabbit = await number_of(old, "kafka"), await number_of(old, "rabbitmq")
    async with begun(old) as (migration, connection):
        await add_as_before(connection, "early", kafka)
        await migration._fill_brokers()
        await migration._fill_groups()
        await add_as_before(connection, "late", kafka)
        await add_as_before(connection, "rabbit", rabbit)
        # A claim of the earlier version changes a row that has no broker yet, or has one.
        await connection.execute("UPDATE redrive.states SET fence = fence + 1")
    store = await PostgresStore.open(old.url)
    ids = [old.psql(f"SELECT id FROM redrive.letters WHERE number = {number}") for number in (kafka, rabbit)]
    first, early, late, second, added = await store.load([ids[0], "early", "late", ids[1], "rabbit"])
    assert first.consumer_group is not None
    assert first.broker == early.broker == late.broker == "unnamed:kafka"
    assert first.consumer_group == early.consumer_group == late.consumer_group == first.origin.consumer_group
    assert second.broker == added.broker == "unnamed:rabbitmq"
    assert added.consumer_group is None
    assert await store.damage() is None
    await store.close()


async def test_database_of_schema_2_is_migrated_step_by_step(old: Postgres) -> None:
    old.psql("DROP TABLE redrive.memos; DELETE FROM redrive.migrations WHERE version = 3")
    store = await PostgresStore.open(old.url)
    assert await store.count() == 1000
    assert await store.recall("alerts") == NOTHING
    await store.close()
    assert old.psql("SELECT version FROM redrive.migrations ORDER BY 1").split() == ["1", "2", "3", "4", "5"]


# --- indexes and locks -----------------------------------------------------------------------------------


async def test_incomplete_index_of_a_killed_build_is_replaced(
    old: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    async with begun(old) as (migration, connection):
        await migration._build(migration._indexes[0])
        await connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'redrive.states_ready_new'::regclass"
        )
    await open_and_close(old.url)
    assert "incomplete index dropped" in caplog.text
    assert old.psql("SELECT count(*) FROM pg_index WHERE NOT indisvalid") == "0"


async def test_long_transaction_delays_the_migration_and_holds_up_no_writer(old: Postgres) -> None:
    reader, writer = await asyncpg.connect(old.url), await asyncpg.connect(old.url)
    reading = reader.transaction()
    await reading.start()
    await reader.fetchval("SELECT count(*) FROM redrive.letters")
    opening = asyncio.create_task(PostgresStore.open(old.url))
    longest = 0.0
    for number in range(20):
        started = time.monotonic()
        await add_as_before(writer, f"new-{number}", 1)
        longest = max(longest, time.monotonic() - started)
        await asyncio.sleep(0.05)  # the migration tries again meanwhile
    assert not opening.done()
    assert longest < 1.0
    await reading.rollback()
    store = await opening
    assert await store.count() == 1020
    await store.close()
    await reader.close()
    await writer.close()
