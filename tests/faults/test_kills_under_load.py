"""Consumers, server and broker are killed at random under load: every message stays where it belongs.

A publisher sends messages with unique numbers through an exchange to `orders` and `audit` and waits for confirms;
`orders` forwards some to `payments` with their headers (`shop_under_load`). Meanwhile consumers (`redrive consume`),
the server (`redrive serve`) and the broker are killed by SIGKILL and started again, and replays broadcast letters of
`orders`. At the end, for each confirmed message and each queue it was routed to, it was handled there, or is a letter
of that queue, or is in its dead-letter queue. No letter was resolved by another consumer, and no consumer has received
a message that was not meant for its queue. Duplicates are counted.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pika
import pika.exceptions
import pytest

from redrive.letters import LetterHead, LetterState
from redrive.letters.verdict import QUEUE as VERDICTS
from redrive.settings import StoreOptions
from redrive.stores import open_store
from redrive.stores.query import EVERYTHING, Condition, Op, Query
from tests import soak
from tests.acceptance.serving import Process, Serving, channel, is_there, redrive, until
from tests.faults import shop_under_load
from tests.faults.shop_under_load import has_raw_headers, is_forwarded, is_refused
from tests.services import Postgres, RabbitMQ, RabbitMQServer
from tests.services.guard import LOOPBACK
from tests.services.server import accepts, free_ports

KILLS = soak.count(200, in_ci=6)
VICTIMS = ("consumer", "server", "broker")
REPLAY_EVERY = 4  # kills
QUEUES = ("orders", "audit", "payments")
CONSUMERS = {"shop:shop": ("orders", "payments"), "shop:auditors": ("audit",)}
EXCHANGE = "shop"
PUBLISHERS, RATE = 2, 50  # each of them publishes at most so many messages per second
PATIENCE = 120.0
OPEN = {LetterState.PENDING, LetterState.PROCESSING, LetterState.MANUAL, LetterState.FAILED}
UNSETTLED = (LetterState.PENDING, LetterState.PROCESSING)  # something will happen to it by itself
UNSETTLED_QUERY = Query((Condition("state", Op.IS, UNSETTLED),))
SETTINGS = """
    [consume]
    attempts = 2
    backoff = "50ms"

    [recover]
    poll_interval = "50ms"
    delays = ["100ms"]
    recheck_interval = "1s"
    lease = "10s"
    verdict_timeout = "20s"
    max_cpu = 1.0
    max_memory = 1.0

    [consume.breaker]
    enabled = false

    [[sources]]
    name = "orders"
    queue_type = "quorum"

    [[sources]]
    name = "audit"
    queue_type = "classic"

    [[sources]]
    name = "payments"
    queue_type = "quorum"
"""


class Place(NamedTuple):
    """A message at a queue."""

    source: str
    number: int


class Record(NamedTuple):
    """A message as a handler has seen it."""

    source: str
    number: int
    letter: str  # that it is a redrive of; "-": it is none
    claimed: str  # the letter that its headers name; "-": none
    scope: str

    @property
    def place(self) -> Place:
        """Where the handler has seen it."""
        return Place(self.source, self.number)

    @property
    def is_copy(self) -> bool:
        """Whether its headers name a letter of another consumer."""
        return self.letter != self.claimed


class HandlerLog:
    """The log of all handlers, read as it grows."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb")
        self._rest = b""
        self.seen: set[Record] = set()
        self.handled: Counter[Record] = Counter()
        self.highest = dict.fromkeys(QUEUES, 0)  # number that was handled

    def read(self) -> None:
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            event, source, number, *ids = line.decode().split(" ")
            record = Record(source, int(number), *ids)
            if event == "seen":
                self.seen.add(record)
            else:
                self.handled[record] += 1
                self.highest[source] = max(self.highest[source], record.number)

    def places(self) -> set[Place]:
        """Where messages were handled."""
        return {record.place for record in self.handled}

    def lost(self, confirmed: Iterable[int], dead: set[Place]) -> set[Place]:
        """Messages that were routed to a queue and are neither handled there nor dead."""
        handled = self.places()
        routed = {Place(source, number) for number in confirmed for source in ("orders", "audit")}
        forwarded = {
            Place("payments", number)
            for source, number in handled
            if source == "orders" and is_forwarded(number)
        }
        return (routed | forwarded) - handled - dead

    def close(self) -> None:
        self._file.close()


class Publishers:
    """Publish numbers to the exchange, with confirms, and reconnect when the broker has gone."""

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
                            EXCHANGE,
                            "",
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


class Replays:
    """Replays of letters of `orders` through their exchange, each as a command of its own."""

    def __init__(self, place: Path, broker_url: str) -> None:
        self._place = place
        self._broker_url = broker_url
        self._threads = ThreadPoolExecutor(1)
        self._running: list[Future[subprocess.CompletedProcess[str]]] = []
        self.ended: list[subprocess.CompletedProcess[str]] = []

    def start(self, server: Serving) -> None:
        words = (
            *("replay", "source:orders state:manual", "--limit", "20", "--broadcast"),
            *("--max-failure-rate", "100", "--force", "--yes", "--json"),
            *("--server", server.http, "--broker", self._broker_url),
        )
        self._running.append(self._threads.submit(redrive, self._place, *words))

    def wait(self) -> None:
        for running in self._running:
            done = running.result()
            # 1: stopped by a kill, or because those that were judged have died again; 3, 4: no store, no broker
            assert done.returncode in (0, 1, 3, 4), done.stderr
            self.ended.append(done)
        self._running.clear()

    def close(self) -> None:
        self._threads.shutdown()

    def figures(self) -> dict[str, int]:
        outcomes: Counter[str] = Counter()
        for done in self.ended:
            if done.stdout:
                outcomes.update(json.loads(done.stdout)["outcomes"])
        return {
            "run": len(self.ended),
            "interrupted": sum(not is_complete(done) for done in self.ended),
            **{f"letters {outcome}": count for outcome, count in outcomes.items()},
        }


def is_complete(replay: subprocess.CompletedProcess[str]) -> bool:
    """Whether each letter of a replay was sent or skipped."""
    if not replay.stdout:
        return False
    told = json.loads(replay.stdout)
    return bool(
        told["outcomes"].keys() <= {"sent", "skipped"} and sum(told["outcomes"].values()) == told["total"]
    )


class World:
    """Two consumers, the server and the broker, each of which can be killed and started again."""

    def __init__(
        self, place: Path, broker: RabbitMQ, settings: str, rabbitmq: RabbitMQServer | None = None
    ) -> None:
        """Without `rabbitmq`, the server runs the broker."""
        self.place = place
        self.broker = broker
        self._settings = f"{textwrap.dedent(settings)}{textwrap.dedent(SETTINGS)}"
        self._rabbitmq = rabbitmq
        shutil.copy(shop_under_load.__file__, place / "shop.py")
        self.log = HandlerLog(place / shop_under_load.LOG)
        self.replays = Replays(place, broker.amqp_url)
        self.server = self._serve()
        self.consumers: dict[str, Process] = {}

    def start(self) -> None:
        """Bind the queues, which the server has made, to the exchange, and start the consumers."""
        with channel(self.broker.amqp_url) as opened:
            opened.exchange_declare(EXCHANGE, "fanout", durable=True)
            for queue in ("orders", "audit"):
                opened.queue_bind(queue, EXCHANGE)
        for app in CONSUMERS:
            self.consumers[app] = self._consume(app)

    @property
    def processes(self) -> tuple[Process, ...]:
        return (*self.consumers.values(), self.server)

    def _serve(self) -> Serving:
        options = () if self._rabbitmq is None else ("--broker", self.broker.amqp_url)
        return Serving(self.place, *options, settings=self._settings)

    def _consume(self, app: str) -> Process:
        consumer = Process(self.place, "consume", app, "--broker", self.broker.amqp_url)
        consumer.until_it_says("redrive consume")
        return consumer

    def kill(self, victim: str, chance: random.Random) -> None:
        """Kill one of them at once, and start it again."""
        assert all(process.process.poll() is None for process in self.processes), "it ended by itself"
        match victim:
            case "consumer":
                app = chance.choice(tuple(CONSUMERS))
                self.consumers[app].end(signal.SIGKILL)
                self.consumers[app] = self._consume(app)
            case "server":
                child = None if self._rabbitmq is not None else self.server.broker_pid()
                self.server.end(signal.SIGKILL)
                if child is not None:
                    until(lambda: not is_there(child), "the embedded broker ends with its server")
                self.server = self._serve()
            case "broker":
                self._kill_broker()

    def _kill_broker(self) -> None:
        if self._rabbitmq is not None:
            self._rabbitmq.kill()
            self._rabbitmq.start()
            return
        killed = self.server.broker_pid()

        def runs_again() -> bool:
            pid = self.server.health()[1]["embedded_broker"]["pid"]
            return pid not in (None, killed) and accepts(self.broker.amqp_url)

        os.kill(killed, signal.SIGKILL)
        until(runs_again, "the server starts its broker again", PATIENCE)

    def handles_above(self, number: int) -> bool:
        """Whether both queues of the exchange have handled a message after this one."""
        self.log.read()
        return min(self.log.highest["orders"], self.log.highest["audit"]) > number

    def unrest(self, confirmed: set[int]) -> dict[str, int]:
        """What is still under way, by kind; empty when everything has come to rest."""
        self.log.read()
        names = (*QUEUES, *(f"{name}.dlq" for name in QUEUES), VERDICTS)
        queues = {name: self.broker.api("GET", f"/queues/%2F/{name}") for name in names}
        found = Counter({name: queue.get("messages", 0) for name, queue in queues.items()})
        found += Counter(f"letters {head.state}" for head in asyncio.run(self.server.heads(UNSETTLED_QUERY)))
        if not +found:
            dead = places_of(asyncio.run(self.server.heads()), OPEN)
            found["not accounted for"] = len(self.log.lost(confirmed, dead))
        return dict(+found)

    def end(self) -> None:
        """Stop the consumers and the server in order."""
        for process in self.processes:
            assert process.end() == 0, process.errors
        self.log.read()

    @contextlib.contextmanager
    def broker_alone(self) -> Iterator[None]:
        """The broker without a server, which would collect what is in the dead-letter queues."""
        if self._rabbitmq is not None:
            yield
            return
        ports = [str(urlsplit(url).port) for url in (self.broker.amqp_url, self.broker.management_url)]
        options = ("--data", "data/broker", "--port", ports[0], "--management-port", ports[1])
        process = Process(self.place, "broker", *options)
        try:
            process.until_it_says("listens on")
            yield
        finally:
            process.end()

    def close(self) -> None:
        for process in self.processes:
            if process.process.poll() is None:
                process.end(signal.SIGKILL)
        self.replays.close()
        self.log.close()


def places_of(letters: Iterable[LetterHead], states: set[LetterState]) -> set[Place]:
    """Messages that have a letter in one of these states, with the source of the letter."""
    return {place_of(head) for head in letters if head.state in states}


def place_of(head: LetterHead) -> Place:
    return Place(head.source, int(head.message_id or ""))


@contextlib.contextmanager
def a_world(
    place: Path, broker: RabbitMQ, settings: str, rabbitmq: RabbitMQServer | None = None
) -> Iterator[World]:
    world = World(place, broker, settings, rabbitmq)
    try:
        world.start()
        yield world
    finally:
        world.close()


async def stored(url: str) -> list[LetterHead]:
    store = await open_store(StoreOptions(url=url))
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


def in_dead_letter_queues(url: str) -> Counter[Place]:
    found: Counter[Place] = Counter()
    with channel(url) as opened:
        for queue in QUEUES:
            while (got := opened.basic_get(f"{queue}.dlq", auto_ack=True))[0] is not None:
                found[Place(queue, int(got[2]))] += 1
    return found


def kill_under_load(world: World) -> tuple[Publishers, dict[str, Any]]:
    """Kill at random while messages are published, then wait until everything has come to rest."""
    chance = random.Random(soak.seed(200))
    victims = list(itertools.islice(itertools.cycle(VICTIMS), KILLS))
    chance.shuffle(victims)
    publishers = Publishers(world.broker.amqp_url)
    began = time.monotonic()
    for number, victim in enumerate(victims):
        # Given that all of them work: each queue has handled a message that was not published before.
        last = publishers.last()
        until(functools.partial(world.handles_above, last), f"kill {number}: work goes on", PATIENCE)
        if number % REPLAY_EVERY == 0:
            world.replays.wait()
            world.replays.start(world.server)
            if chance.random() < 0.5:
                world.replays.wait()  # otherwise the kill interrupts it
        time.sleep(chance.uniform(0.0, 1.0))  # a random moment of the load
        # When one of them is killed and started again
        world.kill(victim, chance)
    publishers.end()
    world.replays.wait()
    took = time.monotonic() - began

    # Then a replay that nothing disturbs sends its letters, and everything comes to rest.
    world.replays.start(world.server)
    world.replays.wait()
    assert is_complete(world.replays.ended[-1]), world.replays.ended[-1].stderr
    deadline = time.monotonic() + PATIENCE
    while unrest := world.unrest(publishers.confirmed):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return publishers, {
        "kills": dict(Counter(victims)),
        "seconds": round(took),
        "seconds to rest": round(time.monotonic() - began - took),
        "not at rest": unrest,
    }


def check(
    world: World,
    publishers: Publishers,
    figures: dict[str, Any],
    letters: list[LetterHead],
    in_queues: Counter[Place],
) -> None:
    """Compare what was published with what handlers have done and what is stored."""
    log = world.log
    sources = {head.id: head.source for head in letters}
    open_letters = places_of(letters, OPEN)
    lost = log.lost(publishers.confirmed, open_letters | in_queues.keys())

    handled_letters = {(record.letter, record.place) for record in log.handled}
    seen_letters = {(record.letter, record.place) for record in log.seen}
    resolved = [head for head in letters if head.state is LetterState.RESOLVED]
    presumed = [head for head in resolved if head.presumed]
    by_another = [
        head for head in resolved if not head.presumed and (head.id, place_of(head)) not in handled_letters
    ]
    not_taken = [head for head in presumed if (head.id, place_of(head)) not in seen_letters]

    published = publishers.confirmed | publishers.unconfirmed
    elsewhere = [record for record in log.seen if not is_meant_for(record, published, sources)]
    handled = Counter[Place]()
    for record, times in log.handled.items():
        if not record.is_copy:  # a broadcast brings another copy on purpose
            handled[record.place] += times
    several = Counter(map(place_of, letters))
    broadcast = {record.place for record in log.seen if record.source == "audit" and record.is_copy}
    forwarded_redrives = {
        record.place for record in log.seen if record.source == "payments" and record.is_copy
    }
    figures |= {
        "replays": world.replays.figures(),
        "confirmed": len(publishers.confirmed),
        "not confirmed": len(publishers.unconfirmed),
        "lost": len(lost),
        "resolved by another": len(by_another),
        "sent elsewhere": len(elsewhere),
        "presumed": len(presumed),
        "presumed and not taken": len(not_taken),
        "handled": dict(Counter(place.source for place in log.places())),
        "handled more than once": sum(times > 1 for times in handled.values()),
        "messages with several letters": sum(times > 1 for times in several.values()),
        "of these, by a broadcast": sum(times > 1 for place, times in several.items() if place in broadcast),
        "handled, and an open letter": len(log.places() & open_letters),
        "broadcast copies": len(broadcast),
        "forwarded with headers of a redrive": len(forwarded_redrives),
        "letters": dict(Counter(head.state for head in letters)),
        "letters by source": dict(Counter(head.source for head in letters)),
        "poison": sum(head.error_type == "PoisonMessage" for head in letters),
        "in dead-letter queues": in_queues.total(),
    }
    soak.report(
        kills=KILLS,
        acknowledged=len(publishers.confirmed),
        lost=len(lost),
        duplicated=figures["handled more than once"],
    )
    print(f"\nkills under load: {json.dumps(figures)}")  # noqa: T201  the figures are the result
    unsettled = [head for head in letters if head.state in UNSETTLED]
    assert not figures["not at rest"], f"not at rest after {PATIENCE:g} s, for example {unsettled[:3]}"
    assert not lost, f"confirmed messages are lost, for example {sorted(lost)[:10]}"
    assert not by_another, f"letters were resolved by another consumer, for example {by_another[:3]}"
    assert not elsewhere, f"messages were sent elsewhere, for example {elsewhere[:10]}"
    assert not not_taken, f"letters are presumed resolved that nobody has taken, for example {not_taken[:3]}"
    refused = {
        Place(source, number)
        for number in publishers.confirmed
        for source in ("orders", "audit")
        if is_refused(source, number)
    }
    assert refused <= open_letters | in_queues.keys(), "a refused message has no letter"
    assert all(number in published for _, number in several.keys() | in_queues.keys()), (
        "a letter of no message"
    )
    # A load that lacks one of these would show nothing.
    assert {head.source for head in resolved} == set(QUEUES)
    assert broadcast
    assert forwarded_redrives


def is_meant_for(record: Record, published: set[int], sources: dict[str, str]) -> bool:
    """Whether this message was routed to the queue where a handler has seen it."""
    if record.number not in published or (record.source == "payments" and not is_forwarded(record.number)):
        return False
    if record.claimed == "-" or sources.get(record.claimed) == record.source:
        return not record.is_copy
    # It has the headers of a letter of another source: by a broadcast, or by a handler that forwards all headers.
    if record.letter != "-" or sources.get(record.claimed) != "orders":
        return False
    if record.source == "audit":
        return record.scope == "all"
    return record.source == "payments" and has_raw_headers(record.number)


def kill_and_check(world: World, store_url: str, variant: str, capsys: pytest.CaptureFixture[str]) -> None:
    publishers, figures = kill_under_load(world)
    world.end()
    letters = asyncio.run(stored(store_url))
    with world.broker_alone():
        in_queues = in_dead_letter_queues(world.broker.amqp_url)
    with capsys.disabled():
        check(world, publishers, {"variant": variant, **figures}, letters, in_queues)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(soak.count(5400, in_ci=400))
def test_kills_lose_and_misroute_nothing_on_the_embedded_broker_with_sqlite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port, management = free_ports(2)
    broker = RabbitMQ(
        f"amqp://guest:guest@{LOOPBACK}:{port}/%2F", f"http://guest:guest@{LOOPBACK}:{management}"
    )
    settings = f"""
        [embedded]
        port = {port}
        management_port = {management}
    """
    with a_world(tmp_path, broker, settings) as world:
        store_url = f"sqlite:{tmp_path / 'data' / 'redrive.db'}"
        kill_and_check(world, store_url, "embedded broker, SQLite", capsys)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(soak.count(5400, in_ci=400))
def test_kills_lose_and_misroute_nothing_on_rabbitmq_with_postgres(
    tmp_path: Path, own_rabbitmq: RabbitMQServer, postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    version = ".".join(map(str, own_rabbitmq.address.version))
    settings = f"""
        [store]
        url = "{postgres.url}"
    """
    with a_world(tmp_path, own_rabbitmq.address, settings, own_rabbitmq) as world:
        kill_and_check(world, postgres.url, f"RabbitMQ {version}, PostgreSQL", capsys)
