"""`redrive broker` as an operator meets it: where it listens, whom it refuses, and how it ends."""

import contextlib
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pika
import pika.exceptions
import pytest

from redrive.amqp import methods as m
from redrive.amqp.connection import Connection
from redrive.amqp.content import Content
from redrive.amqp.events import MethodReceived
from redrive.amqp.methods import Role
from redrive.amqp.sasl import EXTERNAL
from tests.faults.blocking_client import PERSISTENT, Client

COMMAND = [sys.executable, "-m", "redrive", "broker", "--port", "0"]


class Broker:
    """A broker process, and where it listens."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        ports = {
            scheme: int(port) for scheme, port in re.findall(r"(amqps?|http)://[\d.]+:(\d+)/", self.line)
        }
        self.port = ports.get("amqp", 0)
        self.tls_port = ports.get("amqps", 0)
        self.management_port = ports.get("http", 0)

    def request(self, method: str, path: str, body: object = None, *, user: str = "guest") -> int:
        """The status that the management API answers with."""
        headers = {"Authorization": f"Basic {b64encode(f'{user}:guest'.encode()).decode()}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.management_port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            return connection.getresponse().status

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@pytest.fixture
def start() -> Iterator[Callable[..., Broker]]:
    running: list[Broker] = []

    def starting(*options: str) -> Broker:
        running.append(Broker(*options))
        return running[-1]

    yield starting
    for broker in running:
        if broker.process.poll() is None:
            broker.process.kill()
        broker.process.communicate()


HALVES = (
    b"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\nX: ",
    b"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
)


def refused(*options: str) -> tuple[int, str]:
    """Exit code and complaint of a broker that does not start."""
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def closed_within(connection: socket.socket, seconds: float) -> bytes:
    """What still comes until the other side hangs up."""
    connection.settimeout(seconds)
    received = b""
    while piece := connection.recv(4096):
        received += piece
    return received


# --- coming and going ----------------------------------------------------------------------------------------


def test_it_says_where_it_listens_and_ends_when_it_is_asked_to(start: Callable[..., Broker]) -> None:
    broker = start()
    assert broker.line == f"redrive broker listens on amqp://127.0.0.1:{broker.port}/\n"
    client = Client(broker.port)
    broker.process.send_signal(signal.SIGTERM)
    assert client.wait_for(m.ConnectionClose).reply_code == 320
    client.close()
    assert broker.process.wait(10) == 0


def test_what_was_durable_is_there_after_an_orderly_stop(
    tmp_path: Path, start: Callable[..., Broker]
) -> None:
    broker = start("--data", str(tmp_path / "data"))
    client = Client(broker.port)
    client.call(m.QueueDeclare("q", durable=True), m.QueueDeclareOk)
    client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
    client.send(m.BasicPublish("", "q"), 1, Content(PERSISTENT, b"kept"))
    client.wait_for(m.BasicAck)
    client.close()
    assert broker.stop() == (0, "")
    client = Client(start("--data", str(tmp_path / "data")).port)
    client.send(m.BasicGet("q"), 1)
    assert not client.wait_for(m.BasicGetOk).redelivered
    client.close()


def test_a_torn_end_of_the_journal_is_told_and_survived(tmp_path: Path, start: Callable[..., Broker]) -> None:
    broker = start("--data", str(tmp_path / "data"))
    client = Client(broker.port)
    client.call(m.QueueDeclare("q", durable=True), m.QueueDeclareOk)
    client.close()
    broker.stop(signal.SIGKILL)
    [segment] = (tmp_path / "data").glob("*.journal")
    with segment.open("ab") as file:
        file.write(b"RDB1 and then the power went off")
    again = start("--data", str(tmp_path / "data"))
    client = Client(again.port)
    assert client.call(m.QueueDeclare("q", passive=True), m.QueueDeclareOk).queue == "q"
    client.close()
    assert "torn" in again.stop()[1]


def test_nothing_is_confirmed_after_the_journal_was_removed_until_it_is_back(
    tmp_path: Path, start: Callable[..., Broker]
) -> None:
    broker = start("--data", str(tmp_path / "data"))
    client = Client(broker.port)
    client.call(m.QueueDeclare("q", durable=True), m.QueueDeclareOk)
    client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
    client.send(m.BasicPublish("", "q"), 1, Content(PERSISTENT, b"kept"))
    client.wait_for(m.BasicAck)
    # When the file is removed
    [segment] = (tmp_path / "data").glob("*.journal")
    segment.rename(tmp_path / "moved")
    client.send(m.BasicPublish("", "q"), 1, Content(PERSISTENT, b"nowhere"))
    # Then the next message is not confirmed, and the broker says why and waits
    with pytest.raises((ConnectionError, EOFError)):
        client.wait_for(m.BasicAck)
    client.close()
    assert broker.process.stdout is not None
    said = broker.process.stdout.readline()
    assert said.startswith(f"redrive broker failed: {segment} was removed or replaced while it was in use")
    # And ends when the file is back; the next one has what was confirmed
    (tmp_path / "moved").rename(segment)
    assert broker.process.wait(30) == 1
    client = Client(start("--data", str(tmp_path / "data")).port)
    assert client.call(m.QueueDeclare("q", passive=True), m.QueueDeclareOk).message_count >= 1
    client.close()


# --- what it refuses to start with ---------------------------------------------------------------------------


def test_a_port_that_is_taken_is_a_clear_error(start: Callable[..., Broker]) -> None:
    broker = start()
    code, complaint = refused("--port", str(broker.port))
    assert (code, complaint.count("\n")) == (1, 1)
    assert "cannot listen" in complaint


def test_a_data_directory_that_is_in_use_is_a_clear_error(
    tmp_path: Path, start: Callable[..., Broker]
) -> None:
    start("--data", str(tmp_path / "data"))
    code, complaint = refused("--data", str(tmp_path / "data"))
    assert (code, complaint.count("\n")) == (3, 1)


def test_a_data_directory_that_is_something_else_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"not a journal")
    code, complaint = refused("--data", str(tmp_path))
    assert (code, complaint.count("\n")) == (3, 1)
    assert (tmp_path / "holiday.jpg").read_bytes() == b"not a journal"


@pytest.mark.parametrize(
    "options",
    [("--heartbeat", "-1"), ("--frame-max", "100"), ("--port", "70000"), ("--handshake-timeout", "5"),
     ("--tls-port", "0"), ("--no-such-option",), ("--memory-limit", "1")],
    ids=" ".join,
)  # fmt: skip
def test_absurd_options_are_clear_errors(options: tuple[str, ...]) -> None:
    code, complaint = refused(*options)
    assert code == 2
    assert complaint.startswith("redrive: ")
    assert complaint.count("\n") == 1


# --- what it refuses from clients ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hello", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x01\x00\x00", b"\x00" * 64], ids=repr
)
def test_whoever_does_not_speak_amqp_is_shown_the_header_and_the_door(
    start: Callable[..., Broker], hello: bytes
) -> None:
    broker = start()
    other = Client(broker.port)
    with socket.create_connection(("127.0.0.1", broker.port)) as stranger:
        stranger.sendall(hello)
        assert closed_within(stranger, 5) == b"AMQP\x00\x00\x09\x01"
    assert other.call(m.QueueDeclare("q"), m.QueueDeclareOk).queue == "q"
    other.close()


def test_whoever_dawdles_over_the_handshake_is_shown_the_door(start: Callable[..., Broker]) -> None:
    broker = start("--handshake-timeout", "300ms")
    other = Client(broker.port)
    with socket.create_connection(("127.0.0.1", broker.port)) as sloth:
        sloth.sendall(b"AMQP\x00")
        with contextlib.suppress(ConnectionResetError):  # that, too, is a door
            assert closed_within(sloth, 10) == b""
    assert other.call(m.QueueDeclare("q"), m.QueueDeclareOk).queue == "q"
    other.close()


def test_client_that_does_not_finish_the_tls_handshake_is_closed(
    certificates: Path, start: Callable[..., Broker]
) -> None:
    broker = start(
        "--handshake-timeout", "300ms", "--tls-port", "0", "--tls-certificate", str(certificates / "server.pem"),
        "--tls-key", str(certificates / "server.key"),
    )  # fmt: skip
    with socket.create_connection(("127.0.0.1", broker.tls_port)) as half:
        half.sendall(b"\x16\x03\x01")
        with contextlib.suppress(ConnectionResetError):
            assert closed_within(half, 30) == b""


def test_one_connection_too_many_is_refused(start: Callable[..., Broker]) -> None:
    broker = start("--max-connections", "2")
    first, second = Client(broker.port), Client(broker.port)
    with pytest.raises(ConnectionError):
        Client(broker.port)
    assert first.call(m.QueueDeclare("q"), m.QueueDeclareOk).queue == "q"
    second.close()
    first.close()


def test_a_frame_that_is_too_long_ends_its_connection_and_no_other(start: Callable[..., Broker]) -> None:
    broker = start()
    rude, other = Client(broker.port), Client(broker.port)
    rude.socket.sendall(b"\x01\x00\x01\x7f\xff\xff\xff" + b"x" * 100)
    assert rude.wait_for(m.ConnectionClose).reply_code == 501
    assert other.call(m.QueueDeclare("q"), m.QueueDeclareOk).queue == "q"
    rude.close()
    other.close()


def test_a_consumer_that_does_not_read_holds_up_nobody_else(start: Callable[..., Broker]) -> None:
    broker = start()
    sleeper, other = Client(broker.port), Client(broker.port)
    for name in ("slow", "quick"):
        other.call(m.QueueDeclare(name), m.QueueDeclareOk)
    sleeper.call(m.BasicConsume("slow", "s", no_ack=True), m.BasicConsumeOk)
    other.call(m.BasicConsume("quick", "q", no_ack=True), m.BasicConsumeOk)
    for _ in range(400):
        other.send(m.BasicPublish("", "slow"), 1, Content(body=b"x" * 100_000))
    other.send(m.BasicPublish("", "quick"), 1, Content(body=b"hello"))
    assert other.wait_for(m.BasicDeliver).routing_key == "quick"
    waiting = other.call(m.QueueDeclare("slow", passive=True), m.QueueDeclareOk).message_count
    assert waiting > 100, "a client that reads nothing was sent everything"
    sleeper.close()
    other.close()


def test_a_publisher_is_blocked_above_the_memory_limit_until_somebody_consumes(
    start: Callable[..., Broker],
) -> None:
    broker = start("--memory-limit", str(16 * 1024 * 1024))
    publisher = Client(broker.port, **{"connection.blocked": True})
    consumer = Client(broker.port)
    publisher.call(m.QueueDeclare("q"), m.QueueDeclareOk)
    publisher.call(m.ConfirmSelect(), m.ConfirmSelectOk)
    for _ in range(20):
        publisher.send(m.BasicPublish("", "q"), 1, Content(body=b"x" * 1_000_000))
    assert publisher.wait_for(m.ConnectionBlocked).reason == "low on memory"
    publisher.send(m.BasicPublish("", "q"), 1, Content(body=b"waits"))
    before = consumer.call(m.QueueDeclare("q", passive=True), m.QueueDeclareOk).message_count
    consumer.call(m.BasicConsume("q", "c", no_ack=True), m.BasicConsumeOk)
    bodies: list[bytes] = []
    while b"waits" not in bodies:
        bodies += [event.content.body for event in consumer.drain(10) if event.content is not None]
    publisher.wait_for(m.ConnectionUnblocked)
    assert len(bodies) == 21
    assert before <= 20, "a blocked publisher was read"
    publisher.close()
    consumer.close()


def test_fan_out_is_blocked_by_its_entries_and_does_not_delay_a_stop(start: Callable[..., Broker]) -> None:
    broker = start("--memory-limit", str(16 * 1024 * 1024))
    beside = Client(broker.port)
    publishers = [Client(broker.port, **{"connection.blocked": True}) for _ in range(10)]
    beside.call(m.ExchangeDeclare("all", "fanout"), m.ExchangeDeclareOk)
    for number in range(500):
        beside.send(m.QueueDeclare(f"q{number}", nowait=True), 1)
        beside.send(m.QueueBind(f"q{number}", "all", nowait=True), 1)
    beside.call(m.QueueDeclare("q0", passive=True), m.QueueDeclareOk)
    for publisher in publishers:
        publisher.socket.sendall(publisher.connection.send(m.BasicPublish("all"), 1, Content()) * 1000)
    for publisher in publishers:
        assert publisher.wait_for(m.ConnectionBlocked).reason == "low on memory"
    depth = beside.call(m.QueueDeclare("q0", passive=True), m.QueueDeclareOk).message_count
    assert 100 < depth < 1000, "the limit is 131 messages in 500 queues each"
    code, errors = broker.stop()
    for client in (beside, *publishers):
        client.close()
    assert code == 0
    assert "publishers blocked" in errors
    assert "Traceback" not in errors


def test_a_secret_can_be_renewed(start: Callable[..., Broker]) -> None:
    client = Client(start().port)
    client.send(m.ConnectionUpdateSecret(b"new", "it was old"))
    client.wait_for(m.ConnectionUpdateSecretOk)
    client.close()


def test_every_death_and_every_drop_is_told(start: Callable[..., Broker]) -> None:
    broker = start("--log-level", "debug")
    client = Client(broker.port)
    client.call(m.QueueDeclare("dead"), m.QueueDeclareOk)
    for name, key in (("q", "dead"), ("nowhere", "no such queue")):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": key}
        client.call(m.QueueDeclare(name, arguments=arguments), m.QueueDeclareOk)
        client.send(m.BasicPublish("", name), 1, Content(body=b"precious"))
        got = client.call(m.BasicGet(name), m.BasicGetOk)
        client.send(m.BasicReject(got.delivery_tag, False), 1)
    client.call(m.QueueDeclare("dead", passive=True), m.QueueDeclareOk)
    client.close()
    told = broker.stop()[1]
    assert re.search(r"DEBUG redrive.broker: message dead-lettered queue=q vhost=/ reason=rejected", told)
    assert re.search(
        r"WARNING redrive.broker: dead letter dropped queue=nowhere vhost=/ reason=rejected: ", told
    )
    assert "precious" not in told


# --- TLS -----------------------------------------------------------------------------------------------------


def test_a_client_certificate_is_a_login(certificates: Path, start: Callable[..., Broker]) -> None:
    broker = start(
        "--tls-port", "0", "--tls-certificate", str(certificates / "server.pem"),
        "--tls-key", str(certificates / "server.key"), "--tls-ca", str(certificates / "guest.pem"),
    )  # fmt: skip
    context = ssl.create_default_context(cafile=certificates / "server.pem")
    context.load_cert_chain(certificates / "guest.pem", certificates / "guest.key")
    plain = socket.create_connection(("127.0.0.1", broker.tls_port), 10)
    with context.wrap_socket(plain, server_hostname="localhost") as wire:
        connection = Connection(Role.CLIENT)
        wire.sendall(connection.initiate())
        answers = {
            m.ConnectionStart: lambda _: m.ConnectionStartOk({}, EXTERNAL, b""),
            m.ConnectionTune: connection.negotiate,
        }
        seen: list[type[m.Method]] = []
        deadline = time.monotonic() + 10
        while m.ConnectionOpenOk not in seen and time.monotonic() < deadline:
            for event in connection.receive(wire.recv(65536)):
                assert isinstance(event, MethodReceived)
                seen.append(type(event.method))
                if isinstance(event.method, m.ConnectionStart):
                    assert b"EXTERNAL" in event.method.mechanisms
                if answer := answers.get(type(event.method)):
                    wire.sendall(connection.send(answer(event.method)))  # type: ignore[operator]
                if isinstance(event.method, m.ConnectionTune):
                    wire.sendall(connection.send(m.ConnectionOpen("/")))
        assert m.ConnectionOpenOk in seen


def test_slow_and_evil_requests_hold_up_neither_others_nor_the_end(start: Callable[..., Broker]) -> None:
    broker = start("--management-port", "0")
    for length in range(100, 150):
        assert broker.request("PUT", f"/api/queues/%2F/{quote('a' * length + '!')}", {}) == 201
    with contextlib.ExitStack() as halves:
        for number in range(300):
            half = halves.enter_context(socket.create_connection(("127.0.0.1", broker.management_port)))
            half.sendall(HALVES[number % 2])

        def ask(number: int) -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):  # the broker ends meanwhile
                broker.request(
                    "GET", f"/api/queues?page=1&use_regex=true&name={quote(f'^(a|aa|{number})+$')}"
                )

        asking = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for thread in asking:
            thread.start()
        assert broker.request("GET", "/api/whoami") == 200
        other = Client(broker.port)
        halves.callback(other.socket.close)
        assert other.call(m.QueueDeclare("q"), m.QueueDeclareOk).queue == "q"
        began = time.monotonic()
        code, errors = broker.stop()
        assert code == 0, errors
        assert time.monotonic() - began < 10  # seconds; five on a machine that has nothing else to do
        assert "Traceback" not in errors
        for thread in asking:
            thread.join()


def test_names_of_users_are_escaped_in_the_log(start: Callable[..., Broker]) -> None:
    broker = start("--management-port", "0")
    name = "eve\n2026-01-01 INFO forged\x1b[31m\u202e"
    parameters = pika.ConnectionParameters(
        "127.0.0.1", broker.port, credentials=pika.PlainCredentials(name, "x"), connection_attempts=1
    )
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(parameters)
    assert broker.request("GET", "/api/whoami", user=name) == 401
    _, errors = broker.stop()
    lines = errors.splitlines()
    escaped = "eve\\n2026-01-01 INFO forged\\x1b[31m\\u202e"
    assert len([line for line in lines if escaped in line]) >= 2, lines
    assert all(line.isprintable() and not line.startswith("2026-01-01") for line in lines)
