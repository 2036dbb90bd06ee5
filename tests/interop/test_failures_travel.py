"""From RabbitMQ 4.3 on, failures travel with a dead letter: a hundred rounds of everything redrive does lose nothing.

The delivery limit of each queue is compared with the failures that a message had in the queues before. A ladder of
reject, a queue with a time to live and back raises them with each round; above the limit, one return is a death by
`delivery_limit`, and the way back through the waiting queue is then a cycle, which the broker drops.
"""

from datetime import datetime, timedelta
from typing import Any

import pytest

from redrive.amqp import methods as m
from redrive.clock import SystemClock
from redrive.letters import Message
from redrive.transports.base import Publication, Release, Source, Target
from redrive.transports.rabbitmq import RabbitTransport
from tests.interop.test_delivery_counts import KINDS, Foreign, death_of, foreign, take
from tests.services import RabbitMQ

ROUNDS = 100
FASTER = 50  # times


class FastClock(SystemClock):
    """Runs faster than time, so that a delay of one second is one of 20 milliseconds."""

    def __init__(self) -> None:
        self._began = super().now()

    def now(self) -> datetime:
        return self._began + (super().now() - self._began) * FASTER

    async def sleep(self, duration: timedelta) -> None:
        await super().sleep(duration / FASTER)


async def crash(transport: RabbitTransport, source: Source) -> None:
    """A consumer gets the message and dies."""
    receiver = await transport.receiver(source)
    await take(receiver, 1)
    await receiver.stop()
    await receiver.close()


async def ladder(client: Foreign, kind: str) -> None:
    """A work queue whose dead letters wait for a moment and come back."""
    await client.declare(
        "wait", queue_type=kind, message_ttl=5, dead_letter_exchange="", dead_letter_routing_key="work"
    )
    await client.declare("work", queue_type=kind, dead_letter_exchange="", dead_letter_routing_key="wait")
    await client.publish("work", b"x")


async def test_ladder_of_another_client_loses_the_message_when_limits_are_compared_with_carried_failures(
    each_broker: RabbitMQ,
) -> None:
    async with foreign(each_broker) as client:
        await ladder(client, "quorum")
        for _ in range(21):
            got = await client.must_get("work")
            client.channel.send(m.BasicReject(got.tag, requeue=False))
        await client.give_back("nack", await client.must_get("work"))
        is_lost = await client.get("work", patience=1) is None
        assert is_lost == client.counts.limits_carried


@KINDS
async def test_ladder_with_a_consumer_of_redrive_loses_nothing(each_broker: RabbitMQ, kind: Any) -> None:
    """It dead-letters by `reject`, and dies once in each round."""
    async with foreign(each_broker) as client:
        await ladder(client, kind)
    source = Source(name="work", queue_type=kind, dead_letter="native")
    async with RabbitTransport(each_broker.amqp_url, SystemClock()) as transport:
        for _ in range(ROUNDS):
            await crash(transport, source)
            receiver = await transport.receiver(source)
            [delivery] = await take(receiver, 1)
            await receiver.stop()
            assert list(await receiver.dead_letter([death_of(delivery)])) == [None]
            await receiver.close()
        [delivery] = await take(await transport.receiver(source), 1)
        assert delivery.body == b"x"


@KINDS
async def test_retries_with_a_delay_lose_nothing(each_broker: RabbitMQ, kind: Any) -> None:
    async with foreign(each_broker) as client:
        arguments = {
            "queue_type": kind,
            "message_ttl": 1000 // FASTER,
            "dead_letter_exchange": "",
            "dead_letter_routing_key": "orders",
        }
        if kind == "quorum":
            arguments |= {"dead_letter_strategy": "at-least-once", "overflow": "reject-publish"}
        await client.declare("orders.delay.1s", **arguments)
    source = Source(name="orders", queue_type=kind)
    async with RabbitTransport(each_broker.amqp_url, FastClock()) as transport:
        await transport.provision([source])
        await transport.publish([Publication(Message(body=b"x"), Target(name="orders"))])
        for number in range(ROUNDS):
            if number % 10 == 0:
                await crash(transport, source)
            receiver = await transport.receiver(source)
            [delivery] = await take(receiver, 1)
            assert delivery.delivery_count == number + number // 10 + 2
            await receiver.stop()
            assert list(await receiver.release([Release(delivery, timedelta(seconds=1))])) == [None]
            await receiver.close()
        [delivery] = await take(await transport.receiver(source), 1)
        assert delivery.body == b"x"


@KINDS
@pytest.mark.parametrize("way", ["publish", "native"])
async def test_dead_letters_that_are_collected_and_sent_back_lose_nothing(
    each_broker: RabbitMQ, kind: Any, way: Any
) -> None:
    source = Source(name="orders", queue_type=kind, dead_letter=way)
    async with foreign(each_broker) as client:
        carries_flag, carries_counts = client.counts.carries_flag, client.counts.carries_counts
    async with RabbitTransport(each_broker.amqp_url, SystemClock()) as transport:
        await transport.provision([source])
        await transport.publish([Publication(Message(body=b"x"), Target(name="orders"))])
        collector = await transport.receiver(Source(name=source.dlq))
        for number in range(ROUNDS):
            crashes = number % 10 == 0
            if crashes:
                await crash(transport, source)
                await collector.close()
                collector = await transport.receiver(Source(name=source.dlq))
            receiver = await transport.receiver(source)
            [delivery] = await take(receiver, 1)
            # What was sent back still has the x-death of its letter: it may look as if it had just arrived so.
            late = way == "native" and number > 0 and (carries_flag if kind == "classic" else carries_counts)
            assert delivery.delivery_count == 1 + (crashes and not late)
            if number % 10 == 5:  # it fails once, comes again and is then given up
                assert list(await receiver.release([Release(delivery)])) == [None]
                [delivery] = await take(receiver, 1)
                assert delivery.delivery_count == 1 + (kind == "classic" or not late)
            await receiver.stop()  # a channel that is closed may be given messages for a moment
            assert list(await receiver.dead_letter([death_of(delivery)])) == [None]
            await receiver.close()
            [letter] = await take(collector, 1)
            assert letter.delivery_count == 1
            assert list(await transport.publish([Publication(letter.message, Target(name="orders"))])) == [
                None
            ]
            collector.accept([letter])
        [delivery] = await take(await transport.receiver(source), 1)
        assert delivery.body == b"x"
