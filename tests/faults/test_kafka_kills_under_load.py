"""Consumers and the server are killed at random under load on Kafka: every record stays where it belongs.

A producer writes numbers to the topics `orders` and `audit` and waits for acknowledgements; `orders` forwards some to
`payments` with their headers (`shop_under_load`). Meanwhile the consumers (`redrive consume`) and the server
(`redrive serve`) are killed by SIGKILL and started again. At the end each acknowledged record was handled, or has a
letter of its topic. No letter was resolved by another consumer, and no consumer has received a record that was not
meant for its topic. Duplicates are counted.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import random
import shutil
import signal
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from redrive.clock import SystemClock
from redrive.letters import LetterHead, LetterState
from redrive.transports.kafka import KafkaTransport
from tests import soak
from tests.acceptance.serving import Process, Serving, until
from tests.faults import shop_under_load
from tests.faults.test_kills_under_load import (
    OPEN,
    QUEUES,
    UNSETTLED_QUERY,
    HandlerLog,
    is_meant_for,
    place_of,
    places_of,
    stored,
)
from tests.services import Kafka

KILLS = soak.count(40, in_ci=3)
VICTIMS = ("consumer", "server")
CONSUMERS = {"shop:shop": "shop", "shop:auditors": "auditors"}  # with their groups
GROUPS = {"orders": "shop", "payments": "shop", "audit": "auditors"}
RATE = 50  # records per second
PATIENCE = 90.0
OPTIONS = "session.timeout.ms=2000&heartbeat.interval.ms=200&publish_timeout=5s"
SETTINGS = """
    [consume]
    attempts = 2
    backoff = "50ms"

    [recover]
    poll_interval = "50ms"
    delays = ["100ms"]
    recheck_interval = "1s"
    lease = "5s"
    verdict_timeout = "5s"
    max_cpu = 1.0
    max_memory = 1.0

    [consume.breaker]
    enabled = false
"""


class Load:
    """Produces numbers to two topics, and counts those that were acknowledged for both."""

    def __init__(self, kafka: Kafka) -> None:
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
        self._topics = [kafka.name(name) for name in ("orders", "audit")]
        self._acknowledged: Counter[int] = Counter()
        self._sent: set[int] = set()
        self._failed: list[object] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count(1):
            if self._stopping.wait(1 / RATE):
                break
            self._sent.add(number)
            headers: list[tuple[str, str | bytes | None]] = [("redrive-property-message-id", f"{number}")]
            for topic in self._topics:
                report = functools.partial(self._reported, number)
                self._producer.produce(topic, b"%d" % number, headers=headers, on_delivery=report)
            self._producer.poll(0)
        self._producer.flush(PATIENCE)

    def _reported(self, number: int, error: object, _record: object) -> None:
        if error is None:
            self._acknowledged[number] += 1
        else:
            self._failed.append(error)

    @property
    def confirmed(self) -> set[int]:
        return {number for number, times in self._acknowledged.copy().items() if times == len(self._topics)}

    @property
    def sent(self) -> set[int]:
        return self._sent

    def end(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        assert not self._failed, self._failed


class World:
    """Two consumers and the server, each of which can be killed and started again."""

    def __init__(self, place: Path, kafka: Kafka) -> None:
        self._place = place
        self._kafka = kafka
        shutil.copy(shop_under_load.__file__, place / "shop.py")
        self.log = HandlerLog(place / shop_under_load.LOG)
        self.server = self._serve()
        self.consumers: dict[str, Process] = {}

    def start(self) -> None:
        for app in CONSUMERS:
            self.consumers[app] = self._consume(app)

    @property
    def processes(self) -> tuple[Process, ...]:
        return (*self.consumers.values(), self.server)

    def _url(self, group: str) -> str:
        return f"{self._kafka.url}/?group={self._kafka.name(group)}&{OPTIONS}"

    def _serve(self) -> Serving:
        sources = "".join(f'\n[[sources]]\nname = "{self._kafka.name(queue)}"\n' for queue in QUEUES)
        settings = textwrap.dedent(SETTINGS) + sources
        return Serving(self._place, "--broker", self._url("server"), settings=settings)

    def _consume(self, app: str) -> Process:
        consumer = Process(self._place, "consume", app, "--broker", self._url(CONSUMERS[app]))
        consumer.until_it_says("redrive consume")
        return consumer

    def kill(self, victim: str, chance: random.Random) -> None:
        """Kill one of them, and start it again."""
        assert all(process.process.poll() is None for process in self.processes), "a process ended by itself"
        if victim == "server":
            self.server.end(signal.SIGKILL)
            self.server = self._serve()
        else:
            app = chance.choice(tuple(CONSUMERS))
            self.consumers[app].end(signal.SIGKILL)
            self.consumers[app] = self._consume(app)

    def handles_above(self, number: int) -> bool:
        """Whether both topics have handled a record after this one."""
        self.log.read()
        return min(self.log.highest["orders"], self.log.highest["audit"]) > number

    async def letters(self) -> list[LetterHead]:
        return [self._named(head) for head in await self.server.heads()]

    def _named(self, head: LetterHead) -> LetterHead:
        """The letter with the name of its source as it is in the log."""
        return msgspec.structs.replace(head, source=head.source.removeprefix(self._kafka.prefix))

    async def stored(self, url: str) -> list[LetterHead]:
        return [self._named(head) for head in await stored(url)]

    async def unrest(self, confirmed: set[int]) -> dict[str, int]:
        """What is not settled yet, by kind; empty when everything is."""
        self.log.read()
        found: Counter[str] = Counter()
        groups = GROUPS | {f"{queue}.dlq": "server" for queue in QUEUES}
        for group in sorted(set(groups.values())):
            async with KafkaTransport(self._url(group), SystemClock()) as transport:
                for topic in (topic for topic in groups if groups[topic] == group):
                    found[topic] += await transport.depth(self._kafka.name(topic))
        found += Counter(f"letters {head.state}" for head in await self.server.heads(UNSETTLED_QUERY))
        if not +found:
            dead = places_of(await self.letters(), OPEN)
            found["not accounted for"] = len(self.log.lost(confirmed, dead))
        return dict(+found)

    def end(self) -> None:
        """Stop the consumers and the server in order."""
        for process in self.processes:
            assert process.end() == 0, process.errors
        self.log.read()

    def close(self) -> None:
        for process in self.processes:
            if process.process.poll() is None:
                process.end(signal.SIGKILL)
        self.log.close()


@contextlib.contextmanager
def a_world(place: Path, kafka: Kafka) -> Iterator[World]:
    world = World(place, kafka)
    try:
        world.start()
        yield world
    finally:
        world.close()


def kill_under_load(world: World, kafka: Kafka) -> tuple[Load, dict[str, Any]]:
    """Kill at random while records are produced, then wait until everything is settled."""
    chance = random.Random(soak.seed(40))
    victims = list(itertools.islice(itertools.cycle(VICTIMS), KILLS))
    chance.shuffle(victims)
    load = Load(kafka)
    began = time.monotonic()
    for number, victim in enumerate(victims):
        # Given that all of them work: each topic has handled a record that was not produced before.
        last = max(load.confirmed, default=0)
        until(functools.partial(world.handles_above, last), f"kill {number}: work goes on", PATIENCE)
        time.sleep(chance.uniform(0.0, 1.0))  # a random moment of the load
        # When one of them is killed and started again
        world.kill(victim, chance)
    last = max(load.confirmed, default=0)
    until(functools.partial(world.handles_above, last), "work goes on after the last kill", PATIENCE)
    load.end()
    took = time.monotonic() - began
    deadline = time.monotonic() + PATIENCE
    while unrest := asyncio.run(world.unrest(load.confirmed)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return load, {
        "kills": dict(Counter(victims)),
        "seconds": round(took),
        "seconds to rest": round(time.monotonic() - began - took),
        "not at rest": unrest,
    }


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(soak.count(2400, in_ci=240))
def test_kills_lose_and_misroute_nothing_on_kafka(
    tmp_path: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOP_PREFIX", kafka.prefix)
    with a_world(tmp_path, kafka) as world:
        load, figures = kill_under_load(world, kafka)
        world.end()
        letters = asyncio.run(world.stored(f"sqlite:{tmp_path / 'data' / 'redrive.db'}"))

    log, sources = world.log, {head.id: head.source for head in letters}
    lost = log.lost(load.confirmed, places_of(letters, OPEN))
    handled_letters = {(record.letter, record.place) for record in log.handled}
    resolved = [head for head in letters if head.state is LetterState.RESOLVED]
    by_another = [
        head for head in resolved if not head.presumed and (head.id, place_of(head)) not in handled_letters
    ]
    elsewhere = [record for record in log.seen if not is_meant_for(record, load.sent, sources)]
    handled = Counter(record.place for record in log.handled.elements())
    figures |= {
        "acknowledged": len(load.confirmed),
        "lost": len(lost),
        "resolved by another": len(by_another),
        "sent elsewhere": len(elsewhere),
        "handled more than once": sum(times > 1 for times in handled.values()),
        "letters": dict(Counter(head.state for head in letters)),
        "poison": sum(head.error_type == "PoisonMessage" for head in letters),
    }
    soak.report(
        kills=KILLS,
        acknowledged=len(load.confirmed),
        lost=len(lost),
        duplicated=figures["handled more than once"],
    )
    with capsys.disabled():
        print(f"\nkills under load on Kafka: {json.dumps(figures)}")  # noqa: T201  the figures are the result
    assert not figures["not at rest"], f"not at rest after {PATIENCE:g} s"
    assert not lost, f"acknowledged records are lost, for example {sorted(lost)[:10]}"
    assert not by_another, f"letters were resolved by another consumer, for example {by_another[:3]}"
    assert not elsewhere, f"records were sent elsewhere, for example {elsewhere[:10]}"
    assert {head.source for head in resolved} == set(QUEUES), "a load without redrives shows nothing"
