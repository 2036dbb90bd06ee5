"""`redrive groups`: which failures are the same?"""

from pathlib import Path

import click

from redrive.cli.letters import ago, common, plain, query_of, with_store
from redrive.cli.output import as_json
from redrive.cli.table import table
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.operations import Group


@click.command("groups")
@click.argument("filter_words", metavar="[FILTER]...", nargs=-1)
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Groups shown.")
@common
@click.pass_obj
def command(
    path: Path | None,
    filter_words: tuple[str, ...],
    limit: int,
    server: str | None,
    for_programs: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Group dead letters by the cause of their failure, the largest group first.

    \b
    Examples:
      redrive groups
      redrive groups state:manual since:1d
      redrive list group:9730603f8999838d
    """
    query = query_of(filter_words)

    async def work(store: Store, _settings: Settings) -> list[Group]:
        return await store.groups(query, limit=limit)

    found = with_store(path, server, work)
    if for_programs:
        click.echo(as_json(plain(found)))
        return
    if not found:
        click.echo("no letters match")
        return
    rows = [
        [group.group, str(group.count), ", ".join(group.sources), ago(group.first_seen), ago(group.last_seen),
         f"{group.error_type}: {group.error_text}"]
        for group in found
    ]  # fmt: skip
    click.echo(table(("group", "letters", "sources", "first", "last", "error"), rows))
