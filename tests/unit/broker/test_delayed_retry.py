"""Delayed retry of quorum queues, on a clock that the test moves."""

from pathlib import Path
from typing import Any

import pytest

from redrive.amqp import methods as m
from redrive.broker.delayed_retry import DelayedRetry
from redrive.broker.policies import Policy, PolicyError
from redrive.broker.queue import Queue
from tests.unit.broker.harness import Peer, World
from tests.unit.broker.test_journal_keep import Durable


def declare(client: Peer, **arguments: Any) -> None:
    arguments = {"x_delayed_retry_type": "all", "x_delayed_retry_min": 100, **arguments}
    client.declare("q", durable=True, x_queue_type="quorum", **arguments)


def take(client: Peer) -> int:
    found = client.get("q", no_ack=False)
    assert found is not None
    return found[0].delivery_tag


def reject(client: Peer) -> None:
    client.send(m.BasicReject(take(client), requeue=True), 1)


def nack(client: Peer) -> None:
    client.send(m.BasicNack(take(client), requeue=True), 1)


def queue_of(world: World) -> Queue:
    return world.broker.vhosts["/"].queues["q"]


class TestRule:
    @pytest.mark.parametrize(
        ("failures", "delay"), [(0, 100), (1, 100), (2, 200), (3, 300), (4, 350), (1000, 350)]
    )
    def test_delay_grows_with_failures_up_to_the_maximum(self, failures: int, delay: int) -> None:
        assert DelayedRetry("all", 100, 350).delay(failed=True, failures=failures) == delay

    @pytest.mark.parametrize(
        ("kind", "failed", "is_delayed"),
        [
            ("all", True, True),
            ("all", False, True),
            ("failed", True, True),
            ("failed", False, False),
            ("returned", True, False),
            ("returned", False, True),
        ],
    )
    def test_type_selects_the_returns(self, kind: Any, failed: bool, is_delayed: bool) -> None:
        found = DelayedRetry(kind, 100, 100).delay(failed=failed, failures=1)
        assert found == (100 if is_delayed else None)


class TestArguments:
    @pytest.mark.parametrize(
        "arguments",
        [
            {"x_delayed_retry_type": "disabled"},
            {"x_delayed_retry_type": "sometimes"},
            {"x_delayed_retry_type": 5},
            {"x_delayed_retry_min": 0},
            {"x_delayed_retry_min": -5},
            {"x_delayed_retry_min": "soon"},
            {"x_delayed_retry_min": True},
            {"x_delayed_retry_min": 100.0},
        ],
    )
    def test_wrong_arguments_are_accepted_and_disable_the_delay(self, arguments: dict[str, object]) -> None:
        world = World()
        declare(world.client(), **arguments)
        assert queue_of(world).delayed_retry is None

    @pytest.mark.parametrize("maximum", [0, -1, "late", None])
    def test_wrong_maximum_is_the_minimum(self, maximum: object) -> None:
        world = World()
        declare(world.client(), x_delayed_retry_max=maximum)
        assert queue_of(world).delayed_retry == DelayedRetry("all", 100, 100)

    def test_maximum_below_the_minimum_wins(self) -> None:
        world = World()
        declare(world.client(), x_delayed_retry_max=30)
        assert str(queue_of(world).delayed_retry) == "all (min: 100ms, max: 30ms)"


class TestPolicies:
    def test_policy_wins_for_the_type_and_the_smaller_delay_wins(self) -> None:
        world = World()
        declare(world.client(), x_delayed_retry_max=900)
        definition = {"delayed-retry-type": "failed", "delayed-retry-min": 300, "delayed-retry-max": 500}
        vhost = world.broker.vhosts["/"]
        vhost.policies.put(Policy("/", "p", "q", definition=definition))
        vhost.policies_changed(world.now)
        assert queue_of(world).delayed_retry == DelayedRetry("failed", 100, 500)

    def test_message_stays_delayed_when_a_policy_disables_the_delay(self) -> None:
        world = World()
        client = world.client()
        declare(client)
        client.publish("q")
        reject(client)
        vhost = world.broker.vhosts["/"]
        vhost.policies.put(Policy("/", "p", "q", definition={"delayed-retry-type": "disabled"}))
        vhost.policies_changed(world.now)
        assert client.depth("q") == 0
        world.advance(100)
        reject(client)
        assert client.depth("q") == 1

    @pytest.mark.parametrize(
        ("definition", "problem"),
        [
            (
                {"delayed-retry-type": "x"},
                '<<"x">> is not a valid delayed retry type. Must be one of: all, failed, returned, disabled',
            ),
            ({"delayed-retry-type": "all"}, "delayed-retry-min is required when delayed-retry-type is all"),
            (
                {"delayed-retry-type": "all", "delayed-retry-min": 0},
                "0 is not a valid delayed retry minimum delay. Must be a positive integer",
            ),
            (
                {"delayed-retry-max": "y", "delayed-retry-min": "x"},
                '<<"y">> is not a valid delayed retry maximum delay. Must be a positive integer',
            ),
            (
                {"delayed-retry-min": 5, "delayed-retry-max": 3},
                "delayed-retry-max (3) must not be smaller than delayed-retry-min (5)",
            ),
            ({"delayed-retry-type": "x", "max-length": "y"}, '<<"y">> is not a valid maximum length'),
            (
                {"delayed-retry-type": "all", "delayed-retry-min": 5, "zzz": 1},
                '[{<<"zzz">>,1}] are not recognised policy settings',
            ),
        ],
    )
    def test_wrong_values_are_refused_in_the_words_of_rabbitmq(
        self, definition: dict[str, object], problem: str
    ) -> None:
        with pytest.raises(PolicyError) as refused:
            Policy("/", "p", "q", definition=definition).check()
        assert refused.value.reason == f"Validation failed\n\n{problem}\n"


class TestDelay:
    def test_rejected_message_comes_again_after_its_delay_and_not_before(self) -> None:
        world = World()
        client = world.client()
        declare(client, x_delayed_retry_max=250)
        client.publish("q")
        for delay in (100, 200, 250, 250):
            reject(client)
            world.advance(delay - 1)
            assert client.get("q") is None
            world.advance(1)
            assert client.depth("q") == 1

    def test_waiting_consumer_gets_the_message_when_it_is_ready(self) -> None:
        world = World()
        client = world.client()
        declare(client)
        client.call(m.BasicConsume("q", "c"), m.BasicConsumeOk)
        client.publish("q")
        client.send(m.BasicReject(client.take(m.BasicDeliver).delivery_tag, requeue=True), 1)
        assert not client.sees(m.BasicDeliver)
        world.advance(100)
        assert client.take(m.BasicDeliver).redelivered

    @pytest.mark.parametrize(("kind", "delayed"), [("failed", [1, 0, 1]), ("returned", [0, 1, 0])])
    def test_type_distinguishes_failures_and_returns(self, kind: str, delayed: list[int]) -> None:
        world = World()
        client = world.client()
        declare(client, x_delayed_retry_type=kind)
        found = []
        client.publish("q")
        for way in (reject, nack):
            way(client)
            found.append(len(queue_of(world).delayed))
            world.advance(1000)
        take(client)
        client.session.gone(world.now)
        world.work()
        found.append(len(queue_of(world).delayed))
        assert found == delayed

    def test_delayed_messages_come_in_the_order_of_their_times(self) -> None:
        world = World()
        client = world.client()
        declare(client)
        for body in (b"0", b"1", b"2", b"3"):
            client.publish("q", body)
        tags = [take(client) for _ in range(3)]
        for tag in reversed(tags):
            client.send(m.BasicNack(tag, requeue=True), 1)
            world.advance(1)
        world.advance(100)
        assert client.bodies("q") == [b"2", b"1", b"0", b"3"]

    def test_delivery_limit_is_not_delayed(self) -> None:
        world = World()
        client = world.client()
        client.declare("dead")
        declare(client, x_delivery_limit=0, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        client.publish("q")
        reject(client)
        assert client.depth("dead") == 1

    def test_message_that_expires_while_it_waits_dies_when_it_is_ready(self) -> None:
        world = World()
        client = world.client()
        client.declare("dead")
        declare(client, x_message_ttl=30, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        client.publish("q")
        reject(client)
        world.advance(99)
        assert client.depth("dead") == 0
        world.advance(1)
        found = client.get("dead")
        assert found is not None
        assert client.deaths(found[1])[0]["reason"] == "expired"


class TestLimits:
    def test_delayed_messages_count_and_are_not_dropped(self) -> None:
        world = World()
        client = world.client()
        declare(client, x_max_length=1)
        client.publish("q", b"old")
        reject(client)
        client.publish("q", b"new")
        assert client.depth("q") == 0
        world.advance(100)
        assert client.bodies("q") == [b"old"]

    def test_delayed_messages_make_a_queue_refuse(self) -> None:
        world = World()
        client = world.client()
        client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
        declare(client, x_max_length=1, x_overflow="reject-publish")
        client.publish("q", b"old")
        client.take(m.BasicAck)
        reject(client)
        client.publish("q", b"new")
        client.take(m.BasicNack)

    def test_purge_takes_delayed_messages_and_counts_them(self) -> None:
        world = World()
        client = world.client()
        declare(client)
        for _ in range(3):
            client.publish("q")
        reject(client)
        assert client.call(m.QueuePurge("q"), m.QueuePurgeOk).message_count == 3
        world.advance(1000)
        assert client.depth("q") == 0
        assert queue_of(world).bytes_ready == 0

    def test_delete_counts_ready_messages_alone(self) -> None:
        world = World()
        client = world.client()
        declare(client)
        for _ in range(2):
            client.publish("q")
        reject(client)
        assert client.call(m.QueueDelete("q"), m.QueueDeleteOk).message_count == 1


class TestRestart:
    @pytest.mark.parametrize("orderly", [True, False])
    def test_delayed_message_waits_for_the_rest_of_its_time(self, tmp_path: Path, orderly: bool) -> None:
        world = Durable(tmp_path / "data")
        client = world.client()
        declare(client)
        client.publish("q", b"later")
        reject(client)
        client.publish("q", b"ready")
        world.advance(40)
        world.restart(orderly=orderly)
        client = world.client()
        assert client.depth("q") == 1
        world.advance(59)
        assert client.depth("q") == 1
        world.advance(1)
        found = client.get("q")
        assert found is not None
        assert found[1].body == b"later"
        assert found[1].decoded().headers == {"x-acquired-count": 1, "x-delivery-count": 1}
        assert client.bodies("q") == [b"ready"]

    @pytest.mark.parametrize("orderly", [True, False])
    def test_message_whose_time_is_over_is_ready(self, tmp_path: Path, orderly: bool) -> None:
        world = Durable(tmp_path / "data")
        client = world.client()
        declare(client)
        client.publish("q")
        reject(client)
        world.now += 100
        world.restart(orderly=orderly)
        client = world.client()
        assert client.bodies("q") == [b"body"]
        world.restart(orderly=orderly)
        assert world.client().depth("q") == 0
