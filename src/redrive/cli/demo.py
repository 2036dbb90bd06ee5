"""`redrive demo`: a sample shop with failing consumers.

The first Ctrl-C stops it in order; the second one ends the process.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import click
import msgspec

from redrive.cli.output import to_json
from redrive.cli.running import PORT, on_signal, run
from redrive.demo.run import Demo, Options, write_settings
from redrive.demo.story import Summary
from redrive.demo.view import Lines, Screen, Silent, View, summary_in_words
from redrive.private_files import private_opener


@click.command("demo")
@click.option(
    "--seconds", type=click.IntRange(1), help="Stop after this many seconds; default: run until Ctrl-C."
)
@click.option("--port", type=PORT, default=0, show_default=True, help="HTTP port; 0: any free port.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep all data in this directory, which must be new or empty; default: all data is removed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print only the summary, as JSON.")
def command(seconds: int | None, port: int, data: Path | None, as_json: bool) -> None:  # noqa: FBT001
    """The shop has orders, payments and mail. It uses its own broker and store, with short delays.

    \b
    Examples:
      redrive demo
      redrive demo --seconds 60
      redrive demo --data shop --port 8642
    """
    with _directory(data) as directory:
        options = Options(
            directory=directory, seconds=None if seconds is None else timedelta(seconds=seconds), port=port
        )
        file = write_settings(options)
        if not as_json:
            _say("starting the shop: broker, store, three consumers …")
        summary = _run(options, file, _view(as_json=as_json))
    if summary is None:
        return
    if as_json:
        click.echo(to_json(msgspec.to_builtins(summary)))
    else:
        click.echo(f"\n{summary_in_words(summary)}\n\n{_next(data)}")


def _view(*, as_json: bool) -> View:
    if as_json:
        return Silent()
    return Screen() if sys.stdout.isatty() else Lines(_say)


def _say(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()


@contextmanager
def _directory(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="redrive-demo-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def _run(options: Options, file: Path, view: View) -> Summary | None:
    import logging

    from redrive.watch.logs import configure

    file_name = options.directory / "demo.log"
    with open(file_name, "w", encoding="utf-8", opener=private_opener) as log:
        handler = configure("info", "text", log)  # the screen shows the shop
        try:
            return run(_open(options, file, view))
        finally:
            logging.getLogger().removeHandler(handler)


async def _open(options: Options, file: Path, view: View) -> Summary | None:
    from redrive.clock import SystemClock

    demo = Demo(options, file, view, SystemClock())
    on_signal(demo.stop)
    return await demo.run()


def _next(data: Path | None) -> str:
    if data is None:
        return "Next: 'redrive demo --data shop' keeps the data."
    config = f"redrive --config {data / 'redrive.toml'}"
    return "\n".join(
        (
            "Next:",
            f"  {config} list state:manual",
            f"  {config} show ID",
            f"  {config} groups",
            f"  {config} replay state:manual --dry-run",
            f"  {config} serve",
        )
    )
