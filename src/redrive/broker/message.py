"""What is a message inside the broker?

`Message` is what was published, held as the bytes it came in: the content header and the body are never decoded on
the way through. One message may lie in several queues; an `Entry` is its place in one of them, with what that queue
alone knows about it. A message never changes after publishing; a dead letter is a new message.

There may be millions of both, and neither can be part of a circle: the garbage collector is told to pass them by.
"""

from typing import Final

from msgspec import Struct

from redrive.amqp.properties import read_field

PROPERTIES_AT: Final = 12  # class id, weight and body size stand before them in a content header
NO_PRIORITY: Final = -1  # the publisher set none
# Bytes that a place in a queue takes at most: an entry, its part of the queue, and a message without its body. It is
# also the unit in which `Broker.cost` counts work.
ENTRY_COST: Final = 256
PURGE_COST: Final = ENTRY_COST // 8  # of an entry that is dropped with many others


class Message(Struct, gc=False, eq=False):
    """A published message. `route` is exchange and routing key as a delivery carries them."""

    exchange: str
    keys: tuple[str, ...]  # the publish key, then CC, then BCC keys
    route: bytes
    header: bytes  # payload of the content header frame
    body: bytes | None  # None: it is on disk only, at `place`
    persistent: bool
    size: int = 0  # of the body
    meta: int = 0  # of the properties as they were published: quorum queues count them against byte limits
    place: int = 0  # the journal's number for it; 0: not journalled

    @property
    def properties(self) -> bytes:
        """The basic properties, encoded."""
        return self.header[PROPERTIES_AT:]


class Entry(Struct, gc=False, eq=False):
    """A message's place in one queue."""

    number: int  # grows along the queue; a requeued entry goes back to where it belongs
    message: Message
    priority: int = NO_PRIORITY
    expires_at: int = 0  # milliseconds of the broker's clock; 0: never
    redelivered: bool = False
    acquired: int = 0  # deliveries that ended without an acknowledgement: x-acquired-count of a quorum queue
    failures: int = 0  # those that failed, also in queues that dead-lettered it before: x-delivery-count

    def __lt__(self, other: "Entry") -> bool:
        return self.number < other.number


def priority_of(raw: bytes) -> int:
    """The priority in encoded properties; `NO_PRIORITY` if the publisher set none."""
    priority = read_field(raw, "priority")
    return priority if isinstance(priority, int) else NO_PRIORITY
