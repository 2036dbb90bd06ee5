"""A broker that is killed at any moment loses no message it confirmed, and invents none."""

import random
import re
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from redrive.amqp import methods as m
from redrive.amqp.content import Content
from redrive.amqp.errors import AmqpError
from tests import soak
from tests.faults.blocking_client import PERSISTENT, Client

KILLS = soak.count(200)
SHARDS = soak.count(10)
PUBLISHERS = 2


class Process:
    """A broker of our own."""

    def __init__(self, data: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "redrive", "broker", "--port", "0", "--data", str(data), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"amqp://127\.0\.0\.1:(\d+)/", line)
        assert found, f"the broker said {line!r}"
        self.port = int(found[1])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Publisher:
    """One connection that publishes to one queue with confirms; `number` stays over all lives of the broker."""

    def __init__(self, port: int, number: int, story: "Story") -> None:
        self.client = Client(port)
        self.number = number
        self.story = story
        self.client.call(m.QueueDeclare("work", durable=True), m.QueueDeclareOk)
        self.client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
        self.waiting: dict[int, bytes] = {}
        self.tag = 0

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.tag += 1
            body = b"%d %d" % (self.number, next(self.story.numbers[self.number]))
            self.story.published.add(body)
            self.waiting[self.tag] = body
            self.client.send(m.BasicPublish("", "work"), 1, Content(PERSISTENT, body))

    def hear_confirms(self) -> None:
        for event in self.client.drain(0.001):
            if isinstance(event.method, m.BasicAck):
                for known in [known for known in self.waiting if known <= event.method.delivery_tag]:
                    self.story.confirmed.add(self.waiting.pop(known))


class Story:
    """What publishers and consumers saw, over all lives of the broker."""

    def __init__(self) -> None:
        self.published: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.delivered: set[bytes] = set()
        self.numbers = [count() for _ in range(PUBLISHERS)]

    def live(self, port: int, chance: random.Random, end: float) -> None:
        """Publish with confirms, consume and acknowledge, until the time is over."""
        publishers = [Publisher(port, number, self) for number in range(PUBLISHERS)]
        consumer = Client(port)
        consumer.call(m.BasicQos(prefetch_count=20), m.BasicQosOk)
        consumer.call(m.BasicConsume("work", "c"), m.BasicConsumeOk)
        order: dict[int, int] = {}
        while time.monotonic() < end:
            for publisher in publishers:
                publisher.publish(chance.randint(1, 15))
                publisher.hear_confirms()
            for event in consumer.drain(0.001):
                if isinstance(event.method, m.BasicDeliver):
                    assert event.content is not None
                    self.see(event.content.body, order)
                    if chance.random() < 0.7:
                        consumer.send(m.BasicAck(event.method.delivery_tag), 1)
        for client in (consumer, *(publisher.client for publisher in publishers)):
            client.close()

    def see(self, body: bytes, order: dict[int, int]) -> None:
        """A delivery; within one life of the broker each publisher's come in the order they were published."""
        assert body in self.published, f"{body!r} was never published"
        publisher, number = map(int, body.split())
        assert number > order.get(publisher, -1), f"{body!r} came after {order[publisher]}"
        order[publisher] = number
        self.delivered.add(body)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_killed_broker_loses_no_confirmed_message(tmp_path: Path, shard: int) -> None:
    chance = random.Random(soak.seed(shard))
    story = Story()
    for _ in range(KILLS // SHARDS):
        broker = Process(tmp_path / "data")
        try:
            story.live(broker.port, chance, time.monotonic() + chance.random() ** 2 * 0.3)
        except (ConnectionError, AmqpError):
            pass
        finally:
            broker.kill()
    broker = Process(tmp_path / "data")
    try:
        left = all_that_is_left(broker.port, story)
    finally:
        broker.kill()
    lost = story.confirmed - story.delivered - left
    soak.report(kills=KILLS // SHARDS, acknowledged=len(story.confirmed), lost=len(lost))
    assert not lost, f"{len(lost)} of {len(story.confirmed)} confirmed messages are lost"
    assert story.confirmed, "nothing was ever confirmed: the test has tested nothing"


def all_that_is_left(port: int, story: Story) -> set[bytes]:
    client = Client(port)
    ready = client.call(m.QueueDeclare("work", passive=True), m.QueueDeclareOk).message_count
    client.call(m.BasicConsume("work", "c", no_ack=True), m.BasicConsumeOk)
    left: set[bytes] = set()
    order: dict[int, int] = {}
    while len(left) < ready:
        for event in client.drain(10):
            if isinstance(event.method, m.BasicDeliver):
                assert event.content is not None
                story.see(event.content.body, order)
                left.add(event.content.body)
    client.close()
    return left
