"""How is the store of a running server used from another process?

`RemoteStore` keeps the contract of `stores.base` by asking the server for each verb over HTTP (`wire` has the form).
What every store refuses is refused here, before anything is sent; other errors come back as what they were.

One promise is weaker than the contract's: when the connection breaks in the middle, the verb raises and may have
happened nevertheless (S31). Whoever asks again is safe by ids, fences and first outcomes, as after a crash.
"""

import asyncio
import contextlib
import http.client
import select
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final, Self
from urllib.parse import urlsplit

from redrive.errors import SettingsError, StoreClosedError, StoreError
from redrive.letters import DeadLetter, Hold, LetterHead
from redrive.stores import wire
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
from redrive.stores.query import EVERYTHING, Query, read_cursor, tally_field

_THREADS: Final = 8  # questions under way at a time; a connection each
_PATIENCE: Final = timedelta(minutes=10)  # for one answer: `damage` looks at everything
_DEFAULT_PORT: Final = 8642


class RemoteStore:
    """The store of a `redrive serve`. Make one with `RemoteStore.open`."""

    def __init__(self, url: str, *, patience: timedelta = _PATIENCE) -> None:
        self.url = url
        self._host, self._port = _place(url)
        self._patience = patience
        self._threads = ThreadPoolExecutor(_THREADS, "redrive-remote-store")
        self._own = threading.local()
        self._connections: list[http.client.HTTPConnection] = []
        self._closed = False
        self._under_way: set[asyncio.Future[bytes]] = set()

    @classmethod
    async def open(cls, url: str) -> Self:
        """The store at this URL; a `StoreError` if nobody answers there."""
        store = cls(url)
        try:
            await store.operations(limit=1)
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """S32. The server's store stays open."""
        self._closed = True
        if self._under_way:
            await asyncio.wait(tuple(self._under_way))
        await asyncio.to_thread(self._threads.shutdown)
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    # --- letters -------------------------------------------------------------------------------------------------

    async def add(self, letters: Sequence[DeadLetter]) -> list[bool]:
        """S1 to S5."""
        for letter in letters:
            check_letter(letter)
        answer: list[bool] = await self._ask("add", letters=letters)
        return answer

    async def load(self, ids: Sequence[str]) -> list[DeadLetter]:
        """S28."""
        answer: list[DeadLetter] = await self._ask("load", ids=ids)
        return answer

    async def page(self, query: Query = EVERYTHING, *, limit: int = 50, cursor: str | None = None) -> Page:
        """S26, S27."""
        check_limit(limit, LARGEST_PAGE)
        if cursor is not None:
            read_cursor(query, cursor)
        answer: Page = await self._ask("page", query=query, limit=limit, cursor=cursor)
        return answer

    async def count(self, query: Query = EVERYTHING) -> int:
        """S29."""
        answer: int = await self._ask("count", query=query)
        return answer

    async def tally(self, by: str, query: Query = EVERYTHING) -> dict[str, int]:
        """S29."""
        tally_field(by)
        answer: dict[str, int] = await self._ask("tally", by=by, query=query)
        return answer

    async def groups(self, query: Query = EVERYTHING, *, limit: int = 50) -> list[Group]:
        """S45."""
        check_limit(limit, LARGEST_PAGE)
        answer: list[Group] = await self._ask("groups", query=query, limit=limit)
        return answer

    async def claim(self, worker: str, *, limit: int = 10, lease: timedelta = LEASE) -> list[LetterHead]:
        """S6 to S9, S13."""
        check_limit(limit, LARGEST_CLAIM)
        check_name("the worker's name", worker)
        check_lease(lease)
        answer: list[LetterHead] = await self._ask("claim", worker=worker, limit=limit, lease=lease)
        return answer

    async def take(self, ids: Sequence[str], worker: str, *, lease: timedelta = LEASE) -> list[LetterHead]:
        """S10."""
        check_name("the worker's name", worker)
        check_lease(lease)
        answer: list[LetterHead] = await self._ask("take", ids=ids, worker=worker, lease=lease)
        return answer

    async def extend(
        self, holds: Sequence[Hold], *, lease: timedelta = LEASE, sent: bool = False
    ) -> list[bool]:
        """S11, S12."""
        check_lease(lease)
        answer: list[bool] = await self._ask("extend", holds=holds, lease=lease, sent=sent)
        return answer

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """S14 to S18."""
        for one in settlements:
            check_outcome(one.outcome)
        answer: list[bool] = await self._ask("settle", settlements=settlements)
        return answer

    async def rescue(
        self, *, retry_in: timedelta, max_redrives: int = MAX_REDRIVES, limit: int = 1000
    ) -> list[Rescued]:
        """S19 to S21."""
        check_rescue(retry_in, max_redrives, limit)
        answer: list[Rescued] = await self._ask(
            "rescue", retry_in=retry_in, max_redrives=max_redrives, limit=limit
        )
        return answer

    async def apply(self, change: Change, ids: Sequence[str], *, by: str) -> None:
        """S22 to S25."""
        check_name("the actor's name", by)
        check_change(change)
        await self._ask("apply", change=change, ids=ids, by=by)

    async def journal(
        self, letter_id: str | None = None, *, after: int = 0, limit: int = 100
    ) -> list[JournalLine]:
        """S25."""
        check_limit(limit, LARGEST_CLAIM)
        answer: list[JournalLine] = await self._ask("journal", letter_id=letter_id, after=after, limit=limit)
        return answer

    async def damage(self) -> str | None:
        """What is wrong with the server's store, after looking at all of it; None: nothing."""
        answer: str | None = await self._ask("damage")
        return answer

    # --- operations ----------------------------------------------------------------------------------------------

    async def begin(self, operation: Operation, ids: Sequence[str]) -> bool:
        """S34 to S36."""
        check_operation(operation, ids)
        answer: bool = await self._ask("begin", operation=operation, ids=ids)
        return answer

    async def operation(self, operation_id: str) -> Operation:
        """S37."""
        answer: Operation = await self._ask("operation", operation_id=operation_id)
        return answer

    async def operations(self, *, limit: int = 50) -> list[Operation]:
        """S37."""
        check_limit(limit, LARGEST_PAGE)
        answer: list[Operation] = await self._ask("operations", limit=limit)
        return answer

    async def remaining(self, operation_id: str, *, limit: int) -> list[str]:
        """S38."""
        check_limit(limit, LARGEST_CLAIM)
        answer: list[str] = await self._ask("remaining", operation_id=operation_id, limit=limit)
        return answer

    async def items(self, operation_id: str, *, after: int = 0, limit: int) -> list[Item]:
        """S38."""
        check_limit(limit, LARGEST_CLAIM)
        check_after(after)
        answer: list[Item] = await self._ask("items", operation_id=operation_id, after=after, limit=limit)
        return answer

    async def record(self, operation_id: str, outcomes: Sequence[tuple[str, str, str]]) -> None:
        """S39, S40."""
        check_outcomes(outcomes)
        await self._ask("record", operation_id=operation_id, outcomes=outcomes)

    async def run_operation(
        self, operation_id: str, runner: str, *, lease: timedelta = LEASE, resume: bool = True
    ) -> bool:
        """S41, S42."""
        check_run(runner, lease)
        answer: bool = await self._ask(
            "run_operation", operation_id=operation_id, runner=runner, lease=lease, resume=resume
        )
        return answer

    async def end_operation(
        self, operation_id: str, state: OperationState, *, by: str, note: str = ""
    ) -> bool:
        """S43."""
        check_end(state, by, note)
        answer: bool = await self._ask(
            "end_operation", operation_id=operation_id, state=state, by=by, note=note
        )
        return answer

    # --- asking --------------------------------------------------------------------------------------------------

    async def _ask(self, verb: str, **arguments: Any) -> Any:
        if self._closed:
            raise StoreClosedError(f"the store {self.url} is closed")
        asking = asyncio.get_running_loop().run_in_executor(
            self._threads, self._exchange, verb, wire.ask(verb, arguments)
        )
        self._under_way.add(asking)
        asking.add_done_callback(self._under_way.discard)
        return wire.read(verb, await asyncio.shield(asking))

    def _exchange(self, verb: str, question: bytes) -> bytes:
        """In a thread: one question, one answer, on the thread's own connection."""
        connection = self._connection()
        try:
            connection.request(
                "POST",
                f"/store/{verb}",
                question,
                {"Content-Type": wire.CONTENT_TYPE, "Accept": wire.CONTENT_TYPE},
            )
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise StoreError(
                f"the store at {self.url} does not answer: {why}; does redrive serve run there?"
            ) from error
        if response.status != http.HTTPStatus.OK:
            raise wire.error_in(answer)
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(
                self._host, self._port, timeout=self._patience.total_seconds()
            )
            self._own.connection = connection
            self._connections.append(connection)
        elif connection.sock is not None and _is_over(connection.sock.fileno()):
            connection.close()  # the server has hung up meanwhile; the next request connects anew
        return connection


def _is_over(descriptor: int) -> bool:
    """Whether a connection on which nothing is awaited has something to say: that can only be its end."""
    with contextlib.suppress(OSError, ValueError):
        return bool(select.select([descriptor], [], [], 0)[0])
    return True


def _place(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = parts = None
    if parts is None or parts.scheme != "http" or not host or parts.path not in ("", "/"):
        raise SettingsError(f"store.url = '{url:.60}' is no server; write http://127.0.0.1:{_DEFAULT_PORT}")
    return host, _DEFAULT_PORT if port is None else port
