"""Where does a message go?

The rule: a script publishes, the confirm says that every queue has its copy, and then each queue is counted.
"""

from redrive.amqp.values import Int8
from tests.differential.client import Channel, Scene
from tests.differential.differences import differs


def _counts(ch: Channel, *queues: str) -> None:
    for queue in queues:
        ch.count(queue)


def the_default_exchange_knows_every_queue_by_its_name(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.publish("work", "body")
    ch.publish("Work", "nowhere")
    ch.get("work")
    ch.get("work")


def the_default_exchange_cannot_be_bound_declared_or_deleted(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("work")
    ch.bind("work", "", "key")
    wire.channel().unbind("work", "", "work")
    wire.channel().exchange("", "direct")
    wire.channel().exchange("", "direct", passive=True)
    wire.channel().delete_exchange("")
    wire.channel().bind_exchange("amq.direct", "", "key")


def a_direct_exchange_compares_the_whole_key(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("x")
    for queue, key in (("a", "one"), ("b", "one"), ("c", "two"), ("d", "")):
        ch.queue(queue)
        ch.bind(queue, "x", key)
    for key in ("one", "two", "One", "", "one.two"):
        ch.publish(key, key, "x")
    _counts(ch, "a", "b", "c", "d")


def a_fanout_exchange_ignores_the_key_and_delivers_once(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("x", "fanout")
    for queue in ("a", "b"):
        ch.queue(queue)
        ch.bind(queue, "x", "key")
    ch.bind("a", "x", "other")
    ch.publish("whatever", "body", "x")
    _counts(ch, "a", "b")


def a_topic_exchange_knows_one_word_and_many(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("x", "topic")
    patterns = ("#", "*", "*.*", "a.*", "a.#", "#.c", "a.#.c", "*.b.*", "a.b.c", "", "#.#", "a.*.#", "*.#.*")
    for number, pattern in enumerate(patterns):
        ch.queue(f"q{number}")
        ch.bind(f"q{number}", "x", pattern)
    for key in ("", "a", "a.b", "a.b.c", "a.b.b.c", "a..c", ".", "b.c", "#", "*"):
        ch.publish(key, key, "x")
        for number in range(len(patterns)):
            ch.get(f"q{number}", no_ack=True, record=False)
            ch.note(f"{key!r} by {patterns[number]!r}", ch.last_body())


def two_matching_bindings_are_one_copy(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("x", "topic")
    ch.queue("a")
    ch.bind("a", "x", "#")
    ch.bind("a", "x", "one.*")
    ch.publish("one.two", "body", "x")
    ch.count("a")


def a_headers_exchange_matches_all_or_any(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("x", "headers")
    for queue, arguments in (
        ("all", {"x_match": "all", "one": 1, "two": "b"}),
        ("any", {"x_match": "any", "one": 1, "two": "b"}),
        ("default", {"one": 1, "two": "b"}),
        ("present", {"x_match": "all", "one": None}),
        ("nothing-all", {"x_match": "all"}),
        ("nothing-any", {"x_match": "any"}),
    ):
        ch.queue(queue)
        ch.bind(queue, "x", "", **arguments)
        for headers in ({"one": 1, "two": "b"}, {"one": 1}, {"one": 2, "two": "c"}, {"three": 3}):
            ch.publish("ignored", queue, "x", headers=headers)
        ch.publish("ignored", "no headers", "x")
        ch.count(queue)


def a_headers_exchange_compares_values_by_type_too(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("x", "headers")
    ch.queue("a")
    ch.bind("a", "x", "", one=1)
    for value in (1, True, "1", Int8(1)):
        ch.publish("", repr(value), "x", headers={"one": value})
    ch.count("a")


@differs("headers-number-types")
def a_headers_exchange_knows_integers_from_floats(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("x", "headers")
    ch.queue("a")
    ch.bind("a", "x", "", one=1)
    ch.publish("", "float", "x", headers={"one": 1.0})
    ch.get("a")
    scene.demand("1.0 does not match 1", holds=ch.last is None)


def a_headers_exchange_looks_at_x_headers_only_if_asked(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("x", "headers")
    for match in ("all", "any", "all-with-x", "any-with-x"):
        ch.queue(match)
        ch.bind(match, "x", "", x_match=match, x_kind="a", kind="b")
    for headers in ({"x-kind": "a"}, {"kind": "b"}, {"x-kind": "a", "kind": "b"}, {}):
        ch.publish("", "", "x", headers=headers)
        _counts(ch, "all", "any", "all-with-x", "any-with-x")


def a_headers_binding_with_an_unknown_match_is_refused(scene: Scene) -> None:
    wire = scene.connect()
    for match in ("some", 1):
        ch = wire.channel()
        ch.exchange("x", "headers")
        ch.queue("a")
        ch.bind("a", "x", "", x_match=match)


def a_binding_between_exchanges_carries_messages_on(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("first", "topic")
    ch.exchange("second", "direct")
    ch.queue("a")
    ch.bind("a", "second", "order.new")
    ch.bind_exchange("second", "first", "order.*")
    ch.publish("order.new", "body", "first")
    ch.publish("order.old", "body", "first")
    ch.get("a")
    ch.count("a")
    ch.unbind_exchange("second", "first", "order.*")
    ch.publish("order.new", "body", "first")
    ch.count("a")


def a_ring_of_exchanges_delivers_once(scene: Scene) -> None:
    ch = scene.channel()
    for exchange in ("a", "b", "c"):
        ch.exchange(exchange, "fanout")
        ch.queue(f"queue-{exchange}")
        ch.bind(f"queue-{exchange}", exchange)
    for destination, source in (("b", "a"), ("c", "b"), ("a", "c")):
        ch.bind_exchange(destination, source)
    ch.publish("", "body", "b")
    _counts(ch, "queue-a", "queue-b", "queue-c")


def what_an_exchange_cannot_route_goes_to_its_alternate_exchange(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("second-choice", "fanout")
    ch.exchange("x", "direct", alternate_exchange="second-choice")
    ch.queue("a")
    ch.queue("b")
    ch.bind("a", "x", "a")
    ch.bind("b", "second-choice")
    ch.publish("a", "routed", "x", mandatory=True)
    ch.publish("b", "not routed", "x", mandatory=True)
    ch.get("a")
    ch.get("b")


def alternate_exchanges_form_chains_that_may_be_rings_or_end_nowhere(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("one", alternate_exchange="two")
    ch.exchange("two", alternate_exchange="one")
    ch.exchange("three", alternate_exchange="missing")
    ch.publish("key", "ring", "one", mandatory=True, wait=False)
    ch.arrivals(2)
    ch.publish("key", "end", "three", mandatory=True, wait=False)
    ch.arrivals(2)


def an_exchange_takes_the_key_of_its_binding_not_of_its_queue(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("x")
    ch.queue("a")
    ch.bind("a", "x", "key")
    ch.publish("a", "body", "x")
    ch.count("a")
    ch.unbind("a", "x", "other")
    ch.publish("key", "body", "x")
    ch.count("a")
    ch.unbind("a", "x", "key")
    ch.publish("key", "body", "x")
    ch.count("a")


def bindings_with_different_arguments_are_different(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("x")
    ch.queue("a")
    ch.bind("a", "x", "key", note="one")
    ch.bind("a", "x", "key", note="two")
    ch.unbind("a", "x", "key", note="one")
    ch.publish("key", "body", "x")
    ch.unbind("a", "x", "key", note="two")
    ch.publish("key", "body", "x")
    ch.count("a")


def the_predeclared_exchanges_are_there(scene: Scene) -> None:
    ch = scene.channel()
    for kind in ("direct", "fanout", "topic", "headers"):
        ch.exchange(f"amq.{kind}", kind, durable=True)
        ch.exchange(f"amq.{kind}", kind, passive=True)
    ch.exchange("amq.match", "headers", durable=True)
    ch.queue("a")
    ch.bind("a", "amq.topic", "order.*")
    ch.publish("order.new", "body", "amq.topic")
    ch.get("a")


def names_that_begin_with_amq_are_reserved(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().exchange("amq.mine", "direct")
    wire.channel().exchange("amq.mine", "direct", passive=True)
    wire.channel().delete_exchange("amq.direct")
    wire.channel().queue("amq.mine")
    wire.channel().queue("amq.mine", passive=True)
    wire.channel().exchange("amq.direct", "fanout", durable=True)


def a_declaration_that_differs_says_in_what(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.exchange("x", "direct", alternate_exchange="other")
    ch.exchange("x", "direct", alternate_exchange="other")
    ch.exchange("x", "fanout", alternate_exchange="other")
    wire.channel().exchange("x", "direct", durable=True, alternate_exchange="other")
    wire.channel().exchange("x", "direct", auto_delete=True, alternate_exchange="other")
    wire.channel().exchange("x", "direct", internal=True, alternate_exchange="other")
    wire.channel().exchange("x", "direct", alternate_exchange="another")
    wire.channel().exchange("x", "direct")
    wire.channel().exchange("x", "fanout", passive=True)


@differs("federation-exchange-type")
def an_exchange_of_the_federation_ends_the_connection(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().exchange("x", "x-federation-upstream")
    close = wire.closed_by
    text = "COMMAND_INVALID - unknown exchange type 'x-federation-upstream'"
    scene.demand(text, holds=close is not None and (close.reply_code, close.reply_text) == (503, text))


@differs("unknown-exchange-type")
def an_unknown_exchange_type_closes_the_channel(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.exchange("x", "no-such-type")
    close = ch.closed_by
    text = "PRECONDITION_FAILED - unknown exchange type 'no-such-type'"
    scene.demand("406 on the channel", holds=close is not None and close.reply_code == 406)
    scene.demand(text, holds=close is not None and close.reply_text == text)
    wire.is_alive()


def an_exchange_that_is_missing(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().exchange("missing", "direct", passive=True)
    wire.channel().delete_exchange("missing")
    ch = wire.channel()
    ch.queue("a")
    ch.bind("a", "missing", "key")
    wire.channel().unbind("a", "missing", "key")
    wire.channel().bind_exchange("amq.direct", "missing")
    wire.channel().bind_exchange("missing", "amq.direct")
    wire.channel().bind("missing", "amq.direct")
    wire.channel().publish("key", "body", "missing")


def an_exchange_in_use_is_not_deleted_if_unused_is_asked(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.exchange("x", "direct")
    ch.queue("a")
    ch.bind("a", "x", "key")
    ch.delete_exchange("x", if_unused=True)
    ch = wire.channel()
    ch.delete_exchange("x")
    ch.publish("key", "body", "x")


def an_auto_delete_exchange_goes_with_its_last_binding(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.exchange("x", "direct", auto_delete=True)
    ch.queue("a")
    ch.bind("a", "x", "one")
    ch.bind("a", "x", "two")
    ch.unbind("a", "x", "one")
    ch.exchange("x", "direct", passive=True)
    ch.delete("a")
    ch.exchange("x", "direct", passive=True)


def an_internal_exchange_takes_no_publishes(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("inner", "fanout", internal=True)
    ch.exchange("outer", "fanout")
    ch.bind_exchange("inner", "outer")
    ch.queue("a")
    ch.bind("a", "inner")
    ch.publish("", "through", "outer")
    ch.get("a")
    ch.publish("", "direct", "inner")


def the_user_id_must_be_the_users_own(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("a")
    ch.publish("a", "body", user_id=scene.user)
    ch.count("a")
    ch.publish("a", "body", user_id="somebody else")


def unbinding_what_does_not_exist_is_no_error(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.exchange("source", "fanout")
    ch.exchange("target", "fanout")
    ch.unbind("missing", "source")
    ch.unbind("work", "missing")
    ch.unbind("missing", "missing")
    ch.unbind_exchange("missing", "source")
    ch.unbind_exchange("target", "missing")
    ch.unbind_exchange("missing", "missing")
    ch.unbind_exchange("target", "source", "never bound")
    wire = ch.wire
    wire.channel().unbind("missing", "")
    wire.channel().unbind_exchange("target", "")
    wire.channel().unbind_exchange("", "missing")
    wire.channel().unbind("", "source")
