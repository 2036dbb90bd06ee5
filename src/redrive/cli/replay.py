"""`redrive replay`: redrive letters that a person has chosen."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from redrive.cli.broker_choice import connect, find_broker
from redrive.cli.letter_table import letter_table, plain
from redrive.cli.operations import describe_order, read_items, report
from redrive.cli.output import echo_paged, to_json
from redrive.cli.selection import (
    Selection,
    SelectionCommand,
    check_can_ask,
    confirm,
    confirm_option,
    heads_of,
    pluralise,
    run_with_store,
    select_some,
    selection_argument,
    store_options,
)
from redrive.cli.send import check_health, run, send, sending_options
from redrive.errors import SettingsError, on_one_line
from redrive.letters import LetterHead, LetterState
from redrive.replay.options import KIND, NEWEST, OLDEST, ReplayOptions, unpack
from redrive.replay.plan import ORDERS, Plan, of_broker, order_of, plan
from redrive.rules.durations import parse_duration
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.operations import LARGEST_LIST
from redrive.stores.query import Query
from redrive.transports.redriving import SendOptions

# Options that are stored with an operation, and cannot be changed when it is resumed.
_STORED_OPTIONS: Final = frozenset(
    {
        "order", "limit", "batch_size", "rate", "pause", "canary", "canary_timeout", "ramp", "max_failure_rate",
        "target", "broadcast", "same_partition", "redirects", "new_message_id", "skip_processed", "include_closed",
    }
)  # fmt: skip


@click.command("replay", cls=SelectionCommand)
@selection_argument
@click.option("--dry-run", is_flag=True, help="List the letters that would be sent; send nothing.")
@click.option("--resume", metavar="OPERATION", help="Continue a replay that was stopped or killed.")
@click.option(
    "--order",
    type=click.Choice((OLDEST, NEWEST)),
    help="Which letters are sent first; default: oldest, or the sort of the filter.",
)
@click.option(
    "--limit", type=click.IntRange(1), help="Send at most this many letters, the first in this order."
)
@click.option(
    "--batch-size", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Letters per batch."
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Letters per second; default: no limit."
)
@click.option(
    "--pause", metavar="DURATION", default="0s", show_default=True, help="Pause between two batches."
)
@click.option(
    "--canary",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    show_default=True,
    help="Send N letters first and wait for their results; stop unless all of them were processed.",
)
@click.option(
    "--canary-timeout",
    metavar="DURATION",
    default="1m",
    show_default=True,
    help="Time limit for the results of the canary, and of each batch of the ramp.",
)
@click.option(
    "--ramp",
    metavar="N,N,…",
    help="Sizes of the first batches, such as 1,2,5,20; wait for the results of each.",
)
@click.option(
    "--assume-success",
    is_flag=True,
    help="Continue even if the canary or the ramp report no results in time.",
)
@click.option(
    "--max-failure-rate",
    type=click.FloatRange(0, 100, min_open=True),
    metavar="PERCENT",
    default=50.0,
    show_default=True,
    help="Stop when this percentage of the results are failures.",
)
@click.option(
    "--to", "target", metavar="QUEUE", help="Send to this queue or topic instead of the original one."
)
@click.option(
    "--broadcast",
    is_flag=True,
    help="Send to all consumers of the original message: through its exchange, or to all Kafka groups.",
)
@click.option("--same-partition", is_flag=True, help="Kafka: send each letter to its original partition.")
@click.option(
    "--redirect",
    "redirects",
    metavar="OLD=NEW",
    multiple=True,
    help="Send letters of queue OLD to queue NEW; can be repeated.",
)
@click.option("--new-message-id", is_flag=True, help="Give each message a new message id.")
@click.option("--skip-processed", is_flag=True, help="Skip letters whose message was already processed.")
@click.option(
    "--include-closed", is_flag=True, help="Also replay resolved, failed or archived letters (as new copies)."
)
@sending_options()
@confirm_option
@store_options
@click.pass_obj
def command(
    path: Path | None,
    /,
    words: tuple[str, ...],
    server: str | None,
    as_json: bool,  # noqa: FBT001  click passes flags by name
    **given: Any,
) -> None:
    """The list of letters is fixed before the first one is sent: a dry run lists exactly the letters that are sent.

    \b
    Examples:
      redrive replay 06gy3mn33htm7741
      redrive replay source:orders error:TimeoutError --dry-run
      redrive replay group:9730603f8999838d --canary 5 --ramp 1,2,5,20 --rate 50
      redrive replay source:orders --batch-size 100 --pause 1s
      redrive replay --resume op-20261115-120000-3fa2b1

    The oldest letters are sent first, after a health check of the target. Ctrl-C stops after the current batch;
    --resume continues. Exit codes: 0 all sent; 1 refused, stopped, or some letters could not be sent.
    """

    async def work(store: Store, settings: Settings) -> None:
        options = _read_options(given, settings)
        if given["resume"]:
            if words:
                raise SettingsError(
                    "--resume continues with the letters of the operation; leave out ids and filter"
                )
            await _resume(store, settings, given, as_json=as_json)
            return
        selection = _select(words, given["order"])
        query = await selection.query(store)
        options = msgspec.structs.replace(options, order=order_of(query))
        frozen = await _plan(store, query, selection, given)
        if given["dry_run"]:
            _preview(frozen, options.order, as_json=as_json)
            return
        if not frozen.letters:
            _report_nothing(frozen, as_json=as_json)
            return
        check_can_ask(yes=given["yes"])
        broker = await find_broker(
            store, settings, given["broker"], frozen.letters, is_sample=given["limit"] is not None
        )
        if broker.others:
            frozen = await _plan(store, of_broker(query, broker.name), selection, given)
            if not frozen.letters:
                raise broker.refusal()
            if not as_json:
                click.echo(on_one_line(broker.describe_others()), err=True)
        if not given["force"]:
            await check_health(store, settings, frozen.letters, options, broker, quiet=as_json)
        confirm(
            f"send {pluralise(len(frozen.letters))}, {describe_order(options.order)}, to broker '{broker.name}'?",
            yes=given["yes"],
        )
        done = await send(store, settings, frozen, options, broker, quiet=as_json)
        await report(store, done, as_json=as_json, other_brokers=broker.others)

    run_with_store(path, server, work)


def _select(words: tuple[str, ...], order: str | None) -> Selection:
    """The letters to send, in their order."""
    sort = ORDERS[order or OLDEST]
    selection = select_some(words, sort)
    if order is not None and selection.filter.sort is not sort:
        raise SettingsError("--order and 'sort:' in the filter are two orders; leave out one of them")
    return selection


async def _plan(store: Store, query: Query, selection: Selection, given: Mapping[str, Any]) -> Plan:
    return await plan(
        store, query, words=selection.text, limit=given["limit"], copies=given["include_closed"]
    )


async def _resume(store: Store, settings: Settings, given: Mapping[str, Any], *, as_json: bool) -> None:
    _check_resume_options()
    operation = await store.operation(given["resume"])
    if operation.kind != KIND:
        raise SettingsError(f"operation {operation.id} is a {operation.kind}, not a replay")
    options = unpack(operation.options)
    if given["dry_run"]:
        frozen = Plan(query=operation.query, letters=await _unsent(store, operation.id))
        _preview(frozen, options.order, as_json=as_json)
        return
    if not operation.is_over:
        letters = await _unsent(store, operation.id)
        broker = await find_broker(store, settings, given["broker"], letters)
        if not given["force"]:
            await check_health(store, settings, letters, options, broker, quiet=as_json)
        async with connect(broker) as transport:
            operation = await run(
                store,
                settings,
                transport,
                operation,
                broker.name,
                quiet=as_json,
                assume_success=given["assume_success"],
            )
    await report(store, operation, as_json=as_json)


def _check_resume_options() -> None:
    """A `SettingsError` if an option is given that belongs to the operation."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name in _STORED_OPTIONS:
            raise SettingsError(
                f"--resume continues with the options of the operation; leave out {parameter.opts[0]}, "
                "or start another replay"
            )


async def _unsent(store: Store, operation_id: str) -> tuple[LetterHead, ...]:
    """The letters of an operation that have no outcome yet, in the order of its list."""
    items = await read_items(store, operation_id, LARGEST_LIST)
    waiting = [item.letter_id for item in items if item.outcome is None]
    heads = await heads_of(store, waiting)
    return tuple(heads[each] for each in waiting if each in heads)


def _read_options(given: Mapping[str, Any], settings: Settings) -> ReplayOptions:
    """The options of the replay, from the command line and the settings."""
    redirects: dict[str, str] = {}
    for pair in given["redirects"]:
        old, _, new = pair.partition("=")
        if not old or not new:
            raise SettingsError(f"--redirect must be OLD=NEW, got '{pair}'")
        redirects[old] = new
    try:
        ramp = tuple(int(size) for size in (given["ramp"] or "").split(",") if size.strip())
    except ValueError:
        raise SettingsError(f"--ramp must be batch sizes such as 1,2,5,20, got '{given['ramp']}'") from None
    if given["broadcast"] and (given["target"] or redirects):
        raise SettingsError("--broadcast cannot be combined with --to or --redirect")
    if given["same_partition"] and (given["target"] or redirects or given["broadcast"]):
        raise SettingsError("--same-partition cannot be combined with --to, --broadcast or --redirect")
    return ReplayOptions(
        batch=given["batch_size"],
        rate=given["rate"],
        pause=parse_duration(given["pause"]),
        assume_success=given["assume_success"],
        canary=given["canary"],
        canary_wait=parse_duration(given["canary_timeout"]),
        ramp=ramp,
        stop_at=given["max_failure_rate"] / 100,
        skip_done=given["skip_processed"],
        # Queues are always checked; an exchange may lead to other queues than the original one.
        health_check=not (given["force"] and given["broadcast"]),
        verdict_timeout=settings.recover.verdict_timeout,
        sending=SendOptions(
            to="exchange" if given["broadcast"] else "partition" if given["same_partition"] else "source",
            target=given["target"],
            redirects=redirects,
            message_id="new" if given["new_message_id"] else "keep",
        ),
    )


def _preview(frozen: Plan, order: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(
            to_json({"order": order, "letters": plain(frozen.letters), "left_out": plain(frozen.left_out)})
        )
        return
    if frozen.letters:
        echo_paged(letter_table(frozen.letters))
    brokers = Counter(head.broker for head in frozen.letters)
    if len(brokers) > 1:
        counts = ", ".join(f"{count} of broker '{name}'" for name, count in brokers.most_common())
        click.echo(on_one_line(f"{pluralise(len(frozen.letters))} match: {counts}"))
        click.echo("a replay sends the letters of one broker; choose it with --broker")
    else:
        to_broker = "".join(f", to broker '{name}'" for name in brokers)
        click.echo(
            on_one_line(f"{pluralise(len(frozen.letters))} would be sent, {describe_order(order)}{to_broker}")
        )
    _show_excluded(frozen)


def _report_nothing(frozen: Plan, *, as_json: bool) -> None:
    if as_json:  # the fields of the report of an operation
        click.echo(
            to_json(
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
    click.echo("no letters to send")
    _show_excluded(frozen)


def _show_excluded(frozen: Plan) -> None:
    claimed = sum(head.state is LetterState.PROCESSING for head in frozen.left_out)
    closed = len(frozen.left_out) - claimed
    if claimed:
        click.echo(f"{pluralise(claimed)} excluded: claimed by a worker, or sent and waiting for a verdict")
    if closed:
        click.echo(
            f"{pluralise(closed)} excluded: resolved, failed or archived; --include-closed sends copies of them"
        )
