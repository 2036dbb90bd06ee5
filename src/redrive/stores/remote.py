"""How is the store of a running server used from another process?

`RemoteStore` keeps the contract of `stores.base` by asking the server for each verb over HTTP (`wire` has the form).
What every store refuses is refused here (`door`), before anything is sent; other errors come back as what they were.
The server's key is found and verified on opening (`server_key`).

One promise is weaker than the contract's: when the connection breaks in the middle, the verb raises and may have
happened nevertheless (S31). Whoever asks again is safe by ids, fences, first outcomes and versions, as after a crash.
"""

import asyncio
import contextlib
import http.client
import select
import threading
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import msgspec

from redrive.errors import SettingsError, StoreAccessError, StoreClosedError, StoreError
from redrive.letters import ClaimToken, DeadLetter, LetterHead
from redrive.settings import hide_secrets
from redrive.stores import server_key, wire
from redrive.stores.base import JournalLine, LogSize, Page, Rescued, Trimmed
from redrive.stores.changes import Change, Settlement
from redrive.stores.checks import check_letter
from redrive.stores.door import Door
from redrive.stores.gates import Gate
from redrive.stores.memos import Memo
from redrive.stores.operations import Group, Item, Operation, OperationState
from redrive.stores.query import Position, Query, cursor_at

_THREADS: Final = 8  # questions under way at a time; a connection each
_PATIENCE: Final = timedelta(minutes=10)  # for one answer: `damage` looks at everything
_DEFAULT_PORT: Final = 8642


class RemoteStore(Door):
    """The store of a `redrive serve`. Make one with `RemoteStore.open`."""

    def __init__(self, url: str, key: str | None = None, *, patience: timedelta = _PATIENCE) -> None:
        self.url = url
        self._key = key  # None until `open` has found it
        self._host, self._port = _place(url)
        self._patience = patience
        self._threads = ThreadPoolExecutor(_THREADS, "redrive-remote-store")
        self._own = threading.local()
        self._connections: list[http.client.HTTPConnection] = []
        self._closed = False
        self._under_way: set[asyncio.Future[bytes]] = set()

    @classmethod
    async def open(cls, url: str, key: str | None = None) -> Self:
        """The store at this URL; a `StoreError` if nobody answers there, or if its key cannot be found.

        `key` is the server's; without it, the key is read from the file that the server names.
        """
        store = cls(url, None if key is None else server_key.check_key(key))
        try:
            await asyncio.get_running_loop().run_in_executor(store._threads, store._authenticate)
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

    def _claim(
        self, worker: str, broker: str, limit: int, lease: timedelta, gates: Sequence[Gate]
    ) -> Awaitable[list[LetterHead]]:
        return self._ask("claim", worker=worker, broker=broker, limit=limit, lease=lease, gates=tuple(gates))

    def _take(
        self,
        ids: Sequence[str],
        worker: str,
        brokers: Sequence[str] | None,
        lease: timedelta,
        *,
        reclaim: bool,
    ) -> Awaitable[list[LetterHead]]:
        return self._ask("take", ids=ids, worker=worker, brokers=brokers, lease=lease, reclaim=reclaim)

    def _extend(self, holds: Sequence[ClaimToken], lease: timedelta, *, sent: bool) -> Awaitable[list[bool]]:
        return self._ask("extend", holds=holds, lease=lease, sent=sent)

    def _settle(self, settlements: Sequence[Settlement]) -> Awaitable[list[bool]]:
        return self._ask("settle", settlements=settlements)

    def _rescue(self, retry_in: timedelta, max_redrives: int, limit: int) -> Awaitable[list[Rescued]]:
        return self._ask("rescue", retry_in=retry_in, max_redrives=max_redrives, limit=limit)

    def _overdue(self, broker: str, lease: timedelta, limit: int) -> Awaitable[list[LetterHead]]:
        return self._ask("overdue", broker=broker, lease=lease, limit=limit)

    def _apply(self, change: Change, ids: Sequence[str], by: str) -> Awaitable[None]:
        return self._ask("apply", change=change, ids=ids, by=by)

    def _load(self, ids: Sequence[str]) -> Awaitable[list[DeadLetter]]:
        return self._ask("load", ids=ids)

    def _page(self, query: Query, limit: int, position: Position | None) -> Awaitable[Page]:
        cursor = cursor_at(query, position) if position is not None else None
        return self._ask("page", query=query, limit=limit, cursor=cursor)

    def _count(self, query: Query) -> Awaitable[int]:
        return self._ask("count", query=query)

    def _tally(self, by: str, query: Query) -> Awaitable[dict[str, int]]:
        return self._ask("tally", by=by, query=query)

    def _groups(self, query: Query, limit: int) -> Awaitable[list[Group]]:
        return self._ask("groups", query=query, limit=limit)

    def _journal(self, letter_id: str | None, after: int, limit: int) -> Awaitable[list[JournalLine]]:
        return self._ask("journal", letter_id=letter_id, after=after, limit=limit)

    def _measure_change_log(self, after: int, limit: int) -> Awaitable[LogSize]:
        return self._ask("measure_change_log", after=after, limit=limit)

    def _trim_change_log(self, before: datetime, up_to: int, after: int, limit: int) -> Awaitable[Trimmed]:
        return self._ask("trim_change_log", before=before, up_to=up_to, after=after, limit=limit)

    async def damage(self) -> str | None:
        """What is wrong with the server's store, after looking at all of it; None: nothing."""
        answer: str | None = await self._ask("damage")
        return answer

    # --- operations ----------------------------------------------------------------------------------------------

    def _begin(self, operation: Operation, letters: list[str]) -> Awaitable[bool]:
        return self._ask("begin", operation=operation, ids=letters)

    def _operation(self, operation_id: str) -> Awaitable[Operation]:
        return self._ask("operation", operation_id=operation_id)

    def _operations(self, limit: int) -> Awaitable[list[Operation]]:
        return self._ask("operations", limit=limit)

    def _remaining(self, operation_id: str, limit: int) -> Awaitable[list[str]]:
        return self._ask("remaining", operation_id=operation_id, limit=limit)

    def _items(self, operation_id: str, after: int, limit: int) -> Awaitable[list[Item]]:
        return self._ask("items", operation_id=operation_id, after=after, limit=limit)

    def _record(self, operation_id: str, outcomes: Sequence[tuple[str, str, str]]) -> Awaitable[None]:
        return self._ask("record", operation_id=operation_id, outcomes=outcomes)

    def _run_operation(
        self, operation_id: str, runner: str, lease: timedelta, *, resume: bool, replaces: str | None
    ) -> Awaitable[bool]:
        return self._ask(
            "run_operation",
            operation_id=operation_id,
            runner=runner,
            lease=lease,
            resume=resume,
            replaces=replaces,
        )

    def _end_operation(self, operation_id: str, state: OperationState, by: str, note: str) -> Awaitable[bool]:
        return self._ask("end_operation", operation_id=operation_id, state=state, by=by, note=note)

    # --- memos ---------------------------------------------------------------------------------------------------

    def _recall(self, name: str) -> Awaitable[Memo]:
        return self._ask("recall", name=name)

    def _remember(self, name: str, body: bytes, version: int) -> Awaitable[bool]:
        return self._ask("remember", name=name, body=body, version=version)

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
        """In a thread: one question, one answer."""
        headers = {"Content-Type": wire.CONTENT_TYPE, "Accept": wire.CONTENT_TYPE}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        status, answer = self._request("POST", f"/store/{verb}", question, headers)
        if status != http.HTTPStatus.OK:
            raise wire.error_in(answer)
        return answer

    def _authenticate(self) -> None:
        """In a thread: find the key, and let the server prove that it is its own before it is sent."""
        nonce = server_key.new_nonce()
        status, answer = self._request("GET", f"/store/proof?nonce={nonce}", None, {})
        try:
            told = msgspec.json.decode(answer, type=wire.KeyProof)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            told = None
        if status != http.HTTPStatus.OK or told is None:
            raise StoreError(
                f"the server at {self.url} did not prove its key (status {status}); check that it is "
                "redrive serve of the same version"
            )
        if self._key is not None:
            if not server_key.is_proof(self._key, nonce, told.proof):
                raise StoreAccessError(
                    f"the key in server.key (REDRIVE_SERVER_KEY) is not that of the server at {self.url}; correct it, "
                    "or unset it to use the server's key file"
                )
            return
        file = Path(told.file) if told.file else None
        key = server_key.read_key(file) if file is not None and file.name == server_key.FILE_NAME else None
        if key is None:
            raise StoreAccessError(
                f"the store at {self.url} needs the key of its server"
                + (f", and this account cannot read {file}" if file is not None else "")
                + "; run as the account of the server, or set REDRIVE_SERVER_KEY to the key"
            )
        if not server_key.is_proof(key, nonce, told.proof):
            raise StoreAccessError(
                f"the server at {self.url} does not know the key in {file}: another program answers there"
            )
        self._key = key

    def _request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """One request and its answer, on the thread's own connection."""
        connection = self._connection()
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise StoreError(
                f"the store at {self.url} does not answer: {why}; check that redrive serve is running there"
            ) from error
        return response.status, answer

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
        raise SettingsError(
            f"store.url = '{hide_secrets(url):.60}' is not the URL of a server; write "
            f"http://127.0.0.1:{_DEFAULT_PORT}"
        )
    return host, _DEFAULT_PORT if port is None else port
