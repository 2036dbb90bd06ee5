"""Open a store, select letters by ids or a filter, and ask for confirmation.

Every command that works on letters takes the same positional arguments: letter ids, of which the first 16 characters
are enough, and terms of the filter language. Ids and terms together select the letters with these ids that match the
filter. The store is that of the settings, or that of a running server (`--server URL`).
"""

import asyncio
import getpass
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from redrive.cli.completion import complete_selection
from redrive.clock import SystemClock
from redrive.errors import LetterNotFoundError, QueryError, RedriveError, SettingsError
from redrive.letters import LetterHead, LetterState
from redrive.settings import Settings, StoreOptions, load
from redrive.settings.reading import broker_name
from redrive.stores import open_store
from redrive.stores.base import Store
from redrive.stores.many import pages
from redrive.stores.operations import LARGEST_LIST
from redrive.stores.query import Condition, Op, Query, Sort, parse_query

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
BATCH_SIZE: Final = 500
_ID_CHARS: Final = 26
# An id begins with the time of the failure: its first character is 0. The alphabet has no i, l, o and u.
_ID: Final = re.compile(r"0[0-9a-hjkmnp-tv-z]{15,25}", re.IGNORECASE)
_NEGATED_TERM: Final = re.compile(r"-[A-Za-z][A-Za-z_]+[:<>]")
OPEN_STATES: Final = (LetterState.PENDING, LetterState.PROCESSING, LetterState.MANUAL)
_FIELDS_WITH_STATE: Final = frozenset(
    {"id", "state", "presumed"}
)  # a filter on them also finds closed letters


class ListByDefault(click.Group):
    """A group that lists if no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` in front of options that follow the group."""
        is_named = args and (not args[0].startswith("-") or args[0] in ctx.help_option_names)
        # For shell completion the group offers all of its commands.
        return super().parse_args(ctx, args if is_named or ctx.resilient_parsing else ["list", *args])


class SelectionCommand(click.Command):
    """A command with ids and filter terms. A negated term such as `-tag:vip` is not read as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put negated terms behind all options."""
        negated = [word for word in args if _NEGATED_TERM.match(word)]
        if negated and "--" not in args:
            args = [*(word for word in args if not _NEGATED_TERM.match(word)), "--", *negated]
        return super().parse_args(ctx, args)


def store_options(command: F) -> F:
    """`--server` and `--json`."""
    command = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)
    return click.option(
        "--server",
        metavar="URL",
        help="Use the store of a running server, such as http://127.0.0.1:8642.",
    )(command)


def confirm_option(command: F) -> F:
    """`--yes`, for commands that ask for confirmation."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def selection_argument(command: F) -> F:
    """Letter ids and terms of a filter."""
    argument = click.argument("words", metavar="[ID|FILTER]...", nargs=-1, shell_complete=complete_selection)
    return argument(command)


def all_option(command: F) -> F:
    """`--all`, for commands that show open letters by default."""
    return click.option(
        "--all", "with_closed", is_flag=True, help="Include resolved, failed and archived letters."
    )(command)


def run_with_store(
    path: Path | None,
    server: str | None,
    work: Callable[[Store, Settings], Awaitable[T]],
    *,
    create: bool = False,
) -> T:
    """Open the store, run `work`, close the store."""

    async def run() -> T:
        settings = load(path, os.environ)
        chosen = StoreOptions(url=server) if server else settings.store
        store = await open_store(chosen, create=create, server_key=settings.server.key)
        try:
            return await work(store, settings)
        finally:
            await store.close()

    return asyncio.run(run())


# --- selecting letters -----------------------------------------------------------------------------------


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Letters as the command line names them."""

    ids: tuple[str, ...]
    filter: Query  # the terms without the ids
    text: str  # as it was written

    async def query(self, store: Store) -> Query:
        """The query for these letters; a `LetterNotFoundError` if there is no letter for an id."""
        if not self.ids:
            return self.filter
        return self.filter.narrowed(Condition("id", Op.IS, tuple(await full_ids(store, self.ids))))

    async def open_query(self, store: Store, *, with_closed: bool) -> Query:
        """The same for open letters alone, unless closed ones are asked for."""
        query = await self.query(store)
        if with_closed or any(condition.field in _FIELDS_WITH_STATE for condition in query.conditions):
            return query
        return query.narrowed(Condition("state", Op.IS, OPEN_STATES))

    async def heads(self, store: Store) -> list[LetterHead]:
        """The letters; a `QueryError` if there are too many for one command."""
        found: list[LetterHead] = []
        async for heads in pages(store, await self.query(store)):
            found += heads
            if len(found) > LARGEST_LIST:
                raise QueryError(f"more than {LARGEST_LIST} letters match; narrow the filter")
        return found


def select(words: Sequence[str], sort: Sort | None = None) -> Selection:
    """Read ids and filter terms; `sort` is the order of a filter that has none."""
    ids = tuple(word for word in words if _ID.fullmatch(word))
    terms = " ".join(word for word in words if not _ID.fullmatch(word))
    query = parse_query(terms, now=SystemClock().now(), sort=sort)
    return Selection(ids=ids, filter=query, text=" ".join(words))


def select_some(words: Sequence[str], sort: Sort | None = None) -> Selection:
    """Like `select`, for commands that change letters: a `SettingsError` if every letter would be selected."""
    selection = select(words, sort)
    if not selection.ids and not selection.filter.conditions and not selection.filter.text:
        name = click.get_current_context().command_path
        raise SettingsError(
            f"no letters selected: pass letter ids or a filter, for example: {name} 'source:orders'"
        )
    return selection


async def full_ids(store: Store, ids: Sequence[str]) -> list[str]:
    """The complete ids, each once. The beginning of an id is enough if only one letter has it."""
    found: list[str] = []
    for each in ids:
        if len(each) >= _ID_CHARS:
            found.append(each.lower())
            continue
        if not each:
            raise QueryError("the id is empty; pass at least its first characters")
        query = Query((Condition("id", Op.PREFIX, (each.lower(),)),))
        heads = (await store.page(query, limit=2)).heads
        if not heads:
            raise LetterNotFoundError(f"no letter has an id that begins with '{each}'")
        if len(heads) > 1:
            raise QueryError(f"several letters have ids that begin with '{each}'; pass more characters")
        found.append(heads[0].id)
    found = list(dict.fromkeys(found))
    existing = await heads_of(store, found)
    for each in found:
        if each not in existing:
            raise LetterNotFoundError(f"no letter has the id '{each}'")
    return found


async def heads_of(store: Store, ids: Sequence[str]) -> dict[str, LetterHead]:
    """The current heads of these letters; letters that no longer exist are missing."""
    found: dict[str, LetterHead] = {}
    for part in portions(ids):
        page = await store.page(Query((Condition("id", Op.IS, tuple(part)),)), limit=BATCH_SIZE)
        found.update((head.id, head) for head in page.heads)
    return found


def portions(ids: Sequence[T], size: int = BATCH_SIZE) -> Iterator[Sequence[T]]:
    """Batches for requests to a store."""
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def check_broker_name(name: str) -> None:
    """A `SettingsError` if no broker can have this name."""
    try:
        broker_name(name)
    except SettingsError as error:
        raise SettingsError(f"'{name}' is not a valid broker name: it {error}") from None


# --- confirmation and signals ----------------------------------------------------------------------------


def actor() -> str:
    """The user name for the change log."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "cli"


def check_can_ask(*, yes: bool) -> None:
    """A `SettingsError` if `confirm` would have to ask and there is no terminal."""
    if not yes and (sys.stdin is None or not sys.stdin.isatty()):
        raise SettingsError("confirmation required; pass --yes in non-interactive use")


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation; a `RedriveError` if it is denied."""
    if yes:
        return
    check_can_ask(yes=yes)
    # The handler of the event loop would only note Ctrl-C while `click.confirm` blocks the loop.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        agreed = click.confirm(question, err=True)
    finally:
        signal.signal(signal.SIGINT, before)
    if not agreed:
        raise RedriveError("cancelled; nothing was changed")


def pluralise(count: int, word: str = "letter") -> str:
    """A number and its noun."""
    return f"{count} {word}{'s' if count != 1 else ''}"


def on_interrupt(stop: Callable[[], None], *, quietly: bool = False) -> None:
    """Call `stop` on the first SIGINT or SIGTERM; the second one ends the process."""
    loop = asyncio.get_running_loop()
    both = (signal.SIGINT, signal.SIGTERM)

    def first() -> None:
        for number in both:
            loop.remove_signal_handler(number)
        if not quietly:
            click.echo("stopping; press Ctrl-C again to stop immediately", err=True)
        stop()

    for number in both:
        loop.add_signal_handler(number, first)
