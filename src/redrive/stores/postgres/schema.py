"""Check that a database is usable, and migrate it to the schema of this version.

Everything is kept in a schema of our own, `redrive`, beside whatever else the database holds. Opening a store answers
these questions in order, each with its own error, and changes nothing before all are answered. Then migrations run:
numbered SQL files, each in one transaction, except for the one that moves all letters (`broker_migration`).

The process that migrates holds an advisory lock in a transaction that stays open and idle. Such a lock also works
through a pooler that assigns connections per transaction; it ends with the process; and it blocks neither vacuum nor
the building of indexes. Other processes poll for the lock instead of waiting in the server, because behind a pooler a
few waiting transactions would leave no connection for the process that migrates.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncpg

from redrive.errors import StoreBusyError, StoreDamagedError, StoreError, StoreVersionError
from redrive.stores.postgres import broker_migration
from redrive.stores.postgres.broker_migration import BrokerMigration, transaction

SCHEMA: Final = "redrive"
TIMEOUT: Final = timedelta(
    minutes=10
)  # for one statement of a migration, and for another process that migrates
_LOG: Final = logging.getLogger("redrive.stores")
_OLDEST_SERVER: Final = 14  # the first whose epochs are exact to the microsecond
_LOCK: Final = 0x52445256  # "RDRV": held by the process that migrates
_FIRST_WAIT, _LONGEST_WAIT = 0.01, 0.5  # seconds between two attempts to get the lock
_LOG_EVERY: Final = 5.0  # seconds
_LOG_AFTER: Final = 1.0  # seconds of waiting that are worth a line


class _Found(NamedTuple):
    version: int  # 0: nothing is there
    unfinished: bool = False  # the migration to this version was interrupted, or is running

    @property
    def is_current(self) -> bool:
        return self.version == _newest() and not self.unfinished


def migrations() -> list[tuple[int, str]]:
    """(version, SQL) of every migration, in order."""
    folder = Path(__file__).parents[1] / "sql" / "postgres"
    found = sorted(
        (entry.name, entry.read_text()) for entry in folder.iterdir() if entry.name.endswith(".sql")
    )
    return [(int(name.split("_")[0]), text) for name, text in found]


async def prepare(connection: Any, name: str, *, create: bool, connect: Callable[[], Awaitable[Any]]) -> None:
    """Migrate the schema to this version, or raise an error that says why that is impossible.

    `name` is the database's name for messages. `connect` opens a second connection, for a migration that needs one.
    """
    async with transaction(connection):
        await _check_server(connection, name)
    found = await _look(connection, name)
    if found.version == 0 and not create:
        raise StoreError(
            f"{name} has no redrive schema; check store.url, or start redrive serve to create it"
        )
    while not found.is_current:
        async with _migration_lock(connection, name):
            found = await _look(connection, name)  # another process may have been faster
            if not found.is_current:
                await _migrate(connection, name, found, connect)
        found = await _look(connection, name)


async def _migrate(connection: Any, name: str, found: _Found, connect: Callable[[], Awaitable[Any]]) -> None:
    """Run migrations in the transaction that holds the lock, or one by batches on another connection."""
    for number, script in migrations():
        if number == broker_migration.VERSION and (found.version == number - 1 or found.unfinished):
            await _migrate_by_batches(connection, name, script, found, connect)
            return
        if number <= found.version:
            continue
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        await connection.execute("CREATE TABLE IF NOT EXISTS migrations (version integer PRIMARY KEY)")
        await connection.execute(script)
        await connection.execute("INSERT INTO migrations VALUES ($1)", number)
        if found.version:  # a new database gets all of them at once
            return


async def _migrate_by_batches(
    lock: Any, name: str, script: str, found: _Found, connect: Callable[[], Awaitable[Any]]
) -> None:
    async def check_lock() -> None:
        await lock.execute("SELECT 1")

    connection = await connect()
    try:
        migration = BrokerMigration(connection, name, script, check_lock)
        await migration.run(unfinished=found.unfinished)
    except asyncpg.UndefinedTableError:
        # The server may have committed the last part for a process that was killed, after the version was read.
        if not (await _look(lock, name)).is_current:
            raise
    finally:
        await connection.close(timeout=5)


@asynccontextmanager
async def _migration_lock(connection: Any, name: str) -> AsyncIterator[None]:
    """A transaction that holds the migration lock until it ends."""
    started = logged = time.monotonic()
    wait = _FIRST_WAIT
    while True:
        async with transaction(connection):
            await connection.execute(
                "SELECT set_config('transaction_timeout', '0', true)"
                " WHERE current_setting('server_version_num')::int >= 170000"
            )
            if await connection.fetchval(f"SELECT pg_try_advisory_xact_lock({_LOCK})"):
                yield
                return
        now = time.monotonic()
        if now - started > TIMEOUT.total_seconds():
            raise StoreBusyError(
                f"{name} is being migrated by another process, which had not finished after "
                f"{now - started:.0f} s; try again later"
            )
        if now - logged >= (_LOG_AFTER if logged == started else _LOG_EVERY):
            logged = now
            _LOG.warning(
                "waiting for the migration by another process database=%s schema=%d waited_s=%.0f",
                name, _newest(), now - started,
            )  # fmt: skip
        await asyncio.sleep(wait)
        wait = min(wait * 2, _LONGEST_WAIT)


async def _check_server(connection: Any, name: str) -> None:
    server, encoding = await connection.fetchrow(
        "SELECT current_setting('server_version_num')::int / 10000, current_setting('server_encoding')"
    )
    if server < _OLDEST_SERVER:
        raise StoreError(f"{name} is PostgreSQL {server}; redrive needs {_OLDEST_SERVER} or newer")
    if encoding != "UTF8":
        raise StoreError(
            f"{name} has the encoding {encoding}; create a database with ENCODING 'UTF8' for redrive"
        )


async def _look(connection: Any, name: str) -> _Found:
    """The version of the database. One that is newer than this program, or of another program, is refused."""
    async with transaction(connection):
        ours, tables = await connection.fetchrow(
            "SELECT bool_or(relname = 'migrations'), count(*) FROM pg_class"
            f" WHERE relnamespace = to_regnamespace('{SCHEMA}') AND relkind = 'r'"
        )
        if not ours and tables:
            raise StoreDamagedError(
                f"{name} has a schema {SCHEMA} that belongs to another program; rename it, or use "
                "another database"
            )
        if not ours:
            return _Found(0)
        version = await connection.fetchval(f"SELECT coalesce(max(version), 0) FROM {SCHEMA}.migrations")
        # After the version: a migration that begins in between must not be taken for one that has finished.
        unfinished = await connection.fetchval(
            f"SELECT to_regclass('{SCHEMA}.migration_progress') IS NOT NULL"
        )
    if version > _newest():
        raise StoreVersionError(
            f"{name} was written by a newer redrive (schema {version}, this version supports "
            f"{_newest()}); upgrade redrive"
        )
    return _Found(version, unfinished)


def _newest() -> int:
    return migrations()[-1][0]
