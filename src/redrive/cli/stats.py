"""`redrive stats` and `redrive top`: numbers of letters, once or continuously."""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from redrive.cli.brokers import count_unnamed, unserved
from redrive.cli.letter_table import COLOURS, state_name
from redrive.cli.output import echo_paged, to_json
from redrive.cli.selection import (
    Selection,
    SelectionCommand,
    all_option,
    on_interrupt,
    pluralise,
    run_with_store,
    select,
    selection_argument,
    store_options,
)
from redrive.cli.table import cut
from redrive.clock import SystemClock, pause
from redrive.errors import on_one_line
from redrive.letters import LetterState
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.brokers import known_brokers
from redrive.stores.query import Condition, Op

_BY: Final = ("state", "broker", "source", "error", "kind", "reason")
_TOP_BY: Final = ("state", "source", "error")
_MAX_ROWS: Final = 12  # per table of `stats`; JSON has all rows
_NAME_COLUMNS: Final = 32


@click.command("stats", cls=SelectionCommand)
@selection_argument
@all_option
@store_options
@click.pass_obj
def command(
    path: Path | None,
    words: tuple[str, ...],
    with_closed: bool,  # noqa: FBT001  click passes flags by name
    server: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """The resolution rate counts closed letters, also without --all.

    \b
    Examples:
      redrive stats
      redrive stats since:1d source:orders
      redrive stats --all --json
    """
    selection = select(words)

    async def work(store: Store, _settings: Settings) -> dict[str, Any]:
        return await count_letters(store, selection, with_closed=with_closed)

    found = run_with_store(path, server, work)
    if as_json:
        click.echo(to_json(found))
    else:
        echo_paged("\n".join((*_summary(found), *_tables(found, _BY, _MAX_ROWS))))


@click.command("top", cls=SelectionCommand)
@selection_argument
@all_option
@click.option(
    "--every",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between updates.",
)
@click.option("--count", type=click.IntRange(1), help="Stop after this many updates.")
@click.option("--server", metavar="URL", help="Use the store of a running server.")
@click.pass_obj
def top(
    path: Path | None,
    words: tuple[str, ...],
    with_closed: bool,  # noqa: FBT001  click passes flags by name
    every: float,
    count: int | None,
    server: str | None,
) -> None:
    """Numbers by state, source and error, with changes. Press q or Ctrl-C to quit.

    \b
    Examples:
      redrive top
      redrive top source:orders
      redrive top --every 5 --server http://127.0.0.1:8642
    """
    selection = select(words)

    async def work(store: Store, _settings: Settings) -> None:
        clock, stop = SystemClock(), asyncio.Event()
        on_interrupt(stop.set, quietly=True)
        update, before = 0, None
        with _quit_key(stop.set):
            while not stop.is_set():
                found = await count_letters(store, selection, with_closed=with_closed)
                click.clear()
                click.echo("\n".join(_screen(f"{clock.now():%H:%M:%S} UTC", found, before)))
                update, before = update + 1, found
                if update == count:
                    return
                await pause(clock, timedelta(seconds=every), stop)

    run_with_store(path, server, work)


@contextmanager
def _quit_key(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` when q is pressed, if there is a keyboard."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def read() -> None:
        if os.read(keyboard, 1) in {b"q", b"Q", b""}:
            loop.remove_reader(keyboard)
            stop()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


async def count_letters(store: Store, selection: Selection, *, with_closed: bool) -> dict[str, Any]:
    """The numbers of the selected letters."""
    query = await selection.open_query(store, with_closed=with_closed)
    counts: dict[str, Any] = {by: await store.tally(by, query) for by in _BY}
    counts["total"] = sum(counts["state"].values())
    now = SystemClock().now()
    for name, span in (("last_hour", timedelta(hours=1)), ("last_day", timedelta(days=1))):
        recent = query.narrowed(Condition("created", Op.AT_LEAST, (now - span,)))
        counts[name] = await store.count(recent)
    counts["unconfirmed"] = await store.count(query.narrowed(Condition("unconfirmed", Op.IS, (1,))))
    counts["unnamed"] = count_unnamed(counts["broker"])
    pending = query.narrowed(Condition("state", Op.IS, (LetterState.PENDING,)))
    counts["unserved"] = unserved(await store.tally("broker", pending), await known_brokers(store))
    states = await store.tally("state", await selection.query(store))
    resolved, failed = states.get(LetterState.RESOLVED, 0), states.get(LetterState.FAILED, 0)
    counts["resolution_rate"] = round(resolved / (resolved + failed), 4) if resolved + failed else None
    return counts


def _summary(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{pluralise(found['total'])}, {found['last_hour']} in the last hour, {found['last_day']} in the last day"
    ]
    if found["resolution_rate"] is not None:
        lines.append(
            f"resolution rate {found['resolution_rate']:.1%} (resolved, of resolved and failed letters)"
        )
    if found["unconfirmed"]:
        lines.append(
            f"{pluralise(found['unconfirmed'])} unconfirmed: redriven, but no verdict or dead letter arrived in time; "
            "list them with: redrive list unconfirmed:yes"
        )
    if found["unnamed"]:
        lines.append(
            f"{pluralise(found['unnamed'])} without a broker name; assign them with: redrive set-broker"
        )
    if found["unserved"]:
        brokers = ", ".join(f"{name} {count}" for name, count in sorted(found["unserved"].items()))
        total = pluralise(sum(found["unserved"].values()), "pending letter")
        lines.append(on_one_line(f"{total} of brokers that no server serves: {brokers}"))
    return lines


def _tables(
    found: Mapping[str, Any], by: Sequence[str], max_rows: int, before: Mapping[str, Any] | None = None
) -> list[str]:
    """A table per field; with the numbers before, the changes since."""
    lines: list[str] = []
    for field in by:
        counts = found[field]
        if not counts:
            continue
        lines += ["", click.style(field, bold=True)]
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        shown = len(ranked) if len(ranked) <= max_rows else max_rows - 1
        for name, count in ranked[:shown]:
            change = count - before[field].get(name, 0) if before else 0
            colour = COLOURS.get(LetterState(name)) if field == "state" else None
            label = state_name(name) if field == "state" else on_one_line(name)
            label = click.style(cut(label, _NAME_COLUMNS), fg=colour)
            lines.append(f"  {label} {count:>10}{f'  {change:+d}' if change else ''}")
        if rest := ranked[shown:]:
            others = cut(f"{len(rest)} more", _NAME_COLUMNS)
            lines.append(f"  {others} {sum(count for _, count in rest):>10}")
    return lines


def _screen(time: str, found: Mapping[str, Any], before: Mapping[str, Any] | None) -> list[str]:
    """As many lines as the terminal has; the last one stays free for the cursor."""
    size = shutil.get_terminal_size()
    head = [f"{time}  (q quits)", *(cut(line, size.columns - 1).rstrip() for line in _summary(found))]
    rows = (size.lines - 1 - len(head)) // len(_TOP_BY) - 2  # a table has an empty line and a title
    return [*head, *_tables(found, _TOP_BY, max(1, rows), before)][: size.lines - 1]
