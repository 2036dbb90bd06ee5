"""What does a publisher hear about its messages? (B1)

The rule: where the order of what a publisher hears is the point, it is recorded as it came (`arrivals`).
"""

from tests.differential.client import Scene


def a_message_is_confirmed_when_it_is_routed_and_when_it_is_not(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.publish("work", "routed")
    ch.publish("nowhere", "not routed")
    ch.publish("work", "persistent", delivery_mode=2)
    ch.queue("durable", durable=True)
    ch.publish("durable", "persistent", delivery_mode=2)
    ch.publish("durable", "transient", delivery_mode=1)


def many_messages_are_all_confirmed(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", durable=True)
    for number in range(20):
        ch.publish("work", str(number), delivery_mode=2, wait=False)
    ch.confirms(20)


def a_mandatory_message_without_a_route_is_returned_and_then_confirmed(scene: Scene) -> None:
    ch = scene.channel()
    ch.publish("nowhere", "body", mandatory=True, wait=False, message_id="id", headers={"a": 1})
    ch.arrivals(2)
    ch.publish("nowhere", "", "amq.topic", mandatory=True, wait=False)
    ch.arrivals(2)


def a_mandatory_message_with_a_route_is_not_returned(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.publish("work", "body", mandatory=True, wait=False)
    ch.arrivals(1)


def returns_come_without_confirms_too_and_in_order(scene: Scene) -> None:
    ch = scene.channel(confirm=False)
    ch.queue("work")
    for body in ("1", "2", "3"):
        ch.publish("nowhere", body, mandatory=True)
        ch.publish("work", body, mandatory=True)
    ch.arrivals(3)


def tags_count_from_the_moment_of_confirm_select(scene: Scene) -> None:
    ch = scene.channel(confirm=False)
    ch.queue("work")
    ch.publish("work", "before")
    ch.confirm()
    ch.publish("nowhere", "after", mandatory=True)
    ch.arrivals(2)
    ch.confirm()
    ch.publish("nowhere", "second", mandatory=True)
    ch.arrivals(2)


def immediate_is_not_implemented(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("work")
    ch.publish("work", "body", immediate=True, wait=False)
    wire.see_end("immediate")


def a_failed_publish_is_not_confirmed_and_takes_its_channel_along(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.publish("key", "body", "missing")
    wire.is_alive()


def large_and_empty_bodies_arrive_as_they_are(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    for size in (0, 1, 131_064, 131_065, 300_000):
        ch.publish("work", "x" * size)
        ch.get("work", record=False)
        ch.note(f"{size} octets", [len(ch.last_body() or ""), set(ch.last_body() or "") <= {"x"}])


def the_confirm_of_one_message_is_not_multiple(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.queue("durable", durable=True)
    ch.queue("full", max_length=0, overflow="reject-publish")
    for queue in ("work", "durable", "nowhere", "full", "work", "full"):
        ch.publish(queue, "body", wait=False, delivery_mode=2)
        ch.arrivals(1)
