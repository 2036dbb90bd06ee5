"""What is a message inside the broker?

`Message` is what was published, held as the bytes it came in: the content header and the body are never decoded on
the way through. One message may lie in several queues; an `Entry` is its place in one of them, with what that queue
alone knows about it. Nothing here changes after publishing; a dead letter is a new message.
"""

from redrive.amqp.properties import is_persistent, read_expiration, read_priority

_PROPERTIES_AT = 12  # class id, weight and body size stand before them in a content header


class Message:
    """A published message. `route` is exchange and routing key as a delivery carries them."""

    __slots__ = ("body", "exchange", "header", "keys", "persistent", "place", "route", "size")

    def __init__(
        self,
        exchange: str,
        keys: tuple[str, ...],
        route: bytes,
        header: bytes,
        body: bytes,
        *,
        persistent: bool,
    ) -> None:
        self.exchange = exchange
        self.keys = keys  # the publish key, then CC, then BCC keys
        self.route = route
        self.header = header  # payload of the content header frame
        self.body = body
        self.size = len(body)
        self.persistent = persistent
        self.place = 0  # the journal's number for it; 0: not journalled

    @property
    def properties(self) -> bytes:
        """The basic properties, encoded."""
        return self.header[_PROPERTIES_AT:]

    @property
    def expiration(self) -> bytes | None:
        """The message's own time to live, as it was written."""
        return read_expiration(self.properties)

    @property
    def priority(self) -> int:
        """The message's priority; 0 where it has none."""
        return read_priority(self.properties) or 0


class Entry:
    """A message's place in one queue."""

    __slots__ = ("deliveries", "expires_at", "message", "number", "priority", "redelivered")

    def __init__(self, number: int, message: Message) -> None:
        self.number = number  # grows along the queue; a requeued entry goes back to where it belongs
        self.message = message
        self.expires_at = 0  # milliseconds of the broker's clock; 0: never
        self.priority = 0
        self.redelivered = False
        self.deliveries = 0  # failed ones: what x-delivery-count tells


def persistent_of(header: bytes) -> bool:
    """Whether a content header asks for persistence."""
    return is_persistent(header[_PROPERTIES_AT:])
