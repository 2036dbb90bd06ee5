"""No request to the management API is answered with 500, however malformed."""

import asyncio
import json
import logging
import random
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from redrive.amqp import methods as m
from redrive.broker.arguments import Declared
from redrive.broker.management.app import App
from redrive.broker.management.ask import Desk
from redrive.broker.management.routes import ROUTES
from redrive.broker.management.stats import Rates
from redrive.broker.run import BrokerOptions, start
from tests.unit.broker.harness import World
from tests.unit.broker.management_place import place

LOGIN = b"Basic " + b64encode(b"guest:guest")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


NAMES = [
    "%2F",
    "q",
    "x",
    "p",
    "guest",
    "",
    "%00",
    "%ff",
    "%F0%9F%98%80",
    "a" * 300,
    "..",
    "%0a%1b",
    "~",
    "%7E",
    "amq.direct",
    "amq.default",
    "e",
    "limits",
    "max-queues",
    "operator_policy",
    "%ed%a0%80",
    "*",
    "(",
    "redrive@localhost",
]
NUMBERS: list[Any] = [0, -1, 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 1.5, 1e308, -0.0]
WORDS = [
    "",
    "x",
    "q",
    "true",
    "\0",
    "é\u202e",
    "a" * 300,
    "b" * 70_000,
    "(",
    "1e999",
    "quorum",
    "stream",
    "topic",
    "ack_requeue_true",
    "string",
    "base64",
    "auto",
    "/",
    "!!!",
    "\x1b[31m",
    "rabbit_password_hashing_md5",
    "9" * 30,
    "٣",
]
SHAPES: list[Any] = [
    None,
    True,
    False,
    [],
    {},
    nested(60),
    nested(70),
    nested(900),
    {"a": nested(100)},
    {"": ""},
    [{}],
    [[]],
    {"a": {"b": {}}},
]
KEYS = """
    durable auto_delete internal arguments type node name vhost source destination destination_type
    routing_key properties payload payload_encoding count ackmode encoding truncate requeue pattern
    definition apply-to priority value component password password_hash hashing_algorithm tags configure
    write read description default_queue_type tracing users vhosts queues exchanges bindings permissions
    policies parameters global_parameters topic_permissions limits metadata action properties_key
""".split()  # noqa: SIM905  a list of words
ARGUMENTS = """
    x-message-ttl x-expires x-max-length x-max-length-bytes x-overflow x-dead-letter-exchange
    x-dead-letter-routing-key x-queue-type x-max-priority x-single-active-consumer x-delivery-limit
    x-queue-mode alternate-exchange x-match x-death CC BCC headers expiration priority delivery_mode
    timestamp max-length message-ttl dead-letter-exchange max-connections delayed-retry-min overflow
""".split()  # noqa: SIM905  a list of words
QUERIES = """
    page page_size sort sort_reverse columns name use_regex if-unused if-empty download lengths_age
    msg_rates_age disable_stats enable_queue_totals
""".split()  # noqa: SIM905  a list of words


VALUES = [
    "1",
    "0",
    "-1",
    "9" * 24,
    "true",
    "%00",
    "%ff",
    "a.b.c",
    ".",
    ",",
    "(",
    "%D9%A3",
    "1_0",
    "name",
    "messages",
]
# Requests that work; a hostile one differs in a few places.
VALID: dict[str, Any] = {
    "queues": {
        "durable": True,
        "auto_delete": False,
        "arguments": {"x-message-ttl": 5, "x-queue-type": "classic"},
    },
    "exchanges": {
        "type": "topic",
        "durable": True,
        "internal": False,
        "arguments": {"alternate-exchange": "x"},
    },
    "publish": {
        "routing_key": "q",
        "properties": {"headers": {"a": 1}, "delivery_mode": 2, "expiration": "5", "timestamp": 1},
        "payload": "aGk=",
        "payload_encoding": "base64",
    },
    "get": {"count": 3, "ackmode": "ack_requeue_true", "encoding": "auto", "truncate": 5},
    "bindings": {"routing_key": "k", "arguments": {"x-match": "any", "a": 1}},
    "policies": {
        "pattern": "^q",
        "definition": {"max-length": 5, "dead-letter-exchange": ""},
        "apply-to": "all",
        "priority": 1,
    },
    "operator-policies": {
        "pattern": "^q",
        "definition": {"max-length": 5},
        "apply-to": "queues",
        "priority": 1,
    },
    "parameters": {"value": {"max-queues": 10}},
    "global-parameters": {"value": {"a": 1}},
    "users": {"password": "p", "tags": "management"},
    "permissions": {"configure": ".*", "write": ".*", "read": ".*"},
    "vhosts": {"description": "d", "tags": "a,b", "default_queue_type": "quorum", "tracing": False},
    "vhost-limits": {"value": 5},
    "user-limits": {"value": 5},
    "bulk-delete": {"users": ["u"]},
    "cluster-name": {"name": "c"},
    "actions": {"action": "sync"},
    "definitions": {
        "vhosts": [{"name": "/", "metadata": {"tags": []}, "limits": {}}],
        "users": [{"name": "u", "password_hash": "aGk=", "tags": ["a"], "limits": {"max-channels": 5}}],
        "permissions": [{"user": "u", "vhost": "/", "configure": "", "write": "", "read": ""}],
        "global_parameters": [{"name": "g", "value": 1}],
        "parameters": [
            {
                "vhost": "/",
                "component": "operator_policy",
                "name": "o",
                "value": {"pattern": "", "definition": {"max-length": 1}},
            }
        ],
        "policies": [
            {
                "vhost": "/",
                "name": "p",
                "pattern": "^q",
                "definition": {"max-length": 5},
                "apply-to": "all",
                "priority": 0,
            }
        ],
        "queues": [
            {
                "vhost": "/",
                "name": "q2",
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-max-length": 4},
            }
        ],
        "exchanges": [
            {
                "vhost": "/",
                "name": "e2",
                "type": "direct",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
        ],
        "bindings": [
            {
                "vhost": "/",
                "source": "amq.direct",
                "destination": "q",
                "destination_type": "queue",
                "routing_key": "k",
                "arguments": {},
            }
        ],
    },
}
GOOD = {
    "vhost": "%2F",
    "name": "q",
    "user": "guest",
    "source": "amq.topic",
    "destination": "q",
    "component": "vhost-limits",
    "key": "k",
}


class Hostile:
    """Makes requests; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 2) -> Any:
        choose = self.random.choice
        kind = self.random.random()
        if depth and kind < 0.25:
            return {choose(KEYS + ARGUMENTS): self.value(depth - 1) for _ in range(self.random.randrange(5))}
        if depth and kind < 0.35:
            return [self.value(depth - 1) for _ in range(self.random.randrange(3))]
        return choose(choose([NUMBERS, WORDS, SHAPES]))

    def spoil(self, value: Any) -> Any:
        """The value with something hostile in it."""
        if isinstance(value, dict) and value and self.random.random() < 0.8:
            key = self.random.choice(list(value))
            return {**value, key: self.spoil(value[key])}
        if isinstance(value, dict) and self.random.random() < 0.5:
            return {**value, self.random.choice(KEYS + ARGUMENTS): self.value()}
        if isinstance(value, list) and value and self.random.random() < 0.7:
            return [self.spoil(value[0]), *value[1:]]
        return self.value()

    def body(self, pattern: str) -> bytes:
        if self.random.random() < 0.05:
            return self.random.choice(
                [b"", b"null", b"[", b"\xff", b'"\\ud800"', b"[" * 5000, b'{"a":1e999}', b"{}x"]
            )
        valid: Any = next((VALID[part] for part in reversed(pattern.split("/")) if part in VALID), {})
        return json.dumps(self.spoil(valid)).encode()

    def target(self, pattern: str) -> tuple[str, str]:
        def part(found: re.Match[str]) -> str:
            name = re.match("[a-z]+", found.group()[1:])
            good = GOOD.get(name.group() if name else "", "q")
            return good if self.random.random() < 0.85 else self.random.choice(NAMES)

        path = re.sub(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", part, pattern)
        query = [
            f"{self.random.choice(QUERIES)}={self.random.choice(VALUES)}"
            for _ in range(self.random.randrange(4))
        ]
        return path, "&".join(query)


@pytest.fixture
async def app() -> AsyncIterator[App]:
    server = await start(BrokerOptions())
    desk = Desk(server, Rates(), lambda: [*server.listeners, ("http", "127.0.0.1", 1)])
    yield App(desk)
    desk.names.close()
    await server.close()


async def status(app: App, method: str, path: str, query: str = "", body: bytes = b"") -> int:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"authorization", LOGIN), (b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1),
        "scheme": "http",
    }
    await app(scope, receive, send)
    found: int = sent[0]["status"]
    return found


def recover(app: App) -> None:
    """Whatever the requests have done, there are the user, the virtual host and the queue that they name."""
    broker = app._desk.server.broker
    broker.users.add("guest", "guest", tags=("administrator",))
    vhost = broker.vhosts.get("/") or broker.add_vhost("/")
    vhost.limits.clear()
    broker.users.set_permission("guest", "/", ".*", ".*", ".*")
    if "q" not in vhost.queues:
        vhost.declare_queue("q", Declared(durable=True), owner=None, now=0)


@pytest.mark.parametrize("seed", range(4))
async def test_hostile_requests_are_refused_and_never_fail(
    app: App, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = Hostile(seed)
    recover(app)
    for pattern, handlers in ROUTES.items():
        for method in handlers:
            for _ in range(12 if method in {"PUT", "POST"} else 3):
                path, query = hostile.target(pattern)
                body = hostile.body(pattern) if method in {"PUT", "POST"} else b""
                found = await status(app, method, path, query, body)
                errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
                assert found < 500 or "/health/" in path or found == 503, (
                    method,
                    path,
                    query,
                    body[:2000],
                    errors and errors[-1].exc_text,
                )
                assert not errors, (method, path, query, body[:2000], errors[-1].exc_text)
        recover(app)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/api/queues/%2F/q", {"arguments": {"x": nested(900)}}),
        ("PUT", "/api/exchanges/%2F/x", {"type": "direct", "arguments": {"x": nested(900)}}),
        ("POST", "/api/bindings/%2F/e/amq.direct/q/q", {"arguments": {"x": nested(900)}}),
        ("PUT", "/api/policies/%2F/p", {"pattern": "", "definition": {"a": nested(900)}}),
        ("PUT", "/api/global-parameters/p", {"value": nested(900)}),
        ("POST", "/api/definitions", {"queues": [{"name": "q", "vhost": "/", "arguments": {"x": nested(900)}}]}),
        (
            "POST",
            "/api/exchanges/%2F/amq.default/publish",
            {
                "routing_key": "q",
                "properties": {"headers": {"x": nested(900)}},
                "payload": "",
                "payload_encoding": "string",
            },
        ),
    ],
)  # fmt: skip
async def test_body_that_is_nested_too_deeply_is_refused_with_the_limit(
    app: App, method: str, path: str, body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert await status(app, method, path, "", json.dumps(body).encode()) == 400
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_aborted_upload_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async with place() as here:
        _, writer = await asyncio.open_connection("127.0.0.1", here.management.port)
        writer.write(
            b"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: " + LOGIN + b"\r\nContent-Length: 100\r\n\r\n{"
        )
        await writer.drain()
        tasks = here.management._web.server_state.tasks
        async with asyncio.timeout(30):
            while not tasks:  # noqa: ASYNC110  the request has arrived
                await asyncio.sleep(0.001)
            writer.transport.abort()
            while tasks:  # noqa: ASYNC110  and is over
                await asyncio.sleep(0.001)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_queue_type_that_is_a_table_is_refused_over_amqp() -> None:
    world = World()
    client = world.client()
    client.send(m.QueueDeclare("q", arguments={"x-queue-type": {"a": 1}}), 1)
    assert client.take(m.ChannelClose).reply_code == 406
