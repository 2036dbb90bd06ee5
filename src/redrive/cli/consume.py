"""`redrive consume`: run the handlers of a module as a process of its own.

SIGTERM and SIGINT stop in order; a second one ends at once. SIGHUP, or with `--reload` a changed source file, stops in
order and starts the same command anew, with the code as it is then.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import click

from redrive.app import App, load_app
from redrive.cli.running import PORT, logging_options, on_signal, run
from redrive.errors import on_one_line

_LOOK_EVERY: Final = 0.5  # seconds between two looks at the source files


@click.command("consume")
@click.argument("app_name", metavar="MODULE[:APP]")
@click.option("--broker", "broker_url", help="The broker's URL, instead of the app's own.")
@click.option(
    "--metrics-port", type=PORT, help="Serve Prometheus metrics and /health on this port; 0: any free one."
)
@click.option("--reload", "watch_files", is_flag=True, help="Start anew when a source file changes.")
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
    """Run the handlers of a module: consume, retry, dead-letter.

    \b
    Examples:
      redrive consume shop.orders:app
      redrive consume orders --broker amqp://localhost --reload
      redrive consume orders --metrics-port 9100 --log-format json

    MODULE is found where the command runs. Ctrl-C lets running handlers end and gives the rest back.
    """
    from redrive.watch.logs import configure

    configure(log_level, log_format, sys.stderr)
    app = load_app(app_name)
    app.use(path=path, broker=broker_url)
    if run(_consume(app, metrics_port, watch_files=watch_files)):
        click.echo("redrive consume starts anew")
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", "redrive", *sys.argv[1:]])  # noqa: S606  itself, as it was called


async def _consume(app: App, metrics_port: int | None, *, watch_files: bool) -> bool:
    """Consume until a signal, or a changed file; whether to start anew."""
    again = over = False

    def stop() -> None:
        nonlocal again, over
        again, over = False, True
        app.stop()

    def start_anew() -> None:
        nonlocal again
        again = not over  # who was told to end does not begin again
        app.stop()

    on_signal(stop)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, start_anew)
    watching = asyncio.create_task(_changed(start_anew)) if watch_files else None
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
    return again


async def _changed(tell: Callable[[], None]) -> None:
    """Tell when a source file of the user's own modules is newer than when we began."""
    before = _times()
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        now = _times()
        if any(before.get(name, stamp) != stamp for name, stamp in now.items()):
            tell()
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
