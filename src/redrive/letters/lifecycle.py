"""Which states can a dead letter be in, and which step leads where?

`TABLE` is the whole answer: a pair that is not in it is an error, and an error changes nothing. Every
store asks this table, the documentation's diagram is drawn from it, and no other file holds a second copy.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from redrive.errors import LifecycleError


class LetterState(StrEnum):
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
TABLE: Final[Mapping[tuple[LetterState | None, Step], LetterState | None]] = MappingProxyType(
    {
        (None, Step.ADD): LetterState.PENDING,
        (LetterState.PENDING, Step.SCHEDULE): LetterState.PENDING,
        (LetterState.PENDING, Step.CLAIM): LetterState.PROCESSING,
        (LetterState.PROCESSING, Step.RESOLVE): LetterState.RESOLVED,
        (LetterState.PROCESSING, Step.RETRY): LetterState.PENDING,
        (LetterState.PROCESSING, Step.EXHAUST): LetterState.FAILED,
        (LetterState.PROCESSING, Step.PARK): LetterState.MANUAL,
        (LetterState.MANUAL, Step.REPLAY): LetterState.PROCESSING,
        (LetterState.MANUAL, Step.DISCARD): LetterState.ARCHIVED,
        (LetterState.FAILED, Step.ARCHIVE): LetterState.ARCHIVED,
        (LetterState.RESOLVED, Step.DELETE): None,
        (LetterState.ARCHIVED, Step.DELETE): None,
    }
)

_MEANING: Final[Mapping[tuple[LetterState | None, Step], str]] = MappingProxyType(
    {
        (None, Step.ADD): "given up by its consumer",
        (LetterState.PENDING, Step.SCHEDULE): "replay scheduled",
        (LetterState.PENDING, Step.CLAIM): "worker picks up",
        (LetterState.PROCESSING, Step.RESOLVE): "redrive succeeded",
        (LetterState.PROCESSING, Step.RETRY): "redrive failed, below the limit",
        (LetterState.PROCESSING, Step.EXHAUST): "redrive failed, at the limit",
        (LetterState.PROCESSING, Step.PARK): "needs a person",
        (LetterState.MANUAL, Step.REPLAY): "manual replay",
        (LetterState.MANUAL, Step.DISCARD): "manual discard",
        (LetterState.FAILED, Step.ARCHIVE): "to cold storage",
        (LetterState.RESOLVED, Step.DELETE): "retention",
        (LetterState.ARCHIVED, Step.DELETE): "retention",
    }
)


def after(state: LetterState | None, step: Step) -> LetterState | None:
    """The state after `step`, or a `LifecycleError` that says which steps there are."""
    try:
        return TABLE[state, step]
    except KeyError:
        known = [legal.value for known_state, legal in TABLE if known_state == state]
        here = f"a {state} letter" if state else "a letter that does not exist"
        raise LifecycleError(f"{here} cannot {step}; it can {' or '.join(known)}") from None


def states_with(step: Step) -> tuple[LetterState, ...]:
    """The states in which `step` is legal."""
    return tuple(state for state, legal in TABLE if legal is step and state is not None)


def diagram() -> str:
    """The state machine as a Mermaid diagram, for the documentation."""
    lines = ["stateDiagram-v2"]
    for (state, step), target in TABLE.items():
        lines.append(f"    {state or '[*]'} --> {target or '[*]'}: {step} ({_MEANING[state, step]})")
    return "\n".join(lines)
