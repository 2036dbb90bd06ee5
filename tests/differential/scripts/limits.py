"""What does a queue do when it is full?

The rule: a publish is confirmed or refused before the script goes on, so that what is in the queue is certain.
"""

from typing import Any

from tests.differential.client import Channel, Scene
from tests.differential.differences import differs


def _full_queue(ch: Channel, **arguments: Any) -> None:
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead", **arguments)


@differs("last-death-headers")
def too_many_messages_push_out_the_oldest_ones_in_order(scene: Scene) -> None:
    ch = scene.channel()
    _full_queue(ch, max_length=2)
    ch.consume("dead", "watcher", no_ack=True)
    for body in ("1", "2", "3", "4"):
        ch.publish("work", body)
    ch.deliveries(2)
    ch.get("work")
    ch.get("work")


@differs("last-death-headers")
def too_many_octets_push_out_the_oldest_ones(scene: Scene) -> None:
    ch = scene.channel()
    _full_queue(ch, max_length_bytes=10)
    ch.publish("work", "12345", headers={"not": "counted" * 10})
    ch.publish("work", "12345")
    ch.count("work")
    ch.publish("work", "1")
    ch.get("dead", wait=True)
    ch.count("work")


@differs("last-death-headers")
def a_message_larger_than_the_limit_pushes_out_itself_too(scene: Scene) -> None:
    ch = scene.channel()
    _full_queue(ch, max_length_bytes=10)
    ch.consume("dead", "watcher", no_ack=True)
    ch.publish("work", "small")
    ch.publish("work", "larger than ten octets")
    ch.deliveries(2)
    ch.get("work")


@differs("last-death-headers")
def a_limit_of_zero_is_for_messages_that_are_delivered_at_once(scene: Scene) -> None:
    ch = scene.channel()
    _full_queue(ch, max_length=0)
    ch.publish("work", "nobody")
    ch.get("dead", wait=True)
    ch.consume("work", "waiting", no_ack=True)
    ch.publish("work", "somebody")
    ch.deliveries(1)


def messages_out_for_delivery_do_not_count(scene: Scene) -> None:
    ch = scene.channel()
    _full_queue(ch, max_length=1)
    ch.publish("work", "1")
    ch.get("work")
    ch.publish("work", "2")
    ch.count("work")
    ch.count("dead")


@differs("dead-letter-failures", "last-death-headers")
def giving_back_into_a_full_queue_pushes_out_the_oldest(scene: Scene) -> None:
    ch = scene.channel()
    _full_queue(ch, max_length=1)
    ch.publish("work", "1")
    tag = ch.get("work")
    ch.publish("work", "2")
    ch.reject(tag, requeue=True)
    ch.get("dead", wait=True)
    ch.get("work")


def reject_publish_refuses_what_does_not_fit(scene: Scene) -> None:
    ch = scene.channel()
    _full_queue(ch, max_length=1, overflow="reject-publish")
    ch.publish("work", "1")
    ch.publish("work", "2")
    ch.count("work")
    ch.count("dead")
    ch.get("work", no_ack=True)
    ch.publish("work", "3")


def reject_publish_by_octets_lets_the_last_message_go_over_the_limit(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", max_length_bytes=10, overflow="reject-publish")
    ch.publish("work", "12345678")
    ch.publish("work", "12345678")
    ch.publish("work", "1")
    ch.count("work")


def reject_publish_without_confirms_is_silent(scene: Scene) -> None:
    ch = scene.channel(confirm=False)
    ch.queue("work", max_length=1, overflow="reject-publish")
    ch.publish("work", "1", mandatory=True)
    ch.publish("work", "2", mandatory=True)
    ch.get("work")
    ch.get("work")


@differs("last-death-headers")
def reject_publish_dlx_refuses_and_dead_letters(scene: Scene) -> None:
    ch = scene.channel()
    _full_queue(ch, max_length=1, overflow="reject-publish-dlx")
    ch.publish("work", "1")
    ch.publish("work", "2")
    ch.get("dead", wait=True)
    ch.get("work")


def refused_by_one_of_several_queues_is_refused_but_the_others_keep_it(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("all", "fanout")
    ch.queue("full", max_length=1, overflow="reject-publish")
    ch.queue("roomy")
    ch.bind("full", "all")
    ch.bind("roomy", "all")
    ch.publish("", "1", "all")
    ch.publish("", "2", "all")
    ch.count("full")
    ch.count("roomy")


def a_consumer_makes_room_before_a_publish_is_refused(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", max_length=1, overflow="reject-publish")
    ch.consume("work", "waiting", no_ack=True)
    ch.publish("work", "1")
    ch.publish("work", "2")
    ch.deliveries(2)


def a_mandatory_message_that_is_refused_is_not_returned(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", max_length=0, overflow="reject-publish")
    ch.publish("work", "1", mandatory=True)
    ch.count("work")


@differs("last-death-headers")
def both_limits_hold(scene: Scene) -> None:
    ch = scene.channel()
    _full_queue(ch, max_length=3, max_length_bytes=4)
    ch.consume("dead", "watcher", no_ack=True)
    ch.publish("work", "12")
    ch.publish("work", "12")
    ch.publish("work", "1")
    ch.deliveries(1)
    ch.publish("work", "")
    ch.publish("work", "")
    ch.deliveries(1)
    ch.count("work")
