"""`redrive stats` and `redrive top`: how many letters are where, once or live?"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from redrive.cli.brokers import count_unnamed, unserved
from redrive.cli.letters import COLOURS, common, counted, on_interrupt, query_of, with_store
from redrive.cli.output import as_json
from redrive.cli.table import cut
from redrive.clock import SystemClock, pause
from redrive.errors import on_one_line
from redrive.letters import LetterState
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.brokers import known_brokers
from redrive.stores.query import Condition, Op, Query

_BY: Final = ("state", "broker", "source", "error", "kind", "reason")
_MOST_SHOWN: Final = 12  # rows for people; programs get all


@click.command("stats")
@click.argument("filter_words", metavar="[FILTER]...", nargs=-1)
@common
@click.pass_obj
def command(
    path: Path | None,
    filter_words: tuple[str, ...],
    server: str | None,
    for_programs: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Count dead letters by state, broker, source, error, kind and reason.

    \b
    Examples:
      redrive stats
      redrive stats since:1d source:orders
      redrive stats --json
    """

    async def work(store: Store, _settings: Settings) -> dict[str, Any]:
        return await figures(store, query_of(filter_words))

    found = with_store(path, server, work)
    click.echo(as_json(found) if for_programs else as_text(found))


@click.command("top")
@click.option(
    "--every", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds between looks."
)
@click.option("--times", type=click.IntRange(1), help="End after so many looks.")
@click.option("--server", metavar="URL", help="A running server; without it the store itself.")
@click.pass_obj
def top(path: Path | None, every: float, times: int | None, server: str | None) -> None:
    """Watch the figures change, until Ctrl-C.

    \b
    Examples:
      redrive top
      redrive top --every 5 --server http://127.0.0.1:8642
    """

    async def work(store: Store, _settings: Settings) -> None:
        clock, stop = SystemClock(), asyncio.Event()
        on_interrupt(stop.set, quietly=True)
        look, before = 0, None
        while not stop.is_set():
            found = await figures(store, Query())
            click.clear()
            click.echo(f"{clock.now():%H:%M:%S} UTC")
            click.echo(as_text(found, before))
            look, before = look + 1, found
            if look == times:
                return
            await pause(clock, timedelta(seconds=every), stop)

    with_store(path, server, work)


async def figures(store: Store, query: Query) -> dict[str, Any]:
    """The figures of the letters that match."""
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
    resolved, over = counts["state"].get(LetterState.RESOLVED, 0), counts["state"].get(LetterState.FAILED, 0)
    counts["resolution_rate"] = round(resolved / (resolved + over), 4) if resolved + over else None
    return counts


def as_text(found: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> str:
    """The figures for people; with the figures before, what has changed."""
    lines = [
        f"{counted(found['total'])}, {found['last_hour']} in the last hour, {found['last_day']} in the last day"
    ]
    if found["resolution_rate"] is not None:
        lines.append(f"{found['resolution_rate']:.1%} of those that are over were resolved")
    if found["unconfirmed"]:
        lines.append(
            f"{counted(found['unconfirmed'])} unconfirmed: redriven, and neither a verdict nor a dead letter came "
            "in time; see them with: redrive list unconfirmed:yes"
        )
    if found["unnamed"]:
        lines.append(
            f"{counted(found['unnamed'])} whose broker is not recorded; assign them with: redrive set-broker"
        )
    if found["unserved"]:
        brokers = ", ".join(f"{name} {count}" for name, count in sorted(found["unserved"].items()))
        total = counted(sum(found["unserved"].values()), "pending letter")
        lines.append(on_one_line(f"{total} of brokers that no server serves: {brokers}"))
    for by in _BY:
        counts = found[by]
        if not counts:
            continue
        lines += ["", click.style(by, bold=True)]
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        for name, count in ranked[:_MOST_SHOWN]:
            change = count - before[by].get(name, 0) if before else 0
            colour = COLOURS.get(LetterState(name)) if by == "state" else None
            label = click.style(cut(on_one_line(name), 32), fg=colour)
            lines.append(f"  {label} {count:>10}{f'  {change:+d}' if change else ''}")
        if rest := ranked[_MOST_SHOWN:]:
            lines.append(f"  {f'{len(rest)} more':<32} {sum(count for _, count in rest):>10}")
    return "\n".join(lines)
