"""Quorum queues: counts of deliveries and failures, order, limits and consumers, as RabbitMQ 4.3 has them."""

from typing import Any

import pytest

from redrive.amqp import methods as m
from tests.unit.broker.harness import Peer, World


@pytest.fixture
def client() -> Peer:
    return World().client()


def quorum(client: Peer, queue: str = "q", **arguments: Any) -> None:
    client.declare(queue, durable=True, x_queue_type="quorum", **arguments)


def take(client: Peer, queue: str = "q") -> tuple[int, bytes, bool, tuple[object, object]]:
    """A message: delivery tag, body, redelivered, (x-acquired-count, x-delivery-count)."""
    got = client.get(queue, no_ack=False)
    assert got is not None
    headers = got[1].decoded().headers or {}
    counts = (headers.get("x-acquired-count"), headers.get("x-delivery-count"))
    return got[0].delivery_tag, got[1].body, got[0].redelivered, counts


def reject(client: Peer, queue: str = "q", *, requeue: bool = False) -> None:
    client.send(m.BasicReject(take(client, queue)[0], requeue), 1)


def nack(client: Peer, queue: str = "q", *, requeue: bool = False) -> None:
    client.send(m.BasicNack(take(client, queue)[0], False, requeue), 1)


class TestCounts:
    def test_returns_and_failures_are_counted_apart(self, client: Peer) -> None:
        quorum(client)
        client.publish("q")
        assert take(client)[2:] == (False, (None, None))
        client.call(m.BasicRecover(True), m.BasicRecoverOk)
        nack(client, requeue=True)
        assert take(client)[2:] == (True, (2, None))
        client.call(m.ChannelClose(), m.ChannelCloseOk)
        client.call(m.ChannelOpen(), m.ChannelOpenOk)
        reject(client, requeue=True)
        assert take(client)[2:] == (True, (4, 2))

    def test_returns_do_not_reach_the_delivery_limit(self, client: Peer) -> None:
        quorum(client, x_delivery_limit=1)
        client.publish("q")
        for _ in range(30):
            nack(client, requeue=True)
        for _ in range(2):
            reject(client, requeue=True)
        assert client.get("q") is None

    def test_counts_of_the_client_are_replaced(self, client: Peer) -> None:
        quorum(client)
        client.publish("q", headers={"x-delivery-count": 77, "x-acquired-count": 8})
        assert take(client)[3] == (8, 77)
        client.call(m.BasicRecover(True), m.BasicRecoverOk)
        assert take(client)[3] == (1, 77)

    def test_failures_travel_over_classic_queues_and_returns_do_not(self, client: Peer) -> None:
        quorum(client, "last")
        to_last = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "last"}
        client.declare("middle", x_message_ttl=5, **to_last)
        client.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="middle")
        client.publish("work")
        reject(client, "work", requeue=True)
        nack(client, "work", requeue=True)
        nack(client, "work")
        client.world.advance(5)
        tag, _, redelivered, counts = take(client, "last")
        assert (redelivered, counts) == (True, (1, 1))
        client.send(m.BasicNack(tag, False, True), 1)
        assert take(client, "last")[3] == (1, 1)

    def test_the_limit_is_compared_with_failures_of_earlier_queues(self, client: Peer) -> None:
        client.declare("over")
        quorum(
            client, "second", x_delivery_limit=1, x_dead_letter_exchange="", x_dead_letter_routing_key="over"
        )
        quorum(client, "first", x_dead_letter_exchange="", x_dead_letter_routing_key="second")
        client.publish("first")
        reject(client, "first", requeue=True)
        reject(client, "first")
        nack(client, "second", requeue=True)
        assert take(client, "over")[2:] == (True, (None, None))

    def test_a_dead_letter_is_not_redelivered_to_a_waiting_consumer_of_a_classic_queue(
        self, client: Peer
    ) -> None:
        client.declare("dead")
        client.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        client.call(m.BasicConsume("dead", "tag"), m.BasicConsumeOk)
        client.publish("work")
        reject(client, "work")
        delivery = client.take(m.BasicDeliver)
        assert not delivery.redelivered
        client.send(m.BasicNack(delivery.delivery_tag, False, True), 1)
        assert client.take(m.BasicDeliver).redelivered

    def test_a_dead_letter_with_failures_reaches_a_waiting_consumer_of_a_queue_without_time(
        self, client: Peer
    ) -> None:
        for kind in ("classic", "quorum"):
            client.declare(f"dead {kind}", durable=True, x_queue_type=kind, x_message_ttl=0)
            client.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key=f"dead {kind}")
            client.call(m.BasicConsume(f"dead {kind}"), m.BasicConsumeOk)
            client.publish("work")
            reject(client, "work")
            assert client.take(m.BasicDeliver).routing_key == f"dead {kind}"
            client.call(m.QueueDelete("work"), m.QueueDeleteOk)

    def test_a_failure_of_a_deleted_queue_is_forgotten(self, client: Peer) -> None:
        client.declare("dead")
        quorum(client, x_delivery_limit=0, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        client.publish("q")
        tag = take(client)[0]
        client.call(m.QueueDelete("q"), m.QueueDeleteOk)
        client.send(m.BasicReject(tag, True), 1)
        assert client.get("dead") is None


class TestOrder:
    def test_priorities_are_strict(self, client: Peer) -> None:
        quorum(client)
        for priority in (None, 0, 4, 5, 31, 200, None):
            client.publish("q", str(priority).encode(), priority=priority)
        assert client.bodies("q") == [b"31", b"200", b"5", b"None", b"4", b"None", b"0"]

    def test_returned_messages_come_first_in_the_order_of_their_return(self, client: Peer) -> None:
        quorum(client)
        for body in (b"a", b"b", b"c", b"d"):
            client.publish("q", body)
        tags = [take(client)[0] for _ in range(3)]
        for index in (1, 2, 0):
            client.send(m.BasicNack(tags[index], False, True), 1)
        client.publish("q", b"urgent", priority=9)
        assert client.bodies("q") == [b"b", b"c", b"a", b"urgent", b"d"]

    def test_a_channel_gives_back_in_the_order_of_its_deliveries(self, client: Peer) -> None:
        quorum(client)
        for body in (b"a", b"b", b"c"):
            client.publish("q", body)
        for _ in range(3):
            take(client)
        client.call(m.ChannelClose(), m.ChannelCloseOk)
        client.call(m.ChannelOpen(), m.ChannelOpenOk)
        assert client.bodies("q") == [b"a", b"b", b"c"]

    def test_expired_messages_of_every_priority_go_in_order(self, client: Peer) -> None:
        client.declare("dead")
        quorum(client, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        client.publish("q", b"stays", priority=9)
        for body, priority in ((b"low", 1), (b"middle", 3), (b"lower", 1)):
            client.publish("q", body, priority=priority, expiration="5")
        client.world.advance(5)
        assert client.bodies("dead") == [b"middle", b"low", b"lower"]
        assert client.bodies("q") == [b"stays"]

    def test_a_purge_takes_returned_messages_and_every_priority(self, client: Peer) -> None:
        quorum(client)
        for priority in (None, 1, 9):
            client.publish("q", priority=priority)
        nack(client, requeue=True)
        assert client.call(m.QueuePurge("q"), m.QueuePurgeOk).message_count == 3
        queue = client.world.broker.vhosts["/"].queues["q"]
        assert (len(queue.line), queue.bytes_ready) == (0, 0)


class TestLimits:
    def test_properties_count_against_the_byte_limit(self, client: Peer) -> None:
        quorum(client, x_max_length_bytes=1000)
        for _ in range(12):
            client.publish("q", b"x" * 100)
        queue = client.world.broker.vhosts["/"].queues["q"]
        assert (queue.ready, queue.bytes_ready) == (9, 9 * 102)
        tag = take(client)[0]
        assert queue.unacked_bytes == 102
        client.send(m.BasicAck(tag), 1)
        assert queue.unacked_bytes == 0

    def test_a_message_expires_when_a_consumer_took_the_one_before_it(self, client: Peer) -> None:
        quorum(client)
        client.publish("q", b"1")
        client.publish("q", b"2", expiration="5")
        client.call(m.BasicQos(0, 1, False), m.BasicQosOk)
        client.call(m.BasicConsume("q"), m.BasicConsumeOk)
        client.world.advance(5)
        assert client.world.broker.vhosts["/"].queues["q"].ready == 0


class TestConsumers:
    def test_a_single_active_consumer_of_higher_priority_waits_for_unsettled_deliveries(
        self, client: Peer
    ) -> None:
        quorum(client, x_single_active_consumer=True)
        client.call(m.BasicQos(0, 1, False), m.BasicQosOk)
        client.call(m.BasicConsume("q", "low"), m.BasicConsumeOk)
        for _ in range(3):
            client.publish("q")
        first = client.take(m.BasicDeliver)
        client.call(m.BasicConsume("q", "high", arguments={"x-priority": 5}), m.BasicConsumeOk)
        client.call(m.BasicConsume("q", "middle", arguments={"x-priority": 3}), m.BasicConsumeOk)
        assert not client.sees(m.BasicDeliver)
        client.send(m.BasicAck(first.delivery_tag), 1)
        second = client.take(m.BasicDeliver)
        assert (first.consumer_tag, second.consumer_tag) == ("low", "high")
        client.call(m.BasicCancel("high"), m.BasicCancelOk)
        assert client.take(m.BasicDeliver).consumer_tag == "middle"

    def test_exclusive_consumers_are_not_enforced(self, client: Peer) -> None:
        quorum(client)
        for tag in ("one", "two"):
            client.call(m.BasicConsume("q", tag, exclusive=True), m.BasicConsumeOk)
