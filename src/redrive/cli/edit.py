"""`redrive edit`: change letters before they are redriven.

The original stays as it was: an edited copy that names it is added to the store, durably, and then the original is
archived. Until there is a copy the original is in state manual, so that no worker sends both, at whatever point this
process ends. An interrupted edit can be repeated: the same edit of the same letter gives the same copy, and copies
carry a tag by which a filter skips letters that this edit has already produced.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from redrive.cli.broker_choice import FoundBroker, find_broker
from redrive.cli.letter_table import plain
from redrive.cli.operations import as_data, check, not_sent, show_reasons, summary
from redrive.cli.output import to_json
from redrive.cli.progress import progress
from redrive.cli.selection import (
    BATCH_SIZE,
    SelectionCommand,
    actor,
    check_can_ask,
    confirm,
    confirm_option,
    pluralise,
    portions,
    run_with_store,
    select_some,
    selection_argument,
    store_options,
)
from redrive.cli.send import check_health, send, sending_options
from redrive.clock import SystemClock
from redrive.errors import FormatError, RedriveError, SettingsError, on_one_line
from redrive.letters import DeadLetter, LetterHead, LetterState, Message
from redrive.recover.retention import NEVER_DUE
from redrive.replay import edit as editing
from redrive.replay.difference import changes, diff
from redrive.replay.options import ReplayOptions
from redrive.replay.plain import body_of, read_json, write_json
from redrive.replay.plan import by_ids, of_broker, plan
from redrive.settings import Settings
from redrive.stores.base import Store
from redrive.stores.changes import Annotate, Archive, Discard, Park, Settlement
from redrive.stores.many import change_those_that_can, load_those_there
from redrive.stores.operations import Operation
from redrive.transports.redriving import attempts_of

_MAX_SHOWN: Final = 20  # differences that are shown before the confirmation
_LEASE: Final = timedelta(minutes=1)
_CLOSED_STATES: Final = (LetterState.RESOLVED, LetterState.ARCHIVED)


@click.command("edit", cls=SelectionCommand)
@selection_argument
@click.option("--patch", metavar="JSON|@FILE", help="Apply a JSON Patch (RFC 6902) to the body.")
@click.option("--merge", metavar="JSON|@FILE", help="Apply a JSON Merge Patch (RFC 7386) to the body.")
@click.option(
    "--expr",
    metavar="EXPRESSION",
    help="Assignments to body and headers, such as body.total = body.total / 100.",
)
@click.option(
    "--set-header", "set_headers", metavar="NAME=VALUE", multiple=True, help="Set a header; can be repeated."
)
@click.option(
    "--remove-header",
    "remove_headers",
    metavar="NAME",
    multiple=True,
    help="Remove a header; can be repeated.",
)
@click.option(
    "--body",
    "body_file",
    metavar="FILE",
    type=click.File("rb"),
    help="Replace the body with a file; - reads standard input.",
)
@click.option("--editor", is_flag=True, help="Open the body of one letter in $EDITOR.")
@click.option("--include-closed", is_flag=True, help="Also edit resolved or archived letters.")
@click.option("--dry-run", is_flag=True, help="Show the differences; change nothing.")
@click.option("--replay", "replay_now", is_flag=True, help="Send the edited letters immediately.")
@sending_options(only="With --replay")
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
    """The original is kept, archived, and the edited letter is a copy of it.

    \b
    Examples:
      redrive edit 06gy3mn33htm7741 --editor --replay
      redrive edit 06gy3mn33htm7741 --patch '[{"op": "replace", "path": "/total", "value": 5}]'
      redrive edit group:9730603f8999838d --expr "body.total = body.total / 100" --dry-run
      redrive edit source:orders --set-header x-tenant=north --yes

    The differences are shown before the confirmation. Several edits are applied in the order of the options above, the
    body first. Exit codes: 0 done; 1 some letters could not be edited or sent.
    """
    selection = select_some(words)

    async def work(store: Store, settings: Settings) -> None:
        found = await selection.heads(store)
        the_edit = await _edit(store, found, given)
        outcome = await _preview(store, found, the_edit, given, by_filter=not selection.ids)
        if not as_json:
            _show(outcome, in_dry_run=given["dry_run"])
        if given["dry_run"] or not outcome.made:
            _print_result(outcome, None, given, as_json=as_json)
            _check(outcome, None)
            return
        check_can_ask(yes=given["yes"])
        broker = (
            await _broker(store, settings, found, outcome, given, quiet=as_json)
            if given["replay_now"]
            else None
        )
        to_broker = f" and send to broker '{broker.name}'" if broker is not None else ""
        confirm(f"edit {pluralise(len(outcome.made))}{to_broker}?", yes=given["yes"])
        max_redrives = settings.strategy_options().max_redrives
        await _carry_out(store, outcome, the_edit, max_redrives, quiet=as_json)
        operation, problem = None, None
        if broker is not None and outcome.made:
            try:
                operation = await _send(store, settings, outcome, broker, quiet=as_json)
            except RedriveError as error:
                error.args = (_edited_not_sent(outcome, the_edit, error),)  # the type of the error stays
                problem = error
        _print_result(outcome, operation, given, broker, as_json=as_json)
        if operation is not None and not as_json:
            show_reasons(operation, await not_sent(store, operation))
        if problem is not None:
            raise problem
        _check(outcome, operation)

    run_with_store(path, server, work)


class _Made(msgspec.Struct):
    """One letter and its edited copy."""

    id: str
    copy: str
    old: Message | None  # only as long as they are shown
    new: Message | None
    changes: list[Any]


class _Outcome(msgspec.Struct):
    """The result of an edit, or of its dry run."""

    made: list[_Made]
    unchanged: list[str]
    refused: list[tuple[str, str]]  # id and reason
    left_alone: list[str]
    at_limit: list[str]  # copies in state manual: their message was redriven too often


# --- reading the edit ------------------------------------------------------------------------------------------


async def _edit(store: Store, found: Sequence[LetterHead], given: Mapping[str, Any]) -> editing.Edit:
    edits: list[editing.Edit] = []
    if given["body_file"] is not None:
        edits.append(editing.NewBody(given["body_file"].read()))
    if given["editor"]:
        if given["body_file"] is not None:
            raise SettingsError("--editor and --body cannot be combined")
        edits.append(await _from_editor(store, found))
    if given["patch"] is not None:
        edits.append(editing.JsonPatch(_text(given["patch"])))
    if given["merge"] is not None:
        edits.append(editing.MergePatch(_text(given["merge"])))
    if given["expr"] is not None:
        edits.append(editing.Expression(given["expr"]))
    if given["set_headers"] or given["remove_headers"]:
        edits.append(editing.header_edit(given["set_headers"], given["remove_headers"]))
    if not edits:
        raise SettingsError(
            "no edit given: pass --patch, --merge, --expr, --set-header, --remove-header, --body or --editor"
        )
    return edits[0] if len(edits) == 1 else editing.Several(tuple(edits))


def _text(given: str) -> str:
    """The text itself, or the content of the file after `@`."""
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"{given[1:]} cannot be read: {why}") from None


async def _from_editor(store: Store, found: Sequence[LetterHead]) -> editing.NewBody:
    if len(found) != 1:
        raise SettingsError(f"--editor takes one letter, got {len(found)}")
    (letter,) = await store.load([found[0].id])
    shown, is_json = _editable(letter)
    text = await asyncio.to_thread(click.edit, shown, extension=".json" if is_json else ".txt")
    if text is None or text == shown:
        raise RedriveError("nothing was changed: the editor was closed without saving")
    if is_json:
        return editing.NewBody(write_json(read_json(text, "the edited body"), "the edited body"))
    # An editor ends the last line; a body that did not have that keeps its end.
    if text.endswith("\n") and not shown.endswith("\n"):
        text = text[:-1]
    return editing.NewBody(text.encode())


def _editable(letter: DeadLetter) -> tuple[str, bool]:
    """The body as an editor shows it, and whether it is JSON."""
    body = letter.message.body or b""
    try:
        value = write_json(body_of(letter.message), "the body")
    except FormatError:
        try:
            return body.decode(), False
        except UnicodeDecodeError:
            raise FormatError(f"the body of {letter.id} is not text; replace it with --body FILE") from None
    return msgspec.json.format(value, indent=2).decode() + "\n", True


# --- applying it ----------------------------------------------------------------------------------------


async def _preview(
    store: Store,
    found: Sequence[LetterHead],
    the_edit: editing.Edit,
    given: Mapping[str, Any],
    *,
    by_filter: bool,
) -> _Outcome:
    change, tag = editing.prepare(the_edit), _tag(the_edit)
    outcome = _Outcome([], [], [], [], [])
    to_edit: list[str] = []
    for head in found:
        editable = head.state is not LetterState.PROCESSING and (
            given["include_closed"] or head.state not in _CLOSED_STATES
        )
        done_before = by_filter and tag in head.tags
        (to_edit if editable and not done_before else outcome.left_alone).append(head.id)
    for part in portions(to_edit):
        for letter in await load_those_there(store, part):
            _try(letter, change, outcome)
    return outcome


def _try(letter: DeadLetter, change: editing.Change, outcome: _Outcome) -> None:
    try:
        new = change(letter.message)
        if new == letter.message:
            outcome.unchanged.append(letter.id)
            return
        copy = editing.edited_copy(letter, new, by=actor(), at=SystemClock().now())
    except FormatError as error:
        outcome.refused.append((letter.id, str(error)))
        return
    shown = len(outcome.made) < _MAX_SHOWN
    outcome.made.append(
        _Made(
            letter.id,
            copy.id,
            letter.message if shown else None,
            new if shown else None,
            plain(changes(letter.message, new)),
        )
    )


def _tag(the_edit: editing.Edit) -> str:
    """The tag of the copies that this edit produces."""
    return f"edit:{blake2b(editing.write(the_edit).encode(), digest_size=5).hexdigest()}"


async def _carry_out(
    store: Store, outcome: _Outcome, the_edit: editing.Edit, max_redrives: int, *, quiet: bool
) -> None:
    change, tag = editing.prepare(the_edit), _tag(the_edit)
    made = {one.id: one for one in outcome.made}
    done: list[_Made] = []
    with progress(len(made), quiet=quiet) as show:
        for part in portions(list(made), BATCH_SIZE):
            swapped, at_limit = await _swap(store, part, change, tag, max_redrives)
            outcome.at_limit += at_limit
            done += [made[each] for each in swapped]
            outcome.left_alone += [each for each in part if each not in swapped]
            show(len(done), "editing", "")
    outcome.made = done


async def _swap(
    store: Store, ids: Sequence[str], change: editing.Change, tag: str, max_redrives: int
) -> tuple[set[str], list[str]]:
    """Replace these letters by copies; return the replaced letters, and the copies at the limit of redrives.

    A worker would close a copy whose message was redriven as often as the limit permits. Such a copy is never due: it
    is in state manual, and a person replays it.
    """
    letters = await load_those_there(store, ids)
    pending = [letter.id for letter in letters if letter.state is LetterState.PENDING]
    parked = await _parked(store, pending, "being edited")
    ours = [
        letter
        for letter in letters
        if letter.id in parked or letter.state in {LetterState.MANUAL, LetterState.FAILED, *_CLOSED_STATES}
    ]
    at = SystemClock().now()
    copies: dict[str, DeadLetter] = {}
    for letter in ours:
        copy = editing.edited_copy(letter, change(letter.message), by=actor(), at=at)
        is_at_limit = attempts_of(copy) >= max_redrives
        copies[letter.id] = msgspec.structs.replace(
            copy,
            tags=tuple(dict.fromkeys((*copy.tags, tag))),
            next_retry_at=NEVER_DUE if is_at_limit else copy.next_retry_at,
        )
    await store.add(list(copies.values()))
    at_limit = [copy.id for copy in copies.values() if copy.next_retry_at == NEVER_DUE]
    await _parked(store, at_limit, f"its message was redriven {max_redrives} times, which is the limit")
    await asyncio.gather(*(_archive(store, letter, copies[letter.id].id) for letter in ours))
    return set(copies), at_limit


async def _parked(store: Store, ids: Sequence[str], reason: str) -> set[str]:
    """Set letters to state manual, so that no worker sends them; return those for which this succeeded."""
    if not ids:
        return set()
    held = await store.take(ids, actor(), lease=_LEASE)
    done = await store.settle([Settlement(head.claim_token, Park(detail=reason)) for head in held])
    return {head.id for head, is_ours in zip(held, done, strict=True) if is_ours}


async def _archive(store: Store, letter: DeadLetter, copy: str) -> None:
    """Archive an original; a store combines many of these changes into one write."""
    why = f"edited: replaced by {copy}"
    if letter.state is LetterState.FAILED:
        await change_those_that_can(store, Annotate(why), [letter.id], by=actor())
        await change_those_that_can(store, Archive(), [letter.id], by=actor())
    elif letter.state not in _CLOSED_STATES:
        await change_those_that_can(store, Discard(why), [letter.id], by=actor())


async def _broker(
    store: Store,
    settings: Settings,
    found: Sequence[LetterHead],
    outcome: _Outcome,
    given: Mapping[str, Any],
    *,
    quiet: bool,
) -> FoundBroker:
    """The broker for the edited letters; an error, before any edit, if nothing could be sent."""
    made = {one.id for one in outcome.made}
    letters = [head for head in found if head.id in made]
    consequence = "nothing was edited or sent"
    broker = await find_broker(store, settings, given["broker"], letters, consequence=consequence)
    if not given["force"]:
        options = _replay_options(settings)
        await check_health(store, settings, letters, options, broker, consequence, quiet=quiet)
    return broker


def _replay_options(settings: Settings) -> ReplayOptions:
    """The defaults of `redrive replay`. An edited copy is sent regardless of the limit of redrives."""
    return ReplayOptions(verdict_timeout=settings.recover.verdict_timeout, over_limit=True)


async def _send(
    store: Store, settings: Settings, outcome: _Outcome, broker: FoundBroker, *, quiet: bool
) -> Operation | None:
    copies = of_broker(by_ids([one.copy for one in outcome.made]), broker.name)
    frozen = await plan(store, copies, words="edited letters")
    if broker.others and not quiet:
        click.echo(on_one_line(broker.describe_others()), err=True)
    if not frozen.letters:
        return None
    return await send(store, settings, frozen, _replay_options(settings), broker, quiet=quiet)


# --- output ----------------------------------------------------------------------------------------


def _show(outcome: _Outcome, *, in_dry_run: bool) -> None:
    for one in outcome.made:
        if one.old is None or one.new is None:
            break
        click.echo(click.style(f"letter {one.id}", bold=True))
        for line in diff(one.old, one.new).splitlines():
            colour = {"+": "green", "-": "red"}.get(line[:1])
            click.echo(click.style(line, fg=colour) if colour else line)
    if len(outcome.made) > _MAX_SHOWN:
        more = " (--json has all)" if in_dry_run else ""
        click.echo(f"… and {pluralise(len(outcome.made) - _MAX_SHOWN)} more{more}")
    for letter_id, why in outcome.refused:
        click.echo(on_one_line(f"letter {letter_id} was not edited: {why}"), err=True)


def _print_result(
    outcome: _Outcome,
    operation: Operation | None,
    given: Mapping[str, Any],
    broker: FoundBroker | None = None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        click.echo(
            to_json(
                {
                    "dry_run": given["dry_run"],
                    "edited": [
                        {"id": one.id, "copy": one.copy, "changes": one.changes} for one in outcome.made
                    ],
                    "unchanged": outcome.unchanged,
                    "refused": [{"id": letter_id, "why": why} for letter_id, why in outcome.refused],
                    "left_alone": outcome.left_alone,
                    "at_limit": outcome.at_limit,
                    "operation": None if operation is None else plain(as_data(operation)),
                    "other_brokers": {} if broker is None else dict(broker.others),
                }
            )
        )
    else:
        _print_summary(outcome, operation, given)


def _edited_not_sent(outcome: _Outcome, the_edit: editing.Edit, error: RedriveError) -> str:
    count = len(outcome.made)
    copies = "1 copy was" if count == 1 else f"{count} copies were"
    which = outcome.made[0].copy if count == 1 else f"tag:{_tag(the_edit)}"
    return f"edited, but {copies} not sent: {error}; send with: redrive replay {which}"


def _check(outcome: _Outcome, operation: Operation | None) -> None:
    """A `RedriveError` if a letter was not edited or not sent."""
    if operation is not None:
        check(operation)
    if outcome.refused:
        raise RedriveError(f"{pluralise(len(outcome.refused))} could not be edited")


def _print_summary(outcome: _Outcome, operation: Operation | None, given: Mapping[str, Any]) -> None:
    result = "would be edited" if given["dry_run"] else "edited"
    parts = [f"{pluralise(len(outcome.made))} {result}"]
    if outcome.unchanged:
        parts.append(f"{len(outcome.unchanged)} not changed by the edit")
    if outcome.refused:
        parts.append(f"{len(outcome.refused)} could not be edited")
    if outcome.left_alone:
        parts.append(f"{len(outcome.left_alone)} skipped (claimed, closed, or edited before)")
    click.echo(", ".join(parts))
    if not given["dry_run"] and len(outcome.made) == 1:
        click.echo(f"the copy is {outcome.made[0].copy}")
    if outcome.at_limit and not given["replay_now"]:
        click.echo(
            f"{pluralise(len(outcome.at_limit))} at the limit of redrives (recover.max_redrives): state manual, not "
            f"sent by workers; send with: redrive replay {' '.join(outcome.at_limit[:_MAX_SHOWN])}"
        )
    if operation is not None:
        click.echo(summary(operation))
