"""What do quorum queues do differently?

The rule: only what a client of a single broker can see; the type counts deliveries and gives up.
"""

from typing import Any

from tests.differential.client import Channel, Scene
from tests.differential.differences import differs


def _quorum_queue(ch: Channel, **arguments: Any) -> None:
    ch.queue("dead")
    ch.queue(
        "work",
        durable=True,
        queue_type="quorum",
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
        **arguments,
    )


@differs("last-death-headers", "delivery-count-header")
def a_message_rejected_once_too_often_is_given_up(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch, delivery_limit=2)
    ch.publish("work", "body")
    for _ in range(3):
        ch.reject(ch.get("work", wait=True), requeue=True)
    ch.get("dead", wait=True)


@differs("last-death-headers", "delivery-count-header")
def a_limit_of_zero_allows_one_delivery(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch, delivery_limit=0)
    ch.publish("work", "body")
    ch.reject(ch.get("work", wait=True), requeue=True)
    ch.get("dead", wait=True)


@differs("delivery-count-header")
def redeliveries_carry_their_number(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", durable=True, queue_type="quorum")
    ch.publish("work", "body", headers={"mine": 1})
    for _ in range(3):
        ch.reject(ch.get("work", wait=True), requeue=True)
    ch.get("work", wait=True)


@differs("default-delivery-limit")
def without_a_limit_of_its_own_a_queue_gives_up_after_twenty_returns(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch)
    ch.publish("work", "body")
    for _ in range(21):
        ch.reject(ch.get("work", wait=True), requeue=True)
    ch.get("dead", wait=True)
    reason = ch.last_headers()["x-death"][0]["reason"]
    scene.demand("the reason is delivery_limit", holds=reason == "delivery_limit")


@differs("nack-requeue-counts")
def a_nack_with_requeue_is_not_counted(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch, delivery_limit=1)
    ch.publish("work", "body")
    for _ in range(3):
        ch.nack(ch.get("work", wait=True), requeue=True)
    ch.get("work", wait=True)


@differs("last-death-headers", "delivery-count-header")
def a_lost_connection_counts(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch, delivery_limit=1)
    ch.publish("work", "body")
    for _ in range(2):
        lost = scene.connect()
        lost.channel().get("work", wait=True)
        lost.drop()
    ch.get("dead", wait=True)


@differs("last-death-headers", "delivery-count-header")
def a_plain_rejection_is_not_a_matter_of_counting(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch, delivery_limit=5)
    ch.publish("work", "body")
    ch.reject(ch.get("work", wait=True))
    ch.get("dead", wait=True)


@differs("last-death-headers", "delivery-count-header")
def a_quorum_queue_expires_and_pushes_out_too(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch, message_ttl=60000, max_length=1)
    ch.publish("work", "1")
    ch.publish("work", "2")
    ch.get("dead", wait=True)
    ch.get("work", wait=True)


def a_quorum_queue_is_durable_and_neither_exclusive_nor_auto_delete(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().queue("a", queue_type="quorum")
    wire.channel().queue("b", queue_type="quorum", durable=True, exclusive=True)
    wire.channel().queue("c", queue_type="quorum", durable=True, auto_delete=True)
    wire.channel().queue("", queue_type="quorum", durable=True)


def arguments_of_classic_queues_are_refused_by_quorum_ones(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().queue("a", queue_type="quorum", durable=True, max_priority=5)
    wire.channel().queue("b", queue_type="quorum", durable=True, dead_letter_strategy="at-least-twice")


def a_prefetch_for_the_channel_is_refused_by_quorum_queues(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("work", durable=True, queue_type="quorum")
    ch.qos(5, for_channel=True)
    ch.consume("work", "tag")
