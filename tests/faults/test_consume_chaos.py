"""A consumer behind a network that cuts, delays and half-closes; of the messages a tenth fails.

At the end each message was processed or lies in the dead letters: losses 0. Duplicates are counted and printed.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from redrive import App, DeadLettered
from redrive.clock import SystemClock
from redrive.letters import Message
from redrive.settings import read
from redrive.transports import Publication, Source, Target, open_transport
from tests import soak
from tests.services import RabbitMQ

ROOT = Path(__file__).parents[2]
SECONDS = 240


@contextmanager
def a_bad_network(url: str, seed: int) -> Iterator[tuple[str, dict[str, int]]]:
    """A URL that leads through the proxy, and what the proxy did, once it has ended."""
    address = urlsplit(url)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.proxy", str(address.port), str(seed)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    done: dict[str, int] = {}
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        user = address.netloc.rpartition("@")[0]
        yield address._replace(netloc=f"{user}@127.0.0.1:{port}").geturl(), done
        answer, _ = process.communicate("end\n", timeout=20)
        done.update(json.loads(answer))
    finally:
        process.kill()
        process.communicate()


async def fill(url: str, source: Source, count: int) -> None:
    async with open_transport(url, SystemClock()) as transport:
        await transport.provision([source])
        target = Target(name=source.name)
        for start in range(0, count, 2000):
            batch = [
                Publication(Message(body=str(number).encode(), message_id=str(number)), target)
                for number in range(start, min(start + 2000, count))
            ]
            assert not any(await transport.publish(batch))


async def drain(url: str, queue: str) -> list[tuple[int, str]]:
    """Number and reason of every dead letter."""
    found: list[tuple[int, str]] = []
    async with open_transport(url, SystemClock()) as transport:
        count = await transport.depth(queue)
        receiver = await transport.receiver(Source(name=queue, window=2000))
        while len(found) < count:
            batch = await receiver.receive()
            for delivery in batch:
                header = delivery.message.headers
                found.append((int(delivery.body or b""), header.text("redrive-reason") or ""))
            receiver.accept(batch)
        await receiver.close()
    return found


async def run(url: str, queue_type: str, count: int, seed: int) -> dict[str, object]:
    source = Source(name="orders", queue_type=queue_type, window=200)  # type: ignore[arg-type]  # one of two
    await fill(url, source, count)
    processed, told, ended = Counter[int](), set[int](), asyncio.Event()

    def look() -> None:
        if len(processed) + len(told - processed.keys()) == count:
            ended.set()

    async def hear(event: DeadLettered) -> None:
        if event.durable:
            told.add(int(event.message_id or ""))
            look()

    settings = read({"consume": {"breaker": {"enabled": False}, "shutdown_timeout": "20s", "backoff": "5ms"}})
    with a_bad_network(url, seed) as (through, done):
        app = App(through, settings=settings, observers=[], on_dead_letter=[hear])

        @app.consume("orders", prefetch=200, concurrency=20)
        async def handle(body: bytes) -> None:
            number = int(body)
            if number % 10 == 0:
                raise PermissionError("every tenth fails")
            processed[number] += 1
            if len(processed) + len(told) >= count:
                look()

        async with app:
            await asyncio.wait_for(ended.wait(), SECONDS)
    async with open_transport(url, SystemClock()) as outside:
        left = await outside.depth("orders")
    dead = await drain(url, "orders.dlq")
    numbers = {number for number, _ in dead}
    lost = sorted(set(range(count)) - set(processed) - numbers)
    twice = sum(processed.values()) - len(processed)
    soak.report(acknowledged=count, lost=len(lost), duplicated=twice)
    return {
        "published": count,
        "processed": len(processed),
        "dead": len(numbers),
        "lost": lost[:20],
        "handled twice": twice,
        "dead twice": len(dead) - len(numbers),
        "left in the queue": left,
        "both": len(set(processed) & numbers),
        "poison by bad luck": sum(reason == "PoisonMessage" for number, reason in dead if number % 10),
        "network": done,
    }


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
async def test_a_network_that_cuts_loses_no_message(
    rabbitmq: RabbitMQ, queue_type: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # In CI just enough that the network cuts a connection: the first cut comes within 0.4 s.
    count = soak.count(100_000 if queue_type == "quorum" else 30_000, in_ci=10_000)
    result = await run(rabbitmq.amqp_url, queue_type, count, soak.seed(20))
    with capsys.disabled():
        print(f"\nchaos, {queue_type} queue: {json.dumps(result)}")  # noqa: T201  that is how it tells
    assert result["lost"] == []
    assert result["poison by bad luck"] == 0
    assert result["network"].get("cut", 0) > 0, "no connection was cut: the test shows nothing"  # type: ignore[attr-defined]
