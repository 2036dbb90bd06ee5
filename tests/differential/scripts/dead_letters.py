"""What becomes of a message that is given up, and what does it say about that?

The rule: a dead letter is waited for where it arrives; where none may arrive, the queue it died in has already
answered that it is empty.
"""

from redrive.amqp.values import Int32, Timestamp
from tests.differential.client import Channel, Scene
from tests.differential.differences import differs


def _dead_letter_queue(ch: Channel, queue: str = "dead", exchange: str = "dlx", key: str = "") -> None:
    """A queue behind a fanout that dead letters go to."""
    ch.exchange(exchange, "fanout")
    ch.queue(queue)
    ch.bind(queue, exchange, key)


@differs("dead-letter-failures", "last-death-headers")
def a_rejected_message_tells_where_and_why_it_died(scene: Scene) -> None:
    ch = scene.channel()
    _dead_letter_queue(ch)
    ch.queue("work", dead_letter_exchange="dlx")
    ch.publish("work", "body")
    ch.reject(ch.get("work"))
    ch.get("dead", wait=True)


@differs("last-death-headers")
def a_nack_without_requeue_is_a_rejection(scene: Scene) -> None:
    ch = scene.channel()
    _dead_letter_queue(ch)
    ch.queue("work", dead_letter_exchange="dlx")
    ch.publish("work", "body")
    ch.nack(ch.get("work"))
    ch.get("dead", wait=True)


@differs("dead-letter-failures", "last-death-headers", "header-order")
def all_other_properties_and_headers_stay_as_they_were(scene: Scene) -> None:
    ch = scene.channel()
    _dead_letter_queue(ch)
    ch.queue("work", dead_letter_exchange="dlx")
    headers = {"z": "last", "small": Int32(7), "big": 1 << 40, "yes": True, "none": None, "at": Timestamp(1)}
    ch.publish(
        "work",
        "body",
        content_type="text/plain",
        content_encoding="utf-8",
        headers={**headers, "list": [1, "two", {"three": 3.5}], "octets": b"\x00\xff"},
        delivery_mode=2,
        priority=3,
        correlation_id="correlation",
        reply_to="reply",
        message_id="message",
        timestamp=1_000_000_000,
        type="type",
        app_id="app",
        cluster_id="cluster",
    )
    ch.reject(ch.get("work"))
    ch.get("dead", wait=True)


@differs("last-death-headers")
def a_dead_letter_is_delivered_by_its_new_exchange_with_its_old_key_and_not_as_redelivered(
    scene: Scene,
) -> None:
    ch = scene.channel()
    _dead_letter_queue(ch)
    ch.exchange("orders", "topic")
    ch.queue("work", dead_letter_exchange="dlx")
    ch.bind("work", "orders", "order.#")
    ch.consume("dead", "watcher", no_ack=True)
    ch.publish("order.new", "body", "orders")
    ch.reject(ch.get("work"), requeue=True)
    ch.reject(ch.get("work"))
    ch.deliveries(1)


@differs("dead-letter-failures", "last-death-headers")
def a_dead_letter_routing_key_replaces_the_key(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("dlx")
    for queue in ("old", "new"):
        ch.queue(queue)
        ch.bind(queue, "dlx", queue)
    ch.queue("work", dead_letter_exchange="dlx", dead_letter_routing_key="new")
    ch.exchange("orders", "fanout")
    ch.bind("work", "orders")
    ch.publish("old", "body", "orders")
    ch.reject(ch.get("work"))
    ch.get("new", wait=True)
    ch.count("old")


@differs("dead-letter-failures", "last-death-headers", "death-field-order")
def the_second_hop_names_the_first_dlx_and_the_dead_letter_routing_key(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("dlx")
    ch.queue("work", dead_letter_exchange="dlx", dead_letter_routing_key="second")
    ch.queue("second", dead_letter_exchange="", dead_letter_routing_key="third")
    ch.bind("second", "dlx", "second")
    ch.queue("third")
    ch.publish("work", "body")
    ch.reject(ch.get("work"))
    ch.reject(ch.get("second", wait=True))
    ch.get("third", wait=True)


@differs("dead-letter-failures", "last-death-headers")
def the_empty_string_is_the_default_exchange_and_not_the_absence_of_one(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.publish("work", "body")
    ch.reject(ch.get("work"))
    ch.get("dead", wait=True)


def without_a_dead_letter_exchange_a_rejected_message_is_gone(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.publish("work", "body")
    ch.reject(ch.get("work"))
    ch.count("work")
    ch.get("work")


@differs("dead-letter-failures", "last-death-headers", "death-field-order")
def a_death_for_the_same_reason_in_the_same_queue_is_counted_and_moved_to_the_front(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="retry")
    ch.queue("retry", dead_letter_exchange="", dead_letter_routing_key="work", message_ttl=20)
    ch.publish("work", "body")
    for _ in range(3):
        ch.reject(ch.get("work", wait=True))
    ch.get("work", wait=True)
    deaths = [(death["queue"], death["count"]) for death in ch.last_headers()["x-death"]]
    scene.demand("three rounds, the last death first", holds=deaths == [("retry", 3), ("work", 3)])


@differs("dead-letter-failures", "last-death-headers", "death-field-order", "death-order")
def another_reason_in_the_same_queue_is_another_entry(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="other", max_length=1)
    ch.queue("other", dead_letter_exchange="", dead_letter_routing_key="work")
    ch.publish("work", "body")
    ch.reject(ch.get("work"))
    ch.reject(ch.get("other", wait=True))
    ch.await_count("work", 1)
    ch.publish("work", "displaces it")
    ch.get("other", wait=True)
    deaths = [(death["queue"], death["reason"]) for death in ch.last_headers()["x-death"]]
    by_recency = [("work", "maxlen"), ("other", "rejected"), ("work", "rejected")]
    scene.demand("deaths by recency", holds=deaths == by_recency)


@differs("dead-letter-failures", "last-death-headers")
def carbon_copies_are_routed_and_remembered(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("dlx")
    for key in ("one", "two", "three"):
        ch.queue(f"dead-{key}")
        ch.bind(f"dead-{key}", "dlx", key)
        ch.queue(key, dead_letter_exchange="dlx")
    ch.publish("one", "body", headers={"CC": ["two"], "BCC": ["three"]})
    for key in ("one", "two", "three"):
        ch.get(key)
    ch.reject(1)
    for key in ("one", "two", "three"):
        ch.get(f"dead-{key}", wait=True)


def carbon_copies_are_delivered_with_their_header_and_blind_ones_without(scene: Scene) -> None:
    ch = scene.channel()
    for key in ("one", "two", "three"):
        ch.queue(key)
    ch.publish("one", "body", headers={"CC": ["two", "two", "one"], "BCC": ["three"], "other": "stays"})
    for key in ("one", "two", "three"):
        ch.get(key)
        ch.get(key)


def a_carbon_copy_header_that_is_no_list_closes_the_channel(scene: Scene) -> None:
    wire = scene.connect()
    for headers in ({"CC": "two"}, {"BCC": "two"}, {"CC": [1]}):
        ch = wire.channel()
        ch.queue("one")
        ch.publish("one", "body", headers=headers)


@differs("dead-letter-failures", "last-death-headers", "carbon-copy-of-the-dead")
def with_a_dead_letter_routing_key_carbon_copies_are_not_routed_again(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("two")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.publish("work", "body", headers={"CC": ["two"]})
    ch.get("two")
    ch.reject(ch.get("work"))
    ch.get("dead", wait=True)
    scene.demand("the CC header is kept", holds="CC" in ch.last_headers())
    ch.count("two")


@differs("dead-letter-failures", "last-death-headers", "death-field-order")
def an_expiration_that_had_not_run_out_is_remembered_and_removed(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.publish("work", "body", expiration="60000")
    ch.reject(ch.get("work"))
    ch.get("dead", wait=True)


@differs("last-death-headers", "death-field-order")
def an_expired_message_remembers_its_expiration(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.publish("work", "body", expiration="30")
    ch.get("dead", wait=True)


@differs("last-death-headers", "death-field-order")
def an_expiration_of_zero_is_remembered_too(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.publish("work", "body", expiration="0")
    ch.get("dead", wait=True)


@differs("last-death-headers")
def expiry_by_the_queue_alone_leaves_no_original_expiration(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead", message_ttl=30)
    ch.publish("work", "body")
    ch.get("dead", wait=True)


@differs("dead-letter-failures", "last-death-headers", "death-field-order")
def the_original_expiration_of_the_first_death_is_kept_when_deaths_are_counted(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="retry")
    ch.queue("retry", dead_letter_exchange="", dead_letter_routing_key="work", message_ttl=20)
    ch.publish("work", "body", expiration="60000")
    ch.reject(ch.get("work"))
    ch.reject(ch.get("work", wait=True))
    ch.get("work", wait=True)


@differs("last-death-headers")
def a_full_queue_gives_up_its_oldest_message(scene: Scene) -> None:
    ch = scene.channel()
    _dead_letter_queue(ch)
    ch.queue("work", dead_letter_exchange="dlx", max_length=1)
    ch.publish("work", "first")
    ch.publish("work", "second")
    ch.get("dead", wait=True)
    ch.get("work")


@differs("dead-letter-failures", "last-death-headers", "death-field-order", "client-sent-death-headers")
def death_headers_of_the_client_pass_through_and_are_replaced_at_the_first_real_death(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    old = {"count": 9, "reason": "rejected", "queue": "elsewhere", "exchange": "", "routing-keys": ["x"]}
    ch.publish("work", "body", headers={"x-death": [old]})
    ch.reject(ch.get("work"))
    ch.get("dead", wait=True)
    scene.demand("one fresh death", holds=len(ch.last_headers()["x-death"]) == 1)
    scene.demand("a first death", holds=ch.last_headers().get("x-first-death-queue") == "work")


@differs("dead-letter-failures", "last-death-headers", "death-field-order", "client-sent-death-headers")
def a_death_header_of_the_client_that_is_no_list_does_no_harm(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.publish("work", "body", headers={"x-death": "nonsense"})
    ch.reject(ch.get("work"))
    ch.get("dead", wait=True)


@differs("dead-letter-failures", "last-death-headers", "death-field-order", "client-sent-death-headers")
def first_death_headers_of_the_client(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.publish("work", "body", headers={"x-first-death-queue": "mine", "x-first-death-reason": "mine"})
    ch.reject(ch.get("work"))
    ch.get("dead", wait=True)
    scene.demand("the broker's word", holds=ch.last_headers().get("x-first-death-queue") == "work")


def a_dead_letter_exchange_that_is_missing_at_the_moment_of_death_loses_the_message(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", dead_letter_exchange="missing")
    ch.publish("work", "lost")
    ch.reject(ch.get("work"))
    ch.count("work")


@differs("dead-letter-failures", "last-death-headers")
def a_dead_letter_exchange_is_looked_up_at_each_death(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", dead_letter_exchange="dlx")
    ch.publish("work", "lost")
    ch.publish("work", "kept")
    ch.reject(ch.get("work"))
    ch.count("work")
    _dead_letter_queue(ch)
    ch.reject(ch.get("work"))
    ch.get("dead", wait=True)
    ch.get("dead")


def an_unroutable_dead_letter_is_lost(scene: Scene) -> None:
    ch = scene.channel()
    ch.exchange("dlx")
    ch.queue("work", dead_letter_exchange="dlx")
    ch.publish("work", "lost", mandatory=True)
    ch.reject(ch.get("work"))
    ch.get("work")


@differs("dead-letter-failures", "last-death-headers")
def an_unroutable_dead_letter_goes_to_the_alternate_exchange_of_its_dlx(scene: Scene) -> None:
    ch = scene.channel()
    _dead_letter_queue(ch, "unrouted", "alternate")
    ch.exchange("dlx", alternate_exchange="alternate")
    ch.queue("work", dead_letter_exchange="dlx")
    ch.publish("work", "body")
    ch.reject(ch.get("work"))
    ch.get("unrouted", wait=True)


@differs("last-death-headers")
def several_rejections_at_once_arrive_in_the_order_of_their_delivery(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.consume("dead", "watcher", no_ack=True)
    for body in ("1", "2", "3", "4"):
        ch.publish("work", body)
    tags = [ch.get("work") for _ in range(4)]
    ch.nack(tags[-1], multiple=True)
    ch.deliveries(4)


@differs("last-death-headers")
def tag_zero_with_multiple_rejects_everything_that_is_open(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.consume("dead", "watcher", no_ack=True)
    ch.publish("work", "1")
    ch.publish("work", "2")
    ch.get("work")
    ch.get("work")
    ch.nack(0, multiple=True)
    ch.deliveries(2)


def purging_and_deleting_a_queue_dead_letters_nothing(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.publish("work", "1")
    ch.publish("work", "2")
    ch.purge("work")
    ch.publish("work", "3")
    ch.delete("work")
    ch.count("dead")


def a_queue_that_expires_dead_letters_nothing(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead", expires=50)
    ch.publish("work", "lost")
    ch.pass_time(500)  # a queue goes a little while after its time
    ch.count("dead")
    ch.count("work")


# --- Cycles ---------------------------------------------------------------------------------------------


def a_message_that_expires_into_its_own_queue_is_dropped(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="work", message_ttl=20)
    ch.publish("work", "body")
    ch.pass_time(50)
    ch.get("work")


def a_message_pushed_out_into_its_own_queue_is_dropped(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="work", max_length=1)
    ch.publish("work", "first")
    ch.publish("work", "second")
    ch.get("work")
    ch.get("work")


@differs("dead-letter-failures", "last-death-headers", "death-field-order")
def a_message_rejected_into_its_own_queue_comes_back(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="work")
    ch.publish("work", "body")
    ch.reject(ch.get("work"))
    ch.reject(ch.get("work", wait=True))
    ch.get("work", wait=True)


def a_cycle_of_two_queues_without_a_rejection_is_dropped(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("a", dead_letter_exchange="", dead_letter_routing_key="b", message_ttl=20)
    ch.queue("b", dead_letter_exchange="", dead_letter_routing_key="a", message_ttl=20)
    ch.publish("a", "body")
    ch.pass_time(100)
    ch.get("a")
    ch.get("b")


@differs("dead-letter-failures", "death-cycles")
def a_cycle_with_a_rejection_goes_round(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("a", dead_letter_exchange="", dead_letter_routing_key="b")
    ch.queue("b", dead_letter_exchange="", dead_letter_routing_key="c", message_ttl=20)
    ch.queue("c", dead_letter_exchange="", dead_letter_routing_key="a", message_ttl=20)
    ch.publish("a", "body")
    ch.reject(ch.get("a"))
    ch.reject(ch.get("a", wait=True))
    ch.get("a", wait=True)


@differs("dead-letter-failures", "death-cycles")
def a_rejection_further_back_than_the_last_death_here_does_not_save_from_the_cycle(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("start", dead_letter_exchange="", dead_letter_routing_key="a")
    ch.queue("a", dead_letter_exchange="", dead_letter_routing_key="b", message_ttl=20)
    ch.queue("b", dead_letter_exchange="both", message_ttl=20)
    ch.exchange("both", "fanout")
    ch.queue("end")
    ch.bind("a", "both")
    ch.bind("end", "both")
    ch.publish("start", "body")
    ch.reject(ch.get("start"))
    ch.get("end", wait=True)
    ch.pass_time(100)
    ch.get("end")
    scene.demand("the cycle of a and b is broken", holds=ch.last is None)


@differs("last-death-headers")
def a_dead_letter_queue_bound_to_its_own_dlx_does_not_keep_a_second_queue_from_its_copy(
    scene: Scene,
) -> None:
    ch = scene.channel()
    ch.exchange("dlx", "fanout")
    ch.queue("dead", dead_letter_exchange="dlx", message_ttl=100)
    ch.queue("second")
    ch.bind("dead", "dlx")
    ch.bind("second", "dlx")
    ch.publish("", "body", "dlx")
    ch.get("second")
    ch.get("second", wait=True)
    ch.get("second")
    ch.count("dead")


@differs("dead-letter-failures", "last-death-headers")
def a_dead_letter_is_redelivered_after_a_failure_and_not_after_a_nack(scene: Scene) -> None:
    ch = scene.channel()
    _dead_letter_queue(ch)
    ch.queue("work", dead_letter_exchange="dlx")
    for body, how in (("rejected", ch.reject), ("nacked", ch.nack)):
        ch.publish("work", body)
        how(ch.get("work", wait=True))
        ch.ack(ch.get("dead", wait=True))
    ch.publish("work", "failed before")
    ch.reject(ch.get("work", wait=True), requeue=True)
    ch.nack(ch.get("work", wait=True))
    ch.ack(ch.get("dead", wait=True))


@differs("dead-letter-failures", "last-death-headers")
def a_waiting_consumer_of_a_classic_queue_does_not_see_a_failure_before_it_was_requeued(scene: Scene) -> None:
    ch = scene.channel()
    _dead_letter_queue(ch)
    ch.queue("work", dead_letter_exchange="dlx")
    ch.consume("dead", "tag")
    ch.publish("work", "body")
    ch.reject(ch.get("work", wait=True))
    [tag] = ch.deliveries(1)
    ch.nack(tag, requeue=True)
    ch.deliveries(1)


@differs("dead-letter-failures", "last-death-headers", "death-field-order")
def a_closed_channel_is_a_failure(scene: Scene) -> None:
    ch = scene.channel()
    _dead_letter_queue(ch)
    ch.queue("work", dead_letter_exchange="dlx", message_ttl=400)
    other = scene.channel()
    ch.publish("work", "body")
    other.get("work", wait=True)
    other.close()
    ch.get("dead", wait=True)


@differs("header-duplicates", "last-death-headers")
def headers_are_sorted_by_name_and_the_first_of_a_name_is_kept(scene: Scene) -> None:
    ch = scene.channel()
    _dead_letter_queue(ch)
    ch.queue("work", dead_letter_exchange="dlx")
    fields = {b"b": b"1", b"a": b"2", "ä".encode(): b"3", b"B": b"4"}
    table = b"".join(_text_field(name, value) for name, value in fields.items())
    table += _text_field(b"b", b"5") + _text_field(b"a", b"6")
    properties = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    ch.publish_raw("work", properties, "body")
    ch.nack(ch.get("work", wait=True))
    ch.get("dead", wait=True)
    ch.publish_raw("nowhere", properties, "body", mandatory=True, wait=False)
    ch.arrivals(1)


@differs("unsigned-headers")
def unsigned_numbers_are_kept(scene: Scene) -> None:
    ch = scene.channel()
    _dead_letter_queue(ch)
    ch.queue("work", dead_letter_exchange="dlx")
    value = (1 << 63) + 1
    table = b"\x05largeL" + value.to_bytes(8, "big")
    ch.publish_raw("work", b"\x20\x00" + len(table).to_bytes(4, "big") + table, "body")
    ch.reject(ch.get("work", wait=True))
    ch.get("dead", wait=True)
    scene.demand("the value is as it was sent", holds=ch.last_headers().get("large") == value)


def _text_field(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + b"S" + len(value).to_bytes(4, "big") + value
