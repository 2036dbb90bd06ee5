"""The time from the rejection of a message to the arrival of its alert at a webhook.

A client rejects one message after another; the broker dead-letters it, `redrive serve` collects it, stores letter and
incident, and posts the alert. Measured from the rejection to the request, for each message, on the newest RabbitMQ and
on the embedded broker, each as a process of its own, with probes every second. Then again while the management API
accepts connections and never answers. The peer is the limit: 0.3 s.

Every death raises an alert, because the cool-down is zero. A run in which an alert is missing is void.
"""

import contextlib
import json
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from pathlib import Path

import pika

from benchmarks.broker import note
from benchmarks.case import Case
from benchmarks.contestant import VoidError
from tests.acceptance.serving import Serving, channel
from tests.services import EmbeddedServer, Missing, RabbitMQServer, Run, look_for_program

LIMIT_S = 0.3
PATIENCE_S = 20.0  # for one alert
BUDGET_S = 30.0  # for all alerts of one measurement: one that is slow ends with fewer deaths
WARM_UP = 5  # deaths before anything is measured
SOURCE, DEAD = "bench.orders", "bench.orders.dlq"
SETTINGS = """
[broker]
management_url = "{management}"
dead_letter_queues = ["{queue}"]

[alerts]
interval = "1s"
cooldown = "0s"
probe_interval = "1s"

[[notifiers]]
name = "hook"
type = "json"
url = "{hook}"
"""


def run(*, quick: bool) -> Iterator[Case]:
    """All cases."""
    deaths = 200 if quick else 500
    for kind in (RabbitMQServer, EmbeddedServer):
        found = look_for_program(kind, {})
        if isinstance(found, Missing):
            note(f"alert-latency: {kind.name} is left out: {found.reason}")
            continue
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(stack.enter_context(Run.of({})).private(kind, os.environ))
            name = "embedded broker"
            if kind is RabbitMQServer:
                name = f"RabbitMQ {server.address.api('GET', '/overview')['rabbitmq_version']}"
            hanging = stack.enter_context(listening())
            for management, condition in (
                (server.address.management_url, ""),
                (hanging, ", management API hangs"),
            ):
                try:
                    times = sorted(measure(server.address.amqp_url, management, deaths))
                except (VoidError, AssertionError) as error:
                    note(f"alert-latency: {name}{condition} is left out: {error}")
                    continue
                for label, share in (("p50", 0.5), ("p99", 0.99)):
                    title = f"{label} from death to alert, {deaths} deaths, {name}{condition}"
                    value = times[ceil(share * len(times)) - 1]
                    yield Case(title, value, LIMIT_S, "limit", 1.0, "s", less_is_better=True)


def measure(amqp: str, management: str, deaths: int) -> list[float]:
    """The latencies of so many deaths, one after another, in seconds."""
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redrive-bench-")))
        hook = stack.enter_context(webhook())
        link = stack.enter_context(channel(amqp))
        link.queue_delete(SOURCE)
        link.queue_delete(DEAD)
        link.queue_declare(DEAD, durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
        link.queue_declare(SOURCE, durable=True, arguments=arguments)
        settings = SETTINGS.format(management=management, queue=DEAD, hook=hook.url)
        server = Serving(place, "--broker", amqp, settings=settings)
        stack.callback(server.end, signal.SIGKILL)
        incoming = link.consume(SOURCE)
        found: list[float] = []
        began = time.perf_counter()
        for number in range(WARM_UP + deaths):
            name = f"death-{number}"
            properties = pika.BasicProperties(correlation_id=name, delivery_mode=2)
            link.basic_publish("", SOURCE, b'{"order": 1}', properties)
            method, _, _ = next(incoming)
            start = time.perf_counter()
            link.basic_reject(method.delivery_tag, requeue=False)
            found.append(hook.wait_for(name) - start)
            if time.perf_counter() - began > BUDGET_S:
                note(f"alert-latency: only {number + 1} deaths were measured in {BUDGET_S:g} s")
                break
        link.cancel()
        return found[WARM_UP:] or found


@contextlib.contextmanager
def listening() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield f"http://guest:guest@127.0.0.1:{server.getsockname()[1]}"


class Webhook:
    """When the alert of each correlation id came."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._times: dict[str, float] = {}
        self._changed = threading.Condition()

    def came(self, body: bytes, at: float) -> None:
        """An alert came at this time."""
        with self._changed:
            for name in json.loads(body)["correlation_ids"]:
                self._times.setdefault(name, at)
            self._changed.notify_all()

    def wait_for(self, name: str) -> float:
        """When the alert with this correlation id came."""
        with self._changed:
            if not self._changed.wait_for(lambda: name in self._times, PATIENCE_S):
                raise VoidError(f"no alert for {name} within {PATIENCE_S:g} s")
            return self._times[name]


@contextlib.contextmanager
def webhook() -> Iterator[Webhook]:
    """A webhook in threads of this process."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            at = time.perf_counter()
            hook.came(self.rfile.read(int(self.headers["Content-Length"])), at)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hook = Webhook(f"http://127.0.0.1:{server.server_address[1]}/alerts")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
