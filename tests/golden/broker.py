"""The content of an embedded broker's data directory: how it is written, and how it is read back.

`fill` declares every kind of durable object and publishes messages of every kind, some of which stay unacknowledged.
`content` reads everything that can be observed from outside: definitions by the management API, messages by AMQP.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from urllib.request import Request, urlopen

import pika

from redrive.letters import Headers, Message
from redrive.transports.rabbitmq.message import to_message, to_properties
from tests.golden.amqp import Connection, Content
from tests.golden.letters import ALL_TYPES
from tests.golden.plain import plain

_READY: Final = re.compile(r"redrive broker listens on amqp://([\w.:]+)/ and http://([\w.:]+)/")
_TIMEOUT: Final = 30.0
_VHOST: Final = "shop"
# Set by the broker at each delivery, so they say nothing about what was stored.
_OF_DELIVERY: Final = ("x-delivery-count", "x-acquired-count")


@dataclass(frozen=True)
class Running:
    """An embedded broker that runs as a process of its own."""

    process: subprocess.Popen[str]
    amqp: str  # host and port
    management: str

    def url(self, vhost: str, user: str = "guest:guest") -> str:
        """Where this vhost is."""
        return f"amqp://{user}@{self.amqp}/{quote(vhost, safe='')}"

    def api(self, method: str, path: str, body: Any = None, user: str = "guest:guest") -> Any:
        """A call of the management API."""
        request = Request(
            f"http://{self.management}/api{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Basic {b64encode(user.encode()).decode()}",
                "Content-Type": "application/json",
            },
        )
        with urlopen(request, timeout=_TIMEOUT) as response:
            data = response.read()
        return json.loads(data) if data else None

    def end(self, number: signal.Signals) -> None:
        """End the process by this signal and wait for it."""
        self.process.send_signal(number)
        self.process.wait(_TIMEOUT)


@contextlib.contextmanager
def running(data: Path) -> Iterator[Running]:
    """A broker of this source tree on a data directory; killed at the end if it still runs."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "redrive",
            "broker",
            "--port",
            "0",
            "--management-port",
            "0",
            "--data",
            str(data),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = _READY.match(line)
        assert found is not None, f"the broker did not start on {data}: {line!r}"
        yield Running(process, found[1], found[2])
    finally:
        process.kill()
        process.wait(_TIMEOUT)
        process.stdout.close()


# --- writing ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def fill(broker: Running) -> Iterator[None]:
    """Fill an empty broker. Until the end of the context, a consumer holds unacknowledged messages."""
    _objects(broker)
    held = pika.BlockingConnection(pika.URLParameters(broker.url(_VHOST)))
    connection = pika.BlockingConnection(pika.URLParameters(broker.url(_VHOST)))
    channel = connection.channel()
    channel.confirm_delivery()
    _declare(channel)
    _publish(channel)
    _die(channel)
    _publish_all_types(broker)  # last: the client library cannot read all of them
    taken = held.channel()
    for queue in ("orders", "orders.quorum", "numbers"):
        for _ in range(2):
            method, _, _ = taken.basic_get(queue)
            assert method is not None
    connection.close()
    yield
    with contextlib.suppress(pika.exceptions.AMQPError, OSError):
        held.close()


def _objects(broker: Running) -> None:
    broker.api("PUT", f"/vhosts/{_VHOST}", {"description": "golden", "tags": "golden"})
    broker.api("PUT", "/users/kim", {"password": "sec ret/ä", "tags": "monitoring"})
    broker.api("PUT", "/users/nobody", {"password": "x", "tags": ""})
    for user, pattern in (("guest", ".*"), ("kim", "^orders")):
        permission = {"configure": pattern, "write": pattern, "read": ".*"}
        broker.api("PUT", f"/permissions/{_VHOST}/{user}", permission)
    policies: Mapping[str, tuple[str, dict[str, Any], int, str]] = {
        "limits": ("^numbers$", {"max-length": 1000, "overflow": "reject-publish"}, 3, "queues"),
        "dead": (
            r"^policy\.",
            {"dead-letter-exchange": "dead", "dead-letter-routing-key": "by-policy"},
            1,
            "all",
        ),
        "alternate": ("^events$", {"alternate-exchange": "lost"}, 0, "exchanges"),
    }
    for name, (pattern, definition, priority, applies_to) in policies.items():
        body = {"pattern": pattern, "definition": definition, "priority": priority, "apply-to": applies_to}
        broker.api("PUT", f"/policies/{_VHOST}/{name}", body)


def _declare(channel: Any) -> None:
    for name, kind in (
        ("shop", "topic"),
        ("events", "fanout"),
        ("dead", "direct"),
        ("lost", "fanout"),
        ("match", "headers"),
    ):
        channel.exchange_declare(name, kind, durable=True)
    channel.exchange_declare(
        "inner", "direct", durable=True, internal=True, arguments={"alternate-exchange": "lost"}
    )
    channel.exchange_declare("passing", "direct", durable=False)
    queues: Mapping[str, dict[str, Any]] = {
        "orders": {"x-dead-letter-exchange": "dead"},
        "orders.quorum": {"x-queue-type": "quorum", "x-dead-letter-exchange": "dead", "x-delivery-limit": 2},
        "numbers": {"x-max-priority": 5},
        "short": {"x-max-length": 2, "x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "full"},
        "brief": {"x-message-ttl": 1, "x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "late"},
        "safe": {
            "x-queue-type": "quorum", "x-dead-letter-exchange": "dead", "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
        "limited": {"x-queue-type": "quorum", "x-dead-letter-exchange": "dead", "x-delivery-limit": 2},
        "policy.orders": {},
        "single": {"x-single-active-consumer": True},
        "größe 5": {"x-queue-type": "classic"},
        "dead.letters": {},
        "dead.quorum": {"x-queue-type": "quorum"},
        "unroutable": {},
    }  # fmt: skip
    for name, arguments in queues.items():
        channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_declare("passing", durable=False)
    channel.queue_declare("mine", exclusive=True)
    for queue, exchange, key in (
        ("orders", "shop", "orders.#"), ("orders.quorum", "shop", "*.new"), ("numbers", "events", ""),
        ("unroutable", "lost", ""), ("dead.letters", "dead", "orders.reject"), ("dead.letters", "dead", "full"),
        ("dead.letters", "dead", "late"), ("dead.letters", "dead", "by-policy"), ("dead.quorum", "dead", "safe"),
        ("dead.quorum", "dead", "orders.quorum"), ("dead.quorum", "dead", "limited"),
    ):  # fmt: skip
        channel.queue_bind(queue, exchange, key)
    channel.queue_bind("größe 5", "match", "", {"x-match": "any", "size": 5, "tenant": "north"})
    channel.exchange_bind("inner", "shop", "inner.*", {"note": "exchange to exchange"})


_STAMP: Final = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)


def _publish(channel: Any) -> None:
    full = pika.BasicProperties(
        content_type="application/json",
        content_encoding="gzip",
        headers={
            "text": "größe", "number": -5, "big": 2**40, "true": True, "none": None, "bytes": b"\xff\x00",
            "decimal": Decimal("19.90"), "time": _STAMP.replace(tzinfo=None),
            "list": [1, "two", [False]], "table": {"deep": {"n": 1}},
        },
        delivery_mode=2,
        priority=4,  # the default of quorum queues, where they have priorities: the order is the same in all versions
        correlation_id="correlation-1",
        reply_to="answers",
        message_id="message-1",
        timestamp=int(_STAMP.timestamp()),
        type="order",
        user_id="guest",
        app_id="shop",
        cluster_id="cluster",
    )  # fmt: skip
    persistent, transient = pika.BasicProperties(delivery_mode=2), pika.BasicProperties(delivery_mode=1)
    for number in range(6):
        channel.basic_publish(
            "",
            "orders",
            b"order %d" % number,
            pika.BasicProperties(delivery_mode=2, message_id=f"m-{number}"),
        )
        channel.basic_publish(
            "",
            "orders.quorum",
            b"quorum %d" % number,
            pika.BasicProperties(delivery_mode=2, message_id=f"q-{number}"),
        )
        channel.basic_publish(
            "", "numbers", b"%d" % number, pika.BasicProperties(delivery_mode=2, priority=number)
        )
    for queue in ("orders", "orders.quorum", "single"):
        channel.basic_publish("", queue, b"every property", full)
        channel.basic_publish("", queue, b"transient", transient)
        channel.basic_publish("", queue, b"no properties", pika.BasicProperties())
        channel.basic_publish("", queue, b"", persistent)
    channel.basic_publish("shop", "orders.new", b"to both queues", full)
    channel.basic_publish("", "größe 5", bytes(range(256)) * 16, persistent)
    channel.basic_publish("match", "", b"matched", pika.BasicProperties(delivery_mode=2, headers={"size": 5}))
    channel.basic_publish("", "passing", b"gone after a restart", persistent)
    channel.basic_publish("", "safe", b"kept", persistent)
    # A gap in the journal: consumed before the end.
    method, _, _ = channel.basic_get("orders")
    channel.basic_ack(method.delivery_tag)


def _publish_all_types(broker: Running) -> None:
    with Connection(broker.url(_VHOST)) as connection:
        for queue in ("orders", "orders.quorum"):
            message = Message(
                body=b"every header type",
                headers=ALL_TYPES,
                message_id="types",
                properties=Headers({"delivery_mode": 2}),
            )
            connection.publish("", queue, to_properties(message), b"every header type")


def _die(channel: Any) -> None:
    """Dead letters for every reason: rejected, delivery limit, maximum length, time to live, by policy, twice."""
    persistent = pika.BasicProperties(delivery_mode=2, message_id="dies", headers={"tenant": "north"})
    channel.basic_publish("shop", "orders.reject", b"rejected", persistent)
    _reject(channel, "orders", b"rejected", requeue=False)
    channel.basic_recover(requeue=True)
    channel.basic_publish("", "safe", b"dies safely", persistent)
    channel.basic_publish("", "limited", b"delivered too often", persistent)
    _reject(channel, "safe", b"dies safely", requeue=False)
    for _ in range(3):
        _reject(channel, "limited", b"delivered too often", requeue=True)
    channel.basic_recover(requeue=True)
    for number in range(4):
        channel.basic_publish("", "short", b"short %d" % number, persistent)
    channel.basic_publish("", "brief", b"expired", persistent)
    channel.basic_publish("", "policy.orders", b"by policy", persistent)
    method, _, _ = channel.basic_get("policy.orders")
    channel.basic_reject(method.delivery_tag, requeue=False)
    for queue, count in (("dead.letters", 5), ("dead.quorum", 2)):
        _wait(partial(_has, channel, queue, count), f"{count} dead letters in '{queue}'")


def _reject(channel: Any, queue: str, text: bytes, *, requeue: bool) -> None:
    """Reject the message with this body; the ones before it stay unacknowledged."""
    got: list[Any] = []

    def found() -> bool:
        method, _, body = channel.basic_get(queue)
        if body == text:
            got.append(method)
        return bool(got)

    _wait(found, f"the message {text!r} in '{queue}'")
    channel.basic_reject(got[0].delivery_tag, requeue=requeue)


def _has(channel: Any, queue: str, count: int) -> bool:
    return bool(channel.queue_declare(queue, passive=True).method.message_count == count)


def _wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _TIMEOUT
    while not condition():
        assert time.monotonic() < end, f"timed out waiting for {what}"
        time.sleep(0.01)


# --- reading ------------------------------------------------------------------------------------------------


def content(broker: Running) -> dict[str, Any]:
    """Everything that the broker has, as plain values."""
    definitions = broker.api("GET", "/definitions")
    vhosts = sorted(each["name"] for each in definitions["vhosts"])
    return {
        "definitions": {
            kind: sorted(definitions[kind], key=_name)
            for kind in ("vhosts", "users", "permissions", "policies", "queues", "exchanges", "bindings")
        },
        "login": broker.api("GET", "/whoami", user="kim:sec ret/ä")["name"],
        "messages": {vhost: _messages(broker, vhost, definitions) for vhost in vhosts},
    }


def _name(item: Mapping[str, Any]) -> str:
    return json.dumps(
        [item.get(key, "") for key in ("vhost", "name", "user", "source", "destination", "routing_key")]
    )


def _messages(broker: Running, vhost: str, definitions: Mapping[str, Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    with Connection(broker.url(vhost)) as connection:
        for queue in definitions["queues"]:
            if queue["vhost"] == vhost:
                messages = [_plain(one) for one in connection.get_all(queue["name"])]
                if queue["arguments"].get("x-queue-type") == "quorum":
                    # Whether a restart counts as a redelivery of a quorum queue depends on the broker's version.
                    for message in messages:
                        del message["redelivered"]
                found[queue["name"]] = messages
    return found


def _plain(stored: Content) -> dict[str, Any]:
    message = to_message(stored.properties, stored.body)
    stripped = plain(message)
    stripped["headers"] = plain(message.headers.without(*_OF_DELIVERY))
    return {
        "exchange": stored.exchange,
        "routing_key": stored.routing_key,
        "redelivered": stored.redelivered,
        "message": stripped,
    }
