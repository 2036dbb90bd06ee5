"""What do the commands that deal with letters have in common?

They open the store that is meant, with a filter or ids that name letters, and end in one line if that cannot be. The
store is the one of the settings, or that of a running server (`--server URL`): commands cannot tell them apart.
"""

import asyncio
import getpass
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from redrive.clock import SystemClock
from redrive.errors import LetterNotFoundError, QueryError, SettingsError
from redrive.letters import LetterHead, State
from redrive.rules import format_duration
from redrive.settings import Settings, StoreSettings, load
from redrive.stores import open_store
from redrive.stores.base import Store
from redrive.stores.query import Condition, Op, Query, parse

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_ID_LENGTH = 26
COLOURS = {
    State.PENDING: "yellow",
    State.PROCESSING: "cyan",
    State.MANUAL: "magenta",
    State.RESOLVED: "green",
    State.FAILED: "red",
    State.ARCHIVED: "bright_black",
}


def common(command: F) -> F:
    """The options that all of these commands have."""
    command = click.option("--json", "for_programs", is_flag=True, help="As JSON, for programs.")(command)
    return click.option(
        "--server",
        metavar="URL",
        help="A running server, such as http://127.0.0.1:8642; without it the store itself.",
    )(command)


def with_store(path: Path | None, server: str | None, work: Callable[[Store, Settings], Awaitable[T]]) -> T:
    """Open the store, do the work, close it. Ctrl-C ends the work in order where it listens."""

    async def run() -> T:
        settings = load(path, os.environ)
        chosen = StoreSettings(url=server) if server else settings.store
        store = await open_store(chosen, create=False)
        try:
            return await work(store, settings)
        finally:
            await store.close()

    return asyncio.run(run())


def query_of(words: Sequence[str]) -> Query:
    """The filter, as it was written on the command line."""
    return parse(" ".join(words), now=SystemClock().now())


async def full_ids(store: Store, ids: Sequence[str]) -> list[str]:
    """The letters' whole ids; a beginning is enough where it names one letter."""
    found: list[str] = []
    for each in ids:
        if len(each) == _ID_LENGTH:
            found.append(each)
            continue
        query = Query((Condition("id", Op.PREFIX, (each.lower(),)),))
        heads = (await store.page(query, limit=2)).heads
        if not heads:
            raise LetterNotFoundError(f"no letter has an id that begins with '{each}'")
        if len(heads) > 1:
            raise QueryError(f"several letters have ids that begin with '{each}'; write more of it")
        found.append(heads[0].id)
    return found


async def chosen(store: Store, ids: Sequence[str], where: str | None, *, limit: int = 100_000) -> list[str]:
    """The letters that a command is about: those named, or those that a filter finds."""
    if bool(ids) == bool(where):
        raise SettingsError("name letters by their ids, or give --where FILTER; one of the two")
    if ids:
        return await full_ids(store, ids)
    query, found, cursor = query_of([where or ""]), list[str](), None
    while True:
        page = await store.page(query, limit=1000, cursor=cursor)
        found += [head.id for head in page.heads]
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            return found[:limit]


def actor() -> str:
    """Who sits at the keyboard, for the journal."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "cli"


def ago(at: datetime, now: datetime | None = None) -> str:
    """How long ago, or in how long, in the largest unit that fits."""
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    text = format_duration(timedelta(seconds=_coarse(abs(seconds))))
    return f"{text} ago" if seconds >= 0 else f"in {text}"


def _coarse(seconds: float) -> int:
    for unit in (86_400, 3_600, 60):
        if seconds >= 2 * unit:
            return int(seconds // unit * unit)
    return int(seconds)


def plain(value: Any) -> Any:
    """A head or another value of ours as JSON has it."""
    return msgspec.to_builtins(value)


def head_row(head: LetterHead) -> list[str]:
    """A letter in a table."""
    return [
        head.id[:12],
        click.style(str(head.state).removeprefix("dlq_"), fg=COLOURS[head.state]),
        head.source,
        head.error_type,
        str(head.dlq_retry_count),
        ago(head.last_failed_at),
        head.error_text,
    ]


HEAD_TITLES = ("id", "state", "source", "error", "redrives", "failed", "text")


def on_interrupt(stop: Callable[[], None]) -> None:
    """Ctrl-C ends the work in order; a second one ends at once."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        click.echo("stopping; once more ends at once", err=True)
        stop()

    loop.add_signal_handler(signal.SIGINT, first)
