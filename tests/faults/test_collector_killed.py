"""A collector killed in the middle of its work, again and again: every dead letter is in the store, and once.

RabbitMQ 4 does not always tell the first delivery of a rejected message from the second. There, a message without an id
may be kept a second time after a kill; that letter has the tag `possible-duplicate`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pika
import pytest

from redrive.clock import SystemClock
from redrive.collect.collector import POSSIBLE_DUPLICATE
from redrive.letters import DeadLetter, Message
from redrive.stores.query import EVERYTHING
from redrive.stores.sqlite import SqliteStore
from redrive.transports import Publication, Source, Target, open_transport
from tests.faults.children import a_child
from tests.services import RabbitMQ

CHILD = Path(__file__).with_name("collector_child.py")
COUNT, BATCH = 2000, 50  # a collector takes up to two batches at once
# Each child is killed when it has said this word so often: before a batch is durable, or after; never near the end.
LIVES = (("adding", 2), ("kept", 1), ("adding", 3), ("kept", 3), ("adding", 2))


def a_message(number: int) -> Message:
    """Every second one has no id; of the others, two each have the same body."""
    body = b"%d" % (number // 4) if number % 2 else b"no id, %d" % number
    return Message(body=body, message_id=f"m-{number}" if number % 2 else None)


async def send(url: str, queue_type: str, messages: Sequence[Message]) -> None:
    target = Target(name="orders")
    async with open_transport(url, SystemClock()) as transport:
        await transport.provision([Source(name="orders", queue_type=queue_type)])  # type: ignore[arg-type]
        assert not any(await transport.publish([Publication(message, target) for message in messages]))


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
    """How often each message was kept, without those that are marked as possible duplicates and have no id."""
    return Counter(
        (letter.message.body, letter.message.message_id)
        for letter in await every_letter(path)
        if letter.message.message_id or POSSIBLE_DUPLICATE not in letter.tags
    )


async def every_letter(path: Path) -> list[DeadLetter]:
    store = await SqliteStore.open(path)
    found: list[DeadLetter] = []
    cursor: str | None = None
    while True:
        page = await store.page(EVERYTHING, limit=500, cursor=cursor)
        found += await store.load([head.id for head in page.heads])
        if (cursor := page.cursor) is None:
            break
    assert await store.damage() is None
    await store.close()
    return found


@pytest.mark.timeout(200)
@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_a_collector_killed_while_it_drains_keeps_every_dead_letter_exactly_once(
    each_broker: RabbitMQ, tmp_path: Path, queue_type: str
) -> None:
    path, broker_url = tmp_path / "letters.db", each_broker.amqp_url
    asyncio.run(send(broker_url, queue_type, [*map(a_message, range(COUNT))]))
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


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
@pytest.mark.parametrize("how", ["basic_reject", "basic_nack"])
def test_equal_messages_without_an_id_are_as_many_letters(
    each_broker: RabbitMQ, tmp_path: Path, queue_type: str, how: str
) -> None:
    path, url, count = tmp_path / "letters.db", each_broker.amqp_url, 120  # in three batches
    asyncio.run(send(url, queue_type, [Message(body=b"the same")] * count))
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        messages = channel.consume("orders", inactivity_timeout=30)
        for _, (method, _, _) in zip(range(count), messages, strict=False):
            assert method is not None
            getattr(channel, how)(method.delivery_tag, requeue=False)
        channel.cancel()

    collect(path, url)

    store = asyncio.run(every_letter(path))
    assert [letter.message.body for letter in store] == [b"the same"] * count
