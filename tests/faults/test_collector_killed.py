"""A collector killed in the middle of its work, again and again: every dead letter is in the store exactly once."""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pika
import pytest

from redrive.clock import SystemClock
from redrive.stores.query import EVERYTHING
from redrive.stores.sqlite import SqliteStore
from redrive.transports import Source, open_transport

pytest_plugins = ["tests.interop.brokers"]

CHILD = Path(__file__).with_name("collector_child.py")
COUNT, BATCH = 2000, 100
# After so many batches that were kept, each child is killed: none of them comes near the end.
LIVES = (1, 3, 6)


def bury(url: str) -> None:
    """Dead letters of the broker: sent, fetched and rejected by pika. Every second one has no id."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(COUNT):
            name = f"m-{number}" if number % 2 else None
            body = b"%d" % (number - number % 4)  # so that some look alike but for their ids
            channel.basic_publish("", "orders", body, pika.BasicProperties(message_id=name, delivery_mode=2))
        channel.basic_qos(prefetch_count=0)
        last = 0
        for _ in range(COUNT):
            method, _, _ = channel.basic_get("orders")
            last = method.delivery_tag
        channel.basic_nack(last, multiple=True, requeue=False)


def collect(path: Path, url: str, batches: int | None) -> None:
    """Run a child until it has kept so many batches, then kill it; None: until the queue is drained."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(path), url, "orders.dlq", str(BATCH)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        if batches is None:
            end = time.monotonic() + 60
            while asyncio.run(left(url)) and time.monotonic() < end:
                assert child.poll() is None, child.stderr.read().decode()
                time.sleep(0.2)
            return
        for _ in range(batches):
            line = child.stdout.readline()
            assert line.startswith(b"kept "), child.stderr.read().decode()
    finally:
        child.kill()
        child.communicate()


async def left(url: str) -> int:
    """What waits in the queue. What is out counts as well: a child that is killed gives it back."""
    async with open_transport(url, SystemClock()) as transport:
        return await transport.depth("orders.dlq")


async def provision(url: str, queue_type: str) -> None:
    async with open_transport(url, SystemClock()) as transport:
        await transport.provision([Source(name="orders", queue_type=queue_type)])  # type: ignore[arg-type]


async def letters(path: Path) -> Counter[tuple[bytes | None, str | None]]:
    store = await SqliteStore.open(path)
    found: Counter[tuple[bytes | None, str | None]] = Counter()
    cursor: str | None = None
    while True:
        page = await store.page(EVERYTHING, limit=500, cursor=cursor)
        whole = await store.load([head.id for head in page.heads])
        found.update((letter.message.body, letter.message.message_id) for letter in whole)
        if (cursor := page.cursor) is None:
            break
    assert await store.damage() is None
    await store.close()
    return found


@pytest.mark.timeout(200)
@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_a_collector_killed_while_it_drains_keeps_every_dead_letter_exactly_once(
    broker_url: str, tmp_path: Path, queue_type: str
) -> None:
    path = tmp_path / "letters.db"
    asyncio.run(provision(broker_url, queue_type))
    bury(broker_url)
    for batches in LIVES:
        collect(path, broker_url, batches)
        assert sum(asyncio.run(letters(path)).values()) < COUNT, "it was not killed in the middle"
    for _ in range(3):  # what the last one had out comes back when it is gone
        collect(path, broker_url, None)
        if sum(asyncio.run(letters(path)).values()) >= COUNT:
            break
    wanted = Counter(
        (b"%d" % (number - number % 4), f"m-{number}" if number % 2 else None) for number in range(COUNT)
    )
    assert asyncio.run(letters(path)) == wanted
    assert asyncio.run(left(broker_url)) == 0
