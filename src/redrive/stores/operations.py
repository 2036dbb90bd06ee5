"""What is a bulk action, and what is a group of failures?

An operation is a piece of work on many letters that outlives whoever runs it: a frozen list of letters, an
outcome for each of them, and one runner at a time. The list never changes, the first outcome of a letter stands,
and an ending as done or cancelled is final: that is what makes a run that was cut off go on where it stood.
A group is what letters have in common that failed for the same cause.

These are values and the decisions about them, as pure functions; stores carry them out and all decide alike. What
an operation does to a letter, its outcomes' names and the meaning of its options are known to whoever runs it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from redrive.errors import LetterNotFoundError, OperationNotFoundError, SettingsError, use_instead
from redrive.letters.letter import EPOCH
from redrive.stores.checks import LONGEST_TEXT, check_lease, check_name, check_text

LARGEST_LIST: Final = 1_000_000  # letters of one operation
LARGEST_OPTIONS: Final = 1_048_576  # bytes


class OperationState(StrEnum):
    """Where an operation stands."""

    RUNNING = "running"
    STOPPED = "stopped"  # can be run again
    CANCELLED = "cancelled"
    DONE = "done"


_FINAL: Final = frozenset({OperationState.CANCELLED, OperationState.DONE})
_ENDS: Final = (OperationState.DONE, OperationState.CANCELLED, OperationState.STOPPED)


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk action. The store sets everything from `state` on; the rest is as it was begun."""

    id: str
    kind: str  # what is done: replay, discard, …
    by: str  # who began it
    query: str = ""  # the filter that the list was made by, for people
    options: bytes = b""  # of whoever runs it, who alone can read them
    state: OperationState = OperationState.RUNNING
    note: str = ""  # why it is stopped, cancelled or done
    total: int = 0
    outcomes: Mapping[str, int] = {}  # outcome → how many letters
    created_at: datetime = EPOCH
    ended_at: datetime | None = None
    ended_by: str | None = None
    runner: str | None = None
    lease_until: datetime | None = None

    @property
    def recorded(self) -> int:
        """How many letters have their outcome."""
        return sum(self.outcomes.values())

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in _FINAL


class Item(msgspec.Struct, frozen=True):
    """A letter of an operation's list, and what became of it; without an outcome, nothing did so far."""

    letter_id: str
    outcome: str | None = None
    detail: str = ""
    at: datetime | None = None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Letters that failed for the same cause."""

    group: str  # the fingerprint
    count: int
    error_type: str  # of the letter that came last, like the text
    error_text: str
    sources: tuple[str, ...]
    first_seen: datetime  # the earliest first failure of its letters
    last_seen: datetime  # the latest failure of its letters
    states: Mapping[str, int]  # state → how many letters


# --- decisions, alike in every store ---------------------------------------------------------------------


def begun(operation: Operation, total: int, now: datetime) -> Operation:
    """The operation as it begins, whatever its copy says (S35)."""
    return Operation(
        id=operation.id,
        kind=operation.kind,
        by=operation.by,
        query=operation.query,
        options=operation.options,
        total=total,
        created_at=now,
    )


def run(
    operation: Operation,
    runner: str,
    lease: timedelta,
    now: datetime,
    *,
    resume: bool,
    replaces: str | None = None,
) -> Operation | None:
    """The operation in the hands of `runner`; None: it cannot have it (S41, S42)."""
    if operation.is_over or (operation.state is OperationState.STOPPED and not resume):
        return None
    held = operation.lease_until is not None and operation.lease_until > now
    if held and operation.runner not in {runner, replaces}:
        return None
    return msgspec.structs.replace(
        operation,
        state=OperationState.RUNNING,
        note="",
        ended_at=None,
        ended_by=None,
        runner=runner,
        lease_until=now + lease,
    )


def end(operation: Operation, state: OperationState, by: str, note: str, now: datetime) -> Operation | None:
    """The operation as it ended; None: it had ended for good before (S43)."""
    if operation.is_over:
        return None
    return msgspec.structs.replace(
        operation,
        state=OperationState(state),
        note=note,
        ended_at=now,
        ended_by=by,
        runner=None,
        lease_until=None,
    )


# --- what is refused before any store touches it (S33) ---------------------------------------------------


def check_operation(operation: Operation, ids: Sequence[str]) -> None:
    """What an operation says can be stored, and so can its list."""
    check_name("the operation's id", operation.id)
    check_name("the operation's kind", operation.kind)
    check_name("the actor's name", operation.by)
    check_text("the operation's query", operation.query)
    if len(operation.options) > LARGEST_OPTIONS:
        raise SettingsError(
            f"the operation's options have {len(operation.options)} bytes; the limit is "
            f"{LARGEST_OPTIONS} bytes"
        )
    if len(ids) > LARGEST_LIST:
        raise SettingsError(
            f"the operation lists {len(ids)} letters; the limit is {LARGEST_LIST}: narrow the filter"
        )
    if _all_plain(ids):
        return
    for letter_id in ids:
        check_name("a letter's id", letter_id)


def _all_plain(ids: Sequence[str]) -> bool:
    """One look at all ids, which is quicker than a look at each of a million and hardly ever finds anything."""
    together = "".join(ids)
    lengths = [len(letter_id) for letter_id in ids]
    return (
        together.isascii()
        and together.isalnum()
        and min(lengths, default=1) > 0
        and max(lengths, default=1) <= LONGEST_TEXT
    )


def check_outcomes(outcomes: Sequence[tuple[str, str, str]]) -> None:
    """What is recorded can be stored."""
    for letter_id, outcome, detail in outcomes:
        check_name("a letter's id", letter_id)
        check_name("an outcome", outcome)
        check_text("the detail", detail)


def check_run(runner: str, lease: timedelta) -> None:
    """A runner has a name and a lease that ends."""
    check_name("the runner's name", runner)
    check_lease(lease)


def check_end(state: OperationState, by: str, note: str) -> None:
    """An end is one of those that there are."""
    if state not in _ENDS:
        raise SettingsError(f"an operation cannot end in the state '{state}'{use_instead(state, _ENDS)}")
    check_name("the actor's name", by)
    check_text("the note", note)


def check_after(after: int) -> None:
    """A position in a list is not negative, and every database can hold it."""
    if isinstance(after, bool) or not 0 <= after < 2**63:
        raise SettingsError(f"the position must be between 0 and 2^63, not {after}")


# --- what is said when something is not there ------------------------------------------------------------


def unknown_operation(operation_id: str) -> OperationNotFoundError:
    """There is no such operation."""
    return OperationNotFoundError(f"no operation has the id {operation_id!a}")


def not_listed(operation_id: str, letter_id: str) -> LetterNotFoundError:
    """The operation is there, but the letter is not one of its list."""
    return LetterNotFoundError(f"operation {operation_id!a} does not list the letter {letter_id!a}")
