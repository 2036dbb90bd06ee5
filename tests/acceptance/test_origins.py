"""The letter of a message names the queue, the exchange and the routing key that it came from, however it died.

Each row of the table is a chain of queues that ends in one dead-letter queue. The broker moves the messages by itself,
pika is the consumer that gives them up, and redrive's collector reads what arrives.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from redrive.clock import SystemClock
from redrive.collect import Collector
from redrive.collect.reading import Reader
from redrive.letters import DeadLetter
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, StrategyOptions
from redrive.stores.sqlite import SqliteStore
from redrive.transports import open_transport
from tests.acceptance.broker_world import World
from tests.acceptance.way_back import Flaky, open_way_back
from tests.services import RabbitMQ

QueueType = Literal["classic", "quorum"]
DEAD = "dead"
_PATIENCE = 30.0  # seconds


@dataclass(frozen=True)
class Row:
    """One way of dying: what the work queue is set to, what its consumer does, and the hop that follows."""

    name: str
    reason: str
    settings: dict[str, object]
    by: Literal["arguments", "policy"] = "arguments"
    hop: Literal["none", "expiring queue", "retry queue", "delay queue before"] = "none"
    only: QueueType | None = None


def _rows() -> list[Row]:
    rows: list[Row] = []
    ways: list[tuple[str, dict[str, object], QueueType | None]] = [
        ("rejected", {}, None),
        ("expired", {"message-ttl": 1}, None),
        ("maxlen", {"max-length": 1}, None),
        ("delivery_limit", {"delivery-limit": 1}, "quorum"),
    ]
    for reason, settings, only in ways:
        for by in ("arguments", "policy"):
            for hop in ("none", "expiring queue"):
                name = f"{reason}-{by}-{hop.replace(' ', '-')}"
                rows.append(Row(name, reason, settings, by, hop, only))
    rows += [
        Row("rejected-after-a-delay", "rejected", {}, hop="delay queue before"),
        Row("rejected-after-a-retry", "rejected", {}, "policy", "retry queue"),
        Row(
            "limit-after-a-retry", "delivery_limit", {"delivery-limit": 1}, "policy", "retry queue", "quorum"
        ),
    ]
    return rows


ROWS = _rows()


@pytest.mark.parametrize("looked_at", [False, True], ids=["first-delivery", "redelivered"])
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_letter_names_where_its_message_came_from_however_it_died(
    each_broker: RabbitMQ, tmp_path: Path, queue_type: QueueType, looked_at: bool
) -> None:
    rows = [row for row in ROWS if row.only in (None, queue_type)]
    world = World(each_broker)
    with world.channel() as channel:
        channel.confirm_delivery()
        channel.queue_declare(DEAD, durable=True, arguments={"x-queue-type": queue_type})
        for row in rows:
            _declare(world, channel, row, queue_type)
        for row in rows:
            _kill(world, channel, row)
        _wait_for(channel, len(rows))
        if looked_at:  # another client takes them and loses its connection
            with world.channel() as other:
                taken = [other.basic_get(DEAD) for _ in rows]
                assert all(method is not None for method, _, _ in taken)

    letters = await _collected(each_broker, tmp_path, len(rows))

    found = {
        (letter.message.body or b"").decode(): (
            letter.source,
            letter.origin.exchange,
            letter.origin.routing_key,
            letter.reason,
        )
        for letter in letters
    }
    assert found == {row.name: (row.name, f"{row.name}.shop", f"{row.name}.new", row.reason) for row in rows}


@pytest.mark.parametrize("dead_letter", ["publish", "native"])
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_letter_of_a_message_that_redrive_gave_up_names_where_it_came_from(
    each_broker: RabbitMQ, tmp_path: Path, queue_type: QueueType, dead_letter: str
) -> None:
    async with open_way_back(each_broker.amqp_url, tmp_path, queue_type=queue_type) as way:
        with way.outside.channel() as channel:
            channel.exchange_declare("shop", "topic", durable=True)
            channel.queue_bind("orders", "shop", "orders.*")
        handler = Flaky(ConnectionResetError("connection reset by peer"))
        async with way.consuming(handler, max_deliveries=2, dead_letter=dead_letter):
            way.outside.publish("orders.new", (b"one", pika.BasicProperties()), exchange="shop")
            (head,) = await way.until_letters(1)

        letter = await way.whole(head.id)

        assert len(handler.seen) == 2
        assert (letter.source, letter.origin.exchange, letter.origin.routing_key) == (
            "orders",
            "shop",
            "orders.new",
        )


# --- making and killing --------------------------------------------------------------------------------------


def _declare(world: World, channel: BlockingChannel, row: Row, queue_type: QueueType) -> None:
    """The exchange and the work queue of a row, the queue beside it, and how they dead-letter."""
    kind = {"x-queue-type": queue_type}
    settings = {**row.settings, "dead-letter-exchange": f"{row.name}.dlx"}
    channel.exchange_declare(f"{row.name}.shop", "topic", durable=True)
    channel.exchange_declare(f"{row.name}.dlx", "fanout", durable=True)
    arguments = {f"x-{name}": value for name, value in settings.items()} if row.by == "arguments" else {}
    channel.queue_declare(row.name, durable=True, arguments=kind | arguments)
    channel.queue_bind(row.name, f"{row.name}.shop", f"{row.name}.*")
    if row.by == "policy":
        world.policy(f"of-{row.name}", row.name, **settings)
    after = {
        "expiring queue": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD},
        "retry queue": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": row.name},
        "delay queue before": {
            "x-dead-letter-exchange": f"{row.name}.shop",
            "x-dead-letter-routing-key": f"{row.name}.new",
        },
    }.get(row.hop)
    if after is not None:
        beside = f"{row.name}.beside"
        channel.queue_declare(beside, durable=True, arguments={**kind, **after, "x-message-ttl": 1})
    through = row.hop in {"expiring queue", "retry queue"}
    channel.queue_bind(f"{row.name}.beside" if through else DEAD, f"{row.name}.dlx")


def _kill(world: World, channel: BlockingChannel, row: Row) -> None:
    """Publish a message and let it die by the row's reason, so that it arrives in the dead-letter queue."""
    exchange, key = f"{row.name}.shop", f"{row.name}.new"
    if row.hop == "delay queue before":
        exchange, key = "", f"{row.name}.beside"
    body = row.name.encode()
    channel.basic_publish(exchange, key, body, pika.BasicProperties(delivery_mode=2), mandatory=True)
    if row.hop == "retry queue":
        method = _get(channel, row.name)
        channel.basic_reject(method, requeue=False)
        tag = _get(channel, row.name)  # it went round
        with world.channel() as other:
            other.queue_unbind(f"{row.name}.beside", f"{row.name}.dlx")
            other.queue_bind(DEAD, f"{row.name}.dlx")
        _give_up(channel, row, tag)
    elif row.reason == "maxlen":
        channel.basic_publish(exchange, key, b"newer", pika.BasicProperties(delivery_mode=2), mandatory=True)
    elif row.reason != "expired":
        _give_up(channel, row, _get(channel, row.name))


def _give_up(channel: BlockingChannel, row: Row, tag: int) -> None:
    channel.basic_reject(tag, requeue=row.reason == "delivery_limit")
    while row.reason == "delivery_limit":
        for _ in range(20):
            method, _, _ = channel.basic_get(row.name)
            if method is not None:
                break
            channel.connection.sleep(0.01)
        else:
            return
        channel.basic_reject(method.delivery_tag, requeue=True)


def _get(channel: BlockingChannel, queue: str) -> int:
    for _ in range(500):
        method, _, _ = channel.basic_get(queue)
        if method is not None:
            return int(method.delivery_tag)
        channel.connection.sleep(0.02)
    raise AssertionError(f"nothing came to {queue}")


def _wait_for(channel: BlockingChannel, count: int) -> None:
    arrived = -1
    for _ in range(600):
        arrived = channel.queue_declare(DEAD, passive=True).method.message_count
        if arrived == count:
            return
        channel.connection.sleep(0.05)
    raise AssertionError(f"{arrived} of {count} messages arrived in {DEAD}")


async def _collected(broker: RabbitMQ, directory: Path, count: int) -> list[DeadLetter]:
    """What the collector keeps of the dead-letter queue."""
    clock, options, troubles = SystemClock(), StrategyOptions(), []
    enough, stop = asyncio.Event(), asyncio.Event()
    store = await SqliteStore.open(directory / "letters.db", clock=clock)
    try:
        async with open_transport(broker.amqp_url, clock) as transport:
            collector = Collector(
                transport,
                store,
                DEAD,
                reader=Reader(Classifier(), Redactor(), options),
                options=options,
                clock=clock,
                trouble=lambda what, error: troubles.append(f"{what}: {error}"),
                collected=lambda _letters: enough.set() if collector.counts.collected >= count else None,
            )
            running = asyncio.create_task(collector.run(stop))
            async with asyncio.timeout(_PATIENCE):
                await enough.wait()
            stop.set()
            await running
        assert troubles == []
        heads = (await store.page(limit=1000)).heads
        return list(await store.load([head.id for head in heads]))
    finally:
        await store.close()
