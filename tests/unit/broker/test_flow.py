"""The broker as its clients see it, on a clock turned by hand."""

import pytest

from redrive.amqp import methods as m
from redrive.amqp.content import Content
from redrive.broker.arguments import Features
from redrive.broker.dead_letter import Reason
from tests.unit.broker.harness import World


def test_a_message_goes_from_publisher_to_consumer() -> None:
    world = World()
    publisher, consumer = world.client(), world.client()
    consumer.declare("q")
    consumer.call(m.BasicConsume("q", "c"), m.BasicConsumeOk)
    publisher.publish("q", b"hello")
    delivery, content = consumer.take_whole(m.BasicDeliver)
    assert (delivery.routing_key, delivery.redelivered, content and content.body) == ("q", False, b"hello")
    consumer.send(m.BasicAck(delivery.delivery_tag), 1)
    assert consumer.depth("q") == 0


def test_a_deep_queue_is_delivered_to_the_end_without_acknowledgements() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    for number in range(5000):
        client.session.receive(
            client.connection.send(m.BasicPublish("", "q"), 1, Content(body=b"%d" % number)), world.now
        )
    world.work()
    client.call(m.BasicConsume("q", "c", no_ack=True), m.BasicConsumeOk)
    bodies = [content.body for _, content in client.all_of(m.BasicDeliver) if content]
    assert bodies == [b"%d" % number for number in range(5000)]


def test_a_message_for_one_that_waits_is_on_its_way_before_the_turn_is_over() -> None:
    world = World()
    publisher, consumer = world.client(), world.client()
    consumer.declare("q")
    consumer.call(m.BasicQos(prefetch_count=2), m.BasicQosOk)
    consumer.call(m.BasicConsume("q", "c"), m.BasicConsumeOk)
    for number in range(4):
        octets = publisher.connection.send(m.BasicPublish("", "q"), 1, Content(body=b"%d" % number))
        publisher.session.receive(octets, world.now)
    consumer.listen()  # without `world.work`
    tags = [
        (delivery.delivery_tag, content and content.body)
        for delivery, content in consumer.all_of(m.BasicDeliver)
    ]
    assert tags == [(1, b"0"), (2, b"1")]
    world.work()
    assert not consumer.sees(m.BasicDeliver)  # no more room, and nothing twice
    consumer.send(m.BasicNack(1, requeue=True), 1)
    consumer.send(m.BasicAck(2), 1)
    assert [content and content.body for _, content in consumer.all_of(m.BasicDeliver)] == [b"0", b"2"]
    assert consumer.depth("q") == 1


def test_a_message_waits_for_its_turn_where_several_could_take_it() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    for tag in ("a", "b"):
        client.call(m.BasicConsume("q", tag, no_ack=True), m.BasicConsumeOk)
    for number in range(4):
        client.publish("q", b"%d" % number)
    takers = [delivery.consumer_tag for delivery, _ in client.all_of(m.BasicDeliver)]
    assert takers in (["a", "b"] * 2, ["b", "a"] * 2)


# --- failures other brokers of this kind had -----------------------------------------------------------------


@pytest.mark.parametrize("limit", [{"x_message_ttl": 0}, {"x_max_length": 0}], ids=str)
def test_dead_lettering_into_a_queue_that_dead_letters_itself_does_not_lock_up(limit: dict[str, int]) -> None:
    world = World()
    client = world.client()
    client.declare("a", x_dead_letter_exchange="", x_dead_letter_routing_key="b", **limit)
    client.declare("b", x_dead_letter_exchange="", x_dead_letter_routing_key="c", **limit)
    client.declare("c")
    for number in range(100):
        client.publish("a", b"%d" % number)
    world.advance(1)
    assert client.bodies("c") == [b"%d" % number for number in range(100)]


def test_a_queue_that_is_its_own_dead_letter_target_drops_what_expires_in_a_circle() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="q", x_message_ttl=10)
    client.publish("q")
    world.advance(10)
    assert client.depth("q") == 0
    assert sum(world.broker.deaths.values()) == 1


def test_a_rejected_message_may_come_back_to_its_own_queue() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    client.publish("q")
    for count in (1, 2, 3):
        got = client.get("q", no_ack=False)
        assert got is not None
        client.send(m.BasicReject(got[0].delivery_tag, False), 1)
        seen = client.get("q", no_ack=False)
        assert seen is not None
        assert [(d["queue"], d["count"]) for d in client.deaths(seen[1])] == [("q", count)]
        client.send(m.BasicReject(seen[0].delivery_tag, True), 1)


def test_a_dead_letter_for_a_queue_that_was_deleted_is_dropped_and_counted() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="gone")
    client.declare("gone")
    client.publish("q")
    client.call(m.QueueDelete("gone"), m.QueueDeleteOk)
    got = client.get("q", no_ack=False)
    assert got is not None
    client.send(m.BasicReject(got[0].delivery_tag, False), 1)
    assert world.broker.drops[Reason.REJECTED] == 1
    assert client.depth("q") == 0


def test_a_death_after_its_channel_was_closed_still_reaches_the_dead_letter_queue() -> None:
    world = World()
    client, other = world.client(), world.client()
    client.declare("dead")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead", x_message_ttl=50)
    client.publish("q")
    got = client.get("q", no_ack=False)
    assert got is not None
    world.advance(60)
    client.call(m.ChannelClose(), m.ChannelCloseOk)
    assert other.bodies("dead") == [b"body"]


def test_the_history_of_deaths_grows_over_several_queues() -> None:
    world = World()
    client = world.client()
    client.declare("one", x_dead_letter_exchange="", x_dead_letter_routing_key="two", x_message_ttl=10)
    client.declare("two", x_dead_letter_exchange="", x_dead_letter_routing_key="three", x_message_ttl=10)
    client.declare("three")
    client.publish("one", expiration="5000")
    world.advance(10)
    world.advance(10)
    got = client.get("three")
    assert got is not None
    deaths = client.deaths(got[1])
    assert [death["queue"] for death in deaths] == ["two", "one"]
    assert [death.get("original-expiration") for death in deaths] == [None, "5000"]


def test_the_count_of_deaths_is_kept_and_not_taken_from_the_length_of_the_list() -> None:
    world = World()
    client = world.client()
    client.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="wait")
    client.declare("wait", x_dead_letter_exchange="", x_dead_letter_routing_key="work", x_message_ttl=10)
    client.publish("work")
    for _ in range(4):
        got = client.get("work", no_ack=False)
        assert got is not None
        client.send(m.BasicReject(got[0].delivery_tag, False), 1)
        world.advance(10)
    got = client.get("work")
    assert got is not None
    deaths = client.deaths(got[1])
    assert {(d["queue"], d["reason"]): d["count"] for d in deaths} == {
        ("wait", "expired"): 4,
        ("work", "rejected"): 4,
    }


def test_the_empty_string_is_a_dead_letter_exchange() -> None:
    world = World()
    client = world.client()
    client.declare("dead")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead", x_max_length=1)
    client.publish("q", b"1")
    client.publish("q", b"2")
    assert (client.bodies("dead"), client.bodies("q")) == ([b"1"], [b"2"])


def test_confirms_are_sent_for_every_publish() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
    for _ in range(3):
        client.publish("q")
    client.publish("nowhere")
    assert [(ack.delivery_tag, ack.multiple) for ack, _ in client.all_of(m.BasicAck)][-1][0] == 4


def test_messages_expire_although_nobody_looks() -> None:
    world = World()
    client = world.client()
    client.declare("dead")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead", x_message_ttl=100)
    client.publish("q")
    assert world.broker.next_timer == world.now + 100
    world.advance(100)
    assert world.broker.vhosts["/"].queues["dead"].ready == 1


def test_a_full_target_drops_its_oldest_and_goes_on() -> None:
    world = World()
    client = world.client()
    client.declare("dead", x_max_length=1)
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead", x_message_ttl=5)
    for number in range(3):
        client.publish("q", b"%d" % number)
    world.advance(5)
    assert client.bodies("dead") == [b"2"]


# --- the rest of the rules that need a whole broker ----------------------------------------------------------


def test_a_rejection_that_is_rolled_back_is_no_death() -> None:
    world = World()
    client = world.client()
    client.declare("dead")
    client.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    client.publish("q")
    client.call(m.TxSelect(), m.TxSelectOk)
    got = client.get("q", no_ack=False)
    assert got is not None
    client.send(m.BasicReject(got[0].delivery_tag, False), 1)
    client.call(m.TxRollback(), m.TxRollbackOk)
    assert world.broker.vhosts["/"].queues["dead"].ready == 0
    client.send(m.BasicReject(got[0].delivery_tag, False), 1)
    client.call(m.TxCommit(), m.TxCommitOk)
    assert world.broker.vhosts["/"].queues["dead"].ready == 1


def test_publishes_of_a_transaction_appear_at_its_commit() -> None:
    world = World()
    client, other = world.client(), world.client()
    client.declare("q")
    client.call(m.TxSelect(), m.TxSelectOk)
    client.publish("q")
    assert other.depth("q") == 0
    client.call(m.TxCommit(), m.TxCommitOk)
    assert other.depth("q") == 1


def test_switched_off_extensions_are_ignored() -> None:
    world = World(features=Features(dlx=False, ttl=False, length_limit=False))
    client = world.client()
    client.declare("q", x_dead_letter_exchange="", x_message_ttl=1, x_max_length=1)
    client.publish("q")
    client.publish("q")
    world.advance(10)
    assert client.depth("q") == 2


def test_a_fallback_keeps_dead_letters_that_had_nowhere_to_go() -> None:
    world = World(dead_letter_fallback="lost")
    client = world.client()
    client.declare("lost")
    client.declare("q", x_dead_letter_exchange="no such exchange", x_message_ttl=1)
    client.publish("q", b"precious")
    world.advance(1)
    assert client.bodies("lost") == [b"precious"]


def test_a_full_queue_that_refuses_answers_with_nack() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_max_length=1, x_overflow="reject-publish")
    client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
    client.publish("q", b"1")
    client.publish("q", b"2")
    assert client.take(m.BasicAck).delivery_tag == 1
    assert client.take(m.BasicNack).delivery_tag == 2
    assert client.bodies("q") == [b"1"]


def test_a_quorum_queue_gives_up_at_its_delivery_limit() -> None:
    world = World()
    client = world.client()
    client.declare("dead")
    client.declare(
        "q", durable=True, x_queue_type="quorum", x_delivery_limit=2, x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )  # fmt: skip
    client.publish("q")
    for _ in range(3):
        got = client.get("q", no_ack=False)
        assert got is not None
        client.send(m.BasicReject(got[0].delivery_tag, True), 1)
    got = client.get("dead")
    assert got is not None
    assert client.deaths(got[1])[0]["reason"] == "delivery_limit"


def test_messages_that_die_together_at_their_delivery_limit_die_in_order() -> None:
    world = World()
    client, other = world.client(), world.client()
    client.declare("dead")
    client.declare(
        "q", durable=True, x_queue_type="quorum", x_delivery_limit=0, x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )  # fmt: skip
    for number in range(3):
        client.publish("q", b"%d" % number)
        assert client.get("q", no_ack=False) is not None
    client.call(m.ChannelClose(), m.ChannelCloseOk)
    assert other.bodies("dead") == [b"0", b"1", b"2"]


def test_what_goes_back_together_comes_in_order_to_one_that_waits() -> None:
    world = World()
    client, other = world.client(), world.client()
    client.declare("q", x_max_length=10)
    for number in range(3):
        client.publish("q", b"%d" % number)
        assert client.get("q", no_ack=False) is not None
    other.call(m.BasicConsume("q", "c", no_ack=True), m.BasicConsumeOk)
    client.send(m.BasicNack(3, True, True), 1)
    assert [content.body for _, content in other.all_of(m.BasicDeliver) if content] == [b"0", b"1", b"2"]


def test_higher_priorities_leave_first() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_max_priority=5)
    for priority in (1, 5, 0, 9, 5):
        client.publish("q", b"%d" % priority, priority=priority)
    assert client.bodies("q") == [b"5", b"9", b"5", b"1", b"0"]


def test_a_requeued_message_goes_back_to_where_it_was() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    for number in range(4):
        client.publish("q", b"%d" % number)
    first, second = client.get("q", no_ack=False), client.get("q", no_ack=False)
    assert first is not None
    assert second is not None
    client.send(m.BasicReject(second[0].delivery_tag, True), 1)
    client.send(m.BasicReject(first[0].delivery_tag, True), 1)
    assert client.bodies("q") == [b"0", b"1", b"2", b"3"]


def test_consumers_are_told_when_their_queue_is_deleted() -> None:
    world = World()
    client, other = world.client(), world.client()
    client.declare("q")
    client.call(m.BasicConsume("q", "c"), m.BasicConsumeOk)
    other.call(m.QueueDelete("q"), m.QueueDeleteOk)
    assert client.take(m.BasicCancel).consumer_tag == "c"


def test_what_a_vanished_client_had_is_delivered_to_another() -> None:
    world = World()
    client, other = world.client(), world.client()
    client.declare("q")
    client.publish("q")
    client.call(m.BasicConsume("q", "c"), m.BasicConsumeOk)
    assert client.sees(m.BasicDeliver)
    client.session.gone(world.now)
    other.call(m.BasicConsume("q", "d"), m.BasicConsumeOk)
    assert other.take(m.BasicDeliver).redelivered


def test_exclusive_queues_go_with_their_connection() -> None:
    world = World()
    client, other = world.client(), world.client()
    client.declare("mine", exclusive=True)
    other.send(m.QueueDeclare("mine", passive=True), 1)
    assert other.take(m.ChannelClose).reply_code == 405
    client.session.gone(world.now)
    assert "mine" not in world.broker.vhosts["/"].queues


def test_a_queue_that_nobody_uses_expires() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_expires=1000)
    world.advance(999)
    assert "q" in world.broker.vhosts["/"].queues
    world.advance(1)
    assert "q" not in world.broker.vhosts["/"].queues


def test_publishers_are_blocked_above_the_memory_limit_and_released_below() -> None:
    world = World(memory_limit=1000)
    client = world.client()
    client.declare("q")
    client.publish("q", b"x" * 2000)
    assert client.take(m.ConnectionBlocked).reason == "low on memory"
    client.call(m.QueuePurge("q"), m.QueuePurgeOk)
    client.take(m.ConnectionUnblocked)


def test_a_reply_reaches_its_asker_directly() -> None:
    world = World()
    asker, worker = world.client(), world.client()
    worker.declare("rpc")
    asker.call(m.BasicConsume("amq.rabbitmq.reply-to", "me", no_ack=True), m.BasicConsumeOk)
    asker.publish("rpc", b"question", reply_to="amq.rabbitmq.reply-to")
    got = worker.get("rpc")
    assert got is not None
    address = got[1].decoded().reply_to
    assert address is not None
    worker.publish(str(address), b"answer")
    delivery, content = asker.take_whole(m.BasicDeliver)
    assert (delivery.consumer_tag, content and content.body) == ("me", b"answer")
