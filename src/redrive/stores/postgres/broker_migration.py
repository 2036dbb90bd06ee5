"""Migrate a database with letters from schema 3 to schema 4, in which a letter belongs to a broker.

The parts of `0004_brokers.sql` run in short transactions; in between the new columns are filled in batches and the
indexes are built concurrently. Processes of the earlier version that are still connected go on until the last part,
and wait for less than a second at a time. The version is written by the first part, so that no process of the earlier
version opens the database meanwhile; the table `migration_progress` says that the migration has not finished.

Every step is idempotent and resumes from the progress that is recorded in the database: after `kill -9` the next
process that opens the database continues. The caller holds the migration lock. If the lock is lost, two processes may
migrate at the same time; they repeat each other's work, and the result is the same.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import asyncpg

from redrive.errors import StoreBusyError
from redrive.letters.letter import storable
from redrive.stores.cold import unpack_consumer_group

_LOG: Final = logging.getLogger("redrive.stores")
VERSION: Final = 4
_LOG_EVERY: Final = 5.0  # seconds
_TIMEOUT: Final = timedelta(minutes=10)  # for locks on the tables
_INDEX_TIMEOUT: Final = timedelta(hours=12)
_SMALLEST_BATCH, _LARGEST_BATCH = 100, 10_000  # letters
_SHORT, _LONG = (
    0.05,
    0.15,
)  # seconds: a batch that took less is followed by a larger one, and the other way round
_MAX_CONTENT: Final = 16_000_000  # bytes of packed messages read at once
_MAX_UNDER_LOCK: Final = 1_000  # letters filled while other processes wait
# Writers insert into `commits` first, so they wait for that lock and hold no other.
_TABLES: Final = "commits, states, letters, journal, memos, items, outcomes"
_LOCK_TABLES: Final = (
    "SET LOCAL lock_timeout = '150ms'; SET LOCAL statement_timeout = '300ms';"
    f" LOCK TABLE {_TABLES} IN ACCESS EXCLUSIVE MODE;"
    " SET LOCAL statement_timeout = 0"
)
_FILL_BROKER: Final = (
    "WITH chosen AS MATERIALIZED (SELECT number FROM states WHERE number > $1 AND number <= $2"
    " ORDER BY number LIMIT $3 FOR NO KEY UPDATE),"
    " filled AS (UPDATE states SET broker = 'unnamed:' || coalesce(transport, 'unknown')"
    " FROM chosen LEFT JOIN letters USING (number) WHERE states.number = chosen.number AND broker IS NULL)"
    " SELECT max(number) FROM chosen"
)
# The rows of `states` are locked first and in order, as by every verb: this prevents deadlocks.
_FILL_GROUP: Final = (
    "WITH chosen AS MATERIALIZED (SELECT number, consumer_group"
    " FROM unnest($1::bigint[], $2::text[]) AS input (number, consumer_group) JOIN states USING (number)"
    " ORDER BY number FOR NO KEY UPDATE OF states)"
    " UPDATE letters SET consumer_group = chosen.consumer_group FROM chosen WHERE letters.number = chosen.number"
)
_INDEX: Final = re.compile(r"CREATE INDEX (\w+)\s+ON [^;]+")


class BrokerMigration:
    """One run of the migration. `connection` is for this alone; `check_lock` raises if the lock was lost."""

    def __init__(
        self, connection: Any, name: str, script: str, check_lock: Callable[[], Awaitable[None]]
    ) -> None:
        self._db = connection
        self._name = name
        self._begin, self._indexes, self._finish = _parts(script)
        self._check_lock = check_lock
        self._logged_at = time.monotonic()
        self._batch = 1_000

    async def run(self, *, unfinished: bool) -> None:
        """Migrate, from the beginning or from where an earlier run was interrupted."""
        started = time.monotonic()
        _LOG.warning(
            "store migration %s database=%s schema=%d; the store is available when it is complete",
            "resumed" if unfinished else "started", self._name, VERSION,
        )  # fmt: skip
        if not unfinished:
            await self._start()
        await self._fill_brokers()
        await self._fill_groups()
        async with self._transaction():
            await self._db.execute("ALTER TABLE states VALIDATE CONSTRAINT states_broker_known")
        for statement in self._indexes:
            await self._build(statement)
        async with self._transaction():
            await self._db.execute("ANALYZE letters, states")
        while not await self._finished():
            pass
        _LOG.info(
            "store migration complete database=%s schema=%d seconds=%.1f",
            self._name, VERSION, time.monotonic() - started,
        )  # fmt: skip

    async def _start(self) -> None:
        async with self._locked_tables():
            # The server may have committed this for a process that was killed, after the version was read.
            if await self._db.fetchval("SELECT to_regclass('redrive.migration_progress') IS NULL"):
                await self._db.execute(self._begin)
                await self._db.execute("INSERT INTO migrations VALUES ($1)", VERSION)

    # --- filling -----------------------------------------------------------------------------------------

    async def _fill_brokers(self) -> None:
        done, last = await self._progress("broker_done")
        while done < last:
            await self._check_lock()
            started = time.monotonic()
            async with self._transaction():
                done = await self._db.fetchval(_FILL_BROKER, done, last, self._batch) or last
                await self._record("broker_done", done)
            self._adapt(time.monotonic() - started)
            self._log_progress("broker", done, last)

    async def _fill_groups(self) -> None:
        done, last = await self._progress("group_done")
        while done < last:
            await self._check_lock()
            started = time.monotonic()
            async with self._transaction():
                rows = await self._db.fetch(
                    "SELECT number, transport <> 'rabbitmq' AS has_group FROM letters"
                    " WHERE number > $1 AND number <= $2 ORDER BY number LIMIT $3",
                    done, last, self._batch,
                )  # fmt: skip
            await self._fill_groups_of([row["number"] for row in rows if row["has_group"]])
            done = rows[-1]["number"] if rows else last
            async with self._transaction():
                await self._record("group_done", done)
            self._adapt(time.monotonic() - started)
            self._log_progress("consumer_group", done, last)

    async def _fill_groups_of(self, numbers: Sequence[int]) -> None:
        """Contents never change, so they are read before any row is locked."""
        if not numbers:
            return
        async with self._transaction():
            sizes = await self._db.fetch(
                "SELECT letter, octet_length(content) FROM bodies WHERE letter = ANY($1::bigint[]) ORDER BY letter",
                numbers,
            )
        for portion in _portions(sizes):
            async with self._transaction():
                rows = await self._db.fetch(
                    "SELECT letter, content FROM bodies WHERE letter = ANY($1::bigint[])", portion
                )
            found = await asyncio.to_thread(_groups_of, rows)
            if found:
                async with self._transaction():
                    await self._db.execute(_FILL_GROUP, list(found), list(found.values()))

    async def _progress(self, column: str) -> tuple[int, int]:
        async with self._transaction():
            row = await self._db.fetchrow(f"SELECT {column}, last FROM migration_progress")
        return row[0], row[1]

    async def _record(self, column: str, done: int) -> None:
        await self._db.execute(f"UPDATE migration_progress SET {column} = greatest({column}, $1)", done)

    def _adapt(self, seconds: float) -> None:
        """Keep batches short on any server: writers wait for the rows of one batch at most."""
        if seconds < _SHORT:
            self._batch = min(_LARGEST_BATCH, self._batch * 2)
        elif seconds > _LONG:
            self._batch = max(_SMALLEST_BATCH, self._batch // 2)

    # --- indexes -----------------------------------------------------------------------------------------

    async def _build(self, statement: str) -> None:
        """Build an index concurrently. An invalid index of a killed process is dropped first."""
        await self._check_lock()
        [index] = _INDEX.findall(statement)
        async with self._transaction():
            # The server may still be building for a process that was killed: this waits for it, but not for writers.
            await self._db.execute("LOCK TABLE states IN SHARE UPDATE EXCLUSIVE MODE")
            await self._db.execute("SELECT FROM migration_progress")  # fails if another process has finished
            is_valid = await self._db.fetchval(
                "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)", f"redrive.{index}"
            )
        if is_valid:
            return
        if is_valid is False:
            _LOG.warning("incomplete index dropped database=%s index=%s", self._name, index)
            await self._outside(f"DROP INDEX CONCURRENTLY IF EXISTS redrive.{index}", index)
        await self._outside(statement.replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1), index)

    async def _outside(self, statement: str, index: str) -> None:
        """Run a statement outside of a transaction, and log that it is still running."""
        task = asyncio.ensure_future(self._db.execute(statement, timeout=_INDEX_TIMEOUT.total_seconds()))
        started = time.monotonic()
        try:
            while not (await asyncio.wait((task,), timeout=_LOG_EVERY))[0]:
                _LOG.warning(
                    "store migration running database=%s schema=%d step=index index=%s seconds=%.0f",
                    self._name, VERSION, index, time.monotonic() - started,
                )  # fmt: skip
        finally:
            task.cancel()
        await task

    # --- finishing ---------------------------------------------------------------------------------------

    async def _finished(self) -> bool:
        """Switch to the new schema; False: too many letters were added meanwhile, fill those first."""
        while numbers := await self._added(_LARGEST_BATCH):
            await self._fill_added(numbers)
            if len(numbers) < _MAX_UNDER_LOCK:
                break
        await self._check_lock()
        async with self._locked_tables():
            numbers = await self._added(_MAX_UNDER_LOCK + 1)
            if len(numbers) > _MAX_UNDER_LOCK:
                return False
            await self._fill_added(numbers)
            await self._db.execute(self._finish)
        return True

    async def _added(self, limit: int) -> list[int]:
        async with self._transaction():
            rows = await self._db.fetch("SELECT number FROM migration_letters LIMIT $1", limit)
        return [row[0] for row in rows]

    async def _fill_added(self, numbers: Sequence[int]) -> None:
        await self._fill_groups_of(numbers)
        async with self._transaction():
            await self._db.execute("DELETE FROM migration_letters WHERE number = ANY($1::bigint[])", numbers)
        self._log_progress("added letters", len(numbers), len(numbers))

    # --- transactions ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        async with transaction(self._db):
            yield

    @asynccontextmanager
    async def _locked_tables(self) -> AsyncIterator[None]:
        """A transaction with exclusive locks on the tables, requested again and again with a short timeout.

        A pending request for an exclusive lock blocks every reader and writer that comes later. The first lock does
        not: it only conflicts with vacuum, and autovacuum is cancelled by the server when it blocks such a request.
        """
        async with self._transaction():
            await self._db.execute(f"LOCK TABLE {_TABLES} IN SHARE UPDATE EXCLUSIVE MODE")
            started = time.monotonic()
            wait = 0.05
            while not await self._try_lock():
                waited = time.monotonic() - started
                if waited > _TIMEOUT.total_seconds():
                    raise StoreBusyError(
                        f"{self._name} could not be migrated: its tables were in use for {waited:.0f} s;"
                        " end long transactions and start again"
                    )
                self._log_wait(waited)
                await asyncio.sleep(wait)
                wait = min(wait * 2, 1.0)
            yield

    async def _try_lock(self) -> bool:
        try:
            async with self._db.transaction():  # a savepoint
                await self._db.execute(_LOCK_TABLES)
        except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError, asyncpg.DeadlockDetectedError):
            return False
        return True

    # --- logging -----------------------------------------------------------------------------------------

    def _log_progress(self, step: str, done: int, last: int) -> None:
        if self._is_time_to_log():
            _LOG.warning(
                "store migration running database=%s schema=%d step=%s percent=%d",
                self._name, VERSION, step, 100 * done // max(last, 1),
            )  # fmt: skip

    def _log_wait(self, waited: float) -> None:
        if self._is_time_to_log():
            _LOG.warning(
                "store migration waits for locks database=%s schema=%d tables=%s waited_s=%.0f",
                self._name, VERSION, _TABLES.replace(", ", ","), waited,
            )  # fmt: skip

    def _is_time_to_log(self) -> bool:
        now = time.monotonic()
        if now - self._logged_at < _LOG_EVERY:
            return False
        self._logged_at = now
        return True


@asynccontextmanager
async def transaction(connection: Any) -> AsyncIterator[None]:
    """A transaction for migrations; nested, a savepoint. A pooler passes no settings on, so each has its own."""
    if connection.is_in_transaction():
        async with connection.transaction():
            yield
        return
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(
            "SET LOCAL search_path = redrive; SET LOCAL statement_timeout = 0;"
            " SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL synchronous_commit = on;"
            " SET LOCAL enable_seqscan = off; SET LOCAL client_min_messages = warning"
        )
        yield


def _parts(script: str) -> tuple[str, list[str], str]:
    """The part before the indexes, the statements that create them, and the part after them."""
    _, begin, indexes, finish = re.split(r"^-- \[\w+\]", script, flags=re.MULTILINE)
    return f"--{begin}", [found[0] for found in re.finditer(_INDEX, indexes)], f"--{finish}"


def _portions(sizes: Sequence[Any]) -> list[list[int]]:
    """Numbers of letters, in lists whose contents are read at once; a single one may be larger."""
    portions: list[list[int]] = [[]]
    total = 0
    for number, size in sizes:
        if portions[-1] and total + size > _MAX_CONTENT:
            portions.append([])
            total = 0
        portions[-1].append(number)
        total += size
    return [portion for portion in portions if portion]


def _groups_of(rows: Sequence[Any]) -> dict[int, str]:
    """The consumer groups of letters, by number."""
    groups = {number: unpack_consumer_group(content) for number, content in rows}
    return {number: storable(group) for number, group in groups.items() if group is not None}
