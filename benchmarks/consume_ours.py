"""How does redrive consume a full queue: with everything it has, and with the bare transport?

`runtime` is an `App` as its documentation has it, with whoever listens by default; only the prefetch is set, as for
the others. A failed message is dead-lettered by the default way: published with its story and confirmed, then
acknowledged. `rejecting` is the same app with the other way: the broker moves the message as it is. `bare` is a loop
over the transport without handler, rules and listeners: what the runtime is built on.
"""

import asyncio
from typing import Literal

import msgspec

from benchmarks.amqp_load import wait_for_go
from benchmarks.consume_peers import PREFETCH, Job, Tally, run_with_uvloop


class Order(msgspec.Struct):
    """What lies in the queue."""

    id: str
    customer: int
    total: float
    note: str


def rejecting(job: Job, tally: Tally) -> None:
    """What cannot be processed is left to the broker."""
    runtime(job, tally, "native")


def runtime(job: Job, tally: Tally, dead_letter: Literal["publish", "native"] | None = None) -> None:
    """An app with one handler that takes the decoded order."""
    from redrive import App, Settings

    app = App(job.url, settings=Settings())

    @app.consume(job.queue, prefetch=PREFETCH, queue_type="classic", dead_letter=dead_letter)
    async def on_order(order: Order) -> None:  # noqa: ARG001  its type says what to decode
        tally.see()

    wait_for_go()

    async def consume(seen: asyncio.Event) -> None:
        async with app:
            await seen.wait()

    run_with_uvloop(consume, tally)


def bare(job: Job, tally: Tally) -> None:
    """Receive, count, accept."""
    from redrive.clock import SystemClock
    from redrive.transports import Source, open_transport

    if job.fail_every:
        raise SystemExit("the bare transport has no handler that could fail")
    wait_for_go()

    async def consume(seen: asyncio.Event) -> None:
        async with open_transport(job.url, SystemClock()) as transport:
            receiver = await transport.receiver(Source(name=job.queue, window=PREFETCH))
            while not seen.is_set():
                batch = await receiver.receive()
                for _ in batch:
                    tally.see()
                receiver.accept(batch)
            await receiver.stop()
            await receiver.close()

    run_with_uvloop(consume, tally)
