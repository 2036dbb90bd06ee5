"""Progress of long commands on standard error: a bar on a terminal, lines in a pipe, nothing with `--json`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import click

from redrive.clock import SystemClock
from redrive.errors import on_one_line

_LINE_INTERVAL: Final = timedelta(seconds=2)
Show = Callable[[int, str, str], None]  # number done, phase, detail


@contextmanager
def progress(total: int | None, *, quiet: bool, done: int = 0) -> Iterator[Show]:
    """A function to call at each step; `total` is None if it is unknown."""
    if quiet:
        yield lambda _done, _what, _more: None
    elif sys.stderr.isatty():
        with _bar(total, done) as show:
            yield show
    else:
        yield _lines(total)


def _lines(total: int | None) -> Show:
    clock = SystemClock()
    last: tuple[timedelta, str] | None = None

    def show(done: int, what: str, more: str) -> None:
        nonlocal last
        now = clock.monotonic()
        if last is None or what != last[1] or done == total or now - last[0] >= _LINE_INTERVAL:
            last = (now, what)
            count = f"{done}" if total is None else f"{done} of {total}"
            click.echo(on_one_line(f"{what}: {count}{f' ({more})' if more else ''}"), err=True)

    return show


@contextmanager
def _bar(total: int | None, begun: int) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[more]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, completed=begun, rate="", more="")

        def show(done: int, what: str, more: str) -> None:
            speed = bar.tasks[0].speed
            bar.update(
                task, completed=done, description=what, rate=f"{speed:.0f}/s" if speed else "", more=more
            )

        yield show
