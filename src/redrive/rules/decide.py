"""The handler is done with a delivery: what becomes of the message?

The decision matrix, the same for every broker: a pure function from what happened and how often the
message was delivered to one decision, which the consumer carries out. One rule: every outcome has exactly
one decision. It does not know brokers, and it does not know why a failure is retryable (`classify`).
"""

from datetime import timedelta
from enum import StrEnum
from typing import Final, assert_never

import msgspec

from redrive.errors import SettingsError
from redrive.rules.classify import Classification

DEFAULT_LIMIT: Final = 3


class Reason(StrEnum):
    """Why a message was dead-lettered; the words that brokers, metrics and people see."""

    POISON_MESSAGE = "PoisonMessage"
    NON_RETRYABLE_ERROR = "NonRetryableError"
    MAX_DELIVERY_COUNT_EXCEEDED = "MaxDeliveryCountExceeded"


CUSTOM_REASON: Final = "CustomBusinessRule"  # what a handler gets that gives no reason of its own


# --- what happened ---------------------------------------------------------------------------------------


class NotRun(msgspec.Struct, frozen=True):
    """The delivery has just arrived; the handler has not seen it yet."""


class Succeeded(msgspec.Struct, frozen=True):
    """The handler returned."""


class Failed(msgspec.Struct, frozen=True):
    """The handler raised, ran out of time, or the message could not be decoded."""

    classification: Classification
    text: str = ""  # redacted already; becomes the description


class ManualDeadLetter(msgspec.Struct, frozen=True):
    """The handler asked for the message to be dead-lettered."""

    reason: str = CUSTOM_REASON
    description: str = ""


class ManualGiveBack(msgspec.Struct, frozen=True):
    """The handler asked to see the message again."""

    after: timedelta | None = None


Outcome = NotRun | Succeeded | Failed | ManualDeadLetter | ManualGiveBack


# --- what to do ------------------------------------------------------------------------------------------


class RunHandler(msgspec.Struct, frozen=True):
    """Hand the message to the handler."""


class Complete(msgspec.Struct, frozen=True):
    """Settle the message: it is done."""


class GiveBack(msgspec.Struct, frozen=True):
    """Let the broker deliver the message again, not before `after` has passed."""

    after: timedelta | None = None


class DeadLetterIt(msgspec.Struct, frozen=True):
    """Make a dead letter of it, and settle the message once that is durable."""

    reason: str
    description: str


Decision = RunHandler | Complete | GiveBack | DeadLetterIt


def decide(outcome: Outcome, delivery_count: int | None, limit: int = DEFAULT_LIMIT) -> Decision:
    """What becomes of a message with this outcome on its `delivery_count`-th delivery.

    Some brokers do not count the first delivery; None is that one.
    """
    check_limit(limit)
    count = 1 if delivery_count is None else delivery_count
    match outcome:
        case NotRun():
            if count > limit:
                return DeadLetterIt(
                    Reason.POISON_MESSAGE, f"Message exceeded maximum delivery count of {limit}"
                )
            return RunHandler()
        case Succeeded():
            return Complete()
        case Failed(classification, text):
            if not classification.retryable:
                return DeadLetterIt(Reason.NON_RETRYABLE_ERROR, _description(classification, text))
            if count >= limit:
                return DeadLetterIt(Reason.MAX_DELIVERY_COUNT_EXCEEDED, _description(classification, text))
            return GiveBack(classification.retry_after)
        case ManualDeadLetter(reason, description):
            return DeadLetterIt(reason.strip() or CUSTOM_REASON, description)
        case ManualGiveBack(after):
            # The handler's word stands, even on the last delivery: the next one is then found to be poison.
            return GiveBack(None if after is None else max(after, timedelta(0)))
        case _:
            assert_never(outcome)


def check_limit(limit: int) -> None:
    """Refuse a limit that is not a whole number from one up."""
    if type(limit) is not int or limit < 1:
        raise SettingsError(f"the delivery limit must be an integer of at least 1, not {limit!r:.40}")


def _description(classification: Classification, text: str) -> str:
    return text or f"{classification.kind} failure (rule {classification.rule})"
