"""What lies in the dead-letter queue and in the store before the way back is measured?

In the queue: orders of 1 KB that redrive's own consumer gave up, with everything it writes into the headers of a dead
letter, a traceback included. In the store: letters of other sources that are not due before tomorrow, so that nobody
claims them and they are only in the way.

This module does not know who takes them.
"""

import random
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from benchmarks.consume_fill import PERSISTENT, Envelope, plain
from benchmarks.store_sqlite import letter
from redrive.amqp.properties import BasicProperties
from redrive.formats import own
from redrive.letters import Failure, FailureKind, Message, SystemState, letter_id
from redrive.letters.redact import Redactor
from redrive.stores.sqlite import SqliteStore
from redrive.testing.factories import a_letter
from redrive.transports.rabbitmq.message import to_wire

SOURCE = "bench.orders"
DELIVERIES = 3
_AT_ONCE = 1000


def dead_order() -> Envelope:
    """An order that died of a timeout, with a placeholder where its id stands."""
    order = plain()
    name = str(order.properties.message_id)
    failure = _failure(name)
    dead = a_letter(
        f"{SOURCE}/{name}",
        message=Message(body=order.body, content_type=order.properties.content_type, message_id=name),
        origin=msgspec.structs.replace(a_letter().origin, source=SOURCE, exchange="", routing_key=SOURCE),
        failure=failure,
        reason="MaxRetriesExceeded",
        retry_count=DELIVERIES,
        correlation_id=name,
        system_state=SystemState(0.25, 0.5),
    )
    properties = BasicProperties(
        content_type=order.properties.content_type,
        delivery_mode=PERSISTENT,
        message_id=name,
        headers={key: to_wire(key, value) for key, value in own.write(dead, DELIVERIES)},
    )
    return Envelope(order.body, properties)


def _failure(order: str) -> Failure:
    """Each tells of its own order, in the text and at the end of the stack: no two are the same."""
    try:
        _charge(order)
    except TimeoutError as error:
        return Failure(
            error_type="TimeoutError",
            text=str(error),
            at=datetime.now(UTC) - timedelta(minutes=1),
            kind=FailureKind.TIMEOUT,
            rule="type:TimeoutError",
            stack="".join(traceback.format_exception(error)),
            redacted=Redactor().name,  # as an app with the same settings writes it
        )
    raise AssertionError("nothing was raised")


def _charge(order: str) -> None:
    _call("payments", order)


def _call(service: str, order: str) -> None:
    raise TimeoutError(f"{service} did not answer for order {order} within 5000 ms")


async def stock(path: Path, count: int) -> None:
    """A store with so many letters in it, of twenty sources, none of them due before tomorrow."""
    chance = random.Random(3)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    patterns = [letter(number, chance) for number in range(660)]  # every mix of source, error and priority
    store = await SqliteStore.open(path)
    try:
        for first in range(0, count, _AT_ONCE):
            batch = []
            for number in range(first, min(first + _AT_ONCE, count)):
                pattern, key = patterns[number % len(patterns)], f"stock/{number}"
                batch.append(
                    msgspec.structs.replace(
                        pattern,
                        id=letter_id(key, pattern.last_failed_at + timedelta(milliseconds=number)),
                        key=key,
                        message_id=key,
                        correlation_id=f"{chance.getrandbits(64):016x}",
                        next_retry_at=tomorrow + timedelta(milliseconds=number),
                    )
                )
            await store.add(batch)
    finally:
        await store.close()
