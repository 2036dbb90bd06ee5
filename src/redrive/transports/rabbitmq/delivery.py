"""What is one delivery of RabbitMQ?

It is made once per message on the hot path, so it holds the octets as they came and decodes when it is asked. The rule:
what stands in `message` and `origin` is what the producer sent, and `key` is the same for it on every way it can come
again, sealed in a copy of ours or given back by the broker.
"""

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from redrive.amqp.hot import parse_route
from redrive.amqp.properties import read_content_type
from redrive.errors import RedriveError
from redrive.letters import Headers, Message, Origin
from redrive.letters.headers import pack
from redrive.letters.redrive import ID, Redrive, redrive_of
from redrive.transports.base import RUNNING, TRACE_SIZE, Delivery
from redrive.transports.rabbitmq.envelope import DEATH, OURS, Unsealed, unseal
from redrive.transports.rabbitmq.message import to_message

if TYPE_CHECKING:
    from redrive.transports.rabbitmq.subscription import Subscription

NAME = "rabbitmq"
_REDRIVE_ID, _OURS = ID.encode(), OURS.encode()
_HEADER_SIZE = 12  # octets of a content header in front of the properties
_TRACED_HEADER: Final = 176  # octets of the content header in a trace; it says how long the body is
_TRACED_BODY: Final = TRACE_SIZE - _TRACED_HEADER - 5
_TRACE: Final = struct.Struct(f"<BI{_TRACED_HEADER}s{_TRACED_BODY}s")
_write_trace: Final = _TRACE.pack_into


class Header:
    """A content header, looked at once. Messages of one producer often share theirs, octet for octet."""

    __slots__ = ("raw", "unsealed")

    def __init__(self, raw: bytes, source: str) -> None:
        self.raw = raw
        # Its properties without what was added on the way, and what that was.
        self.unsealed: Unsealed = unseal(raw[_HEADER_SIZE:], source)


class RabbitDelivery(Delivery):
    """One message handed to us by a queue."""

    __slots__ = (
        "_counted",
        "_header",
        "_key",
        "_message",
        "_method",
        "_unsealed",
        "body",
        "is_judged",
        "settled",
        "subscription",
        "tag",
    )

    def __init__(
        self, subscription: "Subscription", tag: int, method: bytes, header: bytes, body: bytes
    ) -> None:
        self.subscription = subscription
        self.tag = tag
        self.body: bytes = body
        self.settled = False
        self._method = method
        self._header = header
        self._unsealed: Unsealed | None = None
        self._message: Message | None = None
        self._key: str | None = None
        self._counted = 0  # deliveries that we know of and nobody else has counted, less those that were none
        self.is_judged = False  # what its headers do not tell of its count is settled

    @property
    def unsealed(self) -> Unsealed:
        """Its raw properties without what was added on the way, and what that was."""
        found = self._unsealed
        if found is None:
            found = self._unsealed = self.subscription.header(self._header).unsealed
        return found

    @property
    def is_redelivered(self) -> bool:
        """Whether the queue has handed it out before, to anybody."""
        method = self._method
        return method[13 + method[4]] != 0

    def write_trace(self, buffer: Any, at: int) -> None:
        """The beginnings of header and body as they came; they are made sense of when they are needed."""
        header = self._header
        _write_trace(buffer, at, RUNNING, len(header), header, self.body)

    def has_trace(self, trace: bytes) -> bool:
        """Body and message id, or all other properties, are those of the trace, as far as it goes."""
        _, header_size, header, body = _TRACE.unpack_from(trace)
        body_size = int.from_bytes(header[4:_HEADER_SIZE])
        if body_size != len(self.body) or body[:body_size] != self.body[:_TRACED_BODY]:
            return False
        if header_size > _TRACED_HEADER:
            return True
        try:
            properties = unseal(header[_HEADER_SIZE:header_size], self.subscription.source.name).properties
            return _identity(to_message(properties, b"")) == _identity(self.message)
        except (RedriveError, ValueError):
            return True

    @property
    def message(self) -> Message:
        """The message as its producer sent it."""
        if self._message is None:
            self._message = to_message(self.unsealed.properties, self.body, self.unsealed.fields)
        return self._message

    @property
    def content_type(self) -> str | None:
        """What its producer says the body is."""
        return read_content_type(self.unsealed.properties)

    @property
    def redrive(self) -> Redrive | None:
        """Which dead letter it is a redrive of; told by a look at the octets for most, which are none."""
        return redrive_of(self.message.headers) if _REDRIVE_ID in self._header else None

    @property
    def is_for_another_group(self) -> bool:
        """No: all consumers of a queue are one consumer."""
        return False

    @property
    def handler_message(self) -> Message:
        """The message as a handler sees it; most have no header of a redrive, which a look at the octets tells."""
        return super().handler_message if _OURS in self._header else self.message

    @property
    def has_exact_key(self) -> bool:
        """No: equal messages share their key."""
        return False

    @property
    def route(self) -> tuple[str, str]:
        """The exchange and the routing key that its producer used."""
        return self.unsealed.route(*parse_route(self._method))

    @property
    def remembered_route(self) -> tuple[str, str] | None:
        """The route by which it came to a queue before this one, where a copy of ours carries it.

        A copy that was put back into this very queue carries the route into it: for a dead-letter queue, that is the
        dead-letter exchange, and not where the message came from.
        """
        unsealed = self.unsealed
        if unsealed.exchange is None or unsealed.routing_key is None:
            return None
        if unsealed.route_queue == self.subscription.source.name:
            return None
        return unsealed.exchange, unsealed.routing_key

    @property
    def origin(self) -> Origin:
        """Where it came from."""
        exchange, key = self.route
        return Origin(
            transport=NAME,
            source=self.subscription.source.name,
            exchange=exchange,
            routing_key=key,
            endpoint=self.subscription.place,
        )

    @property
    def broker_count(self) -> int | None:
        """How many deliveries failed, by the count of its queue; None where the queue keeps no count.

        What comes for the first time was not counted by this queue: a producer or a shovel sent such a header along.
        """
        count = self.unsealed.broker_count
        if count is None or self.subscription.source.queue_type == "classic":
            return None
        return count if count and self.is_redelivered else 0

    @property
    def delivery_count(self) -> int | None:
        """How often it was delivered, this time included; None where the source wants no count and it is not known."""
        if self.subscription.source.counts_deliveries or not self._may_be_first:
            return self.known_count
        return None

    @property
    def _may_be_first(self) -> bool:
        """Whether it may be the first delivery or a later one, and nothing has settled which."""
        return self.is_redelivered and not self.is_judged and self.has_foreign_counts

    @property
    def known_count(self) -> int:
        """How often it was delivered, as far as its headers tell."""
        unsealed = self.unsealed
        if unsealed.broker_count is None:
            return unsealed.deliveries + self._counted
        return unsealed.deliveries + (self.broker_count or 0) + self._counted

    @property
    def is_uncounted(self) -> bool:
        """Whether its headers do not say how often it was delivered, though it is `redelivered`."""
        if self.is_judged or not self.is_redelivered:
            return False
        if self.has_foreign_counts:
            return self.subscription.source.counts_deliveries
        return self.broker_count is None

    @property
    def has_foreign_counts(self) -> bool:
        """Whether `redelivered` and the counts may be those of another queue, in which it was dead-lettered.

        RabbitMQ carries them along (see `delivery_counts`). So a first delivery looks like one that failed here. Where
        `x-acquired-count` differs from the failures, it was handed out here before, and by us only with counts of this
        queue: those with counts of another one get a copy first.
        """
        unsealed, counts = self.unsealed, self.subscription.counts
        if not (unsealed.has_died if unsealed.is_marked else DEATH in self._header):
            return False
        if self.broker_count is None:
            return counts.carries_flag
        return (
            counts.carries_counts and self.broker_count > 0 and unsealed.acquired in (None, self.broker_count)
        )

    @property
    def presumed_count(self) -> int:
        """The number of an uncounted delivery: one more than its headers say, or none of it happened here."""
        if self.has_foreign_counts:
            return self.unsealed.deliveries + self._counted
        return self.known_count + 1

    def count(self, more: int) -> None:
        """It was delivered so many times more (or less) than its headers can tell; that settles the matter."""
        self._counted += more
        self.is_judged = True

    def raise_count(self, count: int) -> None:
        """It was delivered at least so often: a classic queue does not count."""
        if count > self.known_count:
            self.count(count - self.known_count)

    @property
    def alive(self) -> bool:
        """Whether it can still be settled."""
        return not self.settled and self.subscription.alive

    @property
    def key(self) -> str:
        """Its message id where it has one; else a hash of all it consists of, so that equal messages share it."""
        if self._key is None:
            name = fingerprint(self.unsealed.properties, self.route, self.body, self.message)
            self._key = f"{self.subscription.source.name}/{name}"
        return self._key


def _identity(message: Message) -> object:
    if message.message_id:
        return message.message_id
    headers = sorted(message.headers, key=lambda pair: pair[0])
    return message.content_type, message.correlation_id, message.sent_at, headers


def fingerprint(
    properties: bytes, route: tuple[str, str], body: bytes, message: Message | None = None
) -> str:
    """Names a message by its raw properties, without what was added on the way, its route and its body."""
    message = message or to_message(properties, body)
    if message.message_id:
        return message.message_id
    fields = (
        ("exchange", route[0]),
        ("routing_key", route[1]),
        ("content_type", message.content_type),
        ("content_encoding", message.content_encoding),
        ("correlation_id", message.correlation_id),
        ("sent_at", message.sent_at),
        ("properties", message.properties),
        ("headers", Headers(sorted(message.headers, key=lambda pair: pair[0]))),  # brokers sort them too
    )
    digest = blake2b(pack(Headers(fields)), digest_size=16)
    digest.update(body)
    return digest.hexdigest()
