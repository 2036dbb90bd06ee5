"""Which states can a dead letter be in, and which step leads where?

`TABLE` is the whole answer (E1): a pair that is not in it is an error, and an error changes nothing. Every
store asks this table, the documentation's diagram is drawn from it, and no other file holds a second copy.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from redrive.errors import LifecycleError


class State(StrEnum):
    """Where a dead letter stands."""

    PENDING = "dlq_pending"
    PROCESSING = "dlq_processing"
    MANUAL = "dlq_manual"
    RESOLVED = "dlq_resolved"
    FAILED = "dlq_failed"
    ARCHIVED = "dlq_archived"


class Step(StrEnum):
    """What can happen to a dead letter."""

    ADD = "add"
    SCHEDULE = "schedule"
    CLAIM = "claim"
    RESOLVE = "resolve"
    RETRY = "retry"
    EXHAUST = "exhaust"
    PARK = "park"
    REPLAY = "replay"
    DISCARD = "discard"
    ARCHIVE = "archive"
    DELETE = "delete"


# None is outside: before a letter is added and after it was deleted.
TABLE: Final[Mapping[tuple[State | None, Step], State | None]] = MappingProxyType(
    {
        (None, Step.ADD): State.PENDING,
        (State.PENDING, Step.SCHEDULE): State.PENDING,
        (State.PENDING, Step.CLAIM): State.PROCESSING,
        (State.PROCESSING, Step.RESOLVE): State.RESOLVED,
        (State.PROCESSING, Step.RETRY): State.PENDING,
        (State.PROCESSING, Step.EXHAUST): State.FAILED,
        (State.PROCESSING, Step.PARK): State.MANUAL,
        (State.MANUAL, Step.REPLAY): State.PROCESSING,
        (State.MANUAL, Step.DISCARD): State.ARCHIVED,
        (State.FAILED, Step.ARCHIVE): State.ARCHIVED,
        (State.RESOLVED, Step.DELETE): None,
        (State.ARCHIVED, Step.DELETE): None,
    }
)

_MEANING: Final[Mapping[tuple[State | None, Step], str]] = MappingProxyType(
    {
        (None, Step.ADD): "given up by its consumer",
        (State.PENDING, Step.SCHEDULE): "replay scheduled",
        (State.PENDING, Step.CLAIM): "worker picks up",
        (State.PROCESSING, Step.RESOLVE): "redrive succeeded",
        (State.PROCESSING, Step.RETRY): "redrive failed, below the limit",
        (State.PROCESSING, Step.EXHAUST): "redrive failed, at the limit",
        (State.PROCESSING, Step.PARK): "needs a person",
        (State.MANUAL, Step.REPLAY): "manual replay",
        (State.MANUAL, Step.DISCARD): "manual discard",
        (State.FAILED, Step.ARCHIVE): "to cold storage",
        (State.RESOLVED, Step.DELETE): "retention",
        (State.ARCHIVED, Step.DELETE): "retention",
    }
)


def after(state: State | None, step: Step) -> State | None:
    """The state after `step`, or a `LifecycleError` that says which steps there are."""
    try:
        return TABLE[state, step]
    except KeyError:
        known = [legal.value for known_state, legal in TABLE if known_state == state]
        here = f"a {state} letter" if state else "a letter that does not exist"
        raise LifecycleError(f"{here} cannot {step}; it can {' or '.join(known)}") from None


def states_with(step: Step) -> tuple[State, ...]:
    """The states in which `step` is legal."""
    return tuple(state for state, legal in TABLE if legal is step and state is not None)


def diagram() -> str:
    """The state machine as a Mermaid diagram, for the documentation."""
    lines = ["stateDiagram-v2"]
    for (state, step), target in TABLE.items():
        lines.append(f"    {state or '[*]'} --> {target or '[*]'}: {step} ({_MEANING[state, step]})")
    return "\n".join(lines)
