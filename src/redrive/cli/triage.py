"""`redrive discard`, `resolve`, `note`, `assign`, `tag`, `priority`: decisions of people about letters."""

from collections.abc import Sequence
from pathlib import Path

import click

from redrive.cli.letter_table import letter_table, plain, state_name
from redrive.cli.output import echo_paged, to_json
from redrive.cli.selection import (
    SelectionCommand,
    actor,
    confirm,
    confirm_option,
    heads_of,
    pluralise,
    portions,
    run_with_store,
    select_some,
    selection_argument,
    store_options,
)
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

_NOT_DISCARDED = (LetterState.RESOLVED, LetterState.ARCHIVED, LetterState.PROCESSING)


@click.command("discard", cls=SelectionCommand)
@selection_argument
@click.option("--reason", default="", metavar="TEXT", help="The reason, for the change log.")
@click.option("--dry-run", is_flag=True, help="List the letters that would be discarded; change nothing.")
@confirm_option
@store_options
@click.pass_obj
def discard(
    path: Path | None,
    words: tuple[str, ...],
    reason: str,
    dry_run: bool,  # noqa: FBT001  click passes flags by name
    yes: bool,  # noqa: FBT001
    server: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Discarded letters are archived: they are not redriven, and stay readable until retention deletes them.

    \b
    Examples:
      redrive discard 06gy3mn33htm7741 --reason "test data"
      redrive discard source:orders error:DecodeError --dry-run
      redrive discard source:orders error:DecodeError --yes

    Letters that are claimed, resolved or archived are left unchanged.
    """
    selection = select_some(words)

    async def work(store: Store, _settings: Settings) -> None:
        found = await selection.heads(store)
        to_discard = [head for head in found if head.state not in _NOT_DISCARDED]
        if dry_run:
            _show_discard(to_discard, len(found), as_json=as_json)
            return
        if to_discard:
            confirm(f"discard {pluralise(len(to_discard))}?", yes=yes)
        done = await discard_letters(store, [head.id for head in to_discard], reason)
        if as_json:
            click.echo(to_json({"letters": done, "left_alone": len(found) - done}))
        else:
            click.echo(f"{pluralise(done)} discarded{_describe_unchanged(len(found) - done)}")

    run_with_store(path, server, work)


def _show_discard(letters: Sequence[LetterHead], count: int, *, as_json: bool) -> None:
    left = count - len(letters)
    if as_json:
        click.echo(to_json({"dry_run": True, "letters": plain(letters), "left_alone": left}))
        return
    lines = [letter_table(letters)] if letters else []
    lines.append(f"{pluralise(len(letters))} would be discarded{_describe_unchanged(left)}")
    echo_paged("\n".join(lines))


def _describe_unchanged(count: int) -> str:
    return f", {count} unchanged (claimed, resolved or archived)" if count else ""


async def discard_letters(store: Store, ids: Sequence[str], reason: str) -> int:
    """Archive these letters by the transitions of the lifecycle; return how many."""
    done = 0
    for part in portions(ids):
        heads = await heads_of(store, part)
        pending = [head.id for head in heads.values() if head.state is LetterState.PENDING]
        claimed = await store.take(pending, actor()) if pending else []
        done += await _discard_claimed(store, claimed, reason)
        for change, state in ((Discard(reason), LetterState.MANUAL), (Archive(), LetterState.FAILED)):
            done += await change_those_that_can(
                store, change, [head.id for head in heads.values() if head.state is state], by=actor()
            )
    return done


async def _discard_claimed(store: Store, claimed: Sequence[LetterHead], reason: str) -> int:
    """Archive letters that this process has claimed; return how many."""
    if not claimed:
        return 0
    parked = await store.settle(
        [Settlement(head.claim_token, Park(detail=reason or "discarded")) for head in claimed]
    )
    ids = [head.id for head, is_parked in zip(claimed, parked, strict=True) if is_parked]
    return await change_those_that_can(store, Discard(reason), ids, by=actor())


@click.command("resolve", cls=SelectionCommand)
@selection_argument
@click.option(
    "--reason", required=True, metavar="TEXT", help="How you know that the messages were processed."
)
@confirm_option
@store_options
@click.pass_obj
def resolve(
    path: Path | None,
    words: tuple[str, ...],
    reason: str,
    yes: bool,  # noqa: FBT001  click passes flags by name
    server: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """A letter is unconfirmed if it was redriven and no verdict or dead letter arrived in time.

    \b
    Examples:
      redrive resolve 06gy3mn33htm7741 --reason "the order was shipped"
      redrive resolve unconfirmed:yes source:orders --reason "checked in the shop" --yes

    Letters that are not unconfirmed are refused. Exit codes: 0 all resolved; 1 some were refused.
    """
    if not reason.strip():
        raise SettingsError("--reason is empty; say how you know that the messages were processed")
    detail = f"confirmed by {actor()}: {reason}"
    selection = select_some(words)

    async def work(store: Store, _settings: Settings) -> tuple[list[str], dict[str, str]]:
        found = await selection.heads(store)
        unconfirmed = [head for head in found if head.unconfirmed]
        refused = {head.id: _reason_not_resolved(head) for head in found if not head.unconfirmed}
        if unconfirmed:
            confirm(f"resolve {pluralise(len(unconfirmed))}?", yes=yes)
        done: list[str] = []
        for part in portions(unconfirmed):
            settled = await store.settle(
                [Settlement(head.claim_token, Resolve(detail=detail)) for head in part]
            )
            for head, is_done in zip(part, settled, strict=True):
                if is_done:
                    done.append(head.id)
                else:
                    refused[head.id] = (
                        "a verdict or a dead letter arrived meanwhile, or it was redriven again"
                    )
        return done, refused

    done, refused = run_with_store(path, server, work)
    if as_json:
        reasons = [{"id": letter_id, "why": why} for letter_id, why in refused.items()]
        click.echo(to_json({"letters": len(done), "refused": reasons}))
    else:
        click.echo(f"{pluralise(len(done))} resolved")
        for letter_id, why in refused.items():
            click.echo(on_one_line(f"letter {letter_id} was not resolved: {why}"), err=True)
    if refused:
        raise RedriveError(f"{pluralise(len(refused))} could not be resolved")


def _reason_not_resolved(head: LetterHead) -> str:
    match head.state:
        case LetterState.PROCESSING if head.sent_at is not None and head.lease_until is not None:
            return f"it waits for its verdict until {head.lease_until:%Y-%m-%d %H:%M:%S} UTC"
        case LetterState.PROCESSING:
            return f"it is claimed by {head.locked_by} and was not sent yet"
        case LetterState.RESOLVED:
            return "it is already resolved"
        case _:
            return (
                f"it is {state_name(head.state)}, so no redrive of it waits for a verdict; "
                "use redrive discard to archive it"
            )


@click.command("note", cls=SelectionCommand)
@selection_argument
@click.option("--text", required=True, metavar="TEXT", help="The text of the note.")
@store_options
@click.pass_obj
def note(
    path: Path | None,
    words: tuple[str, ...],
    text: str,
    server: str | None,
    as_json: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Notes are shown by redrive show.

    \b
    Examples:
      redrive note 06gy3mn33htm7741 --text "asked the warehouse, wait until Monday"
      redrive note group:9730603f8999838d --text "ticket 4711"
    """
    _change(path, server, words, Annotate(text), "annotated", as_json=as_json)


@click.command("assign", cls=SelectionCommand)
@selection_argument
@click.option("--to", "person", required=True, metavar="NAME", help="The person; '' removes the assignment.")
@store_options
@click.pass_obj
def assign(
    path: Path | None,
    words: tuple[str, ...],
    person: str,
    server: str | None,
    as_json: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """The filter assignee:NAME finds them.

    \b
    Examples:
      redrive assign 06gy3mn33htm7741 --to anna
      redrive assign group:9730603f8999838d --to anna
    """
    result = f"assigned to {on_one_line(person)}" if person else "unassigned"
    _change(path, server, words, Assign(person or None), result, as_json=as_json)


@click.command("tag", cls=SelectionCommand)
@selection_argument
@click.option("--add", multiple=True, metavar="TAG", help="Add a tag; can be repeated.")
@click.option("--remove", multiple=True, metavar="TAG", help="Remove a tag; can be repeated.")
@store_options
@click.pass_obj
def tag(
    path: Path | None,
    words: tuple[str, ...],
    add: tuple[str, ...],
    remove: tuple[str, ...],
    server: str | None,
    as_json: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """The filter tag:NAME finds them.

    \b
    Examples:
      redrive tag 06gy3mn33htm7741 --add vip
      redrive tag source:orders tag:new --add checked --remove new
    """
    if not add and not remove:
        raise SettingsError("no tags given: pass --add TAG or --remove TAG")
    change = Tag(tuple(dict.fromkeys(add)), tuple(dict.fromkeys(remove)))
    _change(path, server, words, change, "tagged", as_json=as_json)


@click.command("priority", cls=SelectionCommand)
@selection_argument
@click.option("--to", "number", required=True, type=int, metavar="N", help="The new priority.")
@store_options
@click.pass_obj
def priority(
    path: Path | None,
    words: tuple[str, ...],
    number: int,
    server: str | None,
    as_json: bool,  # noqa: FBT001  click passes flags by name
) -> None:
    """Due letters are redriven by priority, the highest first, then by age.

    \b
    Examples:
      redrive priority 06gy3mn33htm7741 --to 10
      redrive priority tag:vip --to 5
    """
    _change(path, server, words, Prioritise(number), f"set to priority {number}", as_json=as_json)


def _change(
    path: Path | None,
    server: str | None,
    words: Sequence[str],
    change: Change,
    result: str,
    *,
    as_json: bool,
) -> None:
    selection = select_some(words)

    async def work(store: Store, _settings: Settings) -> int:
        done = 0
        for part in portions([head.id for head in await selection.heads(store)]):
            done += await change_those_that_can(store, change, part, by=actor())
        return done

    done = run_with_store(path, server, work)
    click.echo(to_json({"letters": done}) if as_json else f"{pluralise(done)} {result}")
