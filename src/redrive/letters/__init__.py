"""What a dead letter is: the message, the failure, the letter and its lifecycle.

The lowest room: values and pure functions. It knows no broker, no store and no clock.
"""

from redrive.letters.failure import Failure, FailureKind, fingerprint
from redrive.letters.headers import Headers, HeaderValue, TypedValue
from redrive.letters.letter import (
    ClaimToken,
    DeadLetter,
    LetterHead,
    Note,
    RedriveAttempt,
    SystemState,
    letter_id,
)
from redrive.letters.lifecycle import LetterState, Step
from redrive.letters.message import ConsumerRef, Message, Origin, correlation_id_of
from redrive.letters.stack import stack_of

__all__ = [
    "ClaimToken",
    "ConsumerRef",
    "DeadLetter",
    "Failure",
    "FailureKind",
    "HeaderValue",
    "Headers",
    "LetterHead",
    "LetterState",
    "Message",
    "Note",
    "Origin",
    "RedriveAttempt",
    "Step",
    "SystemState",
    "TypedValue",
    "correlation_id_of",
    "fingerprint",
    "letter_id",
    "stack_of",
]
