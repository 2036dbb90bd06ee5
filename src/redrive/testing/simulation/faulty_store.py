"""The memory store as one process sees it, with faults.

Every verb is one step of the `Edge`. The `Watch` sees the letters before and after each verb that may change them.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from redrive.errors import StoreBusyError
from redrive.letters import ClaimToken, DeadLetter, LetterHead
from redrive.stores.base import LEASE, MAX_REDRIVES, JournalLine, LogSize, Page, Rescued, Trimmed
from redrive.stores.changes import Change, Settlement
from redrive.stores.gates import Gate
from redrive.stores.memory import MemoryStore
from redrive.stores.memos import Memo
from redrive.stores.operations import Group, Item, Operation, OperationState
from redrive.stores.query import EVERYTHING, Query
from redrive.testing.simulation.edges import Edge
from redrive.testing.simulation.watch import short

T = TypeVar("T")


class SimulatedStore(MemoryStore):
    """The memory store, open to those who watch it."""

    @property
    def letters(self) -> dict[str, DeadLetter]:
        """All letters as they are now."""
        return self._letters

    @property
    def journal_lines(self) -> list[JournalLine]:
        """The whole journal."""
        return self._lines

    @property
    def all_operations(self) -> dict[str, Operation]:
        """All operations as they are now."""
        return self._book.operations

    def list_of(self, operation: str) -> dict[str, Item]:
        """The letters of an operation, and what became of them."""
        return self._book.lists.get(operation, {})


class FaultyStore:
    """The store as one process sees it."""

    def __init__(self, store: SimulatedStore, edge: Edge) -> None:
        self._store = store
        self._edge = edge

    async def _verb(
        self,
        verb: str,
        call: Callable[[], Awaitable[T]],
        about: Any = "",
        holds: Sequence[ClaimToken] = (),
        brokers: Sequence[str] | None = None,
    ) -> T:
        """Carry out a verb that may change letters; `brokers` are those that it was asked for."""

        async def watched() -> T:
            before = dict(self._store.letters)
            answer = await call()
            self._edge.watch.store_did(verb, before, holds, answer, brokers)
            return answer

        return await self._edge.step(verb, watched, StoreBusyError, about=about)

    async def _read(self, verb: str, call: Callable[[], Awaitable[T]], about: Any = "") -> T:
        """Carry out a verb that changes no letter."""
        return await self._edge.step(verb, call, StoreBusyError, about=about)

    async def add(self, letters: Sequence[DeadLetter]) -> list[bool]:
        """Add."""
        return await self._verb(
            "add", lambda: self._store.add(letters), [one.message.body for one in letters]
        )

    async def load(self, ids: Sequence[str]) -> list[DeadLetter]:
        """Load."""
        return await self._read("load", lambda: self._store.load(ids), _short(ids))

    async def page(self, query: Query = EVERYTHING, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Read a page."""
        return await self._read("page", lambda: self._store.page(query, limit=limit, cursor=cursor))

    async def count(self, query: Query = EVERYTHING) -> int:
        """Count."""
        return await self._read("count", lambda: self._store.count(query))

    async def tally(self, by: str, query: Query = EVERYTHING) -> dict[str, int]:
        """Count by a field."""
        return await self._read("tally", lambda: self._store.tally(by, query))

    async def claim(
        self,
        worker: str,
        *,
        broker: str,
        limit: int = 10,
        lease: timedelta = LEASE,
        gates: Sequence[Gate] = (),
    ) -> list[LetterHead]:
        """Claim."""
        return await self._verb(
            "claim",
            lambda: self._store.claim(worker, broker=broker, limit=limit, lease=lease, gates=gates),
            worker,
            brokers=(broker,),
        )

    async def take(
        self,
        ids: Sequence[str],
        worker: str,
        *,
        brokers: Sequence[str] | None = None,
        lease: timedelta = LEASE,
        reclaim: bool = False,
    ) -> list[LetterHead]:
        """Take."""
        self._edge.watch.taking(worker, ids)
        return await self._verb(
            "take",
            lambda: self._store.take(ids, worker, brokers=brokers, lease=lease, reclaim=reclaim),
            _short(ids),
            brokers=brokers,
        )

    async def extend(
        self, holds: Sequence[ClaimToken], *, lease: timedelta = LEASE, sent: bool = False
    ) -> list[bool]:
        """Extend."""
        about = f"{_holds(holds)}{' sent' * sent}"
        return await self._verb(
            "extend", lambda: self._store.extend(holds, lease=lease, sent=sent), about, holds
        )

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Settle."""
        holds = [one.claim_token for one in settlements]
        about = [f"{_holds([one.claim_token])} {type(one.outcome).__name__}" for one in settlements]
        return await self._verb("settle", lambda: self._store.settle(settlements), about, holds)

    async def rescue(
        self, *, retry_in: timedelta, max_redrives: int = MAX_REDRIVES, limit: int = 1000
    ) -> list[Rescued]:
        """Rescue."""
        return await self._verb(
            "rescue", lambda: self._store.rescue(retry_in=retry_in, max_redrives=max_redrives, limit=limit)
        )

    async def overdue(self, *, broker: str, lease: timedelta, limit: int = 1000) -> list[LetterHead]:
        """Renew the leases of letters without a verdict."""
        return await self._verb(
            "overdue",
            lambda: self._store.overdue(broker=broker, lease=lease, limit=limit),
            broker,
            brokers=(broker,),
        )

    async def apply(self, change: Change, ids: Sequence[str], *, by: str) -> None:
        """Change."""
        await self._verb("apply", lambda: self._store.apply(change, ids, by=by), _short(ids))

    async def journal(
        self, letter_id: str | None = None, *, after: int = 0, limit: int = 100
    ) -> list[JournalLine]:
        """Read the journal."""
        return await self._read("journal", lambda: self._store.journal(letter_id, after=after, limit=limit))

    async def measure_change_log(self, *, after: int = 0, limit: int = 10_000) -> LogSize:
        """Measure the change log."""
        return await self._read(
            "measure_change_log", lambda: self._store.measure_change_log(after=after, limit=limit)
        )

    async def trim_change_log(
        self, *, before: datetime, up_to: int = 0, after: int = 0, limit: int = 1000
    ) -> Trimmed:
        """Trim the change log."""
        return await self._read(
            "trim_change_log",
            lambda: self._store.trim_change_log(before=before, up_to=up_to, after=after, limit=limit),
        )

    async def begin(self, operation: Operation, ids: Sequence[str]) -> bool:
        """Begin an operation; what it lists is noted before anything can go wrong."""
        self._edge.watch.planned(operation.id, ids)
        return await self._read("begin", lambda: self._store.begin(operation, ids), _short(ids))

    async def operation(self, operation_id: str) -> Operation:
        """Look at an operation."""
        return await self._read("operation", lambda: self._store.operation(operation_id))

    async def operations(self, *, limit: int = 50) -> list[Operation]:
        """Look at operations."""
        return await self._read("operations", lambda: self._store.operations(limit=limit))

    async def remaining(self, operation_id: str, *, limit: int) -> list[str]:
        """What an operation has still to do."""
        return await self._read("remaining", lambda: self._store.remaining(operation_id, limit=limit))

    async def items(self, operation_id: str, *, after: int = 0, limit: int) -> list[Item]:
        """What an operation lists."""
        return await self._read("items", lambda: self._store.items(operation_id, after=after, limit=limit))

    async def record(self, operation_id: str, outcomes: Sequence[tuple[str, str, str]]) -> None:
        """Record outcomes."""
        about = [f"{short(one[0])} {one[1]}" for one in outcomes]
        await self._read("record", lambda: self._store.record(operation_id, outcomes), about)

    async def run_operation(
        self,
        operation_id: str,
        runner: str,
        *,
        lease: timedelta = LEASE,
        resume: bool = True,
        replaces: str | None = None,
    ) -> bool:
        """Run an operation."""
        return await self._read(
            "run_operation",
            lambda: self._store.run_operation(
                operation_id, runner, lease=lease, resume=resume, replaces=replaces
            ),
            runner,
        )

    async def end_operation(
        self, operation_id: str, state: OperationState, *, by: str, note: str = ""
    ) -> bool:
        """End an operation."""
        return await self._read(
            "end_operation", lambda: self._store.end_operation(operation_id, state, by=by, note=note), state
        )

    async def groups(self, query: Query = EVERYTHING, *, limit: int = 50) -> list[Group]:
        """Look at groups."""
        return await self._read("groups", lambda: self._store.groups(query, limit=limit))

    async def recall(self, name: str) -> Memo:
        """Recall a memo."""
        return await self._read("recall", lambda: self._store.recall(name), name)

    async def remember(self, name: str, body: bytes, *, version: int) -> bool:
        """Write a memo."""
        return await self._read(
            "remember", lambda: self._store.remember(name, body, version=version), f"{name}/{version}"
        )

    async def damage(self) -> str | None:
        """Look for damage."""
        return await self._store.damage()

    async def close(self) -> None:
        """The process lets go; the store itself stays for the others."""


def _short(ids: Iterable[str]) -> str:
    return ",".join(map(short, ids))


def _holds(holds: Iterable[ClaimToken]) -> str:
    return ",".join(f"{short(hold.id)}/{hold.fence}" for hold in holds)
