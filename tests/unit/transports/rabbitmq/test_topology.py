"""What a source needs on RabbitMQ."""

from datetime import timedelta
from typing import cast

import pytest

from redrive.errors import SettingsError
from redrive.transports.base import Source
from redrive.transports.rabbitmq.delivery_counts import TABLE, DeliveryCounts
from redrive.transports.rabbitmq.names import STEPS, delay_queue
from redrive.transports.rabbitmq.topology import Binding, Exchange, Queue, Topology, plain_queues, wanted


def queue(topology: Topology, name: str) -> Queue:
    [found] = [queue for queue in topology.queues if queue.name == name]
    return found


def test_a_source_gets_a_work_queue_an_exchange_a_dead_letter_queue_and_what_joins_them() -> None:
    topology = wanted([Source(name="orders")])
    assert topology.exchanges == (Exchange(name="orders.dlx", type="fanout", durable=True),)
    assert topology.bindings == (Binding(exchange="orders.dlx", destination="orders.dlq", routing_key="#"),)
    work = queue(topology, "orders")
    assert (work.role, work.durable) == ("work", True)
    assert work.arguments == {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "orders.dlx",
        "x-delivery-limit": 20,
    }
    dead = queue(topology, "orders.dlq")
    assert (dead.role, dead.durable) == ("dead letters", True)
    assert dead.arguments == {"x-queue-type": "quorum", "x-delivery-limit": -1}


@pytest.mark.parametrize("counts", TABLE, ids=lambda row: row.versions)
def test_dead_letter_queues_and_plain_queues_give_up_no_message(counts: DeliveryCounts) -> None:
    dead_letters = queue(wanted([Source(name="orders")], counts), "orders.dlq")
    plain = queue(plain_queues(["verdicts"], counts), "verdicts")
    for each in (dead_letters, plain):
        limit = each.arguments.get("x-delivery-limit")
        assert counts.limit_in_force(cast("int | None", limit)) is None


def test_a_queue_is_made_for_every_step_of_the_delays() -> None:
    topology = wanted([Source(name="orders")])
    assert [queue.name for queue in topology.queues if queue.role == "delay"] == [
        f"orders.delay.{step}"
        for step in ("1s", "5s", "15s", "30s", "1m", "5m", "15m", "30m", "1h", "6h", "1d")
    ]
    for step in STEPS:
        assert queue(topology, delay_queue("orders", step)).arguments == {
            "x-queue-type": "quorum",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-message-ttl": step // timedelta(milliseconds=1),
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "orders",
        }


def test_the_work_queue_comes_last() -> None:
    assert wanted([Source(name="orders")]).queues[-1].name == "orders"


def test_a_classic_queue_has_no_delivery_limit() -> None:
    topology = wanted([Source(name="orders", queue_type="classic")])
    assert queue(topology, "orders").arguments == {
        "x-queue-type": "classic",
        "x-dead-letter-exchange": "orders.dlx",
    }
    assert queue(topology, "orders.dlq").type == "classic"


@pytest.mark.parametrize(("ours", "brokers"), [(1, 20), (3, 20), (10, 20), (11, 22), (50, 100)])
def test_the_broker_gives_up_well_after_we_do(ours: int, brokers: int) -> None:
    topology = wanted([Source(name="orders", max_deliveries=ours)])
    assert queue(topology, "orders").arguments["x-delivery-limit"] == brokers


def test_names_and_key_of_ones_own_are_used() -> None:
    source = Source(
        name="orders",
        dead_letter_queue="dead",
        dead_letter_exchange="shop.dead",
        dead_letter_routing_key="orders.failed",
    )
    topology = wanted([source])
    assert topology.bindings == (
        Binding(exchange="shop.dead", destination="dead", routing_key="orders.failed"),
    )
    assert queue(topology, "orders").arguments["x-dead-letter-routing-key"] == "orders.failed"


def test_sources_may_share_exchange_and_queue() -> None:
    shared = {"dead_letter_queue": "dead", "dead_letter_exchange": "dlx"}
    topology = wanted([Source(name="a", **shared), Source(name="b", **shared)])  # type: ignore[arg-type]
    assert [exchange.name for exchange in topology.exchanges] == ["dlx"]
    assert len(topology.bindings) == 1
    assert [queue.name for queue in topology.queues if queue.role == "dead letters"] == ["dead"]


def test_an_exchange_that_leads_to_several_queues_tells_them_apart_by_key() -> None:
    topology = wanted(
        [
            Source(name=name, dead_letter_exchange="dlx", dead_letter_routing_key=f"{name}.dead")
            for name in ("a", "b")
        ]
    )
    assert topology.exchanges == (Exchange(name="dlx", type="direct"),)
    assert [(binding.routing_key, binding.destination) for binding in topology.bindings] == [
        ("a.dead", "a.dlq"),
        ("b.dead", "b.dlq"),
    ]


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ([Source(name="")], "its name must have 1 to 255 bytes"),
        ([Source(name="x" * 256)], "its name must have 1 to 255 bytes"),
        ([Source(name="x" * 252)], "dead_letter_queue"),
        ([Source(name="x" * 246, dead_letter_queue="q", dead_letter_exchange="e")], "delay queues"),
        ([Source(name="caf\udce9")], "bytes of UTF-8"),
        ([Source(name="amq.orders")], "names that start with amq. are reserved by RabbitMQ"),
        ([Source(name="a", dead_letter_queue="a")], "its dead letters would return to it"),
        (
            [Source(name="a", dead_letter_exchange="dlx"), Source(name="b", dead_letter_exchange="dlx")],
            "source 'a' shares the exchange 'dlx'",
        ),
        (
            [
                Source(name=name, dead_letter_exchange="dlx", dead_letter_routing_key="dead")
                for name in ("a", "b")
            ],
            "share the exchange 'dlx' and the routing key 'dead', but not the dead-letter queue",
        ),
        (
            [
                Source(name="a", dead_letter_queue="dead"),
                Source(name="b", dead_letter_queue="dead", queue_type="classic"),
            ],
            "the sources need the queue 'dead' with different settings",
        ),
        (
            [Source(name="a"), Source(name="a.dlq")],
            "the sources need the queue 'a.dlq' with different settings",
        ),
        (
            [Source(name="a"), Source(name="a", max_deliveries=40)],
            "the sources need the queue 'a' with different settings",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(sources: list[Source], says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        wanted(sources)
    assert says in str(refused.value)
