"""Show letters in tables: states, times and columns."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from redrive.cli.table import Cell, Coloured, table
from redrive.letters import LetterHead, LetterState
from redrive.rules.durations import format_duration

# Ten characters of an id are the time of the failure: letters that failed together differ from the eleventh on.
_ID_CHARS: Final = 16
COLOURS: Final = {
    LetterState.PENDING: "yellow",
    LetterState.PROCESSING: "cyan",
    LetterState.MANUAL: "magenta",
    LetterState.RESOLVED: "green",
    LetterState.FAILED: "red",
    LetterState.ARCHIVED: "bright_black",
}


def letter_table(heads: Sequence[LetterHead]) -> str:
    """One row per letter. The error has the last column, which gets the remaining width.

    The columns for broker and redrives appear only if letters differ in them.
    """
    with_broker = len({head.broker for head in heads}) > 1
    with_redrives = any(head.dlq_retry_count for head in heads)
    titles = ["id", "state", *(["broker"] if with_broker else []), "source", "failed"]
    titles += [*(["redrives"] if with_redrives else []), "error"]
    rows: list[list[Cell]] = [
        [
            head.id[:_ID_CHARS],
            Coloured(_short_state(head), COLOURS[head.state]),
            *([head.broker] if with_broker else []),
            source_text(head),
            relative_time(head.last_failed_at),
            *([str(head.dlq_retry_count)] if with_redrives else []),
            f"{head.error_type}: {head.error_text}" if head.error_text else head.error_type,
        ]
        for head in heads
    ]
    return table(titles, rows)


def state_name(state: str) -> str:
    """The name of a state as people see it: the stored value without its prefix."""
    return state.removeprefix("dlq_")


def _short_state(head: LetterHead) -> str:
    return "unconfirmed" if head.unconfirmed else "presumed" if head.presumed else state_name(head.state)


def source_text(head: LetterHead) -> str:
    """The source, and the consumer group if there is one."""
    return f"{head.source} (group {head.consumer_group})" if head.consumer_group else head.source


def relative_time(at: datetime, now: datetime | None = None) -> str:
    """`3m ago` or `in 3m`, in the largest unit that fits."""
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    text = format_duration(timedelta(seconds=_coarse(abs(seconds))))
    return f"{text} ago" if seconds >= 0 else f"in {text}"


def _coarse(seconds: float) -> int:
    for unit in (86_400, 3_600, 60):
        if seconds >= 2 * unit:
            return int(seconds // unit * unit)
    return int(seconds)


def plain(value: Any) -> Any:
    """A head or another struct as JSON values."""
    return msgspec.to_builtins(value)
