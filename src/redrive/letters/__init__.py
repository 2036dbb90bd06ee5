"""What a dead letter is: the message, the failure, the letter and its lifecycle.

The lowest room: values and pure functions. It knows no broker, no store and no clock.
"""

from redrive.letters.failure import Failure, Kind, fingerprint
from redrive.letters.headers import Headers, HeaderValue, Typed
from redrive.letters.letter import (
    Attempt,
    DeadLetter,
    Hold,
    LetterHead,
    Note,
    SystemState,
    letter_id,
)
from redrive.letters.lifecycle import State, Step
from redrive.letters.message import ConsumerRef, Message, Origin, correlation_id_of
from redrive.letters.stack import stack_of

__all__ = [
    "Attempt",
    "ConsumerRef",
    "DeadLetter",
    "Failure",
    "HeaderValue",
    "Headers",
    "Hold",
    "Kind",
    "LetterHead",
    "Message",
    "Note",
    "Origin",
    "State",
    "Step",
    "SystemState",
    "Typed",
    "correlation_id_of",
    "fingerprint",
    "letter_id",
    "stack_of",
]
