"""How does a message that is sent back carry the name of its letter?

By headers: `redrive-id` and `redrive-fence` name the letter and the claim under which it was sent, `redrive-attempt`
counts over all cycles, `redrive-operation` names the replay it belongs to, and `x-replayed` says to anybody that this
is not the first time. Whoever sees the message die again, or being processed, can say so of the right letter (E5).

The rule: marks are replaced, never piled up.
"""

from typing import Final

import msgspec

from redrive.letters.headers import Headers, HeaderValue, Typed
from redrive.letters.letter import Hold

ID: Final = "redrive-id"
FENCE: Final = "redrive-fence"
ATTEMPT: Final = "redrive-attempt"
OPERATION: Final = "redrive-operation"
REPLAYED: Final = "x-replayed"
_MARKS: Final = (ID, FENCE, ATTEMPT, OPERATION, REPLAYED)


class Redrive(msgspec.Struct, frozen=True):
    """Which letter a message is a redrive of."""

    hold: Hold
    attempt: int
    operation: str | None = None


def marked(headers: Headers, redrive: Redrive) -> Headers:
    """The headers of a message that is sent back."""
    pairs: list[tuple[str, HeaderValue]] = [
        *unmarked(headers),
        (ID, redrive.hold.id),
        (FENCE, redrive.hold.fence),
        (ATTEMPT, redrive.attempt),
    ]
    if redrive.operation is not None:
        pairs.append((OPERATION, redrive.operation))
    pairs.append((REPLAYED, True))
    return Headers.of(pairs)


def unmarked(headers: Headers) -> Headers:
    """The headers as they were before the message was ever sent back."""
    return headers.without(*_MARKS)


def redrive_of(headers: Headers) -> Redrive | None:
    """Which letter this message is a redrive of; None if it is none, or if its marks cannot be read."""
    if not (letter_id := headers.text(ID)):
        return None
    fence, attempt = _number(headers.get(FENCE)), _number(headers.get(ATTEMPT))
    if fence is None or attempt is None:
        return None
    return Redrive(Hold(letter_id, fence), attempt, headers.text(OPERATION))


def _number(value: HeaderValue) -> int | None:
    """A whole number from zero up, also where the wire carries it as text."""
    if isinstance(value, Typed):
        value = value.value
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if isinstance(value, str):
        value = int(value) if value.isdecimal() and len(value) < 16 else None
    return value if type(value) is int and value >= 0 else None
