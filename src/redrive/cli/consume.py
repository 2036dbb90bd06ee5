"""`redrive consume`: run the handlers of a module.

The first SIGTERM or SIGINT stops it in order; the second one ends the process. SIGHUP, or with `--reload` a changed
source file, stops it in order and starts the same command again, with the current code.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import click

from redrive.app import App
from redrive.cli.running import PORT, load_user_app, logging_options, on_signal, run
from redrive.errors import on_one_line

_CHECK_INTERVAL: Final = 0.5  # seconds between two checks of the source files


@click.command("consume")
@click.argument("app_name", metavar="MODULE[:APP]")
@click.option("--broker", "broker_url", metavar="URL", help="The broker; default: the broker of the app.")
@click.option(
    "--metrics-port", type=PORT, help="Serve Prometheus metrics and /health on this port; 0: any free port."
)
@click.option("--reload", "watch_files", is_flag=True, help="Restart when a source file changes.")
@logging_options
@click.pass_obj
def command(
    path: Path | None,
    app_name: str,
    broker_url: str | None,
    metrics_port: int | None,
    watch_files: bool,  # noqa: FBT001  click passes flags by name
    log_level: str,
    log_format: Literal["text", "json"],
) -> None:
    """MODULE is imported from the current directory; APP is the name of its App, by default app.

    \b
    Examples:
      redrive consume shop.orders:app
      redrive consume orders --broker amqp://localhost --reload
      redrive consume orders --metrics-port 9100 --log-format json

    Ctrl-C waits for running handlers and releases the other messages to the broker.
    """
    from redrive.watch.logs import configure

    configure(log_level, log_format, sys.stderr)
    app = load_user_app(app_name)
    app.use(path=path, broker=broker_url)
    if run(_consume(app, metrics_port, watch_files=watch_files)):
        click.echo("redrive consume: restarting")
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", "redrive", *sys.argv[1:]])  # noqa: S606


async def _consume(app: App, metrics_port: int | None, *, watch_files: bool) -> bool:
    """Consume until a signal or a changed file; return whether to restart."""
    restart = stopped = False

    def stop() -> None:
        nonlocal restart, stopped
        restart, stopped = False, True
        app.stop()

    def stop_and_restart() -> None:
        nonlocal restart
        restart = not stopped
        app.stop()

    on_signal(stop)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, stop_and_restart)
    watching = asyncio.create_task(_changed(stop_and_restart)) if watch_files else None
    server = None
    try:
        if metrics_port is not None:
            from redrive.watch.metrics import serve_metrics

            server = serve_metrics(metrics_port, registry=app.registry, health=app.health)
            click.echo(f"metrics on {server.url}")
        names = ", ".join(
            f"{entry.source.name} ({entry.options.concurrency} at a time)" for entry in app.subscriptions()
        )

        def ready() -> None:
            click.echo(f"redrive consume: {on_one_line(names)}; Ctrl-C stops")
            sys.stdout.flush()

        await app.run(ready)
    finally:
        if watching is not None:
            watching.cancel()
        if server is not None:
            server.close()
    return restart


async def _changed(report: Callable[[], None]) -> None:
    """Call `report` when a source file of a user module has changed since the start."""
    before = _times()
    while True:
        await asyncio.sleep(_CHECK_INTERVAL)
        now = _times()
        if any(before.get(name, stamp) != stamp for name, stamp in now.items()):
            report()
            return
        before = {**now, **before}


def _times() -> dict[str, int]:
    here = str(Path.cwd())
    found: dict[str, int] = {}
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if name and name.startswith(here) and "site-packages" not in name:
            try:
                found[name] = os.stat(name).st_mtime_ns  # noqa: PTH116  once per file and half second
            except OSError:
                continue
    return found
