"""The embedded store: one SQLite file that keeps the contract of `stores.base`.

All writing goes through one thread that commits in groups (`writer`); reading has its own connections, which
SQLite's write-ahead log never blocks. `schema` checks and prepares the file, `migrate` brings a file of an
earlier version up to date, `file_identity` notices when it is removed or replaced, `work` is what each verb does inside
its transaction, `reading` what each reads, `operations` both for operations and groups, `memos` both for memos; `rows`
and `stores.cold` translate letters, `search` translates queries. `stores.door` has looked at what is asked; this file
hands it to the right thread.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from redrive.clock import Clock, SystemClock
from redrive.errors import SettingsError, StoreClosedError
from redrive.letters import ClaimToken, DeadLetter, LetterHead
from redrive.stores.base import JournalLine, LogSize, Page, Rescued, Trimmed, find_trimmable
from redrive.stores.changes import Change, Settlement
from redrive.stores.checks import check_letter
from redrive.stores.door import Door
from redrive.stores.gates import Gate
from redrive.stores.memos import Memo
from redrive.stores.operations import Group, Item, Operation, OperationState
from redrive.stores.query import Position, Query
from redrive.stores.rows import NewRow, new_row, ticks
from redrive.stores.sqlite import memos, operations, reading, schema, work
from redrive.stores.sqlite.file_identity import FileIdentity, key_of
from redrive.stores.sqlite.rows import ABSENT
from redrive.stores.sqlite.writer import Bundle, Job, Writer

T = TypeVar("T")
_READERS: Final = 4
_PACKED_AT_ONCE: Final = 65_536  # bytes that the event loop packs by itself; more goes to a thread


class SqliteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the file is treated."""

    busy_timeout: timedelta = timedelta(seconds=10)  # how long to wait for another process
    integrity_check_timeout: timedelta | None = timedelta(
        seconds=2
    )  # how long to look for damage on opening; None: to the end
    max_bytes: int | None = None  # the file never grows beyond; None: as large as the disk
    create: bool = True  # make the file if it is not there

    def __post_init__(self) -> None:
        if not timedelta(0) <= self.busy_timeout <= timedelta(hours=1):
            raise SettingsError(f"a busy_timeout of {self.busy_timeout} is not between 0 and 1 hour")
        check = self.integrity_check_timeout
        if check is not None and not timedelta(0) <= check <= timedelta(days=1):
            raise SettingsError(f"an integrity_check_timeout of {check} is not between 0 and 1 day")
        if self.max_bytes is not None and not 1_048_576 <= self.max_bytes <= 2**47:
            raise SettingsError(f"a max_bytes of {self.max_bytes} is not between 1 MB and 128 TB")


class SqliteStore(Door):
    """Dead letters in one file. Make one with `SqliteStore.open`."""

    def __init__(self, path: Path, options: SqliteOptions, clock: Clock) -> None:
        self._path = path
        self._options = options
        self._clock = clock
        self._closed = False
        self._readers = ThreadPoolExecutor(_READERS, "redrive-sqlite-reader")
        self._reading = threading.local()
        self._connections: list[sqlite3.Connection] = []
        opened = key_of(path)
        connection = schema.connect(path, busy_timeout=options.busy_timeout)
        if options.max_bytes is not None:
            page_size = connection.execute("PRAGMA page_size").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {options.max_bytes // page_size}")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        self._stamps = work.Stamps(
            connection.execute("SELECT max(created_at) FROM letters").fetchone()[0] or 0
        )
        self._identity = FileIdentity(path, opened)
        self._writer = Writer(connection, path, self._bundle, self._identity.check)

    @classmethod
    async def open(
        cls, path: str | Path, options: SqliteOptions | None = None, clock: Clock | None = None
    ) -> Self:
        """Open the file, making it if it is not there; damaged, foreign and newer files are refused."""
        options = options or SqliteOptions()
        path = Path(path)
        await asyncio.to_thread(
            schema.prepare,
            path,
            busy_timeout=options.busy_timeout,
            integrity_check_timeout=options.integrity_check_timeout,
            create=options.create,
        )
        return cls(path, options, clock or SystemClock())

    async def close(self) -> None:
        """S32."""
        self._closed = True
        await self._writer.close()
        await asyncio.to_thread(self._readers.shutdown)
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    # --- writing: in the writer's thread -----------------------------------------------------------------

    async def add(self, letters: Sequence[DeadLetter]) -> list[bool]:
        """S1 to S5."""
        size = 0
        for letter in letters:
            check_letter(letter)
            size += letter.size
        if size <= _PACKED_AT_ONCE:
            rows = [new_row(letter, ABSENT) for letter in letters]
        else:
            rows = await asyncio.to_thread(lambda: [new_row(letter, ABSENT) for letter in letters])
        return await self._writer.submit(_Add(rows))

    async def _claim(
        self, worker: str, broker: str, limit: int, lease: timedelta, gates: Sequence[Gate]
    ) -> list[LetterHead]:
        while (
            True
        ):  # each turn is a transaction of its own: a crowd that is stopped keeps no other writer waiting
            claimed = await self._write(
                lambda db: work.claim(db, worker, broker, limit, lease, gates, self._now())
            )
            if claimed.heads or not claimed.more:
                return claimed.heads

    def _take(
        self,
        ids: Sequence[str],
        worker: str,
        brokers: Sequence[str] | None,
        lease: timedelta,
        *,
        reclaim: bool,
    ) -> Awaitable[list[LetterHead]]:
        return self._write(
            lambda db: work.take(db, ids, worker, brokers, lease, self._now(), reclaim=reclaim)
        )

    def _extend(self, holds: Sequence[ClaimToken], lease: timedelta, *, sent: bool) -> Awaitable[list[bool]]:
        return self._write(lambda db: work.extend(db, holds, lease, self._now(), sent=sent))

    def _settle(self, settlements: Sequence[Settlement]) -> Awaitable[list[bool]]:
        return self._write(lambda db: work.settle(db, settlements, self._now()))

    def _rescue(self, retry_in: timedelta, max_redrives: int, limit: int) -> Awaitable[list[Rescued]]:
        return self._write(lambda db: work.rescue(db, retry_in, max_redrives, limit, self._now()))

    def _overdue(self, broker: str, lease: timedelta, limit: int) -> Awaitable[list[LetterHead]]:
        return self._write(lambda db: work.overdue(db, broker, lease, limit, self._now()))

    def _apply(self, change: Change, ids: Sequence[str], by: str) -> Awaitable[None]:
        return self._write(lambda db: work.apply(db, change, ids, by, self._now()))

    def _begin(self, operation: Operation, letters: list[str]) -> Awaitable[bool]:
        return self._write(lambda db: operations.begin(db, operation, letters, self._now()))

    def _record(self, operation_id: str, outcomes: Sequence[tuple[str, str, str]]) -> Awaitable[None]:
        return self._write(lambda db: operations.record(db, operation_id, outcomes, self._now()))

    def _run_operation(
        self, operation_id: str, runner: str, lease: timedelta, *, resume: bool, replaces: str | None
    ) -> Awaitable[bool]:
        return self._write(
            lambda db: operations.run_operation(
                db, operation_id, runner, lease, self._now(), resume=resume, replaces=replaces
            )
        )

    def _end_operation(self, operation_id: str, state: OperationState, by: str, note: str) -> Awaitable[bool]:
        return self._write(
            lambda db: operations.end_operation(db, operation_id, state, by, note, self._now())
        )

    def _remember(self, name: str, body: bytes, version: int) -> Awaitable[bool]:
        return self._write(lambda db: memos.remember(db, name, body, version))

    # --- reading: on a connection of its own (S30) -------------------------------------------------------

    def _load(self, ids: Sequence[str]) -> Awaitable[list[DeadLetter]]:
        return self._read(lambda db: reading.load(db, ids))

    def _page(self, query: Query, limit: int, position: Position | None) -> Awaitable[Page]:
        return self._read(lambda db: reading.page(db, query, limit, position))

    def _count(self, query: Query) -> Awaitable[int]:
        return self._read(lambda db: reading.count(db, query))

    def _tally(self, by: str, query: Query) -> Awaitable[dict[str, int]]:
        return self._read(lambda db: reading.tally(db, by, query))

    def _groups(self, query: Query, limit: int) -> Awaitable[list[Group]]:
        return self._read(lambda db: operations.groups(db, query, limit))

    def _journal(self, letter_id: str | None, after: int, limit: int) -> Awaitable[list[JournalLine]]:
        return self._read(lambda db: reading.journal(db, letter_id, after, limit))

    def _measure_change_log(self, after: int, limit: int) -> Awaitable[LogSize]:
        return self._read(lambda db: reading.measure_change_log(db, after, limit))

    async def _trim_change_log(self, before: datetime, up_to: int, after: int, limit: int) -> Trimmed:
        """What can be deleted is found by a reader; the writer's thread only deletes."""
        lines = await self._read(lambda db: reading.old_lines(db, after, limit))
        numbers, trimmed = find_trimmable(lines, ticks(before), up_to, after, limit)
        if numbers:
            await self._write(lambda db: work.delete_lines(db, numbers))
        return trimmed

    def _operation(self, operation_id: str) -> Awaitable[Operation]:
        return self._read(lambda db: operations.operation(db, operation_id))

    def _operations(self, limit: int) -> Awaitable[list[Operation]]:
        return self._read(lambda db: operations.operations(db, limit))

    def _remaining(self, operation_id: str, limit: int) -> Awaitable[list[str]]:
        return self._read(lambda db: operations.remaining(db, operation_id, limit))

    def _items(self, operation_id: str, after: int, limit: int) -> Awaitable[list[Item]]:
        return self._read(lambda db: operations.items(db, operation_id, after, limit))

    def _recall(self, name: str) -> Awaitable[Memo]:
        return self._read(lambda db: memos.recall(db, name))

    async def damage(self) -> str | None:
        """What is wrong with the file, after looking at all of it; None: nothing."""
        return await self._read(lambda db: schema.damage(db, None) or reading.damaged_letter(db))

    # --- which thread ------------------------------------------------------------------------------------

    def _write(self, verb: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        return self._writer.submit(Job(verb))

    def _read(self, verb: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        if self._closed:
            raise StoreClosedError(f"the store {self._path} is closed")
        return asyncio.get_running_loop().run_in_executor(self._readers, self._run_reading, verb)

    def _run_reading(self, verb: Callable[[sqlite3.Connection], T]) -> T:
        with schema.translated(self._path):
            connection: sqlite3.Connection | None = getattr(self._reading, "connection", None)
            if connection is None:
                self._identity.check()
                connection = schema.connect(self._path, busy_timeout=self._options.busy_timeout)
                try:
                    self._identity.check()  # it must not be another file than the one that is written
                    connection.execute("PRAGMA query_only = ON")
                except BaseException:
                    connection.close()
                    raise
                self._reading.connection = connection
                self._connections.append(connection)
            return verb(connection)

    def _bundle(self, group: list[Job[Any]]) -> Iterator[Bundle]:
        """All adds of a group as one, then the rest. All of them are under way at once: no order was promised."""
        adds = [job for job in group if isinstance(job, _Add)]
        if adds:
            batches = [job.rows for job in adds]
            yield Bundle(adds, lambda db: work.add(db, batches, self._stamps, self._now()))
        if len(adds) < len(group):
            for job in group:
                if not isinstance(job, _Add):
                    yield Bundle.of(job)

    def _now(self) -> int:
        return ticks(self._clock.now())


class _Add(Job[list[bool]]):
    """An add. `SqliteStore._bundle` folds those of a group into one; thousands may wait, so it carries little."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[NewRow]) -> None:
        self.rows = rows
