"""How is a queue declared, what is refused, and when does it go?

The rule: a refusal closes its channel, so every step that may be refused has a channel of its own.
"""

from typing import Any

from redrive.amqp.values import Int8, Int32, Timestamp
from tests.differential.client import Scene
from tests.differential.differences import differs


def a_queue_tells_how_many_messages_and_consumers_it_has(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.publish("work", "1")
    ch.publish("work", "2")
    ch.queue("work")
    ch.get("work")
    ch.consume("work", "one")
    ch.deliveries(1)
    ch.count("work")


def a_queue_without_a_name_gets_one_and_the_channel_remembers_it(scene: Scene) -> None:
    ch = scene.channel()
    name = ch.queue()
    ch.publish(name, "body")
    ch.get("")
    ch.queue(name, passive=True)
    ch.exchange("x", "fanout")
    ch.bind("", "x")
    ch.publish("", "body", "x")
    ch.consume("", "tag", no_ack=True)
    ch.deliveries(1)
    ch.purge("")
    ch.queue()
    ch.delete("")


def an_empty_key_binds_the_remembered_queue_by_its_name(scene: Scene) -> None:
    ch = scene.channel()
    name = ch.queue()
    ch.exchange("x", "direct")
    ch.bind("", "x", "")
    ch.publish(name, "by name", "x")
    ch.publish("", "by nothing", "x")
    ch.get(name)
    ch.get(name)


def without_a_declared_queue_an_empty_name_means_nothing(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().get("")
    wire.channel().consume("", "tag")
    wire.channel().bind("", "amq.fanout")
    wire.channel().purge("")
    wire.channel().delete("")
    wire.channel().queue("", passive=True)


def a_queue_that_is_missing(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().queue("missing", passive=True)
    wire.channel().get("missing")
    wire.channel().consume("missing", "tag")
    wire.channel().purge("missing")
    wire.channel().unbind("missing", "amq.direct", "key")
    wire.channel().delete("missing")
    wire.is_alive()


def a_declaration_that_differs_says_in_what(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("work", message_ttl=60000, dead_letter_exchange="dlx")
    same: dict[str, Any] = {"message_ttl": 60000, "dead_letter_exchange": "dlx"}
    for change in (
        {"durable": True},
        {"auto_delete": True},
        {"exclusive": True},
        {"message_ttl": 1},
        {"message_ttl": "60000"},
        {"dead_letter_exchange": "other"},
        {"max_length": 5},
        {"queue_type": "quorum", "durable": True},
    ):
        wire.channel().queue("work", **{**same, **change})
    wire.channel().queue("work")
    wire.channel().queue("work", passive=True, durable=True)


def integer_widths_and_the_classic_type_make_no_difference(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", message_ttl=Int8(100), queue_type="classic")
    ch.queue("work", message_ttl=Int32(100), queue_type="classic")
    ch.queue("work", message_ttl=100)
    ch.queue("plain")
    ch.queue("plain", queue_type="classic")


def unknown_arguments_are_kept_and_not_compared(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("work", unheard_of="one")
    ch.queue("work", unheard_of="two")
    ch.queue("work")


def arguments_with_values_that_make_no_sense(scene: Scene) -> None:
    wire = scene.connect()
    cases: tuple[dict[str, Any], ...] = (
        {"dead_letter_routing_key": "key"},
        {"dead_letter_exchange": 1},
        {"dead_letter_exchange": "dlx", "dead_letter_routing_key": 1},
        {"message_ttl": -1},
        {"message_ttl": 315360000001},
        {"message_ttl": "100"},
        {"message_ttl": 1.5},
        {"message_ttl": True},
        {"message_ttl": Timestamp(100)},
        {"expires": 0},
        {"expires": -1},
        {"expires": 315360000001},
        {"max_length": -1},
        {"max_length": "5"},
        {"max_length_bytes": -1},
        {"max_priority": -1},
        {"max_priority": 256},
        {"max_priority": "5"},
        {"overflow": "explode"},
        {"overflow": 1},
        {"queue_type": "no-such-type"},
        {"queue_type": 1},
        {"single_active_consumer": "yes"},
    )
    for number, arguments in enumerate(cases):
        wire.channel().queue(f"q{number}", **arguments)


def the_limits_of_arguments_are_allowed(scene: Scene) -> None:
    ch = scene.channel()
    cases: tuple[dict[str, Any], ...] = (
        {"dead_letter_exchange": "dlx", "dead_letter_routing_key": ""},
        {"message_ttl": 0},
        {"message_ttl": 315360000000},
        {"expires": 315360000000},
        {"max_length": 0},
        {"max_length_bytes": 0},
        {"max_priority": 255},
        {"max_priority": 0},
        {"overflow": "drop-head"},
        {"queue_mode": "lazy"},
        {"single_active_consumer": False},
    )
    for number, arguments in enumerate(cases):
        ch.queue(f"q{number}", **arguments)


def arguments_of_quorum_queues_are_refused_by_classic_ones(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().queue("a", delivery_limit=5)
    wire.channel().queue("b", dead_letter_strategy="at-least-once")
    wire.channel().queue("c", quorum_initial_group_size=3)


def a_name_may_have_any_characters_but_only_255_octets(scene: Scene) -> None:
    ch = scene.channel()
    for name in ("with space", "ünïcödé", "a" * 255, "amqx", "#", "%2F/"):
        ch.queue(name)
        ch.publish(name, "body")
        ch.get(name)


def line_breaks_are_taken_out_of_names(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("new\r\nline")
    ch.publish("newline", "body")
    ch.get("newline")


def purging_spares_what_is_out_for_delivery(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    for body in ("1", "2", "3"):
        ch.publish("work", body)
    tag = ch.get("work")
    ch.purge("work")
    ch.purge("work")
    ch.reject(tag, requeue=True)
    ch.get("work")


def deleting_tells_how_many_messages_were_ready(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    for body in ("1", "2", "3"):
        ch.publish("work", body)
    ch.get("work")
    ch.delete("work")
    ch.delete("work")


def deleting_if_empty_and_if_unused(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("full")
    ch.publish("full", "body")
    ch.delete("full", if_empty=True)
    ch = wire.channel()
    ch.queue("used")
    ch.consume("used", "tag")
    ch.delete("used", if_unused=True)
    ch = wire.channel()
    ch.delete("used", if_unused=True, if_empty=True)
    ch.queue("both")
    ch.consume("both", "tag")
    ch.publish("both", "body")
    ch.deliveries(1)
    ch.delete("both", if_unused=True, if_empty=True)
    wire.channel().delete("missing", if_unused=True)


def an_exclusive_queue_is_for_its_connection_only(scene: Scene) -> None:
    owner, other = scene.connect(), scene.connect()
    ch = owner.channel()
    ch.queue("mine", exclusive=True)
    owner.channel().queue("mine", exclusive=True)
    other.channel().queue("mine", exclusive=True)
    other.channel().queue("mine", passive=True)
    other.channel().get("mine")
    other.channel().consume("mine", "tag")
    other.channel().bind("mine", "amq.fanout")
    other.channel().purge("mine")
    other.channel().delete("mine")
    publisher = other.channel()
    publisher.publish("mine", "anybody may publish")
    ch.get("mine")
    ch.queue("mine")


def an_exclusive_queue_goes_with_its_connection(scene: Scene) -> None:
    owner, other = scene.connect(), scene.connect()
    owner.channel().queue("mine", exclusive=True, durable=True)
    owner.close()
    ch = other.channel()
    ch.queue("mine", passive=True)


def an_exclusive_queue_outlives_its_channel(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("mine", exclusive=True)
    ch.close()
    wire.channel().count("mine")


def an_auto_delete_queue_goes_with_its_last_consumer(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("work", auto_delete=True)
    ch.count("work")
    ch.consume("work", "one")
    ch.consume("work", "two")
    ch.cancel("one")
    ch.count("work")
    ch.cancel("two")
    ch.count("work")


def an_auto_delete_queue_goes_with_the_channel_of_its_last_consumer(scene: Scene) -> None:
    wire = scene.connect()
    ch, other = wire.channel(), wire.channel()
    ch.queue("work", auto_delete=True)
    ch.consume("work", "one")
    ch.close()
    other.await_gone("work")
    other.count("work")


def a_higher_priority_goes_first_and_equal_ones_keep_their_order(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", max_priority=5)
    for body, priority in (("a", 1), ("b", 5), ("c", None), ("d", 9), ("e", 1), ("f", 0), ("g", 5)):
        ch.publish("work", body, priority=priority)
    for _ in range(8):
        ch.get("work", no_ack=True)


def a_requeued_message_takes_its_old_place_by_priority(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", max_priority=5)
    ch.publish("work", "low", priority=1)
    ch.publish("work", "high", priority=4)
    tag = ch.get("work")
    ch.publish("work", "higher", priority=5)
    ch.reject(tag, requeue=True)
    for _ in range(3):
        ch.get("work", no_ack=True)


@differs("last-death-headers")
def a_full_priority_queue_pushes_out_its_head_which_is_the_highest(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", max_priority=5, max_length=2, dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.publish("work", "high", priority=4)
    ch.publish("work", "low", priority=1)
    ch.publish("work", "middle", priority=2)
    ch.get("dead", wait=True)
    ch.get("work")


def bindings_go_with_their_queue(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("x", "fanout")
    ch.queue("a")
    ch.bind("a", "x")
    ch.delete("a")
    ch.publish("", "nowhere", "x", mandatory=True, wait=False)
    ch.arrivals(2)
    ch.queue("a")
    ch.publish("", "nowhere", "x")
    ch.count("a")


@differs("delivery-count-header")
def a_name_may_be_used_again_for_a_queue_of_another_type(scene: Scene) -> None:
    ch = scene.channel()
    for queue_type in ("classic", "quorum", "classic"):
        ch.queue("work", durable=True, queue_type=queue_type)
        ch.publish("work", queue_type)
        ch.get("work", wait=True, no_ack=True)
        ch.delete("work")


def a_passive_declare_renews_the_lease(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("looked-at", expires=1000)
    ch.queue("left-alone", expires=1000)
    for _ in range(3):
        ch.pass_time(450)
        ch.queue("looked-at", passive=True)
    ch.queue("left-alone", passive=True)
