"""The shared store: one PostgreSQL database that keeps the contract of `stores.base` for any number of processes.

`link` reaches the server and comes back when it was away; `lane` commits in groups what many tasks add and settle;
`schema` checks the database and migrates it, `broker_migration` does so in batches; `adding`, `work` and `reading` are
what each verb does inside its transaction, `operations` the same for operations and groups, `memos` for memos; `search`
translates queries. `stores.door` has looked at what is asked; this file hands it on.

Time is the database's own, so that leases mean the same on every machine; a clock that is handed in takes its place.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Self, TypeVar

from redrive.clock import Clock
from redrive.letters import ClaimToken, DeadLetter, LetterHead
from redrive.stores.base import JournalLine, LogSize, Page, Rescued, Trimmed, find_trimmable
from redrive.stores.changes import Change, Settlement
from redrive.stores.checks import check_letter
from redrive.stores.door import Door
from redrive.stores.gates import Gate
from redrive.stores.memos import Memo
from redrive.stores.operations import Group, Item, Operation, OperationState
from redrive.stores.postgres import adding, memos, operations, reading, work
from redrive.stores.postgres.lane import Lane
from redrive.stores.postgres.link import Link, PostgresOptions, Session, name_of
from redrive.stores.query import Position, Query
from redrive.stores.rows import NewRow, new_row, ticks

__all__ = ["PostgresOptions", "PostgresStore", "name_of"]

T = TypeVar("T")
_PACKED_AT_ONCE: Final = 65_536  # bytes that the event loop packs by itself; more goes to a thread
_LARGEST_ADD: Final = 4_000_000  # bytes that are committed together
_LARGEST_SETTLE: Final = 2_000  # letters that are settled together


class PostgresStore(Door):
    """Dead letters in a database. Make one with `PostgresStore.open`."""

    def __init__(self, link: Link, clock: Clock | None, last_stamp: int) -> None:
        self._link = link
        self._clock = clock
        self._last_stamp = last_stamp
        self._adding: Lane[list[NewRow], list[bool]] = Lane(self._add_group, largest=_LARGEST_ADD)
        self._settling: Lane[Sequence[Settlement], list[bool]] = Lane(
            self._settle_group, largest=_LARGEST_SETTLE
        )
        self._under_way: set[asyncio.Task[Any]] = set()
        self._gated: set[str] = set()  # brokers of which letters wait at gates

    @classmethod
    async def open(cls, url: str, options: PostgresOptions | None = None, clock: Clock | None = None) -> Self:
        """Connect to the database, making our tables if they are not there; foreign and newer ones are refused."""
        link = await Link.open(url, options or PostgresOptions())
        last = await link.read(lambda db: db.fetchval("SELECT max(created_at) FROM letters"))
        return cls(link, clock, last or 0)

    async def close(self) -> None:
        """S32."""
        await self._adding.drain()
        await self._settling.drain()
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self._link.close()

    # --- writing -----------------------------------------------------------------------------------------

    async def add(self, letters: Sequence[DeadLetter]) -> list[bool]:
        """S1 to S5."""
        self._link.check_open()
        for letter in letters:
            check_letter(letter)
        if sum([letter.size for letter in letters]) <= _PACKED_AT_ONCE:
            rows = [new_row(letter) for letter in letters]
        else:
            rows = await asyncio.to_thread(lambda: [new_row(letter) for letter in letters])
        if not rows:
            return []
        weight = sum([len(content) + len(failure) + 500 for _, content, failure in rows])
        return await self._adding.submit(rows, weight)

    async def _add_group(self, batches: Sequence[list[NewRow]]) -> list[list[bool]]:
        rows = [row for batch in batches for row in batch]
        new, self._last_stamp = await self._link.write(
            lambda db: adding.add(db, rows, self._last_stamp, self._now())
        )
        return _shared_out(new, batches)

    def _settle(self, settlements: Sequence[Settlement]) -> Awaitable[list[bool]]:
        if not settlements:
            return self._settle_nothing()
        return self._settling.submit(settlements, len(settlements))  # a closed link refuses the group (S32)

    async def _settle_nothing(self) -> list[bool]:
        self._link.check_open()
        return []

    async def _settle_group(self, batches: Sequence[Sequence[Settlement]]) -> list[list[bool]]:
        everything = [one for batch in batches for one in batch]
        done = await self._link.write(lambda db: work.settle(db, everything, self._now()))
        return _shared_out(done, batches)

    async def _claim(
        self, worker: str, broker: str, limit: int, lease: timedelta, gates: Sequence[Gate]
    ) -> list[LetterHead]:
        if not gates and broker not in self._gated:
            claimed = await self._write(lambda db: work.claim(db, worker, broker, limit, lease, self._now()))
            if claimed.waiting:
                self._gated.add(broker)
            return claimed.heads
        while (
            True
        ):  # each turn is a transaction of its own: a crowd that is stopped keeps no other writer waiting
            claimed = await self._write(
                lambda db: work.claim_past_gates(db, worker, broker, limit, lease, gates, self._now())
            )
            if claimed.waiting:
                self._gated.add(broker)
            else:
                self._gated.discard(broker)
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

    async def _write(self, verb: Callable[[Session], Awaitable[T]]) -> T:
        """In a task of its own: whoever asked may be cancelled, but what was begun ends in order."""
        self._link.check_open()
        task = asyncio.ensure_future(self._link.write(verb))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    # --- reading -----------------------------------------------------------------------------------------

    def _load(self, ids: Sequence[str]) -> Awaitable[list[DeadLetter]]:
        return self._link.read(lambda db: reading.load(db, ids), at_one_moment=True)

    def _page(self, query: Query, limit: int, position: Position | None) -> Awaitable[Page]:
        return self._link.read(lambda db: reading.page(db, query, limit, position))

    def _count(self, query: Query) -> Awaitable[int]:
        return self._link.read(lambda db: reading.count(db, query))

    def _tally(self, by: str, query: Query) -> Awaitable[dict[str, int]]:
        return self._link.read(lambda db: reading.tally(db, by, query))

    def _groups(self, query: Query, limit: int) -> Awaitable[list[Group]]:
        return self._link.read(lambda db: operations.groups(db, query, limit))

    def _journal(self, letter_id: str | None, after: int, limit: int) -> Awaitable[list[JournalLine]]:
        return self._link.read(lambda db: reading.journal(db, letter_id, after, limit))

    def _measure_change_log(self, after: int, limit: int) -> Awaitable[LogSize]:
        return self._link.read(lambda db: reading.measure_change_log(db, after, limit))

    async def _trim_change_log(self, before: datetime, up_to: int, after: int, limit: int) -> Trimmed:
        lines = await self._link.read(lambda db: reading.old_lines(db, after, limit))
        numbers, trimmed = find_trimmable(lines, ticks(before), up_to, after, limit)
        if numbers:
            await self._write(lambda db: work.delete_lines(db, numbers))
        return trimmed

    def _operation(self, operation_id: str) -> Awaitable[Operation]:
        return self._link.read(lambda db: operations.operation(db, operation_id))

    def _operations(self, limit: int) -> Awaitable[list[Operation]]:
        return self._link.read(lambda db: operations.operations(db, limit))

    def _remaining(self, operation_id: str, limit: int) -> Awaitable[list[str]]:
        return self._link.read(lambda db: operations.remaining(db, operation_id, limit))

    def _items(self, operation_id: str, after: int, limit: int) -> Awaitable[list[Item]]:
        return self._link.read(lambda db: operations.items(db, operation_id, after, limit))

    def _recall(self, name: str) -> Awaitable[Memo]:
        return self._link.read(lambda db: memos.recall(db, name))

    async def damage(self) -> str | None:
        """What is wrong with what is stored, after looking at all of it; None: nothing."""
        return await self._link.read(reading.damaged_letter)

    # --- time --------------------------------------------------------------------------------------------

    def _now(self) -> int | None:
        """The time by the clock that was handed in; None: by the database's."""
        return None if self._clock is None else ticks(self._clock.now())


def _shared_out(answers: list[bool], batches: Sequence[Sequence[Any]]) -> list[list[bool]]:
    """The answers for many as the answers for each batch."""
    left = iter(answers)
    return [[next(left) for _ in batch] for batch in batches]
