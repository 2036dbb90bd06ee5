"""Who takes messages from a queue, and how much at a time?"""

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from redrive.amqp.hot import DeliverWriter
from redrive.broker.header_table import long_field, with_headers
from redrive.broker.message import Entry

if TYPE_CHECKING:
    from redrive.broker.channel import Channel
    from redrive.broker.queue import Queue

_PLENTY: Final = 1 << 30


class Consumer:
    """One `basic.consume`. `deliver` is the hottest line of the broker."""

    __slots__ = (
        "_writer", "arguments", "channel", "exclusive", "no_ack", "prefetch", "priority", "queue", "tag",
        "timed_out", "timeout", "unacked",
    )  # fmt: skip

    def __init__(
        self,
        channel: "Channel",
        queue: "Queue",
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        prefetch: int,
        arguments: dict[str, object],
        timeout: int | None = None,
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.prefetch = prefetch  # 0: no limit
        self.arguments = arguments
        self.timeout = None if no_ack else timeout  # milliseconds that a delivery may stay unsettled
        self.timed_out: set[int] = set()  # tags of deliveries that were taken away from it
        self.unacked = 0
        self._writer = DeliverWriter(channel.number, tag.encode(), channel.session.frame_max)

    def room(self) -> int:
        """How many entries it can be given now."""
        channel = self.channel
        if channel.session.is_congested or not channel.is_open or self.timed_out:
            return 0
        if self.no_ack:
            return _PLENTY
        return self.prefetch - self.unacked if self.prefetch else _PLENTY

    def deliver(self, entry: Entry, now: int) -> None:
        """Hand an entry over."""
        channel = self.channel
        queue = self.queue
        message = entry.message
        tag = channel.next_tag
        channel.next_tag = tag + 1
        body = message.body
        if body is None:
            body = channel.session.broker.body_of(message)
        header = message.header if not entry.redelivered else header_of(queue, entry)
        channel.session.write(self._writer.frames(tag, entry.redelivered, message.route, header, body))
        stats = queue.stats
        stats.delivered += 1
        if entry.redelivered:
            stats.redelivered += 1
        if self.no_ack:
            stats.delivered_no_ack += 1
            queue.ground.forget(queue, entry)
        else:
            self.unacked += 1
            queue.unacked += 1
            if queue.is_quorum:
                queue.unacked_bytes += message.size + message.meta
                if message.place:
                    queue.ground.delivered(queue, entry)
            else:
                queue.unacked_bytes += message.size
            channel.unacked[tag] = (entry, queue, self, now)


def header_of(queue: "Queue", entry: Entry) -> bytes:
    """The content header of a delivery; a quorum queue adds how often the message was delivered and failed."""
    header = entry.message.header
    if not entry.redelivered or not queue.is_quorum:
        return header
    # Before the first return here, failures in other queues stand for both counts.
    return _with_counts(header, entry.acquired or entry.failures, entry.failures)


@lru_cache(maxsize=256)
def _with_counts(header: bytes, acquired: int, failures: int) -> bytes:
    counts = {b"x-acquired-count": long_field(b"x-acquired-count", acquired)}
    if failures:
        counts[b"x-delivery-count"] = long_field(b"x-delivery-count", failures)
    return with_headers(header, counts)
