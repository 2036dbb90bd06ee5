"""`redrive discard`, `resolve`, `note`, `assign`, `tag`, `priority`: what people do to letters."""

from collections.abc import Sequence
from pathlib import Path

import click

from redrive.cli.letters import (
    actor,
    ask_first,
    asking,
    chosen,
    common,
    counted,
    heads_of,
    portions,
    which,
    with_store,
)
from redrive.cli.output import as_json
from redrive.errors import RedriveError, SettingsError, on_one_line
from redrive.letters import LetterHead, LetterState
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.changes import (
    Annotate,
    Archive,
    Assign,
    Change,
    Discard,
    Park,
    Prioritise,
    Resolve,
    Settlement,
    Tag,
)
from redrive.stores.many import change_those_that_can

_OVER = (LetterState.RESOLVED, LetterState.ARCHIVED)


@click.command("discard")
@which
@click.option("--why", default="", help="The reason, for the journal.")
@asking
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

    Letters that are held, resolved or archived already are left alone.
    """

    async def work(store: Store, _settings: Settings) -> tuple[int, int]:
        found = await chosen(store, ids, where)
        going = [head.id for head in found if head.state not in (*_OVER, LetterState.PROCESSING)]
        if going:
            ask_first(f"discard {counted(len(going))}?", yes=yes)
        return await put_away(store, going, why), len(found)

    done, all_of_them = with_store(path, server, work)
    left = all_of_them - done
    if for_programs:
        click.echo(as_json({"letters": done, "left_alone": left}))
        return
    click.echo(f"{counted(done)} discarded" + (f", {left} left alone: held, or over" if left else ""))


async def put_away(store: Store, ids: Sequence[str], why: str) -> int:
    """Archive these letters, by the steps that the lifecycle has; how many that were."""
    done = 0
    for part in portions(ids):
        heads = await heads_of(store, part)
        pending = [head.id for head in heads.values() if head.state is LetterState.PENDING]
        held = await store.take(pending, actor()) if pending else []
        done += await _put_held_away(store, held, why)
        for change, state in ((Discard(why), LetterState.MANUAL), (Archive(), LetterState.FAILED)):
            done += await change_those_that_can(
                store, change, [head.id for head in heads.values() if head.state is state], by=actor()
            )
    return done


async def _put_held_away(store: Store, held: Sequence[LetterHead], why: str) -> int:
    """Archive letters that are in our hands; how many that were."""
    if not held:
        return 0
    parked = await store.settle(
        [Settlement(head.claim_token, Park(detail=why or "discarded")) for head in held]
    )
    ours = [head.id for head, is_ours in zip(held, parked, strict=True) if is_ours]
    return await change_those_that_can(store, Discard(why), ours, by=actor())


@click.command("resolve")
@which
@click.option("--reason", required=True, metavar="TEXT", help="How you know that they were processed.")
@asking
@common
@click.pass_obj
def resolve(
    path: Path | None,
    ids: tuple[str, ...],
    where: str | None,
    reason: str,
    yes: bool,  # noqa: FBT001  click passes flags by name
    server: str | None,
    for_programs: bool,  # noqa: FBT001
) -> None:
    """Confirm that unconfirmed letters were processed. They become resolved.

    \b
    Examples:
      redrive resolve 06gy385tr5 --reason "the order was shipped"
      redrive resolve --where "unconfirmed:yes source:orders" --reason "checked in the shop" --yes

    A letter is unconfirmed if it was redriven and neither a verdict nor a dead letter came in time; other letters are
    refused. Exit codes: 0 all resolved; 1 some were refused.
    """
    if not reason.strip():
        raise SettingsError("--reason is empty; say how you know that the letters were processed")
    detail = f"confirmed by {actor()}: {reason}"

    async def work(store: Store, _settings: Settings) -> tuple[list[str], dict[str, str]]:
        found = await chosen(store, ids, where)
        waiting = [head for head in found if head.unconfirmed]
        refused = {head.id: _why_not_resolved(head) for head in found if not head.unconfirmed}
        if waiting:
            ask_first(f"resolve {counted(len(waiting))}?", yes=yes)
        done: list[str] = []
        for part in portions(waiting):
            settled = await store.settle(
                [Settlement(head.claim_token, Resolve(detail=detail)) for head in part]
            )
            for head, is_done in zip(part, settled, strict=True):
                if is_done:
                    done.append(head.id)
                else:
                    refused[head.id] = (
                        "it changed meanwhile: a verdict or a dead letter came, or it was sent again"
                    )
        return done, refused

    done, refused = with_store(path, server, work)
    if for_programs:
        told = [{"id": letter_id, "why": why} for letter_id, why in refused.items()]
        click.echo(as_json({"letters": len(done), "refused": told}))
    else:
        click.echo(f"{counted(len(done))} resolved")
        for letter_id, why in refused.items():
            click.echo(on_one_line(f"letter {letter_id} cannot be resolved: {why}"), err=True)
    if refused:
        raise RedriveError(f"{counted(len(refused))} cannot be resolved")


def _why_not_resolved(head: LetterHead) -> str:
    match head.state:
        case LetterState.PROCESSING if head.sent_at is not None and head.lease_until is not None:
            return f"it waits for its verdict until {head.lease_until:%Y-%m-%d %H:%M:%S} UTC"
        case LetterState.PROCESSING:
            return f"it is claimed by {head.locked_by} and not sent yet"
        case LetterState.RESOLVED:
            return "it is resolved already"
        case _:
            state = str(head.state).removeprefix("dlq_")
            return (
                f"it is {state}, so no redrive of it waits for a verdict; use redrive discard to put it away"
            )


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
@which
@click.option("--to", "person", required=True, help="Who is to look after them; '' for nobody.")
@common
@click.pass_obj
def assign(
    path: Path | None,
    ids: tuple[str, ...],
    where: str | None,
    person: str,
    server: str | None,
    for_programs: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Give letters to somebody to look after.

    \b
    Examples:
      redrive assign 06gy385tr5 --to anna
      redrive assign --where "group:9730603f8999838d" --to anna
    """
    words = f"assigned to {on_one_line(person)}" if person else "assigned to nobody"
    _change(path, server, ids, where, Assign(person or None), words, for_programs=for_programs)


@click.command("tag")
@which
@click.option("--add", multiple=True, metavar="TAG", help="A tag to add; may be given several times.")
@click.option("--remove", multiple=True, metavar="TAG", help="A tag to remove; may be given several times.")
@common
@click.pass_obj
def tag(
    path: Path | None,
    ids: tuple[str, ...],
    where: str | None,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    server: str | None,
    for_programs: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Add tags to letters, or remove them.

    \b
    Examples:
      redrive tag 06gy385tr5 --add vip
      redrive tag --where "source:orders tag:new" --add checked --remove new
    """
    if not add and not remove:
        raise SettingsError("nothing to change: give --add TAG or --remove TAG")
    change = Tag(tuple(dict.fromkeys(add)), tuple(dict.fromkeys(remove)))
    _change(path, server, ids, where, change, "tagged", for_programs=for_programs)


@click.command("priority")
@which
@click.option(
    "--to", "number", required=True, type=int, metavar="N", help="The new priority; higher is redriven first."
)
@common
@click.pass_obj
def priority(
    path: Path | None,
    ids: tuple[str, ...],
    where: str | None,
    number: int,
    server: str | None,
    for_programs: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Set the priority of letters. Due letters are redriven by priority, then by age.

    \b
    Examples:
      redrive priority 06gy385tr5 --to 10
      redrive priority --where "tag:vip" --to 5
    """
    words = f"given priority {number}"
    _change(path, server, ids, where, Prioritise(number), words, for_programs=for_programs)


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
        found = [head.id for head in await chosen(store, ids, where)]
        done = 0
        for part in portions(found):
            done += await change_those_that_can(store, change, part, by=actor())
        return done

    done = with_store(path, server, work)
    click.echo(as_json({"letters": done}) if for_programs else f"{counted(done)} {what}")
