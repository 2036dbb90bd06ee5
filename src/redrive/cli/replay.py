"""`redrive replay` and `redrive operations`: send letters back, in the open."""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from redrive.cli.letters import (
    HEAD_TITLES,
    actor,
    ago,
    common,
    full_ids,
    head_row,
    on_interrupt,
    plain,
    query_of,
    with_store,
)
from redrive.cli.output import as_json
from redrive.cli.table import table
from redrive.clock import SystemClock
from redrive.errors import SettingsError
from redrive.replay.options import ReplayOptions
from redrive.replay.plan import Plan, begin, by_ids, plan
from redrive.replay.run import Progress, Replay
from redrive.rules import parse_duration
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.operations import Operation, OperationState
from redrive.transports import open_transport
from redrive.transports.redriving import SendOptions


@click.command("replay")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--where", metavar="FILTER", help="All letters that match, instead of ids.")
@click.option("--dry-run", is_flag=True, help="Only list what would be sent.")
@click.option("--resume", metavar="OPERATION", help="Go on with a replay that was stopped or killed.")
@click.option("--limit", type=click.IntRange(1), help="At most so many letters.")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Letters in a batch."
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Letters in a second; without it, no limit."
)
@click.option(
    "--canary",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="So many first; their verdicts are waited for.",
)
@click.option("--canary-wait", default="1m", show_default=True, help="How long to wait for these verdicts.")
@click.option("--ramp", help="Sizes of the first batches, such as 1,2,5,20.")
@click.option(
    "--stop-at",
    type=click.FloatRange(0, 100, min_open=True),
    default=50.0,
    show_default=True,
    help="Stop when so many percent die again.",
)
@click.option("--to", "target", metavar="QUEUE", help="Another queue than the one they died in.")
@click.option(
    "--to-exchange", is_flag=True, help="Through the exchange they came by: everybody bound to it gets them."
)
@click.option(
    "--redirect", "redirects", metavar="OLD=NEW", multiple=True, help="Letters of one queue go to another."
)
@click.option("--new-id", is_flag=True, help="Give each message a new message id.")
@click.option("--skip-done", is_flag=True, help="Leave out letters whose message was processed already.")
@click.option("--copies", is_flag=True, help="Also letters that are over, as copies.")
@click.option("--force", is_flag=True, help="Send even if the system is not well.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--broker", metavar="URL", help="The broker's URL, instead of the settings' own.")
@common
@click.pass_obj
def command(
    path: Path | None,
    /,
    ids: tuple[str, ...],
    where: str | None,
    server: str | None,
    for_programs: bool,  # noqa: FBT001  click passes flags by name
    **given: Any,
) -> None:
    """Send dead letters back to where they died. What a dry run lists is what is sent; nothing is sent twice.

    \b
    Examples:
      redrive replay 06gy385tr5
      redrive replay --where "source:orders error:TimeoutError" --dry-run
      redrive replay --where "group:9730603f8999838d" --canary 5 --ramp 1,2,5,20 --rate 50
      redrive replay --resume op-20261115-120000-3fa2b1

    Exit codes: 0 all sent; 1 stopped, or some could not be sent.
    """

    async def work(store: Store, settings: Settings) -> int:
        if given["resume"]:
            operation = await store.operation(given["resume"])
            if operation.state in (OperationState.DONE, OperationState.CANCELLED):
                raise SettingsError(
                    f"operation {operation.id} is {operation.state}; there is nothing to go on with"
                )
        else:
            frozen = await _plan(store, ids, where, given)
            if given["dry_run"]:
                _preview(frozen, for_programs=for_programs)
                return 0
            if not frozen.letters:
                click.echo(as_json({"total": 0}) if for_programs else "no letters match that can be replayed")
                return 0
            if not given["yes"]:
                letters = f"{len(frozen.letters)} letter{'s' if len(frozen.letters) != 1 else ''}"
                click.confirm(f"send {letters} back?", abort=True, err=True)
            operation = await begin(store, frozen, _options(given, settings), by=actor(), clock=SystemClock())
        done = await _run(store, settings, operation, given["broker"], quiet=for_programs)
        _report(done, for_programs=for_programs)
        return 0 if done.state is OperationState.DONE and not done.outcomes.get("failed") else 1

    if code := with_store(path, server, work):
        sys.exit(code)


async def _plan(store: Store, ids: tuple[str, ...], where: str | None, given: dict[str, Any]) -> Plan:
    if bool(ids) == bool(where):
        raise SettingsError("name letters by their ids, or give --where FILTER; one of the two")
    query = by_ids(await full_ids(store, ids)) if ids else query_of([where or ""])
    return await plan(
        store, query, words=where or " ".join(ids), limit=given["limit"], copies=given["copies"]
    )


def _options(given: dict[str, Any], settings: Settings) -> ReplayOptions:
    redirects: dict[str, str] = {}
    for pair in given["redirects"]:
        old, _, new = pair.partition("=")
        if not old or not new:
            raise SettingsError(f"--redirect wants OLD=NEW, not '{pair}'")
        redirects[old] = new
    try:
        ramp = tuple(int(size) for size in (given["ramp"] or "").split(",") if size.strip())
    except ValueError:
        raise SettingsError(f"--ramp wants sizes such as 1,2,5,20, not '{given['ramp']}'") from None
    return ReplayOptions(
        batch=given["batch"],
        rate=given["rate"],
        canary=given["canary"],
        canary_wait=parse_duration(given["canary_wait"]),
        ramp=ramp,
        stop_at=given["stop_at"] / 100,
        skip_done=given["skip_done"],
        health_check=not given["force"],
        quiet_time=getattr(settings.recover, "quiet_time", timedelta(hours=1)),
        sending=SendOptions(
            to="exchange" if given["to_exchange"] else "source",
            target=given["target"],
            redirects=redirects,
            message_id="new" if given["new_id"] else "keep",
        ),
    )


def _preview(frozen: Plan, *, for_programs: bool) -> None:
    if for_programs:
        click.echo(as_json({"letters": plain(frozen.letters), "left_out": plain(frozen.left_out)}))
        return
    if frozen.letters:
        click.echo(table(HEAD_TITLES, [head_row(head) for head in frozen.letters]))
    click.echo(f"{len(frozen.letters)} would be sent")
    if frozen.left_out:
        click.echo(
            f"{len(frozen.left_out)} match but are held or over; --copies sends copies of those that are over"
        )


async def _run(
    store: Store, settings: Settings, operation: Operation, broker: str | None, *, quiet: bool
) -> Operation:
    clock, stop = SystemClock(), asyncio.Event()
    on_interrupt(stop.set)
    async with open_transport(broker or settings.broker.url or "amqp://127.0.0.1:5672", clock) as transport:
        replay = Replay(
            store,
            transport,
            operation,
            runner=f"{actor()}/{os.getpid()}",
            clock=clock,
            strategy=settings.strategy_options(),
            progress=_bar(operation) if not quiet else lambda _progress: None,
        )
        return await replay.run(stop)


def _bar(operation: Operation) -> Any:
    """A progress bar with rate and time left on a screen; a line now and then in a pipe."""
    if not sys.stderr.isatty():
        return lambda progress: click.echo(f"{progress.phase}: {progress.sent} of {progress.total}", err=True)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[fate]}"),
    )
    bar = Bar(*columns, console=Console(stderr=True))
    task = bar.add_task("sending", total=operation.total, completed=operation.recorded, rate="", fate="")
    bar.start()

    def show(progress: Progress) -> None:
        done = progress.sent + progress.skipped + progress.failed
        speed = bar.tasks[0].speed
        fate = (
            f"{progress.resolved} processed, {progress.died} dead again"
            if progress.resolved + progress.died
            else ""
        )
        bar.update(
            task,
            description=progress.phase,
            completed=done,
            rate=f"{speed:.0f}/s" if speed else "",
            fate=fate,
        )
        if progress.phase in {"done", "stopped", "cancelled"}:
            bar.stop()

    return show


def _report(done: Operation, *, for_programs: bool) -> None:
    if for_programs:
        click.echo(as_json(plain(_as_data(done))))
        return
    counts = (
        ", ".join(f"{count} {outcome}" for outcome, count in sorted(done.outcomes.items())) or "nothing sent"
    )
    click.echo(f"{done.id} is {done.state}: {counts} of {done.total}{f' ({done.note})' if done.note else ''}")
    if done.state is OperationState.STOPPED:
        click.echo(f"go on with: redrive replay --resume {done.id}")


def _as_data(operation: Operation) -> dict[str, Any]:
    names = (
        "id",
        "kind",
        "by",
        "query",
        "state",
        "note",
        "total",
        "outcomes",
        "created_at",
        "ended_at",
        "runner",
    )
    return {name: getattr(operation, name) for name in names}


@click.command("operations")
@click.argument("operation_id", metavar="[OPERATION]", required=False)
@click.option("--cancel", is_flag=True, help="End the operation for good.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Operations, or letters, shown.",
)
@common
@click.pass_obj
def operations(
    path: Path | None,
    operation_id: str | None,
    cancel: bool,  # noqa: FBT001  click passes flags by name
    limit: int,
    server: str | None,
    for_programs: bool,  # noqa: FBT001
) -> None:
    """List replays and other bulk actions, or show what became of each letter of one.

    \b
    Examples:
      redrive operations
      redrive operations op-20261115-120000-3fa2b1
      redrive operations op-20261115-120000-3fa2b1 --cancel
    """

    async def work(store: Store, _settings: Settings) -> Any:
        if operation_id is None:
            return await store.operations(limit=limit)
        if cancel:
            await store.end_operation(
                operation_id, OperationState.CANCELLED, by=actor(), note="cancelled by hand"
            )
        return await store.operation(operation_id), await store.items(operation_id, limit=limit)

    found = with_store(path, server, work)
    if isinstance(found, list):
        if for_programs:
            click.echo(as_json(plain([_as_data(each) for each in found])))
            return
        rows = [
            [
                each.id,
                str(each.state),
                each.by,
                f"{each.recorded}/{each.total}",
                ago(each.created_at),
                each.query,
            ]
            for each in found
        ]
        click.echo(
            table(("operation", "state", "by", "letters", "began", "filter"), rows) if rows else "none so far"
        )
        return
    operation, items = found
    if for_programs:
        click.echo(as_json(plain({**_as_data(operation), "items": items})))
        return
    _report(operation, for_programs=False)
    rows = [[item.letter_id, item.outcome or "waits", item.detail] for item in items]
    click.echo(table(("letter", "outcome", "detail"), rows))
