"""`redrive consume` as a process: it starts, stops in order, starts anew, and says in one line what is wrong."""

import json
import os
import queue
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from redrive import __file__ as package
from tests.acceptance.serving import redrive
from tests.services import RabbitMQ
from tests.services.server import free_ports

PROGRAM = "from redrive.cli import main; main()"
SHOP = """
    import asyncio, time
    from redrive import App
    app = App({url!r})

    @app.consume("orders", concurrency=1, prefetch=10)
    async def handle(body: bytes) -> None:
        with open("seen", "a") as seen:
            seen.write("{word} " + body.decode() + "\\n")
        if body == b"slow":
            await asyncio.sleep(1.5)
            with open("seen", "a") as seen:
                seen.write("slow is done\\n")
        if body == b"bad":
            raise PermissionError("password=hunter2 was refused")
"""


class Consuming:
    """A running `redrive consume`."""

    def __init__(self, place: Path, *options: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "consume", "shop", *options],
            cwd=place,
            env={
                **clean,
                "PYTHONPATH": str(Path(package).resolve().parents[1]),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONUNBUFFERED": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.place = place
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.said: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._lines.put), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors.append), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, keep: Callable[[str], None]) -> None:
        for line in stream:
            keep(line.rstrip())

    def until_it_says(self, words: str, seconds: float = 40) -> str:
        end = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"it never said {words!r}: {self.said} {self.errors}") from None
            self.said.append(line)
            if words in line:
                return line

    @property
    def seen(self) -> list[str]:
        file = self.place / "seen"
        return file.read_text().splitlines() if file.exists() else []

    def until_seen(self, *lines: str, seconds: float = 40) -> None:
        until(lambda: set(lines) <= set(self.seen), seconds, lambda: f"{self.seen} {self.errors}")

    def end(self) -> int:
        self.process.terminate()
        code = self.process.wait(40)
        for reader in self._readers:
            reader.join(5)
        return code


def until(holds: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, why()
        time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Consuming]]:
    started: list[Consuming] = []

    def starting(url: str, *options: str) -> Consuming:
        write_shop(tmp_path, url)
        started.append(Consuming(tmp_path, *options))
        return started[-1]

    yield starting
    for consuming in started:
        consuming.process.kill()
        consuming.process.wait(20)
        assert consuming.process.stdout is not None
        assert consuming.process.stderr is not None
        for reader in consuming._readers:
            reader.join(5)
        consuming.process.stdout.close()
        consuming.process.stderr.close()


def write_shop(place: Path, url: str, word: str = "saw") -> None:
    (place / "shop.py").write_text(textwrap.dedent(SHOP.format(url=url, word=word)))


def send(url: str, *bodies: bytes) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", "orders", body, mandatory=True)


def depth(url: str, name: str = "orders") -> int:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        return int(connection.channel().queue_declare(name, passive=True).method.message_count)


def test_it_says_what_it_consumes_and_stops_in_order(
    start: Callable[..., Consuming], broker_url: str
) -> None:
    consuming = start(broker_url)
    assert consuming.until_it_says("redrive consume") == "redrive consume: orders (1 at a time); Ctrl-C stops"
    until(lambda: exists(broker_url), 30, lambda: "no queue")
    send(broker_url, b"one", b"slow", b"two", b"three")
    consuming.until_seen("saw slow")
    assert consuming.end() == 0
    assert consuming.seen == ["saw one", "saw slow", "slow is done"], "what ran may end, the rest goes back"
    until(lambda: depth(broker_url) == 2, 20, lambda: f"{depth(broker_url)} are left")


def exists(url: str) -> bool:
    try:
        depth(url)
    except pika.exceptions.AMQPError:
        return False
    return True


def test_a_second_signal_ends_at_once(start: Callable[..., Consuming], embedded: RabbitMQ) -> None:
    consuming = start(embedded.amqp_url)
    until(lambda: exists(embedded.amqp_url), 40, lambda: str(consuming.errors))
    send(embedded.amqp_url, b"slow")
    consuming.until_seen("saw slow")
    consuming.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    consuming.process.send_signal(signal.SIGINT)
    assert consuming.process.wait(20) == 130
    assert "slow is done" not in consuming.seen


def test_a_hang_up_starts_it_anew_with_the_code_as_it_is_now(
    start: Callable[..., Consuming], embedded: RabbitMQ, tmp_path: Path
) -> None:
    consuming = start(embedded.amqp_url)
    until(lambda: exists(embedded.amqp_url), 40, lambda: str(consuming.errors))
    send(embedded.amqp_url, b"1")
    consuming.until_seen("saw 1")
    write_shop(tmp_path, embedded.amqp_url, word="now sees")
    consuming.process.send_signal(signal.SIGHUP)
    consuming.until_it_says("redrive consume: restarting")
    send(embedded.amqp_url, b"2")
    consuming.until_seen("now sees 2")
    assert consuming.end() == 0


def test_whoever_is_told_to_end_after_a_hang_up_ends_in_order_and_does_not_begin_again(
    start: Callable[..., Consuming], embedded: RabbitMQ
) -> None:
    consuming = start(embedded.amqp_url)
    until(lambda: exists(embedded.amqp_url), 40, lambda: str(consuming.errors))
    send(embedded.amqp_url, b"slow")
    consuming.until_seen("saw slow")
    consuming.process.send_signal(signal.SIGHUP)
    assert consuming.end() == 0
    assert consuming.seen == ["saw slow", "slow is done"]


def test_with_reload_a_changed_file_starts_it_anew(
    start: Callable[..., Consuming], embedded: RabbitMQ, tmp_path: Path
) -> None:
    consuming = start(embedded.amqp_url, "--reload")
    consuming.until_it_says("redrive consume")
    until(lambda: exists(embedded.amqp_url), 40, lambda: str(consuming.errors))
    send(embedded.amqp_url, b"1")
    consuming.until_seen("saw 1")
    write_shop(tmp_path, embedded.amqp_url, word="reloaded, sees")
    consuming.until_it_says("redrive consume: restarting")
    send(embedded.amqp_url, b"2")
    consuming.until_seen("reloaded, sees 2")
    assert consuming.end() == 0


def test_metrics_and_logs_tell_of_a_dead_letter_and_of_nothing_secret(
    start: Callable[..., Consuming], embedded: RabbitMQ
) -> None:
    consuming = start(embedded.amqp_url, "--metrics-port", "0", "--log-format", "json")
    url = consuming.until_it_says("metrics on").removeprefix("metrics on ")
    until(lambda: exists(embedded.amqp_url), 40, lambda: str(consuming.errors))
    send(embedded.amqp_url, b"good", b"bad")

    def metrics() -> str:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    until(lambda: "dlq_messages_total 1.0" in metrics(), 30, metrics)
    shown = metrics()
    assert 'messages_received_total{queue_name="orders"} 2.0' in shown
    assert 'messages_deadlettered_total{queue_name="orders",reason="NonRetryableError"} 1.0' in shown
    assert 'dlq_messages_by_error_type{error_type="PermissionError"} 1.0' in shown
    assert consuming.end() == 0
    lines = [json.loads(line) for line in consuming.errors if line.startswith("{")]
    assert any("Published failed message to DLQ: orders.dlq" in line["message"] for line in lines)
    assert "hunter2" not in "".join(consuming.errors) + shown


@pytest.mark.parametrize(
    ("source", "says", "code"),
    [
        ("", "module 'shop' has no 'app'", 2),
        ("from redrive import App\nApp_ = ap = App('memory:')\n", "did you mean 'ap'", 2),
        ("app = 7\n", "'shop:app' is a int, not an App", 2),
        ("from redrive import App\napp = App('memory:')\n", "nothing to consume: register a handler", 2),
        (
            "from redrive import App\napp = App('amqpp://x')\n@app.consume('q')\ndef f(b: bytes): ...\n",
            "unknown scheme 'amqpp'",
            2,
        ),
        (
            "from redrive import App\napp = App('amqp://127.0.0.1:{port}')\n@app.consume('q')\ndef f(b: bytes): ...\n",
            "127.0.0.1",
            4,
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, source: str, says: str, code: int) -> None:
    (port,) = free_ports(1)
    (tmp_path / "shop.py").write_text(source.replace("{port}", str(port)))
    consuming = Consuming(tmp_path, "--log-level", "error")
    assert consuming.process.wait(40) == code, consuming.errors
    for reader in consuming._readers:
        reader.join(5)
    assert len(consuming.errors) == 1
    assert re.match(r"redrive: .*" + re.escape(says), consuming.errors[0]), consuming.errors
    for stream in (consuming.process.stdout, consuming.process.stderr):
        assert stream is not None
        stream.close()


@pytest.mark.parametrize(
    ("source", "says", "line"),
    [
        ("\nimport nowhere_to_be_found\n", "imports 'nowhere_to_be_found', which is not installed", 2),
        ("def fail():\n    1 / 0\n\nfail()\n", "cannot be imported: ZeroDivisionError", 2),
        ("x = 1\nif x\n", "cannot be imported: SyntaxError", 2),
    ],
)
def test_import_error_has_file_line_and_traceback(tmp_path: Path, source: str, says: str, line: int) -> None:
    (tmp_path / "shop.py").write_text(source)
    done = redrive(tmp_path, "consume", "shop")

    assert (done.returncode, done.stdout) == (2, "")
    *trace, last = done.stderr.splitlines()
    assert re.fullmatch(
        rf"redrive: .*{re.escape(says)}.*\({re.escape(str(tmp_path / 'shop.py'))}, line {line}\)", last
    )
    assert not [row for row in trace if "importlib" in row or "/redrive/" in row]
    assert any("shop.py" in row for row in trace)
