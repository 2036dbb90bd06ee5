"""How does a consumer say that a redriven message was processed?

It sends a small message to the queue of verdicts, through the same broker: which letter, under which claim, and what
became of it (E5). Whoever keeps the letters reads it and resolves the letter, if the claim still holds.

The rule: a verdict is about one hold. One that comes late, or twice, changes nothing.
"""

from datetime import datetime
from typing import Final

import msgspec

from redrive.errors import FormatError
from redrive.letters.letter import Hold
from redrive.letters.message import Message
from redrive.letters.redrive import Redrive

QUEUE: Final = "redrive.verdicts"
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


def to_message(verdict: Verdict) -> Message:
    """The verdict as it travels."""
    return Message(
        body=msgspec.json.encode(verdict),
        content_type=_CONTENT_TYPE,
        message_id=f"{verdict.id}/{verdict.fence}",
    )


def from_body(body: bytes | None) -> Verdict:
    """The verdict that these bytes are; a `FormatError` if they are none."""
    try:
        return msgspec.json.decode(body or b"", type=Verdict)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise FormatError(f"not a verdict: {error}") from None
