"""`redrive brokers` and `redrive set-broker`: the brokers of a store, and the letters that belong to them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from redrive.cli.output import to_json
from redrive.cli.progress import progress
from redrive.cli.selection import (
    OPEN_STATES,
    ListByDefault,
    SelectionCommand,
    actor,
    check_broker_name,
    confirm,
    confirm_option,
    pluralise,
    portions,
    run_with_store,
    select_some,
    selection_argument,
    store_options,
)
from redrive.cli.table import table
from redrive.clock import SystemClock
from redrive.errors import on_one_line
from redrive.letters import LetterState
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.brokers import UNNAMED, Brokers, KnownBroker, forget, known_brokers
from redrive.stores.changes import SetBroker
from redrive.stores.many import change_those_that_can
from redrive.stores.query import Condition, Op, Query


@click.group("brokers", cls=ListByDefault)
def command() -> None:
    """Without a command: list.

    \b
    Examples:
      redrive brokers
      redrive brokers --json
      redrive brokers forget shop-old
    """


@command.command("list")
@store_options
@click.pass_obj
def list_(
    path: Path | None,
    server: str | None,
    as_json: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """List the registered brokers, and other broker names of open letters.

    \b
    Examples:
      redrive brokers list
      redrive brokers list --server http://127.0.0.1:8642 --json
    """

    async def work(store: Store, _settings: Settings) -> tuple[Brokers, dict[str, int]]:
        return await known_brokers(store), await _open_letters(store)

    registered, letters = run_with_store(path, server, work)
    names = sorted({*registered, *letters})
    if as_json:
        click.echo(to_json([_data(name, registered.get(name), letters.get(name, 0)) for name in names]))
    elif names:
        titles = ("name", "kind", "cluster", "endpoint", "served by", "open letters")
        rows = [_row(name, registered.get(name), letters.get(name, 0)) for name in names]
        click.echo(table(titles, rows))
    else:
        click.echo("no broker is registered; redrive serve registers its broker when it starts")


async def _open_letters(store: Store) -> dict[str, int]:
    return await store.tally("broker", Query((Condition("state", Op.IS, OPEN_STATES),)))


def _servers(broker: KnownBroker) -> list[str]:
    now = SystemClock().now()
    return sorted(server for server, until in broker.servers.items() if until > now)


def _data(name: str, broker: KnownBroker | None, letters: int) -> dict[str, Any]:
    return {
        "name": name,
        "registered": broker is not None,
        "kind": broker and broker.kind,
        "cluster_id": broker and broker.cluster_id,
        "endpoint": broker and broker.endpoint,
        "served_by": _servers(broker) if broker is not None else [],
        "open_letters": letters,
    }


def _row(name: str, broker: KnownBroker | None, letters: int) -> list[str]:
    if broker is None:
        return [name, "not registered", "", "", "no server", str(letters)]
    served_by = ", ".join(_servers(broker)) or "no server"
    return [name, broker.kind, broker.cluster_id or "unknown", broker.endpoint, served_by, str(letters)]


@command.command("forget")
@click.argument("name")
@confirm_option
@store_options
@click.pass_obj
def forget_(
    path: Path | None,
    name: str,
    yes: bool,  # noqa: FBT001  click passes flags by name
    server: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Release the name of a broker, so that another cluster can have it. Its letters keep the name.

    \b
    Examples:
      redrive brokers forget shop-old

    Refused while a server serves the broker.
    """

    async def work(store: Store, _settings: Settings) -> tuple[KnownBroker, int]:
        registered, letters = await known_brokers(store), (await _open_letters(store)).get(name, 0)
        if name in registered:
            cluster = registered[name].describe()
            keep = f"{pluralise(letters, 'open letter')} {'keeps' if letters == 1 else 'keep'} it"
            confirm(on_one_line(f"release the name '{name}' of {cluster} ({keep})?"), yes=yes)
        return await forget(store, name, now=SystemClock().now()), letters

    broker, letters = run_with_store(path, server, work)
    if as_json:
        click.echo(to_json({"name": name, "cluster_id": broker.cluster_id, "open_letters": letters}))
        return
    click.echo(on_one_line(f"broker name '{name}' released; it belonged to {broker.describe()}"))
    if letters:
        carry = "carries" if letters == 1 else "carry"
        click.echo(
            f"{pluralise(letters, 'open letter')} still {carry} the name; the next broker that registers it gets them, "
            f"or assign them with: redrive set-broker NAME broker:{name}"
        )


@click.command("set-broker", cls=SelectionCommand)
@click.argument("name")
@selection_argument
@confirm_option
@store_options
@click.pass_obj
def set_broker(
    path: Path | None,
    name: str,
    words: tuple[str, ...],
    yes: bool,  # noqa: FBT001  click passes flags by name
    server: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Only the workers and replays of a letter's broker send it. Letters that are being redriven keep their broker.

    \b
    Examples:
      redrive set-broker shop broker:unnamed:rabbitmq
      redrive set-broker events 06gy3mn33htm7741
    """
    check_broker_name(name)
    selection = select_some(words)

    async def work(store: Store, _settings: Settings) -> tuple[int, int, bool]:
        found = [head for head in await selection.heads(store) if head.broker != name]
        to_assign = [head.id for head in found if head.state is not LetterState.PROCESSING]
        registered = await known_brokers(store)
        if to_assign:
            if name not in registered and not as_json:
                _warn(name, registered)
            confirm(f"assign {pluralise(len(to_assign))} to broker '{name}'?", yes=yes)
        done = 0
        with progress(len(to_assign), quiet=as_json or not to_assign) as show:
            for part in portions(to_assign):
                done += await change_those_that_can(store, SetBroker(name), part, by=actor())
                show(done, "assigning", "")
        return done, len(found) - done, name in registered

    done, left, is_registered = run_with_store(path, server, work)
    if as_json:
        click.echo(to_json({"letters": done, "left_alone": left, "registered": is_registered}))
        return
    being_redriven = f", {left} unchanged (being redriven)" if left else ""
    click.echo(f"{pluralise(done)} assigned to broker '{name}'{being_redriven}")


def _warn(name: str, registered: Brokers) -> None:
    known = f" (registered: {', '.join(sorted(registered))})" if registered else ""
    click.echo(
        f"warning: no broker is registered as '{name}'{known}; its letters wait until a server with broker.name = "
        f'"{name}" starts',
        err=True,
    )


def unserved(pending: Mapping[str, int], registered: Brokers) -> dict[str, int]:
    """Of these numbers of pending letters by broker, those that no server will send."""
    now = SystemClock().now()
    served = {name for name, broker in registered.items() if broker.is_served(now)}
    return {name: count for name, count in pending.items() if name not in served}


def count_unnamed(by_broker: Mapping[str, int]) -> int:
    """Of these numbers of letters by broker, those whose broker is not recorded."""
    return sum(count for name, count in by_broker.items() if name.startswith(UNNAMED))
