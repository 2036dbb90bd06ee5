"""What does a quorum queue do with dead letters that it must not lose?

A change of policy makes RabbitMQ send again what never had a route; nothing else does before three minutes are over.
What a dead letter looks like is the business of other scripts: here its body and the reason of its death go on record.
"""

from typing import Any

from tests.differential.client import Channel, Scene
from tests.differential.differences import differs


def _queue(ch: Channel, **arguments: Any) -> None:
    wanted = {
        "dead_letter_exchange": "dlx",
        "dead_letter_strategy": "at-least-once",
        "overflow": "reject-publish",
        **arguments,
    }
    ch.queue("work", durable=True, queue_type="quorum", **wanted)


def _route(ch: Channel, queue: str = "dead", **arguments: Any) -> None:
    ch.exchange("dlx", "fanout")
    ch.queue(queue, **arguments)
    ch.bind(queue, "dlx")


def _reject(ch: Channel) -> None:
    ch.reject(ch.get("work", wait=True, record=False))
    ch.pass_time(100)


def _arrives(ch: Channel, queue: str = "dead") -> None:
    ch.get(queue, wait=True, no_ack=True, record=False)
    ch.note(f"arrived in {queue}", [ch.last_body(), ch.last_headers()["x-death"][0]["reason"]])


def _send_again(scene: Scene) -> None:
    scene.policy("^work$", max_length=1000)


def a_letter_with_a_route_arrives(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    _route(ch)
    ch.publish("work", "body")
    _reject(ch)
    _arrives(ch)
    ch.purge("work")


def a_letter_without_an_exchange_is_kept_and_arrives_later(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    ch.publish("work", "body")
    _reject(ch)
    ch.count("work")
    _route(ch)
    ch.pass_time(100)
    ch.count("dead")
    _send_again(scene)
    _arrives(ch)


def a_letter_without_a_route_is_kept_and_arrives_later(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("dlx", "fanout")
    _queue(ch)
    ch.publish("work", "body")
    _reject(ch)
    ch.queue("dead")
    ch.bind("dead", "dlx")
    ch.pass_time(100)
    ch.count("dead")
    _send_again(scene)
    _arrives(ch)


def expired_messages_are_kept(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch, message_ttl=100)
    ch.publish("work", "body")
    ch.pass_time(300)
    _route(ch)
    _send_again(scene)
    _arrives(ch)


def a_letter_that_one_target_refuses_goes_to_the_others_once(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    _route(ch, "ok")
    _route(ch, "full", max_length=0, overflow="reject-publish")
    ch.publish("work", "body")
    _reject(ch)
    _arrives(ch, "ok")
    _send_again(scene)
    ch.pass_time(200)
    ch.count("ok")


@differs("purge-of-kept-letters")
def kept_letters_are_not_counted_but_purged(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    for body in "123":
        ch.publish("work", body)
    _reject(ch)
    _reject(ch)
    ch.await_count("work", 1)
    ch.purge("work")


@differs("purged-letters")
def kept_letters_that_were_purged_do_not_arrive(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    ch.publish("work", "body")
    _reject(ch)
    ch.purge("work")
    _route(ch)
    _send_again(scene)
    ch.pass_time(100)
    ch.get("dead")
    scene.demand("the letter has not arrived", holds=ch.last_body() is None)


def a_queue_with_kept_letters_is_deleted(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    ch.publish("work", "1")
    ch.publish("work", "2")
    _reject(ch)
    ch.await_count("work", 1)
    ch.delete("work")


def kept_letters_count_towards_the_limit(scene: Scene) -> None:
    """RabbitMQ lets one message more in than the limit, and the embedded broker does not: see what comes after it."""
    ch = scene.channel()
    _queue(ch, max_length=1)
    ch.publish("work", "1")
    _reject(ch)
    scene.channel(confirm=False).publish("work", "2")
    ch.pass_time(200)
    ch.publish("work", "3")


def without_reject_publish_letters_are_lost(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch, overflow="drop-head")
    ch.publish("work", "body")
    _reject(ch)
    ch.purge("work")
    _route(ch)
    _send_again(scene)
    ch.pass_time(200)
    ch.count("dead")


def the_strategy_can_be_a_policy(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", durable=True, queue_type="quorum")
    policy: dict[str, Any] = {
        "dead_letter_exchange": "dlx",
        "dead_letter_strategy": "at-least-once",
        "overflow": "reject-publish",
    }
    scene.policy("^work$", **policy)
    ch.pass_time(300)
    ch.publish("work", "body")
    _reject(ch)
    _route(ch)
    scene.policy("^work$", **policy, max_length=1000)
    _arrives(ch)


def a_queue_that_refuses_drops_nothing_when_its_limit_is_lowered(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    ch.queue("classic", overflow="reject-publish")
    for queue in ("work", "classic"):
        for body in "123":
            ch.publish(queue, body)
    scene.policy("^(work|classic)$", max_length=1)
    ch.pass_time(300)
    ch.count("work")
    ch.count("classic")


@differs("kept-letters-after-a-change")
def letters_follow_the_new_strategy_of_their_queue(scene: Scene) -> None:
    ch = scene.channel()
    _queue(ch)
    ch.publish("work", "body")
    _reject(ch)
    _route(ch)
    scene.policy("^work$", overflow="drop-head")
    ch.get("dead", wait=True)
    scene.demand("the letter has arrived", holds=ch.last_body() == "body")
