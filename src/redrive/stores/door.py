"""What is looked at before a store does anything?

`Door` has the verbs of the contract (`stores.base`) as they are asked: their defaults, the sentences they keep, and
what is refused (S33), once for all stores. What has passed goes on to the verb's hook, which has the same name behind a
`_`: that is what a store fills in. A hook gives something to await, be it a coroutine or a future.

It knows no database and no time, and not whether the store is open: a hook says that (S32). Three verbs are each
store's own: `add`, which thousands of tasks await one by one, so that not even a call more is to be had; `damage` and
`close`, which are asked for nothing that could be refused.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from datetime import datetime, timedelta
from typing import Final

from redrive.letters import ClaimToken, DeadLetter, LetterHead
from redrive.stores.base import LEASE, MAX_REDRIVES, JournalLine, LogSize, Page, Rescued, Trimmed
from redrive.stores.changes import Change, Settlement
from redrive.stores.checks import (
    LARGEST_CLAIM,
    LARGEST_PAGE,
    check_change,
    check_lease,
    check_limit,
    check_name,
    check_outcome,
    check_rescue,
    check_time,
)
from redrive.stores.gates import Gate, check_gates
from redrive.stores.memos import Memo, check_memo, check_memo_name
from redrive.stores.operations import (
    Group,
    Item,
    Operation,
    OperationState,
    check_after,
    check_end,
    check_operation,
    check_outcomes,
    check_run,
)
from redrive.stores.query import EVERYTHING, Position, Query, read_cursor, tally_field

_LISTED_AT_ONCE: Final = 10_000  # letters that the event loop lists by itself; more goes to a thread


class Door(ABC):
    """The verbs of a store, but `add`, `damage` and `close`."""

    # --- claiming and settling ---------------------------------------------------------------------------

    async def claim(
        self,
        worker: str,
        *,
        broker: str,
        limit: int = 10,
        lease: timedelta = LEASE,
        gates: Sequence[Gate] = (),
    ) -> list[LetterHead]:
        """S6 to S9, S13, S52 to S55."""
        check_limit(limit, LARGEST_CLAIM)
        check_name("the worker's name", worker)
        check_name("the broker's name", broker)
        check_lease(lease)
        if gates:
            check_gates(gates)
        return await self._claim(worker, broker, limit, lease, gates)

    async def take(
        self,
        ids: Sequence[str],
        worker: str,
        *,
        brokers: Sequence[str] | None = None,
        lease: timedelta = LEASE,
        reclaim: bool = False,
    ) -> list[LetterHead]:
        """S10."""
        check_name("the worker's name", worker)
        for broker in brokers or ():
            check_name("the broker's name", broker)
        check_lease(lease)
        return await self._take(ids, worker, brokers, lease, reclaim=reclaim)

    async def extend(
        self, holds: Sequence[ClaimToken], *, lease: timedelta = LEASE, sent: bool = False
    ) -> list[bool]:
        """S11, S12."""
        check_lease(lease)
        return await self._extend(holds, lease, sent=sent)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """S14 to S18."""
        for one in settlements:
            check_outcome(one.outcome)
        return await self._settle(settlements)

    async def rescue(
        self, *, retry_in: timedelta, max_redrives: int = MAX_REDRIVES, limit: int = 1000
    ) -> list[Rescued]:
        """S19 to S21."""
        check_rescue(retry_in, max_redrives, limit)
        return await self._rescue(retry_in, max_redrives, limit)

    async def overdue(self, *, broker: str, lease: timedelta, limit: int = 1000) -> list[LetterHead]:
        """S49, S50."""
        check_limit(limit, LARGEST_CLAIM)
        check_name("the broker's name", broker)
        check_lease(lease)
        return await self._overdue(broker, lease, limit)

    # --- changing ----------------------------------------------------------------------------------------

    async def apply(self, change: Change, ids: Sequence[str], *, by: str) -> None:
        """S22 to S25."""
        check_name("the actor's name", by)
        check_change(change)
        await self._apply(change, ids, by)

    # --- reading -----------------------------------------------------------------------------------------

    async def load(self, ids: Sequence[str]) -> list[DeadLetter]:
        """S28."""
        return await self._load(ids)

    async def page(self, query: Query = EVERYTHING, *, limit: int = 50, cursor: str | None = None) -> Page:
        """S26, S27."""
        check_limit(limit, LARGEST_PAGE)
        position = read_cursor(query, cursor) if cursor is not None else None
        return await self._page(query, limit, position)

    async def count(self, query: Query = EVERYTHING) -> int:
        """S29."""
        return await self._count(query)

    async def tally(self, by: str, query: Query = EVERYTHING) -> dict[str, int]:
        """S29."""
        tally_field(by)
        return await self._tally(by, query)

    async def groups(self, query: Query = EVERYTHING, *, limit: int = 50) -> list[Group]:
        """S45."""
        check_limit(limit, LARGEST_PAGE)
        return await self._groups(query, limit)

    async def journal(
        self, letter_id: str | None = None, *, after: int = 0, limit: int = 100
    ) -> list[JournalLine]:
        """S25."""
        check_limit(limit, LARGEST_CLAIM)
        return await self._journal(letter_id, after, limit)

    async def measure_change_log(self, *, after: int = 0, limit: int = 10_000) -> LogSize:
        """S57."""
        check_limit(limit, LARGEST_CLAIM)
        return await self._measure_change_log(after, limit)

    async def trim_change_log(
        self, *, before: datetime, up_to: int = 0, after: int = 0, limit: int = 1000
    ) -> Trimmed:
        """S58, S59."""
        check_limit(limit, LARGEST_CLAIM)
        check_time("the time", before)
        return await self._trim_change_log(before, up_to, after, limit)

    # --- operating ---------------------------------------------------------------------------------------

    async def begin(self, operation: Operation, ids: Sequence[str]) -> bool:
        """S34 to S36."""
        if len(ids) <= _LISTED_AT_ONCE:
            letters = _listed(operation, ids)
        else:
            letters = await asyncio.to_thread(_listed, operation, tuple(ids))
        return await self._begin(operation, letters)

    async def operation(self, operation_id: str) -> Operation:
        """S37."""
        return await self._operation(operation_id)

    async def operations(self, *, limit: int = 50) -> list[Operation]:
        """S37."""
        check_limit(limit, LARGEST_PAGE)
        return await self._operations(limit)

    async def remaining(self, operation_id: str, *, limit: int) -> list[str]:
        """S38."""
        check_limit(limit, LARGEST_CLAIM)
        return await self._remaining(operation_id, limit)

    async def items(self, operation_id: str, *, after: int = 0, limit: int) -> list[Item]:
        """S38."""
        check_limit(limit, LARGEST_CLAIM)
        check_after(after)
        return await self._items(operation_id, after, limit)

    async def record(self, operation_id: str, outcomes: Sequence[tuple[str, str, str]]) -> None:
        """S39, S40."""
        check_outcomes(outcomes)
        await self._record(operation_id, outcomes)

    async def run_operation(
        self,
        operation_id: str,
        runner: str,
        *,
        lease: timedelta = LEASE,
        resume: bool = True,
        replaces: str | None = None,
    ) -> bool:
        """S41, S42."""
        check_run(runner, lease)
        return await self._run_operation(operation_id, runner, lease, resume=resume, replaces=replaces)

    async def end_operation(
        self, operation_id: str, state: OperationState, *, by: str, note: str = ""
    ) -> bool:
        """S43."""
        check_end(state, by, note)
        return await self._end_operation(operation_id, state, by, note)

    # --- remembering -------------------------------------------------------------------------------------

    async def recall(self, name: str) -> Memo:
        """S48."""
        check_memo_name(name)
        return await self._recall(name)

    async def remember(self, name: str, body: bytes, *, version: int) -> bool:
        """S46, S47."""
        check_memo(name, body, version)
        return await self._remember(name, body, version)

    # --- what a store fills in ---------------------------------------------------------------------------

    @abstractmethod
    def _claim(
        self, worker: str, broker: str, limit: int, lease: timedelta, gates: Sequence[Gate]
    ) -> Awaitable[list[LetterHead]]: ...

    @abstractmethod
    def _take(
        self,
        ids: Sequence[str],
        worker: str,
        brokers: Sequence[str] | None,
        lease: timedelta,
        *,
        reclaim: bool,
    ) -> Awaitable[list[LetterHead]]: ...

    @abstractmethod
    def _extend(
        self, holds: Sequence[ClaimToken], lease: timedelta, *, sent: bool
    ) -> Awaitable[list[bool]]: ...

    @abstractmethod
    def _settle(self, settlements: Sequence[Settlement]) -> Awaitable[list[bool]]: ...

    @abstractmethod
    def _rescue(self, retry_in: timedelta, max_redrives: int, limit: int) -> Awaitable[list[Rescued]]: ...

    @abstractmethod
    def _overdue(self, broker: str, lease: timedelta, limit: int) -> Awaitable[list[LetterHead]]: ...

    @abstractmethod
    def _apply(self, change: Change, ids: Sequence[str], by: str) -> Awaitable[None]: ...

    @abstractmethod
    def _load(self, ids: Sequence[str]) -> Awaitable[list[DeadLetter]]: ...

    @abstractmethod
    def _page(self, query: Query, limit: int, position: Position | None) -> Awaitable[Page]: ...

    @abstractmethod
    def _count(self, query: Query) -> Awaitable[int]: ...

    @abstractmethod
    def _tally(self, by: str, query: Query) -> Awaitable[dict[str, int]]: ...

    @abstractmethod
    def _groups(self, query: Query, limit: int) -> Awaitable[list[Group]]: ...

    @abstractmethod
    def _journal(self, letter_id: str | None, after: int, limit: int) -> Awaitable[list[JournalLine]]: ...

    @abstractmethod
    def _measure_change_log(self, after: int, limit: int) -> Awaitable[LogSize]: ...

    @abstractmethod
    def _trim_change_log(
        self, before: datetime, up_to: int, after: int, limit: int
    ) -> Awaitable[Trimmed]: ...

    @abstractmethod
    def _begin(self, operation: Operation, letters: list[str]) -> Awaitable[bool]:
        """`letters` are ids, each once."""

    @abstractmethod
    def _operation(self, operation_id: str) -> Awaitable[Operation]: ...

    @abstractmethod
    def _operations(self, limit: int) -> Awaitable[list[Operation]]: ...

    @abstractmethod
    def _remaining(self, operation_id: str, limit: int) -> Awaitable[list[str]]: ...

    @abstractmethod
    def _items(self, operation_id: str, after: int, limit: int) -> Awaitable[list[Item]]: ...

    @abstractmethod
    def _record(self, operation_id: str, outcomes: Sequence[tuple[str, str, str]]) -> Awaitable[None]: ...

    @abstractmethod
    def _run_operation(
        self, operation_id: str, runner: str, lease: timedelta, *, resume: bool, replaces: str | None
    ) -> Awaitable[bool]: ...

    @abstractmethod
    def _end_operation(
        self, operation_id: str, state: OperationState, by: str, note: str
    ) -> Awaitable[bool]: ...

    @abstractmethod
    def _recall(self, name: str) -> Awaitable[Memo]: ...

    @abstractmethod
    def _remember(self, name: str, body: bytes, version: int) -> Awaitable[bool]: ...


def _listed(operation: Operation, ids: Sequence[str]) -> list[str]:
    """The list of an operation that can be stored: each letter once (S34)."""
    check_operation(operation, ids)
    return list(dict.fromkeys(ids))
