"""How does each library consume a full queue, as its own documentation would have it?

`python -m benchmarks.consume_peers NAME URL QUEUE COUNT [--fail-every N]` imports its library, says `ready`, waits for
a line, consumes COUNT messages and prints when it saw the first and the last of them. The rule: nobody is held back.
Each has a prefetch of 200, settles each message for itself, and the fastest of its usual ways; what was tried and
given up stands beside it. Nobody writes logs.

The handler counts and does nothing else. Every Nth time it raises, and the library dead-letters the message in its
own way. This module does not know what lies in the queue or what becomes of a dead letter.
"""

import argparse
import asyncio
import importlib
import itertools
import json
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.amqp_load import cpu, wait_for_go
from benchmarks.consume_fill import TASK

PREFETCH = 200
PATIENCE_S = 300


@dataclass(frozen=True)
class Job:
    """What to consume."""

    url: str
    queue: str
    count: int
    fail_every: int  # 0: nothing fails


class Tally:
    """The handler of all contestants, from whatever thread."""

    def __init__(self, job: Job) -> None:
        self._numbers = itertools.count(1)  # counts without a lock, in threads as well
        self._last, self._fail_every = job.count, job.fail_every
        self.all_seen = threading.Event()
        self.when_all_seen: Callable[[], object] = self.all_seen.set
        self._marks: dict[str, float] = {}

    def see(self) -> None:
        """A message has come."""
        number = next(self._numbers)
        if number == 1:
            self._marks |= {"first": time.monotonic(), "cpu_before": cpu()}
        if number == self._last:
            self._marks |= {"last": time.monotonic(), "cpu_after": cpu()}
            self.when_all_seen()
        if self._fail_every and number % self._fail_every == 0:
            raise ValueError("invalid format: the total is not a number")

    def line(self) -> str:
        """What was seen, for whoever started this process."""
        marks = self._marks
        return json.dumps(
            {
                "first": marks["first"],
                "last": marks["last"],
                "cpu": marks["cpu_after"] - marks["cpu_before"],
                "seen": next(self._numbers) - 1,
            }
        )


def run_with_uvloop(work: Callable[[asyncio.Event], Coroutine[None, None, None]], tally: Tally) -> None:
    """Asynchronous contestants: the event tells them that the last message has come."""
    import uvloop

    async def all_of_it() -> None:
        seen = asyncio.Event()
        tally.when_all_seen = seen.set
        async with asyncio.timeout(PATIENCE_S):
            await work(seen)

    uvloop.run(all_of_it())


def pika(job: Job, tally: Tally) -> None:
    """SelectConnection: twice as fast as the blocking one."""

    def on_message(channel: Any, method: Any, _properties: object, _body: bytes) -> None:
        try:
            tally.see()
        except ValueError:
            channel.basic_reject(method.delivery_tag, requeue=False)
        else:
            channel.basic_ack(method.delivery_tag)

    run_select(job, tally, on_message)


def pika_publishing(job: Job, tally: Tally) -> None:
    """SelectConnection again, but a dead letter tells why, and is confirmed before its message is acknowledged."""
    dead: dict[int, int] = {}  # number of a publish: tag of its message
    published = itertools.count(1)

    def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        try:
            tally.see()
        except ValueError as error:
            properties.headers = {
                **(properties.headers or {}),
                "error-type": type(error).__name__,
                "error": str(error),
                "stack": traceback.format_exc(),
            }
            channel.basic_publish(f"{job.queue}.dlx", method.routing_key, body, properties)
            dead[next(published)] = method.delivery_tag
        else:
            channel.basic_ack(method.delivery_tag)

    def on_confirm(channel: Any, frame: Any) -> None:
        last = frame.method.delivery_tag
        for number in [one for one in dead if one <= last] if frame.method.multiple else [last]:
            channel.basic_ack(dead.pop(number))

    run_select(job, tally, on_message, on_confirm, dead)


def run_select(
    job: Job,
    tally: Tally,
    on_message: Callable[[Any, Any, Any, bytes], None],
    on_confirm: Callable[[Any, Any], None] | None = None,
    unconfirmed: Collection[object] = (),
) -> None:
    """Consume with a SelectConnection until all was seen and nothing waits to be confirmed."""
    import pika as library

    wait_for_go()

    def on_open(connection: Any) -> None:
        # Not at once: the last message is settled first.
        tally.when_all_seen = lambda: connection.ioloop.call_later(0, lambda: close(connection))
        connection.channel(on_open_callback=on_channel)

    def close(connection: Any) -> None:
        if unconfirmed:
            connection.ioloop.call_later(0.01, lambda: close(connection))
        else:
            connection.close()

    def on_channel(channel: Any) -> None:
        if on_confirm is not None:
            channel.confirm_delivery(lambda frame: on_confirm(channel, frame))
        channel.basic_qos(
            prefetch_count=PREFETCH, callback=lambda _: channel.basic_consume(job.queue, on_message)
        )

    connection = library.SelectConnection(
        library.URLParameters(job.url),
        on_open_callback=on_open,
        on_close_callback=lambda connection, _: connection.ioloop.stop(),
    )
    connection.ioloop.start()


def pika_blocking(job: Job, tally: Tally) -> None:
    """BlockingConnection: what most programs with pika have."""
    import pika as library

    wait_for_go()
    connection = library.BlockingConnection(library.URLParameters(job.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    tally.when_all_seen = channel.stop_consuming

    def on_message(_channel: object, method: Any, _properties: object, _body: bytes) -> None:
        try:
            tally.see()
        except ValueError:
            channel.basic_reject(method.delivery_tag, requeue=False)
        else:
            channel.basic_ack(method.delivery_tag)

    channel.basic_consume(job.queue, on_message)
    channel.start_consuming()
    connection.close()


def aio_pika(job: Job, tally: Tally) -> None:
    """`queue.consume` with a coroutine."""
    import aio_pika as library

    wait_for_go()

    async def consume(seen: asyncio.Event) -> None:
        settled = 0
        all_settled = asyncio.Event()

        async def on_message(message: library.abc.AbstractIncomingMessage) -> None:
            nonlocal settled
            try:
                tally.see()
            except ValueError:
                await message.reject(requeue=False)
            else:
                await message.ack()
            settled += 1
            if settled == job.count:
                all_settled.set()

        connection = await library.connect(job.url)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(job.queue)
        await queue.consume(on_message)
        await seen.wait()
        await all_settled.wait()
        await connection.close()

    run_with_uvloop(consume, tally)


def faststream(job: Job, tally: Tally) -> None:
    """A subscriber that gets the decoded order, unchecked; its default policy rejects what fails."""
    from faststream.rabbit import Channel, RabbitBroker, RabbitQueue

    broker = RabbitBroker(
        job.url, logger=None, apply_types=False, default_channel=Channel(prefetch_count=PREFETCH)
    )

    @broker.subscriber(RabbitQueue(job.queue, declare=False))
    async def on_order(order: dict[str, object]) -> None:  # noqa: ARG001
        tally.see()

    wait_for_go()

    async def consume(seen: asyncio.Event) -> None:
        await broker.start()
        await seen.wait()
        await broker.stop()

    run_with_uvloop(consume, tally)


def dramatiq(job: Job, tally: Tally) -> None:
    """A worker with its default eight threads; without retries, what fails goes to the dead-letter queue."""
    os.environ |= {"dramatiq_queue_prefetch": str(PREFETCH)}  # read when the library is imported
    import dramatiq as library
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    broker = RabbitmqBroker(url=job.url)
    library.set_broker(broker)

    @library.actor(actor_name=TASK, queue_name=job.queue, max_retries=0)
    def on_order(order: dict[str, object]) -> None:  # noqa: ARG001
        tally.see()

    worker = library.Worker(broker, queues={job.queue}, worker_timeout=100)
    wait_for_go()
    worker.start()
    tally.all_seen.wait(PATIENCE_S)
    worker.stop()
    broker.close()


def celery(job: Job, tally: Tally) -> None:
    """A worker that acknowledges late and rejects what fails (`task_acks_on_failure` off).

    The solo pool: threads and prefork, which hand each task over, are slower with a task that does nothing.
    """
    import celery as library  # type: ignore[import-untyped]
    import kombu
    from celery.worker import state  # type: ignore[import-untyped]
    from kombu.asynchronous import get_event_loop

    app = library.Celery(
        broker=job.url,
        task_queues=[kombu.Queue(job.queue, exchange="", routing_key=job.queue, no_declare=True)],
        task_acks_late=True,
        task_acks_on_failure=False,
        task_ignore_result=True,
        worker_prefetch_multiplier=PREFETCH,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=False,
    )

    def on_order(order: dict[str, object]) -> None:  # noqa: ARG001
        tally.see()

    app.task(on_order, name=TASK)

    def stop() -> None:
        state.should_stop = 0
        # A loop that has nothing to do looks at `should_stop` seconds later; a timer wakes it.
        get_event_loop().call_later(0.01, lambda: None)

    tally.when_all_seen = stop
    worker = app.Worker(
        pool="solo",
        concurrency=1,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
    )
    wait_for_go()
    worker.start()


CONTESTANTS: dict[str, str] = {
    "pika": "benchmarks.consume_peers:pika",
    "pika-publishing": "benchmarks.consume_peers:pika_publishing",
    "pika-blocking": "benchmarks.consume_peers:pika_blocking",
    "aio-pika": "benchmarks.consume_peers:aio_pika",
    "faststream": "benchmarks.consume_peers:faststream",
    "dramatiq": "benchmarks.consume_peers:dramatiq",
    "celery": "benchmarks.consume_peers:celery",
    "ours": "benchmarks.consume_ours:runtime",
    "ours-rejecting": "benchmarks.consume_ours:rejecting",
    "bare": "benchmarks.consume_ours:bare",
}


def run_contestant(module: str, about: str | None, contestants: Mapping[str, str]) -> None:
    """Be the contestant that the command line names."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("name", choices=sorted(contestants))
    parser.add_argument("url")
    parser.add_argument("queue")
    parser.add_argument("count", type=int)
    parser.add_argument(
        "--fail-every", type=int, default=0, metavar="N", help="the handler raises every Nth time"
    )
    options = parser.parse_args()
    job = Job(options.url, options.queue, options.count, options.fail_every)
    logging.disable(logging.CRITICAL)
    where, _, function = contestants[options.name].partition(":")
    tally = Tally(job)
    getattr(importlib.import_module(where), function)(job, tally)
    print(tally.line(), flush=True)


if __name__ == "__main__":
    run_contestant("benchmarks.consume_peers", __doc__, CONTESTANTS)
