"""`redrive replay` and `redrive operations`: send letters back, in the open."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from redrive.cli.broker_choice import FoundBroker, connect, find_broker
from redrive.cli.letters import (
    HEAD_TITLES,
    F,
    actor,
    ago,
    ask_first,
    asking,
    check_can_ask,
    common,
    counted,
    full_ids,
    head_row,
    heads_of,
    on_interrupt,
    plain,
    query_of,
    which,
    with_store,
)
from redrive.cli.output import as_json
from redrive.cli.progress import Show, progress
from redrive.cli.table import table
from redrive.clock import SystemClock
from redrive.errors import LifecycleError, RedriveError, SettingsError, on_one_line
from redrive.letters import LetterHead, LetterState
from redrive.replay.health import find_problems
from redrive.replay.options import FAILED, KIND, NEWEST, OLDEST, SENT, ReplayOptions, unpack
from redrive.replay.plan import ORDERS, Plan, begin, by_ids, of_broker, order_of, plan
from redrive.replay.run import Progress, Replay
from redrive.replay.runner import describe_runner, runner_name
from redrive.rules import parse_duration
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.operations import LARGEST_LIST, Item, Operation, OperationState
from redrive.stores.query import Query
from redrive.transports import Transport
from redrive.transports.redriving import SendOptions

_ITEMS: Final = 10_000
_MAX_REASONS: Final = 5  # why letters were not sent, in a report for people
_MAX_LISTED: Final = 10_000  # letters that were not sent, in a report for programs
_RENAMED: Final = {"--to-exchange": "--broadcast"}
# Options that an operation keeps.
_OF_OPERATION: Final = frozenset(
    {
        "order", "limit", "batch", "rate", "pause", "canary", "canary_wait", "ramp", "stop_at", "target", "broadcast",
        "to_partition", "redirects", "new_id", "skip_done", "copies",
    }
)  # fmt: skip


def sending_options(*, only: str = "") -> Callable[[F], F]:
    """`--force` and `--broker`; `only` begins their help where they do not always matter."""

    def helped(line: str) -> str:
        return f"{only}: {line[0].lower()}{line[1:]}" if only else line

    def decorate(command: F) -> F:
        broker = helped("Name or URL of the broker to send to; default: the broker of the settings.")
        command = click.option("--broker", metavar="NAME|URL", help=broker)(command)
        force = helped("Send even if the health check of the target fails.")
        return click.option("--force", is_flag=True, help=force)(command)

    return decorate


class _Replay(click.Command):
    """Names the new option where an old one is used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if (new := _RENAMED.get(error.option_name)) is None:
                raise
            raise click.UsageError(f"no option '{error.option_name}'; did you mean '{new}'?", ctx) from None


@click.command("replay", cls=_Replay)
@which
@click.option("--dry-run", is_flag=True, help="Only list what would be sent.")
@click.option("--resume", metavar="OPERATION", help="Go on with a replay that was stopped or killed.")
@click.option(
    "--order",
    type=click.Choice((OLDEST, NEWEST)),
    help="Which letters are sent first; default: oldest, or the sort of the filter.",
)
@click.option(
    "--limit", type=click.IntRange(1), help="At most so many letters, the first ones in this order."
)
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Letters in a batch."
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Letters in a second; without it, no limit."
)
@click.option("--pause", default="0s", show_default=True, help="Wait so long between two batches.")
@click.option(
    "--canary",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="So many first; the replay stops unless all of them report a verdict.",
)
@click.option(
    "--canary-wait",
    default="1m",
    show_default=True,
    help="How long to wait for the verdicts of the canaries, and of each batch of the ramp.",
)
@click.option("--ramp", help="Sizes of the first batches, such as 1,2,5,20; their verdicts are waited for.")
@click.option(
    "--assume-success",
    is_flag=True,
    help="Go on although canaries or batches of the ramp report no verdicts.",
)
@click.option(
    "--stop-at",
    type=click.FloatRange(0, 100, min_open=True),
    default=50.0,
    show_default=True,
    help="Stop when so many percent die again.",
)
@click.option("--to", "target", metavar="QUEUE", help="Another queue than the one they died in.")
@click.option(
    "--broadcast",
    is_flag=True,
    help="Send to all consumers of the original message: through its exchange, or to all Kafka groups.",
)
@click.option("--to-partition", is_flag=True, help="Kafka: to the very partition that each came from.")
@click.option(
    "--redirect", "redirects", metavar="OLD=NEW", multiple=True, help="Letters of one queue go to another."
)
@click.option("--new-id", is_flag=True, help="Give each message a new message id.")
@click.option("--skip-done", is_flag=True, help="Leave out letters whose message was processed already.")
@click.option("--copies", is_flag=True, help="Also resolved, failed or archived letters, as new copies.")
@sending_options()
@asking
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
      redrive replay --where source:orders --batch 100 --pause 1s
      redrive replay --resume op-20261115-120000-3fa2b1

    The oldest letters are sent first. The health check of the target runs before the question; a few letters are
    never refused. Ctrl-C stops in order. Exit codes: 0 all sent; 1 refused, stopped, or some could not be sent.
    """

    async def work(store: Store, settings: Settings) -> None:
        options = _options_of(given, settings)
        if given["resume"]:
            if ids or where:
                raise SettingsError("--resume goes on with a list that was frozen; leave out ids and --where")
            await _resume(store, settings, given, for_programs=for_programs)
            return
        query = await _query(store, ids, where, given["order"])
        options = msgspec.structs.replace(options, order=order_of(query))
        words = where or " ".join(ids)
        frozen = await _plan(store, query, words, given)
        if given["dry_run"]:
            _preview(frozen, options.order, for_programs=for_programs)
            return
        if not frozen.letters:
            _tell_nothing(frozen, for_programs=for_programs)
            return
        check_can_ask(yes=given["yes"])
        broker = await find_broker(
            store, settings, given["broker"], frozen.letters, is_sample=given["limit"] is not None
        )
        if broker.others:
            frozen = await _plan(store, of_broker(query, broker.name), words, given)
            if not frozen.letters:
                raise broker.refusal()
            if not for_programs:
                click.echo(on_one_line(broker.describe_others()), err=True)
        if not given["force"]:
            await check_health(store, settings, frozen.letters, options, broker, quiet=for_programs)
        ask_first(
            f"send {counted(len(frozen.letters))}, {_describe_order(options.order)}, back to broker '{broker.name}'?",
            yes=given["yes"],
        )
        done = await send(store, settings, frozen, options, broker, quiet=for_programs)
        await report(store, done, for_programs=for_programs, other_brokers=broker.others)

    with_store(path, server, work)


async def _query(store: Store, ids: tuple[str, ...], where: str | None, order: str | None) -> Query:
    """The letters to send, in their order."""
    if bool(ids) == bool(where):
        raise SettingsError("name letters by their ids, or give --where FILTER; one of the two")
    sort = ORDERS[order or OLDEST]
    if ids:
        return by_ids(await full_ids(store, ids), order or OLDEST)
    query = query_of([where or ""], sort)
    if order is not None and query.sort is not sort:
        raise SettingsError("--order and 'sort:' in the filter are two orders; leave out one of them")
    return query


async def _plan(store: Store, query: Query, words: str, given: dict[str, Any]) -> Plan:
    return await plan(store, query, words=words, limit=given["limit"], copies=given["copies"])


async def _resume(store: Store, settings: Settings, given: dict[str, Any], *, for_programs: bool) -> None:
    _check_resume_options()
    operation = await store.operation(given["resume"])
    if operation.kind != KIND:
        raise SettingsError(f"operation {operation.id} is a {operation.kind}, not a replay")
    options = unpack(operation.options)
    if given["dry_run"]:
        frozen = Plan(query=operation.query, letters=await _not_sent(store, operation.id))
        _preview(frozen, options.order, for_programs=for_programs)
        return
    if not operation.is_over:
        letters = await _not_sent(store, operation.id)
        broker = await find_broker(store, settings, given["broker"], letters)
        if not given["force"]:
            await check_health(store, settings, letters, options, broker, quiet=for_programs)
        async with connect(broker) as transport:
            operation = await _run(
                store,
                settings,
                transport,
                operation,
                broker.name,
                quiet=for_programs,
                assume_success=given["assume_success"],
            )
    await report(store, operation, for_programs=for_programs)


def _check_resume_options() -> None:
    """A `SettingsError` if an option is given that belongs to the operation."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name in _OF_OPERATION:
            raise SettingsError(
                f"--resume goes on with the options of the operation; leave out {parameter.opts[0]}, "
                "or begin another replay"
            )


async def _not_sent(store: Store, operation_id: str) -> tuple[LetterHead, ...]:
    """The letters of an operation that have no outcome yet, in the order of its list."""
    items = await _items(store, operation_id, LARGEST_LIST)
    waiting = [item.letter_id for item in items if item.outcome is None]
    heads = await heads_of(store, waiting)
    return tuple(heads[each] for each in waiting if each in heads)


async def _items(store: Store, operation_id: str, limit: int) -> list[Item]:
    """What became of the letters of an operation, the first `limit` of them."""
    found: list[Item] = []
    while len(found) < limit:
        part = await store.items(operation_id, after=len(found), limit=min(_ITEMS, limit - len(found)))
        found += part
        if len(part) < _ITEMS:
            break
    return found


def _options_of(given: Mapping[str, Any], settings: Settings) -> ReplayOptions:
    """How the replay is to be run, by the command line and the settings."""
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
    if given["broadcast"] and (given["target"] or redirects):
        raise SettingsError("--broadcast cannot be combined with --to or --redirect")
    if given["to_partition"] and (given["target"] or redirects or given["broadcast"]):
        raise SettingsError("--to-partition cannot be combined with --to, --broadcast or --redirect")
    return ReplayOptions(
        batch=given["batch"],
        rate=given["rate"],
        pause=parse_duration(given["pause"]),
        assume_success=given["assume_success"],
        canary=given["canary"],
        canary_wait=parse_duration(given["canary_wait"]),
        ramp=ramp,
        stop_at=given["stop_at"] / 100,
        skip_done=given["skip_done"],
        # Queues are looked at in any case; only an exchange may lead elsewhere than to the queue of old.
        health_check=not (given["force"] and given["broadcast"]),
        verdict_timeout=settings.recover.verdict_timeout,
        sending=SendOptions(
            to="exchange" if given["broadcast"] else "partition" if given["to_partition"] else "source",
            target=given["target"],
            redirects=redirects,
            message_id="new" if given["new_id"] else "keep",
        ),
    )


def _preview(frozen: Plan, order: str, *, for_programs: bool) -> None:
    if for_programs:
        click.echo(
            as_json({"order": order, "letters": plain(frozen.letters), "left_out": plain(frozen.left_out)})
        )
        return
    if frozen.letters:
        click.echo(table(HEAD_TITLES, [head_row(head) for head in frozen.letters]))
    brokers = Counter(head.broker for head in frozen.letters)
    if len(brokers) > 1:
        counts = ", ".join(f"{count} of broker '{name}'" for name, count in brokers.most_common())
        click.echo(on_one_line(f"{counted(len(frozen.letters))} match: {counts}"))
        click.echo("a replay sends the letters of one broker; choose it with --broker")
    else:
        to_broker = "".join(f" back to broker '{name}'" for name in brokers)
        click.echo(
            on_one_line(
                f"{counted(len(frozen.letters))} would be sent, {_describe_order(order)},{to_broker or ' back'}"
            )
        )
    _tell_left_out(frozen)


def _tell_nothing(frozen: Plan, *, for_programs: bool) -> None:
    if for_programs:  # the same shape as the report of an operation, which there is none of
        click.echo(
            as_json(
                {
                    "id": None,
                    "state": "done",
                    "total": 0,
                    "outcomes": {},
                    "not_sent": [],
                    "left_out": len(frozen.left_out),
                    "other_brokers": {},
                }
            )
        )
        return
    click.echo("nothing to send")
    _tell_left_out(frozen)


def _tell_left_out(frozen: Plan) -> None:
    held = sum(head.state is LetterState.PROCESSING for head in frozen.left_out)
    over = len(frozen.left_out) - held
    if held:
        click.echo(f"{counted(held)} left out: claimed by a worker, or sent and waiting for a verdict")
    if over:
        click.echo(
            f"{counted(over)} left out: closed (resolved, failed or archived); --copies sends copies of them"
        )


# --- running ---------------------------------------------------------------------------------------------


async def send(
    store: Store,
    settings: Settings,
    frozen: Plan,
    options: ReplayOptions,
    broker: FoundBroker,
    *,
    quiet: bool,
) -> Operation:
    """Make the plan an operation and run it. Where the broker cannot be reached, nothing has begun."""
    options = msgspec.structs.replace(options, broker=broker.name)
    async with connect(broker) as transport:
        operation = await begin(store, frozen, options, by=actor(), clock=SystemClock())
        return await _run(store, settings, transport, operation, broker.name, quiet=quiet)


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
    """Check the targets of these letters: a `RedriveError` if there is a problem, a warning if they are few."""
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


async def _run(
    store: Store,
    settings: Settings,
    transport: Transport,
    operation: Operation,
    broker: str,
    *,
    quiet: bool,
    assume_success: bool = False,
) -> Operation:
    clock, stop = SystemClock(), asyncio.Event()
    runner = runner_name(actor())
    is_waiting = False

    def hear(now: Progress) -> None:
        nonlocal is_waiting
        if quiet and now.phase == "waiting" and not is_waiting:  # it may take a minute: said to programs, too
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
            progress=hear,
            assume_success=assume_success,
        )
        try:
            return await replay.run(stop)
        except RedriveError as error:
            if (now := await store.operation(operation.id)).runner == runner:  # nobody else's
                await store.end_operation(now.id, OperationState.STOPPED, by=runner, note=str(error))
                now = await store.operation(operation.id)
            if now.state is OperationState.STOPPED:
                error.args = (f"{error}; {_go_on(now)}",)  # whatever kind of error it is
            raise


def _show(now: Progress, show: Show) -> None:
    results = f"{now.resolved} processed, {now.died} dead again" if now.resolved + now.died else ""
    show(now.sent + now.skipped + now.failed, now.phase, now.note or results)


async def report(
    store: Store, done: Operation, *, for_programs: bool, other_brokers: Mapping[str, int] | None = None
) -> None:
    """Print the result, with the letters that were not sent; a `RedriveError` if some could not be sent.

    `other_brokers` counts the letters that were not sent because they belong to another broker.
    """
    others = await not_sent(store, done)
    if for_programs:
        data = {
            **as_data(done),
            "not_sent": others[:_MAX_LISTED],
            "other_brokers": dict(other_brokers or {}),
        }
        click.echo(as_json(plain(data)))
    else:
        if _all_went(done):
            click.echo(summary(done))
        tell_reasons(done, others)
    check(done)


async def not_sent(store: Store, done: Operation) -> list[Item]:
    """The letters of an operation that have another outcome than sent."""
    if done.recorded == done.outcomes.get(SENT, 0):
        return []
    items = await _items(store, done.id, LARGEST_LIST)
    return [item for item in items if item.outcome not in {None, SENT}]


def tell_reasons(done: Operation, others: Sequence[Item]) -> None:
    """Print why letters were not sent, the most frequent reasons first."""
    reasons = Counter((item.outcome, item.detail) for item in others)
    for (outcome, detail), count in reasons.most_common(_MAX_REASONS):
        click.echo(on_one_line(f"  {count} {outcome}: {detail}"))
    if others:
        click.echo(f"  list them with: redrive operations {done.id} --not-sent")


def check(done: Operation) -> None:
    """A `RedriveError` if not everything went."""
    if not _all_went(done):
        more = f"; {_go_on(done)}" if done.state is OperationState.STOPPED else ""
        raise RedriveError(summary(done) + more)


def _all_went(done: Operation) -> bool:
    return done.state is OperationState.DONE and not done.outcomes.get(FAILED)


def _go_on(operation: Operation) -> str:
    return f"go on with: redrive replay --resume {operation.id}"


def summary(done: Operation) -> str:
    """What became of it, in a line."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(done.outcomes.items()))
    note = f" ({done.note})" if done.note not in {"", str(done.state)} else ""
    order = _order(done)
    ordered = f", {_describe_order(order)}" if order is not None and done.outcomes else ""
    return on_one_line(
        f"{done.id} is {done.state}: {counts or 'nothing sent'} of {done.total}{ordered}{note}"
    )


def _order(operation: Operation) -> str | None:
    """The order of a replay's list; None for other operations, and for options of a newer version."""
    if operation.kind != KIND:
        return None
    try:
        return unpack(operation.options).order
    except SettingsError:
        return None


def _describe_order(order: str) -> str:
    return f"{order} first" if order in ORDERS else f"by {order}"


def as_data(operation: Operation) -> dict[str, Any]:
    """An operation as JSON has it."""
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
    data = {name: getattr(operation, name) for name in names}
    if operation.runner is not None:
        data["runner"] = describe_runner(operation.runner)
    return {**data, "order": _order(operation)}


@click.command("operations")
@click.argument("operation_id", metavar="[OPERATION]", required=False)
@click.option("--cancel", is_flag=True, help="End the operation for good.")
@click.option("--not-sent", "only_not_sent", is_flag=True, help="Only letters that were skipped or failed.")
@click.option(
    "--limit",
    type=click.IntRange(1, LARGEST_LIST),
    default=20,
    show_default=True,
    help="Operations (at most 1000), or letters of one, shown.",
)
@common
@click.pass_obj
def operations(
    path: Path | None,
    operation_id: str | None,
    cancel: bool,  # noqa: FBT001  click passes flags by name
    only_not_sent: bool,  # noqa: FBT001
    limit: int,
    server: str | None,
    for_programs: bool,  # noqa: FBT001
) -> None:
    """List replays and other bulk actions, or show what became of each letter of one.

    \b
    Examples:
      redrive operations
      redrive operations op-20261115-120000-3fa2b1
      redrive operations op-20261115-120000-3fa2b1 --not-sent
      redrive operations op-20261115-120000-3fa2b1 --cancel
    """

    async def work(store: Store, _settings: Settings) -> Any:
        if operation_id is None:
            if cancel or only_not_sent:
                raise SettingsError(f"{'--cancel' if cancel else '--not-sent'} needs an operation; name it")
            return await store.operations(limit=min(limit, 1000))
        if cancel and not await store.end_operation(
            operation_id, OperationState.CANCELLED, by=actor(), note="cancelled by hand"
        ):
            ended = await store.operation(operation_id)
            raise LifecycleError(f"operation {ended.id} is {ended.state} already")
        operation = await store.operation(operation_id)
        if only_not_sent:
            return operation, (await not_sent(store, operation))[:limit]
        return operation, await _items(store, operation_id, limit)

    found = with_store(path, server, work)
    if isinstance(found, list):
        if for_programs:
            click.echo(as_json(plain([as_data(each) for each in found])))
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
        click.echo(as_json(plain({**as_data(operation), "items": items})))
        return
    click.echo(summary(operation))
    rows = [[item.letter_id, item.outcome or "waits", item.detail] for item in items]
    if rows:
        click.echo(table(("letter", "outcome", "detail"), rows))
    if len(rows) < operation.total and not only_not_sent:
        click.echo(f"{len(rows)} of {operation.total}; more: --limit {operation.total}")
