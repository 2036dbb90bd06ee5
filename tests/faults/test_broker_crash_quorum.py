"""A broker that is killed keeps delayed messages and dead letters that no queue has taken yet."""

import random
import time
from pathlib import Path

import pytest

from redrive.amqp import methods as m
from redrive.amqp.content import Content
from redrive.amqp.errors import AmqpError
from redrive.amqp.events import MethodReceived
from tests.faults.blocking_client import PERSISTENT, Client
from tests.faults.test_broker_crash import Process

KILLS = 10
RETRY = ("--dead-letter-retry", "50ms")
WORK = {
    "x-queue-type": "quorum",
    "x-delayed-retry-type": "all",
    "x-delayed-retry-min": 20,
    "x-delivery-limit": 3,
    "x-dead-letter-exchange": "dlx",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
DEAD = {"x-queue-type": "quorum", "x-max-length": 3, "x-overflow": "reject-publish"}


class Story:
    """What a publisher and a consumer did and saw, over all lives of the broker."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.published: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.dead: set[bytes] = set()  # seen in the dead-letter queue
        self.redelivered = 0

    def live(self, port: int, seconds: float) -> None:
        """Publish, and do anything with deliveries, until the time is over."""
        publisher, consumer = Client(port), consuming(port)
        publisher.call(m.ConfirmSelect(), m.ConfirmSelectOk)
        waiting: dict[int, bytes] = {}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(self.chance.randint(0, 3)):
                body = b"%d" % len(self.published)
                self.published.add(body)
                waiting[len(waiting) + 1] = body
                publisher.send(m.BasicPublish("", "work"), 1, Content(PERSISTENT, body))
            for event in publisher.drain(0.001):
                if isinstance(event.method, m.BasicAck):
                    confirmed = range(1, event.method.delivery_tag + 1)
                    self.confirmed.update(waiting[tag] for tag in confirmed)
            for event in consumer.drain(0.001):
                self.handle(consumer, event)
        publisher.close()
        consumer.close()

    def handle(self, consumer: Client, event: MethodReceived) -> None:
        """Settle a delivery in one of all ways, and take a dead letter out of its queue now and then."""
        method = event.method
        if not isinstance(method, m.BasicDeliver):
            return
        assert event.content is not None
        body, tag, chance = event.content.body, method.delivery_tag, self.chance.random()
        assert body in self.published, f"{body!r} was never published"
        self.redelivered += method.redelivered
        if method.consumer_tag == "dead":
            self.dead.add(body)
            if chance < 0.5:
                consumer.send(m.BasicAck(tag), 1)
        elif chance < 0.2:
            self.acknowledged.add(body)
            consumer.send(m.BasicAck(tag), 1)
        elif chance < 0.5:
            consumer.send(m.BasicReject(tag, requeue=True), 1)
        elif chance < 0.7:
            consumer.send(m.BasicNack(tag, requeue=True), 1)
        elif chance < 0.95:
            consumer.send(m.BasicReject(tag, requeue=False), 1)

    def collect(self, port: int) -> set[bytes]:
        """Everything that is left: what is delayed comes, and so does what was kept."""
        client, left = consuming(port), set[bytes]()
        wanted = self.confirmed - self.acknowledged - self.dead
        end = time.monotonic() + 30
        while wanted - left and time.monotonic() < end:
            for event in client.drain(0.05):
                if isinstance(event.method, m.BasicDeliver):
                    assert event.content is not None
                    left.add(event.content.body)
                    client.send(m.BasicAck(event.method.delivery_tag), 1)
        client.close()
        return left


def consuming(port: int) -> Client:
    client = Client(port)
    client.call(m.ExchangeDeclare("dlx", "fanout", durable=True), m.ExchangeDeclareOk)
    client.call(m.QueueDeclare("work", durable=True, arguments=WORK), m.QueueDeclareOk)
    client.call(m.QueueDeclare("dead", durable=True, arguments=DEAD), m.QueueDeclareOk)
    client.call(m.QueueBind("dead", "dlx"), m.QueueBindOk)
    client.call(m.BasicQos(prefetch_count=5), m.BasicQosOk)
    for queue in ("work", "dead"):
        client.call(m.BasicConsume(queue, queue), m.BasicConsumeOk)
    return client


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_killed_broker_loses_no_delayed_message_and_no_kept_dead_letter(tmp_path: Path, seed: int) -> None:
    story = Story(seed)
    for _ in range(KILLS):
        broker = Process(tmp_path / "data", *RETRY)
        try:
            story.live(broker.port, story.chance.random() * 0.3)
        except (ConnectionError, AmqpError):
            pass
        finally:
            broker.kill()
    broker = Process(tmp_path / "data", *RETRY)
    try:
        left = story.collect(broker.port)
    finally:
        broker.kill()
    lost = story.confirmed - story.acknowledged - story.dead - left
    assert not lost, f"{len(lost)} of {len(story.confirmed)} confirmed messages are lost: {sorted(lost)[:10]}"
    assert len(story.confirmed) > 100, "hardly anything was confirmed: the test has tested nothing"
    assert len(story.dead) > 10, "hardly anything died: the test has tested nothing"
    assert left - story.acknowledged, "nothing was left: the test has tested nothing"


def test_killed_broker_still_has_what_it_held_back(tmp_path: Path) -> None:
    """One delayed message and one dead letter without a route, each looked at after a kill."""
    broker = Process(tmp_path / "data", *RETRY)
    client = Client(broker.port)
    later = {**WORK, "x-delayed-retry-min": 5000}
    client.call(m.QueueDeclare("work", durable=True, arguments=later), m.QueueDeclareOk)
    client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
    client.call(m.BasicConsume("work", "work"), m.BasicConsumeOk)
    rejected_at = time.monotonic()
    for body, requeue in ((b"delayed", True), (b"dead", False)):
        client.send(m.BasicPublish("", "work"), 1, Content(PERSISTENT, body))
        tag = client.wait_for(m.BasicDeliver).delivery_tag
        client.send(m.BasicReject(tag, requeue=requeue), 1)
    # The answer to a durable declare comes when everything before it is on disk.
    client.call(m.QueueDeclare("flushed", durable=True), m.QueueDeclareOk)
    broker.kill()
    client.close()

    broker = Process(tmp_path / "data", *RETRY)
    try:
        client = Client(broker.port)
        assert client.call(m.QueueDeclare("work", passive=True), m.QueueDeclareOk).message_count == 0
        client.call(m.ExchangeDeclare("dlx", "fanout", durable=True), m.ExchangeDeclareOk)
        client.call(m.QueueDeclare("dead", durable=True), m.QueueDeclareOk)
        client.call(m.QueueBind("dead", "dlx"), m.QueueBindOk)
        client.call(m.BasicConsume("dead", "dead"), m.BasicConsumeOk)
        assert client.wait_for(m.BasicDeliver).consumer_tag == "dead"
        client.call(m.BasicConsume("work", "work"), m.BasicConsumeOk)
        assert client.wait_for(m.BasicDeliver).redelivered
        assert time.monotonic() - rejected_at > 4.9
        client.close()
    finally:
        broker.kill()
