"""`redrive store`: check the integrity of the store."""

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from redrive.cli.letter_table import state_name
from redrive.cli.output import to_json
from redrive.cli.selection import pluralise
from redrive.errors import StoreDamagedError, on_one_line
from redrive.letters import LetterState
from redrive.settings import hide_secrets, load
from redrive.stores import open_store


@click.group("store")
def command() -> None:
    """The store is that of the settings.

    \b
    Examples:
      redrive store check
      REDRIVE_STORE_URL=sqlite:/var/lib/redrive/redrive.db redrive store check --json
    """


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def check(path: Path | None, as_json: bool) -> None:  # noqa: FBT001  click passes flags by name
    """Check the integrity of the whole store, and count its letters by state.

    \b
    Examples:
      redrive store check
      REDRIVE_STORE_URL=sqlite:/var/lib/redrive/redrive.db redrive store check --json
    """
    answer = asyncio.run(_check(path))
    if as_json:
        click.echo(to_json(answer))
        return
    click.echo(f"{on_one_line(answer['url'])}: no damage found, {pluralise(answer['letters'])}")
    for state, count in answer["states"].items():
        click.echo(f"  {state_name(state):<15} {count:>10}")


async def _check(path: Path | None) -> dict[str, Any]:
    settings = load(path, os.environ)
    store = await open_store(settings.store, create=False, server_key=settings.server.key)
    url = hide_secrets(settings.store.url)
    try:
        problem = await store.damage()
        if problem is not None:
            raise StoreDamagedError(f"{url} is damaged ({problem}); restore it from a backup")
        counts = await store.tally("state")
        states = {str(state): counts.get(state, 0) for state in LetterState}
        return {"url": url, "letters": sum(states.values()), "states": states}
    finally:
        await store.close()
