"""What did the producer send?

`Message` is the message as it was, whatever broker carried it: nothing is decoded, nothing is added.
`Origin` is where it was when it died, with everything needed to send it back there. `ConsumerRef` names the consumer
that failed: broker, source and group.
"""

from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

import msgspec

from redrive.letters.headers import EMPTY, Headers

# Where producers put a correlation id when the broker's own property is empty, in this order.
CORRELATION_HEADERS: Final = (
    "correlation_id",
    "correlation-id",
    "x-correlation-id",
    "X-Correlation-ID",
    "X-Correlation-Id",
    "correlationId",
    "CorrelationId",
    "Correlation-Id",
    "NServiceBus.CorrelationId",
    "kafka_correlationId",
    "redrive-correlation-id",  # added to a redrive of a message that has none of its own
)


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The message, bit-exact. A `body` or `key` of None is Kafka's null, which is not the empty one."""

    body: bytes | None
    key: bytes | None = None
    headers: Headers = EMPTY
    content_type: str | None = None
    content_encoding: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    sent_at: datetime | None = None
    # What else the broker kept about it (delivery mode, reply-to, session …), by the broker's names.
    properties: Headers = EMPTY

    @property
    def size(self) -> int:
        """Bytes of body."""
        return len(self.body or b"")


class Origin(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Where a message came from. What a broker does not have stays None."""

    transport: str
    source: str  # the queue or topic it was consumed from
    exchange: str | None = None
    routing_key: str | None = None
    partition: int | None = None
    offset: int | None = None
    consumer_group: str | None = None  # Kafka group or subscription
    endpoint: str | None = None  # URL of the broker without credentials, for people
    dead_letter_source: str | None = None  # the dead-letter queue it was collected from


class ConsumerRef(NamedTuple):
    """A consumer: the broker's name, the queue or topic, and the consumer group where the broker has groups."""

    broker: str
    source: str
    group: str = ""

    def __str__(self) -> str:
        """The text of a header: `broker/source/group`, each part percent-encoded."""
        return _consumer_text(self)

    @staticmethod
    def parse(text: str) -> "ConsumerRef | None":
        """The consumer that `str` wrote; None if the text names none."""
        return _consumer_named(text)


# There are few consumers, and many messages that name them.
@lru_cache(1024)
def _consumer_text(consumer: ConsumerRef) -> str:
    return "/".join([quote(part, safe="", errors="surrogateescape") for part in consumer])


@lru_cache(1024)
def _consumer_named(text: str) -> ConsumerRef | None:
    parts = text.split("/")
    if len(parts) != 3 or not parts[0] or not parts[1]:
        return None
    return ConsumerRef(*[unquote(part, errors="surrogateescape") for part in parts])


def own_correlation_id(message: Message) -> str | None:
    """The correlation id that the message carries, in its property or in its headers."""
    if message.correlation_id:
        return message.correlation_id
    if not message.headers:
        return None
    return next((text for name in CORRELATION_HEADERS if (text := message.headers.text(name))), None)


def made_up_correlation_id(key: str) -> str:
    """An id for a message that has none, made of what names the message: the same whenever it is made."""
    octets = bytearray(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest())
    octets[6] = octets[6] & 0x0F | 0x50  # a UUID of version 5, written by hand: each dead letter needs one
    octets[8] = octets[8] & 0x3F | 0x80
    text = octets.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def correlation_id_of(message: Message) -> str:
    """The message's own correlation id, from its property or its headers; a new one where it has none.

    A made-up id has to be kept with the message by whoever asked for it.
    """
    return own_correlation_id(message) or str(uuid4())
