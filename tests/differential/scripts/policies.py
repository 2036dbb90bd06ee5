"""What does a policy say, and what does it not? (needs the management API)

The rule: a policy takes effect a little later than it is set, so a script waits for its effect.
"""

from tests.differential.client import Scene
from tests.differential.differences import differs


@differs("last-death-headers")
def a_policy_gives_live_queues_a_dead_letter_exchange(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work")
    scene.policy("^work$", dead_letter_exchange="", dead_letter_routing_key="dead", message_ttl=20)
    ch.publish("work", "body")
    ch.get("dead", wait=True)


@differs("last-death-headers")
def the_argument_wins_over_the_policy_for_dlx_and_key(scene: Scene) -> None:
    ch = scene.channel()
    for queue in ("by-argument", "by-policy"):
        ch.queue(queue)
    scene.policy("^work$", dead_letter_exchange="", dead_letter_routing_key="by-policy", message_ttl=20)
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="by-argument")
    ch.publish("work", "body")
    ch.get("by-argument", wait=True)
    ch.get("by-policy")


@differs("dead-letter-failures", "last-death-headers")
def the_dlx_of_an_argument_goes_with_the_key_of_a_policy(scene: Scene) -> None:
    ch = scene.channel()
    for queue in ("by-argument", "by-policy"):
        ch.queue(queue)
    scene.policy("^work$", dead_letter_exchange="amq.fanout", dead_letter_routing_key="by-policy")
    ch.queue("work", dead_letter_exchange="")
    ch.publish("work", "body")
    ch.reject(ch.get("work"))
    ch.get("by-policy", wait=True)


@differs("last-death-headers")
def of_two_times_to_live_the_shorter_one_holds(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    scene.policy("^short", "first", message_ttl=60000)
    scene.policy("^long", "second", message_ttl=20)
    for queue, ttl in (("short", 20), ("long", 60000)):
        ch.queue(queue, message_ttl=ttl, dead_letter_exchange="", dead_letter_routing_key="dead")
        ch.publish(queue, queue)
        ch.get("dead", wait=True)


def of_two_lengths_the_smaller_one_holds(scene: Scene) -> None:
    ch = scene.channel()
    scene.policy("^work", "policy", max_length=2)
    for queue, length in (("work-1", 1), ("work-3", 3)):
        ch.queue(queue, max_length=length)
        for body in ("1", "2", "3", "4"):
            ch.publish(queue, body)
        ch.count(queue)


def the_argument_wins_over_the_policy_for_overflow(scene: Scene) -> None:
    ch = scene.channel()
    scene.policy("^work$", overflow="drop-head")
    ch.queue("work", max_length=1, overflow="reject-publish")
    ch.publish("work", "1")
    ch.publish("work", "2")
    ch.get("work")


@differs("last-death-headers")
def a_policy_shortens_a_queue_that_is_already_too_long(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    for body in ("1", "2", "3"):
        ch.publish("work", body)
    scene.policy("^work$", max_length=1)
    ch.get("dead", wait=True)
    ch.get("dead", wait=True)
    ch.get("work")


def the_policy_of_the_highest_priority_is_the_only_one(scene: Scene) -> None:
    ch = scene.channel()
    scene.policy("^work$", "low", 1, max_length=1)
    scene.policy("^work$", "high", 2, message_ttl=60000)
    ch.queue("work")
    for body in ("1", "2"):
        ch.publish("work", body)
    ch.count("work")


def a_policy_makes_no_difference_to_a_declaration(scene: Scene) -> None:
    ch = scene.channel()
    scene.policy("^work$", message_ttl=60000, dead_letter_exchange="dlx")
    ch.queue("work")
    ch.queue("work")
    ch.queue("work", message_ttl=60000)
