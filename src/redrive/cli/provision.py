"""`redrive provision`: what do the sources need on the broker, and make it."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import click
import msgspec

from redrive.cli.output import as_json
from redrive.cli.sources import Place, place_of, place_options
from redrive.errors import RedriveError, SettingsError, on_one_line
from redrive.rules.durations import parse_duration
from redrive.transports.base import DelayedRetry
from redrive.transports.plan import Applied, Plan, as_table, raise_failed, show

_SHORTEST_RETRY: Final = timedelta(milliseconds=1)
_LONGEST_RETRY: Final = timedelta(days=24)  # milliseconds fit into 31 bits


@click.command("provision")
@place_options
@click.option(
    "--delayed-retry",
    metavar="MIN[..MAX]",
    help="RabbitMQ from 4.3 on: let the work queue keep a delivery that has failed for MIN × failures, at most MAX.",
)
@click.option("--apply", "applied", is_flag=True, help="Make what is missing.")
@click.option("--yes", is_flag=True, help="With --apply: do not ask first.")
@click.pass_context
def command(
    ctx: click.Context,
    app: str | None,
    names: Sequence[str],
    broker: str | None,
    management_url: str | None,
    delayed_retry: str | None,
    for_programs: bool,  # noqa: FBT001  click passes flags by name
    applied: bool,  # noqa: FBT001
    yes: bool,  # noqa: FBT001
) -> None:
    """Show what the sources need on the broker, and make what is missing.

    Without --apply nothing is changed. What exists is never touched: where it differs, the way to mend it is told.

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
    if not for_programs:
        _tell(place, steps, applied=applied)
    done: list[Applied] = []
    if applied and steps.to_make:
        _ask_first(len(steps.to_make), yes=yes)  # not while connected: people take longer than heartbeats
        done = asyncio.run(_apply(place, steps, _say_nothing if for_programs else _tell_step))
    if for_programs:
        click.echo(as_json(_as_table(place, steps, done), indent=2))
    elif applied:
        _tell_end(steps, done)
    raise_failed(done)
    if applied and (left := steps.of("differs")):
        raise RedriveError(f"{len(left)} of what is there is otherwise than wanted, and was left as it is")


def _with_delayed_retry(place: Place, text: str) -> Place:
    if place.broker.place.startswith("kafka"):
        raise SettingsError("--delayed-retry: only RabbitMQ has it; on Kafka, use retry topics")
    least, dots, most = text.partition("..")
    try:
        asked = DelayedRetry(parse_duration(least), parse_duration(most if dots else least))
    except SettingsError as error:
        raise SettingsError(
            f"--delayed-retry: {error}; write MIN or MIN..MAX, such as 10s or 10s..5m"
        ) from None
    if not _SHORTEST_RETRY <= asked.least <= asked.most <= _LONGEST_RETRY:
        raise SettingsError("--delayed-retry: MIN must be 1ms or more, and MAX between MIN and 24 days")
    sources = tuple(msgspec.structs.replace(source, delayed_retry=asked) for source in place.sources)
    return msgspec.structs.replace(place, sources=sources)


async def _apply(place: Place, steps: Plan, tell: Callable[[Applied], None]) -> list[Applied]:
    done: list[Applied] = []
    async for step in place.broker.apply(steps):
        done.append(step)
        tell(step)
    return done


def _ask_first(count: int, *, yes: bool) -> None:
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise SettingsError("--apply asks first; add --yes where nobody can answer")
    if not click.confirm(f"Make {'this' if count == 1 else f'these {count}'}?", err=True):
        raise RedriveError("nothing was changed")


def _as_table(place: Place, steps: Plan, done: Sequence[Applied]) -> dict[str, Any]:
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


def _tell(place: Place, steps: Plan, *, applied: bool) -> None:
    click.echo(f"plan for {on_one_line(place.broker.place)}")
    for line in show(steps):
        click.echo(on_one_line(line))
    click.echo(
        f"{len(steps.of('missing'))} to make, {len(steps.of('differs'))} otherwise than wanted, "
        f"{len(steps.of('same'))} as wanted" + _counted(", {} not seen", len(steps.of("unseen")))
    )
    if steps.unseen:
        click.echo(f"could not see: {on_one_line('; '.join(steps.unseen))}")
    if steps.to_make and not applied:
        click.echo("nothing was changed; add --apply to make what is missing")


def _counted(text: str, count: int) -> str:
    return text.format(count) if count else ""


def _tell_step(step: Applied) -> None:
    click.echo(on_one_line(f"{step.result:<7}{step.item.kind} {step.item.name}"))


def _say_nothing(_: Applied) -> None:
    """Programs are told at the end."""


def _tell_end(steps: Plan, done: Sequence[Applied]) -> None:
    failed = [step for step in done if step.result == "failed"]
    made = sum(step.result == "made" for step in done)
    if failed:
        click.echo(f"stopped after {made} of {len(steps.to_make)}; what was made stays")
    elif made:
        click.echo(f"made {made}")
    else:
        click.echo("nothing to make")
