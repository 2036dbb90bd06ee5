"""A consumer that writes dead letters and offsets as one is killed in between: both are there, or neither is.

Whoever comes next finishes the work. Who reads the dead letters then finds each of them once: none is missing, and
what the killed one had half written is not to be seen.
"""

import asyncio
from pathlib import Path

import pytest

from redrive.clock import SystemClock
from redrive.letters import Message
from redrive.testing.transport_suite.ground import all_done, death_of
from redrive.transports import Delivery, Publication, Source, Target
from redrive.transports.kafka import KafkaTransport
from tests.faults.children import a_child
from tests.services import Kafka

pytestmark = [pytest.mark.slow, pytest.mark.service("kafka")]

CHILD = Path(__file__).with_name("transaction_child.py")
# A broker looks every ten seconds for transactions whose time is over. These have ten: until then the broker does not
# tell what was committed, and whoever comes next has asked in vain by then.
OPTIONS = "session.timeout.ms=2000&heartbeat.interval.ms=200&publish_timeout=10s&transactions=true"
PATIENCE = 60.0
SENT = [b"first", b"second", b"third"]


def killed_at(stage: str, *words: str) -> None:
    """Let a consumer come to this stage, and kill it there."""
    child = a_child(CHILD, *words, stage)
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        assert child.stdout.readline() == b"here\n", child.stderr.read().decode()
    finally:
        child.kill()  # SIGKILL: nothing is taken back, and nobody leaves the group
        child.communicate()


async def taken(transport: KafkaTransport, source: Source, count: int) -> list[Delivery]:
    """So many deliveries, all of which stay out until the transport is closed; and no more come."""
    receiver = await transport.receiver(source)
    found: list[Delivery] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            found += await receiver.receive()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(receiver.receive(), 0.5)
    return found


@pytest.mark.parametrize(
    ("stage", "left"),
    [("written", SENT), ("offered", SENT), ("committed", SENT[2:])],
    ids=["written", "offered", "committed"],
)
async def test_of_a_dead_letter_and_its_offset_a_kill_leaves_both_or_neither(
    kafka: Kafka, stage: str, left: list[bytes]
) -> None:
    topic, graves = kafka.topic("orders"), kafka.topic("graves")
    url = f"{kafka.url}/?{OPTIONS}&group={kafka.name('g')}"
    source = Source(name=topic, dead_letter_queue=graves)
    async with KafkaTransport(url, SystemClock()) as transport:
        messages = [Publication(Message(body=body), Target(name=topic)) for body in SENT]
        assert all_done(await transport.publish(messages), len(SENT))

    await asyncio.to_thread(killed_at, stage, url, topic, graves)

    async with KafkaTransport(url, SystemClock()) as transport:
        receiver = await transport.receiver(source)
        found: list[Delivery] = []
        async with asyncio.timeout(PATIENCE):
            while len(found) < len(left):
                found += await receiver.receive()
        assert [each.body for each in found] == left
        assert {each.delivery_count for each in found} == {2}, "the killed one had them all"
        unfinished = [each for each in found if each.body != SENT[2]]
        outcomes = await receiver.dead_letter([death_of(each) for each in unfinished])
        assert all_done(outcomes, len(unfinished))
        assert receiver.accept(found[-1:]) == 0

    async with KafkaTransport(url, SystemClock()) as transport:
        assert [each.body for each in await taken(transport, Source(name=graves), 2)] == SENT[:2]
        assert await transport.depth(topic) == 0
