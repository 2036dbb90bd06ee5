"""How does each library consume a full topic, as its own documentation would have it?

`python -m benchmarks.kafka_peers NAME URL TOPIC COUNT [--fail-every N]` imports its library, says `ready`, waits for a
line, consumes COUNT records in the group that the URL names and prints when it saw the first and the last of them. The
rule: nobody is held back. Each commits its offsets in the cheapest of its usual ways, and nobody writes logs.

The handler counts and does nothing else. Every Nth time it raises, and what failed is published to `TOPIC.dlq`. This
module does not know what lies in the topic.
"""

import asyncio
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from benchmarks.amqp_load import wait_for_go
from benchmarks.consume_peers import PATIENCE_S, Job, Tally, run_contestant, run_with_uvloop

BATCH = 500


class Order(msgspec.Struct):
    """What lies in the topic."""

    id: str
    customer: int
    total: float
    note: str


# --- ours -----------------------------------------------------------------------------------------------------


def ours(job: Job, tally: Tally) -> None:
    """An app with one handler that takes the decoded order."""
    _ours(job, tally, Order)


def ours_undecoded(job: Job, tally: Tally) -> None:
    """The same with a handler that takes the bytes."""
    _ours(job, tally, bytes)


def _ours(job: Job, tally: Tally, taken: type) -> None:
    from redrive import App, Settings

    app = App(job.url, settings=Settings())

    async def on_order(order: Any) -> None:  # noqa: ARG001  its type says what to decode
        tally.see()

    on_order.__annotations__["order"] = taken
    app.consume(job.queue, prefetch=BATCH, dead_letter_queue=dlq_of(job.queue))(on_order)
    wait_for_go()

    async def consume(seen: asyncio.Event) -> None:
        async with app:
            await seen.wait()

    run_with_uvloop(consume, tally)


# --- the others -----------------------------------------------------------------------------------------------


def bare(job: Job, tally: Tally) -> None:
    """confluent-kafka alone, at least once: take 500, store the offset of each that is done, commit them."""
    from confluent_kafka import Consumer

    if job.fail_every:
        raise SystemExit("the bare loop has no handler that could fail")
    consumer = Consumer(
        {
            "bootstrap.servers": _servers(job),
            "group.id": _group(job),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 50,  # else it waits for a second whenever it has fetched 64 MB ahead
        }
    )
    wait_for_go()
    consumer.subscribe([job.queue])
    deadline = time.monotonic() + PATIENCE_S
    while not tally.all_seen.is_set() and time.monotonic() < deadline:
        batch = consumer.consume(BATCH, 0.1)
        for record in batch:
            if record.error() is None and record.value() is not None:
                tally.see()
                consumer.store_offsets(message=record)
        if batch:
            consumer.commit(asynchronous=True)
    consumer.commit(asynchronous=False)
    consumer.close()


def faststream_confluent(job: Job, tally: Tally) -> None:
    """A subscriber that gets the decoded order, unchecked; offsets are committed in the background."""
    from faststream.confluent import KafkaBroker

    broker = KafkaBroker(_servers(job), logger=None, apply_types=False, allow_auto_create_topics=False)
    _faststream(broker, job, tally)


def faststream_aiokafka(job: Job, tally: Tally) -> None:
    """The same on aiokafka."""
    from faststream.kafka import KafkaBroker

    _faststream(KafkaBroker(_servers(job), logger=None, apply_types=False), job, tally)


def _faststream(broker: Any, job: Job, tally: Tally) -> None:
    """Its default policy acknowledges first, which costs it least; what fails is published by the handler itself."""

    @broker.subscriber(job.queue, group_id=_group(job), auto_offset_reset="earliest")  # type: ignore[untyped-decorator]  # one of two brokers
    async def on_order(order: dict[str, object]) -> None:
        try:
            tally.see()
        except ValueError as error:
            await broker.publish(order, dlq_of(job.queue), headers={"error": str(error)})

    wait_for_go()

    async def consume(seen: asyncio.Event) -> None:
        await broker.start()
        await seen.wait()
        await broker.stop()

    run_with_uvloop(consume, tally)


# --- what all share ----------------------------------------------------------------------------------------


def dlq_of(topic: str) -> str:
    """Where the dead letters of a topic go."""
    return f"{topic}.dlq"


def _group(job: Job) -> str:
    """The group that the URL names; it has not consumed the topic yet."""
    return parse_qs(urlsplit(job.url).query)["group"][0]


def _servers(job: Job) -> str:
    return urlsplit(job.url).netloc


CONTESTANTS: dict[str, str] = {
    "ours": "benchmarks.kafka_peers:ours",
    "ours-undecoded": "benchmarks.kafka_peers:ours_undecoded",
    "bare": "benchmarks.kafka_peers:bare",
    "faststream-confluent": "benchmarks.kafka_peers:faststream_confluent",
    "faststream-aiokafka": "benchmarks.kafka_peers:faststream_aiokafka",
}

if __name__ == "__main__":
    run_contestant("benchmarks.kafka_peers", __doc__, CONTESTANTS)
