"""How does a letter become rows, and rows a letter, in any database with tables?

Columns are the fields of `LetterHead` by the same names. Times are whole microseconds since 1970 in UTC. In which
tables the columns stand, and by which statements they are written, is each database's own.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from redrive.letters import DeadLetter, FailureKind, LetterHead, LetterState, Note, RedriveAttempt
from redrive.letters.letter import EPOCH
from redrive.stores.base import JournalLine
from redrive.stores.cold import pack_content, pack_failure, unpack_content, unpack_failure

T = TypeVar("T", bound=LetterHead)
HEAD: Final = LetterHead.__struct_fields__
# What a letter says of itself when it is added. The rest is known only when the row is written, or the same for all
# new letters (S4).
OWN: Final = (
    "id", "broker", "source", "consumer_group", "message_id", "correlation_id", "size", "reason", "error_type",
    "error_text", "kind", "group", "priority", "tags", "strategy", "assignee", "retry_count", "first_failed_at",
    "last_failed_at", "next_retry_at",
)  # fmt: skip

OPTIONAL: Final = frozenset(
    {"consumer_group", "message_id", "tags", "strategy", "assignee"}
)  # the columns that may be NULL

_STATES: Final = {state.value: state for state in LetterState}  # a lookup is faster than a call
_KINDS: Final = {kind.value: kind for kind in FailureKind}
_TICK: Final = timedelta(microseconds=1)
_encode_json = msgspec.json.Encoder().encode
_decode_tags = msgspec.json.Decoder(tuple[str, ...]).decode


def ticks(moment: datetime) -> int:
    """Microseconds since 1970."""
    since = moment - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


@lru_cache(4096)
def moment(count: int) -> datetime:
    """The time that many microseconds after 1970. Letters of one claim share theirs; so do the times of one letter."""
    return EPOCH + timedelta(0, 0, count)


def span(duration: timedelta) -> int:
    """A duration in microseconds."""
    return duration // _TICK


def bind(value: Any) -> Any:
    """A value of a head as a database holds it."""
    return ticks(value) if isinstance(value, datetime) else value


def tags_column(tags: tuple[str, ...]) -> str | None:
    """Tags as the column holds them."""
    return _encode_json(tags).decode() if tags else None


def read_tags(column: str | None) -> tuple[str, ...]:
    """The tags in a column."""
    return _decode_tags(column) if column else ()


# A letter on its way into the database, made before a writer sees it: its values of `OWN`, its content, its
# failure. Plain tuples of plain values, because thousands are under way at once, and Python's garbage collector
# stops following these, but not a class of our own (0015).
NewRow: TypeAlias = tuple[tuple[Any, ...], bytes, bytes]
ID: Final = OWN.index("id")
TAGS: Final = OWN.index("tags")
DUE: Final = OWN.index("next_retry_at")


def new_row(letter: DeadLetter, absent: Any = None) -> NewRow:
    """The letter as it is added (S4); `absent` stands in the columns `OPTIONAL` that it has nothing for."""
    last = ticks(letter.last_failed_at)
    # Most fail once and are due at once: the same moment is not counted again.
    first = last if letter.first_failed_at == letter.last_failed_at else ticks(letter.first_failed_at)
    due = last if letter.next_retry_at == letter.last_failed_at else ticks(letter.next_retry_at)
    columns = (
        letter.id, letter.broker, letter.source, absent if letter.consumer_group is None else letter.consumer_group,
        absent if letter.message_id is None else letter.message_id, letter.correlation_id,
        letter.size, letter.reason, letter.error_type, letter.error_text, letter.kind._value_, letter.group,
        letter.priority, tags_column(letter.tags) if letter.tags else absent,
        absent if letter.strategy is None else letter.strategy,
        absent if letter.assignee is None else letter.assignee, letter.retry_count,
        first, last, due,
    )  # fmt: skip
    return columns, pack_content(letter), pack_failure(letter.failure)


def head_of(row: tuple[Any, ...]) -> LetterHead:
    """The head in a row of the columns `HEAD`."""
    return _make_head(row)


def letter_of(
    row: tuple[Any, ...],
    content: bytes,
    failure: bytes,
    attempts: tuple[RedriveAttempt, ...],
    notes: tuple[Note, ...],
) -> DeadLetter:
    """The whole letter."""
    return _make_letter(
        row, **unpack_content(content), failure=unpack_failure(failure), attempts=attempts, notes=notes
    )


def attempt_of(row: tuple[Any, ...]) -> RedriveAttempt:
    """The attempt in a row of the table `attempts`."""
    _, number, started_at, ended_at, worker, strategy, result, fence, detail = row
    return RedriveAttempt(
        number=number,
        started_at=moment(started_at),
        ended_at=moment(ended_at),
        worker=worker,
        strategy=strategy,
        result=result,
        fence=fence,
        detail=detail,
    )


def line_of(row: Iterable[Any]) -> JournalLine:
    """The line in a row of the table `change_log`."""
    number, at, actor, letter_id, action, before, after, detail = row
    return JournalLine(
        number=number,
        at=moment(at),
        actor=actor,
        letter_id=letter_id,
        action=action,
        before=LetterState(before),
        after=LetterState(after) if after else None,
        detail=detail,
    )


# How a column becomes its field; other columns are taken as they are.
_CONVERSIONS: Final = {
    "state": "states.get({0}) or LetterState({0})",
    "kind": "kinds.get({0}) or FailureKind({0})",
    "tags": "read_tags({0})",
    **dict.fromkeys(
        ("first_failed_at", "last_failed_at", "next_retry_at", "created_at", "updated_at"), "moment({0})"
    ),
    **dict.fromkeys(("locked_at", "lease_until", "sent_at"), "None if {0} is None else moment({0})"),
    **dict.fromkeys(("presumed", "unconfirmed"), "bool({0})"),
}


def _maker(result: type[T]) -> Callable[..., T]:
    """Compile a function that makes a `result` from a row of the columns `HEAD`, and from its other fields by name.

    Each column is written out, because there are thousands of rows: a dict of the fields in between costs a tenth of a
    claim, and a loop over their names twice as much.
    """
    others = [name for name in result.__struct_fields__ if name not in HEAD]
    values = [f"{name}={_CONVERSIONS.get(name, '{0}').format(name)}" for name in HEAD]
    values += [f"{name}={name}" for name in others]
    source = (
        f"def make({', '.join(['row', *others])}):\n"
        f"    {', '.join(HEAD)} = row\n"
        f"    return result({', '.join(values)})"
    )
    names: dict[str, Any] = {
        "result": result,
        "states": _STATES,
        "kinds": _KINDS,
        "LetterState": LetterState,
        "FailureKind": FailureKind,
        "moment": moment,
        "read_tags": read_tags,
    }
    exec(source, names)  # noqa: S102  of our own field names
    made: Callable[..., T] = names["make"]
    return made


_make_head: Final = _maker(LetterHead)
_make_letter: Final = _maker(DeadLetter)
