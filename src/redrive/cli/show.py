"""`redrive show`: one letter with its message and its history."""

import base64
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from redrive.cli.completion import complete_selection
from redrive.cli.letter_table import COLOURS, plain, relative_time, state_name
from redrive.cli.output import echo_paged, to_json
from redrive.cli.selection import full_ids, pluralise, run_with_store, store_options
from redrive.cli.table import table
from redrive.errors import on_one_line
from redrive.letters import DeadLetter, LetterState, Message, TypedValue
from redrive.letters.headers import Headers, HeaderValue
from redrive.settings import Settings
from redrive.stores.base import JournalLine, Store
from redrive.transports.redriving import attempts_of

_MAX_BODY_BYTES: Final = 4096  # of a body that is text
_MAX_HEX_BYTES: Final = 512  # of a body that is not
_PAGE_SIZE: Final = 1000


@click.command("show")
@click.argument("letter_id", metavar="ID", shell_complete=complete_selection)
@click.option(
    "--body/--no-body", default=True, help="Show the body and headers of the message, or leave them out."
)
@click.option("--stack", is_flag=True, help="Show the stack trace of the error.")
@store_options
@click.pass_obj
def command(
    path: Path | None,
    letter_id: str,
    body: bool,  # noqa: FBT001  click passes flags by name
    stack: bool,  # noqa: FBT001
    server: str | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """The first characters of the id are enough.

    \b
    Examples:
      redrive show 06gy3mn33htm7741
      redrive show 06gy3mn33htm7741 --stack
      redrive show 06gy3mn33htm7741 --no-body --json
    """

    async def work(store: Store, _settings: Settings) -> tuple[DeadLetter, list[JournalLine]]:
        (whole,) = await full_ids(store, [letter_id])
        (letter,) = await store.load([whole])
        return letter, await _whole_journal(store, whole)

    letter, journal = run_with_store(path, server, work)
    if as_json:
        click.echo(to_json(as_data(letter, journal, body=body)))
        return
    echo_paged("\n".join(_lines(letter, journal, body=body, stack=stack)))


async def _whole_journal(store: Store, letter_id: str) -> list[JournalLine]:
    lines: list[JournalLine] = []
    while part := await store.journal(letter_id, after=lines[-1].number if lines else 0, limit=_PAGE_SIZE):
        lines += part
        if len(part) < _PAGE_SIZE:
            break
    return lines


def as_data(letter: DeadLetter, journal: list[JournalLine], *, body: bool) -> dict[str, Any]:
    """The letter as JSON values; bytes as base64."""
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
        answer["message"] = message_data(message)
    return answer


def message_data(message: Message) -> dict[str, Any]:
    """The message as JSON values; body and key as base64."""
    return {
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


def came_back(letter: DeadLetter) -> int:
    """How often the message was redriven without success, counted over all letters derived from it."""
    return attempts_of(letter) - (letter.state is LetterState.RESOLVED)


def header_data(value: HeaderValue) -> Any:
    """The value of a header as JSON values."""
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
    state = click.style(state_name(letter.state), fg=COLOURS[letter.state], bold=True)
    origin = letter.origin
    rows = [
        ("letter", letter.id),
        ("state", state + _doubt(letter)),
        (
            "broker",
            f"{letter.broker} ({origin.transport}{f' at {origin.endpoint}' if origin.endpoint else ''})",
        ),
        ("source", f"{letter.source}{_position(letter)}"),
        *([("consumer group", letter.consumer_group)] if letter.consumer_group else []),
        ("reason", letter.reason),
        ("error", f"{letter.error_type}: {letter.failure.text}"),
        ("kind", str(letter.kind) + (f" (rule {letter.failure.rule})" if letter.failure.rule else "")),
        ("group", letter.group),
        ("correlation", letter.correlation_id),
        ("message id", letter.message_id or "none"),
        *([("key", _text(letter.message.key))] if letter.message.key is not None else []),
        ("failed", f"{letter.last_failed_at:%Y-%m-%d %H:%M:%S} UTC, {relative_time(letter.last_failed_at)}"),
        (
            "attempts",
            f"{letter.retry_count} by its consumer, {pluralise(letter.dlq_retry_count, 'redrive')} since",
        ),
        *([("failed again", _came_back(letter, times))] if (times := came_back(letter)) else []),
        ("strategy", letter.strategy or "not chosen yet"),
    ]
    if letter.state is LetterState.PENDING:
        rows.append(
            ("due", f"{letter.next_retry_at:%Y-%m-%d %H:%M:%S} UTC, {relative_time(letter.next_retry_at)}")
        )
        if letter.waits_for:
            rows.append(("waits for", letter.waits_for))
    if letter.locked_by:
        rows.append(
            ("claimed by", letter.locked_by + (", waiting for the verdict" if letter.sent_at else ""))
        )
    if letter.system_state is not None:
        load = letter.system_state
        rows.append(
            ("host", f"CPU {load.cpu_usage:.0%}, memory {load.memory_usage:.0%} at the time of the failure")
        )
    if letter.tags:
        rows.append(("tags", ", ".join(letter.tags)))
    if letter.assignee:
        rows.append(("assigned to", letter.assignee))
    if letter.derived_from:
        rows.append(("derived from", letter.derived_from))
    lines = [f"{name:<14} {value if name == 'state' else on_one_line(value)}" for name, value in rows]
    lines += _history(letter, journal)
    if stack and letter.failure.stack:
        lines += ["", click.style("stack", bold=True)]
        lines += [on_one_line(line) for line in letter.failure.stack.rstrip().splitlines()]
    if body:
        lines += _message(letter)
    return lines


def _doubt(letter: DeadLetter) -> str:
    if letter.unconfirmed:
        return " (unconfirmed: redriven, but no verdict or dead letter arrived in time)"
    return " (presumed: the message was consumed, but no verdict arrived)" if letter.presumed else ""


def _came_back(letter: DeadLetter, times: int) -> str:
    """How often it was redriven without success, and which letter it is derived from."""
    total = pluralise(times, "time")
    if letter.derived_from is None:
        return total
    return f"{total} in total, also as {letter.derived_from}, from which this letter is derived"


def _history(letter: DeadLetter, journal: list[JournalLine]) -> list[str]:
    """The history in the order of time."""
    collected = letter.origin.dead_letter_source
    steps: list[tuple[datetime, str, str, str]] = [
        (letter.first_failed_at, "failed", letter.source, letter.reason),
        (letter.created_at, "collected" if collected else "added", collected or "", ""),
    ]
    steps += [(line.at, _step(line), line.actor, line.detail) for line in journal]
    steps.sort(key=lambda step: step[0])
    rows = [[f"{at:%Y-%m-%d %H:%M:%S}", what, who, detail] for at, what, who, detail in steps]
    lines = ["", table(("time (UTC)", "event", "by", "detail"), rows)]
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
        lines += ["", table(("redrive", "time (UTC)", "strategy", "worker", "result", "detail"), tries)]
    if letter.notes:
        notes = [[f"{note.at:%Y-%m-%d %H:%M:%S}", note.author, note.text] for note in letter.notes]
        lines += ["", table(("note (UTC)", "by", "text"), notes)]
    return lines


def _step(line: JournalLine) -> str:
    if line.before == line.after or line.after is None:
        return line.action
    return f"{line.action} → {state_name(line.after)}"


def _message(letter: DeadLetter) -> list[str]:
    message = letter.message
    lines = ["", click.style("headers", bold=True)] if message.headers else []
    lines += [
        f"  {on_one_line(name)}: {on_one_line(str(header_data(value)))}" for name, value in message.headers
    ]
    body = message.body
    size = "null" if body is None else pluralise(len(body), "byte")
    lines += [
        "",
        click.style(on_one_line(f"body ({message.content_type or 'no content type'}, {size})"), bold=True),
    ]
    shown = 0
    if body and _is_text(body):
        text = body[:_MAX_BODY_BYTES].decode("utf-8", "backslashreplace")
        lines.append("\n".join(on_one_line(line) for line in text.splitlines()))
        shown = _MAX_BODY_BYTES
    elif body:
        lines += hex_dump(body[:_MAX_HEX_BYTES])
        shown = _MAX_HEX_BYTES
    if body and len(body) > shown:
        lines.append(
            f"… {len(body) - shown} more bytes; redrive export {letter.id[:16]} has the complete body"
        )
    return lines


def _position(letter: DeadLetter) -> str:
    """Where in the source the message was, or by which exchange it came."""
    origin = letter.origin
    if origin.partition is not None:
        offset = f", offset {origin.offset}" if origin.offset is not None else ""
        return f" (partition {origin.partition}{offset})"
    if origin.routing_key:
        return f" (exchange {origin.exchange or 'default'}, routing key {origin.routing_key})"
    return ""


def _text(value: bytes) -> str:
    return value.decode() if _is_text(value) else value.hex(" ")


def _is_text(value: bytes) -> bool:
    try:
        return not any(char < " " and char not in "\t\n\r\f" for char in value.decode())
    except UnicodeDecodeError:
        return False


def hex_dump(data: bytes) -> list[str]:
    """Sixteen bytes per line: offset, hexadecimal, ASCII."""
    lines: list[str] = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {text}")
    return lines
