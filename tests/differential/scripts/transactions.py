"""What does a transaction hold back, and when does it let go?

The rule: what must not have happened yet is looked at through another channel.
"""

from collections.abc import Callable

from redrive.amqp import methods as m
from redrive.amqp.methods import Method
from tests.differential.client import Scene
from tests.differential.differences import differs


def published_messages_arrive_at_commit(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("work")
    tx.tx()
    tx.publish("work", "1")
    tx.publish("work", "2")
    tx.qos(0)
    other.get("work")
    tx.commit()
    other.get("work", wait=True)
    other.get("work", wait=True)


def published_messages_are_forgotten_at_rollback(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("work")
    tx.tx()
    tx.publish("work", "1")
    tx.rollback()
    tx.commit()
    other.get("work")


def acknowledgements_take_effect_at_commit(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("work")
    other.publish("work", "1")
    tx.tx()
    tx.ack(tx.get("work"))
    tx.rollback()
    tx.recover()
    tx.ack(tx.get("work", wait=True))
    tx.commit()
    tx.recover()
    other.get("work")


@differs("dead-letter-failures", "last-death-headers")
def a_rejection_is_a_death_at_commit_only(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("dead")
    tx.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    other.publish("work", "1")
    tx.tx()
    tag = tx.get("work")
    tx.reject(tag)
    tx.rollback()
    other.get("dead")
    tx.reject(tag)
    tx.qos(0)
    other.get("dead")
    tx.commit()
    other.get("dead", wait=True)


@differs("dead-letter-failures", "last-death-headers")
def at_commit_publishes_come_before_rejections(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("dead")
    tx.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    other.publish("work", "rejected")
    tx.tx()
    tx.reject(tx.get("work"))
    tx.publish("dead", "published")
    tx.commit()
    other.get("dead", wait=True)
    other.get("dead", wait=True)


def a_transaction_begins_again_after_each_commit(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("work")
    tx.tx()
    tx.tx()
    tx.publish("work", "1")
    tx.commit()
    tx.publish("work", "2")
    tx.close()
    other.get("work", wait=True)
    other.get("work")


def commit_and_rollback_need_a_transactional_channel(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel(confirm=False).commit()
    wire.channel(confirm=False).rollback()


def confirms_and_transactions_exclude_each_other(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel(confirm=False)
    ch.tx()
    ch.confirm()
    ch = wire.channel()
    ch.confirm()
    ch.tx()


def an_unroutable_mandatory_message_is_returned_at_commit(scene: Scene) -> None:
    ch = scene.channel(confirm=False)
    ch.tx()
    ch.publish("nowhere", "1", mandatory=True)
    ch.publish("nowhere", "2", mandatory=True)
    ch.rollback()
    ch.publish("nowhere", "3", mandatory=True)
    ch.qos(0)
    ch.commit()
    ch.arrivals(1)


def a_missing_exchange_is_noticed_at_publish(scene: Scene) -> None:
    ch = scene.channel(confirm=False)
    ch.tx()
    ch.publish("key", "1", "missing")
    ch.see_close("publish to a missing exchange")


def the_route_is_decided_at_publish(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    for queue in ("early", "late"):
        tx.queue(queue)
    tx.exchange("all", "fanout")
    tx.bind("early", "all")
    tx.tx()
    tx.publish("", "1", "all")
    tx.qos(0)
    other.bind("late", "all")
    other.unbind("early", "all")
    tx.commit()
    other.get("early", wait=True)
    other.get("late")


def a_queue_that_refuses_fails_the_commit(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("work", max_length=1, overflow="reject-publish")
    tx.tx()
    tx.publish("work", "1")
    tx.publish("work", "2")
    tx.commit()
    other.get("work")
    other.get("work")


def acknowledging_twice_in_a_transaction_is_an_error(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("work")
    other.publish("work", "1")
    tx.tx()
    tag = tx.get("work")
    tx.ack(tag)
    tx.ack(tag)
    tx.see_close("second acknowledgement")
    other.get("work", wait=True)


def recover_leaves_what_the_transaction_settles(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("work")
    for body in ("acked", "given back", "rejected"):
        other.publish("work", body)
    tx.tx()
    first, _, third = (tx.get("work") for _ in range(3))
    tx.ack(first)
    tx.reject(third)
    tx.publish("work", "published")
    tx.recover()
    tx.recover()
    tx.commit()
    other.get("work", wait=True)
    other.get("work", wait=True)
    other.get("work")
    wire.is_alive()


def recover_leaves_what_a_rollback_makes_unsettled_again(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("work")
    for body in ("1", "2", "3"):
        other.publish("work", body)
    tx.tx()
    _, second, _ = (tx.get("work") for _ in range(3))
    tx.ack(second)
    tx.recover()
    tx.rollback()
    other.get("work", wait=True)
    other.get("work", wait=True)
    other.get("work")
    tx.recover()
    other.get("work", wait=True)


def a_settled_delivery_cannot_be_settled_again_in_a_transaction(scene: Scene) -> None:
    wire = scene.connect()
    methods: tuple[Callable[[int], Method], ...] = (
        lambda tag: m.BasicNack(tag, requeue=True),
        m.BasicReject,
        lambda tag: m.BasicAck(tag, multiple=True),
        lambda tag: m.BasicNack(tag, multiple=True),
    )
    for settle in methods:
        tx, other = wire.channel(confirm=False), wire.channel()
        tx.queue("work")
        other.publish("work", "1")
        tx.tx()
        tag = tx.get("work")
        tx.ack(tag)
        tx.send(settle(tag))
        tx.see_close("settled again")
        other.get("work", wait=True, no_ack=True)


def settling_all_leaves_out_what_the_transaction_settles(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("dead")
    tx.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    for body in ("1", "2", "3", "4"):
        other.publish("work", body)
    tx.tx()
    first, second, third, _ = (tx.get("work") for _ in range(4))
    tx.ack(second)
    tx.ack(third, multiple=True)
    tx.nack(0, multiple=True, requeue=True)
    tx.ack(0, multiple=True)
    tx.commit()
    other.get("work", wait=True)
    other.get("work")
    other.get("dead")
    tx.ack(first)
    tx.see_close("settled by the commit")


def a_queue_may_be_deleted_before_the_commit(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    for queue in ("deleted", "kept"):
        tx.queue(queue)
        other.publish(queue, "1")
    tx.tx()
    for queue in ("deleted", "kept"):
        tx.ack(tx.get(queue))
    tx.publish("kept", "2")
    tx.qos(0)
    other.delete("deleted")
    tx.commit()
    other.get("kept", wait=True)
    other.get("kept")


@differs("commit-to-a-deleted-queue")
def a_commit_passes_over_deleted_queues(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("deleted")
    tx.queue("kept")
    tx.tx()
    tx.publish("deleted", "1")
    tx.publish("kept", "2")
    tx.qos(0)
    other.delete("deleted")
    tx.commit()
    other.get("kept", wait=True)
    scene.demand("the other publish arrives", holds=other.last_body() == "2" and tx.closed_by is None)


def closing_the_channel_gives_back_what_was_not_committed(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("work")
    for body in ("1", "2", "3"):
        other.publish("work", body)
    tx.tx()
    _, second, _ = (tx.get("work") for _ in range(3))
    tx.ack(second)
    tx.close()
    for _ in range(3):
        other.get("work", wait=True)


def an_acknowledgement_makes_room_at_commit_only(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("work")
    other.publish("work", "1")
    other.publish("work", "2")
    tx.tx()
    tx.qos(1)
    tx.consume("work", "tag")
    (first,) = tx.deliveries(1)
    tx.ack(first)
    tx.no_deliveries("work")
    tx.commit()
    tx.deliveries(1)


def deliveries_of_a_cancelled_consumer_are_settled_at_commit(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("work")
    for body in ("acked", "given back", "rejected"):
        other.publish("work", body)
    tx.tx()
    tx.qos(3)
    tx.consume("work", "tag")
    first, _, third = tx.deliveries(3)
    tx.ack(first)
    tx.reject(third, requeue=False)
    tx.cancel("tag")
    tx.recover()
    tx.commit()
    other.get("work", wait=True)
    other.get("work")
    wire.is_alive()


def recover_between_two_settlements_of_a_transaction(scene: Scene) -> None:
    wire = scene.connect()
    tx, other = wire.channel(confirm=False), wire.channel()
    tx.queue("work")
    other.publish("work", "1")
    tx.tx()
    tx.get("work")
    tx.recover()
    tag = tx.get("work", wait=True)
    tx.nack(tag, requeue=True)
    tx.recover()
    tx.commit()
    tx.ack(tx.get("work", wait=True))
    tx.rollback()
    tx.recover()
    tx.commit()
    other.get("work", wait=True)
    wire.is_alive()
