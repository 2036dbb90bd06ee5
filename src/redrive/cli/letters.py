"""What do the commands that deal with letters have in common?

They open the store that is meant, with a filter or ids that name letters, and end in one line if that cannot be. The
store is the one of the settings, or that of a running server (`--server URL`): commands cannot tell them apart.
"""

import asyncio
import getpass
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from redrive.cli.table import Cell, Coloured
from redrive.clock import SystemClock
from redrive.errors import LetterNotFoundError, QueryError, RedriveError, SettingsError
from redrive.letters import LetterHead, LetterState
from redrive.rules import format_duration
from redrive.settings import Settings, StoreOptions, load
from redrive.settings.reading import broker_name
from redrive.stores import open_store
from redrive.stores.base import Store
from redrive.stores.many import pages
from redrive.stores.operations import LARGEST_LIST
from redrive.stores.query import Condition, Op, Query, Sort, parse_query

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
BATCH: Final = 500
_ID_LENGTH: Final = 26
# Ten characters are the time of death, the rest is a hash: letters that died together differ from the eleventh on.
_ID_SHOWN: Final = 16
COLOURS: Final = {
    LetterState.PENDING: "yellow",
    LetterState.PROCESSING: "cyan",
    LetterState.MANUAL: "magenta",
    LetterState.RESOLVED: "green",
    LetterState.FAILED: "red",
    LetterState.ARCHIVED: "bright_black",
}
OPEN_STATES: Final = (LetterState.PENDING, LetterState.PROCESSING, LetterState.MANUAL)


class ListByDefault(click.Group):
    """A group that lists if no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` in front of options that follow the group."""
        is_named = args and (not args[0].startswith("-") or args[0] in ctx.help_option_names)
        # A shell that completes a command line gets all commands.
        return super().parse_args(ctx, args if is_named or ctx.resilient_parsing else ["list", *args])


def common(command: F) -> F:
    """The options that all of these commands have."""
    command = click.option("--json", "for_programs", is_flag=True, help="As JSON, for programs.")(command)
    return click.option(
        "--server",
        metavar="URL",
        help="A running server, such as http://127.0.0.1:8642; without it the store itself.",
    )(command)


def asking(command: F) -> F:
    """`--yes`, for commands that ask first."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def which(command: F) -> F:
    """Letters by their ids or by a filter."""
    option = click.option("--where", metavar="FILTER", help="All letters that match, instead of ids.")
    return click.argument("ids", metavar="[ID]...", nargs=-1)(option(command))


def with_store(
    path: Path | None,
    server: str | None,
    work: Callable[[Store, Settings], Awaitable[T]],
    *,
    create: bool = False,
) -> T:
    """Open the store, do the work, close it. Ctrl-C ends the work in order where it listens."""

    async def run() -> T:
        settings = load(path, os.environ)
        chosen = StoreOptions(url=server) if server else settings.store
        store = await open_store(chosen, create=create, server_key=settings.server.key)
        try:
            return await work(store, settings)
        finally:
            await store.close()

    return asyncio.run(run())


# --- which letters ---------------------------------------------------------------------------------------


def query_of(words: Sequence[str], sort: Sort | None = None) -> Query:
    """The filter, as it was written on the command line; `sort` is the order of one that names none."""
    return parse_query(" ".join(words), now=SystemClock().now(), sort=sort)


async def full_ids(store: Store, ids: Sequence[str]) -> list[str]:
    """The letters' whole ids, each once; a beginning is enough where it names one letter."""
    found: list[str] = []
    for each in ids:
        if len(each) >= _ID_LENGTH:
            found.append(each.lower())
            continue
        if not each:
            raise QueryError("an id is empty; write at least its beginning")
        query = Query((Condition("id", Op.PREFIX, (each.lower(),)),))
        heads = (await store.page(query, limit=2)).heads
        if not heads:
            raise LetterNotFoundError(f"no letter has an id that begins with '{each}'")
        if len(heads) > 1:
            raise QueryError(f"several letters have ids that begin with '{each}'; write more of it")
        found.append(heads[0].id)
    found = list(dict.fromkeys(found))
    there = await heads_of(store, found)
    for each in found:
        if each not in there:
            raise LetterNotFoundError(f"no letter has the id '{each}'")
    return found


async def heads_of(store: Store, ids: Sequence[str]) -> dict[str, LetterHead]:
    """The letters as they stand now; those that are gone are left out."""
    found: dict[str, LetterHead] = {}
    for part in portions(ids):
        page = await store.page(Query((Condition("id", Op.IS, tuple(part)),)), limit=BATCH)
        found.update((head.id, head) for head in page.heads)
    return found


async def chosen(store: Store, ids: Sequence[str], where: str | None) -> list[LetterHead]:
    """The letters that a command is about: those named, or those that a filter finds."""
    if bool(ids) == bool(where):
        raise SettingsError("name letters by their ids, or give --where FILTER; one of the two")
    if ids:
        whole = await full_ids(store, ids)
        there = await heads_of(store, whole)
        return [there[each] for each in whole if each in there]
    found: list[LetterHead] = []
    async for heads in pages(store, query_of([where or ""])):
        found += heads
        if len(found) > LARGEST_LIST:
            raise QueryError(f"more than {LARGEST_LIST} letters match; narrow the filter")
    return found


def portions(ids: Sequence[T], size: int = BATCH) -> Iterator[Sequence[T]]:
    """As many as a store is asked about at a time."""
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def check_broker_name(name: str) -> None:
    """A `SettingsError` if no broker can have this name."""
    try:
        broker_name(name)
    except SettingsError as error:
        raise SettingsError(f"'{name}' is not a broker's name: it {error}") from None


# --- people ----------------------------------------------------------------------------------------------


def actor() -> str:
    """Who sits at the keyboard, for the journal."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "cli"


def check_can_ask(*, yes: bool) -> None:
    """A `SettingsError` if the question of `ask_first` could not be answered."""
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise SettingsError("this asks first; add --yes where nobody can answer")


def ask_first(question: str, *, yes: bool) -> None:
    """Go on only if somebody says so."""
    if yes:
        return
    check_can_ask(yes=yes)
    # The event loop would note Ctrl-C and go on waiting for the answer.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        agreed = click.confirm(question, err=True)
    finally:
        signal.signal(signal.SIGINT, before)
    if not agreed:
        raise RedriveError("nothing was changed")


def counted(count: int, word: str = "letter") -> str:
    """A number and its word."""
    return f"{count} {word}{'s' if count != 1 else ''}"


def on_interrupt(stop: Callable[[], None], *, quietly: bool = False) -> None:
    """Ctrl-C and SIGTERM end the work in order; a second one ends at once."""
    loop = asyncio.get_running_loop()
    both = (signal.SIGINT, signal.SIGTERM)

    def first() -> None:
        for number in both:
            loop.remove_signal_handler(number)
        if not quietly:
            click.echo("stopping; once more ends at once", err=True)
        stop()

    for number in both:
        loop.add_signal_handler(number, first)


# --- how letters look ------------------------------------------------------------------------------------


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


def state_text(head: LetterHead) -> str:
    """The state without its prefix, and what makes it uncertain."""
    state = str(head.state).removeprefix("dlq_")
    return f"{state} (unconfirmed)" if head.unconfirmed else f"{state} (presumed)" if head.presumed else state


def source_text(head: LetterHead) -> str:
    """The source, and the consumer group where there is one."""
    return f"{head.source} (group {head.consumer_group})" if head.consumer_group else head.source


def head_row(head: LetterHead) -> list[Cell]:
    """A letter in a table."""
    return [
        head.id[:_ID_SHOWN],
        Coloured(state_text(head), COLOURS[head.state]),
        head.broker,
        source_text(head),
        head.error_type,
        str(head.dlq_retry_count),
        ago(head.last_failed_at),
        head.error_text,
    ]


HEAD_TITLES: Final = ("id", "state", "broker", "source", "error", "redrives", "failed", "text")
