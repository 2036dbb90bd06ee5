"""Dead letters with the strategy at-least-once, on a clock that the test moves."""

from pathlib import Path
from typing import Any

import pytest

from redrive.amqp import methods as m
from redrive.broker.core import DEAD_LETTER_RETRY
from redrive.broker.policies import Policy
from redrive.broker.queue import Queue
from redrive.broker.records import PUBLISH, SETTLE
from tests.unit.broker.harness import Peer, World
from tests.unit.broker.test_journal_keep import Durable


def declare(client: Peer, name: str = "q", **arguments: Any) -> None:
    wanted = {
        "x_dead_letter_exchange": "dlx",
        "x_dead_letter_strategy": "at-least-once",
        "x_overflow": "reject-publish",
        **arguments,
    }
    client.declare(name, durable=True, x_queue_type="quorum", **wanted)


def reject(client: Peer) -> None:
    found = client.get("q", no_ack=False)
    assert found is not None
    client.send(m.BasicReject(found[0].delivery_tag, requeue=False), 1)


def die(client: Peer, body: bytes = b"body") -> None:
    client.publish("q", body)
    reject(client)


def route(client: Peer, queue: str = "dead", **arguments: Any) -> None:
    client.call(m.ExchangeDeclare("dlx", "fanout", durable=True), m.ExchangeDeclareOk)
    client.declare(queue, durable=True, **arguments)
    client.call(m.QueueBind(queue, "dlx"), m.QueueBindOk)


def queue_of(world: World) -> Queue:
    return world.broker.vhosts["/"].queues["q"]


def put_policy(world: World, **definition: object) -> None:
    vhost = world.broker.vhosts["/"]
    vhost.policies.put(
        Policy("/", "p", "q", definition={key.replace("_", "-"): v for key, v in definition.items()})
    )
    vhost.policies_changed(world.now)
    world.advance(0)


@pytest.fixture
def world() -> World:
    return World(dead_letter_retry=1000)


@pytest.fixture
def client(world: World) -> Peer:
    return world.client()


def test_default_interval_is_that_of_rabbitmq() -> None:
    assert World().broker.dead_letter_retry == DEAD_LETTER_RETRY == 180_000


def test_letter_with_a_route_arrives_at_once_and_is_confirmed(world: World, client: Peer) -> None:
    declare(client)
    route(client)
    die(client)
    assert client.bodies("dead") == [b"body"]
    assert len(queue_of(world).dead) == 0
    assert world.broker.dead_letters_confirmed == 1


def test_letter_without_an_exchange_is_kept_and_arrives_after_the_interval(
    world: World, client: Peer
) -> None:
    declare(client)
    die(client, b"first")
    assert client.depth("q") == 0
    route(client)
    world.advance(999)
    assert client.depth("dead") == 0
    world.advance(1)
    found = client.get("dead")
    assert found is not None
    assert found[1].body == b"first"
    assert client.deaths(found[1])[0]["count"] == 1
    assert len(queue_of(world).dead) == 0


def test_letter_records_the_time_of_its_death(world: World, client: Peer) -> None:
    declare(client)
    die(client)
    died_at = world.now // 1000
    world.advance(5000)
    route(client)
    world.advance(1000)
    found = client.get("dead")
    assert found is not None
    assert int(client.deaths(found[1])[0]["time"]) == died_at


def test_letter_without_a_route_is_sent_again_and_again(world: World, client: Peer) -> None:
    client.call(m.ExchangeDeclare("dlx", "fanout"), m.ExchangeDeclareOk)
    declare(client)
    die(client)
    for _ in range(5):
        world.advance(1000)
        assert len(queue_of(world).dead) == 1
    client.declare("dead")
    client.call(m.QueueBind("dead", "dlx"), m.QueueBindOk)
    world.advance(1000)
    assert client.bodies("dead") == [b"body"]


def test_refused_letter_goes_to_the_full_queue_alone(world: World, client: Peer) -> None:
    declare(client)
    route(client, "ok")
    route(client, "full", x_max_length=1, x_overflow="reject-publish")
    client.publish("full", b"old")
    die(client)
    assert client.bodies("ok") == [b"body"]
    world.advance(1000)
    assert client.bodies("full") == [b"old"]
    world.advance(1000)
    assert client.bodies("full") == [b"body"]
    world.advance(5000)
    assert client.bodies("ok") == []
    assert len(queue_of(world).dead) == 0


def test_letter_of_which_the_refusing_route_is_gone_is_done(world: World, client: Peer) -> None:
    declare(client)
    route(client, "ok")
    route(client, "full", x_max_length=0, x_overflow="reject-publish")
    die(client)
    assert len(queue_of(world).dead) == 1
    client.call(m.QueueDelete("full"), m.QueueDeleteOk)
    world.advance(1000)
    assert len(queue_of(world).dead) == 0
    assert client.bodies("ok") == [b"body"]


def test_letter_in_a_cycle_is_kept(world: World, client: Peer) -> None:
    declare(client, x_dead_letter_exchange="", x_dead_letter_routing_key="q", x_message_ttl=10)
    client.publish("q")
    world.advance(10)
    assert len(queue_of(world).dead) == 1
    world.advance(1000)
    assert len(queue_of(world).dead) == 1


@pytest.mark.parametrize("reason", ["expired", "delivery_limit"])
def test_other_reasons_are_kept_too(world: World, client: Peer, reason: str) -> None:
    declare(client, x_message_ttl=100, x_delivery_limit=0)
    client.publish("q")
    if reason == "delivery_limit":
        found = client.get("q", no_ack=False)
        assert found is not None
        client.send(m.BasicReject(found[0].delivery_tag, requeue=True), 1)
    else:
        world.advance(100)
    route(client)
    world.advance(1000)
    found = client.get("dead")
    assert found is not None
    assert client.deaths(found[1])[0]["reason"] == reason


@pytest.mark.parametrize(
    "arguments", [{"x_overflow": "drop-head"}, {"x_dead_letter_strategy": "at-most-once"}]
)
def test_other_queues_drop_letters_without_a_route(
    world: World, client: Peer, arguments: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    declare(client, **arguments)
    assert ("dead-letter strategy is at-most-once" in caplog.text) == ("x_overflow" in arguments)
    die(client)
    route(client)
    world.advance(5000)
    assert client.bodies("dead") == []
    assert queue_of(world).held == 0


class TestLimits:
    def test_kept_letters_count_towards_the_limits(self, client: Peer) -> None:
        client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
        declare(client, x_max_length=1)
        die(client)
        client.publish("q", b"new")
        client.take(m.BasicNack)

    def test_kept_letters_count_towards_the_bytes(self, client: Peer) -> None:
        client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
        declare(client, x_max_length_bytes=150)
        die(client, b"x" * 100)
        client.publish("q", b"x" * 100)
        client.take(m.BasicNack)

    def test_purge_takes_kept_letters_and_counts_them(self, world: World, client: Peer) -> None:
        declare(client)
        die(client)
        client.publish("q")
        assert client.call(m.QueuePurge("q"), m.QueuePurgeOk).message_count == 2
        route(client)
        world.advance(1000)
        assert client.depth("dead") == 0
        assert queue_of(world).bytes == 0

    def test_delete_counts_ready_messages_alone(self, client: Peer) -> None:
        declare(client)
        die(client)
        client.publish("q")
        assert client.call(m.QueueDelete("q"), m.QueueDeleteOk).message_count == 1

    def test_lower_limit_drops_nothing_from_a_queue_that_refuses(self, world: World, client: Peer) -> None:
        declare(client)
        for _ in range(3):
            client.publish("q")
        put_policy(world, max_length=1)
        assert client.depth("q") == 3


class TestPolicies:
    def test_strategy_by_policy(self, world: World, client: Peer) -> None:
        client.declare("q", durable=True, x_queue_type="quorum")
        put_policy(
            world,
            dead_letter_exchange="dlx",
            dead_letter_strategy="at-least-once",
            overflow="reject-publish",
        )
        die(client)
        assert len(queue_of(world).dead) == 1

    def test_change_of_policy_sends_again_at_once(self, world: World, client: Peer) -> None:
        declare(client)
        die(client)
        route(client)
        put_policy(world, max_length=1000)
        assert client.bodies("dead") == [b"body"]

    def test_letters_follow_the_new_strategy_of_their_queue(self, world: World, client: Peer) -> None:
        declare(client, x_dead_letter_strategy="at-least-once", x_overflow="reject-publish")
        die(client)
        route(client)
        put_policy(world, overflow="drop-head")  # on quorum queues a policy wins for overflow
        assert len(queue_of(world).dead) == 0
        assert client.bodies("dead") == [b"body"]


def test_many_letters_are_sent_in_several_turns(world: World, client: Peer) -> None:
    declare(client)
    for number in range(2500):
        die(client, b"%d" % number)
    route(client)
    world.advance(1000)
    assert client.depth("dead") == 1000
    world.advance(1)
    world.advance(1)
    assert client.bodies("dead") == [b"%d" % number for number in range(2500)]
    assert len(queue_of(world).dead) == 0


class TestRestart:
    @pytest.mark.parametrize("orderly", [True, False])
    def test_kept_letter_is_sent_when_the_broker_is_back(self, tmp_path: Path, orderly: bool) -> None:
        world = Durable(tmp_path / "data")
        client = world.client()
        declare(client)
        die(client, b"kept")
        client.publish("q", b"ready")
        died_at = world.now // 1000
        world.now += 60_000
        world.restart(orderly=orderly)
        client = world.client()
        assert len(queue_of(world).dead) == 1
        assert client.depth("q") == 1
        route(client)
        world.restart(orderly=orderly)
        world.advance(0)
        client = world.client()
        found = client.get("dead", no_ack=False)
        assert found is not None
        assert found[1].body == b"kept"
        death = client.deaths(found[1])[0]
        assert (death["reason"], int(death["time"])) == ("rejected", died_at)
        assert len(queue_of(world).dead) == 0
        world.restart(orderly=orderly)
        assert len(queue_of(world).dead) == 0
        assert world.client().depth("dead") == 1

    def test_journal_has_the_copy_before_the_original_is_settled(self, tmp_path: Path) -> None:
        world = Durable(tmp_path / "data")
        client = world.client()
        declare(client)
        route(client, x_queue_type="quorum")
        client.publish("q", b"letter")
        found = client.get("q", no_ack=False)
        assert found is not None
        journal = world.journal.journal
        world.journal.flush()
        client.session.receive(
            client.connection.send(m.BasicReject(found[0].delivery_tag, requeue=False), 1), world.now
        )
        world.broker.work(world.now)
        kinds = [record[0] for record in journal._pending]
        assert kinds.index(PUBLISH) < kinds.index(SETTLE)
