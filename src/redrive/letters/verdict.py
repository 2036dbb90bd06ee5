"""Verdicts: messages by which a consumer reports that it processed a redrive.

A consumer sends them to the queue `redrive.verdicts` of the same broker: which letter, under which claim, who processed
it (`source`, `group`) and for whom it was meant (`to`, as the redrive said). The server resolves the letter if the two
agree and the claim still holds. The body is a JSON array, since a message costs a broker more than a line in one.
Version 1 wrote neither `group` nor `to`.

A verdict is about one claim. One that comes late, or twice, changes nothing.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from redrive.errors import FormatError
from redrive.letters.letter import ClaimToken
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
    group: str = ""
    to: str | None = None  # `redrive-to`; None: version 1

    @property
    def claim_token(self) -> ClaimToken:
        """The letter and the claim it was sent under."""
        return ClaimToken(self.id, self.fence)


def resolved(redrive: Redrive, source: str, at: datetime, group: str = "") -> Verdict:
    """The verdict of the consumer of this source and group that it processed the redrive."""
    return Verdict(
        id=redrive.hold.id,
        fence=redrive.hold.fence,
        attempt=redrive.attempt,
        at=at,
        source=source,
        operation=redrive.operation,
        group=group,
        to=None if redrive.to is None else str(redrive.to),
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
