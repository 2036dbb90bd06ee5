"""The message of a redrive, and where it is sent.

A letter goes back as the message it was, with the headers of a redrive (`letters.redrive`), to the queue it died in:
only the consumer that failed sees it again, not everybody bound to the exchange it once came through, unless that is
asked for. A Kafka record keeps its key and goes to the partition of that key, or on demand to the one it came from;
its headers name the consumer group, and redrive consumers of other groups skip it. A queue that no longer exists has
a redirect.
"""

from collections.abc import Mapping
from typing import Final, Literal
from uuid import uuid4

import msgspec

from redrive.letters import ClaimToken, ConsumerRef, DeadLetter
from redrive.letters.redrive import MAX_ATTEMPTS, Redrive, content_digest, marked, redrive_of
from redrive.transports.base import Publication, Target

_TIME_TO_LIVE: Final = "expiration"  # AMQP's name for it


class SendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where letters go, and under which name."""

    to: Literal["source", "exchange", "partition"] = (
        "source"  # partition: Kafka only, the very one it came from
    )
    target: str | None = None  # another queue or topic for all of them
    redirects: Mapping[str, str] = msgspec.field(default_factory=dict)
    message_id: Literal["keep", "new"] = "keep"


def attempts_of(letter: DeadLetter) -> int:
    """How often the message was redriven, over all cycles, also as another letter."""
    earlier = letter.prior_redrives
    if not earlier and letter.message.headers:
        # Version 1 kept the count of an earlier letter in the headers of the message.
        redrive = redrive_of(letter.message.headers)
        earlier = 0 if redrive is None else redrive.attempt
    attempts = letter.dlq_retry_count + earlier
    return min(MAX_ATTEMPTS, attempts)


def publication(
    letter: DeadLetter, hold: ClaimToken, options: SendOptions, operation: str | None = None
) -> Publication:
    """The message to send, and its target."""
    message, destination = letter.message, target(letter, options)
    redrive = Redrive(
        hold,
        attempts_of(letter) + 1,
        operation,
        _consumer_at(destination, letter),
        content_digest(message),
        "all" if options.to == "exchange" else "consumer",
    )
    changes: dict[str, object] = {
        "headers": marked(message, redrive, letter.correlation_id),
        # Its time to live was counted from the day it was first sent: it would be over at once, or before its turn.
        "properties": message.properties.without(_TIME_TO_LIVE),
    }
    if options.message_id == "new":
        changes["message_id"] = str(uuid4())
    elif message.message_id is None:
        changes["message_id"] = (
            letter.id
        )  # the same for every redrive, so that its consumer can tell a second copy
    return Publication(msgspec.structs.replace(message, **changes), destination)


def addressee(letter: DeadLetter, options: SendOptions) -> ConsumerRef:
    """The consumer that a redrive is meant for: the one that failed, or whoever consumes the queue chosen instead.

    Which consumer group reads another topic is not known: none is named, so that no group skips the redrive.
    """
    return _consumer_at(target(letter, options), letter)


def _consumer_at(destination: Target, letter: DeadLetter) -> ConsumerRef:
    origin, name = letter.origin, destination.name
    group = origin.consumer_group or "" if name == origin.source else ""
    return ConsumerRef(letter.broker, name, group)


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
