"""What is a message inside the broker?

`Message` is what was published, held as the bytes it came in: the content header and the body are never decoded on
the way through. One message may lie in several queues; an `Entry` is its place in one of them, with what that queue
alone knows about it. A message never changes after publishing; a dead letter is a new message.
"""

from typing import Final

PROPERTIES_AT: Final = 12  # class id, weight and body size stand before them in a content header


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
        self.body: bytes | None = body  # None: it is on disk only, at `place`
        self.size = len(body)
        self.persistent = persistent
        self.place = 0  # the journal's number for it; 0: not journalled

    @property
    def properties(self) -> bytes:
        """The basic properties, encoded."""
        return self.header[PROPERTIES_AT:]


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

    def __lt__(self, other: "Entry") -> bool:
        return self.number < other.number
