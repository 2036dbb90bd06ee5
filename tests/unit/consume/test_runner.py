"""One source consumed: nothing lost, nothing settled twice, nobody blocked by those who wait."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from redrive.clock import Clock, SystemClock
from redrive.consume import ConsumeBreakerOptions, ConsumeOptions, Consumer, Context, Handler, Subscription
from redrive.consume.callbacks import Callback
from redrive.consume.context import Asked
from redrive.consume.slots import Slots
from redrive.errors import SettingsError
from redrive.formats import own
from redrive.letters import Failure, Message
from redrive.letters.event import DeadLettered
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, Fixed, ManualDeadLetter
from redrive.testing import ManualClock
from redrive.transports import Delivery, Publication, Source, Target
from redrive.transports.memory import MemoryBroker, MemoryTransport

SOON = timedelta(milliseconds=1)
QUICK = ConsumeOptions(backoff=Fixed(SOON), breaker=None, shutdown_timeout=timedelta(seconds=5))


async def until(holds: Callable[[], bool]) -> None:
    """Let others run until it holds."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  what it waits for has no event
            await asyncio.sleep(0)


class Heard:
    """An observer that remembers."""

    traces = False

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.events: list[DeadLettered] = []
        self.failures: list[tuple[str, str]] = []
        self.waits: list[timedelta] = []
        self.attempts: list[tuple[int, Failure]] = []
        self.changed = asyncio.Event()

    def _count(self, what: str, count: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + count
        self.changed.set()

    def received(self, source: str, count: int) -> None:
        self._count("received", count)

    def processing(self, source: str, delivery: Delivery, attempt: int, correlation_id: str) -> None:
        return None

    def completed(self, source: str, count: int) -> None:
        self._count("completed", count)

    def attempt_failed(self, source: str, delivery: Delivery, attempt: int, failure: Failure) -> None:
        self.attempts.append((attempt, failure))

    def retrying(
        self, source: str, delivery: Delivery, attempt: int, failure: Failure, wait: timedelta
    ) -> None:
        self.waits.append(wait)
        self._count("retrying")

    def skipped(self, source: str, count: int) -> None:
        self._count("skipped", count)

    def given_back(
        self, source: str, delivery: Delivery, after: timedelta | None, failure: Failure | None
    ) -> None:
        self._count("given_back")

    def dead_lettered(self, event: DeadLettered) -> None:
        self.events.append(event)
        self._count("durable" if event.durable else "not_durable")

    def too_late(self, source: str, count: int) -> None:
        self._count("too_late", count)

    def paused(self, source: str, reason: str) -> None:
        self._count("paused")

    def resumed(self, source: str) -> None:
        self._count("resumed")

    def failed(self, source: str, component: str, error: Exception) -> None:
        self.failures.append((component, str(error)))
        self._count("failed")

    async def until(self, what: str, count: int) -> None:
        async with asyncio.timeout(10):
            while self.counts.get(what, 0) < count:
                self.changed.clear()
                await self.changed.wait()


class World:
    """A broker in memory with one source and somebody who watches."""

    def __init__(self, clock: Clock | None = None, window: int = 16) -> None:
        self.clock = clock or SystemClock()
        self.broker = MemoryBroker()
        self.source = Source(name="orders", window=window)
        self.heard = Heard()
        self.outside = MemoryTransport(self.clock, self.broker)

    async def send(self, *bodies: bytes) -> None:
        target = Target(name="orders")
        assert not any(
            await self.outside.publish([Publication(Message(body=body), target) for body in bodies])
        )

    async def dead(self) -> Sequence[Message]:
        return await self.outside.peek("orders.dlq", 1000)

    @asynccontextmanager
    async def consuming(
        self,
        function: Callable[..., Any],
        options: ConsumeOptions = QUICK,
        callbacks: Sequence[Callback] = (),
        decoder: Callable[[Any], Any] | None = None,
    ) -> AsyncIterator[Consumer]:
        self.outside = MemoryTransport(self.clock, self.broker)
        async with self.outside, MemoryTransport(self.clock, self.broker) as transport:
            await transport.provision([self.source])
            ready = asyncio.Event()
            consumer = Consumer(
                transport,
                [Subscription(Handler.of(function, decoder), self.source, options)],
                clock=self.clock,
                classifier=Classifier(),
                redactor=Redactor(),
                observers=[self.heard],
                callbacks=callbacks,
                ready=ready.set,
            )
            task = asyncio.create_task(consumer.run())
            await ready.wait()
            try:
                yield consumer
            finally:
                consumer.stop()
                async with asyncio.timeout(10):
                    await task


async def test_every_message_is_handled_and_settled_once() -> None:
    world, seen = World(), list[bytes]()

    async def handle(body: bytes) -> None:
        seen.append(body)

    async with world.consuming(handle):
        bodies = [str(number).encode() for number in range(500)]
        await world.send(*bodies)
        await world.heard.until("completed", 500)
        assert await world.outside.depth("orders") == 0
    assert sorted(seen) == sorted(bodies)
    assert world.heard.counts == {"received": 500, "completed": 500}


async def test_no_more_handlers_run_than_the_concurrency_allows() -> None:
    world, running, most = World(), 0, 0

    async def handle(body: bytes) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    async with world.consuming(handle):
        await world.send(*[b"x"] * 50)
        await world.heard.until("completed", 50)
    assert most == QUICK.concurrency


async def test_those_who_wait_for_another_attempt_block_nobody() -> None:
    """All of the window fails and waits for an hour; the messages behind it are handled all the same (A3)."""
    clock = ManualClock()
    world = World(clock, window=4)
    options = ConsumeOptions(
        backoff=Fixed(timedelta(hours=1)),
        max_in_process_delay=timedelta(hours=2),
        breaker=None,
        concurrency=2,
    )

    async def handle(body: bytes) -> None:
        if body == b"bad":
            raise ConnectionResetError

    async with world.consuming(handle, options):
        await world.send(*[b"bad"] * 30, *[b"good"] * 10)
        await world.heard.until("completed", 10)
        assert world.heard.counts["retrying"] == 30


async def test_a_retry_waits_as_long_as_its_backoff_says() -> None:
    clock = ManualClock()
    world, tries = World(clock), 0
    options = ConsumeOptions(backoff=Fixed(timedelta(seconds=30)), breaker=None)

    async def handle(body: bytes) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionResetError

    async with world.consuming(handle, options):
        await world.send(b"x")
        await world.heard.until("retrying", 1)
        await until(lambda: clock.sleepers == 1)
        clock.advance(timedelta(seconds=29))
        await asyncio.sleep(0.01)
        assert tries == 1
        clock.advance(timedelta(seconds=1))
        await world.heard.until("retrying", 2)
        await until(lambda: clock.sleepers == 1)
        clock.advance(timedelta(seconds=30))
        await world.heard.until("completed", 1)
    assert tries == 3


async def test_what_keeps_failing_is_given_back_and_at_last_dead_lettered() -> None:
    world, tries = World(), 0

    async def handle(body: bytes) -> None:
        nonlocal tries
        tries += 1
        raise ConnectionResetError("connection reset by peer")

    async with world.consuming(handle):
        await world.send(b"x")
        await world.heard.until("durable", 1)
        assert tries == 9
        assert world.heard.counts["given_back"] == 2
        (letter,) = await world.dead()
    death = own.read(letter.headers)
    assert death is not None
    assert death.reason == "MaxDeliveryCountExceeded"
    assert letter.body == b"x"
    assert world.heard.events[0].delivery_count == 3


async def test_the_source_keeps_its_message_until_its_dead_letter_is_durable() -> None:
    """A6: the dead letters cannot be written; nothing is acknowledged, the consumer slows down and recovers."""
    clock = ManualClock()
    world = World(clock)

    async def handle(body: bytes) -> None:
        raise ValueError("no") if body == b"good" else PermissionError("no")

    async with world.consuming(handle, ConsumeOptions(breaker=None)):
        world.broker.refuse("orders.dlq", "disk full")
        await world.send(b"bad")
        await world.heard.until("not_durable", 1)
        assert "disk full" in (world.heard.events[0].error or "")
        assert await world.dead() == []
        for _ in range(3):
            await until(lambda: clock.sleepers > 0)
            clock.advance(timedelta(seconds=20))
        await world.heard.until("not_durable", 3)
        world.broker.permit("orders.dlq")

        def written() -> bool:
            clock.advance(timedelta(seconds=20))
            return "durable" in world.heard.counts

        await until(written)
        assert len(await world.dead()) == 1


async def test_in_the_mode_best_effort_what_cannot_be_written_is_settled_and_counted() -> None:
    world = World()

    async def handle(body: bytes) -> None:
        raise PermissionError("no")

    async with world.consuming(handle, ConsumeOptions(breaker=None, best_effort=True)):
        world.broker.refuse("orders.dlq", "disk full")
        await world.send(b"bad")
        await world.heard.until("not_durable", 1)
        assert world.heard.events[0].lost
    assert world.heard.counts["not_durable"] == 1
    async with MemoryTransport(world.clock, world.broker) as later:
        assert await later.depth("orders") == 0


async def test_a_handler_that_hangs_is_ended_and_others_go_on() -> None:
    world = World()
    options = ConsumeOptions(handler_timeout=timedelta(milliseconds=30), breaker=None, concurrency=2)

    async def handle(body: bytes) -> None:
        if body == b"hang":
            await asyncio.sleep(3600)

    async with world.consuming(handle, options):
        await world.send(b"hang", *[b"x"] * 20)
        await world.heard.until("durable", 1)
        await world.heard.until("completed", 20)
    event = world.heard.events[0]
    assert event.reason == "NonRetryableError"
    assert event.failure.text == "the handler did not finish within its timeout of 30ms"


async def test_a_handler_that_does_not_listen_when_it_is_ended_still_completes() -> None:
    world = World()
    options = ConsumeOptions(handler_timeout=timedelta(milliseconds=20), breaker=None, concurrency=1)

    async def stubborn(body: bytes) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.005)

    async with world.consuming(stubborn, options):
        await world.send(b"a", b"b")
        await world.heard.until("completed", 2)


async def test_what_a_handler_waited_for_may_be_cancelled_without_hurting_the_consumer() -> None:
    world = World()

    async def handle(body: bytes) -> None:
        if body == b"bad":
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    async with world.consuming(handle, ConsumeOptions(breaker=None, attempts=1, max_deliveries=1)):
        await world.send(b"bad", b"good")
        await world.heard.until("completed", 1)
        await world.heard.until("durable", 1)
    assert "cancelled" in world.heard.events[0].failure.text


async def test_a_thread_that_hangs_is_left_and_others_go_on() -> None:
    world = World()
    options = ConsumeOptions(handler_timeout=timedelta(milliseconds=400), breaker=None, concurrency=1)
    go_on = threading.Event()
    threads: list[str] = []

    def handle(body: bytes) -> None:
        threads.append(threading.current_thread().name)
        if body == b"hang":
            go_on.wait(10)

    try:
        async with world.consuming(handle, options):
            await world.send(b"hang", b"x", b"y")
            await world.heard.until("durable", 1)
            await world.heard.until("completed", 2)
    finally:
        go_on.set()
    assert threading.current_thread().name not in threads
    assert "handler-thread" in [what for what, _ in world.heard.failures]


async def test_plain_functions_run_at_the_same_time_in_threads_of_their_own() -> None:
    world = World()
    together = threading.Barrier(QUICK.concurrency)

    def handle(body: bytes) -> None:
        together.wait(5)

    async with world.consuming(handle):
        await world.send(*[b"x"] * QUICK.concurrency)
        await world.heard.until("completed", QUICK.concurrency)


async def test_stopping_lets_handlers_end_and_gives_the_rest_back() -> None:
    world, begun, ended = World(), asyncio.Event(), list[bytes]()

    async def handle(body: bytes) -> None:
        begun.set()
        await asyncio.sleep(0.05)
        ended.append(body)

    options = ConsumeOptions(concurrency=1, breaker=None)
    async with world.consuming(handle, options) as consumer:
        await world.send(*[str(number).encode() for number in range(10)])
        await begun.wait()
        consumer.stop()
    assert ended == [b"0"]
    async with MemoryTransport(world.clock, world.broker) as later:
        assert await later.depth("orders") == 9
    assert world.heard.counts["completed"] == 1


async def test_stopping_does_not_count_against_messages_that_nobody_began() -> None:
    """Five stops in order, each while a message runs and the others wait: the limit is three."""
    world, seen = World(), list[tuple[bytes, int]]()

    async def handle(body: bytes, context: Context) -> None:
        seen.append((body, context.delivery_count))
        await asyncio.sleep(0.01)

    options = ConsumeOptions(concurrency=1, breaker=None)
    for turn in range(5):
        async with world.consuming(handle, options):
            if not turn:
                await world.send(*[str(number).encode() for number in range(8)])
            before = len(seen)
            await until(lambda: len(seen) > before)  # noqa: B023  it is waited for here
    async with world.consuming(handle, options):
        await world.heard.until("completed", 8)
        assert await world.dead() == []
    assert sorted(seen) == [(str(number).encode(), 1) for number in range(8)]


async def test_a_handler_that_does_not_end_in_time_is_left_and_its_message_goes_back() -> None:
    world, begun = World(), asyncio.Event()

    async def handle(body: bytes) -> None:
        begun.set()
        await asyncio.sleep(3600)

    options = ConsumeOptions(shutdown_timeout=timedelta(milliseconds=20), breaker=None)
    async with world.consuming(handle, options) as consumer:
        await world.send(b"x")
        await begun.wait()
        consumer.stop()
    async with MemoryTransport(world.clock, world.broker) as later:
        assert await later.depth("orders") == 1
    assert [what for what, _ in world.heard.failures] == ["shutdown"]


async def test_those_who_wait_for_another_attempt_go_back_when_it_stops() -> None:
    world = World()

    async def handle(body: bytes) -> None:
        raise ConnectionResetError

    options = ConsumeOptions(backoff=Fixed(timedelta(seconds=50)), breaker=None)
    before = time.monotonic()
    async with world.consuming(handle, options):
        await world.send(b"x")
        await world.heard.until("retrying", 1)
    assert time.monotonic() - before < 10
    async with MemoryTransport(world.clock, world.broker) as later:
        assert await later.depth("orders") == 1


async def test_a_lost_connection_gives_duplicates_that_are_counted_and_no_loss() -> None:
    world, seen = World(), list[bytes]()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(body: bytes) -> None:
        begun.set()
        await go_on.wait()
        seen.append(body)

    async with world.consuming(handle, ConsumeOptions(concurrency=2, breaker=None)):
        await world.send(*[str(number).encode() for number in range(8)])
        await begun.wait()
        world.broker.cut()
        go_on.set()
        await world.heard.until("too_late", 2)
        async with asyncio.timeout(5):
            while await world.outside.depth("orders") or len(seen) < 10:  # noqa: ASYNC110  what it waits for has no event
                await asyncio.sleep(0.001)
    assert set(seen) == {str(number).encode() for number in range(8)}
    assert len(seen) == 10
    assert world.heard.counts["too_late"] == 2


async def test_connections_that_are_cut_make_no_poison_of_harmless_messages() -> None:
    """The broker counts each delivery that a cut took back; the process knows that they did no harm."""
    world, seen, hold = World(), Counter[bytes](), asyncio.Event()

    async def handle(body: bytes) -> None:
        await hold.wait()
        seen[body] += 1

    bodies = [str(number).encode() for number in range(10)]
    async with world.consuming(handle, ConsumeOptions(concurrency=2, breaker=None)):
        await world.send(*bodies)
        for cuts in range(1, 7):
            await world.heard.until("received", 10 * cuts)
            await asyncio.sleep(0)
            hold.set()
            world.broker.cut()
            hold.clear()
            await asyncio.sleep(0.005)
        hold.set()
        async with asyncio.timeout(5):
            while len(seen) < 10 or await world.outside.depth("orders"):  # noqa: ASYNC110  what it waits for has no event
                await asyncio.sleep(0.001)
        assert await world.dead() == []


async def test_a_flood_of_failures_pauses_the_source_and_a_probe_ends_it() -> None:
    """H9: the dependency is down; most messages stay in the queue instead of becoming dead letters."""
    clock = ManualClock()
    world, healthy = World(clock), False
    options = ConsumeOptions(
        attempts=1, max_deliveries=1, breaker=ConsumeBreakerOptions(window=10, pause=timedelta(seconds=5))
    )

    async def handle(body: bytes) -> None:
        if not healthy:
            raise ConnectionRefusedError("the database is down")

    async def steps() -> None:
        for _ in range(200):
            await asyncio.sleep(0)

    async with world.consuming(handle, options):
        await world.send(*[b"x"] * 100)
        await world.heard.until("paused", 1)
        await steps()
        assert len(await world.dead()) <= 10 + options.concurrency
        before = len(await world.dead())
        clock.advance(timedelta(seconds=5))
        await steps()
        assert len(await world.dead()) == before + 1, "one probe, and no more"
        clock.advance(timedelta(seconds=9))
        await steps()
        assert len(await world.dead()) == before + 1
        healthy = True
        clock.advance(timedelta(seconds=1))
        await world.heard.until("completed", 100 - before - 1)
        assert world.heard.counts["resumed"] == 1


async def test_a_success_that_is_the_last_the_breaker_has_to_see_pauses_the_source_as_long() -> None:
    clock = ManualClock()
    clock.advance(timedelta(hours=1))  # so that a time that nobody has told would be long over
    world, runs = World(clock), 0
    options = ConsumeOptions(
        attempts=1,
        max_deliveries=1,
        concurrency=1,
        breaker=ConsumeBreakerOptions(window=10, failure_rate=0.9, pause=timedelta(seconds=5)),
    )

    async def handle(body: bytes) -> None:
        nonlocal runs
        runs += 1
        if runs != 10:
            raise ConnectionRefusedError("the database is down")

    async with world.consuming(handle, options):
        await world.send(*[b"x"] * 30)
        await world.heard.until("paused", 1)
        for _ in range(200):
            await asyncio.sleep(0)
        assert runs == 10
        clock.advance(timedelta(seconds=5))
        for _ in range(200):
            await asyncio.sleep(0)
        assert runs == 11, "one probe"


async def test_a_probe_that_is_tried_again_does_not_hold_the_breaker_for_ever() -> None:
    clock = ManualClock()
    world, healthy = World(clock), False
    options = ConsumeOptions(
        attempts=3,
        max_deliveries=1,
        backoff=Fixed(SOON),
        breaker=ConsumeBreakerOptions(window=2, pause=timedelta(seconds=1)),
    )

    async def handle(body: bytes) -> None:
        if not healthy:
            raise ConnectionRefusedError("the database is down")

    async with world.consuming(handle, options):
        await world.send(*[b"x"] * 20)

        def paused() -> bool:
            clock.advance(SOON)
            return "paused" in world.heard.counts

        await until(paused)
        for _ in range(20):
            clock.advance(timedelta(seconds=1))
            await asyncio.sleep(0.001)
        healthy = True
        async with asyncio.timeout(5):
            while world.heard.counts.get("completed", 0) + world.heard.counts.get("durable", 0) < 20:
                clock.advance(timedelta(seconds=60))
                await asyncio.sleep(0.001)


async def test_callbacks_are_told_of_each_dead_letter_and_one_that_fails_hurts_nobody() -> None:
    world = World()
    told: list[tuple[str, str]] = []
    done = asyncio.Event()

    async def broken(event: DeadLettered) -> None:
        raise RuntimeError("pager is down")

    def plain(event: DeadLettered) -> None:
        told.append(("plain", event.reason))

    async def last(event: DeadLettered) -> None:
        told.append(("async", event.letter_id))
        done.set()

    async def handle(body: bytes) -> None:
        raise PermissionError("no")

    async with world.consuming(handle, ConsumeOptions(breaker=None), [broken, plain, last]):
        await world.send(b"x")
        await asyncio.wait_for(done.wait(), 5)
    assert told == [("plain", "NonRetryableError"), ("async", world.heard.events[0].letter_id)]
    assert [(what.rpartition(".")[2], text) for what, text in world.heard.failures] == [
        ("broken", "pager is down")
    ]


async def test_a_handler_may_give_its_message_back_for_later() -> None:
    clock = ManualClock()
    world, counts = World(clock), list[int]()

    async def handle(body: bytes, context: Context) -> None:
        counts.append(context.delivery_count)
        if context.delivery_count == 1:
            context.requeue("10m")

    async with world.consuming(handle):
        await world.send(b"x")
        await world.heard.until("given_back", 1)
        await until(lambda: clock.sleepers == 1)
        clock.advance(timedelta(minutes=9))
        await asyncio.sleep(0.01)
        assert counts == [1]
        clock.advance(timedelta(minutes=1))
        await world.heard.until("completed", 1)
    assert counts == [1, 2]


async def test_a_window_of_one_keeps_the_order_also_when_one_has_to_wait() -> None:
    world, seen = World(window=1), list[bytes]()

    async def handle(body: bytes) -> None:
        seen.append(body)
        if body == b"1" and seen.count(b"1") == 1:
            raise ConnectionResetError

    async with world.consuming(handle):
        await world.send(b"1", b"2", b"3")
        await world.heard.until("completed", 3)
    assert seen == [b"1", b"1", b"2", b"3"]


async def test_an_observer_that_raises_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    def broken(*args: object) -> None:
        raise RuntimeError("no disk for my notes")

    world.heard.received = broken  # type: ignore[assignment,method-assign]

    async def handle(body: bytes) -> None: ...

    async with world.consuming(handle):
        await world.send(b"x")
        await world.heard.until("completed", 1)
    assert "observer failed observer=Heard event=received" in caplog.text


async def test_a_tracer_holds_a_span_open_around_each_attempt_and_hears_of_its_failure() -> None:
    world, told = World(), list[object]()

    class Span:
        def __enter__(self) -> object:
            told.append("begin")
            return self

        def __exit__(self, *error: object) -> None:
            told.append("end")

        def failed(self, failure: Failure) -> None:
            told.append(failure.error_type)

    world.heard.traces = True
    world.heard.processing = lambda *args: Span()  # type: ignore[assignment,method-assign]

    async def handle(body: bytes) -> None:
        if "end" not in told:
            raise ConnectionResetError

    async with world.consuming(handle):
        await world.send(b"x")
        await world.heard.until("completed", 1)
    assert told == ["begin", "ConnectionResetError", "end", "begin", "end"]


async def test_two_handlers_of_one_source_are_refused() -> None:
    handler = Handler.of(lambda body: None)
    world = World()
    twice = [Subscription(handler, world.source, QUICK)] * 2
    parts: dict[str, Any] = {"clock": world.clock, "classifier": Classifier(), "redactor": Redactor()}
    with pytest.raises(SettingsError, match="two handlers consume 'orders'"):
        Consumer(world.outside, twice, **parts)
    with pytest.raises(SettingsError, match="nothing to consume"):
        Consumer(world.outside, [], **parts)


async def test_a_source_that_does_not_exist_ends_the_consumer_with_its_error() -> None:
    world = World()
    handler = Handler.of(lambda body: None)
    async with world.outside:
        await world.outside.provision([world.source])
        consumer = Consumer(
            world.outside,
            [
                Subscription(handler, world.source, QUICK),
                Subscription(handler, Source(name="order"), QUICK),
            ],
            clock=world.clock,
            classifier=Classifier(),
            redactor=Redactor(),
        )
        with pytest.raises(Exception, match="did you mean 'orders'"):
            await consumer.run()


@pytest.mark.parametrize(
    "wrong", [{"concurrency": 0}, {"attempts": 0}, {"max_deliveries": 0}, {"handler_timeout": timedelta(0)}]
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        ConsumeOptions(**wrong)


async def test_a_handler_of_the_message_alone_is_judged_like_one_that_takes_the_context_too() -> None:
    """The first goes a shorter way: whatever it is given and whatever it raises, the same comes of it."""
    bodies = [b'{"n": %d}' % number for number in range(5)] + [b"", b"\xff\x00", b"[1", b'{"n": "x"}']

    def act(number: int) -> None:
        if number == 1:
            raise ValueError("no")
        if number == 2:
            raise ConnectionResetError
        if number == 3:
            raise asyncio.CancelledError
        if number == 4:
            raise Asked(ManualDeadLetter("NotOurs", "as it said"))

    async def alone(body: dict[str, int]) -> None:
        act(body["n"])

    async def with_context(body: dict[str, int], _context: Context) -> None:
        act(body["n"])

    found: list[object] = []
    for handle in (alone, with_context):
        world = World()
        async with world.consuming(handle):
            await world.send(*bodies)
            await world.heard.until("durable", len(bodies) - 1)
            await world.heard.until("completed", 1)
        told = sorted((event.reason, event.description, event.delivery_count) for event in world.heard.events)
        found.append((world.heard.counts, told))

    assert found[0] == found[1]


# --- errors that would end a process ---------------------------------------------------------------------------


class Severe(BaseException):
    """Not an `Exception`."""


ENDS = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Severe("severe")]
ONE_TRY = ConsumeOptions(backoff=Fixed(SOON), breaker=None, attempts=1, max_deliveries=1)


async def asynchronous(error: BaseException) -> Callable[..., Any]:
    async def handle(body: bytes) -> None:
        if body == b"bad":
            raise error

    return handle


async def in_a_thread(error: BaseException) -> Callable[..., Any]:
    def handle(body: bytes) -> None:
        if body == b"bad":
            raise error

    return handle


async def with_context(error: BaseException) -> Callable[..., Any]:
    async def handle(body: bytes, context: Context) -> None:
        if body == b"bad":
            raise error

    return handle


@pytest.mark.parametrize("kind", [asynchronous, in_a_thread, with_context])
@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
async def test_handler_that_raises_a_base_exception_is_a_failed_attempt(
    kind: Callable[..., Any], error: BaseException
) -> None:
    world = World()
    async with world.consuming(await kind(error), ONE_TRY):
        await world.send(b"bad", *[b"good"] * 20)
        await world.heard.until("completed", 20)
        await world.heard.until("durable", 1)
    name = type(error).__name__
    (event,) = world.heard.events
    assert f"{name} was raised" in event.failure.text
    assert [(attempt, failure.text) for attempt, failure in world.heard.attempts] == [(1, event.failure.text)]


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
async def test_decoder_that_raises_a_base_exception_is_a_failed_attempt(error: BaseException) -> None:
    world = World()

    def decode(body: bytes) -> bytes:
        if body == b"bad":
            raise error
        return body

    async def handle(body: bytes) -> None: ...

    async with world.consuming(handle, ONE_TRY, decoder=decode):
        await world.send(b"bad", b"good")
        await world.heard.until("completed", 1)
        await world.heard.until("durable", 1)
    assert world.heard.events[0].failure.error_type == type(error).__name__


@pytest.mark.parametrize("error", [*ENDS, asyncio.CancelledError()], ids=lambda error: type(error).__name__)
async def test_callback_that_raises_a_base_exception_affects_no_other(error: BaseException) -> None:
    world, told = World(), list[str]()

    async def on_loop(event: DeadLettered) -> None:
        raise error

    def in_thread(event: DeadLettered) -> None:
        raise error

    def well(event: DeadLettered) -> None:
        told.append(event.letter_id)

    async def handle(body: bytes) -> None:
        if body == b"bad":
            raise ValueError("bad")

    async with world.consuming(handle, ONE_TRY, callbacks=[on_loop, in_thread, well]):
        await world.send(b"bad", b"bad", b"good")
        await world.heard.until("completed", 1)
        await until(lambda: len(told) == 2)
    assert [what.split(".")[-1] for what, _ in world.heard.failures] == ["on_loop", "in_thread"] * 2


async def test_observer_that_raises_a_base_exception_affects_no_other() -> None:
    world = World()

    def exits(source: str, count: int) -> None:
        raise SystemExit(1)

    world.heard.received = exits  # type: ignore[method-assign]

    async def handle(body: bytes) -> None: ...

    async with world.consuming(handle):
        await world.send(b"a", b"b")
        await world.heard.until("completed", 2)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
async def test_task_of_a_handler_that_exits_is_a_failed_attempt(error: BaseException) -> None:
    world = World()

    async def branch(*, ends: bool) -> None:
        await asyncio.sleep(0)
        if ends:
            raise error

    async def handle(body: bytes) -> None:
        await asyncio.gather(branch(ends=False), branch(ends=body == b"bad"))

    async with world.consuming(handle, ONE_TRY):
        await world.send(b"bad", b"good")
        await world.heard.until("completed", 1)
        await world.heard.until("durable", 1)
    assert f"{type(error).__name__} was raised in a task" in world.heard.events[0].failure.text
    assert asyncio.get_running_loop().get_task_factory() is None


async def test_second_interrupt_while_stopping_is_not_taken_for_a_failure() -> None:
    """A Ctrl-C that comes while the consumer stops is raised in whatever runs, and must come through."""
    slots = Slots(timedelta(minutes=1), lambda _: None)
    slot = slots.open()
    assert not slot.passes_on(KeyboardInterrupt())
    slots.is_stopping = True
    assert slot.passes_on(KeyboardInterrupt())
    assert not slot.passes_on(SystemExit())
    slots.close()


async def test_each_failed_attempt_is_reported_with_its_stack() -> None:
    world = World()

    async def handle(body: bytes) -> None:
        raise ConnectionResetError("password=hunter2x9 refused")

    options = ConsumeOptions(backoff=Fixed(SOON), breaker=None, attempts=2, max_deliveries=2)
    async with world.consuming(handle, options):
        await world.send(b"bad")
        await world.heard.until("durable", 1)
    assert [attempt for attempt, _ in world.heard.attempts] == [1, 2, 1, 2]
    for _, failure in world.heard.attempts:
        assert "in handle" in (failure.stack or "")
        assert "hunter2x9" not in repr(failure)


async def test_reason_that_a_handler_gives_is_redacted() -> None:
    world = World()

    async def handle(body: bytes, context: Context) -> None:
        context.dead_letter("password=hunter2x9", "token=abc123XYZ9 expired")

    async with world.consuming(handle):
        await world.send(b"bad")
        await world.heard.until("durable", 1)
        (dead,) = await world.dead()
    (event,) = world.heard.events
    for text in (repr(event), repr(dead)):
        assert "hunter2x9" not in text
        assert "abc123XYZ9" not in text
    assert event.reason == "password=[REDACTED:password]"


async def test_dead_letter_that_is_not_durable_is_reported_with_a_redacted_traceback() -> None:
    world = World()
    world.broker.refuse("orders.dlq", "password=hunter2x9 is wrong")

    async def handle(body: bytes) -> None:
        raise ValueError("bad")

    async with world.consuming(handle, ONE_TRY):
        await world.send(b"bad")
        await world.heard.until("not_durable", 1)
        world.broker.permit("orders.dlq")
        await world.heard.until("durable", 1)
    failed, *_ = world.heard.events
    assert (failed.error_stack or "").startswith("Traceback (most recent call last):")
    assert "PublishError" in (failed.error_stack or "")
    assert "hunter2x9" not in repr(failed)
