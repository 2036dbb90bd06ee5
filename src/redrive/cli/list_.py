"""`redrive list`: which letters are there?"""

from pathlib import Path

import click

from redrive.cli.letters import HEAD_TITLES, common, head_row, plain, query_of, with_store
from redrive.cli.output import as_json
from redrive.cli.table import table
from redrive.settings import Settings
from redrive.stores.base import Page, Store


@click.command("list")
@click.argument("filter_words", metavar="[FILTER]...", nargs=-1)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Letters on a page."
)
@click.option("--cursor", help="Where the last page ended.")
@common
@click.pass_obj
def command(
    path: Path | None,
    filter_words: tuple[str, ...],
    limit: int,
    cursor: str | None,
    server: str | None,
    for_programs: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """List dead letters, the newest first.

    \b
    Examples:
      redrive list
      redrive list state:manual source:orders
      redrive list error:TimeoutError since:2h sort:priority
      redrive list "card declined" --json
    """
    query = query_of(filter_words)

    async def work(store: Store, _settings: Settings) -> tuple[Page, int]:
        return await store.page(query, limit=limit, cursor=cursor), await store.count(query)

    page, count = with_store(path, server, work)
    if for_programs:
        click.echo(as_json({"letters": plain(page.heads), "cursor": page.cursor, "count": count}))
        return
    if not page.heads:
        click.echo("no letters match")
        return
    click.echo(table(HEAD_TITLES, [head_row(head) for head in page.heads]))
    if page.cursor is not None:
        click.echo(f"{len(page.heads)} of {count}; more: --cursor {page.cursor}")
