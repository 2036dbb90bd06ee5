"""How is a letter sent back?

As the message it was, with the marks of its letter, to the queue it died in: only the consumer that failed sees it
again, not everybody who is bound to the exchange it once came through (H12). Who wants the whole world to see it asks
for the exchange. A record of Kafka keeps its key, and goes to the partition of that key, or on demand to the one it
came from. A queue that no longer exists has a redirect (H1).
"""

from collections.abc import Mapping
from typing import Final, Literal
from uuid import uuid4

import msgspec

from redrive.letters import DeadLetter, Hold
from redrive.letters.redrive import Redrive, marked, redrive_of
from redrive.transports.base import Publication, Target

_TIME_TO_LIVE: Final = "expiration"  # AMQP's name for it


class SendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where letters go, and under which name."""

    to: Literal["source", "exchange", "partition"] = (
        "source"  # partition: Kafka only, the very one it came from
    )
    target: str | None = None  # another queue or topic for all of them
    redirects: Mapping[str, str] = msgspec.field(default_factory=dict)
    message_id: Literal["keep", "new"] = "keep"  # H7


def attempts_of(letter: DeadLetter) -> int:
    """How often it was sent back, over all cycles, also under an earlier letter's name (H3)."""
    headers = letter.message.headers  # as the letter was made: what was tried before it was there
    earlier = redrive_of(headers) if headers else None
    return letter.dlq_retry_count + (0 if earlier is None else earlier.attempt)


def publication(
    letter: DeadLetter, hold: Hold, options: SendOptions, operation: str | None = None
) -> Publication:
    """The message to send."""
    redrive = Redrive(hold, attempts_of(letter) + 1, operation)
    message = letter.message
    changes: dict[str, object] = {
        "headers": marked(message.headers, redrive),
        # Its time to live was counted from the day it was first sent: it would be over at once, or before its turn.
        "properties": message.properties.without(_TIME_TO_LIVE),
    }
    if options.message_id == "new":
        changes["message_id"] = str(uuid4())
    elif message.message_id is None:
        changes["message_id"] = letter.id  # so that its consumer can tell a second copy (A7)
    return Publication(msgspec.structs.replace(message, **changes), target(letter, options))


def is_lost(letter: DeadLetter, options: SendOptions) -> bool:
    """Whether nobody knows where it came from: its message does not say, and would be sent to its own dead letters."""
    origin = letter.origin
    told = options.target is not None or origin.source in options.redirects
    return not told and origin.source == origin.dead_letter_source


def target(letter: DeadLetter, options: SendOptions) -> Target:
    """Where the letter goes."""
    origin = letter.origin
    if options.target is not None:
        return Target(name=options.target)
    if origin.source in options.redirects:
        return Target(name=options.redirects[origin.source])
    if options.to == "exchange" and origin.exchange:
        return Target(name=origin.source, exchange=origin.exchange, routing_key=origin.routing_key or "")
    return Target(name=origin.source, partition=origin.partition if options.to == "partition" else None)
