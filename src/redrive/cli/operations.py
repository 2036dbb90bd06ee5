"""`redrive operations`, and the report of an operation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from redrive.cli.letter_table import plain, relative_time
from redrive.cli.output import echo_paged, to_json
from redrive.cli.selection import actor, run_with_store, store_options
from redrive.cli.table import table
from redrive.errors import LifecycleError, RedriveError, SettingsError, on_one_line
from redrive.replay.options import FAILED, KIND, SENT, unpack
from redrive.replay.plan import ORDERS
from redrive.replay.runner import describe_runner
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.operations import LARGEST_LIST, Item, Operation, OperationState

_BATCH_SIZE: Final = 10_000
_MAX_REASONS: Final = 5  # of letters that were not sent, in text
_MAX_LISTED: Final = 10_000  # letters that were not sent, in JSON


async def report(
    store: Store, done: Operation, *, as_json: bool, other_brokers: Mapping[str, int] | None = None
) -> None:
    """Print the result, with the letters that were not sent; a `RedriveError` if some could not be sent.

    `other_brokers` counts the letters that were not sent because they belong to another broker.
    """
    others = await not_sent(store, done)
    if as_json:
        data = {
            **as_data(done),
            "not_sent": others[:_MAX_LISTED],
            "other_brokers": dict(other_brokers or {}),
        }
        click.echo(to_json(plain(data)))
    else:
        if _is_complete(done):
            click.echo(summary(done))
        show_reasons(done, others)
    check(done)


async def not_sent(store: Store, done: Operation) -> list[Item]:
    """The letters of an operation that have another outcome than sent."""
    if done.recorded == done.outcomes.get(SENT, 0):
        return []
    items = await read_items(store, done.id, LARGEST_LIST)
    return [item for item in items if item.outcome not in {None, SENT}]


async def read_items(store: Store, operation_id: str, limit: int) -> list[Item]:
    """The first `limit` letters of an operation, with their outcomes."""
    found: list[Item] = []
    while len(found) < limit:
        part = await store.items(operation_id, after=len(found), limit=min(_BATCH_SIZE, limit - len(found)))
        found += part
        if len(part) < _BATCH_SIZE:
            break
    return found


def show_reasons(done: Operation, others: Sequence[Item]) -> None:
    """Print why letters were not sent, the most frequent reasons first."""
    reasons = Counter((item.outcome, item.detail) for item in others)
    for (outcome, detail), count in reasons.most_common(_MAX_REASONS):
        click.echo(on_one_line(f"  {count} {outcome}: {detail}"))
    if others:
        click.echo(f"  list them with: redrive operations {done.id} --not-sent")


def check(done: Operation) -> None:
    """A `RedriveError` if the operation did not send all of its letters."""
    if not _is_complete(done):
        more = f"; {resume_hint(done)}" if done.state is OperationState.STOPPED else ""
        raise RedriveError(summary(done) + more)


def _is_complete(done: Operation) -> bool:
    return done.state is OperationState.DONE and not done.outcomes.get(FAILED)


def resume_hint(operation: Operation) -> str:
    """The command that continues an operation."""
    return f"continue with: redrive replay --resume {operation.id}"


def summary(done: Operation) -> str:
    """The result of an operation in one line."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(done.outcomes.items()))
    note = f" ({done.note})" if done.note not in {"", str(done.state)} else ""
    order = _order(done)
    ordered = f", {describe_order(order)}" if order is not None and done.outcomes else ""
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


def describe_order(order: str) -> str:
    """The order of a list, for people."""
    return f"{order} first" if order in ORDERS else f"by {order}"


def as_data(operation: Operation) -> dict[str, Any]:
    """An operation as JSON values."""
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
@click.option("--cancel", is_flag=True, help="Cancel the operation; it cannot be resumed.")
@click.option("--not-sent", "only_not_sent", is_flag=True, help="Only letters that were skipped or failed.")
@click.option(
    "--limit",
    type=click.IntRange(1, LARGEST_LIST),
    default=20,
    show_default=True,
    help="Maximum number of operations (up to 1000), or of letters of one operation.",
)
@store_options
@click.pass_obj
def command(
    path: Path | None,
    operation_id: str | None,
    cancel: bool,  # noqa: FBT001  click passes flags by name
    only_not_sent: bool,  # noqa: FBT001
    limit: int,
    server: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """With an operation: the outcome of each of its letters.

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
                raise SettingsError(f"{'--cancel' if cancel else '--not-sent'} needs the id of an operation")
            return await store.operations(limit=min(limit, 1000))
        if cancel and not await store.end_operation(
            operation_id, OperationState.CANCELLED, by=actor(), note="cancelled by a person"
        ):
            ended = await store.operation(operation_id)
            raise LifecycleError(f"operation {ended.id} is already {ended.state}")
        operation = await store.operation(operation_id)
        if only_not_sent:
            return operation, (await not_sent(store, operation))[:limit]
        return operation, await read_items(store, operation_id, limit)

    found = run_with_store(path, server, work)
    if isinstance(found, list):
        if as_json:
            click.echo(to_json(plain([as_data(each) for each in found])))
            return
        rows = [
            [
                each.id,
                str(each.state),
                each.by,
                f"{each.recorded}/{each.total}",
                relative_time(each.created_at),
                each.query,
            ]
            for each in found
        ]
        titles = ("operation", "state", "by", "letters", "started", "filter")
        echo_paged(table(titles, rows) if rows else "no operations yet")
        return
    operation, items = found
    if as_json:
        click.echo(to_json(plain({**as_data(operation), "items": items})))
        return
    click.echo(summary(operation))
    rows = [[item.letter_id, item.outcome or "waiting", item.detail] for item in items]
    if rows:
        click.echo(table(("letter", "outcome", "detail"), rows))
    if len(rows) < operation.total and not only_not_sent:
        click.echo(f"{len(rows)} of {operation.total} letters; --limit {operation.total} shows all")
