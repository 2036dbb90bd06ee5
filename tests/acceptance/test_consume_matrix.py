"""The decision matrix of seed 000, on a real RabbitMQ and on the embedded broker: each case ends as A1 and A6 say.

pika looks from outside at what is left in the queues: an independent witness of what redrive wrote.
"""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from redrive import App, Context
from redrive.rules import Fixed
from redrive.settings import Settings, read
from tests.acceptance.told import Told
from tests.services import RabbitMQServer
from tests.services.server import Server

NO_FLOOD = read({"consume": {"breaker": {"enabled": False}, "shutdown_timeout": "5s", "backoff": "10ms"}})
BOTH = pytest.mark.parametrize("queue_type", ["quorum", "classic"])


@dataclass
class Order:
    id: int


@dataclass(frozen=True)
class Dead:
    """A dead letter, as pika sees it."""

    body: bytes
    properties: pika.BasicProperties
    routing_key: str

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.headers or {})


class Outside:
    """The broker, seen by pika."""

    def __init__(self, url: str) -> None:
        self.url = url

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            yield connection.channel()

    def send(self, *bodies: bytes, queue: str = "orders", **properties: Any) -> None:
        with self.channel() as channel:
            channel.confirm_delivery()
            for body in bodies:
                fields = pika.BasicProperties(delivery_mode=2, **properties)
                channel.basic_publish("", queue, body, fields, mandatory=True)

    def take(self, queue: str = "orders.dlq") -> list[Dead]:
        """Everything in a queue."""
        found: list[Dead] = []
        with self.channel() as channel:
            while (answer := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(Dead(answer[2], answer[1], answer[0].routing_key))
        return found

    def depth(self, queue: str = "orders") -> int:
        with self.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).method.message_count)


def an_app(url: str, told: Told, settings: Settings = NO_FLOOD) -> App:
    return App(url, settings=settings, on_dead_letter=[told])


async def all_taken(outside: Outside) -> None:
    """Nothing waits in the source: what comes again is with the consumer, or done."""
    async with asyncio.timeout(30):
        while await asyncio.to_thread(outside.depth) > 0:  # noqa: ASYNC110  it is another system that is asked
            await asyncio.sleep(0.05)


async def nothing_left(outside: Outside, queue: str = "orders") -> None:
    """The source is empty, also of what was out: the consumer has gone."""
    assert await asyncio.to_thread(outside.depth, queue) == 0


@BOTH
async def test_success_completes(broker_url: str, queue_type: Any) -> None:
    told, outside, seen = Told(), Outside(broker_url), asyncio.Event()
    app = an_app(broker_url, told)

    @app.consume("orders", queue_type=queue_type)
    async def handle(order: Order) -> None:
        assert order == Order(1)
        seen.set()

    async with app:
        await app.publish("orders", Order(1))
        await asyncio.wait_for(seen.wait(), 10)
    await nothing_left(outside)
    assert outside.take() == []
    assert told.events == []


@BOTH
@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (b'{"id": 1}', "PermissionError", "user shop may not log in at postgres://shop:[REDACTED"),
        (b"not json at all", "DecodeError", "cannot be decoded from JSON"),
    ],
    ids=["non-retryable", "undecodable"],
)
async def test_what_no_retry_can_help_is_dead_lettered_at_once(
    broker_url: str, queue_type: Any, body: bytes, error: str, words: str
) -> None:
    told, outside = Told(), Outside(broker_url)
    app = an_app(broker_url, told)
    tries = 0

    @app.consume("orders", queue_type=queue_type)
    async def handle(order: Order) -> None:
        nonlocal tries
        tries += 1
        raise PermissionError("user shop may not log in at postgres://shop:hunter2@db/orders")

    async with app:
        outside.send(body, message_id="m-1", correlation_id="c-1", headers={"x-tenant": "north", "n": 7})
        await told.until(lambda events: len(events) == 1)
    (dead,) = outside.take()
    await nothing_left(outside)
    assert tries == (error == "PermissionError")
    assert dead.body == body
    assert dead.properties.message_id == "m-1"
    assert dead.properties.delivery_mode == 2
    headers = dead.headers
    assert headers["x-tenant"] == "north"
    assert headers["n"] == 7
    assert headers["redrive-reason"] == "NonRetryableError"
    assert headers["redrive-error-type"] == error
    assert words in headers["redrive-description"]
    assert headers["redrive-source"] == "orders"
    assert headers["redrive-correlation-id"] == "c-1"
    assert headers["redrive-delivery-count"] == 1
    assert "hunter2" not in repr(dead)
    assert [event.reason for event in told.events] == ["NonRetryableError"]


@BOTH
async def test_a_retryable_failure_comes_again_and_is_dead_lettered_at_the_limit(
    broker_url: str, queue_type: Any
) -> None:
    told, outside, counts = Told(), Outside(broker_url), list[int]()
    app = an_app(broker_url, told)

    @app.consume("orders", queue_type=queue_type, attempts=2)
    async def handle(order: Order, context: Context) -> None:
        counts.append(context.delivery_count)
        raise ConnectionResetError("connection reset by peer")

    async with app:
        outside.send(b'{"id": 1}', message_id="m-1", headers={"a": "b"})
        await told.until(lambda events: len(events) == 1)
    (dead,) = outside.take()
    await nothing_left(outside)
    assert counts == [1, 1, 2, 2, 3, 3]
    assert dead.headers["redrive-reason"] == "MaxDeliveryCountExceeded"
    assert dead.headers["redrive-delivery-count"] == 3
    assert dead.headers["a"] == "b"
    assert dead.properties.message_id == "m-1"


@BOTH
async def test_a_retryable_failure_that_heals_is_completed(broker_url: str, queue_type: Any) -> None:
    told, outside, done, counts = Told(), Outside(broker_url), asyncio.Event(), list[int]()
    app = an_app(broker_url, told)

    @app.consume("orders", queue_type=queue_type, attempts=1)
    async def handle(order: Order, context: Context) -> None:
        counts.append(context.delivery_count)
        if context.delivery_count < 3:
            raise ConnectionResetError
        done.set()

    async with app:
        outside.send(b'{"id": 1}')
        await asyncio.wait_for(done.wait(), 20)
    assert counts == [1, 2, 3]
    await nothing_left(outside)
    assert outside.take() == []


async def test_a_handler_that_hangs_is_ended_and_its_message_dead_lettered(broker_url: str) -> None:
    told, outside = Told(), Outside(broker_url)
    app = an_app(broker_url, told)

    @app.consume("orders", handler_timeout=timedelta(milliseconds=100))
    async def handle(order: Order) -> None:
        await asyncio.sleep(3600)

    async with app:
        outside.send(b'{"id": 1}')
        await told.until(lambda events: len(events) == 1)
    (dead,) = outside.take()
    await nothing_left(outside)
    assert dead.headers["redrive-reason"] == "NonRetryableError"
    assert dead.headers["redrive-error-type"] == "TimeoutError"
    assert "timeout of 100ms" in dead.headers["redrive-description"]


@pytest.mark.parametrize(
    ("end", "queue_type"),
    [
        ("os._exit(3)", "quorum"),
        ("os._exit(3)", "classic"),
        ("os.kill(os.getpid(), 9)", "classic"),
    ],
)
def test_a_message_that_ends_its_process_is_poison_in_the_end(
    broker_url: str, queue_type: str, end: str, tmp_path: Path
) -> None:
    """Three processes die of it; the fourth does not let its handler see it, and goes on with the next message."""
    outside = Outside(broker_url)
    (tmp_path / "shop.py").write_text(
        textwrap.dedent(
            f"""
            import os, sys
            from redrive import App
            app = App({broker_url!r})

            @app.consume("orders", queue_type={queue_type!r}, prefetch=1)
            async def handle(body: bytes) -> None:
                with open("runs", "a") as runs:
                    runs.write(body.decode() + "\\n")
                if body == b"deadly":
                    {end}
            """
        )
    )
    first = True
    for _ in range(6):
        process = consume(tmp_path)
        if first:
            wait_for(lambda: outside_has(outside, "orders"))
            outside.send(b"deadly", b"fine")
            first = False
        wait_for(lambda: process.poll() is not None or outside.depth("orders.dlq") == 1)  # noqa: B023  waits here
        if process.poll() is None:
            wait_for(lambda: "fine" in (tmp_path / "runs").read_text())
            process.terminate()
            assert process.wait(20) == 0
            break
    runs = (tmp_path / "runs").read_text().split()
    assert runs.count("deadly") == 3
    assert runs.count("fine") >= 1
    (dead,) = outside.take()
    assert dead.body == b"deadly"
    assert dead.headers["redrive-reason"] == "PoisonMessage"
    assert dead.headers["redrive-delivery-count"] == 4
    assert outside.depth() == 0


def test_handler_that_exits_is_a_failed_attempt_and_the_process_goes_on(
    broker_url: str, tmp_path: Path
) -> None:
    outside = Outside(broker_url)
    (tmp_path / "shop.py").write_text(
        textwrap.dedent(
            f"""
            import sys
            from redrive import App
            app = App({broker_url!r})

            @app.consume("orders", attempts=1)
            async def handle(body: bytes) -> None:
                if body == b"deadly":
                    sys.exit(3)
                with open("runs", "a") as runs:
                    runs.write(body.decode() + "\\n")
            """
        )
    )
    process = consume(tmp_path)
    try:
        wait_for(lambda: outside_has(outside, "orders"))
        outside.send(b"deadly", *[b"fine"] * 20)
        wait_for(lambda: process.poll() is not None or outside.depth("orders.dlq") == 1)
        wait_for(lambda: (tmp_path / "runs").read_text().count("fine") == 20)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(30)
    (dead,) = outside.take()
    assert (dead.body, dead.headers["redrive-error-type"]) == (b"deadly", "SystemExit")
    assert dead.headers["redrive-reason"] == "MaxDeliveryCountExceeded"
    assert outside.depth() == 0


def consume(place: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "redrive", "consume", "shop"],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def outside_has(outside: Outside, queue: str) -> bool:
    try:
        outside.depth(queue)
    except pika.exceptions.AMQPError:
        return False
    return True


def wait_for(holds: Callable[[], bool], seconds: float = 30) -> None:
    end = asyncio.new_event_loop()
    try:

        async def look() -> None:
            async with asyncio.timeout(seconds):
                while not holds():  # noqa: ASYNC110  another process makes it so
                    await asyncio.sleep(0.1)

        end.run_until_complete(look())
    finally:
        end.close()


@BOTH
async def test_without_a_dead_letter_exchange_nothing_is_acknowledged_until_it_is_there(
    broker_url: str, queue_type: Any
) -> None:
    """A6, on the wire: the exchange is deleted under the consumer; the source keeps the message; it heals."""
    told, outside, seen = Told(), Outside(broker_url), list[int]()
    app = an_app(broker_url, told)

    @app.consume("orders", queue_type=queue_type)
    async def handle(order: Order) -> None:
        seen.append(order.id)
        if order.id % 2:
            raise PermissionError("no")

    async with app:
        with outside.channel() as channel:
            channel.exchange_delete("orders.dlx")
        outside.send(*[json.dumps({"id": number}).encode() for number in range(4)])
        await told.until(lambda events: any(not event.durable for event in events))
        assert outside.take() == []
        assert "redrive provision" in (told.events[0].error or "")
        with outside.channel() as channel:
            channel.exchange_declare("orders.dlx", "fanout", durable=True)
            channel.queue_bind("orders.dlq", "orders.dlx")
        await told.until(lambda events: sum(event.durable for event in events) == 2, 60)
    assert sorted(json.loads(dead.body)["id"] for dead in outside.take()) == [1, 3]
    await nothing_left(outside)
    assert sorted(set(seen)) == [0, 1, 2, 3]


@BOTH
async def test_stopping_while_dead_letters_cannot_be_written_loses_nothing(
    broker_url: str, queue_type: Any
) -> None:
    told, outside = Told(), Outside(broker_url)
    settings = read({"consume": {"shutdown_timeout": "1s", "breaker": {"enabled": False}}})
    app = an_app(broker_url, told, settings)

    @app.consume("orders", queue_type=queue_type)
    async def handle(order: Order) -> None:
        raise PermissionError("no")

    async with app:
        with outside.channel() as channel:
            channel.exchange_delete("orders.dlx")
        outside.send(b'{"id": 1}', b'{"id": 2}')
        await told.until(lambda events: len(events) >= 2)
    assert outside.take() == []
    async with asyncio.timeout(10):
        while outside.depth() != 2:  # noqa: ASYNC110  the broker tells nobody when it has put them back
            await asyncio.sleep(0.05)


async def test_what_the_broker_itself_moves_is_rejected_to_its_dead_letter_exchange(broker_url: str) -> None:
    told, outside = Told(), Outside(broker_url)
    app = an_app(broker_url, told)

    @app.consume("orders", dead_letter="native")
    async def handle(order: Order) -> None:
        raise PermissionError("no")

    async with app:
        outside.send(b'{"id": 1}', headers={"a": 1})
        await told.until(lambda events: len(events) == 1)
        async with asyncio.timeout(10):
            while outside.depth("orders.dlq") != 1:  # noqa: ASYNC110  nobody is told
                await asyncio.sleep(0.05)
    (dead,) = outside.take()
    assert dead.headers["x-death"][0]["reason"] == "rejected"
    assert dead.headers["x-death"][0]["queue"] == "orders"
    assert "redrive-reason" not in dead.headers
    await nothing_left(outside)


@BOTH
async def test_a_handler_may_give_back_for_later(broker_url: str, queue_type: Any) -> None:
    told, outside, done, counts = Told(), Outside(broker_url), asyncio.Event(), list[tuple[int, float]]()
    app = an_app(broker_url, told)

    @app.consume("orders", queue_type=queue_type)
    async def handle(order: Order, context: Context) -> None:
        counts.append((context.delivery_count, asyncio.get_running_loop().time()))
        assert context.headers.get("a") == "b"
        assert context.message.message_id == "m-1"
        assert context.origin.routing_key == "orders"
        if context.delivery_count == 1:
            context.requeue("2s")
        done.set()

    async with app:
        outside.send(b'{"id": 1}', message_id="m-1", headers={"a": "b"})
        await asyncio.wait_for(done.wait(), 20)
    (first, second) = counts
    assert (first[0], second[0]) == (1, 2)
    assert 1.9 < second[1] - first[1] < 10
    await nothing_left(outside)


async def test_a_broker_that_goes_away_in_the_middle_is_found_again_and_nothing_is_lost(
    own_rabbitmq: RabbitMQServer,
) -> None:
    await goes_away(own_rabbitmq, own_rabbitmq.amqp_url)


async def goes_away(server: Server[Any], url: str) -> None:
    told, outside = Told(), Outside(url)
    app = an_app(url, told)
    seen, thirty, all_of_them = set[int](), asyncio.Event(), asyncio.Event()

    @app.consume("orders", max_deliveries=50)
    async def handle(order: Order) -> None:
        await asyncio.sleep(0.01)
        seen.add(order.id)
        if len(seen) == 30:
            thirty.set()
        if len(seen) == 200:
            all_of_them.set()
        if order.id % 10 == 0:
            raise PermissionError("no")

    async with app:
        await asyncio.to_thread(outside.send, *[json.dumps({"id": number}).encode() for number in range(200)])
        await asyncio.wait_for(thirty.wait(), 30)
        await asyncio.to_thread(server.restart)
        await asyncio.wait_for(all_of_them.wait(), 90)
        await told.until(lambda events: len({e.letter_id for e in events if e.durable}) >= 20, 60)
        await all_taken(outside)  # also what was done too late for the broker that went away
    assert seen == set(range(200))
    dead = [json.loads(letter.body)["id"] for letter in outside.take()]
    assert set(dead) == set(range(0, 200, 10))
    await nothing_left(outside)


async def test_a_broker_that_blocks_gets_no_dead_letters_and_keeps_the_messages(
    own_rabbitmq: RabbitMQServer,
) -> None:
    """The memory alarm goes off: publishers are blocked. Handlers go on; what dies waits, unacknowledged (A6)."""
    told, outside = Told(), Outside(own_rabbitmq.amqp_url)
    app = an_app(own_rabbitmq.amqp_url, told)
    begun, go_on, other = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.consume("orders", concurrency=1)
    async def handle(order: Order) -> None:
        if order.id == 2:
            other.set()
            return
        begun.set()
        await go_on.wait()
        raise PermissionError("no")

    async with app:
        await asyncio.to_thread(outside.send, b'{"id": 1}', b'{"id": 2}')
        await asyncio.wait_for(begun.wait(), 30)
        await asyncio.to_thread(own_rabbitmq.ctl, "set_vm_memory_high_watermark", "0.0001")
        go_on.set()
        await asyncio.wait_for(other.wait(), 30)  # handlers go on while the dead letter has to wait
        await asyncio.sleep(1)
        assert not any(event.durable for event in told.events)
        assert await asyncio.to_thread(outside.depth, "orders.dlq") == 0
        await asyncio.to_thread(own_rabbitmq.ctl, "set_vm_memory_high_watermark", "0.4")
        await told.until(lambda events: any(event.durable for event in events), 60)
    (dead,) = await asyncio.to_thread(outside.take)
    assert json.loads(dead.body) == {"id": 1}
    await nothing_left(outside)


def test_the_options_used_here_are_those_that_are_meant() -> None:
    assert NO_FLOOD.consume.backoff == Fixed(timedelta(milliseconds=10))
    assert not NO_FLOOD.consume.breaker.enabled
