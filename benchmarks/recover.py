"""How fast do dead letters come into the store, how fast do they find their way back, and does a full store slow it?

It uses the newest RabbitMQ that is installed, started for this run. A round fills a dead-letter queue with orders of
1 KB as redrive's consumer leaves them. The collector drains them into SQLite, the worker sends them back to their
queue, an app processes them, and the verdict collector resolves each letter. Each round runs on a store of 10,000
letters and on a large one, which are compared with each other. The peers, in turns with them:

    pika and one insert, one commit, one acknowledgement for each message into a plain table of the same durability:
    with SQLite as it is, and with a write-ahead log, as ours has one
    RabbitMQ's own shovel, inside the node and with confirms, moving the same messages from queue to queue

Everybody is a process of its own (`recover_roles`) that has connected before the clock starts, and the node has passed
a few messages before; the median of the rounds counts. A run after which a message is missing, in the store, in a queue
or among the resolved, is void, and its case has no figure. How much CPU everybody took goes to standard error, and so
does what could not be measured and why.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import sqlite3
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.amqp_load import Link
from benchmarks.broker import Target, note, share, until
from benchmarks.case import Case, Figure, Speed, figures_of
from benchmarks.consume_fill import Envelope, Shelf, fill, put_up, shelf_of, take_down, wait_for_depth
from benchmarks.contestant import Process, VoidError, scaled
from benchmarks.recover_fill import SOURCE, dead_order, stock
from redrive.letters import LetterState
from redrive.letters.verdict import QUEUE as VERDICTS
from redrive.stores.changes import Delete
from redrive.stores.query import EVERYTHING, Condition, Op, Query
from redrive.stores.sqlite import SqliteStore
from tests.services import Missing, RabbitMQServer, Run, look_for_program

UNIT = "letters/s"
SMALL = 10_000
FLAT = 0.667
WARM = 1_000  # messages before anything is measured
PATIENCE_S = 240
SETTLE_S = 10  # until the last acknowledgement has arrived
PLAIN, TUNED = "pika, one insert and commit each", "pika, one insert and commit each, write-ahead log"
SHOVEL = "RabbitMQ's shovel"
MOVED = "bench.moved"
COLLECTED, REDRIVEN = "collected into SQLite, 1 KB", "redriven with confirm, tracking and verdict, 1 KB"
RESOLVED = Query(
    (Condition("source", Op.IS, (SOURCE,)), Condition("state", Op.IS, (str(LetterState.RESOLVED),)))
)


@dataclass(frozen=True)
class Effort:
    """How long to look."""

    messages: int  # of one round
    plain: int  # of one round of the slow peer
    rounds: int
    large: int  # letters in the large store


QUICK = Effort(messages=10_000, plain=1_000, rounds=1, large=100_000)
FULL = Effort(messages=20_000, plain=4_000, rounds=3, large=1_000_000)
QUICK_ALONE = Effort(messages=20_000, plain=0, rounds=1, large=0)


@dataclass
class Rates:
    """What was found, by who and at what: a run that was void takes its whole series with it."""

    found: dict[str, list[float]] = field(default_factory=dict)
    void: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[list[float]]:
        """Where to write the rates of one series down."""
        try:
            yield self.found.setdefault(name, [])
        except (VoidError, TimeoutError) as error:
            note(f"recover: {name} is left out: {error}")
            self.void.add(name)

    def case(self, name: str, ours: str, peer: str, peer_name: str, asked: float) -> Iterator[Case]:
        """One series against another, if both are there."""
        if not {ours, peer} & self.void:
            yield Case(name, median(self.found[ours]), median(self.found[peer]), peer_name, asked, UNIT)


def run(*, quick: bool) -> Iterator[Case]:
    """All cases."""
    effort = QUICK if quick else FULL
    with contextlib.ExitStack() as stack:
        arena, stores = prepare(stack, (SMALL, effort.large))
        if arena is not None:
            yield from compare(arena, stores, effort)


def run_ours(*, quick: bool) -> Iterator[Figure]:
    """Collecting and redriving on the small store, without the peers."""
    effort = replace(QUICK_ALONE, messages=scaled(QUICK_ALONE.messages)) if quick else FULL
    with contextlib.ExitStack() as stack:
        arena, stores = prepare(stack, (SMALL,))
        if arena is None:
            return
        collected: list[Speed] = []
        redriven: list[Speed] = []
        try:
            arena.warm_up()
            for _ in range(effort.rounds):
                collected.append(arena.collect(stores[SMALL], effort.messages))
                redriven.append(arena.redrive(stores[SMALL], effort.messages))
                asyncio.run(clear(stores[SMALL]))
        except (VoidError, TimeoutError) as error:
            note(f"recover: left out: {error}")
            return
        yield from figures_of(COLLECTED, collected, UNIT)
        yield from figures_of(REDRIVEN, redriven, UNIT)


def prepare(stack: contextlib.ExitStack, sizes: Sequence[int]) -> tuple["Arena | None", dict[int, Path]]:
    """A RabbitMQ and stores of these sizes, until the stack is closed; None and a note if there is no RabbitMQ."""
    place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redrive-bench-")))
    stores = {size: place / f"{size}.db" for size in sizes}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        # A RabbitMQ takes its time to start; meanwhile the stores are filled.
        starting = pool.submit(start_rabbitmq, stack)
        for size, path in stores.items():
            asyncio.run(stock(path, size))
        server = starting.result()
    if server is None:
        return None, stores
    version = server.address.api("GET", "/overview")["rabbitmq_version"]
    target = Target(f"RabbitMQ {version}", server.amqp_url, server.pids[-1:])
    link = stack.enter_context(Link(target.url))
    return Arena(server, target, link, dead_order(), place), stores


def start_rabbitmq(stack: contextlib.ExitStack) -> RabbitMQServer | None:
    """A node of our own, until the stack is closed; None and a note if there is none to be had."""
    found = look_for_program(RabbitMQServer, {})
    if isinstance(found, Missing):
        note(f"recover: everything is left out, because it needs RabbitMQ: {found.reason}")
        return None
    test_run = stack.enter_context(Run.of({}))
    return stack.enter_context(test_run.private(RabbitMQServer, os.environ))


# --- Rounds -------------------------------------------------------------------------------------------------


def compare(arena: "Arena", stores: dict[int, Path], effort: Effort) -> Iterator[Case]:
    """Ours beside the peers, and a large store beside a small one."""
    rates = Rates()
    with rates.of("warming up"):
        arena.warm_up()
    for turn in range(effort.rounds):
        for size, path in list(stores.items())[:: -1 if turn % 2 else 1]:
            with rates.of(f"collecting at {size:,}") as collected, rates.of(f"redriving at {size:,}") as sent:
                collected.append(arena.collect(path, effort.messages).rate)
                sent.append(arena.redrive(path, effort.messages).rate)
                asyncio.run(clear(path))
        for name, peer in ((PLAIN, "plain"), (TUNED, "tuned")):
            with rates.of(name) as found:
                found.append(arena.plain(name, peer, effort.plain))
        with rates.of(SHOVEL) as found:
            found.append(arena.shovel(effort.messages))
    large = f"{effort.large:,}"
    small = f"{SMALL:,}"
    for peer in (PLAIN, TUNED):
        peer_name = f"{peer}, on {arena.target.name}"
        yield from rates.case(COLLECTED, f"collecting at {small}", peer, peer_name, 5.0)
    yield from rates.case(
        REDRIVEN,
        f"redriving at {small}",
        SHOVEL,
        f"shovel of {arena.target.name}",
        0.5,
    )
    for what in ("collecting", "redriving"):
        yield from rates.case(
            f"{what}, {large} letters in the store",
            f"{what} at {large}",
            f"{what} at {small}",
            f"the same at {small}, on {arena.target.name}",
            FLAT,
        )


@dataclass(frozen=True)
class Arena:
    """A RabbitMQ, and what dies in it."""

    server: RabbitMQServer
    target: Target
    link: Link
    envelope: Envelope
    place: Path

    def warm_up(self) -> None:
        """The whole way once, for nothing: a node that has just started is slow, and would be slow for us alone."""
        path = self.place / "warm.db"
        asyncio.run(stock(path, 1))
        for one in (self.collect, self.redrive):
            one(path, WARM)

    # --- ours ---

    def collect(self, path: Path, count: int) -> Speed:
        """One run of the collector."""
        before = asyncio.run(counted(path, EVERYTHING))
        with self._shelf() as shelf, role("collect", self.target.url, count, path) as process:
            fill(self.link, shelf.dead, self.envelope, count)
            told = self._timed("collecting", process, count)
            self._is_left(shelf.dead, 0)
        there = asyncio.run(counted(path, EVERYTHING)) - before
        if there != count or told["done"] != count:
            raise VoidError(f"{count:,} messages made {there:,} letters, and {told['done']:,} were told of")
        return Speed(rate=count / told["seconds"], cpu=told["cpu"] / count)

    def redrive(self, path: Path, count: int) -> Speed:
        """One run of workers and consumer, from the first claim to the last verdict; letters are due when it begins."""
        before = asyncio.run(counted(path, RESOLVED))
        with (
            self._shelf() as shelf,
            role("consume", self.target.url, count) as consumer,
            role("redrive", self.target.url, count, path) as process,
        ):
            consumer.wait_until_ready()
            told = self._timed("redriving", process, count)
            seen = consumer.go()
            for queue in (shelf.queue, shelf.dead, VERDICTS):
                self._is_left(queue, 0)
        note(f"    its consumer: CPU {share(seen['cpu'], told['seconds'])} of a core")
        there = asyncio.run(counted(path, RESOLVED)) - before
        if not there == told["done"] == told["sent"] == seen["done"] == count or told["stale"]:
            raise VoidError(f"{there:,} of {count:,} letters are resolved; told were {told} and {seen}")
        return Speed(rate=count / told["seconds"], cpu=(told["cpu"] + seen["cpu"]) / count)

    # --- the peers ---

    def plain(self, name: str, peer: str, count: int) -> float:
        """Messages per second by the plain loop."""
        path = self.place / f"{peer}-{time.monotonic_ns()}.db"
        with self._shelf() as shelf, role(peer, self.target.url, count, path) as process:
            fill(self.link, shelf.dead, self.envelope, count)
            told = self._timed(name, process, count)
            self._is_left(shelf.dead, 0)
        rows = rows_in(path)
        if rows != count:
            raise VoidError(f"{count:,} messages made {rows:,} rows")
        return float(count / told["seconds"])

    def shovel(self, count: int) -> float:
        """Messages per second by a shovel with its defaults: inside the node, acknowledged when confirmed."""
        name = f"/parameters/shovel/{urllib.parse.quote('/', safe='')}/bench"
        value = {
            "src-protocol": "amqp091",
            "src-uri": "amqp://",
            "src-queue": f"{SOURCE}.dlq",
            "dest-protocol": "amqp091",
            "dest-uri": "amqp://",
            "dest-queue": MOVED,
            "ack-mode": "on-confirm",
        }
        with self._shelf() as shelf:
            self.link.declare(MOVED, durable=True, x_queue_type="classic")
            fill(self.link, shelf.dead, self.envelope, count)
            broker = self.target.cpu()
            self.server.address.api("PUT", name, {"value": value})
            try:
                # It takes its time to connect, which is not counted: from the first look that finds something moved.
                until(lambda: self.link.depth(MOVED) > 0, pause=0.002)
                start, first = time.monotonic(), self.link.depth(MOVED)
                wait_for_depth(self.link, MOVED, count, PATIENCE_S)
                took = time.monotonic() - start
                self._is_left(shelf.dead, 0)
            finally:
                self.server.address.api("DELETE", name)
                self.link.delete(MOVED)
        if first >= count * 3 // 4:
            raise VoidError("it had moved most of the messages before anybody looked")
        rate = (count - first) / took
        note(f"  {SHOVEL}: {rate:,.0f}/s; broker {share(self.target.cpu() - broker, took)} of a core")
        return rate

    # --- what all of them need ---

    @contextlib.contextmanager
    def _shelf(self) -> Iterator[Shelf]:
        shelf = shelf_of("ours", SOURCE)
        put_up(self.link, shelf)
        self.link.declare(VERDICTS, durable=True, x_queue_type="classic")
        try:
            yield shelf
        finally:
            take_down(self.link, shelf)
            self.link.delete(VERDICTS)

    def _timed(self, what: str, process: Process, count: int) -> dict[str, Any]:
        process.wait_until_ready()
        broker = self.target.cpu()
        told = process.go()
        took = told["seconds"]
        note(
            f"  {what}: {count / took:,.0f}/s of {count:,}, CPU for each {told['cpu'] / count * 1e6:.0f} µs; shares of"
            f" a core: itself {share(told['cpu'], took)}, broker {share(self.target.cpu() - broker, took)}"
        )
        return told

    def _is_left(self, queue: str, count: int) -> None:
        """What somebody left unsettled is back in its queue when the queue has no consumer any more."""
        try:
            wait_for_depth(self.link, queue, count, SETTLE_S)
        except TimeoutError as error:
            raise VoidError(str(error)) from error


async def counted(path: Path, query: Query) -> int:
    """How many letters of the store match."""
    store = await SqliteStore.open(path)
    try:
        return await store.count(query)
    finally:
        await store.close()


async def clear(path: Path) -> None:
    """Remove what was resolved: the next round finds the store as large as this one did."""
    store = await SqliteStore.open(path)
    try:
        while heads := (await store.page(RESOLVED, limit=1000)).heads:
            await store.apply(Delete(), [head.id for head in heads], by="bench")
    finally:
        await store.close()


def rows_in(path: Path) -> int:
    """How many messages the plain loop has kept."""
    with contextlib.closing(sqlite3.connect(path)) as table:
        return int(table.execute("SELECT count(*) FROM dead").fetchone()[0])


def role(name: str, url: str, count: int, store: Path | None = None) -> Process:
    """Who does one part of the way."""
    words = [name, url, str(count), *(["--store", str(store)] if store else [])]
    return Process("benchmarks.recover_roles", words, PATIENCE_S)
