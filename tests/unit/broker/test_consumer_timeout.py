"""Consumer timeouts of quorum queues, on a clock that the test moves."""

from typing import Any

import pytest

from redrive.amqp import methods as m
from redrive.broker.consumer_timeout import DEFAULT_TIMEOUT
from redrive.broker.policies import Policy
from tests.unit.broker.harness import Peer, World


def declare(client: Peer, timeout: int | None = 400, **arguments: Any) -> None:
    wanted = {} if timeout is None else {"x_consumer_timeout": timeout}
    client.declare("q", durable=True, x_queue_type="quorum", **wanted, **arguments)


def consume(client: Peer, tag: str = "c", prefetch: int = 0, **arguments: Any) -> None:
    client.call(m.BasicQos(prefetch_count=prefetch), m.BasicQosOk)
    table = {name.replace("_", "-"): value for name, value in arguments.items()}
    client.call(m.BasicConsume("q", tag, arguments=table), m.BasicConsumeOk)


def bodies(client: Peer) -> list[bytes]:
    return [content.body for _, content in client.all_of(m.BasicDeliver) if content]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def publisher(world: World) -> Peer:
    return world.client()


@pytest.fixture
def slow(world: World) -> Peer:
    return world.client()


def test_consumer_is_cancelled_and_its_message_returned_without_a_failure(
    world: World, publisher: Peer, slow: Peer
) -> None:
    declare(slow, x_delivery_limit=0)
    consume(slow)
    publisher.publish("q", b"1")
    assert bodies(slow) == [b"1"]
    world.advance(399)
    assert not slow.sees(m.BasicCancel)
    world.advance(1)
    assert slow.take(m.BasicCancel) == m.BasicCancel("c", True)
    assert publisher.depth("q") == 1
    found = publisher.get("q", no_ack=False)
    assert found is not None
    assert found[0].redelivered
    assert "x-delivery-count" not in str(found[1].decoded().headers)


def test_default_timeout_is_thirty_minutes(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow, None)
    consume(slow)
    publisher.publish("q")
    world.advance(DEFAULT_TIMEOUT - 1)
    assert not slow.sees(m.BasicCancel)
    world.advance(1)
    assert slow.sees(m.BasicCancel)
    assert DEFAULT_TIMEOUT == 30 * 60 * 1000


def test_each_delivery_has_its_own_time(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow)
    consume(slow)
    publisher.publish("q", b"1")
    world.advance(300)
    publisher.publish("q", b"2")
    world.advance(100)
    slow.take(m.BasicCancel)
    assert publisher.depth("q") == 1
    world.advance(299)
    assert not slow.sees(m.BasicCancel)
    world.advance(1)
    slow.take(m.BasicCancel)
    assert publisher.depth("q") == 2


def test_acknowledged_delivery_does_not_time_out(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow)
    consume(slow)
    for _ in range(20):
        publisher.publish("q")
        slow.send(m.BasicAck(slow.take(m.BasicDeliver).delivery_tag), 1)
        world.advance(350)
    assert not slow.sees(m.BasicCancel)


def test_argument_of_the_consumer_wins_over_the_queue(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow, 100)
    consume(slow, x_consumer_timeout=900)
    publisher.publish("q")
    world.advance(899)
    assert not slow.sees(m.BasicCancel)
    world.advance(1)
    assert slow.sees(m.BasicCancel)


def test_smaller_one_of_policy_and_argument_holds_for_new_consumers(
    world: World, publisher: Peer, slow: Peer
) -> None:
    declare(slow, 800)
    consume(slow, "old", 1)
    vhost = world.broker.vhosts["/"]
    vhost.policies.put(Policy("/", "p", "q", definition={"consumer-timeout": 300}))
    vhost.policies_changed(world.now)
    consume(slow, "new", 1)
    publisher.publish("q")
    publisher.publish("q")
    world.advance(300)
    assert slow.take(m.BasicCancel).consumer_tag == "new"
    assert not slow.sees(m.BasicCancel)
    world.advance(500)
    assert slow.take(m.BasicCancel).consumer_tag == "old"


def test_timed_out_consumer_gets_nothing_until_it_has_settled_all(
    world: World, publisher: Peer, slow: Peer
) -> None:
    declare(slow)
    consume(slow)
    publisher.publish("q", b"1")
    publisher.publish("q", b"2")
    assert bodies(slow) == [b"1", b"2"]
    world.advance(400)
    publisher.publish("q", b"3")
    slow.send(m.BasicAck(1), 1)
    assert bodies(slow) == []
    slow.send(m.BasicAck(2), 1)
    assert bodies(slow) == [b"1", b"2", b"3"]
    assert slow.sees(m.BasicCancel)


@pytest.mark.parametrize("verdict", [m.BasicReject(1, requeue=False), m.BasicNack(1, requeue=True)])
def test_late_verdict_does_nothing_to_the_message(
    world: World, publisher: Peer, slow: Peer, verdict: m.Method
) -> None:
    declare(slow)
    consume(slow)
    publisher.publish("q", b"1")
    assert bodies(slow) == [b"1"]
    world.advance(400)
    slow.send(verdict, 1)
    resumes = isinstance(verdict, m.BasicReject)  # one that wants the message requeued stays cancelled
    assert bodies(slow) == ([b"1"] if resumes else [])
    assert publisher.depth("q") == (0 if resumes else 1)


def test_late_acknowledgement_of_several(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow)
    consume(slow)
    publisher.publish("q", b"1")
    publisher.publish("q", b"2")
    world.advance(200)
    publisher.publish("q", b"3")
    assert bodies(slow) == [b"1", b"2", b"3"]
    world.advance(200)
    slow.send(m.BasicAck(3, multiple=True), 1)
    assert bodies(slow) == [b"1", b"2"]
    assert not slow.sees(m.ChannelClose)
    slow.send(m.BasicAck(5, multiple=True), 1)
    assert publisher.depth("q") == 0


def test_late_acknowledgement_is_good_once(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow)
    consume(slow)
    publisher.publish("q")
    world.advance(400)
    slow.send(m.BasicAck(1), 1)
    slow.send(m.BasicAck(1), 1)
    assert slow.take(m.ChannelClose).reply_text == "PRECONDITION_FAILED - unknown delivery tag 1"


TIMED_OUT = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: -1 ms. "
    "This timeout value can be configured, see consumers doc guide to learn more"
)


def test_client_that_does_not_know_cancels_loses_its_channel(
    world: World, publisher: Peer, slow: Peer
) -> None:
    slow.session.wants_cancels = False
    declare(slow)
    consume(slow)
    publisher.publish("q")
    world.advance(400)
    closed = slow.take(m.ChannelClose)
    assert (closed.reply_code, closed.reply_text, closed.class_id) == (406, TIMED_OUT, 0)
    assert publisher.depth("q") == 1


def test_consumer_that_has_cancelled_itself_loses_its_channel(
    world: World, publisher: Peer, slow: Peer
) -> None:
    declare(slow)
    consume(slow)
    publisher.publish("q")
    slow.call(m.BasicCancel("c"), m.BasicCancelOk)
    world.advance(400)
    assert slow.take(m.ChannelClose).reply_text == TIMED_OUT


def test_basic_get_times_out_with_its_channel(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow)
    publisher.publish("q")
    assert slow.get("q", no_ack=False)
    world.advance(400)
    assert slow.take(m.ChannelClose).reply_text == TIMED_OUT
    assert publisher.depth("q") == 1


def test_other_consumer_gets_what_was_returned(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow)
    consume(slow)
    publisher.publish("q", b"1")
    quick = world.client()
    consume(quick, "d")
    world.advance(400)
    assert bodies(quick) == [b"1"]


def test_next_consumer_becomes_the_single_active_one(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow, x_single_active_consumer=True)
    consume(slow)
    quick = world.client()
    consume(quick, "d")
    publisher.publish("q", b"1")
    assert bodies(slow) == [b"1"]
    world.advance(400)
    assert bodies(quick) == [b"1"]
    quick.send(m.BasicAck(1), 1)
    slow.send(m.BasicAck(1), 1)
    publisher.publish("q", b"2")
    assert (bodies(slow), bodies(quick)) == ([], [b"2"])
    world.advance(400)
    assert bodies(slow) == [b"2"]


def test_returned_message_is_delayed_where_returns_are(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow, x_delayed_retry_type="returned", x_delayed_retry_min=100)
    consume(slow)
    publisher.publish("q")
    world.advance(400)
    assert publisher.depth("q") == 0
    world.advance(100)
    assert publisher.depth("q") == 1


def test_classic_queues_and_consumers_without_acknowledgements_have_no_timeout(
    world: World, publisher: Peer, slow: Peer
) -> None:
    slow.declare("classic")
    slow.call(m.BasicConsume("classic", "k"), m.BasicConsumeOk)
    declare(slow)
    slow.call(m.BasicConsume("q", "n", no_ack=True), m.BasicConsumeOk)
    publisher.publish("classic")
    publisher.publish("q")
    world.advance(24 * 3600 * 1000)
    assert not slow.sees(m.BasicCancel)
    assert not slow.sees(m.ChannelClose)


def test_timeout_of_zero_does_not_keep_the_broker_busy(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow, 0)
    consume(slow)
    assert world.broker.next_timer is not None
    assert world.broker.next_timer >= world.now + 50
    publisher.publish("q")
    world.advance(50)
    assert slow.sees(m.BasicCancel)


def test_timers_do_not_pile_up(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow, 100, x_message_ttl=10**9, x_expires=10**9)
    consume(slow, prefetch=1)
    publisher.publish("q")
    publisher.publish("q")
    for _ in range(50):
        slow.send(m.BasicAck(slow.take(m.BasicDeliver).delivery_tag), 1)
        publisher.publish("q")
        world.advance(99)
    assert not slow.sees(m.BasicCancel)
    assert len(world.broker._timers) < 60  # one for each head of the queue, and none for each look at it


def test_fetched_message_of_another_channel_times_out(world: World, publisher: Peer, slow: Peer) -> None:
    declare(slow)
    consume(slow)
    publisher.publish("q", b"1")
    assert bodies(slow) == [b"1"]
    fetcher = world.client()
    slow.call(m.BasicCancel("c"), m.BasicCancelOk)
    publisher.publish("q", b"2")
    assert fetcher.get("q", no_ack=False)
    world.advance(400)
    assert fetcher.sees(m.ChannelClose)
    assert slow.sees(m.ChannelClose)
    assert sorted(publisher.bodies("q")) == [b"1", b"2"]
