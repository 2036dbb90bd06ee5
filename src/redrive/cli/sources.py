"""The sources and the broker of `provision` and `doctor`.

The command line overrides the application, and the application overrides the settings. `--source` chooses from the
sources of both; an unknown name is a source with defaults, or an error if an application was named.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from redrive.app import App, sources_of
from redrive.cli.running import load_user_app
from redrive.errors import SettingsError, use_instead
from redrive.settings import SourceSettings, load
from redrive.transports.base import Source
from redrive.transports.upkeep import Upkeep, upkeep_of

F = TypeVar("F", bound=Callable[..., Any])


class AdminTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Sources and their broker."""

    sources: tuple[Source, ...]
    broker: Upkeep


def place_options(command: F) -> F:
    """The argument and the options that name sources and broker."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        click.option(
            "--management-url",
            metavar="URL",
            help="RabbitMQ management API; default: the host and user of the broker, port 15672.",
        ),
        click.option(
            "--broker",
            metavar="URL",
            help="The broker, such as amqp://user:password@host:5672/vhost or kafka://host:9092.",
        ),
        click.option(
            "--source", "names", metavar="NAME", multiple=True, help="Only this source; can be repeated."
        ),
        click.argument("app", metavar="[MODULE:APP]", required=False),
    ):
        command = option(command)
    return command


def place_of(
    config: Path | None, app: str | None, names: Sequence[str], broker: str | None, management_url: str | None
) -> AdminTarget:
    """Sources and broker from the command line, the application and the settings."""
    if app is None:
        chosen = App(settings=load(config, os.environ))
    else:
        chosen = load_user_app(app)
        chosen.use(path=config)
    url = broker or chosen.broker_url
    if url is None:
        raise SettingsError(
            "the application has no broker URL; pass --broker amqp://host/vhost or kafka://host"
        )
    # The management URL of the settings belongs to the broker of the settings.
    at = management_url or (chosen.settings.broker.management_url if broker is None else None)
    return AdminTarget(
        sources=_chosen(chosen, names, strict=app is not None),
        broker=upkeep_of(url, at),
    )


def _chosen(app: App, names: Sequence[str], *, strict: bool) -> tuple[Source, ...]:
    known = {source.name: source for source in app.sources()}
    if not names:
        if not known:
            raise SettingsError(
                "no source: pass MODULE:APP or --source NAME, or add [[sources]] to the settings"
            )
        return tuple(known.values())
    for name in names:
        if strict and name not in known:
            raise SettingsError(f"the application has no source '{name}'{use_instead(name, known)}")
    return tuple(
        known.get(name) or sources_of(app.settings, SourceSettings(name=name))
        for name in dict.fromkeys(names)
    )
