"""A turn is short whatever clients do: budgets, order, memory, and errors of the broker itself."""

import random
from typing import Any

import pytest

from redrive.amqp import methods as m
from redrive.amqp.codec import encode
from redrive.amqp.content import Content
from redrive.amqp.frames import PROTOCOL_HEADER, method_frame
from redrive.amqp.properties import BasicProperties, encode_properties
from redrive.broker import vhost as vhosts
from redrive.broker.keep import Keep
from redrive.broker.memory import MIN_MEMORY_LIMIT, default_memory_limit, find_trim, resident_bytes, shrink
from redrive.broker.message import ENTRY_COST
from redrive.broker.queue import Queue
from redrive.broker.session import METHOD_COST, Session
from tests.unit.broker.harness import Peer, World

PERSISTENT = encode_properties(BasicProperties(delivery_mode=2))


def fan_out(client: Peer, queues: int, **options: Any) -> list[str]:
    """An exchange `all` and queues that get everything published to it."""
    client.call(m.ExchangeDeclare("all", "fanout"), m.ExchangeDeclareOk)
    names = [f"q{number}" for number in range(queues)]
    for name in names:
        client.declare(name, **options)
        client.call(m.QueueBind(name, "all"), m.QueueBindOk)
    return names


def publishes(client: Peer, bodies: list[bytes], exchange: str = "all", key: str = "") -> bytes:
    """The octets of several publishes in one piece."""
    return b"".join(
        client.connection.send(m.BasicPublish(exchange, key), 1, Content(body=body)) for body in bodies
    )


def ready(world: World, name: str) -> int:
    return world.broker.vhosts["/"].queues[name].ready


# --- budgets -------------------------------------------------------------------------------------------------


def test_session_stops_at_the_budget_and_resumes_in_order() -> None:
    world = World()
    client = world.client()
    fan_out(client, 100)
    bodies = [b"%d" % number for number in range(10)]
    broker, session = world.broker, client.session

    broker.budget = broker.cost + 250 * ENTRY_COST
    session.receive(publishes(client, bodies), world.now)
    assert (ready(world, "q0"), session.has_backlog) == (3, True)
    session.receive(publishes(client, [b"last"]), world.now)
    assert ready(world, "q0") == 3, "what came later overtook the backlog"
    slices = 0
    while session.has_backlog:
        broker.budget = broker.cost + 100 * ENTRY_COST
        session.resume(world.now)
        slices += 1
    broker.budget = float("inf")

    assert 4 <= slices <= 9
    assert client.bodies("q99") == [*bodies, b"last"]


def test_session_keeps_what_comes_while_the_budget_is_used_up() -> None:
    world = World()
    client = world.client()
    fan_out(client, 1)
    world.broker.budget = world.broker.cost
    client.session.receive(publishes(client, [b"1"]), world.now)
    assert (ready(world, "q0"), client.session.has_backlog) == (0, True)
    world.broker.budget += 1
    client.session.resume(world.now)
    assert (ready(world, "q0"), client.session.has_backlog) == (1, False)


def test_session_that_is_closed_drops_its_backlog() -> None:
    world = World()
    client = world.client()
    fan_out(client, 10)
    world.broker.budget = world.broker.cost + ENTRY_COST
    client.session.receive(publishes(client, [b"1", b"2"]), world.now)
    world.broker.close(client.session, "test")
    client.session.resume(world.now)
    assert (ready(world, "q0"), client.session.has_backlog) == (1, False)


def test_confirms_cover_handled_publishes_only() -> None:
    world = World()
    client = world.client()
    fan_out(client, 10)
    client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
    world.broker.budget = world.broker.cost + 15 * ENTRY_COST
    client.say(publishes(client, [b"1", b"2", b"3"]))
    ack = client.take(m.BasicAck)
    assert (ack.delivery_tag, ack.multiple, client.inbox) == (2, True, [])
    world.broker.budget = float("inf")
    client.session.resume(world.now)
    world.work()
    assert client.take(m.BasicAck).delivery_tag == 3


def test_methods_and_acknowledgements_use_the_budget() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    world.broker.budget = world.broker.cost + 1
    declares = [client.connection.send(m.QueueDeclare(f"q{number}", nowait=True), 1) for number in range(9)]
    client.session.receive(b"".join(declares), world.now)
    assert client.session.has_backlog
    assert len(world.broker.vhosts["/"].queues) == 2


def test_handshake_in_one_piece_with_publishes_uses_the_budget() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    blind = Session(world.broker, "blind")
    start_ok = m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest")
    handshake = (start_ok, m.ConnectionTuneOk(2047, 131072, 0), m.ConnectionOpen("/"))
    octets = PROTOCOL_HEADER + b"".join(_frame(0, method) for method in handshake)
    octets += _frame(1, m.ChannelOpen()) + publishes(client, [b"x"] * 50, "", "q")
    world.broker.budget = world.broker.cost + 20 * METHOD_COST
    blind.receive(octets, world.now)
    assert blind.has_backlog
    assert 0 < ready(world, "q") < 50


def _frame(channel: int, method: m.Method) -> bytes:
    return method_frame(channel, encode(method))


# --- what is left for later ----------------------------------------------------------------------------------


def test_deliveries_of_one_turn_are_limited_over_all_queues() -> None:
    world = World()
    client = world.client()
    names = fan_out(client, 50)
    client.say(publishes(client, [b"x"] * 200))
    consumer = world.client()
    consumer.session.is_congested = True
    for name in names:
        consumer.call(m.BasicConsume(name, no_ack=True), m.BasicConsumeOk)
    consumer.session.is_congested = False
    for name in names:
        world.broker.mark(world.broker.vhosts["/"].queues[name])

    turns = 0
    more = True
    while more:
        before = sum(ready(world, name) for name in names)
        more = world.broker.work(world.now)
        assert before - sum(ready(world, name) for name in names) <= 2048 + 200
        turns += 1

    assert turns >= 4
    consumer.listen()
    assert len(list(consumer.all_of(m.BasicDeliver))) == 50 * 200


def test_copies_of_dead_letters_in_one_turn_are_limited() -> None:
    world = World()
    client = world.client()
    fan_out(client, 100)
    client.declare("work", x_dead_letter_exchange="all")
    client.say(publishes(client, [b"x"] * 100, "", "work"))
    consumer = world.client()
    consumer.call(m.BasicConsume("work"), m.BasicConsumeOk)
    consumer.session.receive(
        consumer.connection.send(m.BasicNack(0, multiple=True, requeue=False), 1), world.now
    )

    assert world.broker.work(world.now), "10,000 copies were made in one turn"
    assert 0 < ready(world, "q0") < 100
    world.work()
    assert ready(world, "q99") == 100


def test_large_messages_of_one_turn_are_limited_by_their_size() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    for _ in range(40):
        client.publish("q", bytes(1 << 20))
    consumer = world.client()
    octets = consumer.connection.send(m.BasicConsume("q", "c", no_ack=True), 1)
    consumer.session.receive(octets, world.now)
    assert world.broker.work(world.now)
    assert 28 <= ready(world, "q") < 40


def test_expired_messages_of_one_turn_are_limited() -> None:
    world = World()
    client = world.client()
    client.declare("q", x_message_ttl=1000)
    client.say(publishes(client, [b"x"] * 5000, "", "q"))
    world.now += 1000
    world.broker.tick(world.now)
    assert 0 < ready(world, "q") < 5000
    at = world.broker.next_timer
    assert at is not None
    assert at <= world.now
    world.broker.tick(world.now)
    world.broker.tick(world.now)
    assert ready(world, "q") == 0


# --- memory --------------------------------------------------------------------------------------------------


def test_entries_count_as_memory() -> None:
    world = World(memory_limit=100_000)
    client = world.client()
    names = fan_out(client, 50)
    for _ in range(8):
        client.publish("", b"", "all")
    assert client.take(m.ConnectionBlocked).reason == "low on memory"
    for name in names:
        client.call(m.QueuePurge(name), m.QueuePurgeOk)
    client.take(m.ConnectionUnblocked)


def test_shared_bodies_do_not_block_publishers_while_the_process_is_small() -> None:
    resident = [50_000]
    world = World(memory_limit=100_000, resident=lambda: resident[0])
    client = world.client()
    fan_out(client, 100)
    client.publish("", bytes(10_000), "all")
    assert not client.sees(m.ConnectionBlocked)
    resident[0] = 200_000
    client.publish("", bytes(10_000), "all")
    assert client.sees(m.ConnectionBlocked)


def test_memory_of_many_queues_is_checked_at_intervals_while_publishers_are_blocked() -> None:
    world = World(memory_limit=100_000)
    client = world.client()
    for number in range(500):
        client.declare(f"q{number}")
    client.publish("q0", bytes(200_000))
    client.take(m.ConnectionBlocked)
    client.call(m.QueuePurge("q0"), m.QueuePurgeOk)
    assert not client.sees(m.ConnectionUnblocked)
    assert world.broker.next_timer == world.now + 5
    world.advance(5)
    client.take(m.ConnectionUnblocked)
    assert world.broker.next_timer is None


def test_routes_do_not_keep_deleted_queues() -> None:
    world = World()
    client = world.client()
    names = fan_out(client, 10)
    client.publish("", b"x", "all")
    vhost = world.broker.vhosts["/"]
    assert vhost.routes
    for name in names:
        client.call(m.QueueDelete(name), m.QueueDeleteOk)
    assert not vhost.routes


def test_routes_are_limited_by_the_queues_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vhosts, "_MAX_ROUTE_QUEUES", 100)
    world = World()
    client = world.client()
    fan_out(client, 10)
    vhost = world.broker.vhosts["/"]
    for number in range(50):
        client.publish(f"key-{number}", b"x", "all")
        assert sum(len(route.queues) for route in vhost.routes.values()) <= 110
    assert ready(world, "q9") == 50


def test_table_of_unsettled_deliveries_is_small_again_after_a_flood() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.say(publishes(client, [b""] * 30_000, "", "q"))
    client.call(m.BasicConsume("q"), m.BasicConsumeOk)
    (channel,) = client.session.channels.values()
    assert len(channel.unacked) == 30_000
    client.send(m.BasicAck(0, multiple=True), 1)
    client.publish("q", b"kept")
    world.broker.release_memory()
    assert channel.unacked.__sizeof__() < 1000
    client.send(m.BasicAck(30_001), 1)
    assert not channel.unacked


def test_shrink_keeps_tables_that_are_small_or_full() -> None:
    small, full = {1: 1}, dict.fromkeys(range(50_000), 0)
    assert shrink(small) is small
    assert shrink(full) is full
    for key in range(49_000):
        del full[key]
    fewer = shrink(full)
    assert fewer is not full
    assert fewer == dict.fromkeys(range(49_000, 50_000), 0)


def test_default_memory_limit_is_a_part_of_the_memory_of_the_machine() -> None:
    assert MIN_MEMORY_LIMIT <= default_memory_limit() < 1 << 50
    assert resident_bytes() > 1 << 20
    assert find_trim()(0) in {0, 1}


# --- errors of the broker itself -----------------------------------------------------------------------------


class BrokenKeep(Keep):
    """Cannot store what is called `broken`, and cannot read it back."""

    def queue(self, vhost: str, queue: Queue) -> None:
        self._check(queue)

    def message(self, queue: Queue, entry: Any) -> None:
        self._check(queue)

    def settled(self, queue: Queue, entry: Any) -> None:
        self._check(queue)

    def _check(self, queue: Queue) -> None:
        if "broken" in queue.name:
            raise KeyError("a mistake in the broker")


def test_internal_error_of_a_method_closes_the_connection_with_541(caplog: pytest.LogCaptureFixture) -> None:
    world = World(keep=BrokenKeep())
    client, other = world.client(), world.client()
    client.send(m.QueueDeclare("broken", durable=True), 1)
    close = client.take(m.ConnectionClose)
    assert (close.reply_code, close.reply_text) == (541, "INTERNAL_ERROR - see the log of the broker")
    assert "a mistake in the broker" in caplog.text
    assert "Traceback" in caplog.text
    client.send(m.ConnectionCloseOk())
    assert client.session.is_done
    assert client.session not in world.broker.sessions
    other.declare("q")


def test_internal_error_of_a_publish_closes_the_connection_with_541(caplog: pytest.LogCaptureFixture) -> None:
    world = World(keep=BrokenKeep())
    client, other = world.client(), world.client()
    world.broker.vhosts["/"].queues.clear()
    other.declare("fine", durable=True)
    queue = world.broker.vhosts["/"].queues["fine"]
    other.call(m.BasicConsume("fine", "c"), m.BasicConsumeOk)
    queue.name = "broken"
    octets = client.connection.send(m.BasicPublish("", "fine"), 1, Content(PERSISTENT, b"x"))
    client.say(octets + client.connection.send(m.QueueDeclare("q"), 1))
    assert client.take(m.ConnectionClose).reply_code == 541
    assert not client.sees(m.QueueDeclareOk)
    assert "Traceback" in caplog.text
    queue.name = "fine"
    other.publish("fine", b"y", delivery_mode=2)
    other.take(m.BasicDeliver)


def test_internal_error_while_closing_a_channel_leaves_nothing_of_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    client = world.client()
    client.declare("own", exclusive=True)
    (channel,) = client.session.channels.values()
    channel.unacked[1] = None  # type: ignore[assignment]  # a state that no code leads to
    client.session.gone(world.now)
    assert "Traceback" in caplog.text
    assert "own" not in world.broker.vhosts["/"].queues
    assert client.session not in world.broker.sessions


def test_internal_error_of_a_dispatch_does_not_stop_other_queues(caplog: pytest.LogCaptureFixture) -> None:
    world = World(keep=BrokenKeep())
    client, consumer = world.client(), world.client()
    for name in ("bad", "good"):
        client.declare(name, durable=True)
        client.publish(name, b"x", delivery_mode=2)
    queues = world.broker.vhosts["/"].queues
    queues["bad"].name = "broken"
    queues["bad"].line.popleft()
    queues["bad"].line.append(None)  # type: ignore[arg-type]  # a state that no code leads to
    consumer.send(m.BasicConsume("bad", "b"), 1)
    consumer.send(m.BasicConsume("good", "g"), 1)
    assert consumer.take(m.BasicDeliver).consumer_tag == "g"
    assert "Traceback" in caplog.text
    assert not consumer.sees(m.ConnectionClose)


# --- transactions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_transactions_settle_each_delivery_once(kind: str, seed: int) -> None:
    choose = random.Random(seed)
    world = World()
    client, other = world.client(), world.client()
    client.declare("dead")
    arguments = {"x_queue_type": kind, "x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
    client.declare("work", durable=True, **arguments)
    count = 12
    for number in range(count):
        other.publish("work", b"%d" % number)
    client.call(m.TxSelect(), m.TxSelectOk)
    acked, tags, held = 0, list[int](), dict[int, str]()
    for _ in range(40):
        step = choose.choice(
            ["get", "get", "consume", "cancel", "ack", "nack", "reject", "recover", "commit", "rollback"]
        )
        if step == "get":
            client.send(m.BasicGet("work"), 1)
        elif step == "consume" and not client.session.channels[1].consumers:
            client.call(m.BasicQos(prefetch_count=2), m.BasicQosOk)
            client.call(m.BasicConsume("work", "c"), m.BasicConsumeOk)
        elif step == "cancel":
            client.call(m.BasicCancel("c"), m.BasicCancelOk)
        elif step in {"ack", "nack", "reject"} and (free := [tag for tag in tags if tag not in held]):
            tag = choose.choice(free)
            requeue = choose.random() < 0.5
            method: m.Method = {
                "ack": m.BasicAck(tag),
                "nack": m.BasicNack(tag, requeue=requeue),
                "reject": m.BasicReject(tag, requeue),
            }[step]
            client.send(method, 1)
            held[tag] = step
        elif step == "recover":
            client.call(m.BasicRecover(True), m.BasicRecoverOk)
            tags = [tag for tag in tags if tag in held]
        elif step == "commit":
            client.call(m.TxCommit(), m.TxCommitOk)
            acked += sum(verdict == "ack" for verdict in held.values())
            tags = [tag for tag in tags if tag not in held]
            held.clear()
        elif step == "rollback":
            client.call(m.TxRollback(), m.TxRollbackOk)
            held.clear()
        tags += [method.delivery_tag for method, _ in client.all_of(m.BasicGetOk)]
        tags += [method.delivery_tag for method, _ in client.all_of(m.BasicDeliver)]
        list(client.all_of(m.BasicGetEmpty))
        assert not client.sees(m.ConnectionClose)
        assert not client.sees(m.ChannelClose)
    client.call(m.ChannelClose(), m.ChannelCloseOk)
    queue = world.broker.vhosts["/"].queues["work"]
    assert queue.unacked == queue.unacked_bytes == 0
    assert len(other.bodies("work")) + len(other.bodies("dead")) == count - acked
