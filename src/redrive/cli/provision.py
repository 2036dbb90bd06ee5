"""`redrive provision`: create what the sources need on the broker."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import click
import msgspec

from redrive.cli.output import to_json
from redrive.cli.sources import AdminTarget, place_of, place_options
from redrive.errors import RedriveError, SettingsError, on_one_line
from redrive.rules.durations import parse_duration
from redrive.transports.base import DelayedRetry
from redrive.transports.plan import Applied, Plan, as_table, raise_failed, show

_MIN_RETRY: Final = timedelta(milliseconds=1)
_MAX_RETRY: Final = timedelta(days=24)  # milliseconds fit into 31 bits


@click.command("provision")
@place_options
@click.option(
    "--delayed-retry",
    metavar="MIN[..MAX]",
    help="RabbitMQ 4.3 and later: the queue delays a failed delivery by MIN × failures, at most MAX.",
)
@click.option("--apply", "applied", is_flag=True, help="Create what is missing.")
@click.option("--yes", is_flag=True, help="With --apply: do not ask for confirmation.")
@click.pass_context
def command(
    ctx: click.Context,
    app: str | None,
    names: Sequence[str],
    broker: str | None,
    management_url: str | None,
    delayed_retry: str | None,
    as_json: bool,  # noqa: FBT001  click passes flags by name
    applied: bool,  # noqa: FBT001
    yes: bool,  # noqa: FBT001
) -> None:
    """Without --apply nothing is changed. Existing objects are never changed; for those that differ, the fix is shown.

    \b
    Examples:
      redrive provision --source orders --broker amqp://guest:guest@localhost/
      redrive provision --source orders --broker kafka://localhost:9092
      redrive provision shop.consumers:app
      redrive provision shop.consumers:app --apply --yes
      redrive provision shop.consumers:app --delayed-retry 10s..5m --apply
    """
    place = place_of(ctx.obj, app, names, broker, management_url)
    if delayed_retry is not None:
        place = _with_delayed_retry(place, delayed_retry)
    steps = asyncio.run(place.broker.plan(place.sources))
    if not as_json:
        _print_plan(place, steps, applied=applied)
    done: list[Applied] = []
    if applied and steps.to_make:
        _ask_first(len(steps.to_make), yes=yes)  # not while connected: people take longer than heartbeats
        done = asyncio.run(_apply(place, steps, _ignore if as_json else _print_step))
    if as_json:
        click.echo(to_json(_as_table(place, steps, done), indent=2))
    elif applied:
        _print_end(steps, done)
    raise_failed(done)
    if applied and (left := steps.of("differs")):
        count = f"{len(left)} existing object{'s' if len(left) != 1 else ''}"
        raise RedriveError(f"{count} different from the plan, not changed")


def _with_delayed_retry(place: AdminTarget, text: str) -> AdminTarget:
    if place.broker.place.startswith("kafka"):
        raise SettingsError("--delayed-retry: only RabbitMQ supports it; on Kafka, use retry topics")
    least, dots, most = text.partition("..")
    try:
        asked = DelayedRetry(parse_duration(least), parse_duration(most if dots else least))
    except SettingsError as error:
        raise SettingsError(
            f"--delayed-retry: {error}; write MIN or MIN..MAX, such as 10s or 10s..5m"
        ) from None
    if not _MIN_RETRY <= asked.least <= asked.most <= _MAX_RETRY:
        raise SettingsError("--delayed-retry: MIN must be 1ms or more, and MAX between MIN and 24 days")
    sources = tuple(msgspec.structs.replace(source, delayed_retry=asked) for source in place.sources)
    return msgspec.structs.replace(place, sources=sources)


async def _apply(place: AdminTarget, steps: Plan, report: Callable[[Applied], None]) -> list[Applied]:
    done: list[Applied] = []
    async for step in place.broker.apply(steps):
        done.append(step)
        report(step)
    return done


def _ask_first(count: int, *, yes: bool) -> None:
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise SettingsError("confirmation required; pass --yes in non-interactive use")
    if not click.confirm(f"create {count} object{'s' if count != 1 else ''}?", err=True):
        raise RedriveError("cancelled; nothing was changed")


def _as_table(place: AdminTarget, steps: Plan, done: Sequence[Applied]) -> dict[str, Any]:
    return {
        "broker": place.broker.place,
        **as_table(steps),
        "steps": [
            {
                "kind": step.item.kind,
                "name": step.item.name,
                "result": step.result,
                "error": None if step.error is None else str(step.error),
            }
            for step in done
        ],
    }


def _print_plan(place: AdminTarget, steps: Plan, *, applied: bool) -> None:
    click.echo(f"plan for {on_one_line(place.broker.place)}")
    for line in show(steps):
        click.echo(on_one_line(line))
    click.echo(
        f"{len(steps.of('missing'))} to create, {len(steps.of('differs'))} different, "
        f"{len(steps.of('same'))} present" + _counted(", {} unknown", len(steps.of("unseen")))
    )
    if steps.unseen:
        click.echo(f"not checked: {on_one_line('; '.join(steps.unseen))}")
    if steps.to_make and not applied:
        click.echo("nothing was changed; pass --apply to create what is missing")


def _counted(text: str, count: int) -> str:
    return text.format(count) if count else ""


def _print_step(step: Applied) -> None:
    click.echo(on_one_line(f"{step.result:<7}{step.item.kind} {step.item.name}"))


def _ignore(_: Applied) -> None:
    """With --json, the steps are part of the result."""


def _print_end(steps: Plan, done: Sequence[Applied]) -> None:
    failed = [step for step in done if step.result == "failed"]
    made = sum(step.result == "made" for step in done)
    if failed:
        click.echo(f"stopped after creating {made} of {len(steps.to_make)} objects")
    elif made:
        click.echo(f"created {made}")
    else:
        click.echo("nothing to create")
