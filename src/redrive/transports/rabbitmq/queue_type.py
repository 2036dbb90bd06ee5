"""Find out over AMQP alone whether a queue is a quorum queue.

No method tells the type of a queue. A declare with the arguments that `provision` would give it changes nothing and is
accepted where they are the same. Where they are not, or the user may not configure the queue, RabbitMQ names the type
in its refusal of a consumer argument that only streams have. Neither is asked before it has to be known.
"""

from typing import Final

from redrive.amqp import methods as m
from redrive.errors import TransportError
from redrive.transports.base import Source
from redrive.transports.rabbitmq.link import Link
from redrive.transports.rabbitmq.topology import wanted

_ONLY_STREAMS: Final = {"x-stream-offset": "next"}
_TYPES: Final = {"rabbit_quorum_queue": "quorum", "rabbit_classic_queue": "classic"}


async def queue_type(link: Link, source: Source) -> str | None:
    """`quorum`, `classic`, or None where it cannot be told. The queue has to exist."""
    if await _is_as_provisioned(link, source):
        return source.queue_type
    return None if link.is_embedded else await _type_by_refusal(link, source.name)


async def _is_as_provisioned(link: Link, source: Source) -> bool:
    queue = next(each for each in wanted([source], link.counts).queues if each.role == "work")
    try:
        async with link.channel() as channel:
            await channel.call(m.QueueDeclare(queue.name, durable=True, arguments=queue.arguments))
    except TransportError:
        return False
    return True


async def _type_by_refusal(link: Link, name: str) -> str | None:
    try:
        async with link.channel() as channel:
            await channel.call(m.BasicQos(prefetch_count=1))
            await channel.call(m.BasicConsume(name, arguments=_ONLY_STREAMS))
    except TransportError as error:
        return next((kind for module, kind in _TYPES.items() if module in str(error)), None)
    return None
