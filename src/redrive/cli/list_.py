"""`redrive list`: the letters that match a filter."""

from pathlib import Path

import click

from redrive.cli.letter_table import letter_table, plain
from redrive.cli.output import echo_paged, to_json
from redrive.cli.selection import (
    SelectionCommand,
    all_option,
    run_with_store,
    select,
    selection_argument,
    store_options,
)
from redrive.letters import LetterHead
from redrive.settings import Settings
from redrive.stores.base import Page, Store
from redrive.stores.query import Query

_PAGE_SIZE = 1000  # the largest page of a store


@click.command("list", cls=SelectionCommand)
@selection_argument
@all_option
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Maximum number of letters.",
)
@click.option("--cursor", help="Continue after this cursor, which --json prints.")
@store_options
@click.pass_obj
def command(
    path: Path | None,
    words: tuple[str, ...],
    with_closed: bool,  # noqa: FBT001  click passes flags by name
    limit: int,
    cursor: str | None,
    server: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """The newest letters come first; sort:FIELD in the filter changes the order.

    \b
    Examples:
      redrive list
      redrive list state:manual source:orders
      redrive list error:TimeoutError since:2h sort:priority
      redrive list "card declined" --all --json
    """
    selection = select(words)

    async def work(store: Store, _settings: Settings) -> tuple[Page, int, int]:
        query = await selection.open_query(store, with_closed=with_closed)
        page = await _page(store, query, limit, cursor)
        count = await store.count(query)
        closed = 0 if count else await store.count(await selection.query(store))
        return page, count, closed

    page, count, closed = run_with_store(path, server, work)
    if as_json:
        click.echo(to_json({"letters": plain(page.heads), "cursor": page.cursor, "count": count}))
    elif page.heads:
        rest = count - len(page.heads)
        more = f"\n{len(page.heads)} of {count} letters; --limit {count} shows all" if rest > 0 else ""
        echo_paged(letter_table(page.heads) + more)
    elif closed:
        click.echo(f"no open letters match; --all lists {closed} resolved, failed or archived")
    else:
        click.echo("no letters match")


async def _page(store: Store, query: Query, limit: int, cursor: str | None) -> Page:
    """The first `limit` letters after the cursor."""
    heads: list[LetterHead] = []
    while True:
        page = await store.page(query, limit=min(_PAGE_SIZE, limit - len(heads)), cursor=cursor)
        heads += page.heads
        cursor = page.cursor
        if cursor is None or len(heads) >= limit:
            return Page(tuple(heads), cursor)
