"""Does the management API answer as a real RabbitMQ does?

The same requests go to a vhost of both; statuses and bodies have to be equal to those of RabbitMQ 4.3, and to those of
older versions but for what `OLDER` names. Objects have to hold the fields that clients look at, with the types that
they have in RabbitMQ; definitions have to survive the way there and back.
"""

import contextlib
import functools
import http.client
import json
import re
import time
import urllib.parse
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection

from tests.interop.management_requests import (
    FURNITURE,
    GET,
    HELLO,
    LEFT_OUT,
    OLDER,
    PUBLISH,
    SCRIPTS,
    TAGS,
    Older,
    Request,
)
from tests.services import RabbitMQ
from tests.services.rabbitmq import STATISTICS_TIMEOUT_S

Answer = tuple[int, Any]


@functools.cache
def node_of(at: RabbitMQ) -> str:
    """The name of the node."""
    return str(at.api("GET", "/overview")["node"])


def ask(
    at: RabbitMQ, method: str, path: str, body: object = None, who: tuple[str, str] | None = None
) -> Answer:
    """Status and body of a request, with the names of the vhost, the node and the user taken out of both."""
    address = urllib.parse.urlsplit(at.management_url)
    name, password = who or (address.username or "", address.password or "")
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    octets = None if body is None else json.dumps(body).replace("{v}", at.vhost).encode()
    token = b64encode(f"{name}:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
    path = path.replace("{v}", at.vhost)
    if "{n}" in path:
        path = path.replace("{n}", node_of(at))
    with contextlib.closing(connection):
        connection.request(method, f"/api{path}", octets, headers)
        response = connection.getresponse()
        text = response.read().decode().replace(at.vhost, "{v}")
    for quote in "'\"":
        text = text.replace(f"{quote}{name}{quote}", f"{quote}{{me}}{quote}")
    return response.status, json.loads(text) if text else None


def comparable(answer: Answer) -> Answer:
    """The answer without the protocol between nodes, which only a cluster speaks."""
    status, body = answer
    if isinstance(body, dict) and "protocols" in body:
        body = {**body, "protocols": sorted({*body["protocols"]} - {"clustering"})}
    return status, body


def compare(theirs: RabbitMQ, where: str, answers: list[tuple[Request, Answer, Answer]]) -> None:
    """Answers are equal but where a row for this version says otherwise; a row that covers no difference is stale."""

    def rows(request: Request) -> set[Older]:
        return {row for row in OLDER if row.covers(theirs.generation, where, request)}

    met: set[Older] = set().union(*(rows(request) for request, _, _ in answers))
    for request, its, ours in answers:
        if comparable(ours) == comparable(its):
            continue
        met -= rows(request)
        if not rows(request) and theirs.is_newer_than_known:
            pytest.xfail(f"a newer RabbitMQ answers differently: {request}")
        assert rows(request), (request, ours, its)
    assert not met, "these rows cover no difference"


class TestAnswers:
    @pytest.mark.parametrize("script", SCRIPTS)
    def test_the_same_requests_get_the_same_answers(
        self, each_rabbitmq: RabbitMQ, embedded: RabbitMQ, script: str
    ) -> None:
        requests = [*FURNITURE, *SCRIPTS[script]]
        answers = [(request, ask(each_rabbitmq, *request), ask(embedded, *request)) for request in requests]
        compare(each_rabbitmq, script, answers)

    @pytest.mark.parametrize("tag", TAGS)
    def test_a_tag_opens_the_same_doors(self, each_rabbitmq: RabbitMQ, embedded: RabbitMQ, tag: str) -> None:
        answers = []
        for at in (each_rabbitmq, embedded):
            user = f"{at.vhost}-user"
            for request in FURNITURE:
                ask(at, *request)
            ask(at, "PUT", f"/users/{user}", {"password": "p", "tags": tag})
            everything = {"configure": "^m", "write": ".*", "read": ".*"}
            ask(at, "PUT", f"/permissions/{at.vhost}/{user}", everything)
            try:
                answers.append([ask(at, *request, who=(user, "p")) for request in TAGS[tag]])
            finally:
                ask(at, "DELETE", f"/users/{user}")
        compare(each_rabbitmq, tag, list(zip(TAGS[tag], *answers, strict=True)))

    @pytest.mark.parametrize("who", [("nobody", "x"), ("", "")])
    def test_a_login_that_fails_is_told_alike(
        self, each_rabbitmq: RabbitMQ, embedded: RabbitMQ, who: tuple[str, str]
    ) -> None:
        request: Request = ("GET", "/whoami", None)
        its, ours = (ask(at, *request, who=who) for at in (each_rabbitmq, embedded))
        compare(each_rabbitmq, "login", [(request, its, ours)])


class TestDeadLetters:
    def test_a_get_that_rejects_dead_letters(self, broker: RabbitMQ) -> None:
        for request in [*FURNITURE, ("POST", PUBLISH, HELLO), ("POST", PUBLISH, HELLO)]:
            assert ask(broker, *request)[0] < 300
        status, fetched = ask(
            broker, "POST", "/queues/{v}/work/get", {**GET, "ackmode": "reject_requeue_false"}
        )
        assert (status, len(fetched)) == (200, 2)
        letters = wait_for(lambda: _full(ask(broker, "POST", "/queues/{v}/dlq/get", GET)[1], 2))
        headers = letters[0]["properties"]["headers"]
        (death,) = headers["x-death"]
        assert (death["reason"], death["queue"], death["count"]) == ("rejected", "work", 1)
        assert headers["a"] == 1
        assert ask(broker, "POST", "/queues/{v}/work/get", GET) == (200, [])


# --- fields ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def busy(at: RabbitMQ) -> Iterator[BlockingConnection]:
    """A client that consumes, so that there is something to look at."""
    for request in [
        *FURNITURE,
        ("PUT", "/policies/{v}/p", {"pattern": "^work$", "definition": {"max-length": 9}}),
        ("PUT", "/queues/{v}/quorum", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
    ]:
        assert ask(at, *request)[0] < 300
    connection = BlockingConnection(pika.URLParameters(at.amqp_url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    channel.confirm_delivery()
    channel.basic_consume("work", lambda *_: None, consumer_tag="tag")
    for _ in range(3):
        channel.basic_publish("", "work", b"x", pika.BasicProperties(timestamp=1_700_000_000))
    try:
        yield connection
    finally:
        connection.close()


def objects(at: RabbitMQ) -> Any:
    """One object of each kind, as soon as they tell what is going on."""

    def look() -> dict[str, Any] | None:
        queue = ask(at, "GET", "/queues/{v}/work")[1]
        connections = ask(at, "GET", "/vhosts/{v}/connections")[1]
        channels = ask(at, "GET", "/vhosts/{v}/channels")[1]
        consumers = ask(at, "GET", "/consumers/{v}")[1]
        done = queue.get("messages_unacknowledged") == 1 and queue.get("messages_ready") == 2
        if not (done and connections and channels and consumers and "recv_oct" in connections[0]):
            return None
        if "message_stats" not in channels[0] or "message_stats" not in queue:
            return None
        if "delivery_limit" not in ask(at, "GET", "/queues/{v}/quorum")[1]:
            return None
        return {
            "queue": queue,
            "quorum queue": ask(at, "GET", "/queues/{v}/quorum")[1],
            "connection": connections[0],
            "channel": channels[0],
            "consumer": consumers[0],
            "overview": ask(at, "GET", "/overview")[1],
            "exchange": ask(at, "GET", "/exchanges/{v}/topics")[1],
            "binding": ask(at, "GET", "/queues/{v}/work/bindings")[1][0],
            "policy": ask(at, "GET", "/policies/{v}/p")[1],
            "node": ask(at, "GET", "/nodes")[1][0],
            "vhost": ask(at, "GET", "/vhosts/{v}")[1],
            "user": ask(at, "GET", "/users")[1][0],
        }

    return wait_for(look)


def wait_for(look: Callable[[], Any]) -> Any:
    """What `look` sees once it sees something: RabbitMQ's statistics are a second old."""
    deadline = time.monotonic() + STATISTICS_TIMEOUT_S
    while not (seen := look()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.2)
    return seen


def _full(rows: list[Any], count: int) -> list[Any] | None:
    return rows if len(rows) == count else None


def kind(value: Any) -> str:
    """The type of a JSON value; whole and broken numbers are one."""
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )


class TestFields:
    def test_objects_have_rabbitmqs_fields_with_rabbitmqs_types(
        self, rabbitmq: RabbitMQ, embedded: RabbitMQ
    ) -> None:
        with busy(rabbitmq), busy(embedded):
            theirs, ours = objects(rabbitmq), objects(embedded)
        wrong = []
        for what, its in theirs.items():
            left_out = LEFT_OUT.get(what, "").split()
            absent = [name for name in its if name not in ours[what]]
            wrong += [
                f"{what}.{name} is missing"
                for name in absent
                if not any(re.fullmatch(pattern, name) for pattern in left_out)
            ]
            wrong += [
                f"{what}.{name}: {mine!r}, not {its[name]!r}"
                for name, mine in ours[what].items()
                if name in its and None not in (mine, its[name]) and kind(mine) != kind(its[name])
            ]
        if rabbitmq.is_newer_than_known and wrong:
            pytest.xfail(f"a newer RabbitMQ has other fields: {wrong}")
        assert not wrong
        for what in ("queue", "channel", "overview"):
            for name, value in ours[what]["message_stats"].items():
                assert kind(value) == ("dict" if name.endswith("_details") else "number")
        for name in ("queue_totals", "object_totals"):
            assert ours["overview"][name].keys() == theirs["overview"][name].keys()
        assert ours["queue"]["message_stats"].keys() >= {
            "publish",
            "deliver",
            "deliver_get",
            "publish_details",
        }
        assert ours["consumer"].keys() >= theirs["consumer"].keys()
        assert ours["consumer"]["channel_details"].keys() == theirs["consumer"]["channel_details"].keys()

    def test_a_connection_is_closed_from_here(self, broker: RabbitMQ) -> None:
        with contextlib.suppress(pika.exceptions.AMQPError), busy(broker) as connection:
            name = objects(broker)["connection"]["name"]
            path = f"/connections/{urllib.parse.quote(name, safe='')}"
            assert ask(broker, "GET", path)[1]["name"] == name
            assert ask(broker, "DELETE", path)[0] == 204
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
                connection.process_data_events(time_limit=15)
            assert caught.value.reply_code == 320
            assert "Closed via management plugin" in caught.value.reply_text


# --- definitions -------------------------------------------------------------------------------------------------


def furnish(at: RabbitMQ) -> None:
    """Everything that definitions can hold."""
    binding = {"routing_key": "a.#", "arguments": {"x": "y"}}
    policy = {"pattern": "^work$", "definition": {"max-length": 9}, "apply-to": "queues", "priority": 2}
    for request in [
        *FURNITURE,
        ("PUT", "/queues/{v}/quorum", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
        (
            "PUT",
            "/exchanges/{v}/alt",
            {"type": "fanout", "internal": True, "arguments": {"alternate-exchange": "x"}},
        ),
        ("POST", "/bindings/{v}/e/topics/q/work", binding),
        ("POST", "/bindings/{v}/e/amq.fanout/e/topics", {}),
        ("PUT", "/policies/{v}/p", policy),
        ("PUT", "/vhosts/{v}", {"description": "d", "tags": "a,b", "default_queue_type": "quorum"}),
        ("PUT", "/vhost-limits/{v}/max-queues", {"value": 50}),
        ("PUT", "/global-parameters/{v}", {"value": {"a": 1}}),
        ("PUT", "/users/{v}-user", {"password": "p", "tags": "management"}),
        ("PUT", "/user-limits/{v}-user/max-channels", {"value": 50}),
        ("PUT", "/permissions/{v}/{v}-user", {"configure": "^m", "write": ".*", "read": ""}),
    ]:
        assert ask(at, *request)[0] < 300, request


def contents(at: RabbitMQ) -> dict[str, list[str]]:
    """What is in this vhost, in an order and with fields that do not depend on the broker."""
    fields = {
        "queues": ("name", "durable", "auto_delete", "type", "arguments"),
        "exchanges": ("name", "type", "durable", "auto_delete", "internal", "arguments"),
        "bindings": ("source", "destination", "destination_type", "routing_key", "arguments"),
        "policies": ("name", "pattern", "apply-to", "definition", "priority"),
        "vhost-limits": ("value",),
    }
    found = {}
    for kind, names in fields.items():
        rows = ask(at, "GET", f"/{kind}/{{v}}")[1]
        for row in rows:
            if kind == "queues":  # RabbitMQ 3.10 does not add the type
                row["arguments"]["x-queue-type"] = row["type"]
        found[kind] = sorted(json.dumps({name: row[name] for name in names}, sort_keys=True) for row in rows)
    return found


def exported(at: RabbitMQ) -> dict[str, list[str]]:
    """The contents without what RabbitMQ 4.3 leaves out of its definitions: internal exchanges."""
    found = contents(at)
    if at.generation == "4.3" and "redrive_version" not in at.api("GET", "/overview"):
        found["exchanges"] = [row for row in found["exchanges"] if '"name": "alt"' not in row]
    return found


class TestDefinitions:
    @pytest.mark.parametrize("way", ["there", "back"])
    def test_a_vhost_goes_from_one_broker_to_the_other(
        self, each_rabbitmq: RabbitMQ, embedded: RabbitMQ, way: str
    ) -> None:
        source, target = (each_rabbitmq, embedded) if way == "there" else (embedded, each_rabbitmq)
        furnish(source)
        try:
            definitions = ask(source, "GET", "/definitions/{v}")[1]
            assert ask(target, "POST", "/definitions/{v}", definitions)[0] == 204
            assert contents(target) == exported(source)
            assert wait_for(lambda: ask(target, "GET", "/queues/{v}/work")[1].get("policy")) == "p"
        finally:
            ask(source, "DELETE", "/users/{v}-user")

    @pytest.mark.parametrize("way", ["there", "back"])
    def test_users_vhosts_and_permissions_go_from_one_broker_to_the_other(
        self, each_rabbitmq: RabbitMQ, embedded: RabbitMQ, way: str
    ) -> None:
        source, target = (each_rabbitmq, embedded) if way == "there" else (embedded, each_rabbitmq)
        furnish(source)
        try:
            definitions = ask(source, "GET", "/definitions")[1]
            mine = {
                section: [row for row in rows if "{v}" in json.dumps(row)] if isinstance(rows, list) else rows
                for section, rows in definitions.items()
            }
            mine["permissions"] = [row for row in mine["permissions"] if row["user"] == "{v}-user"]
            assert ask(target, "POST", "/definitions", mine)[0] == 204
            assert ask(target, "GET", "/whoami", who=(f"{target.vhost}-user", "p"))[0] == 200
            for path in ("/permissions/{v}/{v}-user", "/user-limits/{v}-user", "/global-parameters/{v}"):
                assert ask(target, "GET", path) == ask(source, "GET", path)
            if each_rabbitmq.version >= (4,):
                path = "/vhosts/{v}?columns=description,tags,default_queue_type"
                assert ask(target, "GET", path) == ask(source, "GET", path)
            assert contents(target) == exported(source)
        finally:
            for at in (source, target):
                ask(at, "DELETE", "/users/{v}-user")
                ask(at, "DELETE", "/global-parameters/{v}")
