"""How does a consumer say that a redriven message was processed?

It sends a small message to the queue of verdicts, through the same broker: which letter, under which claim, and what
became of it (E5). Whoever keeps the letters reads it and resolves the letter, if the claim still holds. The body is
JSON, an array: what was processed together is told together, since a message costs a broker more than a line in it.

The rule: a verdict is about one hold. One that comes late, or twice, changes nothing.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from redrive.errors import FormatError
from redrive.letters.letter import Hold
from redrive.letters.message import Message
from redrive.letters.redrive import Redrive

QUEUE: Final = "redrive.verdicts"
MOST: Final = 500  # verdicts in one message: far from any broker's limit
_CONTENT_TYPE: Final = "application/json"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a redrive."""

    id: str
    fence: int
    attempt: int
    at: datetime
    verdict: str = "resolved"
    source: str = ""
    operation: str | None = None

    @property
    def hold(self) -> Hold:
        """The letter and the claim it was sent under."""
        return Hold(self.id, self.fence)


def resolved(redrive: Redrive, source: str, at: datetime) -> Verdict:
    """This redrive was processed."""
    return Verdict(
        id=redrive.hold.id,
        fence=redrive.hold.fence,
        attempt=redrive.attempt,
        at=at,
        source=source,
        operation=redrive.operation,
    )


def to_messages(verdicts: Sequence[Verdict]) -> list[Message]:
    """The verdicts as they travel."""
    return [
        Message(
            body=_encode(some),
            content_type=_CONTENT_TYPE,
            message_id=f"{some[0].id}/{some[0].fence}",
        )
        for some in (verdicts[start : start + MOST] for start in range(0, len(verdicts), MOST))
    ]


def from_body(body: bytes | None) -> Sequence[Verdict]:
    """The verdicts that these bytes are; a `FormatError` if they are none. A single one may stand without the array."""
    try:
        found = _decode(body or b"")
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise FormatError(f"not a verdict: {error}") from None
    return (found,) if isinstance(found, Verdict) else found


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Verdict | tuple[Verdict, ...]).decode
