"""`redrive config`: check and show the settings."""

import os
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from redrive.cli.output import to_json, to_toml
from redrive.errors import SettingsError, on_one_line
from redrive.rules import format_duration
from redrive.settings import (
    LISTS,
    SECTIONS,
    EmbeddedSettings,
    Settings,
    as_written,
    hide_secrets,
    is_reference,
    load,
    load_table,
    resolve,
)

_PATH = re.compile(r"(://[^/]*)/.+")


@click.group("config")
def command() -> None:
    """Settings come from the settings file and from REDRIVE_… environment variables.

    \b
    Examples:
      redrive config check
      redrive --config production.toml config check
      REDRIVE_STORE_URL=sqlite:/var/lib/redrive/redrive.db redrive config show
    """


@command.command()
@click.pass_obj
def check(path: Path | None) -> None:
    """Read the settings file and the environment, and report errors.

    \b
    Examples:
      redrive config check
      redrive --config production.toml config check
    """
    from redrive.watch.alerts.made import check as check_alerts

    settings = load(path, os.environ)
    _check_references(settings)
    check_alerts(settings, os.environ)
    _check_urls(settings)
    count = f"{len(settings.rules)} custom rule{'s' if len(settings.rules) != 1 else ''}"
    click.echo(f"configuration OK (store: {on_one_line(hide_secrets(settings.store.url))}, {count})")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def show(path: Path | None, as_json: bool) -> None:  # noqa: FBT001  click passes flags by name
    """Show all settings, defaults included, in the format of a settings file.

    \b
    Examples:
      redrive config show
      redrive config show --json
      redrive --config production.toml config show > copy.toml
    """
    settings = load(path, os.environ)
    # Only a file can contain these tables; they are shown as they are written there.
    table = load_table(path)
    sections = as_table(settings, as_written(table, os.environ))
    lists = {
        name: [{key: _shown(key, value) for key, value in entry.items()} for entry in table.get(name, [])]
        for name in ("rules", *LISTS, "conventions")
    }
    if as_json:
        for nested in [
            name for name in sections if "." in name
        ]:  # [consume.breaker] is an object within consume
            section, name = nested.split(".")
            sections[section][name] = sections.pop(nested)
        click.echo(to_json({**sections, **lists}, indent=2))
        return
    for section, values in sections.items():
        _show(f"[{section}]", values)
    for name, entries in lists.items():
        for entry in entries:
            _show(f"[[{name}]]", entry)


def _show(heading: str, values: Mapping[str, Any]) -> None:
    click.echo(heading)
    for name, value in values.items():
        click.echo(f"# {name} = unset" if value is None else f"{name} = {to_toml(value)}")
    click.echo()


def _check_references(settings: Settings) -> None:
    """A `SettingsError` if a value given as `env:NAME` or `file:PATH` cannot be read."""
    for section, (_, known) in SECTIONS.items():
        for name, setting in known.items():
            value = getattr(attrgetter(section)(settings), name)
            if setting.is_reference and value is not None:
                try:
                    resolve(value, os.environ)
                except SettingsError as error:
                    raise SettingsError(f"{section}.{name} = '{value:.60}': {error}") from None


def _check_urls(settings: Settings) -> None:
    """A `SettingsError` if the URL of the store or broker is invalid; no connection is opened."""
    from redrive.stores import check_url

    check_url(settings.store)
    if settings.broker.url is not None:
        from redrive.transports import kind_of, open_transport
        from redrive.transports.upkeep import upkeep_of

        open_transport(settings.broker.url)
        if kind_of(settings.broker.url) != "memory":
            upkeep_of(settings.broker.url, settings.broker.management_url)


def as_table(
    settings: Settings, written: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, dict[str, Any]]:
    """The settings as plain values in the format of a file, without secrets and without rules.

    `written` are the sections of file and environment: a reference such as `env:NAME` is shown as it is written.
    """
    sections: dict[str, dict[str, Any]] = {}
    for section, (_, known) in SECTIONS.items():
        values = sections[section] = {
            name: _plain(getattr(attrgetter(section)(settings), name)) for name in known
        }
        for name in (name for name, setting in known.items() if setting.is_reference):
            reference = written.get(section, {}).get(name)
            if isinstance(reference, str) and is_reference(reference):
                values[name] = reference
            elif isinstance(values[name], str):
                values[name] = hide_secrets(values[name])
    login = sections["embedded"]["anonymous_login_pass"]
    if login != EmbeddedSettings().anonymous_login_pass and not is_reference(login):
        sections["embedded"]["anonymous_login_pass"] = "…"  # noqa: S105  replaces a password
    key = sections["server"]["key"]
    if key is not None and not is_reference(key):
        sections["server"]["key"] = "…"
    strategies = {str(kind): str(strategy) for kind, strategy in settings.strategies.items()}
    return {**sections, "strategies": strategies}


def _shown(key: str, value: Any) -> Any:
    """A value of a table without its secrets; the path of a webhook URL is one."""
    if isinstance(value, str) and is_reference(value):
        return value
    if key in {"password", "secret"}:
        return "…"
    if key == "url" and isinstance(value, str):
        return _PATH.sub(r"\1/…", hide_secrets(value))
    return value.isoformat() if isinstance(value, datetime) else value


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    return value if isinstance(value, str | int | float | None) else str(value)
