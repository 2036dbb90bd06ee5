"""A collector killed in the middle of its work, again and again: every dead letter is in the store exactly once."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pika
import pytest

from redrive.clock import SystemClock
from redrive.letters import Message
from redrive.stores.query import EVERYTHING
from redrive.stores.sqlite import SqliteStore
from redrive.transports import Publication, Source, Target, open_transport
from tests.faults.children import a_child

CHILD = Path(__file__).with_name("collector_child.py")
COUNT, BATCH = 2000, 50  # a collector takes up to two batches at once
# Each child is killed when it has said this word so often: before a batch is durable, or after; never near the end.
LIVES = (("adding", 2), ("kept", 1), ("adding", 3), ("kept", 3), ("adding", 2))


def a_message(number: int) -> Message:
    """Every second one has no id; of the others, two each have the same body."""
    body = b"%d" % (number // 4) if number % 2 else b"no id, %d" % number
    return Message(body=body, message_id=f"m-{number}" if number % 2 else None)


async def send(url: str, queue_type: str) -> None:
    target = Target(name="orders")
    async with open_transport(url, SystemClock()) as transport:
        await transport.provision([Source(name="orders", queue_type=queue_type)])  # type: ignore[arg-type]
        sent = [Publication(a_message(number), target) for number in range(COUNT)]
        assert not any(await transport.publish(sent))


def reject_all(url: str) -> None:
    """The broker's own dead letters: pika takes everything and rejects it."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for count, (method, _, _) in enumerate(channel.consume("orders", inactivity_timeout=30), start=1):
            assert method is not None
            if count == COUNT:
                channel.basic_nack(method.delivery_tag, multiple=True, requeue=False)
                break
        channel.cancel()


def collect(path: Path, url: str, word: str | None = None, times: int = 0) -> None:
    """Run a child until it has said a word so often, then kill it; None: until the queue is drained, then stop it."""
    child = a_child(CHILD, str(path), url, "orders.dlq", str(BATCH))
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        if word is None:
            end = time.monotonic() + 60
            while asyncio.run(left(url)) and time.monotonic() < end:
                assert child.poll() is None, child.stderr.read().decode()
                time.sleep(0.2)
            child.terminate()
            _, errors = child.communicate(timeout=30)
            assert child.returncode == 0, errors.decode()
            return
        while times:
            line = child.stdout.readline()
            assert line, child.stderr.read().decode()
            times -= line.startswith(word.encode())
    finally:
        child.kill()
        child.communicate()


async def left(url: str) -> int:
    """What waits in the queue."""
    async with open_transport(url, SystemClock()) as transport:
        return await transport.depth("orders.dlq")


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
    asyncio.run(send(broker_url, queue_type))
    reject_all(broker_url)
    for word, times in LIVES:
        collect(path, broker_url, word, times)
        assert sum(asyncio.run(letters(path)).values()) < COUNT, "it was not killed in the middle"
    for _ in range(3):
        collect(path, broker_url)
        if not asyncio.run(left(broker_url)):  # what it had not begun when it was stopped has come back
            break
    sent = map(a_message, range(COUNT))
    wanted = Counter((message.body, message.message_id) for message in sent)
    assert asyncio.run(letters(path)) == wanted
    assert asyncio.run(left(broker_url)) == 0
