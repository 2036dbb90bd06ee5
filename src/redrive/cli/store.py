"""`redrive store`: is the store whole, and what is in it?"""

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from redrive.cli.output import as_json
from redrive.errors import StoreDamagedError, on_one_line
from redrive.letters import LetterState
from redrive.settings import hide_secrets, load
from redrive.stores import open_store


@click.group("store")
def command() -> None:
    """Look after the dead-letter store.

    \b
    Examples:
      redrive store check
      REDRIVE_STORE_URL=sqlite:/var/lib/redrive/redrive.db redrive store check --json
    """


@command.command()
@click.option("--json", "for_programs", is_flag=True, help="As JSON, for programs.")
@click.pass_obj
def check(path: Path | None, for_programs: bool) -> None:  # noqa: FBT001  click passes flags by name
    """Open the store, look at all of it for damage, and count what is there.

    \b
    Examples:
      redrive store check
      REDRIVE_STORE_URL=sqlite:/var/lib/redrive/redrive.db redrive store check --json
    """
    answer = asyncio.run(_check(path))
    if for_programs:
        click.echo(as_json(answer))
        return
    click.echo(
        f"{on_one_line(answer['url'])} is whole: {answer['letters']} letter{'s' if answer['letters'] != 1 else ''}"
    )
    for state, count in answer["states"].items():
        click.echo(f"  {state:<15} {count:>10}")


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
