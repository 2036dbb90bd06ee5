"""`redrive show`: everything about one letter, and its journey."""

import base64
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from redrive.cli.letters import COLOURS, ago, common, counted, full_ids, plain, with_store
from redrive.cli.output import as_json
from redrive.cli.table import table
from redrive.errors import on_one_line
from redrive.letters import DeadLetter, LetterState, TypedValue
from redrive.letters.headers import Headers, HeaderValue
from redrive.settings import Settings
from redrive.stores.base import JournalLine, Store
from redrive.transports.redriving import attempts_of

_MOST_SHOWN: Final = 4096  # bytes of a body
_PAGE: Final = 1000


@click.command("show")
@click.argument("letter_id", metavar="ID")
@click.option("--body/--no-body", default=True, help="With the message's body and headers.")
@click.option("--stack", is_flag=True, help="With the stack of the error.")
@common
@click.pass_obj
def command(
    path: Path | None,
    letter_id: str,
    body: bool,  # noqa: FBT001  click passes flags by name
    stack: bool,  # noqa: FBT001
    server: str | None,
    for_programs: bool,  # noqa: FBT001
) -> None:
    """Show a letter: what died, where, why, and what was tried since.

    \b
    Examples:
      redrive show 06gy385tr5
      redrive show 06gy385tr5 --stack
      redrive show 06gy385tr5 --no-body --json

    The beginning of an id is enough.
    """

    async def work(store: Store, _settings: Settings) -> tuple[DeadLetter, list[JournalLine]]:
        (whole,) = await full_ids(store, [letter_id])
        (letter,) = await store.load([whole])
        return letter, await _whole_journal(store, whole)

    letter, journal = with_store(path, server, work)
    if for_programs:
        click.echo(as_json(as_data(letter, journal, body=body)))
        return
    for line in _lines(letter, journal, body=body, stack=stack):
        click.echo(line)


async def _whole_journal(store: Store, letter_id: str) -> list[JournalLine]:
    lines: list[JournalLine] = []
    while part := await store.journal(letter_id, after=lines[-1].number if lines else 0, limit=_PAGE):
        lines += part
        if len(part) < _PAGE:
            break
    return lines


def as_data(letter: DeadLetter, journal: list[JournalLine], *, body: bool) -> dict[str, Any]:
    """The letter as JSON has it; bytes as base64."""
    fields = msgspec.structs.asdict(letter)
    message = fields.pop("message")
    # Parts that are stored as arrays are shown with the names of their fields.
    answer = {
        name: plain(msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value)
        for name, value in fields.items()
    }
    answer["came_back"] = came_back(letter)
    answer["journal"] = plain(journal)
    if body:
        answer["message"] = {
            "body": None if message.body is None else base64.b64encode(message.body).decode(),
            "key": None if message.key is None else base64.b64encode(message.key).decode(),
            "headers": [[name, header_data(value)] for name, value in message.headers],
            "properties": [[name, header_data(value)] for name, value in message.properties],
            "content_type": message.content_type,
            "content_encoding": message.content_encoding,
            "message_id": message.message_id,
            "correlation_id": message.correlation_id,
            "sent_at": plain(message.sent_at),
        }
    return answer


def came_back(letter: DeadLetter) -> int:
    """How often the message was redriven without success, over all letters that were made of it."""
    return attempts_of(letter) - (letter.state is LetterState.RESOLVED)


def header_data(value: HeaderValue) -> Any:
    """A header's value as JSON has it."""
    if isinstance(value, TypedValue):
        return header_data(value.value)
    if isinstance(value, Headers):
        return {name: header_data(inner) for name, inner in value}
    if isinstance(value, tuple):
        return [header_data(inner) for inner in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return plain(value)


def _lines(letter: DeadLetter, journal: list[JournalLine], *, body: bool, stack: bool) -> list[str]:
    state = click.style(str(letter.state), fg=COLOURS[letter.state], bold=True)
    origin = letter.origin
    way = (
        f" (exchange {origin.exchange or 'default'}, key {origin.routing_key})" if origin.routing_key else ""
    )
    rows = [
        ("letter", letter.id),
        ("state", state + _doubt(letter)),
        (
            "broker",
            f"{letter.broker} ({origin.transport}{f' at {origin.endpoint}' if origin.endpoint else ''})",
        ),
        ("source", f"{letter.source}{way}"),
        *([("consumer group", letter.consumer_group)] if letter.consumer_group else []),
        ("reason", letter.reason),
        ("error", f"{letter.error_type}: {letter.failure.text}"),
        ("kind", f"{letter.kind} (rule {letter.failure.rule})"),
        ("group", letter.group),
        ("correlation", letter.correlation_id),
        ("message id", letter.message_id or "none"),
        ("failed", f"{letter.last_failed_at:%Y-%m-%d %H:%M:%S} UTC, {ago(letter.last_failed_at)}"),
        (
            "attempts",
            f"{letter.retry_count} by its consumer, {counted(letter.dlq_retry_count, 'redrive')} since",
        ),
        *([("came back", _came_back(letter, times))] if (times := came_back(letter)) else []),
        ("strategy", letter.strategy or "not chosen yet"),
    ]
    if str(letter.state) == "dlq_pending":
        rows.append(("due", f"{letter.next_retry_at:%Y-%m-%d %H:%M:%S} UTC, {ago(letter.next_retry_at)}"))
        if letter.waits_for:
            rows.append(("waits for", letter.waits_for))
    if letter.locked_by:
        rows.append(("claimed by", letter.locked_by + (", waits for its verdict" if letter.sent_at else "")))
    if letter.system_state is not None:
        load = letter.system_state
        rows.append(("machine", f"CPU {load.cpu_usage:.0%}, memory {load.memory_usage:.0%} when it failed"))
    if letter.tags:
        rows.append(("tags", ", ".join(letter.tags)))
    if letter.assignee:
        rows.append(("assigned to", letter.assignee))
    if letter.derived_from:
        rows.append(("derived from", letter.derived_from))
    lines = [f"{name:<14} {value if name == 'state' else on_one_line(value)}" for name, value in rows]
    lines += _journey(letter, journal)
    if stack and letter.failure.stack:
        lines += ["", click.style("stack", bold=True)]
        lines += [on_one_line(line) for line in letter.failure.stack.rstrip().splitlines()]
    if body:
        lines += _message(letter)
    return lines


def _doubt(letter: DeadLetter) -> str:
    if letter.unconfirmed:
        return " (unconfirmed: redriven, and neither a verdict nor a dead letter came in time)"
    return " (presumed: the message was taken, and no verdict came)" if letter.presumed else ""


def _came_back(letter: DeadLetter, times: int) -> str:
    """How often it came back, and as which letter before."""
    total = counted(times, "time")
    if letter.derived_from is None:
        return total
    return f"{total} over all cycles, also as {letter.derived_from}, from which this letter is derived"


def _journey(letter: DeadLetter, journal: list[JournalLine]) -> list[str]:
    """What happened to it, in the order of time."""
    collected = letter.origin.dead_letter_source
    steps: list[tuple[datetime, str, str, str]] = [
        (letter.first_failed_at, "died", letter.source, letter.reason),
        (letter.created_at, "collected" if collected else "added", collected or "", ""),
    ]
    steps += [(line.at, _step(line), line.actor, line.detail) for line in journal]
    steps.sort(key=lambda step: step[0])
    rows = [[f"{at:%Y-%m-%d %H:%M:%S}", what, who, detail] for at, what, who, detail in steps]
    lines = ["", table(("when (UTC)", "what", "who", "detail"), rows)]
    if letter.attempts:
        tries = [
            [
                str(one.number),
                f"{one.started_at:%Y-%m-%d %H:%M:%S}",
                one.strategy or "",
                one.worker,
                one.result,
                one.detail,
            ]
            for one in letter.attempts
        ]
        lines += ["", table(("redrive", "when (UTC)", "strategy", "worker", "result", "detail"), tries)]
    if letter.notes:
        notes = [[f"{note.at:%Y-%m-%d %H:%M:%S}", note.author, note.text] for note in letter.notes]
        lines += ["", table(("note (UTC)", "by", "text"), notes)]
    return lines


def _step(line: JournalLine) -> str:
    if line.before == line.after or line.after is None:
        return line.action
    return f"{line.action} → {line.after.removeprefix('dlq_')}"


def _message(letter: DeadLetter) -> list[str]:
    message = letter.message
    lines = ["", click.style("headers", bold=True)] if message.headers else []
    lines += [
        f"  {on_one_line(name)}: {on_one_line(str(header_data(value)))}" for name, value in message.headers
    ]
    body = message.body
    size = "null" if body is None else counted(len(body), "byte")
    lines += [
        "",
        click.style(on_one_line(f"body ({message.content_type or 'no content type'}, {size})"), bold=True),
    ]
    if body:
        text = body[:_MOST_SHOWN].decode("utf-8", "backslashreplace")
        lines.append("\n".join(on_one_line(line) for line in text.splitlines()))
        if len(body) > _MOST_SHOWN:
            lines.append(f"… and {len(body) - _MOST_SHOWN} bytes more; redrive export has all of it")
    return lines
