"""`redrive serve`: the server.

The first SIGTERM or SIGINT stops it in order; the second one ends the process.
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
    help="The data directory; default: server.data_directory, or the current directory.",
)
@click.option(
    "--broker", "broker_url", metavar="URL", help="The broker; default: broker.url, or the embedded broker."
)
@click.option("--port", type=PORT, help="HTTP port; default: server.port (8642); 0: any free port.")
@click.option("--broker-port", type=PORT, help="AMQP port of the embedded broker (5672); 0: any free port.")
@click.option(
    "--management-port", type=PORT, help="Management port of the embedded broker (15672); 0: any free port."
)
@click.option(
    "--workers",
    type=click.IntRange(0, 1000),
    help="Number of workers that redrive letters; default: recover.workers.",
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
    """Without a broker in the settings, the server starts the embedded broker. Ctrl-C stops it in order.

    \b
    Examples:
      redrive serve
      redrive serve --data /var/lib/redrive --broker amqp://user:password@rabbit/shop
      redrive --config production.toml serve --workers 4 --log-format json
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
    """The settings, overridden by options of the command line."""
    for name, values in sections.items():
        given = {key: value for key, value in values.items() if value is not None}
        section = msgspec.structs.replace(getattr(settings, name), **given)
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
