"""How do operations and groups become values, in any database with tables?

The columns of an operation are its fields by the same names (`FIELDS`), but `outcomes`, which have a table of their
own. Times are as in `rows`. By which statements the rows are read and written is each database's own.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from redrive.letters import LetterState
from redrive.stores.operations import Group, Item, Operation, OperationState
from redrive.stores.rows import bind, moment

FIELDS: Final = (
    "id", "kind", "by", "query", "options", "state", "note", "total", "created_at", "ended_at", "ended_by",
    "runner", "lease_until",
)  # fmt: skip
_TIMES: Final = ("created_at", "ended_at", "lease_until")


def values_of(operation: Operation) -> list[Any]:
    """The operation as a row of `FIELDS`."""
    return [bind(getattr(operation, name)) for name in FIELDS]


def operation_of(row: Iterable[Any], outcomes: Mapping[str, int]) -> Operation:
    """The operation in a row of `FIELDS`."""
    fields = dict(zip(FIELDS, row, strict=True))
    for name in _TIMES:
        if fields[name] is not None:
            fields[name] = moment(fields[name])
    fields["state"] = OperationState(fields["state"])
    return Operation(**fields, outcomes=outcomes)


def item_of(letter_id: str, outcome: str | None, detail: str, at: int | None) -> Item:
    """A letter of a list, and what became of it."""
    return Item(letter_id, outcome, detail, None if at is None else moment(at))


def group_of(
    name: str,
    size: int,
    *,
    first: int,
    last: int,
    sources: Iterable[str],
    counts: Sequence[int],
    error_type: str,
    error_text: str,
) -> Group:
    """A group; `counts` are of its letters in each state, in the order of `LetterState`."""
    return Group(
        group=name,
        count=size,
        error_type=error_type,
        error_text=error_text,
        sources=tuple(sorted(sources)),
        first_seen=moment(first),
        last_seen=moment(last),
        states={state.value: count for state, count in zip(LetterState, counts, strict=True) if count},
    )
