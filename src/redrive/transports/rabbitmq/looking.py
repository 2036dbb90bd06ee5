"""What lies in a queue?

`depth` asks for the number; `peek` takes the first messages and gives them back, because AMQP 0-9-1 has no other way to
look. The rule: whoever looks changes nothing. Where a broker counts what is given back (RabbitMQ before 4, on quorum
queues) and would throw a message out that was looked at too often, a copy without that count takes its place in time;
it then stands at the end of its queue.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from redrive.amqp import methods as m
from redrive.letters import Message
from redrive.transports.rabbitmq.channel import Channel
from redrive.transports.rabbitmq.copies import again
from redrive.transports.rabbitmq.delivery import fingerprint
from redrive.transports.rabbitmq.envelope import Unsealed, unseal
from redrive.transports.rabbitmq.link import Link
from redrive.transports.rabbitmq.message import to_message
from redrive.transports.rabbitmq.peeks import Peeks
from redrive.transports.rabbitmq.publisher import Publisher

# Half of the lowest limit that `provision` sets for a queue.
_WORN: Final = 10


class _Seen(NamedTuple):
    tag: int
    unsealed: Unsealed
    route: tuple[str, str]
    body: bytes

    def key(self, source: str) -> str:
        return f"{source}/{fingerprint(self.unsealed.properties, self.route, self.body)}"


async def depth(link: Link, source: str) -> int:
    """How many messages wait; `SourceMissingError` if there is no such queue."""
    async with link.channel() as channel:
        return (await channel.call(m.QueueDeclare(source, passive=True), m.QueueDeclareOk)).message_count


async def peek(link: Link, publisher: Publisher, peeks: Peeks, source: str, count: int) -> Sequence[Message]:
    """The first messages, which stay where they are."""
    async with link.channel() as channel:
        found = await _take(channel, source, count)
        for seen in found:
            peeks.looked_at(source, seen.key(source))
        if link.counts.looking_counts:
            worn = [seen for seen in found if (seen.unsealed.broker_count or 0) >= _WORN]
            await _renew(worn, channel, publisher, peeks, source)
        if found:
            # Not by closing the channel: RabbitMQ 4 calls that a failure, and this not.
            channel.send(m.BasicNack(0, multiple=True, requeue=True))
    return [to_message(seen.unsealed.properties, seen.body) for seen in found]


async def _take(channel: Channel, source: str, count: int) -> list[_Seen]:
    found: list[_Seen] = []
    while len(found) < count:
        answer, content = await channel.ask(m.BasicGet(source))
        if content is None or not isinstance(answer, m.BasicGetOk):
            break
        unsealed = unseal(content.properties, source)
        route = unsealed.route(answer.exchange, answer.routing_key)
        found.append(_Seen(answer.delivery_tag, unsealed, route, content.body))
    return found


async def _renew(
    worn: Sequence[_Seen], channel: Channel, publisher: Publisher, peeks: Peeks, source: str
) -> None:
    """Put a copy in the place of each: durable first, then the old one is settled."""
    copies = []
    for seen in worn:
        looks = min(peeks.of(source, seen.key(source)) - 1, seen.unsealed.broker_count or 0)
        deliveries = seen.unsealed.deliveries + (seen.unsealed.broker_count or 0) - looks
        copies.append(again(source, seen.unsealed, seen.route, seen.body, publisher.user, deliveries))
    for seen, error in zip(worn, await publisher.publish(copies), strict=True):
        if error is None:
            channel.send(m.BasicAck(seen.tag))
            peeks.forget(source, seen.key(source))
