"""What does a consumer of a quorum queue get that does not acknowledge in time?"""

from typing import Any

from tests.differential.client import CAPABILITIES, Channel, Scene
from tests.differential.differences import differs


def _queue(ch: Channel, timeout: int = 400, **arguments: Any) -> None:
    ch.queue("work", durable=True, queue_type="quorum", consumer_timeout=timeout, **arguments)


@differs("consumer-timeout")
def a_slow_consumer_is_cancelled_and_its_messages_are_returned(scene: Scene) -> None:
    ch, slow = scene.channel(), scene.channel()
    _queue(ch, delivery_limit=0)
    slow.consume("work", "slow")
    ch.publish("work", "body")
    slow.arrivals(2)
    ch.count("work")
    ch.get("work", wait=True)


@differs("consumer-timeout")
def the_argument_of_the_consumer_wins(scene: Scene) -> None:
    ch, slow = scene.channel(), scene.channel()
    _queue(ch, 60_000)
    slow.consume("work", "slow", x_consumer_timeout=300)
    ch.publish("work", "body")
    slow.arrivals(2)


@differs("consumer-timeout")
def a_late_acknowledgement_is_ignored_and_ends_the_pause(scene: Scene) -> None:
    ch, slow = scene.channel(), scene.channel()
    _queue(ch)
    slow.consume("work", "slow")
    ch.publish("work", "1")
    slow.arrivals(2)
    ch.publish("work", "2")
    ch.count("work")
    slow.ack(1)
    slow.deliveries(2)
    slow.arrivals(1)


@differs("consumer-timeout")
def all_deliveries_have_to_be_settled_to_end_the_pause(scene: Scene) -> None:
    ch, slow = scene.channel(), scene.channel()
    _queue(ch)
    ch.publish("work", "1")
    ch.publish("work", "2")
    ch.await_count("work", 2)
    slow.qos(2)
    slow.consume("work", "slow")  # both deliveries at one moment, so that one check takes both back
    slow.deliveries(2)
    ch.await_count("work", 2)
    slow.ack(1)
    slow.count("work")
    slow.ack(2)
    slow.deliveries(2)


@differs("consumer-timeout")
def a_late_acknowledgement_of_several(scene: Scene) -> None:
    ch, slow = scene.channel(), scene.channel()
    _queue(ch)
    slow.consume("work", "slow")
    ch.publish("work", "1")
    slow.arrivals(2)
    slow.ack(1, multiple=True)
    slow.deliveries(1)
    slow.arrivals(1)
    slow.ack(7, multiple=True)
    slow.see_close("unknown tag")


@differs("consumer-timeout")
def a_late_acknowledgement_is_good_once(scene: Scene) -> None:
    ch, slow = scene.channel(), scene.channel()
    _queue(ch)
    slow.consume("work", "slow")
    ch.publish("work", "body")
    slow.arrivals(2)
    ch.get("work", wait=True, no_ack=True)
    slow.ack(1)
    slow.ack(1)
    slow.see_close("acknowledged twice")


@differs("consumer-timeout")
def a_late_rejection_is_ignored(scene: Scene) -> None:
    ch, slow = scene.channel(), scene.channel()
    ch.queue("dead")
    _queue(ch, dead_letter_exchange="", dead_letter_routing_key="dead")
    slow.consume("work", "slow")
    ch.publish("work", "body")
    slow.arrivals(2)
    slow.reject(1)
    slow.deliveries(1)
    ch.count("dead")
    slow.arrivals(1)


@differs("consumer-timeout")
def a_late_requeue_does_not_end_the_pause(scene: Scene) -> None:
    ch, slow = scene.channel(), scene.channel()
    _queue(ch)
    slow.consume("work", "slow")
    ch.publish("work", "body")
    slow.arrivals(2)
    slow.nack(1, requeue=True)
    slow.no_deliveries("work")
    ch.get("work", wait=True, no_ack=True)


@differs("consumer-timeout")
def a_recover_forgets_deliveries_that_were_taken_away(scene: Scene) -> None:
    ch, slow = scene.channel(), scene.channel()
    _queue(ch)
    slow.consume("work", "slow")
    ch.publish("work", "body")
    slow.arrivals(2)
    slow.recover()
    slow.no_deliveries("work")
    slow.ack(1)
    slow.see_close("unknown tag")
    ch.get("work", wait=True)


@differs("consumer-timeout")
def another_consumer_gets_what_was_returned(scene: Scene) -> None:
    ch, slow, quick = scene.channel(), scene.channel(), scene.channel()
    _queue(ch)
    slow.consume("work", "slow")
    ch.publish("work", "body")
    slow.deliveries(1)
    quick.consume("work", "quick")
    quick.deliveries(1)
    slow.arrivals(1)
    quick.ack(1)


@differs("consumer-timeout")
def the_next_consumer_becomes_the_single_active_one(scene: Scene) -> None:
    ch, slow, quick = scene.channel(), scene.channel(), scene.channel()
    _queue(ch, single_active_consumer=True)
    slow.consume("work", "slow")
    quick.consume("work", "quick")
    ch.publish("work", "1")
    slow.arrivals(2)
    quick.deliveries(1)
    quick.ack(1)
    slow.ack(1)
    ch.publish("work", "2")
    quick.deliveries(1)
    quick.ack(2)


@differs("consumer-timeout")
def a_client_that_does_not_know_cancels_loses_its_channel(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    able = {name: value for name, value in CAPABILITIES.items() if name != "consumer_cancel_notify"}
    slow = scene.connect(capabilities=able).channel()
    slow.consume("work", "slow")
    ch.publish("work", "body")
    slow.deliveries(1)
    slow.see_close("timed out")
    ch.get("work", wait=True)


@differs("consumer-timeout")
def a_consumer_that_has_cancelled_itself_loses_its_channel(scene: Scene) -> None:
    ch, slow = scene.channel(), scene.channel()
    _queue(ch)
    slow.consume("work", "slow")
    ch.publish("work", "body")
    slow.deliveries(1)
    slow.cancel("slow")
    slow.see_close("timed out")


@differs("consumer-timeout")
def a_message_that_was_fetched_times_out_with_its_channel(scene: Scene) -> None:
    ch, slow = scene.channel(), scene.channel()
    _queue(ch)
    ch.publish("work", "body")
    slow.get("work", wait=True)
    slow.see_close("timed out")
    ch.get("work", wait=True)


@differs("consumer-timeout")
def a_policy_holds_for_consumers_that_come_after_it(scene: Scene) -> None:
    ch, slow = scene.channel(), scene.channel()
    ch.queue("work", durable=True, queue_type="quorum", consumer_timeout=60_000)
    slow.qos(1)
    slow.consume("work", "before")
    scene.policy("^work$", consumer_timeout=300)
    slow.consume("work", "after")
    ch.publish("work", "1")
    ch.publish("work", "2")
    slow.deliveries(1, "before")
    slow.deliveries(1, "after")
    slow.arrivals(1)


@differs("consumer-timeout")
def a_wrong_timeout_is_refused(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().queue("a", durable=True, queue_type="quorum", consumer_timeout=-1)
    wire.channel().queue("b", durable=True, queue_type="quorum", consumer_timeout="soon")
    wire.channel().queue("c", consumer_timeout=100)
    ch = wire.channel()
    _queue(ch)
    ch.consume("work", "tag", x_consumer_timeout=-1)
