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


@differs("dead-letter-failures", "acquired-count-header", "last-death-headers", "delivery-count-header")
def a_message_rejected_once_too_often_is_given_up(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch, delivery_limit=2)
    ch.publish("work", "body")
    for _ in range(3):
        ch.reject(ch.get("work", wait=True), requeue=True)
    ch.get("dead", wait=True)


@differs("dead-letter-failures", "acquired-count-header", "last-death-headers", "delivery-count-header")
def a_limit_of_zero_allows_one_delivery(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch, delivery_limit=0)
    ch.publish("work", "body")
    ch.reject(ch.get("work", wait=True), requeue=True)
    ch.get("dead", wait=True)


@differs("dead-letter-failures", "acquired-count-header", "delivery-count-header")
def redeliveries_carry_their_number(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", durable=True, queue_type="quorum")
    ch.publish("work", "body", headers={"mine": 1})
    for _ in range(3):
        ch.reject(ch.get("work", wait=True), requeue=True)
    ch.get("work", wait=True)


@differs("dead-letter-failures", "acquired-count-header", "default-delivery-limit")
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


@differs("dead-letter-failures", "acquired-count-header", "last-death-headers", "delivery-count-header")
def a_lost_connection_counts(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch, delivery_limit=1)
    ch.publish("work", "body")
    for _ in range(2):
        lost = scene.connect()
        lost.channel().get("work", wait=True)
        lost.drop()
    ch.get("dead", wait=True)


@differs("dead-letter-failures", "acquired-count-header", "last-death-headers", "delivery-count-header")
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


# --- failures and returns -----------------------------------------------------------------------------------


@differs("nack-requeue-counts")
def a_return_by_nack_is_counted_apart_from_failures(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch)
    ch.publish("work", "body")
    ch.nack(ch.get("work", wait=True), requeue=True)
    ch.reject(ch.get("work", wait=True), requeue=True)
    ch.nack(ch.get("work", wait=True), requeue=True)
    ch.get("work", wait=True)
    ch.recover()
    ch.nack(ch.get("work", wait=True))
    ch.get("dead", wait=True)


@differs("limit-of-carried-failures")
def failures_travel_from_quorum_queue_to_quorum_queue(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead", durable=True, queue_type="quorum")
    to_dead: dict[str, Any] = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    ch.queue("work", durable=True, queue_type="quorum", **to_dead)
    ch.publish("work", "body", headers={"x-delivery-count": 77, "z": 1, "x-acquired-count": 5})
    ch.reject(ch.get("work", wait=True), requeue=True)
    ch.reject(ch.get("work", wait=True))
    for how in (ch.nack, ch.reject, ch.nack):
        how(ch.get("dead", wait=True), requeue=True)
    ch.get("dead", wait=True)


@differs("limit-of-carried-failures")
def failures_travel_through_classic_queues(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("last", durable=True, queue_type="quorum")
    ch.queue("middle", message_ttl=0, dead_letter_exchange="", dead_letter_routing_key="last")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="middle")
    ch.publish("work", "body")
    ch.reject(ch.get("work", wait=True), requeue=True)
    lost = scene.connect()
    lost.channel().get("work", wait=True)
    lost.drop()
    ch.nack(ch.get("work", wait=True))
    ch.get("last", wait=True)


@differs("limit-of-carried-failures")
def a_waiting_consumer_of_a_quorum_queue_sees_the_failures(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead", durable=True, queue_type="quorum")
    ch.queue(
        "work", durable=True, queue_type="quorum", dead_letter_exchange="", dead_letter_routing_key="dead"
    )
    ch.consume("dead", "tag")
    ch.publish("work", "body")
    ch.reject(ch.get("work", wait=True))
    ch.deliveries(1)


@differs("limit-of-carried-failures")
def the_limit_is_compared_with_failures_of_other_queues_at_the_first_return(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("over")
    to_over: dict[str, Any] = {"dead_letter_exchange": "", "dead_letter_routing_key": "over"}
    ch.queue("dead", durable=True, queue_type="quorum", delivery_limit=1, **to_over)
    to_dead: dict[str, Any] = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    ch.queue("work", durable=True, queue_type="quorum", **to_dead)
    ch.publish("work", "one failure")
    ch.reject(ch.get("work", wait=True))
    ch.nack(ch.get("dead", wait=True), requeue=True)
    ch.reject(ch.get("dead", wait=True), requeue=True)
    ch.get("over", wait=True)
    ch.publish("work", "two failures")
    ch.reject(ch.get("work", wait=True), requeue=True)
    ch.reject(ch.get("work", wait=True))
    ch.nack(ch.get("dead", wait=True), requeue=True)
    ch.get("over", wait=True)


@differs("limit-of-carried-failures")
def a_retry_over_a_waiting_queue_ends_in_a_cycle_that_drops_the_message(scene: Scene) -> None:
    """Each round is a failure; above the limit one return is a death, and the way back has no rejection."""
    ch = scene.channel()
    ch.queue("wait", message_ttl=20, dead_letter_exchange="", dead_letter_routing_key="work")
    to_wait: dict[str, Any] = {"dead_letter_exchange": "", "dead_letter_routing_key": "wait"}
    ch.queue("work", durable=True, queue_type="quorum", delivery_limit=2, **to_wait)
    ch.publish("work", "body")
    for _ in range(4):
        ch.reject(ch.get("work", wait=True))
    ch.nack(ch.get("work", wait=True), requeue=True)
    ch.pass_time(300)
    ch.count("work")
    ch.count("wait")


# --- order ----------------------------------------------------------------------------------------------------


def _bodies(ch: Channel, queue: str, count: int) -> None:
    """Record the bodies of the next messages of a queue, which stay unsettled."""
    found: list[Any] = []
    for _ in range(count):
        ch.get(queue, wait=True, record=False)
        found.append(ch.last_body())
    ch.note(f"bodies of {queue}", found)


@differs("quorum-priorities")
def thirty_two_priorities_are_strict(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", durable=True, queue_type="quorum")
    for priority in (None, 0, 4, 3, 5, 31, 32, 255, None, 5):
        ch.publish("work", str(priority), priority=priority)
    _bodies(ch, "work", 10)


@differs("quorum-priorities")
def a_full_quorum_queue_drops_what_would_be_delivered_next(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch, max_length=2)
    for body, priority in (("a", 4), ("b", 9), ("c", 1), ("d", 9), ("e", 0)):
        ch.publish("work", body, priority=priority)
    ch.await_count("dead", 3)
    _bodies(ch, "dead", 3)
    _bodies(ch, "work", 2)


@differs("quorum-return-order")
def returned_messages_come_first_in_the_order_of_their_return(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", durable=True, queue_type="quorum")
    for body in "abcde":
        ch.publish("work", body)
    tags = [ch.get("work", wait=True, record=False) for _ in range(4)]
    for index in (2, 0, 1, 3):
        ch.nack(tags[index], requeue=True)
    ch.publish("work", "urgent", priority=20)
    _bodies(ch, "work", 6)


@differs("quorum-priorities")
def expired_messages_of_every_priority_go(scene: Scene) -> None:
    ch = scene.channel()
    _quorum_queue(ch)
    ch.publish("work", "high", priority=5)
    ch.publish("work", "low", priority=1, expiration="50")
    ch.publish("work", "behind", priority=1)
    ch.publish("work", "not the first", priority=1, expiration="50")
    ch.get("dead", wait=True)
    ch.count("work")


# --- limits ---------------------------------------------------------------------------------------------------


@differs("quorum-byte-limits")
def properties_count_against_the_byte_limit(scene: Scene) -> None:
    ch = scene.channel()
    long_headers = {"headers": {"name": "x" * 50}}
    for queue, properties in (("a", {}), ("b", {"content_type": "text/plain"}), ("c", long_headers)):
        ch.queue(queue, durable=True, queue_type="quorum", max_length_bytes=1000)
        for _ in range(12):
            ch.publish(queue, "x" * 100, **properties)
        ch.count(queue)


@differs("quorum-byte-limits")
def death_headers_do_not_count_against_the_byte_limit(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead", durable=True, queue_type="quorum", max_length_bytes=1000)
    ch.queue("work", message_ttl=0, dead_letter_exchange="", dead_letter_routing_key="dead")
    for _ in range(9):
        ch.publish("work", "x" * 100)
    ch.await_count("dead", 9)
    ch.count("dead")


def a_policy_wins_over_the_argument_for_overflow_of_a_quorum_queue(scene: Scene) -> None:
    scene.policy("^work$", overflow="reject-publish")
    ch = scene.channel(confirm=False)
    ch.queue("work", durable=True, queue_type="quorum", max_length=1, overflow="drop-head")
    for body in ("first", "second", "third"):
        ch.publish("work", body)
    ch.get("work", wait=True, record=False)
    ch.note("first of work", ch.last_body())


@differs("quorum-reject-publish")
def reject_publish_of_a_quorum_queue_is_exact(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", durable=True, queue_type="quorum", max_length=1, overflow="reject-publish")
    for body in ("first", "second"):
        ch.publish("work", body)
    ch.get("work", wait=True)
    ch.get("work")
    scene.demand("the second message was refused", holds=ch.last is None)


# --- consumers ------------------------------------------------------------------------------------------------


@differs("single-active-takeover")
def a_single_active_consumer_of_higher_priority_takes_over(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", durable=True, queue_type="quorum", single_active_consumer=True)
    low = scene.channel()
    low.qos(2)
    low.consume("work", "low")
    for body in "abcdef":
        ch.publish("work", body)
    tags = low.deliveries(2)
    high = scene.channel()
    high.qos(2)
    high.consume("work", "high", x_priority=5)
    for tag in tags:
        low.ack(tag)
    high.deliveries(2)
    high.cancel("high")
    low.deliveries(2)


def exclusive_consumers_are_not_enforced_on_quorum_queues(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", durable=True, queue_type="quorum")
    ch.consume("work", "a", exclusive=True)
    other = scene.channel()
    other.consume("work", "b")
    other.consume("work", "c", exclusive=True)
    ch.queue("single", durable=True, queue_type="quorum", single_active_consumer=True)
    ch.consume("single", "d", exclusive=True)


def a_quorum_queue_is_not_deleted_under_a_condition(scene: Scene) -> None:
    for flags in ({"if_unused": True}, {"if_empty": True}, {"if_unused": True, "if_empty": True}):
        ch = scene.channel()
        ch.queue("work", durable=True, queue_type="quorum")
        ch.delete("work", **flags)
    ch = scene.channel()
    ch.delete("nothing", if_empty=True)
    ch.delete("work")


def consumers_that_wait_to_become_active_are_not_counted(scene: Scene) -> None:
    ch = scene.channel()
    for queue_type in ("quorum", "classic"):
        ch.queue(queue_type, durable=True, queue_type=queue_type, single_active_consumer=True)
        for tag in "abc":
            ch.consume(queue_type, f"{queue_type}-{tag}")
        ch.count(queue_type)
