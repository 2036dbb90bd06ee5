"""Which sources on which broker are meant?

Both `provision` and `doctor` ask this. The rule: what stands on the command line wins over the application, and the
application over the settings. `--source` picks from the sources that those two know; a name that nobody knows is a
source with defaults, unless an application was named: then it is a mistake.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from redrive.app import App, load_app, sources_of
from redrive.errors import SettingsError, use_instead
from redrive.settings import SourceSettings, load
from redrive.transports.base import Source
from redrive.transports.upkeep import Upkeep, upkeep_of

F = TypeVar("F", bound=Callable[..., Any])


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Sources, and where they are."""

    sources: tuple[Source, ...]
    broker: Upkeep


def place_options(command: F) -> F:
    """The argument and the options by which sources and broker are named."""
    for option in (
        click.option("--json", "for_programs", is_flag=True, help="As JSON, for programs."),
        click.option(
            "--management-url",
            metavar="URL",
            help="The management API of a RabbitMQ; without it the broker's host, port 15672, same user.",
        ),
        click.option(
            "--broker",
            metavar="URL",
            help="The broker: amqp://user:password@host:5672/vhost or kafka://host:9092.",
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
) -> Place:
    """What is meant; a `SettingsError` says what is missing."""
    if app is None:
        meant = App(settings=load(config, os.environ))
    else:
        meant = load_app(app)
        meant.use(path=config)
    url = broker or meant.broker_url
    if url is None:
        raise SettingsError(
            "the application has no broker with a URL; give --broker amqp://host/vhost or kafka://host"
        )
    # What the settings say of the management API, they say of their own broker.
    at = management_url or (meant.settings.broker.management_url if broker is None else None)
    return Place(
        sources=_chosen(meant, names, strict=app is not None),
        broker=upkeep_of(url, at),
    )


def _chosen(app: App, names: Sequence[str], *, strict: bool) -> tuple[Source, ...]:
    known = {source.name: source for source in app.sources()}
    if not names:
        if not known:
            raise SettingsError(
                "no source: name an application as MODULE:APP, give --source NAME, or write [[sources]] in the settings"
            )
        return tuple(known.values())
    for name in names:
        if strict and name not in known:
            raise SettingsError(f"the application has no source '{name}'{use_instead(name, known)}")
    return tuple(
        known.get(name) or sources_of(app.settings, SourceSettings(name=name))
        for name in dict.fromkeys(names)
    )
