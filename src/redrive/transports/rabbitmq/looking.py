"""Look at the first messages of a queue.

AMQP 0-9-1 cannot look at a message: `peek` takes the first ones and gives them back by a nack. The rule: looking uses
no message up. Up to RabbitMQ 4.2 a quorum queue counts each look and gives up a message at its delivery limit; from 4.3
on it gives up, at any return, a message that failed more often than its limit in other queues (see `delivery_counts`).
So as soon as a message has a count, the management API is asked for the limit:

- no limit: messages are given back, however often;
- a limit: looking stops at half of it with an error that says how to lift it. What only this process has looked at is
  replaced by a copy without a count instead, which stands at the end of its queue;
- a limit that cannot be seen: a message with a count is replaced by such a copy in time.

A message that would not survive being given back is replaced by a copy in any case.
"""

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from redrive.amqp import methods as m
from redrive.clock import Clock
from redrive.errors import SourceConflictError, TransportError
from redrive.letters import Message
from redrive.transports.rabbitmq import management
from redrive.transports.rabbitmq.channel import Channel
from redrive.transports.rabbitmq.copies import again
from redrive.transports.rabbitmq.delivery import fingerprint
from redrive.transports.rabbitmq.delivery_counts import DeliveryCounts
from redrive.transports.rabbitmq.envelope import DEATH, Unsealed, unseal
from redrive.transports.rabbitmq.found import Found
from redrive.transports.rabbitmq.link import Link
from redrive.transports.rabbitmq.management import ManagementUrl
from redrive.transports.rabbitmq.mend import replace_queue, set_policy
from redrive.transports.rabbitmq.message import to_message
from redrive.transports.rabbitmq.peeks import Peeks
from redrive.transports.rabbitmq.publisher import Publisher

_KNOWN_FOR: Final = timedelta(seconds=10)  # somebody may lift a limit
_SAFE_LOOKS: Final = 2  # under a limit that cannot be seen; those that people set are higher


class Limits:
    """The delivery limits of queues, as the management API shows them."""

    def __init__(self, at: ManagementUrl, clock: Clock) -> None:
        self._at = at
        self._clock = clock
        self._found: Found | None = None
        self._asked_at: timedelta | None = None

    async def found(self, link: Link) -> Found | None:
        """What there is in the virtual host; None where it cannot be seen. At most ten seconds old."""
        now = self._clock.monotonic()
        if self._asked_at is None or now - self._asked_at > _KNOWN_FOR:
            self._found = None
            with contextlib.suppress(TransportError):
                self._found = await management.look(self._at, link.url.vhost, link.url.user)
            names = {self._found.cluster, link.cluster_name} if self._found else set()
            if len(names - {None}) > 1:
                self._found = None  # it belongs to another broker
            self._asked_at = now
        return self._found


class _Seen(NamedTuple):
    tag: int
    unsealed: Unsealed
    has_died: bool  # it came out of another queue as a dead letter
    route: tuple[str, str]
    body: bytes

    def key(self, source: str) -> str:
        return f"{source}/{fingerprint(self.unsealed.properties, self.route, self.body)}"


class _Wear(NamedTuple):
    """What looking does to the messages of one queue."""

    counts: DeliveryCounts
    is_known: bool = False  # whether `limit` was seen
    limit: int | None = None  # None: unlimited

    def is_possible(self, seen: _Seen) -> bool:
        """Whether the limit has to be known for this message."""
        return seen.unsealed.limited_count > 0 and (self.counts.looking_counts or seen.has_died)

    def must_renew(self, seen: _Seen, own_looks: int) -> bool:
        """Whether a copy has to take its place, because giving it back uses it up, now or soon."""
        count = seen.unsealed.limited_count
        if not self.is_possible(seen):
            return False
        if not self.is_known:
            return not self.counts.looking_counts or count >= _SAFE_LOOKS
        if not self.counts.survives_look(count, self.limit):
            return True
        return self._is_close(count) and count <= own_looks

    def must_stop(self, seen: _Seen, own_looks: int) -> bool:
        """Whether it was returned so often that more looks could use it up."""
        count = seen.unsealed.limited_count
        return self.is_known and self._is_close(count) and count > own_looks

    def _is_close(self, count: int) -> bool:
        return self.counts.looking_counts and self.limit is not None and count > 0 and 2 * count >= self.limit


class Viewer:
    """Looks at the messages of queues without using them up."""

    def __init__(self, publisher: Publisher, peeks: Peeks, limits: Limits) -> None:
        self._publisher = publisher
        self._peeks = peeks
        self._limits = limits

    async def peek(self, link: Link, source: str, count: int) -> Sequence[Message]:
        """The first messages, which stay where they are; `SourceConflictError` where looking would use them up."""
        async with link.channel() as channel:
            wear = _Wear(link.counts)
            found = await _take(channel, source, min(count, 1))
            if any(map(wear.is_possible, found)):
                wear = await self._wear(link, source)
            if not any(wear.must_stop(seen, self._own_looks(source, seen)) for seen in found):
                found += await _take(channel, source, count - len(found))
            if not wear.is_known and any(map(wear.is_possible, found)):
                wear = await self._wear(link, source)
            worn = [seen for seen in found if wear.must_renew(seen, self._own_looks(source, seen))]
            stops = [seen for seen in found if wear.must_stop(seen, self._own_looks(source, seen))]
            for seen in found:
                self._peeks.looked_at(source, seen.key(source))
            failed = await self._renew(worn, channel, source)
            if found:
                # Not by closing the channel: that is a failure, and from RabbitMQ 4.3 on this is none.
                channel.send(m.BasicNack(0, multiple=True, requeue=True))
        if failed is not None:
            raise failed
        if stops:
            raise SourceConflictError(await self._why_it_stops(link, source, stops[0], wear))
        return [to_message(seen.unsealed.properties, seen.body) for seen in found]

    def _own_looks(self, source: str, seen: _Seen) -> int:
        return self._peeks.of(source, seen.key(source))

    async def _wear(self, link: Link, source: str) -> _Wear:
        found = await self._limits.found(link)
        queue = None if found is None else found.queues.get(source)
        if queue is None:
            return _Wear(link.counts)
        limit = link.counts.limit_in_force(queue.number("delivery-limit")) if queue.type == "quorum" else None
        return _Wear(link.counts, is_known=True, limit=limit)

    async def _why_it_stops(self, link: Link, source: str, seen: _Seen, wear: _Wear) -> str:
        found = await self._limits.found(link)
        queue = None if found is None else found.queues.get(source)
        mend = "set delivery-limit to -1 with a policy"
        if found is not None and queue is not None:
            has_own = "x-delivery-limit" in (queue.arguments or {})
            mend = replace_queue(source) if has_own else set_policy(found, queue, {"delivery-limit": -1})
        return (
            f"cannot inspect queue '{source}': RabbitMQ {wear.counts.versions} counts each inspection as "
            f"a delivery, the delivery limit of the queue is {wear.limit}, and a message was already "
            f"returned {seen.unsealed.limited_count} times; remove the limit first: {mend}"
        )

    async def _renew(self, worn: Sequence[_Seen], channel: Channel, source: str) -> TransportError | None:
        """Put a copy in the place of each: durable first, then the old one is settled. Why that failed, if it did."""
        copies, failed = [], None
        for seen in worn:
            unsealed = seen.unsealed
            counted = 0 if seen.has_died else unsealed.broker_count or 0
            looks = (
                min(self._own_looks(source, seen) - 1, counted) if channel.link.counts.looking_counts else 0
            )
            deliveries = unsealed.deliveries + counted - looks
            copies.append(again(source, unsealed, seen.route, seen.body, self._publisher.user, deliveries))
        for seen, error in zip(worn, await self._publisher.publish(copies), strict=True):
            if error is None:
                channel.send(m.BasicAck(seen.tag))
                self._peeks.forget(source, seen.key(source))
            failed = error or failed
        return failed


async def _take(channel: Channel, source: str, count: int) -> list[_Seen]:
    found: list[_Seen] = []
    while len(found) < count:
        answer, content = await channel.ask(m.BasicGet(source))
        if content is None or not isinstance(answer, m.BasicGetOk):
            break
        unsealed = unseal(content.properties, source)
        route = unsealed.route(answer.exchange, answer.routing_key)
        has_died = unsealed.has_died if unsealed.is_marked else DEATH in content.properties
        found.append(_Seen(answer.delivery_tag, unsealed, has_died, route, content.body))
    return found
