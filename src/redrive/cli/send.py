"""Send letters back: options, health check, and the run of an operation with its progress."""

import asyncio
from collections.abc import Callable, Sequence

import click
import msgspec

from redrive.cli.broker_choice import FoundBroker, connect
from redrive.cli.operations import resume_hint
from redrive.cli.progress import Show, progress
from redrive.cli.selection import F, actor, on_interrupt
from redrive.clock import SystemClock
from redrive.errors import RedriveError, on_one_line
from redrive.letters import LetterHead
from redrive.replay.health import find_problems
from redrive.replay.options import ReplayOptions
from redrive.replay.plan import Plan, begin
from redrive.replay.run import Progress, Replay
from redrive.replay.runner import runner_name
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.operations import Operation, OperationState
from redrive.transports import Transport


def sending_options(*, only: str = "") -> Callable[[F], F]:
    """`--force` and `--broker`; `only` is a condition that their help begins with."""

    def helped(line: str) -> str:
        return f"{only}: {line[0].lower()}{line[1:]}" if only else line

    def decorate(command: F) -> F:
        broker = helped("Name or URL of the broker to send to; default: the broker of the settings.")
        command = click.option("--broker", metavar="NAME|URL", help=broker)(command)
        force = helped("Send even if the health check of the target fails.")
        return click.option("--force", is_flag=True, help=force)(command)

    return decorate


async def send(
    store: Store,
    settings: Settings,
    frozen: Plan,
    options: ReplayOptions,
    broker: FoundBroker,
    *,
    quiet: bool,
) -> Operation:
    """Start an operation for the plan and run it. Nothing is started if the broker cannot be reached."""
    options = msgspec.structs.replace(options, broker=broker.name)
    async with connect(broker) as transport:
        operation = await begin(store, frozen, options, by=actor(), clock=SystemClock())
        return await run(store, settings, transport, operation, broker.name, quiet=quiet)


async def check_health(
    store: Store,
    settings: Settings,
    letters: Sequence[LetterHead],
    options: ReplayOptions,
    broker: FoundBroker,
    consequence: str = "replay aborted",
    *,
    quiet: bool,
) -> None:
    """Check the targets of these letters: a `RedriveError` if there is a problem, or a warning for few letters."""
    own = [head for head in letters if head.broker == broker.name]
    if not own or not options.health_check:
        return
    async with connect(broker) as transport:
        problems = await find_problems(
            store, transport, own, options, settings.replay, now=SystemClock().now()
        )
    if problems and len(own) > settings.replay.unchecked_letters:
        raise RedriveError(
            f"{consequence}: health check failed ({'; '.join(problems)}); use --force to override"
        )
    for problem in problems if not quiet else ():
        click.echo(on_one_line(f"warning: {problem}"), err=True)


async def run(
    store: Store,
    settings: Settings,
    transport: Transport,
    operation: Operation,
    broker: str,
    *,
    quiet: bool,
    assume_success: bool = False,
) -> Operation:
    """Run an operation until it ends or is interrupted."""
    clock, stop = SystemClock(), asyncio.Event()
    runner = runner_name(actor())
    is_waiting = False

    def on_progress(now: Progress) -> None:
        nonlocal is_waiting
        if (
            quiet and now.phase == "waiting" and not is_waiting
        ):  # may take a minute: reported with --json, too
            click.echo(on_one_line(f"waiting: {now.note}"), err=True)
        is_waiting = now.phase == "waiting"
        _show(now, show)

    on_interrupt(stop.set)
    with progress(operation.total, quiet=quiet, done=operation.recorded) as show:
        replay = Replay(
            store,
            transport,
            operation,
            runner=runner,
            clock=clock,
            broker=broker,
            strategy=settings.strategy_options(),
            progress=on_progress,
            assume_success=assume_success,
        )
        try:
            return await replay.run(stop)
        except RedriveError as error:
            if (now := await store.operation(operation.id)).runner == runner:
                await store.end_operation(now.id, OperationState.STOPPED, by=runner, note=str(error))
                now = await store.operation(operation.id)
            if now.state is OperationState.STOPPED:
                error.args = (f"{error}; {resume_hint(now)}",)  # the type of the error stays
            raise


def _show(now: Progress, show: Show) -> None:
    results = f"{now.resolved} processed, {now.died} failed again" if now.resolved + now.died else ""
    show(now.sent + now.skipped + now.failed, now.phase, now.note or results)
