"""After it was killed, the embedded broker says of each message what a RabbitMQ says that was killed."""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.differential.client import Channel, NothingCameError, Scene
from tests.differential.record import Record, difference
from tests.services import EmbeddedServer, RabbitMQServer, Run
from tests.services.server import Server

TO_DEAD: dict[str, Any] = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
BODIES = ("never delivered", "nacked", "rejected", "out", "out again")


@pytest.mark.service("rabbitmq", "embedded")
def test_deliveries_under_way_are_failures_when_the_broker_is_killed(service_run: Run) -> None:
    records: list[Record] = []
    for kind in (RabbitMQServer, EmbeddedServer):
        with service_run.private(kind, os.environ) as server:
            records.append(_killed(server))

    differing = difference(records[0], records[1], ("RabbitMQ", "embedded"))
    assert not differing, f"\n{differing}"


def _killed(server: Server[Any]) -> Record:
    """Leave messages in every state, kill the server, and record what it says of them afterwards."""
    before = Scene(server.address)
    wires = [before.connect(), before.connect()]
    ch, consumer = (wire.channel() for wire in wires)
    ch.queue("dead", durable=True, queue_type="quorum")
    ch.queue("work", durable=True, queue_type="quorum", **TO_DEAD)
    ch.queue("limited", durable=True, queue_type="quorum", delivery_limit=0)
    ch.queue("classic", durable=True, **TO_DEAD)
    for body in BODIES:
        ch.publish("work", body, delivery_mode=2, priority=1 if body == BODIES[0] else None)
    ch.publish("limited", "over the limit", delivery_mode=2)
    ch.publish("classic", "classic", delivery_mode=2)
    tags = {}
    for _ in BODIES[1:]:
        tag = consumer.get("work", wait=True, record=False)
        tags[consumer.last_body()] = tag
    consumer.reject(tags["out again"], requeue=True)
    consumer.get("work", wait=True, record=False)
    consumer.reject(tags["rejected"], requeue=True)
    consumer.nack(tags["nacked"], requeue=True)
    consumer.get("limited", wait=True, record=False)
    consumer.reject(consumer.get("classic", wait=True, record=False), requeue=True)
    ch.await_count("work", 3)
    ch.await_count("classic", 1)
    server.kill()
    for wire in wires:
        wire.drop()
    server.start()

    with Scene(server.address) as after:
        after.names = before.names  # messages may die before this scene begins
        ch = _until_ready(after)
        ch.await_count("work", len(BODIES))
        for _ in BODIES:
            ch.get("work", wait=True)
        ch.get("limited")
        ch.publish("dead", "awake")  # RabbitMQ loses what it dead-letters before the target is up again
        ch.ack(ch.get("dead", wait=True))
        ch.nack(ch.get("classic", wait=True))
        ch.get("dead", wait=True)
    return after.record


def _until_ready(scene: Scene) -> Channel:
    """A channel, as soon as the server has its queues again."""
    end = time.monotonic() + 30
    ready: Callable[[], Channel] = scene.channel
    while True:
        try:
            return ready()
        except (OSError, NothingCameError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
