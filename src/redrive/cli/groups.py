"""`redrive groups`: letters grouped by the cause of their failure."""

from pathlib import Path

import click

from redrive.cli.letter_table import plain, relative_time
from redrive.cli.output import echo_paged, to_json
from redrive.cli.selection import (
    SelectionCommand,
    all_option,
    run_with_store,
    select,
    selection_argument,
    store_options,
)
from redrive.cli.table import table
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.operations import Group


@click.command("groups", cls=SelectionCommand)
@selection_argument
@all_option
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of groups."
)
@store_options
@click.pass_obj
def command(
    path: Path | None,
    words: tuple[str, ...],
    with_closed: bool,  # noqa: FBT001  click passes flags by name
    limit: int,
    server: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """A group has one error type, code location and normalised text. The largest group comes first.

    \b
    Examples:
      redrive groups
      redrive groups state:manual since:1d
      redrive list group:9730603f8999838d
    """
    selection = select(words)

    async def work(store: Store, _settings: Settings) -> list[Group]:
        return await store.groups(await selection.open_query(store, with_closed=with_closed), limit=limit)

    found = run_with_store(path, server, work)
    if as_json:
        click.echo(to_json(plain(found)))
        return
    if not found:
        click.echo("no letters match" if with_closed else "no open letters match")
        return
    rows = [
        [group.group, str(group.count), ", ".join(group.sources), relative_time(group.last_seen),
         f"{group.error_type}: {group.error_text}"]
        for group in found
    ]  # fmt: skip
    echo_paged(table(("group", "letters", "sources", "last", "error"), rows))
