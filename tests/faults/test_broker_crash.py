"""A broker that is killed at any moment loses no message it confirmed, and invents none."""

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from redrive.amqp import methods as m
from redrive.amqp.content import Content
from redrive.amqp.errors import AmqpError
from tests.faults.blocking_client import PERSISTENT, Client

KILLS = 200
SHARDS = 10


class Process:
    """A broker of our own."""

    def __init__(self, data: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "redrive", "broker", "--port", "0", "--data", str(data)],
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


class Story:
    """What publishers and consumers saw, over all lives of the broker."""

    def __init__(self) -> None:
        self.published: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.delivered: set[bytes] = set()
        self.next = 0

    def live(self, port: int, chance: random.Random, end: float) -> None:
        """Publish with confirms, consume and acknowledge, until the time is over."""
        client = Client(port)
        client.call(m.QueueDeclare("work", durable=True), m.QueueDeclareOk)
        client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
        client.call(m.BasicQos(prefetch_count=20), m.BasicQosOk)
        client.call(m.BasicConsume("work", "c"), m.BasicConsumeOk)
        waiting: dict[int, bytes] = {}
        tag = 0
        last = -1
        while time.monotonic() < end:
            for _ in range(chance.randint(1, 20)):
                tag += 1
                body = b"%d" % self.next
                self.next += 1
                self.published.add(body)
                waiting[tag] = body
                client.send(m.BasicPublish("", "work"), 1, Content(PERSISTENT, body))
            for event in client.drain(0.002):
                match event.method:
                    case m.BasicAck(delivery_tag=upto):
                        for known in [known for known in waiting if known <= upto]:
                            self.confirmed.add(waiting.pop(known))
                    case m.BasicDeliver(delivery_tag=number):
                        assert event.content is not None
                        last = self.see(event.content.body, last)
                        if chance.random() < 0.7:
                            client.send(m.BasicAck(number), 1)
        client.close()

    def see(self, body: bytes, last: int) -> int:
        """A delivery; within one life of the broker they come in the order they were published."""
        assert body in self.published, f"{body!r} was never published"
        assert int(body) > last, f"{body!r} came after {last}"
        self.delivered.add(body)
        return int(body)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_killed_broker_loses_no_confirmed_message(tmp_path: Path, shard: int) -> None:
    chance = random.Random(shard)
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
    assert not lost, f"{len(lost)} of {len(story.confirmed)} confirmed messages are lost"
    assert story.confirmed, "nothing was ever confirmed: the test has tested nothing"


def all_that_is_left(port: int, story: Story) -> set[bytes]:
    client = Client(port)
    count = client.call(m.QueueDeclare("work", passive=True), m.QueueDeclareOk).message_count
    client.call(m.BasicConsume("work", "c", no_ack=True), m.BasicConsumeOk)
    left: set[bytes] = set()
    last = -1
    while len(left) < count:
        for event in client.drain(10):
            if isinstance(event.method, m.BasicDeliver):
                assert event.content is not None
                last = story.see(event.content.body, last)
                left.add(event.content.body)
    client.close()
    return left
