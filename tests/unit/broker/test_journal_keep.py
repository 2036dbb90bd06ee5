"""What a broker knows after a restart: everything durable, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from redrive.amqp import methods as m
from redrive.amqp.content import Content
from redrive.amqp.properties import BasicProperties, encode_properties
from redrive.broker.journal_keep import JournalKeep
from redrive.broker.policies import Policy
from tests.unit.broker.harness import Peer, World

PERSISTENT = encode_properties(BasicProperties(delivery_mode=2))


class Durable(World):
    """A broker with a journal; `restart` makes it anew from what is on disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.journal = JournalKeep(directory)
        super().__init__(keep=self.journal)
        self.journal.flush()

    def work(self) -> None:
        super().work()
        if self.journal.last_position() > self.journal.durable_position():  # as the server asks
            self.journal.flush()
        self.journal.tidy()
        self.broker.confirm()
        for peer in self.clients:
            peer.listen()

    def restart(self, *, orderly: bool) -> None:
        if orderly:
            for peer in self.clients:
                peer.session.gone(self.now)
            self.work()
            self.journal.close()
        else:
            self.journal.journal.close()
        self.clients.clear()
        self.journal = JournalKeep(self.directory)
        self.broker = type(self.broker)(keep=self.journal)
        self.journal.restore(self.broker, self.now)
        self.work()


@pytest.fixture
def world(tmp_path: Path) -> Durable:
    return Durable(tmp_path / "data")


def fill(client: Peer, queue: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        client.publish(queue, body, delivery_mode=2, **properties)


@pytest.mark.parametrize("orderly", [True, False])
def test_durable_queues_bindings_and_persistent_messages_are_there_again(
    world: Durable, orderly: bool
) -> None:
    client = world.client()
    client.call(m.ExchangeDeclare("x", "topic", durable=True), m.ExchangeDeclareOk)
    client.declare("q", durable=True, x_max_length=10)
    client.call(m.QueueBind("q", "x", "a.*", arguments={"n": 1}), m.QueueBindOk)
    fill(client, "q", b"1", b"2")
    client.publish("q", b"transient")
    world.restart(orderly=orderly)
    client = world.client()
    client.publish("a.b", b"3", "x")
    assert client.bodies("q") == [b"1", b"2", b"3"]
    assert world.broker.vhosts["/"].queues["q"].options.max_length == 10


@pytest.mark.parametrize("orderly", [True, False])
def test_a_quorum_queue_keeps_transient_messages_too_as_rabbitmqs_does(world: Durable, orderly: bool) -> None:
    client = world.client()
    client.call(m.ExchangeDeclare("x", "fanout", durable=True), m.ExchangeDeclareOk)
    for name, kind in (("one", "quorum"), ("two", "quorum"), ("classic", "classic")):
        client.declare(name, durable=True, x_queue_type=kind)
        client.call(m.QueueBind(name, "x", ""), m.QueueBindOk)
    client.publish("", b"transient", "x")
    client.publish("one", b"alone")
    world.restart(orderly=orderly)
    client = world.client()
    assert client.bodies("one") == [b"transient", b"alone"]
    assert client.bodies("two") == [b"transient"]
    assert client.bodies("classic") == []
    world.restart(orderly=orderly)
    assert world.client().bodies("one") == []


def test_what_was_settled_purged_or_deleted_stays_gone(world: Durable) -> None:
    client = world.client()
    for name in ("acked", "purged", "deleted"):
        client.declare(name, durable=True)
        fill(client, name, b"1")
    client.get("acked")
    client.call(m.QueuePurge("purged"), m.QueuePurgeOk)
    client.call(m.QueueDelete("deleted"), m.QueueDeleteOk)
    world.restart(orderly=False)
    client = world.client()
    assert (client.depth("acked"), client.depth("purged")) == (0, 0)
    assert "deleted" not in world.broker.vhosts["/"].queues


def test_a_dead_letter_goes_on_counting_its_deaths_after_a_restart(world: Durable) -> None:
    client = world.client()
    client.declare("q", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    fill(client, "q", b"1")
    for count in (1, 2, 3):
        got = client.get("q", no_ack=False)
        assert got is not None
        client.send(m.BasicReject(got[0].delivery_tag, False), 1)
        world.restart(orderly=count % 2 == 0)
        client = world.client()
    got = client.get("q")
    assert got is not None
    assert [death["count"] for death in client.deaths(got[1])] == [3]


def test_priorities_and_times_to_live_are_kept(world: Durable) -> None:
    client = world.client()
    client.declare("urgent", durable=True, x_max_priority=9)
    for priority in (1, 5, 3):
        fill(client, "urgent", b"%d" % priority, priority=priority)
    client.declare("short", durable=True)
    fill(client, "short", b"gone soon", expiration="100")
    world.restart(orderly=False)
    world.advance(100)
    client = world.client()
    assert client.bodies("urgent") == [b"5", b"3", b"1"]
    assert client.depth("short") == 0


def test_a_message_in_several_queues_is_there_in_each(world: Durable) -> None:
    client = world.client()
    client.call(m.ExchangeDeclare("all", "fanout", durable=True), m.ExchangeDeclareOk)
    for name in ("a", "b", "c"):
        client.declare(name, durable=True)
        client.call(m.QueueBind(name, "all"), m.QueueBindOk)
    client.publish("", b"1", "all", delivery_mode=2)
    client.get("b")
    world.restart(orderly=False)
    client = world.client()
    assert [client.bodies(name) for name in ("a", "b", "c")] == [[b"1"], [], [b"1"]]


def test_queue_with_an_argument_that_is_refused_by_now_is_restored_without_it(world: Durable) -> None:
    client = world.client()
    client.declare("q", durable=True)
    fill(client, "q", b"1")
    queue = world.broker.vhosts["/"].queues["q"]
    queue.arguments["x-queue-master-locator"] = "min-masters"
    world.journal.queue("/", queue)
    world.restart(orderly=True)
    client = world.client()
    client.declare("q", durable=True)
    assert client.bodies("q") == [b"1"]


def test_users_vhosts_and_policies_are_kept_and_a_deleted_vhost_leaves_nothing(world: Durable) -> None:
    broker = world.broker
    broker.add_vhost("other").metadata["description"] = "for tests"
    broker.vhost_changed(broker.vhosts["other"])
    broker.users.add("ann", "secret")
    broker.users.set_permission("ann", "other", ".*", ".*", ".*")
    broker.users_changed()
    for name in ("other", "gone"):
        vhost = broker.add_vhost(name)
        vhost.policies.put(Policy(name, "ttl", ".*", "queues", 0, {"message-ttl": 5}))
        vhost.policies_changed(world.now)
    broker.delete_vhost("gone")
    world.work()
    world.restart(orderly=False)
    client = world.client(user="ann", password="secret", vhost="other")
    client.declare("q")
    assert world.broker.vhosts["other"].queues["q"].options.message_ttl == 5
    assert world.broker.vhosts["other"].metadata["description"] == "for tests"
    assert set(world.broker.vhosts) == {"/", "other"}


def test_only_what_may_have_been_delivered_is_a_redelivery(world: Durable) -> None:
    client = world.client()
    client.declare("q", durable=True)
    fill(client, "q", b"1", b"2")
    client.get("q", no_ack=False)
    world.restart(orderly=True)
    client = world.client()
    first, second = client.get("q", no_ack=False), client.get("q", no_ack=False)
    assert first is not None
    assert second is not None
    assert (first[0].redelivered, second[0].redelivered) == (True, False)
    world.restart(orderly=False)
    third = world.client().get("q")
    assert third is not None
    assert third[0].redelivered


def counts_of(client: Peer, queue: str) -> dict[bytes, tuple[bool, object, object]]:
    """What is in a queue, in order: body → redelivered, x-acquired-count, x-delivery-count."""
    found = {}
    while (got := client.get(queue)) is not None:
        headers = got[1].decoded().headers or {}
        found[got[1].body] = (
            got[0].redelivered,
            headers.get("x-acquired-count"),
            headers.get("x-delivery-count"),
        )
    return found


def test_a_killed_broker_counts_deliveries_under_way_in_quorum_queues_as_failures(world: Durable) -> None:
    # Given one message never delivered, others returned by nack and by reject, and two under way, one of them again
    client = world.client()
    client.declare("q", durable=True, x_queue_type="quorum")
    client.publish("q", b"ready", priority=1)
    fill(client, "q", b"nacked", b"rejected", b"out", b"out again")
    tags = {
        got[1].body: got[0].delivery_tag for got in (client.get("q", no_ack=False) for _ in range(4)) if got
    }
    client.send(m.BasicReject(tags[b"out again"], True), 1)
    again = client.get("q", no_ack=False)
    assert again is not None
    assert again[1].body == b"out again"
    client.send(m.BasicReject(tags[b"rejected"], True), 1)
    client.send(m.BasicNack(tags[b"nacked"], False, True), 1)
    # When the broker is killed
    world.restart(orderly=False)
    # Then the returned ones come first in the order of their return, then the failed ones, as in RabbitMQ 4.3
    found = counts_of(world.client(), "q")
    assert list(found.items()) == [
        (b"rejected", (True, 1, 1)),
        (b"nacked", (True, 1, None)),
        (b"out", (True, 1, 1)),
        (b"out again", (True, 2, 2)),
        (b"ready", (False, None, None)),
    ]


def test_a_killed_broker_dead_letters_what_exceeds_the_delivery_limit(world: Durable) -> None:
    client = world.client()
    client.declare("over", durable=True, x_queue_type="quorum")
    client.declare(
        "q",
        durable=True,
        x_queue_type="quorum",
        x_delivery_limit=0,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="over",
    )
    fill(client, "q", b"lost")
    client.get("q", no_ack=False)
    world.restart(orderly=False)
    assert counts_of(world.client(), "over") == {b"lost": (True, 1, 1)}


def test_a_failure_by_a_kill_is_not_counted_again_by_the_next_kill(world: Durable) -> None:
    client = world.client()
    client.declare("q", durable=True, x_queue_type="quorum")
    fill(client, "q", b"1")
    client.get("q", no_ack=False)
    world.restart(orderly=False)
    world.restart(orderly=False)
    assert counts_of(world.client(), "q") == {b"1": (True, 1, 1)}


def test_deliveries_to_consumers_in_a_row_are_one_record_of_the_journal(world: Durable) -> None:
    client = world.client()
    client.declare("q", durable=True, x_queue_type="quorum")
    fill(client, "q", *(b"%d" % number for number in range(500)))
    before = world.journal.last_position()
    client.call(m.BasicConsume("q", "tag"), m.BasicConsumeOk)
    assert world.journal.last_position() == before + 1
    client.send(m.BasicAck(400, True), 1)
    world.restart(orderly=False)
    found = counts_of(world.client(), "q")
    assert found == {b"%d" % number: (True, 1, 1) for number in range(400, 500)}


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_the_failures_of_a_dead_letter_survive_a_restart(world: Durable, kind: str, *, orderly: bool) -> None:
    client = world.client()
    client.declare("last", durable=True, x_queue_type="quorum")
    client.declare(
        "dead",
        durable=True,
        x_queue_type=kind,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="last",
    )
    client.declare("q", durable=True, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    fill(client, "q", b"1")
    for requeue in (True, True, False):
        got = client.get("q", no_ack=False)
        assert got is not None
        client.send(m.BasicReject(got[0].delivery_tag, requeue), 1)
    world.restart(orderly=orderly)
    client = world.client()
    got = client.get("dead", no_ack=False)
    assert got is not None
    client.send(m.BasicNack(got[0].delivery_tag, False, False), 1)
    assert counts_of(client, "last") == {b"1": (True, 3, 3)}


def test_priorities_and_byte_limits_of_quorum_queues_survive_a_restart(world: Durable) -> None:
    client = world.client()
    client.declare("q", durable=True, x_queue_type="quorum", x_max_length_bytes=1000)
    for priority in (None, 3, 40):
        client.publish("q", b"%d" % (priority or 4) * 50, priority=priority)
    size = world.broker.vhosts["/"].queues["q"].bytes_ready
    world.restart(orderly=False)
    assert world.broker.vhosts["/"].queues["q"].bytes_ready == size
    assert list(counts_of(world.client(), "q")) == [b"40" * 50, b"4" * 50, b"3" * 50]


def test_bodies_of_deep_queues_leave_memory_and_come_back(world: Durable) -> None:
    client = world.client()
    client.declare("deep", durable=True)
    fill(client, "deep", *(b"%d" % number for number in range(2200)))
    entries = list(world.broker.vhosts["/"].queues["deep"].line)
    assert sum(entry.message.body is None for entry in entries) >= 190
    assert world.broker.keep.paged_bytes() > 0
    assert client.bodies("deep") == [b"%d" % number for number in range(2200)]
    assert world.broker.keep.paged_bytes() == 0


def test_confirms_wait_for_the_disk(tmp_path: Path) -> None:
    world = Durable(tmp_path / "data")
    client = world.client()
    client.declare("q", durable=True)
    client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
    client.session.receive(
        client.connection.send(m.BasicPublish("", "q"), 1, Content(PERSISTENT, b"1")), world.now
    )
    World.work(world)  # without a flush
    assert not client.sees(m.BasicAck)
    world.work()
    assert client.take(m.BasicAck).delivery_tag == 1
