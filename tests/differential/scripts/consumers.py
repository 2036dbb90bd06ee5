"""Who gets a message, how many at a time, and what becomes of what was not acknowledged? (B1)

The rule: deliveries are waited for one consumer at a time, because between consumers they have no order.
"""

from collections.abc import Callable

from redrive.amqp import methods as m
from redrive.amqp.methods import Method
from tests.differential.client import Channel, Scene
from tests.differential.differences import differs


def _fill(ch: Channel, queue: str, *bodies: str) -> None:
    for body in bodies:
        ch.publish(queue, body)


def a_consumer_gets_what_is_there_and_what_comes(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    _fill(ch, "work", "1", "2")
    ch.consume("work", "tag")
    ch.deliveries(2)
    ch.publish("work", "3")
    for tag in ch.deliveries(1):
        ch.ack(tag, multiple=True)
    ch.cancel("tag")
    ch.recover()
    ch.get("work")


def a_consumer_without_a_tag_gets_one(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    tag = ch.consume("work")
    other = ch.consume("work")
    ch.cancel(tag)
    ch.publish("work", "body")
    ch.deliveries(1, other)


def a_tag_is_taken_on_its_channel_only(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("work")
    ch.consume("work", "tag")
    wire.channel().consume("work", "tag")
    ch.consume("work", "tag")
    wire.see_end("a tag used twice")


def cancelling_an_unknown_consumer_is_no_error(scene: Scene) -> None:
    ch = scene.channel()
    ch.cancel("unknown")


def messages_of_a_cancelled_consumer_stay_out_until_they_are_settled(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    _fill(ch, "work", "1", "2")
    ch.consume("work", "tag")
    first, second = ch.deliveries(2)
    ch.cancel("tag")
    ch.get("work")
    ch.ack(first)
    ch.reject(second, requeue=True)
    ch.get("work")
    ch.get("work")


def without_acknowledgements_messages_are_gone_when_they_are_sent(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    _fill(ch, "work", "1", "2")
    ch.consume("work", "tag", no_ack=True)
    ch.deliveries(2)
    ch.cancel("tag")
    ch.recover()
    ch.get("work")


def get_tells_how_many_are_left(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    _fill(ch, "work", "1", "2", "3")
    ch.get("work")
    ch.get("work", no_ack=True)
    ch.get("work")
    ch.get("work")


def what_is_given_back_comes_again_in_its_old_place_and_is_marked(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    _fill(ch, "work", "1", "2", "3")
    first = ch.get("work")
    second = ch.get("work")
    ch.reject(second, requeue=True)
    ch.nack(first, requeue=True)
    for _ in range(4):
        ch.get("work")


def recover_gives_back_everything_in_order(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    _fill(ch, "work", "1", "2", "3")
    for _ in range(3):
        ch.get("work")
    ch.ack(2)
    ch.recover()
    ch.get("work")
    ch.get("work")
    ch.get("work")


def recover_without_requeue_is_not_implemented(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().recover(requeue=False)
    wire.see_end("recover without requeue")


def closing_a_channel_gives_back_what_it_had(scene: Scene) -> None:
    wire = scene.connect()
    ch, other = wire.channel(), wire.channel()
    ch.queue("work")
    _fill(ch, "work", "1", "2")
    ch.get("work")
    ch.consume("work", "tag")
    ch.deliveries(1)
    ch.close()
    other.await_count("work", 2)
    other.get("work")
    other.get("work")


def losing_a_connection_gives_back_what_it_had(scene: Scene) -> None:
    lost, other = scene.connect(), scene.channel()
    ch = lost.channel()
    ch.queue("work")
    _fill(ch, "work", "1", "2")
    ch.get("work")
    lost.drop()
    other.await_count("work", 2)
    other.get("work")
    other.get("work")


def an_unknown_delivery_tag_closes_the_channel(scene: Scene) -> None:
    wire = scene.connect()
    for settlement in (
        m.BasicAck(1),
        m.BasicAck(7),
        m.BasicAck(7, multiple=True),
        m.BasicAck(0),
        m.BasicReject(7),
        m.BasicNack(7),
        m.BasicNack(7, multiple=True),
    ):
        ch = wire.channel()
        ch.send(settlement)
        ch.see_close(f"{settlement}")
    ch = wire.channel()
    ch.ack(0, multiple=True)
    ch.nack(0, multiple=True)
    ch.qos(0)


def settling_twice_closes_the_channel(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.publish("work", "body")
    tag = ch.get("work")
    ch.ack(tag)
    ch.ack(tag)
    ch.see_close("second acknowledgement")


def a_no_ack_delivery_cannot_be_acknowledged(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.publish("work", "body")
    ch.ack(ch.get("work", no_ack=True))
    ch.see_close("acknowledging a no-ack delivery")


def multiple_acknowledges_up_to_the_tag(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    _fill(ch, "work", "1", "2", "3")
    for _ in range(3):
        ch.get("work")
    ch.ack(2, multiple=True)
    ch.recover()
    ch.get("work")
    ch.get("work")


# --- Prefetch -----------------------------------------------------------------------------------------


def a_prefetch_holds_for_each_new_consumer(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("one")
    ch.queue("two")
    _fill(ch, "one", "1", "2", "3")
    _fill(ch, "two", "4", "5", "6")
    ch.qos(1)
    ch.consume("one", "narrow")
    ch.qos(2)
    ch.consume("two", "wide")
    tags = ch.deliveries(1, "narrow")
    ch.deliveries(2, "wide")
    ch.no_deliveries("one")
    ch.no_deliveries("two")
    ch.ack(tags[0])
    ch.deliveries(1, "narrow")
    ch.no_deliveries("one")


@differs("global-qos")
def a_global_prefetch_holds_for_each_new_consumer(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("one")
    ch.queue("two")
    ch.queue("three", durable=True, queue_type="quorum")
    _fill(ch, "one", "1", "2", "3")
    _fill(ch, "two", "4", "5", "6")
    _fill(ch, "three", "7", "8", "9")
    ch.consume("one", "unlimited")
    ch.deliveries(3, "unlimited")
    ch.qos(2, for_channel=True)
    ch.consume("two", "limited")
    tags = ch.deliveries(2, "limited")
    ch.no_deliveries("two")
    ch.consume("three", "quorum")
    ch.deliveries(2, "quorum")
    ch.no_deliveries("three")
    ch.qos(0, for_channel=True)
    ch.no_deliveries("two")
    ch.ack(tags[0])
    ch.deliveries(1, "limited")
    _fill(ch, "one", "10")
    ch.deliveries(1, "unlimited")


def a_prefetch_does_not_hold_for_get_or_without_acknowledgements(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    _fill(ch, "work", "1", "2", "3", "4")
    ch.qos(1)
    ch.get("work")
    ch.get("work")
    ch.consume("work", "tag", no_ack=True)
    ch.deliveries(2)


def a_prefetch_counts_what_is_not_settled_even_after_a_requeue(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    _fill(ch, "work", "1", "2")
    ch.qos(1)
    ch.consume("work", "tag")
    ch.reject(ch.deliveries(1)[0], requeue=True)
    ch.ack(ch.deliveries(1)[0])
    ch.deliveries(1)


def a_prefetch_by_size_is_not_implemented(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().qos(1, size=10)
    wire.see_end("prefetch size")


# --- Several consumers --------------------------------------------------------------------------------


def consumers_take_turns(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.consume("work", "a", no_ack=True)
    ch.consume("work", "b", no_ack=True)
    _fill(ch, "work", "1", "2", "3", "4")
    ch.deliveries(4)


def a_consumer_of_higher_priority_goes_first(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work")
    ch.qos(1)
    ch.consume("work", "low", x_priority=-1)
    ch.consume("work", "high", x_priority=5)
    ch.consume("work", "none")
    _fill(ch, "work", "1", "2", "3", "4")
    ch.deliveries(1, "high")
    ch.deliveries(1, "none")
    ch.deliveries(1, "low")
    ch.no_deliveries("work")


def a_consumer_priority_is_a_number(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("work")
    ch.consume("work", "tag", x_priority="high")


def an_exclusive_consumer_is_alone(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("work")
    ch.consume("work", "only", exclusive=True)
    wire.channel().consume("work", "second")
    wire.channel().consume("work", "second", exclusive=True)
    ch.cancel("only")
    ch.consume("work", "first")
    wire.channel().consume("work", "exclusive", exclusive=True)


def a_single_active_consumer_is_followed_by_the_next(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", single_active_consumer=True)
    ch.consume("work", "first", no_ack=True)
    ch.consume("work", "second", no_ack=True)
    _fill(ch, "work", "1", "2")
    ch.deliveries(2, "first")
    ch.cancel("first")
    ch.publish("work", "3")
    ch.deliveries(1, "second")
    ch.no_deliveries("work")


def a_single_active_consumer_keeps_its_place_when_its_prefetch_is_full(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("work", single_active_consumer=True)
    ch.qos(1)
    ch.consume("work", "first")
    ch.consume("work", "second")
    _fill(ch, "work", "1", "2")
    tag = ch.deliveries(1)[0]
    ch.no_deliveries("work")
    ch.ack(tag)
    ch.deliveries(1, "first")


def an_exclusive_consumer_is_no_single_active_consumer(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("work", single_active_consumer=True)
    ch.consume("work", "only", exclusive=True)


# --- The end of a queue -------------------------------------------------------------------------------


def a_consumer_is_told_when_its_queue_is_deleted(scene: Scene) -> None:
    wire = scene.connect()
    ch, other = wire.channel(), wire.channel()
    ch.queue("work")
    ch.consume("work", "tag")
    other.delete("work")
    ch.arrivals(1)
    ch.cancel("tag")


def a_client_that_did_not_ask_to_be_told_is_not(scene: Scene) -> None:
    wire = scene.connect(capabilities={})
    ch, other = wire.channel(), wire.channel()
    ch.queue("work")
    ch.consume("work", "tag")
    other.delete("work")
    other.qos(0)
    ch.qos(0)


def a_delivery_of_a_deleted_queue_can_still_be_settled(scene: Scene) -> None:
    wire = scene.connect()
    ch, other = wire.channel(), wire.channel()
    ch.queue("work")
    ch.publish("work", "body")
    tag = ch.get("work")
    other.delete("work")
    ch.ack(tag)
    ch.qos(0)


# --- Direct reply-to ----------------------------------------------------------------------------------


def an_answer_comes_back_without_a_queue(scene: Scene) -> None:
    asker, answerer = scene.channel(), scene.channel()
    answerer.queue("questions")
    asker.consume("amq.rabbitmq.reply-to", "answers", no_ack=True)
    asker.publish("questions", "question", reply_to="amq.rabbitmq.reply-to", correlation_id="1")
    answerer.get("questions", no_ack=True)
    answer_to = answerer.last_reply_to()
    answerer.publish(answer_to, "answer", correlation_id="1")
    asker.deliveries(1)
    answerer.queue(answer_to, passive=True)


def direct_reply_to_has_rules(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().consume("amq.rabbitmq.reply-to", "with acks")
    wire.channel().publish("questions", "no consumer", reply_to="amq.rabbitmq.reply-to")
    ch = wire.channel()
    ch.consume("amq.rabbitmq.reply-to", "one", no_ack=True)
    ch.consume("amq.rabbitmq.reply-to", "two", no_ack=True)
    ch = wire.channel()
    ch.queue("amq.rabbitmq.reply-to", passive=True)
    ch.cancel("one")
    ch.publish("amq.rabbitmq.reply-to.nobody", "lost", mandatory=True, wait=False)
    ch.arrivals(2)


@differs("reply-address-without-consumer")
def a_reply_address_without_a_consumer_does_not_exist(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("amq.rabbitmq.reply-to.nobody", passive=True)
    scene.demand("404", holds=ch.closed_by is not None and ch.closed_by.reply_code == 404)


def acknowledging_up_to_a_settled_delivery_closes_the_channel(scene: Scene) -> None:
    wire = scene.connect()
    methods: tuple[Callable[[int], Method], ...] = (
        lambda tag: m.BasicAck(tag, multiple=True),
        lambda tag: m.BasicNack(tag, multiple=True),
        lambda tag: m.BasicAck(tag + 100, multiple=True),
    )
    for settle in methods:
        ch = wire.channel()
        ch.queue("work")
        for body in ("1", "2", "3"):
            ch.publish("work", body)
        _, second, _ = (ch.get("work") for _ in range(3))
        ch.ack(second)
        ch.send(settle(second))
        ch.see_close("settled again")
        other = wire.channel()
        other.get("work", wait=True, no_ack=True)
        other.get("work", wait=True, no_ack=True)


def a_delivery_of_a_deleted_queue_does_not_die(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    for body in ("1", "2", "3"):
        ch.publish("work", body)
    first, second, _ = (ch.get("work") for _ in range(3))
    ch.delete("work")
    ch.reject(first)
    ch.nack(second)
    ch.recover()
    ch.pass_time(50)
    ch.count("dead")
