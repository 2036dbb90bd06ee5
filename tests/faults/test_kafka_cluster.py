"""One of three Kafka brokers is killed while records are consumed: consuming goes on, and no record is lost."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from redrive.clock import SystemClock
from redrive.errors import BrokerUnreachableError
from redrive.letters import Message
from redrive.testing.transport_suite.ground import all_done, death_of
from redrive.transports import Delivery, Publication, Receiver, Source, Target
from redrive.transports.kafka import KafkaTransport
from tests.services import Kafka, KafkaServer, Run
from tests.services.guard import LOOPBACK
from tests.services.kafka import new_cluster
from tests.services.server import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.service("kafka")]

NODES = (1, 2, 3)
RECORDS = 2000
KILLED_AFTER = 400
COPIES = {"min.insync.replicas": "2"}
PATIENCE = 60.0


class Cluster(NamedTuple):
    """Three nodes by their ids."""

    nodes: dict[int, KafkaServer]

    @property
    def url(self) -> str:
        """The addresses of all nodes."""
        return f"kafka://{','.join(node.address.bootstrap for node in self.nodes.values())}"

    def leader(self, topic: str) -> int:
        """The node that leads the first partition of a topic."""
        return self.any.admin().list_topics(topic, timeout=30).topics[topic].partitions[0].leader

    @property
    def any(self) -> Kafka:
        """One node, while all are running."""
        return self.nodes[1].address


def node_class(number: int, ports: tuple[int, ...], controllers: str, cluster_id: str) -> type[KafkaServer]:
    class Node(KafkaServer):
        cluster = cluster_id
        settings = {  # noqa: RUF012  # never changed
            "node.id": str(number),
            "controller.quorum.voters": controllers,
            "default.replication.factor": "3",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
        }

    Node.ports = ports
    return Node


@pytest.fixture
def cluster(service_run: Run) -> Iterator[Cluster]:
    free, cluster_id = free_ports(9), new_cluster()
    ports = {number: tuple(free[3 * at : 3 * at + 3]) for at, number in enumerate(NODES)}
    controllers = ",".join(f"{number}@{LOOPBACK}:{ports[number][2]}" for number in NODES)
    kinds = [node_class(number, ports[number], controllers, cluster_id) for number in NODES]
    with ExitStack() as stack, ThreadPoolExecutor(len(NODES)) as pool:
        # All at the same time, because one node has no quorum and does not answer.
        begun = pool.map(lambda kind: stack.enter_context(service_run.private(kind, os.environ)), kinds)
        yield Cluster(dict(zip(NODES, begun, strict=True)))


def copied(kafka: Kafka, name: str, partitions: int) -> str:
    """A topic with a replica on every node."""
    return kafka.topic(name, partitions, COPIES, copies=len(NODES))


async def consumed(receiver: Receiver, wanted: int, seen: Counter[bytes]) -> None:
    """Receive records until `wanted` different ones are settled; every tenth is dead-lettered."""
    async with asyncio.timeout(PATIENCE):
        while len(seen) < wanted:
            await settle(receiver, await receiver.receive(), seen)


async def settle(receiver: Receiver, batch: Sequence[Delivery], seen: Counter[bytes]) -> None:
    dead = [each for each in batch if is_dead(each)]
    waiting = dead
    lost: set[bytes | None] = set()
    while waiting:  # retried, as a consumer does, until the letter is durable or the partition is lost
        outcomes = await receiver.dead_letter([death_of(each) for each in waiting])
        failed = [each for each, error in zip(waiting, outcomes, strict=True) if error is not None]
        lost |= {each.body for each in failed if not each.alive}
        waiting = [each for each in failed if each.alive]
    receiver.accept([each for each in batch if not is_dead(each)])
    seen.update(each.body or b"" for each in batch if each.body not in lost)
    assert not any(each.alive and each.body not in lost for each in dead), (
        "neither settled nor delivered again"
    )


async def settle_what_comes(receiver: Receiver, seen: Counter[bytes]) -> None:
    """Settle records that are delivered again because their accept came from a member that had left the group."""
    receiving = asyncio.ensure_future(receiver.receive())
    await asyncio.wait([receiving], timeout=0.1)
    if receiving.done():
        await settle(receiver, receiving.result(), seen)
    else:
        receiving.cancel()


async def something_waits(transport: KafkaTransport, topic: str) -> bool:
    """Whether records wait, or the brokers cannot answer because another controller is being elected."""
    try:
        return await transport.depth(topic) > 0
    except BrokerUnreachableError:
        return True


def is_dead(delivery: Delivery) -> bool:
    return int(delivery.body or b"") % 10 == 0


@pytest.mark.parametrize("transactions", ["false", "true"])
async def test_kill_of_one_broker_loses_no_record(cluster: Cluster, transactions: str) -> None:
    topic, graves = copied(cluster.any, "orders", 4), copied(cluster.any, "graves", 2)
    url = (
        f"{cluster.url}/?group=shop&session.timeout.ms=4000&heartbeat.interval.ms=400&publish_timeout=10s"
        f"&transactions={transactions}"
    )
    everything = [b"%d" % number for number in range(RECORDS)]
    async with KafkaTransport(url, SystemClock()) as transport:
        messages = [Publication(Message(body=body), Target(name=topic)) for body in everything]
        assert all_done(await transport.publish(messages), RECORDS)
        receiver = await transport.receiver(Source(name=topic, dead_letter_queue=graves, window=100))
        seen: Counter[bytes] = Counter()
        await consumed(receiver, KILLED_AFTER, seen)

        # The leader of a partition, or the transaction coordinator
        killed = cluster.leader("__transaction_state" if transactions == "true" else topic)
        await asyncio.to_thread(cluster.nodes[killed].kill)

        await consumed(receiver, RECORDS, seen)
        assert set(seen) == set(everything)
        async with asyncio.timeout(PATIENCE):
            while await something_waits(transport, topic):
                await settle_what_comes(receiver, seen)  # an accept may have been undone

    async with KafkaTransport(url, SystemClock()) as transport:
        dead: Counter[bytes] = Counter()
        receiver = await transport.receiver(Source(name=graves))
        async with asyncio.timeout(PATIENCE):
            while len(dead) < RECORDS // 10:
                batch = await receiver.receive()
                dead.update(each.body or b"" for each in batch)
                receiver.accept(batch)
        assert set(dead) == {body for body in everything if int(body) % 10 == 0}
        if transactions == "true":
            assert set(dead.values()) == {1}, "a letter was written twice"
