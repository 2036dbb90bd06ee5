"""`redrive config`: are the settings right, and what are they?"""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from redrive.rules import format_duration
from redrive.settings import SECTIONS, Settings, load


@click.group("config")
def command() -> None:
    """Check and show the settings.

    \b
    Examples:
      redrive config check
      redrive --config production.toml config check
      REDRIVE_STORE_URL=sqlite:/var/lib/redrive/redrive.db redrive config show
    """


@command.command()
@click.pass_obj
def check(path: Path | None) -> None:
    """Read file and environment, and say what is wrong with them."""
    settings = load(path, os.environ)
    count = f"{len(settings.rules)} rule{'s' if len(settings.rules) != 1 else ''} of your own"
    click.echo(f"settings are right: store {settings.store.url}, {count}")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@click.pass_obj
def show(path: Path | None, as_json: bool) -> None:  # noqa: FBT001  click passes flags by name
    """Show every setting in force, defaults included."""
    settings = load(path, os.environ)
    table = as_table(settings)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(table)).decode())
        return
    for section, values in table.items():
        click.echo(f"[{section}]")
        for name, value in values.items():
            click.echo(f"{'# ' if value is None else ''}{name} = {_toml(value)}")
        click.echo()


def as_table(settings: Settings) -> dict[str, dict[str, Any]]:
    """The settings as plain values, the way a file would hold them."""
    sections = {
        section: {name: _plain(getattr(getattr(settings, section), name)) for name in known}
        for section, (_, known) in SECTIONS.items()
    }
    strategies = {str(kind): str(strategy) for kind, strategy in settings.strategies.items()}
    return {
        **sections,
        "strategies": strategies,
        "rules": {rule.name: str(rule.kind) for rule in settings.rules},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value if isinstance(value, str | int | float | None) else str(value)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(item)}" for name, item in value.items()) + "}"
    return "unset" if value is None else msgspec.json.encode(value).decode()
