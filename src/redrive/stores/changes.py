"""Outcomes and changes: the requests that change a stored letter.

A worker that has claimed a letter settles it with an *outcome*; a person or a service applies a *change* to letters
by id. Both are values. The tables here map each of them to a step of the lifecycle; stores only carry them out.
"""

from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from redrive.errors import LifecycleError
from redrive.letters import ClaimToken, Failure, LetterState, Step
from redrive.letters.letter import headline, storable
from redrive.letters.lifecycle import after

# --- outcomes: how a worker settles a letter it has claimed ----------------------------------------------


class Resolve(msgspec.Struct, frozen=True, kw_only=True):
    """The letter was processed. `presumed`: no verdict arrived within the verdict timeout."""

    presumed: bool = False
    strategy: str | None = None
    detail: str = ""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The redrive failed or was not confirmed; the letter is redriven again at `at`."""

    at: datetime
    failure: Failure | None = None
    strategy: str | None = None
    detail: str = ""
    result: str = "failed"  # of the attempt: one of `RETRY_RESULTS`


class Fail(msgspec.Struct, frozen=True, kw_only=True):
    """The redrive failed and the limit is reached: the letter is failed."""

    failure: Failure | None = None
    strategy: str | None = None
    detail: str = ""


class Park(msgspec.Struct, frozen=True, kw_only=True):
    """A person has to decide. Nothing was redriven."""

    failure: Failure | None = None
    strategy: str | None = None
    detail: str = ""


class Unclaim(msgspec.Struct, frozen=True, kw_only=True):
    """End the claim. Nothing was redriven: the letter is due at `at`, or when it was due before."""

    at: datetime | None = None
    strategy: str | None = None
    detail: str = ""


Outcome: TypeAlias = Resolve | Retry | Fail | Park | Unclaim
RETRY_RESULTS: Final = ("failed", "unconfirmed")


class Settlement(msgspec.Struct, frozen=True):
    """An outcome for a claimed letter."""

    claim_token: ClaimToken
    outcome: Outcome


# Which step of the lifecycle an outcome is.
STEP_OF: Final[dict[type[Outcome], Step]] = {
    Resolve: Step.RESOLVE,
    Retry: Step.RETRY,
    Fail: Step.EXHAUST,
    Park: Step.PARK,
    Unclaim: Step.RETRY,
}


# --- changes: what a person or a service does to letters it names ----------------------------------------


class Schedule(msgspec.Struct, frozen=True):
    """Pending letters become due at `at`."""

    at: datetime


class Discard(msgspec.Struct, frozen=True):
    """Manual letters are archived."""

    why: str = ""


class Archive(msgspec.Struct, frozen=True):
    """Failed letters are archived."""


class Delete(msgspec.Struct, frozen=True):
    """Resolved or archived letters are removed for good."""


class Assign(msgspec.Struct, frozen=True):
    """Somebody is to look after these letters; None: nobody."""

    to: str | None


class Tag(msgspec.Struct, frozen=True):
    """Tags are added and removed."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


class Prioritise(msgspec.Struct, frozen=True):
    """The priority becomes `priority`."""

    priority: int


class Annotate(msgspec.Struct, frozen=True):
    """A note is written beside the letters."""

    text: str


class SetBroker(msgspec.Struct, frozen=True):
    """The letters belong to another broker."""

    broker: str


Change: TypeAlias = Schedule | Discard | Archive | Delete | Assign | Tag | Prioritise | Annotate | SetBroker

# The step of the lifecycle a change is; None: it leaves the state alone.
STEP_OF_CHANGE: Final[dict[type[Change], Step | None]] = {
    Schedule: Step.SCHEDULE,
    Discard: Step.DISCARD,
    Archive: Step.ARCHIVE,
    Delete: Step.DELETE,
    Assign: None,
    Tag: None,
    Prioritise: None,
    Annotate: None,
    SetBroker: None,
}

# How outcomes and changes are called in the change log. These names are stored: they never change.
_ACTIONS: Final[dict[type[Outcome | Change], str]] = {
    Resolve: "resolve",
    Retry: "retry",
    Fail: "exhaust",
    Park: "park",
    Unclaim: "release",
    Schedule: "schedule",
    Discard: "discard",
    Archive: "archive",
    Delete: "delete",
    Assign: "assign",
    Tag: "tag",
    Prioritise: "prioritise",
    Annotate: "annotate",
    SetBroker: "set_broker",
}
# How the change log shows that `take` has claimed a letter again for the worker that held it (S10).
RELEASED: Final = _ACTIONS[Unclaim]
RECLAIMED: Final = "claimed again by its worker"


# --- what stores derive from them, all alike -------------------------------------------------------------


def failure_fields(failure: Failure) -> dict[str, Any]:
    """What a new failure changes in a letter's head (S17)."""
    return {
        "error_type": storable(failure.error_type) or "unknown",
        "error_text": headline(failure.text),
        "kind": failure.kind,
        "group": failure.fingerprint,
        "last_failed_at": failure.at,
    }


def action_of(said: Change | Outcome) -> str:
    """The name of a change or an outcome in the change log."""
    return _ACTIONS[type(said)]


def result_of(outcome: Outcome) -> str | None:
    """The result of the attempt that the outcome ends; None: nothing was tried (S16)."""
    match outcome:
        case Resolve(presumed=presumed):
            return "presumed" if presumed else "resolved"
        case Retry(result=result):
            return result
        case Fail():
            return "failed"
        case Park() | Unclaim():
            return None


def attempt_strategy(outcome: Outcome, before: str | None) -> str | None:
    """The strategy of the attempt that the outcome ends, for a letter that had the strategy `before`.

    A Retry names the strategy of the next attempt.
    """
    return before or outcome.strategy if isinstance(outcome, Retry) else outcome.strategy or before


def state_after(change: Change, before: LetterState) -> LetterState | None:
    """The state after the change (None: deleted), or a `LifecycleError` if the change is illegal (S22, S23, S51)."""
    if isinstance(change, SetBroker) and before is LetterState.PROCESSING:
        raise LifecycleError(
            f"a {before} letter cannot change its broker: it is being redriven; try again after the redrive"
        )
    step = STEP_OF_CHANGE[type(change)]
    return before if step is None else after(before, step)


def describe(change: Change) -> str:
    """What the change says, for the journal."""
    match change:
        case Schedule(at):
            return at.isoformat()
        case Discard(why):
            return why
        case Assign(to):
            return to or "nobody"
        case Tag(add, remove):
            return " ".join([*(f"+{tag}" for tag in add), *(f"-{tag}" for tag in remove)])
        case Prioritise(priority):
            return str(priority)
        case Annotate(text):
            return text
        case SetBroker(broker):
            return broker
        case Archive() | Delete():
            return ""


def retagged(tags: tuple[str, ...], change: Tag) -> tuple[str, ...]:
    """The tags after the change, in order, each once."""
    return tuple(dict.fromkeys(tag for tag in (*tags, *change.add) if tag not in change.remove))
