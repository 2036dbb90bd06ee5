"""How long does a quorum queue with delayed retry keep what was returned to it?

Delays are short, and only lower bounds go on record: a busy machine makes a message late, never early.
"""

import time
from typing import Any

from tests.differential.client import Channel, Scene
from tests.differential.differences import differs

_MARGIN = 0.02  # the clocks of a broker and of its client are read at different moments


def _queue(ch: Channel, kind: str = "all", minimum: int = 300, **arguments: Any) -> None:
    ch.queue(
        "work",
        durable=True,
        queue_type="quorum",
        delayed_retry_type=kind,
        delayed_retry_min=minimum,
        **arguments,
    )


def _with_dead_letters(ch: Channel, **arguments: Any) -> None:
    ch.queue("dead")
    _queue(ch, dead_letter_exchange="", dead_letter_routing_key="dead", **arguments)


def _comes_after(ch: Channel, milliseconds: int, since: float) -> int:
    tag = ch.get("work", wait=True)
    waited = time.monotonic() - since >= milliseconds / 1000 - _MARGIN
    ch.note(f"waited for {milliseconds} ms", waited)
    return tag


@differs("delayed-retry")
def a_rejected_message_waits_longer_with_each_failure_up_to_the_maximum(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch, "failed", 150, delayed_retry_max=350)
    ch.publish("work", "body")
    tag = ch.get("work", wait=True)
    for delay in (150, 300, 350, 350):
        start = time.monotonic()
        ch.reject(tag, requeue=True)
        ch.get("work")
        tag = _comes_after(ch, delay, start)


@differs("delayed-retry")
def a_message_that_was_nacked_waits_for_the_minimum_only(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch, "returned", 200, delayed_retry_max=1000)
    ch.publish("work", "body")
    tag = ch.get("work", wait=True)
    for _ in range(3):
        start = time.monotonic()
        ch.nack(tag, requeue=True)
        ch.get("work")
        tag = _comes_after(ch, 200, start)


def _type_of_delay(scene: Scene, kind: str) -> None:
    """What is delayed is not there at once."""
    ch = scene.channel()
    _queue(ch, kind, 60_000)
    for way in ("reject", "nack", "recover", "close", "drop"):
        ch.publish("work", way)
        wire = scene.connect()
        other = wire.channel()
        tag = other.get("work", wait=True)
        if way == "reject":
            other.reject(tag, requeue=True)
        elif way == "nack":
            other.nack(tag, requeue=True)
        elif way == "recover":
            other.recover()
        elif way == "close":
            other.close()
        else:
            wire.drop()
            ch.pass_time(200)
        if way in ("reject", "nack"):
            other.get("work")
        ch.get("work")
        if ch.last is None:
            ch.purge("work")


@differs("delayed-retry")
def failures_are_delayed_where_failures_are_to_be(scene: Scene) -> None:
    _type_of_delay(scene, "failed")


@differs("delayed-retry")
def returns_are_delayed_where_returns_are_to_be(scene: Scene) -> None:
    _type_of_delay(scene, "returned")


@differs("delayed-retry")
def everything_is_delayed_where_all_is_to_be(scene: Scene) -> None:
    _type_of_delay(scene, "all")


@differs("delayed-retry")
def nothing_is_delayed_where_the_arguments_make_no_sense(scene: Scene) -> None:
    ch = scene.channel()
    for number, (kind, minimum) in enumerate(
        [("disabled", 60_000), ("sometimes", 60_000), (5, 60_000), ("all", 0), ("all", -1), ("all", "x")]
    ):
        name = f"work-{number}"
        ch.queue(name, durable=True, queue_type="quorum", delayed_retry_type=kind, delayed_retry_min=minimum)
        ch.publish(name, "body")
        ch.reject(ch.get(name, wait=True), requeue=True)
        ch.get(name, wait=True)


@differs("delayed-retry")
def delayed_messages_are_not_counted_but_purged(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch, "all", 60_000)
    for body in "123":
        ch.publish("work", body)
    ch.reject(ch.get("work", wait=True), requeue=True)
    ch.nack(ch.get("work", wait=True), requeue=True)
    ch.get("work", wait=True, no_ack=True)
    ch.count("work")
    ch.purge("work")


@differs("delayed-retry")
def a_queue_with_delayed_messages_is_deleted(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch, "all", 60_000)
    for body in "12":
        ch.publish("work", body)
    ch.reject(ch.get("work", wait=True), requeue=True)
    ch.nack(ch.get("work", wait=True), requeue=True)
    ch.get("work")
    ch.publish("work", "3")
    ch.delete("work")


@differs("delayed-retry")
def delayed_messages_come_in_the_order_of_their_times_before_the_others(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    for body in "0123":
        ch.publish("work", body)
    tags = [ch.get("work", wait=True) for _ in range(3)]
    for tag in reversed(tags):
        ch.nack(tag, requeue=True)
        ch.pass_time(20)
    ch.await_count("work", 4)
    for _ in range(4):
        ch.get("work")


@differs("delayed-retry")
def a_delayed_message_comes_before_higher_priorities(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    ch.publish("work", "low", priority=1)
    ch.nack(ch.get("work", wait=True), requeue=True)
    ch.publish("work", "high", priority=9)
    ch.publish("work", "higher", priority=20)
    ch.await_count("work", 3)
    for _ in range(3):
        ch.get("work")


@differs("delayed-retry")
def messages_that_were_returned_together_keep_their_order(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    for body in "0123":
        ch.publish("work", body)
    tags = [ch.get("work", wait=True) for _ in range(4)]
    ch.nack(tags[-1], multiple=True, requeue=True)
    ch.get("work")
    ch.await_count("work", 4)
    for _ in range(4):
        ch.get("work")


@differs("delayed-retry")
def a_consumer_gets_a_delayed_message_when_it_is_ready(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    ch.consume("work", "tag")
    ch.publish("work", "body")
    (tag,) = ch.deliveries(1)
    start = time.monotonic()
    ch.reject(tag, requeue=True)
    ch.deliveries(1)
    ch.note("waited", time.monotonic() - start >= 0.3 - _MARGIN)


@differs("delayed-retry")
def a_message_that_expires_while_it_waits_dies_when_it_is_ready(scene: Scene) -> None:
    ch = scene.channel()
    _with_dead_letters(ch, message_ttl=200, minimum=500)
    ch.publish("work", "body")
    start = time.monotonic()
    ch.reject(ch.get("work", wait=True), requeue=True)
    ch.get("dead", wait=True)
    ch.note("waited", time.monotonic() - start >= 0.5 - _MARGIN)


@differs("delayed-retry")
def the_delivery_limit_is_not_delayed(scene: Scene) -> None:
    ch = scene.channel()
    _with_dead_letters(ch, delivery_limit=0, minimum=60_000)
    ch.publish("work", "body")
    ch.reject(ch.get("work", wait=True), requeue=True)
    ch.get("dead", wait=True)


@differs("delayed-retry")
def delayed_messages_count_towards_the_length_and_are_not_dropped(scene: Scene) -> None:
    ch = scene.channel()
    _with_dead_letters(ch, max_length=1)
    ch.publish("work", "old")
    ch.reject(ch.get("work", wait=True), requeue=True)
    ch.get("work")
    ch.publish("work", "new")
    ch.get("dead", wait=True)
    ch.get("work", wait=True)


@differs("delayed-retry")
def a_policy_delays_and_the_smaller_delay_wins(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", durable=True, queue_type="quorum", delayed_retry_min=200)
    scene.policy("^work$", delayed_retry_type="all", delayed_retry_min=60_000)
    ch.publish("work", "body")
    start = time.monotonic()
    for _ in range(100):  # the policy reaches the queue a little later
        tag = ch.get("work", wait=True, record=False)
        start = time.monotonic()
        ch.nack(tag, requeue=True)
        ch.get("work", record=False)
        if ch.last is None:
            break
        ch.nack(tag + 1, requeue=True)
    ch.get("work", wait=True, record=False)
    ch.note("waited", 0.2 - _MARGIN <= time.monotonic() - start < 30)
