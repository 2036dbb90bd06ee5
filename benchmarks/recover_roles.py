"""Who takes part in the way back, each as a process of its own?

`python -m benchmarks.recover_roles ROLE URL COUNT [--store PATH]` imports, connects, says `ready`, waits for a line,
works until COUNT messages are done and prints how long that took and how much CPU.

    collect   our collector: dead letters from their queue into a store
    plain     the peer: pika and one insert, one commit and one acknowledgement for each message
    tuned     the same with a write-ahead log, which whoever knows SQLite well would set
    redrive   our workers and our collector of verdicts: letters from the store to their queue, until all are resolved
    consume   an app whose handler does nothing: it sends the verdicts, and ends with its standard input

Nobody writes logs. This module does not know what is compared with what.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import logging
import sqlite3
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from benchmarks.amqp_load import cpu, wait_for_go
from benchmarks.recover_fill import SOURCE
from redrive.clock import SystemClock

if TYPE_CHECKING:
    from redrive.recover.worker import Worker

PATIENCE_S = 300
COLLECTED_AT_ONCE = 500  # what a collector does unless told otherwise
WORKERS = 2  # what `redrive serve` has unless told otherwise
SENT_AT_ONCE = 500
PREFETCH = WORKERS * SENT_AT_ONCE  # and the shovel's default is the same
PLAIN_PREFETCH = 200
DLQ = f"{SOURCE}.dlq"


@dataclass(frozen=True)
class Job:
    """What to do."""

    url: str
    count: int
    store: str


class Watch:
    """How long it took, and what it cost."""

    def __init__(self) -> None:
        self._start, self._cpu = time.monotonic(), cpu()

    def told(self, **more: object) -> dict[str, object]:
        """The figures, for whoever started this process."""
        return {"seconds": time.monotonic() - self._start, "cpu": cpu() - self._cpu, **more}


def run(work: Callable[[], Coroutine[None, None, dict[str, object]]]) -> dict[str, object]:
    """On the event loop that `redrive serve` uses, and not for ever."""
    uvloop = importlib.import_module("uvloop")

    async def bounded() -> dict[str, object]:
        async with asyncio.timeout(PATIENCE_S):
            return await work()

    found: dict[str, object] = uvloop.run(bounded())
    return found


def trouble(what: str, error: Exception) -> None:
    print(f"{what}: {error}", file=sys.stderr, flush=True)


async def go() -> None:
    """Everything is connected: wait for the word."""
    await asyncio.to_thread(wait_for_go)


# --- Collecting ---------------------------------------------------------------------------------------------


def collect(job: Job) -> dict[str, object]:
    """Our collector, with its defaults; letters are due at once, so that the worker need not wait for them."""
    from redrive.collect import Collector
    from redrive.collect.reading import Reader
    from redrive.letters.redact import Redactor
    from redrive.rules import Classifier, StrategyOptions
    from redrive.stores.sqlite import SqliteStore
    from redrive.transports import open_transport

    async def work() -> dict[str, object]:
        clock, stop, left = SystemClock(), asyncio.Event(), job.count
        options = StrategyOptions(delays=(timedelta(0),))

        def collected(letters: Any) -> None:
            nonlocal left
            left -= len(letters)
            if left <= 0:
                stop.set()

        store = await SqliteStore.open(job.store)
        async with open_transport(job.url, clock) as transport:
            collector = Collector(
                transport,
                store,
                DLQ,
                reader=Reader(Classifier(), Redactor(), options),
                options=options,
                clock=clock,
                trouble=trouble,
                batch=COLLECTED_AT_ONCE,
                collected=collected,
            )
            await go()
            watch = Watch()
            await collector.run(stop)  # returns when the last of them is accepted
            told = watch.told(done=collector.counts.collected)
        await store.close()
        return told

    return run(work)


def tuned(job: Job) -> dict[str, object]:
    """As durable as with SQLite's own settings, by fewer writes."""
    with contextlib.closing(sqlite3.connect(job.store)) as table:
        table.execute("PRAGMA journal_mode = WAL")  # the file remembers it
    return plain(job)


def plain(job: Job) -> dict[str, object]:
    """The loop that one writes in an afternoon, with SQLite as it is."""
    import pika

    table = sqlite3.connect(job.store, isolation_level=None)
    table.execute("PRAGMA synchronous = FULL")  # as it is anyway, unless somebody built it otherwise
    table.execute("CREATE TABLE IF NOT EXISTS dead (id TEXT PRIMARY KEY, headers TEXT, body BLOB)")
    connection = pika.BlockingConnection(pika.URLParameters(job.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PLAIN_PREFETCH)
    wait_for_go()
    watch, done = Watch(), 0
    for method, properties, body in channel.consume(DLQ, inactivity_timeout=PATIENCE_S):
        if method is None or properties is None:
            break
        table.execute("BEGIN IMMEDIATE")
        table.execute(
            "INSERT OR IGNORE INTO dead VALUES (?, ?, ?)",
            (properties.message_id, json.dumps(properties.headers, default=str), body),
        )
        table.execute("COMMIT")
        channel.basic_ack(method.delivery_tag)
        done += 1
        if done == job.count:
            break
    channel.cancel()
    told = watch.told(done=done)
    connection.close()
    table.close()
    return told


# --- Sending back -------------------------------------------------------------------------------------------


def redrive(job: Job) -> dict[str, object]:
    """Our workers, claiming large batches, beside the collector of verdicts: one process, as `redrive serve` is."""
    from redrive.collect import VerdictCollector
    from redrive.recover.breaker import Breakers, HoldBackOptions
    from redrive.recover.worker import Worker, WorkerOptions
    from redrive.rules import StrategyOptions
    from redrive.stores.sqlite import SqliteStore
    from redrive.transports import open_transport

    async def work() -> dict[str, object]:
        clock, stop, left = SystemClock(), asyncio.Event(), job.count
        breakers = Breakers(clock, HoldBackOptions(), lambda _source: None)

        def resolved(verdict: Any) -> None:
            nonlocal left
            breakers.succeeded(verdict.source)
            left -= 1
            if left <= 0:
                stop.set()

        store = await SqliteStore.open(job.store)
        async with open_transport(job.url, clock) as transport:
            verdicts = VerdictCollector(transport, store, clock=clock, trouble=trouble, resolved=resolved)
            workers = [
                Worker(
                    store,
                    transport,
                    name=f"bench-{number}",
                    strategy=StrategyOptions(),
                    options=WorkerOptions(batch=SENT_AT_ONCE),
                    clock=clock,
                    breakers=breakers,
                    trouble=trouble,
                )
                for number in range(WORKERS)
            ]
            await go()
            watch = Watch()
            await asyncio.gather(verdicts.run(stop), *map(until_nothing_is_due, workers))
            told = watch.told(
                done=verdicts.counts.resolved,
                sent=sum(worker.counts.sent for worker in workers),
                stale=sum(worker.counts.stale for worker in workers) + verdicts.counts.late,
            )
        await store.close()
        return told

    return run(work)


async def until_nothing_is_due(worker: "Worker") -> None:
    """One turn after another, as `Worker.run` does while there is work."""
    while await worker.turn():
        pass


def consume(job: Job) -> dict[str, object]:
    """An app as its documentation has it; only the prefetch is set."""
    from redrive import App, Settings

    app, seen = App(job.url, settings=Settings()), 0

    @app.consume(SOURCE, prefetch=PREFETCH, queue_type="classic")
    async def on_order(_order: bytes) -> None:
        nonlocal seen
        seen += 1

    async def work() -> dict[str, object]:
        async with app:
            watch = Watch()
            await go()  # says that it is ready; the word comes when everything is over
            return watch.told(done=seen)

    return run(work)


ROLES = {"collect": collect, "plain": plain, "tuned": tuned, "redrive": redrive, "consume": consume}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recover_roles")
    parser.add_argument("role", choices=sorted(ROLES))
    parser.add_argument("url")
    parser.add_argument("count", type=int)
    parser.add_argument("--store", default="")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print(json.dumps(ROLES[options.role](Job(options.url, options.count, options.store))), flush=True)


if __name__ == "__main__":
    main()
