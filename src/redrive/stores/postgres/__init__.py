"""The shared store: one PostgreSQL database that keeps the contract of `stores.base` for any number of processes.

`link` reaches the server and comes back when it was away; `lane` commits in groups what many tasks add and settle;
`schema` checks and prepares the database; `work` and `reading` are what each verb does inside its transaction; `search`
translates queries. This file is the door: it checks what is asked and hands it on.

Time is the database's own, so that leases mean the same on every machine; a clock that is handed in takes its place.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, Self, TypeVar

from redrive.clock import Clock
from redrive.letters import DeadLetter, Hold, LetterHead
from redrive.stores.base import LEASE, MAX_REDRIVES, JournalLine, Page, Rescued
from redrive.stores.changes import Change, Settlement
from redrive.stores.checks import (
    LARGEST_CLAIM,
    LARGEST_PAGE,
    check_change,
    check_lease,
    check_letter,
    check_limit,
    check_name,
    check_outcome,
    check_rescue,
)
from redrive.stores.postgres import reading, work
from redrive.stores.postgres.lane import Lane
from redrive.stores.postgres.link import Link, PostgresOptions, Session, name_of
from redrive.stores.postgres.operations import PostgresOperations
from redrive.stores.postgres.search import SEARCH
from redrive.stores.query import EVERYTHING, Query, read_cursor, tally_field, write_cursor
from redrive.stores.rows import NewRow, head_of, new_row, ticks

__all__ = ["PostgresOptions", "PostgresStore", "name_of"]

T = TypeVar("T")
_PACKED_AT_ONCE: Final = 65_536  # bytes that the event loop packs by itself; more goes to a thread
_LARGEST_ADD: Final = 4_000_000  # bytes that are committed together
_LARGEST_SETTLE: Final = 2_000  # letters that are settled together


class PostgresStore(PostgresOperations):
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
            lambda db: work.add(db, rows, self._last_stamp, self._now())
        )
        return _shared_out(new, batches)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """S14 to S18."""
        self._link.check_open()
        for one in settlements:
            check_outcome(one.outcome)
        if not settlements:
            return []
        return await self._settling.submit(settlements, len(settlements))

    async def _settle_group(self, batches: Sequence[Sequence[Settlement]]) -> list[list[bool]]:
        everything = [one for batch in batches for one in batch]
        done = await self._link.write(lambda db: work.settle(db, everything, self._now()))
        return _shared_out(done, batches)

    async def claim(self, worker: str, *, limit: int = 10, lease: timedelta = LEASE) -> list[LetterHead]:
        """S6 to S9, S13."""
        check_limit(limit, LARGEST_CLAIM)
        check_name("the worker's name", worker)
        check_lease(lease)
        return await self._write(lambda db: work.claim(db, worker, limit, lease, self._now()))

    async def take(self, ids: Sequence[str], worker: str, *, lease: timedelta = LEASE) -> list[LetterHead]:
        """S10."""
        check_name("the worker's name", worker)
        check_lease(lease)
        return await self._write(lambda db: work.take(db, ids, worker, lease, self._now()))

    async def extend(
        self, holds: Sequence[Hold], *, lease: timedelta = LEASE, sent: bool = False
    ) -> list[bool]:
        """S11, S12."""
        check_lease(lease)
        return await self._write(lambda db: work.extend(db, holds, lease, self._now(), sent=sent))

    async def rescue(
        self, *, retry_in: timedelta, max_redrives: int = MAX_REDRIVES, limit: int = 1000
    ) -> list[Rescued]:
        """S19 to S21."""
        check_rescue(retry_in, max_redrives, limit)
        return await self._write(lambda db: work.rescue(db, retry_in, max_redrives, limit, self._now()))

    async def apply(self, change: Change, ids: Sequence[str], *, by: str) -> None:
        """S22 to S25."""
        check_name("the actor's name", by)
        check_change(change)
        await self._write(lambda db: work.apply(db, change, ids, by, self._now()))

    async def _write(self, verb: Callable[[Session], Awaitable[T]]) -> T:
        """In a task of its own: whoever asked may be cancelled, but what was begun ends in order."""
        self._link.check_open()
        task = asyncio.ensure_future(self._link.write(verb))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    # --- reading -----------------------------------------------------------------------------------------

    async def load(self, ids: Sequence[str]) -> list[DeadLetter]:
        """S28."""
        return await self._link.read(lambda db: reading.load(db, ids), at_one_moment=True)

    async def page(self, query: Query = EVERYTHING, *, limit: int = 50, cursor: str | None = None) -> Page:
        """S26, S27."""
        check_limit(limit, LARGEST_PAGE)
        position = read_cursor(query, cursor) if cursor is not None else None
        rows = await self._select(SEARCH.page(query, position, limit + 1))
        heads = tuple(head_of(tuple(row)) for row in rows[:limit])
        return Page(heads, write_cursor(query, heads[-1]) if len(rows) > limit else None)

    async def count(self, query: Query = EVERYTHING) -> int:
        """S29."""
        return int((await self._select(SEARCH.count(query)))[0][0])

    async def tally(self, by: str, query: Query = EVERYTHING) -> dict[str, int]:
        """S29."""
        tally_field(by)
        return dict(await self._select(SEARCH.tally(by, query)))

    async def journal(
        self, letter_id: str | None = None, *, after: int = 0, limit: int = 100
    ) -> list[JournalLine]:
        """S25."""
        check_limit(limit, LARGEST_CLAIM)
        return await self._link.read(lambda db: reading.journal(db, letter_id, after, limit))

    async def damage(self) -> str | None:
        """What is wrong with what is stored, after looking at all of it; None: nothing."""
        return await self._link.read(reading.damaged_letter)

    async def _select(self, statement: tuple[str, list[Any]]) -> list[Any]:
        text, values = statement
        rows: list[Any] = await self._link.read(lambda db: db.fetch(text, *values))
        return rows

    # --- time --------------------------------------------------------------------------------------------

    def _now(self) -> int | None:
        """The time by the clock that was handed in; None: by the database's."""
        return None if self._clock is None else ticks(self._clock.now())


def _shared_out(answers: list[bool], batches: Sequence[Sequence[Any]]) -> list[list[bool]]:
    """The answers for many as the answers for each batch."""
    left = iter(answers)
    return [[next(left) for _ in batch] for batch in batches]
