"""Feed broken requests to both HTTP servers and see that they answer, never with an internal error, and stay alive.

    python tests/fuzz/fuzz_http.py --inputs 5000 --seed 1

Each input is a request of an operator, damaged: another method, path segments and parameters that no one expects,
values of other types in JSON, bits flipped, lengths that lie. It goes to the management API of the embedded broker, or
to the HTTP server of `redrive serve`, both of one process that is started here. A request that is cut off is closed
without waiting for an answer.
"""

import argparse
import base64
import json
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
LOGIN = base64.b64encode(b"guest:guest").decode()
KEY = "the-key-of-the-fuzzed-server"
TIMEOUT_S = 10.0
CHECK_EVERY = 100  # inputs
METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "OPTIONS", "TRACE", "get", "X")
SEGMENTS = (
    "", ".", "..", "%2F", "%00", "%ff", "q", "orders", "a" * 5000, "é", "%2e%2e", "*", "amq.direct", "-1",
    str(2**63), "nodes", "queues", "exchanges", "vhosts", "users", "policies", "bindings", "%0d%0aX: y",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**31, 2**63, 2**64, 1e308, -0.5, "", "x", "\x00", "\x1b[2J", "é" * 300, "(a+)+$", "[", [], {},
    [[[[]]]], {"a": {"b": {"c": []}}}, ["x"] * 50, {"x-max-length": -1}, {"": ""},
)  # fmt: skip
PARAMETERS = (
    "page", "page_size", "name", "use_regex", "sort", "sort_reverse", "columns", "disable_stats", "enable_queue_totals",
    "lengths_age", "after", "limit", "if-unused", "msg_rates_age", "x",
)  # fmt: skip
MANAGEMENT: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/api/overview", None),
    ("GET", "/api/queues", None),
    ("GET", "/api/queues/%2F/q", None),
    ("GET", "/api/queues/%2F/q/bindings", None),
    ("PUT", "/api/queues/%2F/q", {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 5}}),
    ("DELETE", "/api/queues/%2F/q", None),
    ("POST", "/api/queues/%2F/q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
    ("DELETE", "/api/queues/%2F/q/contents", None),
    ("PUT", "/api/exchanges/%2F/e", {"type": "topic", "durable": True, "arguments": {}}),
    ("POST", "/api/exchanges/%2F/e/publish",
     {"properties": {"headers": {"a": 1}}, "routing_key": "a", "payload": "x", "payload_encoding": "string"}),
    ("POST", "/api/bindings/%2F/e/e/q/q", {"routing_key": "a.#", "arguments": {}}),
    ("PUT", "/api/policies/%2F/p", {"pattern": "^q", "definition": {"max-length": 5}, "apply-to": "queues"}),
    ("PUT", "/api/vhosts/v", {"description": "d", "tags": "a,b", "default_queue_type": "quorum"}),
    ("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 1000}),
    ("GET", "/api/definitions", None),
    ("POST", "/api/definitions", {"queues": [{"name": "q2", "vhost": "/", "durable": True, "arguments": {}}]}),
    ("GET", "/api/connections", None),
    ("GET", "/api/consumers/%2F", None),
    ("GET", "/api/health/checks/alarms", None),
    ("GET", "/metrics", None),
)  # fmt: skip
SERVER: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/health", None),
    ("GET", "/metrics", None),
    ("POST", "/store/page", b"\x83\xa5query\xc0\xa5limit\x0a\xa6cursor\xc0"),
    ("POST", "/store/load", b"\x81\xa3ids\x91\xa1x"),
    ("POST", "/store/tally", b"\x80"),
    ("GET", "/store/proof?nonce=0123456789abcdef", None),
)


class Request(NamedTuple):
    """The bytes of a request, and whether they are all of it."""

    content: bytes
    is_whole: bool


def a_request(base: tuple[str, str, Any], host: str, chance: random.Random) -> Request:
    """A request with some of its parts replaced or damaged."""
    method, path, body = base
    if chance.random() < 0.1:
        method = chance.choice(METHODS)
    if chance.random() < 0.4:
        segments = path.split("/")
        segments[chance.randrange(1, len(segments))] = chance.choice(SEGMENTS)
        path = "/".join(segments)
    if chance.random() < 0.4:
        names = chance.choices(PARAMETERS, k=chance.randrange(1, 4))
        path += "?" + "&".join(f"{name}={quote(str(chance.choice(VALUES)))}" for name in names)
    content, kind = payload(body, chance)
    length = len(content) if chance.random() < 0.95 else chance.choice((0, 1, len(content) + 5, -1, 2**63))
    headers = {
        "Host": host,
        "Authorization": f"Bearer {KEY}" if base[1].startswith("/store") else f"Basic {LOGIN}",
        "Content-Type": kind,
        "Content-Length": str(length),
        "Connection": "close",
    }
    if chance.random() < 0.1:
        headers[chance.choice(tuple(headers))] = chance.choice(("", "x" * 9000, "\x01", "é", "chunked", "0"))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    request = "\r\n".join(lines).encode("latin-1", "replace") + content
    if chance.random() < 0.1:
        damaged = bytearray(request)
        for _ in range(chance.randrange(1, 5)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        return Request(bytes(damaged), is_whole=False)
    if chance.random() < 0.05:
        return Request(request[: chance.randrange(len(request))], is_whole=False)
    return Request(request, is_whole=length == len(content))


def payload(body: Any, chance: random.Random) -> tuple[bytes, str]:
    """The body of a request and its content type."""
    if isinstance(body, bytes):
        if chance.random() < 0.7:
            damaged = bytearray(body)
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            body = bytes(damaged) * chance.choice((1, 1, 1, 50))
        return body, "application/msgpack"
    if body is None:
        return b"", "application/json"
    if chance.random() < 0.7:
        body = replaced(body, chance)
    content = json.dumps(body).encode()
    if chance.random() < 0.1:
        content = content[: chance.randrange(len(content) + 1)]
    if chance.random() < 0.05:
        content = b"[" * chance.choice((10, 900, 100_000))
    return content, "application/json"


def replaced(value: Any, chance: random.Random) -> Any:
    """A value in which something is of another type."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        changed = dict(value)
        name = chance.choice(tuple(changed))
        if chance.random() < 0.2:
            del changed[name]
        else:
            changed[name] = replaced(changed[name], chance)
        return changed
    return chance.choice(VALUES)


def ask(port: int, request: Request) -> bytes:
    """The first line of the answer; empty if the connection is closed without one."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(request.content)
        if not request.is_whole:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while b"\r\n" not in answer and (piece := connection.recv(4096)):
                answer += piece
        except ConnectionResetError:
            pass
        return answer.partition(b"\r\n")[0]


def check_answer(line: bytes, request: Request) -> None:
    """An answer is no internal error, and a whole request has one."""
    if not line:
        assert not request.is_whole, "no answer to a whole request"
        return
    found = re.match(rb"HTTP/1\.1 (\d{3})", line)
    assert found, f"not an answer: {line!r}"
    status = int(found[1])
    assert status < 500 or status in (501, 503, 505), f"internal error: {line!r}"


def check_alive(management: int, server: int) -> None:
    """Both servers still answer a plain question, quickly."""
    for port, path in ((management, "/api/overview"), (server, "/metrics")):
        lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Basic {LOGIN}"]
        content = "\r\n".join([*lines, "Connection: close", "", ""]).encode()
        line = ask(port, Request(content, is_whole=True))
        assert line.startswith(b"HTTP/1.1 200"), f"{path} answers {line!r}"


def run(management: int, server: int, *, inputs: int, seed: int) -> None:
    """Send so many requests."""
    chance = random.Random(seed)
    for number in range(1, inputs + 1):
        port, bases = (management, MANAGEMENT) if chance.random() < 0.7 else (server, SERVER)
        request = a_request(chance.choice(bases), f"127.0.0.1:{port}", chance)
        try:
            check_answer(ask(port, request), request)
            if number % CHECK_EVERY == 0:
                check_alive(management, server)
        except BaseException:
            sys.stdout.write(f"input {number} of seed {seed}: {request!r:.3000}\n")
            raise


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="redrive-fuzz-") as folder, tempfile.TemporaryFile("w+") as log:
        (Path(folder) / "redrive.toml").write_text(
            f'[embedded]\nport = 0\nmanagement_port = 0\n[server]\nkey = "{KEY}"\n', "utf-8"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "redrive", "serve", "--data", "data", "--port", "0"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            found = re.search(r"\((http://\S+?)\), http (http://\S+?),", ready)
            assert found, f"not ready: {ready}"
            ports = [urlsplit(url).port or 0 for url in found.groups()]
            run(*ports, inputs=options.inputs, seed=options.seed)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        log.seek(0)
        tracebacks = log.read().count("Traceback (most recent call last)")
    assert code == 0, f"the server ended with exit code {code}"
    assert not tracebacks, f"{tracebacks} tracebacks in the log"
    seconds = time.monotonic() - began
    sys.stdout.write(f"done: {options.inputs:,} inputs, seed {options.seed}, {seconds:.0f} s\n")


if __name__ == "__main__":
    main()
