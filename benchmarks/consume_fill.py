"""What lies in the queue before a consumer starts, and how does it get there?

Every consumer finds what its own producer would have sent: the same order of 1 KB, plain for those that take a body
as it is, wrapped by Dramatiq's and Celery's own code for those two. The envelope is made once; each message gets an
id of its own by replacing the octets of a placeholder, so filling costs less than reading. All messages are
persistent and all queues durable and classic: what Dramatiq and Celery use unless told otherwise.

This module does not know who consumes.
"""

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.amqp_load import CHANNEL, PIECE, Link
from redrive.amqp import methods as m
from redrive.amqp.frames import content_header
from redrive.amqp.hot import ContentWriter, publish_payload
from redrive.amqp.properties import BasicProperties, encode_properties

SIZE = 1024
TASK = "bench_order"
PERSISTENT = 2
PATIENCE_S = 60
DEAD_MESSAGE_TTL_MS = 7 * 24 * 3600 * 1000  # Dramatiq's, of its dead-letter queue
_ID = uuid.UUID(int=2**128 - 1)  # stands where each message's own id will


@dataclass(frozen=True)
class Envelope:
    """A message with a placeholder for its id."""

    body: bytes
    properties: BasicProperties


@dataclass(frozen=True)
class Shelf:
    """A queue, the queue of its dead letters, and the exchange between them ("": the default one)."""

    queue: str
    dead: str
    exchange: str
    dead_arguments: Mapping[str, object]


def order() -> dict[str, object]:
    """An order whose JSON, without spaces, is exactly 1 KB."""
    empty = {"id": str(_ID), "customer": 4711, "total": 99.5, "note": ""}
    return {**empty, "note": "x" * (SIZE - len(_json(empty)))}


def plain() -> Envelope:
    """The order itself."""
    properties = BasicProperties(
        content_type="application/json", delivery_mode=PERSISTENT, message_id=str(_ID)
    )
    return Envelope(_json(order()), properties)


def for_dramatiq(queue: str) -> Envelope:
    """The order as the argument of an actor."""
    from dramatiq import Message

    message: Message[None] = Message(
        queue_name=queue, actor_name=TASK, args=(order(),), kwargs={}, options={}, message_id=str(_ID)
    )
    return Envelope(message.encode(), BasicProperties(delivery_mode=PERSISTENT))


def for_celery() -> Envelope:
    """The order as the argument of a task."""
    import celery  # type: ignore[import-untyped]

    message = celery.Celery().amqp.as_task_v2(str(_ID), TASK, args=(order(),), ignore_result=True)
    return Envelope(
        json.dumps(message.body).encode(),
        BasicProperties(
            content_type="application/json",
            content_encoding="utf-8",
            headers=message.headers,
            delivery_mode=PERSISTENT,
            priority=0,
            correlation_id=message.properties["correlation_id"],
        ),
    )


def shelf_of(contestant: str, queue: str) -> Shelf:
    """What a contestant's queue is made of: as redrive provisions a classic queue, but Dramatiq declares its own."""
    if contestant == "dramatiq":
        return Shelf(queue, f"{queue}.XQ", "", {"x-message-ttl": DEAD_MESSAGE_TTL_MS})
    return Shelf(queue, f"{queue}.dlq", f"{queue}.dlx", {"x-queue-type": "classic"})


def put_up(link: Link, shelf: Shelf) -> None:
    """Declare it all."""
    arguments: dict[str, object] = {"x-dead-letter-exchange": shelf.exchange}
    link.send(m.QueueDeclare(shelf.dead, durable=True, arguments=dict(shelf.dead_arguments)))
    link.wait_for(m.QueueDeclareOk)
    if shelf.exchange:
        link.send(m.ExchangeDeclare(shelf.exchange, "fanout", durable=True))
        link.wait_for(m.ExchangeDeclareOk)
        link.send(m.QueueBind(shelf.dead, shelf.exchange, "#"))
        link.wait_for(m.QueueBindOk)
        arguments["x-queue-type"] = "classic"
    else:
        arguments["x-dead-letter-routing-key"] = shelf.dead
    link.send(m.QueueDeclare(shelf.queue, durable=True, arguments=arguments))
    link.wait_for(m.QueueDeclareOk)


def take_down(link: Link, shelf: Shelf) -> None:
    """Both queues and the exchange are no more."""
    link.delete(shelf.queue, shelf.dead)
    if shelf.exchange:
        link.send(m.ExchangeDelete(shelf.exchange))
        link.wait_for(m.ExchangeDeleteOk)


def fill(link: Link, queue: str, envelope: Envelope, count: int) -> None:
    """So many messages; returns when all of them wait in the queue."""
    header = content_header(encode_properties(envelope.properties), len(envelope.body))
    writer = ContentWriter(CHANNEL, link.protocol.limits.frame_max)
    message = writer.frames(publish_payload(b"", queue.encode()), header, envelope.body)
    placeholder, at_once = str(_ID).encode(), max(1, PIECE // len(message))
    if placeholder not in message:
        raise ValueError("an envelope without its placeholder would give all messages the same id")
    # Ids differ from fill to fill: Celery remembers those it has seen.
    start = uuid.uuid4().int >> 1
    ids = [str(uuid.UUID(int=number)).encode() for number in range(start, start + count)]
    for first in range(0, count, at_once):
        some = ids[first : first + at_once]
        link.socket.sendall(b"".join([message.replace(placeholder, one) for one in some]))
    wait_for_depth(link, queue, count)


def wait_for_depth(link: Link, queue: str, depth: int, patience_s: float = PATIENCE_S) -> None:
    """Until so many messages are ready, neither more nor less."""
    deadline = time.monotonic() + patience_s
    while (found := link.depth(queue)) != depth:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{queue} holds {found:,} messages where {depth:,} were to be")
        time.sleep(0.01)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
