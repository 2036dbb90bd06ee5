"""When does a message expire, and when a queue?

The rule: no time-to-live is longer than it has to be, and the broker's own clock says when it is over
(`pass_time`). What must not expire has a minute.
"""

from typing import Any

from redrive.amqp.values import Int8, Int16, Int32
from tests.differential.client import Channel, Scene
from tests.differential.differences import differs


def _expiring_queue(ch: Channel, **arguments: Any) -> None:
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead", **arguments)


@differs("last-death-headers", "death-field-order")
def the_shorter_of_queue_and_message_time_to_live_wins(scene: Scene) -> None:
    ch = scene.channel()
    _expiring_queue(ch, message_ttl=30)
    ch.publish("work", "the queue is quicker", expiration="60000")
    ch.get("dead", wait=True)
    ch.delete("work")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead", message_ttl=60000)
    ch.publish("work", "the message is quicker", expiration="30")
    ch.get("dead", wait=True)


def a_message_behind_one_that_lives_longer_does_not_expire_before_it(scene: Scene) -> None:
    ch = scene.channel()
    _expiring_queue(ch)
    ch.publish("work", "stays")
    ch.publish("work", "waits behind it", expiration="20")
    ch.pass_time(60)
    ch.count("work")
    ch.count("dead")


@differs("last-death-headers", "death-field-order")
def it_expires_as_soon_as_it_is_the_first(scene: Scene) -> None:
    ch = scene.channel()
    _expiring_queue(ch)
    ch.publish("work", "goes")
    ch.publish("work", "waits behind it", expiration="20")
    ch.pass_time(60)
    ch.get("work", no_ack=True)
    ch.get("work")
    ch.get("dead", wait=True)


def an_expired_message_without_a_dead_letter_exchange_is_gone(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", message_ttl=20)
    ch.publish("work", "body")
    ch.pass_time(60)
    ch.get("work")


@differs("dead-letter-failures", "last-death-headers", "death-field-order")
def the_time_to_live_is_kept_on_requeue(scene: Scene) -> None:
    ch = scene.channel()
    _expiring_queue(ch)
    ch.publish("work", "body", expiration="100")
    ch.reject(ch.get("work"), requeue=True)
    ch.get("dead", wait=True)


@differs("dead-letter-failures", "last-death-headers", "death-field-order")
def a_message_given_back_after_its_time_expires_at_once(scene: Scene) -> None:
    ch = scene.channel()
    _expiring_queue(ch)
    ch.publish("work", "body", expiration="100")
    tag = ch.get("work")
    ch.pass_time(150)
    ch.get("dead")
    ch.reject(tag, requeue=True)
    ch.get("dead", wait=True)
    ch.get("work")


def a_message_out_for_delivery_does_not_expire(scene: Scene) -> None:
    ch = scene.channel()
    _expiring_queue(ch, message_ttl=100)
    ch.publish("work", "body")
    tag = ch.get("work")
    ch.pass_time(150)
    ch.ack(tag)
    ch.get("work")
    ch.get("dead")


@differs("last-death-headers", "death-field-order")
def zero_expires_unless_somebody_is_waiting(scene: Scene) -> None:
    ch = scene.channel()
    _expiring_queue(ch)
    ch.publish("work", "nobody", expiration="0")
    ch.get("dead", wait=True)
    ch.consume("work", "waiting", no_ack=True)
    ch.publish("work", "somebody", expiration="0")
    ch.deliveries(1)
    ch.get("dead")


@differs("last-death-headers")
def a_queue_time_to_live_of_zero_is_for_messages_that_are_delivered_at_once(scene: Scene) -> None:
    ch = scene.channel()
    _expiring_queue(ch, message_ttl=0)
    ch.publish("work", "nobody")
    ch.get("dead", wait=True)
    ch.consume("work", "waiting", no_ack=True)
    ch.publish("work", "somebody")
    ch.deliveries(1)


def an_expiration_that_is_no_number_closes_the_channel(scene: Scene) -> None:
    wire = scene.connect()
    for expiration in ("soon", "-1", "1.5", "", " 5", "315360000001", "5s"):
        ch = wire.channel()
        ch.queue("work")
        ch.publish("work", "body", expiration=expiration)


def the_longest_expiration_is_ten_years(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.publish("work", "body", expiration="315360000000")
    ch.get("work")


def a_time_to_live_may_have_any_integer_type(scene: Scene) -> None:
    ch = scene.channel()
    for number, value in enumerate((Int8(100), Int16(100), Int32(100), 100)):
        ch.queue(f"work-{number}", message_ttl=value)


def an_unused_queue_goes_when_its_time_is_over(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", expires=50)
    ch.pass_time(500)
    ch.count("work")


def a_queue_with_a_consumer_does_not_go(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", expires=50)
    ch.consume("work", "keeper")
    ch.pass_time(200)
    ch.count("work")
    ch.cancel("keeper")
    ch.pass_time(500)
    ch.count("work")


@differs("last-death-headers", "death-field-order")
def an_expired_message_behind_a_higher_priority_stays_until_it_is_the_first(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", max_priority=5, dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.publish("work", "high", priority=5)
    ch.publish("work", "low", priority=1, expiration="50")
    ch.pass_time(200)
    ch.count("work")
    ch.get("work", wait=True)
    ch.get("dead", wait=True)


def a_message_expires_when_a_consumer_took_the_one_before_it(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.publish("work", "1")
    ch.publish("work", "2", expiration="100")
    ch.qos(1)
    ch.consume("work", "tag")
    ch.deliveries(1)
    ch.pass_time(300)
    ch.count("work")
