"""What may a user do? (B1; needs the management API)

The rule: everything is prepared by the run's own user; then somebody with fewer rights tries.
"""

from tests.differential.client import Scene
from tests.differential.differences import differs


def a_wrong_password_is_refused(scene: Scene) -> None:
    scene.connect(password="wrong")
    scene.connect(user="nobody-we-know")
    scene.connect(password="wrong", mechanism="AMQPLAIN")


def a_client_that_cannot_be_told_is_hung_up_on(scene: Scene) -> None:
    scene.connect(password="wrong", capabilities={})


def amqplain_is_understood(scene: Scene) -> None:
    scene.connect(mechanism="AMQPLAIN").is_alive()


def an_unknown_mechanism_is_refused(scene: Scene) -> None:
    scene.connect(mechanism="EXTERNAL")


def a_vhost_that_is_missing_is_refused(scene: Scene) -> None:
    scene.connect(vhost="no-such-vhost")
    scene.connect(vhost="")


def a_vhost_without_permissions_is_refused(scene: Scene) -> None:
    scene.connect(user=scene.stranger())


@differs("permission-texts")
def configure_is_needed_to_declare_and_delete(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("theirs")
    ch.exchange("theirs", "fanout")
    wire = scene.connect(user=scene.new_user(configure="^mine", write=".*", read=".*"))
    wire.channel().queue("mine")
    wire.channel().exchange("mine", "fanout")
    wire.channel().queue("theirs")
    wire.channel().queue("theirs", passive=True)
    wire.channel().queue()
    wire.channel().delete("theirs")
    wire.channel().exchange("theirs", "fanout")
    wire.channel().exchange("theirs", "fanout", passive=True)
    wire.channel().delete_exchange("theirs")
    wire.is_alive()


@differs("permission-texts")
def write_is_needed_to_publish_and_to_bind_a_queue(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("q")
    ch.queue("writable")
    ch.exchange("x", "fanout")
    wire = scene.connect(user=scene.new_user(configure=".*", write="^writable", read=".*"))
    wire.channel().publish("key", "body", "x")
    wire.channel().publish("q", "by the default exchange")
    wire.channel().bind("q", "x")
    wire.channel().bind("writable", "x")
    wire.channel().bind_exchange("x", "amq.fanout")
    wire.channel().get("q")


@differs("permission-texts")
def the_default_exchange_is_called_amq_default_in_permissions(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("q")
    wire = scene.connect(user=scene.new_user(write="^amq\\.default$", read=".*"))
    wire.channel().publish("q", "body")
    wire.channel().get("q")


@differs("permission-texts")
def read_is_needed_to_consume_get_purge_and_to_bind_to_an_exchange(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("q")
    ch.exchange("x", "fanout")
    wire = scene.connect(user=scene.new_user(configure=".*", write=".*", read="^readable"))
    wire.channel().get("q")
    wire.channel().consume("q", "tag")
    wire.channel().purge("q")
    wire.channel().bind("q", "x")
    wire.channel().unbind("q", "x")
    wire.channel().queue("q", passive=True)
    wire.channel().bind_exchange("amq.fanout", "x")


@differs("permission-texts")
def a_queue_with_a_dlx_needs_read_on_itself_and_write_on_the_dlx(scene: Scene) -> None:
    wire = scene.connect(user=scene.new_user(configure=".*", write="^dlx$", read="^readable"))
    wire.channel().queue("readable", dead_letter_exchange="dlx")
    wire.channel().queue("readable-too", dead_letter_exchange="other")
    wire.channel().queue("unreadable", dead_letter_exchange="dlx")
    wire.channel().queue("unreadable")


@differs("permission-texts")
def an_exchange_with_an_alternate_needs_read_on_itself_and_write_on_the_alternate(scene: Scene) -> None:
    wire = scene.connect(user=scene.new_user(configure=".*", write="^alternate$", read="^readable"))
    wire.channel().exchange("readable", "fanout", alternate_exchange="alternate")
    wire.channel().exchange("readable-too", "fanout", alternate_exchange="other")
    wire.channel().exchange("unreadable", "fanout", alternate_exchange="alternate")


def dead_lettering_needs_no_permission_at_the_moment_of_death(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("dead")
    ch.queue("work", dead_letter_exchange="", dead_letter_routing_key="dead")
    ch.publish("work", "body")
    other = scene.connect(user=scene.new_user(read="^work$")).channel()
    other.reject(other.get("work"))
    ch.await_count("dead", 1)


@differs("permission-texts")
def unbinding_needs_rights_even_where_nothing_is_bound(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("q")
    ch.exchange("x", "fanout")
    wire = scene.connect(user=scene.new_user(configure=".*", write="^mine", read="^mine"))
    for queue, exchange in (("q", "x"), ("q", "missing"), ("missing", "x"), ("missing", "missing")):
        wire.channel().unbind(queue, exchange)
        wire.channel().unbind_exchange(queue, exchange)
    wire.channel().unbind("mine", "x")
    wire.channel().unbind("mine", "mine")
    wire.channel().unbind_exchange("mine", "x")
    wire.channel().unbind_exchange("mine", "mine")


@differs("passive-declare-permission")
def a_passive_declare_needs_a_right(scene: Scene) -> None:
    ch = scene.channel()
    ch.queue("there")
    ch.exchange("there", "fanout")
    for rights in ({"configure": ".*"}, {"write": ".*"}, {"read": ".*"}, {"read": "^missing"}, {}):
        wire = scene.connect(user=scene.new_user(**rights))
        for name in ("there", "missing"):
            wire.channel().queue(name, passive=True)
            wire.channel().exchange(name, "fanout", passive=True)
        wire.channel().exchange("", passive=True)
