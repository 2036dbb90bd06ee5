"""`redrive serve`: everything in one process.

SIGTERM and SIGINT stop in order; a second one ends at once.
"""

import os
import sys
from pathlib import Path
from typing import Literal

import click
import msgspec

from redrive.cli.running import PORT, logging_options, on_signal, run
from redrive.errors import on_one_line
from redrive.settings import Settings, load


@click.command("serve")
@click.option(
    "--data",
    type=click.Path(file_okay=False),
    help="The data directory, instead of server.data_directory (here).",
)
@click.option("--broker", "broker_url", metavar="URL", help="The broker; without one the embedded broker.")
@click.option("--port", type=PORT, help="The port for HTTP, instead of server.port (8642); 0: any free one.")
@click.option("--broker-port", type=PORT, help="The embedded broker's port for AMQP (5672); 0: any free one.")
@click.option(
    "--management-port", type=PORT, help="The embedded broker's management port (15672); 0: any free one."
)
@click.option(
    "--workers",
    type=click.IntRange(0, 1000),
    help="How many workers send letters back, instead of recover.workers.",
)
@logging_options
@click.pass_obj
def command(
    path: Path | None,
    data: str | None,
    broker_url: str | None,
    port: int | None,
    broker_port: int | None,
    management_port: int | None,
    workers: int | None,
    log_level: str,
    log_format: Literal["text", "json"],
) -> None:
    """Run everything: collect dead letters, send them back, answer over HTTP.

    \b
    Examples:
      redrive serve
      redrive serve --data /var/lib/redrive --broker amqp://user:password@rabbit/shop
      redrive --config production.toml serve --workers 4 --log-format json

    Without a broker it starts one of its own. Ctrl-C stops in order.
    """
    from redrive.watch.logs import configure

    configure(log_level, log_format, sys.stderr)
    settings = _with(
        load(path, os.environ),
        server={"data_directory": data, "port": port},
        embedded={"port": broker_port, "management_port": management_port},
        broker={"url": broker_url},
        recover={"workers": workers},
    )
    run(_serve(settings))


def _with(settings: Settings, **sections: dict[str, object]) -> Settings:
    """The settings, with what the command line says instead."""
    for name, values in sections.items():
        said = {key: value for key, value in values.items() if value is not None}
        section = msgspec.structs.replace(getattr(settings, name), **said)
        settings = msgspec.structs.replace(settings, **{name: section})
    return settings


async def _serve(settings: Settings) -> None:
    from redrive.app import App
    from redrive.clock import SystemClock
    from redrive.serve import Places, Server

    server = Server(settings, SystemClock(), App(settings=settings).sources())

    def ready(places: Places) -> None:
        broker = places.broker + (f" ({places.management})" if places.management else "")
        click.echo(
            on_one_line(f"redrive serve is ready: broker {broker}, http {places.http}, store {places.store}")
        )
        sys.stdout.flush()

    on_signal(server.stop)
    await server.run(ready)
