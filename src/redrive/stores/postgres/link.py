"""How does a verb reach the server, and what if it does not answer?

Two pools of connections, so that reading never waits for writing (S30). A verb that meets a lost connection, a server
that restarts or a deadlock is carried out again, for as long as `busy_timeout` allows; every verb is one transaction,
so what was cut off has left nothing behind.

One moment needs care: the connection is lost while the server commits, and nobody says whether it did. Every writing
transaction therefore leaves a ticket in the table `commits`. Whoever has heard no answer puts down the same ticket as
void: if that is refused, the transaction was committed; if not, it never will be. So a verb is neither carried out
twice nor reported as failed when it was done (S31). The server's own numbers of transactions would not do: after a
crash it gives the same ones again.

How a session behaves is said once, when it begins. A pooler such as PgBouncer does not pass that on, and gives every
transaction whatever connection is free: behind one, each transaction says it for itself, and no statement is prepared
for the next one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import asyncpg
import msgspec

from redrive.errors import (
    LetterInvalidError,
    RedriveError,
    SettingsError,
    StoreBusyError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnreachableError,
)
from redrive.stores.postgres import schema

T = TypeVar("T")
_FIRST_WAIT: Final = 0.02  # seconds
_LONGEST_WAIT: Final = 0.5
_GRACE: Final = 5.0  # seconds that the server has to stop a statement by itself, before we let go of it
# How all our connections behave. What is planned is simple: compiling it would take longer than doing it.
_SESSION: Final = {"search_path": schema.SCHEMA, "jit": "off", "client_min_messages": "warning"}
# Writing finds each row by an index, whatever the planner was last told about sizes: a plan that was made while the
# store was empty stays right when it is full. S1 asks for durable commits, whatever the server's default is.
_WRITING: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "synchronous_commit": "on",
    "idle_in_transaction_session_timeout": "60s",  # should this process hang, others get what it has locked
}
_READING: Final = {"plan_cache_mode": "force_custom_plan", "default_transaction_read_only": "on"}
_READ_ONLY: Final = "BEGIN ISOLATION LEVEL {} READ ONLY"


class PostgresOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the server is treated."""

    pool_size: int = 10  # connections at most; half of them for reading
    statement_timeout: timedelta = timedelta(minutes=1)  # how long one statement may take
    busy_timeout: timedelta = timedelta(seconds=10)  # how long to wait for a connection, or for the server
    create: bool = True  # make the tables if they are not there

    def __post_init__(self) -> None:
        if isinstance(self.pool_size, bool) or not 2 <= self.pool_size <= 1000:
            raise SettingsError(f"a pool_size of {self.pool_size} is not between 2 and 1000 connections")
        if not timedelta(milliseconds=10) <= self.statement_timeout <= timedelta(days=1):
            raise SettingsError(
                f"a statement_timeout of {self.statement_timeout} is not between 10 ms and 1 day"
            )
        if not timedelta(0) <= self.busy_timeout <= timedelta(hours=1):
            raise SettingsError(f"a busy_timeout of {self.busy_timeout} is not between 0 and 1 hour")


class Session:
    """A connection inside a transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.unchanged = False  # a verb that found nothing to do says so: there is nothing to commit

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """All rows."""
        rows: list[Any] = await self._connection.fetch(statement, *values)
        return rows

    async def execute(self, statement: str, *values: Any) -> None:
        """No rows."""
        await self._connection.execute(statement, *values)


class _UncertainError(Exception):
    """The connection was lost while the server committed."""

    def __init__(self, ticket: UUID, answer: Any) -> None:
        self.ticket = ticket
        self.answer = answer


class Link:
    """The connections to one database. Make one with `Link.open`."""

    def __init__(self, url: str, options: PostgresOptions) -> None:
        self.name = name_of(url)
        self._url = url
        self._options = options
        self._closed = False
        self._is_pooled = False  # somebody between us and the server hands out its connections
        self._writing: Any = None
        self._reading: Any = None

    @classmethod
    async def open(cls, url: str, options: PostgresOptions) -> "Link":
        """Connect, check and prepare the database. A server that is away is not waited for: it may be the wrong one."""
        link = cls(url, options)
        try:
            connection = await link._first_connection()
            try:
                await schema.prepare(connection, link.name, create=options.create, connect=link._connect)
            finally:
                await connection.close(timeout=_GRACE)
            reading = options.pool_size // 2
            link._writing = await link._pool(_WRITING, options.pool_size - reading)
            link._reading = await link._pool(_READING, reading)
        except RedriveError:
            raise
        except ValueError as error:  # what asyncpg raises for a URL that it cannot read
            raise SettingsError(f"{link.name} cannot be read as store.url: {error}") from error
        except Exception as error:
            raise link.translated(error) from error
        return link

    async def close(self) -> None:
        """Let go of all connections, after those that work have finished."""
        if not self._closed:
            self._closed = True
            for pool in (self._writing, self._reading):
                try:
                    await asyncio.wait_for(pool.close(), _GRACE)
                except (TimeoutError, OSError, asyncpg.InterfaceError, asyncpg.PostgresError):
                    pool.terminate()

    def check_open(self) -> None:
        """A closed store says so (S32)."""
        if self._closed:
            raise StoreClosedError(f"the store {self.name} is closed")

    # --- transactions ------------------------------------------------------------------------------------

    async def write(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """What `work` answers, after its transaction has been committed."""

        async def once() -> T:
            async with self._writing.acquire(timeout=self._patience) as connection:
                ticket = uuid4()
                session = Session(connection)
                try:
                    begin = self._beginning("BEGIN", _WRITING)
                    await connection.execute(f"{begin}; INSERT INTO commits (ticket) VALUES ('{ticket}')")
                    answer = await work(session)
                    if session.unchanged:
                        await connection.execute("ROLLBACK")
                        return answer
                except BaseException:
                    await _roll_back(connection)
                    raise
                try:
                    await connection.execute("COMMIT")
                except Exception as error:
                    if _is_away(error) or isinstance(error, TimeoutError):
                        raise _UncertainError(ticket, answer) from error
                    raise
                return answer

        return await self._persist(once)

    async def read(self, look: Callable[[Any], Awaitable[T]], *, at_one_moment: bool = False) -> T:
        """What `look` sees; at one moment, if it needs several statements."""

        async def once() -> T:
            async with self._reading.acquire(timeout=self._patience) as connection:
                if not (at_one_moment or self._is_pooled):
                    return await look(connection)
                begin = _READ_ONLY.format("REPEATABLE READ" if at_one_moment else "READ COMMITTED")
                async with self._transaction(connection, begin, _READING):
                    return await look(connection)

        return await self._persist(once)

    async def _persist(self, once: Callable[[], Awaitable[T]]) -> T:
        """Try until it is done, or fails for good, or time is up. Waiting is by the real clock: it is the network's."""
        end: float | None = None
        wait = _FIRST_WAIT
        while True:
            self.check_open()
            try:
                return await once()
            except _UncertainError as uncertain:
                end = end or time.monotonic() + self._patience
                if await self._was_committed(uncertain, end):
                    answer: T = uncertain.answer
                    return answer
            except RedriveError:
                raise
            except Exception as error:
                end = end or time.monotonic() + self._patience
                if not _is_away(error) or time.monotonic() + wait > end:
                    raise self.translated(error) from error
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)

    async def _was_committed(self, uncertain: _UncertainError, end: float) -> bool:
        """What became of a transaction whose commit was not answered."""
        wait = _FIRST_WAIT
        while True:
            try:
                async with (
                    self._writing.acquire(timeout=self._patience) as connection,
                    self._transaction(connection, "BEGIN ISOLATION LEVEL READ COMMITTED", _WRITING),
                ):
                    # Should the server still be at it, this waits until it is through.
                    await connection.execute(
                        "INSERT INTO commits (ticket, void) VALUES ($1, true) ON CONFLICT DO NOTHING",
                        uncertain.ticket,
                    )
                    return not await connection.fetchval(
                        "SELECT void FROM commits WHERE ticket = $1", uncertain.ticket
                    )
            except Exception as error:
                if not _is_away(error) and not isinstance(error, TimeoutError):
                    raise self.translated(error) from error
            if time.monotonic() + wait > end:
                raise StoreError(
                    f"{self.name} was lost during a commit and was not reachable in time to check the "
                    "result; check the data before you retry"
                ) from uncertain
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)

    # --- connections -------------------------------------------------------------------------------------

    async def _first_connection(self) -> Any:
        """A connection to look around with; it finds out whether there is a pooler in between."""
        connection = await self._as_asked()
        if connection is None:
            self._is_pooled = True
            connection = await self._connect()
        return connection

    async def _as_asked(self) -> Any:
        """A connection that behaves as it was told; None: somebody does not pass that on."""
        try:
            connection = await self._connect()
        except asyncpg.ProtocolViolationError as error:
            if "startup parameter" in str(error):
                return None
            raise
        async with connection.transaction():
            if await connection.fetchval("SELECT current_setting('search_path')") == schema.SCHEMA:
                return connection
        await connection.close(timeout=_GRACE)
        return None

    async def _connect(self) -> Any:
        arguments = self._arguments(_WRITING) | {
            "command_timeout": schema.TIMEOUT.total_seconds(),
            "statement_cache_size": 0,
        }
        if not self._is_pooled:  # a migration takes its time
            arguments["server_settings"] |= {
                "statement_timeout": "0",
                "idle_in_transaction_session_timeout": "0",
            }
        return await asyncpg.connect(**arguments, timeout=max(1.0, self._patience))

    async def _pool(self, settings: dict[str, str], size: int) -> Any:
        # Nothing about a session is ever changed, so that nothing has to be set back when it is returned.
        return await asyncpg.create_pool(
            **self._arguments(settings), min_size=0, max_size=size, reset=_as_it_is
        )

    def _arguments(self, settings: dict[str, str]) -> dict[str, Any]:
        behaviour = {"application_name": "redrive"}
        return {
            "dsn": self._url,
            "command_timeout": self._options.statement_timeout.total_seconds() + _GRACE,
            "server_settings": behaviour if self._is_pooled else {**behaviour, **self._behaviour(settings)},
            **({"statement_cache_size": 0} if self._is_pooled else {}),
        }

    def _behaviour(self, settings: dict[str, str]) -> dict[str, str]:
        """How a session behaves, or a transaction behind a pooler."""
        timeout = int(self._options.statement_timeout.total_seconds() * 1000)
        return {**_SESSION, **settings, "statement_timeout": str(timeout)}

    def _beginning(self, begin: str, settings: dict[str, str]) -> str:
        """The statements that begin a transaction."""
        if not self._is_pooled:
            return begin
        said = (f"SET LOCAL {name} = '{value}'" for name, value in self._behaviour(settings).items())
        return "; ".join((begin, *said))

    @asynccontextmanager
    async def _transaction(
        self, connection: Any, begin: str, settings: dict[str, str]
    ) -> AsyncIterator[None]:
        await connection.execute(self._beginning(begin, settings))
        try:
            yield
        except BaseException:
            await _roll_back(connection)
            raise
        await connection.execute("COMMIT")

    @property
    def _patience(self) -> float:
        return self._options.busy_timeout.total_seconds()

    # --- errors ------------------------------------------------------------------------------------------

    def translated(self, error: BaseException) -> RedriveError:
        """An error of asyncpg, of the server or of the network as one of ours."""
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, TimeoutError):
            return self._out_of_time()
        for kinds, ours, advice in _ERRORS:
            if isinstance(error, kinds):
                return ours(f"{self.name} {advice} ({said})")
        return StoreError(f"{self.name} refused the statement ({type(error).__name__}: {said})")

    def _out_of_time(self) -> StoreError:
        for pool in (self._writing, self._reading):
            if pool is not None and pool.get_size() == pool.get_max_size() and not pool.get_idle_size():
                return StoreBusyError(
                    f"{self.name}: all {pool.get_max_size()} connections of one kind were in use for "
                    f"{self._patience:g} s; raise store.pool_size, or send fewer requests at once"
                )
        return StoreBusyError(f"{self.name} did not answer in time; check the server and the network")


async def _roll_back(connection: Any) -> None:
    """Undo what was begun; a connection that cannot even do that goes no further."""
    try:
        await connection.execute("ROLLBACK")
    except Exception:  # noqa: BLE001  whatever it is, the error that led here is the one to tell
        connection.terminate()


async def _as_it_is(_connection: Any) -> None:
    """A connection goes back into its pool as it is."""


def name_of(url: str) -> str:
    """The database as it may be shown: without user and password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingsError(
            "store.url is not a URL; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None
    return f"postgresql://{parts.netloc.rpartition('@')[2] or 'localhost'}{parts.path}"


def _is_away(error: BaseException) -> bool:
    """Whether the same may well succeed on another connection, or in a moment."""
    return isinstance(error, _AWAY) and not isinstance(error, TimeoutError | asyncpg.ClientConfigurationError)


_AWAY: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,  # the connection was closed under us
    asyncpg.InternalClientError,  # likewise, while a statement was about to be sent
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.InvalidCachedStatementError,  # a newer redrive has migrated under us
    asyncpg.IdleInTransactionSessionTimeoutError,
)
_NO_ANSWER: Final = "is unreachable; check that the server is running, and check store.url"
_ERRORS: Final[tuple[tuple[Any, type[RedriveError], str], ...]] = (
    (asyncpg.ClientConfigurationError, SettingsError, "is not a valid store.url"),
    (
        asyncpg.InvalidAuthorizationSpecificationError,
        StoreError,
        "refused the login: check user and password in store.url",
    ),
    (asyncpg.InvalidCatalogNameError, StoreError, "does not exist: create it, or check store.url"),
    (
        asyncpg.InsufficientPrivilegeError,
        StoreReadOnlyError,
        ("refused permission: grant the user CREATE on the database, or make it the owner of the "
        "schema redrive"),
    ),
    (
        asyncpg.ReadOnlySQLTransactionError,
        StoreReadOnlyError,
        "is read-only: set store.url to the primary server",
    ),
    (asyncpg.DiskFullError, StoreFullError, "is full: free disk space on the server"),
    (
        asyncpg.TooManyConnectionsError,
        StoreBusyError,
        "has no free connections: lower store.pool_size, or raise max_connections",
    ),
    (
        (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError),
        StoreBusyError,
        "took too long: try again, or raise store.statement_timeout",
    ),
    (
        (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError),
        StoreDamagedError,
        "is damaged: restore it from a backup",
    ),
    (
        (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError),
        StoreDamagedError,
        "is missing tables of the schema redrive: restore them from a backup",
    ),
    (
        (asyncpg.ProgramLimitExceededError, asyncpg.DataError),
        LetterInvalidError,
        "cannot store the value: a text or a body is too long",
    ),
    (_AWAY, StoreUnreachableError, _NO_ANSWER),
)  # fmt: skip
