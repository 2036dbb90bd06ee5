"""`redrive demo`: a small shop that fails in every way there is.

Ctrl-C closes it in order; a second one ends at once.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import click
import msgspec

from redrive.cli.output import as_json
from redrive.cli.running import PORT, on_signal, run
from redrive.demo.run import Demo, Options, write_settings
from redrive.demo.story import Summary
from redrive.demo.view import Lines, Screen, Silent, View, summary_in_words
from redrive.private_files import private_opener


@click.command("demo")
@click.option(
    "--seconds", type=click.IntRange(1), help="Close the shop after this time; without it Ctrl-C does."
)
@click.option("--port", type=PORT, default=0, show_default=True, help="The port for HTTP; 0: any free one.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep everything in this directory, which has to be empty or new; without it nothing is left.",
)
@click.option("--json", "for_programs", is_flag=True, help="Only the summary, as JSON.")
def command(seconds: int | None, port: int, data: Path | None, for_programs: bool) -> None:  # noqa: FBT001
    """A small shop with orders, payments and mail, in which everything goes wrong that can.

    \b
    Examples:
      redrive demo
      redrive demo --seconds 60
      redrive demo --data shop --port 8642

    It brings its own broker and store, and touches nothing else. All waits are short.
    """
    with _directory(data) as directory:
        options = Options(
            directory=directory, seconds=None if seconds is None else timedelta(seconds=seconds), port=port
        )
        file = write_settings(options)
        if not for_programs:
            _say("The shop is opened: broker, store, three consumers …")
        summary = _run(options, file, _view(for_programs=for_programs))
    if summary is None:
        return
    if for_programs:
        click.echo(as_json(msgspec.to_builtins(summary)))
    else:
        click.echo(f"\n{summary_in_words(summary)}\n\n{_next(data)}")


def _view(*, for_programs: bool) -> View:
    if for_programs:
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
        handler = configure("info", "text", log)  # the screen is taken
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
        return "Try next: 'redrive demo --data shop' keeps all of it, to be looked at afterwards."
    config = f"redrive --config {data / 'redrive.toml'}"
    return "\n".join(
        (
            "Try next:",
            f"  {config} list state:manual",
            f"  {config} show ID",
            f"  {config} groups",
            f"  {config} replay --where state:manual --dry-run",
            f"  {config} serve",
        )
    )
