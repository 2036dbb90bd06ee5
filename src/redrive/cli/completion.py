"""`redrive completion`, and completion of letter ids and filter terms.

A key press must not take long: sources and ids are read from the store of the settings, and if that does not succeed
within half a second, nothing is offered.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

_SHELLS: Final = ("bash", "zsh", "fish")
_TIMEOUT: Final = 0.5  # seconds
_MAX_ITEMS: Final = 50
# Bash splits words at colons, and filter terms contain one.
_BASH_PREFIX: Final = "COMP_WORDBREAKS=${COMP_WORDBREAKS//:}\n"


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> None:
    """Commands, options, letter ids, and fields, states and sources of filters are completed.

    \b
    Examples:
      redrive completion bash >> ~/.bashrc
      redrive completion zsh >> ~/.zshrc
      redrive completion fish > ~/.config/fish/completions/redrive.fish
    """
    from redrive.cli.root import cli

    kind = get_completion_class(shell)
    if kind is None:  # the choice above has only shells that click supports
        raise click.UsageError(f"no completion for {shell}")
    prefix = _BASH_PREFIX if shell == "bash" else ""
    click.echo(prefix + kind(cli, {}, "redrive", "_REDRIVE_COMPLETE").source().rstrip("\n"))


def complete_selection(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Letter ids and filter terms that begin with what was typed."""
    from redrive.stores.query import FIELDS

    sign, word = ("-", incomplete[1:]) if incomplete.startswith("-") else ("", incomplete)
    name, colon, value = word.partition(":")
    if not colon:
        fields = [
            CompletionItem(f"{sign}{field}:", help=FIELDS[field].help)
            for field in FIELDS
            if field.startswith(word)
        ]
        return fields + (
            [CompletionItem(each) for each in _stored(ctx, "id", word)] if word and not sign else []
        )
    field = FIELDS.get(name)
    if field is None:
        return []
    values = [each.removeprefix("dlq_") for each in field.choices] or _stored(ctx, name, value)
    return [CompletionItem(f"{sign}{name}:{each}") for each in values if each.startswith(value)]


def _stored(ctx: click.Context, field: str, beginning: str) -> list[str]:
    """Values of a field in the store; none if the store cannot be read."""
    try:
        return asyncio.run(asyncio.wait_for(_read_values(ctx, field, beginning), _TIMEOUT))
    except Exception:  # noqa: BLE001  a shell cannot show an error while it completes a word
        return []


async def _read_values(ctx: click.Context, field: str, beginning: str) -> list[str]:
    from redrive.settings import StoreOptions, load
    from redrive.stores import open_store
    from redrive.stores.query import Condition, Op, Query

    path = ctx.find_root().params.get("path")
    settings = load(Path(path) if path else None, os.environ)
    server = ctx.params.get("server")
    chosen = StoreOptions(url=server) if server else settings.store
    store = await open_store(chosen, create=False, server_key=settings.server.key)
    try:
        if field == "id":
            query = Query((Condition("id", Op.PREFIX, (beginning.lower(),)),))
            return [head.id[:16] for head in (await store.page(query, limit=_MAX_ITEMS)).heads]
        return sorted(await store.tally(field))[:_MAX_ITEMS]
    finally:
        await store.close()
