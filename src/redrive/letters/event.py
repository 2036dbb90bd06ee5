"""The event that reports a dead letter.

The event carries no payload and no headers of the message: error text and stack are redacted before a `Failure`
is made, so an event may go to logs, metrics and callbacks as it is.
"""

from datetime import datetime

import msgspec

from redrive.letters.failure import Failure
from redrive.letters.letter import DeadLetter


class DeadLettered(msgspec.Struct, frozen=True, kw_only=True):
    """A message was dead-lettered. `durable` says whether its dead letter was stored."""

    at: datetime
    source: str
    dead_letter_queue: str
    letter_id: str
    message_id: str | None
    correlation_id: str
    delivery_count: int | None
    reason: str
    description: str
    failure: Failure
    durable: bool
    error: str | None = None  # why it is not durable; redacted
    error_stack: str | None = None  # its traceback; redacted
    lost: bool = False  # not durable and settled all the same: the best-effort mode

    @classmethod
    def of(
        cls, letter: DeadLetter, *, at: datetime, description: str, dead_letter_queue: str,
        delivery_count: int | None, error: str | None = None, error_stack: str | None = None, lost: bool = False,
    ) -> "DeadLettered":  # fmt: skip
        """Create the event of this letter."""
        return cls(
            at=at,
            source=letter.source,
            dead_letter_queue=dead_letter_queue,
            letter_id=letter.id,
            message_id=letter.message_id,
            correlation_id=letter.correlation_id,
            delivery_count=delivery_count,
            reason=letter.reason,
            description=description,
            failure=letter.failure,
            durable=error is None,
            error=error,
            error_stack=error_stack,
            lost=lost,
        )
