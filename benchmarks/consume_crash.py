"""How fast does a consumer go on after its broker has crashed?

A classic queue of RabbitMQ is full of persistent messages; an app consumes them, RabbitMQ is killed and started again.
What is left comes `redelivered` then, though no handler has seen it. The rate from the first message after the crash,
for ten seconds or until the queue is empty, is compared with the rate before it.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator

from benchmarks.amqp_load import Link
from benchmarks.broker import note
from benchmarks.case import Case
from benchmarks.consume_fill import fill, plain, put_up, shelf_of, take_down
from benchmarks.consume_ours import Order
from benchmarks.consume_peers import PREFETCH
from tests.services import Missing, RabbitMQServer, Run, look_for_program

ASKED = 0.8
WITHIN_S = 10
PATIENCE_S = 120
QUEUE = "bench.crash"


def run(*, quick: bool) -> Iterator[Case]:
    """The one case; nothing and a note where there is no RabbitMQ."""
    found = look_for_program(RabbitMQServer, {})
    if isinstance(found, Missing):
        note(f"consume: the crash of a broker is left out: {found.reason}")
        return
    count = 40_000 if quick else 100_000
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(stack.enter_context(Run.of({})).private(RabbitMQServer, os.environ))
        shelf = shelf_of("ours", QUEUE)
        with Link(server.amqp_url) as link:
            put_up(link, shelf)
            fill(link, QUEUE, plain(), count)
        before, after = asyncio.run(_through_a_crash(server, count))
        with Link(server.amqp_url) as link:
            take_down(link, shelf)
    name = f"after a crash of the broker, {count:,} messages"
    yield Case(name, after, before, "before the crash", ASKED, "messages/s")


async def _through_a_crash(server: RabbitMQServer, count: int) -> tuple[float, float]:
    """Messages per second before and after."""
    from redrive import App, Settings

    app = App(server.amqp_url, settings=Settings())
    times: list[float] = []
    enough = asyncio.Event()
    wanted = count // 4

    @app.consume(QUEUE, prefetch=PREFETCH, queue_type="classic")
    async def on_order(order: Order) -> None:  # noqa: ARG001  its type says what to decode
        times.append(time.monotonic())
        if len(times) == wanted:
            enough.set()

    async with app:
        async with asyncio.timeout(PATIENCE_S):
            await enough.wait()
        await asyncio.to_thread(server.kill)
        seen = len(times)
        await asyncio.to_thread(server.start)
        wanted = seen + 1
        enough.clear()
        async with asyncio.timeout(PATIENCE_S):
            await enough.wait()
        end = times[seen] + WITHIN_S
        while (now := time.monotonic()) < end and now - times[-1] < 1:  # noqa: ASYNC110  until none has come for a second
            await asyncio.sleep(0.1)
    before = times[: count // 4]
    after = [at for at in times[seen:] if at <= end]
    note(f"  consume, crash of the broker: {len(after):,} of {count - seen:,} within {WITHIN_S} s")
    return _rate(before), _rate(after)


def _rate(times: list[float]) -> float:
    return (len(times) - 1) / (times[-1] - times[0])
