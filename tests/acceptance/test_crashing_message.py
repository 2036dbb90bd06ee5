"""A message that crashes its process is dead-lettered as poison; the messages around it are not.

A supervisor starts `redrive consume` again and again, as systemd or Kubernetes would. Each kind of broker is tried with
some kinds of crash in CI; `make soak` tries every pair, with and without a crash log.
"""

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pika
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests import soak
from tests.services import RabbitMQ
from tests.services.kafka import Kafka

INNOCENTS = 100
FULL = soak.count(2, in_ci=1) == 2
MOST_STARTS = 40
SECONDS = 150
CRASHES = {
    "exit": "os._exit(3)",
    "segv": "ctypes.string_at(0)",
    "oom": "os.kill(os.getpid(), 9)",  # as the kernel ends a process that is out of memory
    "hang": "hang()",
}
SHOP = """
    import asyncio, ctypes, os, time
    from pathlib import Path
    from redrive import App
    app = App({url!r})

    def hang():
        Path("hanging").touch()
        time.sleep(600)

    @app.consume({source!r}, {options})
    async def handle(body: bytes) -> None:
        with open("runs", "a") as runs:
            runs.write(body.decode() + "\\n")
        if body == b"deadly":
            await asyncio.sleep(0.02)
            {crash}
        await asyncio.sleep(0.05)
        with open("done", "a") as done:
            done.write(body.decode() + "\\n")
"""


class Place(Protocol):
    """A broker with one source."""

    url: str
    source: str
    options: str

    def is_ready(self) -> bool: ...
    def send(self, bodies: list[bytes]) -> None: ...
    def dead(self) -> list[tuple[bytes, str]]:
        """Body and reason of each dead letter, which is not removed."""


class Rabbit:
    """A virtual host of RabbitMQ or of the embedded broker."""

    def __init__(self, at: RabbitMQ, queue_type: str) -> None:
        self.url = at.amqp_url
        self.source = "orders"
        self.options = f"queue_type={queue_type!r}"

    @contextlib.contextmanager
    def _channel(self) -> Iterator[Any]:
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            yield connection.channel()

    def is_ready(self) -> bool:
        try:
            with self._channel() as channel:
                channel.queue_declare("orders", passive=True)
        except pika.exceptions.AMQPError:
            return False
        return True

    def send(self, bodies: list[bytes]) -> None:
        with self._channel() as channel:
            channel.confirm_delivery()
            for body in bodies:
                properties = pika.BasicProperties(delivery_mode=2)
                channel.basic_publish("", "orders", body, properties, mandatory=True)

    def dead(self) -> list[tuple[bytes, str]]:
        found: list[tuple[bytes, str]] = []
        with self._channel() as channel:
            while (answer := channel.basic_get("orders.dlq"))[0] is not None:
                found.append((answer[2], (answer[1].headers or {})["redrive-reason"]))
        return found


class Topic:
    """A topic of Kafka."""

    def __init__(self, at: Kafka) -> None:
        self.url = f"{at.url}?session.timeout.ms=2000&heartbeat.interval.ms=200&group={at.name('shop')}"
        self.source = at.name("orders")
        self.options = f"consumer_group={at.name('shop')!r}"
        self._at = at
        at.topic("orders")

    def is_ready(self) -> bool:
        return self.source in self._at.admin().list_topics(timeout=30).topics

    def send(self, bodies: list[bytes]) -> None:
        producer = Producer({"bootstrap.servers": self._at.bootstrap, "acks": "all"})
        for body in bodies:
            producer.produce(self.source, body)
        assert producer.flush(30) == 0

    def dead(self) -> list[tuple[bytes, str]]:
        topic = f"{self._at.name('shop')}.dlq"
        consumer = Consumer({"bootstrap.servers": self._at.bootstrap, "group.id": self._at.name("look")})
        found: list[tuple[bytes, str]] = []
        try:
            known = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            for number in known:
                place = TopicPartition(topic, number)
                low, high = consumer.get_watermark_offsets(place, timeout=30)
                consumer.assign([TopicPartition(topic, number, low)])
                while len(found) < high - low and (record := consumer.poll(30)) is not None:
                    headers: Any = dict(record.headers() or [])
                    found.append((record.value() or b"", headers["redrive-reason"].decode()))
        finally:
            consumer.close()
        return found


class Supervisor:
    """Starts the consumer again whenever it has ended, and kills one that hangs."""

    def __init__(self, folder: Path, *, keeps_state: bool) -> None:
        self._folder = folder
        self._keeps_state = keeps_state
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        """Start the consumer if it has ended; kill it if it hangs."""
        hanging = self._folder / "hanging"
        if self._process is not None and self._process.poll() is None:
            if hanging.exists():
                self._process.kill()
                self._process.wait(30)
                hanging.unlink()
            return
        self.starts += 1
        assert self.starts <= MOST_STARTS, "the consumer crashes again and again"
        state = self._folder / ("state" if self._keeps_state else f"state-{self.starts}")
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "redrive", "consume", "shop", "--log-level", "warning"],
                cwd=self._folder,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "XDG_STATE_HOME": str(state),
                },
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def crash_and_recover(place: Place, crash: str, folder: Path, *, keeps_state: bool = True) -> Supervisor:
    """Send the deadly message among innocent ones, and wait until each is processed or dead-lettered."""
    shop = SHOP.format(url=place.url, source=place.source, options=place.options, crash=CRASHES[crash])
    (folder / "shop.py").write_text(textwrap.dedent(shop))
    supervisor = Supervisor(folder, keeps_state=keeps_state)
    try:
        wait_for(place.is_ready, supervisor)
        bodies = [b"innocent-%d" % number for number in range(INNOCENTS)]
        place.send([*bodies[: INNOCENTS // 2], b"deadly", *bodies[INNOCENTS // 2 :]])
        done, wanted = folder / "done", {body.decode() for body in bodies}

        def is_over() -> bool:
            return {*lines(done), *(body.decode() for body, _ in place.dead())} >= wanted | {"deadly"}

        wait_for(is_over, supervisor)
        assert supervisor.stop() == 0
    finally:
        supervisor.kill()
    return supervisor


def wait_for(holds: Callable[[], bool], supervisor: Supervisor) -> None:
    end = time.monotonic() + SECONDS
    while True:
        supervisor.look()
        if holds():
            return
        assert time.monotonic() < end, f"not within {SECONDS} s, after {supervisor.starts} starts"
        time.sleep(0.2)


def check(place: Place, folder: Path) -> None:
    dead = place.dead()
    assert dead == [(b"deadly", "PoisonMessage")], f"{len(dead)} dead letters"
    log = (folder / "log").read_text()
    assert "Traceback" not in log, log


# --- with a crash log ------------------------------------------------------------------------------------------

IN_CI = {"exit": "quorum", "segv": "classic"}


def in_ci_or_soak(crash: str, queue_type: str) -> bool:
    return FULL or IN_CI.get(crash) == queue_type


PAIRS = [
    pytest.param(crash, queue_type, id=f"{crash}-{queue_type}")
    for crash in CRASHES
    for queue_type in ("quorum", "classic")
    if in_ci_or_soak(crash, queue_type)
]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("crash", "queue_type"), PAIRS)
def test_only_the_message_that_crashes_its_process_is_poison(
    broker: RabbitMQ, crash: str, queue_type: str, tmp_path: Path
) -> None:
    place = Rabbit(broker, queue_type)
    supervisor = crash_and_recover(place, crash, tmp_path)
    check(place, tmp_path)
    assert lines(tmp_path / "runs").count("deadly") == 3
    assert supervisor.starts == 4


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("crash", [crash for crash in CRASHES if FULL or crash != "hang"])
def test_only_the_record_that_crashes_its_process_is_poison(kafka: Kafka, crash: str, tmp_path: Path) -> None:
    place = Topic(kafka)
    supervisor = crash_and_recover(place, crash, tmp_path)
    check(place, tmp_path)
    assert lines(tmp_path / "runs").count("deadly") == 3
    assert supervisor.starts == 4


# --- without -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_without_a_crash_log_no_innocent_message_is_poison(
    broker: RabbitMQ, queue_type: str, tmp_path: Path
) -> None:
    place = Rabbit(broker, queue_type)
    crash_and_recover(place, "exit", tmp_path, keeps_state=False)
    check(place, tmp_path)
