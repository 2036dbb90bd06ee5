"""Messages that may have ended a process run alone; only the one that certainly did is poison."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.clock import SystemClock
from redrive.consume import ConsumeOptions, Consumer, Context, Handler, Subscription
from redrive.consume.crash_log import CrashLog, folder_name
from redrive.letters import Message
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, Fixed
from redrive.transports import Publication, Source, Target
from redrive.transports.memory import MemoryBroker, MemoryTransport
from tests.unit.consume.test_runner import Heard
from tests.unit.watch.deliveries import ADelivery

SOON = timedelta(milliseconds=1)
OPTIONS = ConsumeOptions(
    backoff=Fixed(SOON), breaker=None, attempts=1, shutdown_timeout=timedelta(seconds=10)
)


class Durable(MemoryTransport):
    """A broker in memory that is said to outlive the consumer."""

    capabilities = msgspec.structs.replace(MemoryTransport.capabilities, survives_restart=True)


class World:
    """A source whose consumers have crashed before."""

    def __init__(self, folder: Path) -> None:
        self.clock = SystemClock()
        self.broker = MemoryBroker()
        self.source = Source(name="orders", window=16)
        self.state = folder
        self.heard = Heard()
        self.running: set[bytes] = set()
        self.beside: dict[bytes, int] = {}
        self.seen: list[bytes] = []

    @property
    def folder(self) -> Path:
        return self.state / "consume" / folder_name(Durable(self.clock, self.broker).endpoint, "orders", "")

    async def send(self, count: int, deliveries: int = 0) -> None:
        """So many messages, numbered from 1, that were delivered so often before."""
        async with Durable(self.clock, self.broker) as outside:
            await outside.provision([self.source])
            bodies = [b"%d" % number for number in range(1, count + 1)]
            target = Target(name="orders")
            assert not any(
                await outside.publish([Publication(Message(body=body), target) for body in bodies])
            )
        for entry in self.broker.queue("orders").first(count):
            entry.deliveries = deliveries

    async def crashed(self, *numbers: int, alone: bool = False) -> None:
        """A process has ended while these messages ran; their keys are those of the memory transport."""
        offset = await self._first_number() - 1
        log = CrashLog.open(self.folder, 16, self.clock)
        for slot, number in enumerate(numbers):
            delivery = ADelivery(key=f"orders/{number + offset}")
            if alone:
                log.put_on_trial(delivery)
                log.begin_alone(slot, delivery)
            else:
                delivery.write_trace(log.records, CrashLog.offset_of(slot))
        log._close_file()

    async def _first_number(self) -> int:
        return self.broker.queue("orders").first(1)[0].number

    async def handle(self, body: bytes) -> None:
        """Remember what runs beside what."""
        self.seen.append(body)
        self.running.add(body)
        for each in self.running:
            self.beside[each] = max(self.beside.get(each, 0), len(self.running) - 1)
        for _ in range(10):
            await asyncio.sleep(0)
        self.running.discard(body)

    @asynccontextmanager
    async def consuming(
        self,
        function: Callable[..., Any] | None = None,
        options: ConsumeOptions = OPTIONS,
        *,
        log: bool = True,
    ) -> AsyncIterator[Consumer]:
        async with Durable(self.clock, self.broker) as transport:
            await transport.provision([self.source])
            consumer = Consumer(
                transport,
                [Subscription(Handler.of(function or self.handle), self.source, options)],
                clock=self.clock,
                classifier=Classifier(),
                redactor=Redactor(),
                observers=[self.heard],
                state=self.state if log else None,
            )
            task = asyncio.create_task(consumer.run())
            try:
                yield consumer
            finally:
                consumer.stop()
                async with asyncio.timeout(20):
                    await task


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_suspects_run_alone_and_the_others_beside_each_other(world: World) -> None:
    await world.send(40, deliveries=1)
    await world.crashed(3, 5, 20)
    async with world.consuming():
        await world.heard.until("completed", 40)
    assert [world.beside[body] for body in (b"3", b"5", b"20")] == [0, 0, 0]
    assert max(world.beside.values()) == OPTIONS.concurrency - 1
    assert len(world.seen) == 40
    log = CrashLog.open(world.folder, 1, world.clock)
    assert not log.is_alert, "what has survived is no suspect"
    log.close()


@pytest.mark.parametrize(("crashes", "runs"), [(1, 1), (2, 0), (5, 0)])
async def test_message_that_crashed_alone_is_poison_at_the_limit(
    world: World, crashes: int, runs: int
) -> None:
    await world.send(30, deliveries=1)
    await world.crashed(7, 8)
    for _ in range(crashes):
        await world.crashed(7, alone=True)
    async with world.consuming():
        await world.heard.until("completed", 29 + runs)
        if not runs:
            await world.heard.until("durable", 1)
    assert world.seen.count(b"7") == runs
    assert [event.reason for event in world.heard.events] == ["PoisonMessage"] * (1 - runs)
    log = CrashLog.open(world.folder, 1, world.clock)
    assert not log.is_alert, "its letter is durable: when it is sent back it begins anew"
    log.close()


async def test_crashes_are_forgiven_to_messages_that_did_not_run(world: World) -> None:
    """Its count is 5 by crashes of others. It fails for the first time, and is given back."""
    await world.send(20, deliveries=4)
    for _ in range(4):
        await world.crashed(1)
    failed = list[bytes]()

    async def fails_once(body: bytes) -> None:
        if body == b"15" and not failed:
            failed.append(body)
            raise ConnectionResetError
        await world.handle(body)

    async with world.consuming(fails_once):
        await world.heard.until("completed", 20)
    assert failed == [b"15"]
    assert world.heard.events == []


async def test_message_delivered_too_often_is_tried_alone_where_no_crash_of_it_is_known(world: World) -> None:
    """Another machine crashed with it, four times: that may have been its neighbour."""
    await world.send(20, deliveries=4)
    await world.crashed()
    async with world.consuming():
        await world.heard.until("completed", 20)
    assert world.heard.events == []


async def test_trial_that_asks_for_another_delivery_is_poison(world: World) -> None:
    await world.send(1, deliveries=9)
    await world.crashed()

    async def again(body: bytes, context: Context) -> None:
        world.seen.append(body)
        context.requeue()

    async with world.consuming(again):
        await world.heard.until("durable", 1)
    assert (world.seen, world.heard.events[0].reason) == ([b"1"], "PoisonMessage")


async def test_failures_in_this_process_count_without_a_trial(world: World) -> None:
    await world.send(1)

    async def again(body: bytes, context: Context) -> None:
        world.seen.append(body)
        context.requeue()

    async with world.consuming(again):
        await world.heard.until("durable", 1)
    assert (len(world.seen), world.heard.events[0].reason) == (3, "PoisonMessage")


async def test_suspects_that_have_not_begun_go_back_uncounted_at_a_stop(world: World) -> None:
    await world.send(3, deliveries=1)
    await world.crashed(1, 2, 3)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def waits(body: bytes) -> None:
        begun.set()
        await go_on.wait()

    async with world.consuming(waits) as consumer:
        async with asyncio.timeout(10):
            await begun.wait()
        consumer.stop()
        async with asyncio.timeout(10):
            while world.broker.queue("orders").depth() < 2:  # noqa: ASYNC110  what it waits for has no event
                await asyncio.sleep(0)
        go_on.set()
    left = world.broker.queue("orders").first(3)
    assert [entry.deliveries for entry in left] == [1, 1]


# --- without a crash log -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deliveries", "letters"), [(1, 0), (3, 0), (4, 5)], ids=["again", "one-too-many", "certain"]
)
async def test_without_a_log_one_redelivered_message_runs_alone_first(
    world: World, deliveries: int, letters: int
) -> None:
    await world.send(5, deliveries)
    async with world.consuming(log=False):
        await world.heard.until("completed" if not letters else "durable", 5)
    assert len(world.heard.events) == letters
    if not letters:
        assert world.beside[b"1"] == 0, "nothing runs beside the first"
        assert (max(world.beside.values()) == 0) == (deliveries == 3), "and beside none that may be poison"


async def test_without_a_log_nothing_else_is_out_while_a_message_is_tried(world: World) -> None:
    """If it ends the process, the broker counts that against it alone."""
    await world.send(20, deliveries=3)
    out = list[int]()

    async def looks(body: bytes) -> None:
        await asyncio.sleep(0)
        receivers: Any = world.broker._receivers
        out.append(sum(receiver.unsettled for receiver in receivers))

    async with world.consuming(looks, log=False):
        await world.heard.until("completed", 20)
    assert out == [1] * 20
    assert world.heard.events == []


async def test_message_whose_handler_still_runs_is_forgiven_the_cuts_it_has_seen(world: World) -> None:
    """The connection is cut three times while its handler runs; each time it comes again, at the limit and beyond."""
    await world.send(1)
    begun, go_on = list[bytes](), asyncio.Event()

    async def waits(body: bytes) -> None:
        begun.append(body)
        await go_on.wait()

    async with world.consuming(waits, log=False):
        for cuts in range(1, 4):
            async with asyncio.timeout(10):
                while len(begun) < cuts:  # noqa: ASYNC110  what it waits for has no event
                    await asyncio.sleep(0)
            world.broker.cut()
        async with asyncio.timeout(10):
            while len(begun) < 4:  # noqa: ASYNC110  likewise
                await asyncio.sleep(0)
        go_on.set()
        await world.heard.until("completed", 1)
    assert world.heard.events == []
