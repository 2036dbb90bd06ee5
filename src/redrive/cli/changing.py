"""`redrive discard`, `note`, `assign`: what people do to letters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from redrive.cli.letters import actor, chosen, common, with_store
from redrive.cli.output import as_json
from redrive.letters import State
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.changes import Annotate, Archive, Assign, Change, Discard, Park, Settlement

F = TypeVar("F", bound=Callable[..., Any])


def _which(command: F) -> F:
    command = click.option("--where", metavar="FILTER", help="All letters that match, instead of ids.")(
        command
    )
    return click.argument("ids", metavar="[ID]...", nargs=-1)(command)


def _tell(count: int, what: str, *, for_programs: bool) -> None:
    letters = f"{count} letter{'s' if count != 1 else ''}"
    click.echo(as_json({"letters": count}) if for_programs else f"{letters} {what}")


@click.command("discard")
@_which
@click.option("--why", default="", help="The reason, for the journal.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
@click.pass_obj
def discard(
    path: Path | None,
    ids: tuple[str, ...],
    where: str | None,
    why: str,
    yes: bool,  # noqa: FBT001  click passes flags by name
    server: str | None,
    for_programs: bool,  # noqa: FBT001
) -> None:
    """Archive letters that nobody is to send back. They stay readable until retention lets go of them.

    \b
    Examples:
      redrive discard 06gy385tr5 --why "test data"
      redrive discard --where "source:orders error:DecodeError" --yes
    """

    async def work(store: Store, _settings: Settings) -> int:
        found = await chosen(store, ids, where)
        if found and not yes:
            click.confirm(
                f"discard {len(found)} letter{'s' if len(found) != 1 else ''}?", abort=True, err=True
            )
        return await put_away(store, found, why)

    _tell(with_store(path, server, work), "discarded", for_programs=for_programs)


async def put_away(store: Store, ids: list[str], why: str) -> int:
    """Archive these letters, by the steps that the lifecycle has; how many that were."""
    by, done = actor(), 0
    for start in range(0, len(ids), 500):
        part = ids[start : start + 500]
        held = await store.take(
            [letter.id for letter in await store.load(part) if letter.state is State.PENDING], by
        )
        await store.settle([Settlement(head.hold, Park(detail=why or "discarded")) for head in held])
        letters = await store.load(part)
        for change, state in ((Discard(why), State.MANUAL), (Archive(), State.FAILED)):
            there = [letter.id for letter in letters if letter.state is state]
            if there:
                await store.apply(change, there, by=by)
                done += len(there)
    return done


@click.command("note")
@click.argument("letter_id", metavar="ID")
@click.argument("text")
@common
@click.pass_obj
def note(
    path: Path | None,
    letter_id: str,
    text: str,
    server: str | None,
    for_programs: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Write a note beside a letter.

    \b
    Examples:
      redrive note 06gy385tr5 "asked the warehouse, wait until Monday"
    """
    _change(path, server, (letter_id,), None, Annotate(text), "annotated", for_programs=for_programs)


@click.command("assign")
@_which
@click.option("--to", "person", required=True, help="Who is to look after them; '' for nobody.")
@common
@click.pass_obj
def assign(
    path: Path | None,
    ids: tuple[str, ...],
    where: str | None,
    person: str,
    server: str | None,
    for_programs: bool,  # noqa: FBT001
) -> None:
    """Give letters to somebody to look after.

    \b
    Examples:
      redrive assign 06gy385tr5 --to anna
      redrive assign --where "group:9730603f8999838d" --to anna
    """
    words = f"assigned to {person}" if person else "assigned to nobody"
    _change(path, server, ids, where, Assign(person or None), words, for_programs=for_programs)


def _change(
    path: Path | None,
    server: str | None,
    ids: tuple[str, ...],
    where: str | None,
    change: Change,
    what: str,
    *,
    for_programs: bool,
) -> None:
    async def work(store: Store, _settings: Settings) -> int:
        found = await chosen(store, ids, where)
        for start in range(0, len(found), 500):
            await store.apply(change, found[start : start + 500], by=actor())
        return len(found)

    _tell(with_store(path, server, work), what, for_programs=for_programs)
