"""Consumer, server and broker are killed in turn under load: no confirmed message is lost.

A publisher sends messages with unique ids to a quorum and to a classic queue and waits for confirms, while a shop
(`redrive consume`), a server (`redrive serve`) and RabbitMQ are killed by SIGKILL and started again. At the end each
confirmed message was handled, or is a letter in the store, or is in a dead-letter queue. Duplicates are counted.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import random
import signal
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pika
import pika.exceptions
import pytest

from redrive.clock import SystemClock
from redrive.letters import LetterHead, State
from redrive.settings import StoreSettings
from redrive.stores import open_store
from redrive.stores.query import EVERYTHING
from redrive.transports import Source, open_transport
from tests import soak
from tests.acceptance.serving import Process, Serving, until
from tests.services import RabbitMQServer

KILLS = soak.count(60)
VICTIMS = ("consumer", "server", "broker")
QUEUES: dict[str, Literal["quorum", "classic"]] = {"orders": "quorum", "invoices": "classic"}
PUBLISHERS, RATE = 4, 100  # each of them publishes at most so many messages per second
PATIENCE = 120.0
DEAD = {State.MANUAL, State.FAILED}  # a letter that nothing will happen to by itself
SETTINGS = """
    [recover]
    poll = "50ms"
    steps = ["100ms"]
    lease = "10s"
    quiet_time = "20s"
    cpu_below = 1.0
    memory_below = 1.0

    [consume]
    flood_breaker = false

    [[sources]]
    name = "orders"

    [[sources]]
    name = "invoices"
"""
# Of ten messages one is refused for good, one fails until it is redriven, and eight are handled at once.
SHOP = """
    import asyncio
    import os

    from redrive import App, Context

    app = App({url!r})
    log = os.open("handled", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @app.consume("orders", concurrency=10)
    @app.consume("invoices", concurrency=10)
    async def handle(body: bytes, context: Context) -> None:
        number = int(body)
        if number % 10 == 0:
            raise PermissionError("this account is closed")
        if number % 10 == 1 and context.headers.get("redrive-id") is None:
            raise TimeoutError("the bank did not answer")
        await asyncio.sleep(0.01)
        os.write(log, b"%d\\n" % number)
        await asyncio.sleep(0.01)  # a kill here means a duplicate
"""


class Publishers:
    """Publish numbers to the queues in turn, with confirms, and reconnect when the broker has gone."""

    def __init__(self, url: str) -> None:
        self.parameters = pika.URLParameters(url)
        self.confirmed: set[int] = set()
        self.unconfirmed: set[int] = set()
        self.failed: list[BaseException] = []
        self._numbers = itertools.count(1)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(PUBLISHERS)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                with (
                    contextlib.suppress(pika.exceptions.AMQPError, OSError),
                    pika.BlockingConnection(self.parameters) as connection,
                ):
                    channel = connection.channel()
                    channel.confirm_delivery()
                    while not self._stopping.is_set():
                        number = next(self._numbers)  # never used again, confirmed or not
                        self.unconfirmed.add(number)
                        channel.basic_publish(
                            "",
                            tuple(QUEUES)[number % len(QUEUES)],
                            b"%d" % number,
                            pika.BasicProperties(message_id=f"{number}", delivery_mode=2),
                            mandatory=True,
                        )
                        self.unconfirmed.remove(number)
                        self.confirmed.add(number)
                        connection.sleep(1 / RATE)
                self._stopping.wait(0.2)
        except BaseException as error:
            self.failed.append(error)
            raise

    def end(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert not self.failed, self.failed

    def last(self) -> int:
        """The highest number that was confirmed."""
        return max(self.confirmed.copy(), default=0)


class World:
    """The shop, the server and the broker, each of which can be killed and started again."""

    def __init__(self, place: Path, rabbitmq: RabbitMQServer) -> None:
        self.place = place
        self.rabbitmq = rabbitmq
        (place / "shop.py").write_text(textwrap.dedent(SHOP.format(url=rabbitmq.amqp_url)))
        (place / "handled").touch()
        asyncio.run(self._provision())
        self.server = self._serve()
        self.shop = self._consume()

    async def _provision(self) -> None:
        async with open_transport(self.rabbitmq.amqp_url, SystemClock()) as transport:
            await transport.provision([Source(name=name, queue_type=kind) for name, kind in QUEUES.items()])

    def _serve(self) -> Serving:
        return Serving(self.place, "--broker", self.rabbitmq.amqp_url, settings=SETTINGS)

    def _consume(self) -> Process:
        shop = Process(self.place, "consume", "shop")
        shop.until_it_says("redrive consume")
        return shop

    def kill(self, victim: str) -> None:
        """Kill one of the three at once, and start it again."""
        match victim:
            case "consumer":
                self.shop.end(signal.SIGKILL)
                self.shop = self._consume()
            case "server":
                self.server.end(signal.SIGKILL)
                self.server = self._serve()
            case "broker":
                self.rabbitmq.kill()
                self.rabbitmq.start()

    def handled(self) -> Counter[int]:
        return Counter(map(int, (self.place / "handled").read_text().split()))

    def handles_above(self, number: int) -> bool:
        return max(self.handled(), default=0) > number

    def unrest(self, confirmed: set[int]) -> dict[str, int]:
        """What is still under way, by kind; empty when everything has come to rest."""
        letters = asyncio.run(self.server.heads())
        names = (*QUEUES, *(f"{name}.dlq" for name in QUEUES))
        queues = {name: self.rabbitmq.address.api("GET", f"/queues/%2F/{name}") for name in names}
        accounted = self.handled().keys() | {
            int(head.message_id or "") for head in letters if head.state in DEAD
        }
        found = {
            **{name: queue.get("messages", 0) for name, queue in queues.items()},
            **Counter(
                f"letters {head.state}" for head in letters if head.state not in {*DEAD, State.RESOLVED}
            ),
            "not accounted for": len(confirmed - accounted),
        }
        return {what: number for what, number in found.items() if number}

    def end(self) -> None:
        """Stop the shop and the server in order."""
        assert self.shop.end() == 0, self.shop.errors
        assert self.server.end() == 0, self.server.errors


@contextlib.contextmanager
def a_world(place: Path, rabbitmq: RabbitMQServer) -> Iterator[World]:
    world = World(place, rabbitmq)
    try:
        yield world
    finally:
        for process in (world.shop, world.server):
            if process.process.poll() is None:
                process.end(signal.SIGKILL)


async def stored(url: str) -> list[LetterHead]:
    store = await open_store(StoreSettings(url=url))
    try:
        assert await store.damage() is None
        found: list[LetterHead] = []
        cursor = None
        while True:
            page = await store.page(EVERYTHING, limit=1000, cursor=cursor)
            found += page.heads
            if (cursor := page.cursor) is None:
                return found
    finally:
        await store.close()


def in_dead_letter_queues(url: str) -> Counter[int]:
    found: Counter[int] = Counter()
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        for queue in QUEUES:
            while (got := channel.basic_get(f"{queue}.dlq", auto_ack=True))[0] is not None:
                found[int(got[2])] += 1
    return found


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(soak.count(3600, in_ci=400))
def test_kills_of_consumer_server_and_broker_lose_no_confirmed_message(
    tmp_path: Path, own_rabbitmq: RabbitMQServer, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(60)
    with a_world(tmp_path, own_rabbitmq) as world:
        publishers = Publishers(own_rabbitmq.amqp_url)
        began = time.monotonic()
        for number in range(KILLS):
            # Given that all three work: a message is confirmed and handled that was not published before.
            last = publishers.last()
            until(functools.partial(world.handles_above, last), f"kill {number}: work goes on", PATIENCE)
            time.sleep(chance.uniform(0.0, 1.0))  # a random moment of the load
            # When one of them is killed and started again
            world.kill(VICTIMS[number % len(VICTIMS)])
        publishers.end()
        took = time.monotonic() - began

        # Then everything comes to rest: all is accounted for, and no letter waits for a redrive or its result.
        deadline = time.monotonic() + PATIENCE
        while unrest := world.unrest(publishers.confirmed):
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        rest = time.monotonic() - began - took
        handled = world.handled()
        world.end()

    letters = asyncio.run(stored(f"sqlite:{tmp_path / 'data' / 'redrive.db'}"))
    by_state = Counter(head.state for head in letters)
    kept = Counter(int(head.message_id or "") for head in letters if head.state in DEAD)
    dead = in_dead_letter_queues(own_rabbitmq.amqp_url)
    lost = publishers.confirmed - handled.keys() - kept.keys() - dead.keys()
    figures = {
        "version": own_rabbitmq.address.api("GET", "/overview")["rabbitmq_version"],
        "kills": KILLS,
        "seconds": round(took),
        "seconds to rest": round(rest),
        "confirmed": len(publishers.confirmed),
        "not confirmed": len(publishers.unconfirmed),
        "lost": len(lost),
        "handled": len(handled),
        "handled more than once": sum(times > 1 for times in handled.values()),
        "letters": dict(by_state),
        "messages with several letters": sum(
            times > 1 for times in Counter(head.message_id for head in letters).values()
        ),
        "handled, and an open letter": len(handled.keys() & kept.keys()),
        "poison": sum(head.error_type == "PoisonMessage" for head in letters),
        "in dead-letter queues": dead.total(),
    }
    with capsys.disabled():
        print(f"\nkills under load: {json.dumps(figures)}")  # noqa: T201  the figures are the result
    assert not unrest, f"not at rest after {PATIENCE:g} s: {unrest}"
    assert not lost, f"{len(lost)} confirmed messages are lost, for example {sorted(lost)[:10]}"
    assert publishers.confirmed, "nothing was confirmed: the test shows nothing"
    assert by_state[State.RESOLVED], "nothing was redriven: the test shows nothing"
    refused = {number for number in publishers.confirmed if number % 10 == 0}
    assert refused <= kept.keys() | dead.keys(), "a refused message has no letter"
    known = publishers.confirmed | publishers.unconfirmed
    assert handled.keys() | kept.keys() | dead.keys() <= known, "a message came that nobody published"
