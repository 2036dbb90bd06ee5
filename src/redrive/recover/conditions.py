"""Check in the background whether what letters wait for is reachable.

Each `[[conditions]]` table is one check: a TCP connection, an HTTP request or an SQL query, repeated at its interval.
The result is kept, and workers only read it: a check that hangs holds up no worker and no other check. A check that
fails closes a gate for the letters that it names (`admission`); until its first result it counts as failing, which
takes one timeout at most. When a check succeeds again, the workers are woken.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from redrive.clock import Clock, pause
from redrive.errors import RedriveError, SettingsError
from redrive.letters import FailureKind
from redrive.rules import Strategy, format_duration
from redrive.settings import ConditionSettings
from redrive.stores.gates import Gate, gate_name

Check: TypeAlias = Callable[[str, timedelta], Awaitable[None]]
_ENVIRONMENT: Final = "env:"
_NOT_CHECKED: Final = "not checked yet"


class ConditionFailedError(RedriveError):
    """What a condition checks is not reachable, or says that it is not well."""


class Conditions:
    """Runs the checks and keeps their results."""

    name = "conditions"

    def __init__(
        self,
        conditions: Sequence[ConditionSettings],
        clock: Clock,
        *,
        check: Check | None = None,
        held: Callable[[], None] = lambda: None,
        clean: Callable[[str], str] = str,
    ) -> None:
        """`held` is called when a check succeeds that failed before; `clean` redacts the text of an error."""
        self._conditions = tuple(conditions)
        self._clock = clock
        self._check = check or check_url
        self._held = held
        self._clean = clean
        self.failing: dict[str, str] = {one.name: _NOT_CHECKED for one in self._conditions}  # name → why

    async def run(self, stop: asyncio.Event) -> None:
        """Repeat all checks until `stop` is set."""
        async with asyncio.TaskGroup() as tasks:
            for condition in self._conditions:
                tasks.create_task(self._repeat(condition, stop))
            await stop.wait()

    def gates(self) -> tuple[Gate, ...]:
        """A gate for each check that fails. Without sources and kinds, it stops the conditional strategy."""
        return tuple(
            Gate(
                name=gate_name("condition", one.name),
                sources=one.sources or None,
                kinds=one.kinds or None,
                strategies=None if one.sources or one.kinds else (str(Strategy.CONDITIONAL),),
            )
            for one in self._conditions
            if one.name in self.failing
        )

    def database_reachable(self) -> bool:
        """Whether every check succeeds that all letters with a database error wait for."""
        return not any(
            one.name in self.failing
            and not one.sources
            and (not one.kinds or FailureKind.DATABASE in one.kinds)
            for one in self._conditions
        )

    async def turn(self, condition: ConditionSettings) -> None:
        """Run one check and keep its result."""
        try:
            async with asyncio.timeout(condition.timeout.total_seconds()):
                await self._check(condition.url, condition.timeout)
        except TimeoutError:
            self.failing[condition.name] = f"no answer within {format_duration(condition.timeout)}"
        except Exception as error:  # noqa: BLE001  drivers raise what they like; whatever it is, the check has failed
            self.failing[condition.name] = self._clean(f"{type(error).__name__}: {error}")
        else:
            if self.failing.pop(condition.name, None) is not None:
                self._held()

    async def _repeat(self, condition: ConditionSettings, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.turn(condition)
            await pause(self._clock, condition.interval, stop)


def with_secrets(
    conditions: Sequence[ConditionSettings], environ: Mapping[str, str] = os.environ
) -> tuple[ConditionSettings, ...]:
    """The conditions with URLs that were written as `env:NAME`."""
    found: list[ConditionSettings] = []
    for one in conditions:
        if one.url.startswith(_ENVIRONMENT):
            variable = one.url.removeprefix(_ENVIRONMENT)
            if not environ.get(variable):
                raise SettingsError(
                    f"condition '{one.name:.60}': the environment variable {variable:.60} is not set"
                )
            found.append(one.with_url(environ[variable]))
        else:
            found.append(one)
    return tuple(found)


# --- checks ----------------------------------------------------------------------------------------------


async def check_url(url: str, timeout: timedelta) -> None:
    """Return if what the URL names is reachable; else raise."""
    scheme = urlsplit(url).scheme
    if scheme == "tcp":
        await _check_tcp(url)
    elif scheme in {"http", "https"}:
        await _check_http(url, timeout)
    else:
        await _check_sql(url, timeout)


async def _check_tcp(url: str) -> None:
    parts = urlsplit(url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _check_http(url: str, timeout: timedelta) -> None:
    import aiohttp  # noqa: PLC0415  takes long, and most set-ups have no such check

    limit = aiohttp.ClientTimeout(total=timeout.total_seconds())
    async with (
        aiohttp.ClientSession(timeout=limit) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        if response.status >= 400:
            raise ConditionFailedError(f"answered with status {response.status}")


async def _check_sql(url: str, timeout: timedelta) -> None:
    try:
        import asyncpg  # noqa: PLC0415  is installed by an extra
    except ImportError:
        raise ConditionFailedError(
            "asyncpg is not installed; install redrive[postgres], or check the port with tcp://HOST:PORT"
        ) from None
    connection = await asyncpg.connect(url, timeout=timeout.total_seconds())
    try:
        await connection.fetchval("SELECT 1")
    finally:
        connection.terminate()
