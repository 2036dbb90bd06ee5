"""Does the management API answer as a real RabbitMQ does?

The same requests go to a vhost of both; statuses and bodies have to be equal. Objects have to hold the fields that
AMQP.md lists, with the types that they have in RabbitMQ; definitions have to survive the way there and back. Requests
that RabbitMQ 3 answers with 500, and those that version 4 answers in another way, are left to the unit tests.
"""

import contextlib
import http.client
import json
import shutil
import subprocess
import time
import urllib.parse
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection

from tests.interop.management_requests import FIELDS, FURNITURE, GET, HELLO, PUBLISH, SCRIPTS, TAGS
from tests.services import RabbitMQ

PATIENCE = 15
Answer = tuple[int, Any]


def ask(
    at: RabbitMQ, method: str, path: str, body: object = None, who: tuple[str, str] | None = None
) -> Answer:
    """Status and body of a request, with the vhost's name taken out of both."""
    address = urllib.parse.urlsplit(at.management_url)
    name, password = who or (address.username or "", address.password or "")
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    octets = None if body is None else json.dumps(body).replace("{v}", at.vhost).encode()
    token = b64encode(f"{name}:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
    with contextlib.closing(connection):
        connection.request(method, "/api" + path.replace("{v}", at.vhost), octets, headers)
        response = connection.getresponse()
        text = response.read().decode().replace(at.vhost, "{v}").replace(f"'{name}'", "'{me}'")
    return response.status, json.loads(text) if text else None


class TestAnswers:
    @pytest.mark.parametrize("script", SCRIPTS)
    def test_the_same_requests_get_the_same_answers(
        self, rabbitmq: RabbitMQ, embedded: RabbitMQ, script: str
    ) -> None:
        for request in [*FURNITURE, *SCRIPTS[script]]:
            theirs, ours = ask(rabbitmq, *request), ask(embedded, *request)
            assert ours == theirs, request

    @pytest.mark.parametrize("tag", TAGS)
    def test_a_tag_opens_the_same_doors(self, rabbitmq: RabbitMQ, embedded: RabbitMQ, tag: str) -> None:
        answers = []
        for at in (rabbitmq, embedded):
            user = f"{at.vhost}-user"
            for request in FURNITURE:
                ask(at, *request)
            ask(at, "PUT", f"/users/{user}", {"password": "p", "tags": tag})
            everything = {"configure": "^m", "write": ".*", "read": ".*"}
            ask(at, "PUT", f"/permissions/{at.vhost}/{user}", everything)
            try:
                answers.append([(request, ask(at, *request, who=(user, "p"))) for request in TAGS[tag]])
            finally:
                ask(at, "DELETE", f"/users/{user}")
        for theirs, ours in zip(*answers, strict=True):
            assert ours == theirs

    @pytest.mark.parametrize("who", [("nobody", "x"), ("", "")])
    def test_a_login_that_fails_is_told_alike(
        self, rabbitmq: RabbitMQ, embedded: RabbitMQ, who: tuple[str, str]
    ) -> None:
        assert ask(embedded, "GET", "/whoami", who=who) == ask(rabbitmq, "GET", "/whoami", who=who)


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
        return {
            "queue": queue,
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
    deadline = time.monotonic() + PATIENCE
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
        for what, names in FIELDS.items():
            for name in names.split():
                if name not in ours[what]:
                    wrong.append(f"{what}.{name} is missing")
                elif name in theirs[what] and None not in (
                    mine := ours[what][name],
                    its := theirs[what][name],
                ):
                    wrong += [f"{what}.{name}: {mine!r}, not {its!r}"] * (kind(mine) != kind(its))
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
                connection.process_data_events(time_limit=PATIENCE)
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
        ("PUT", "/users/{v}-user", {"password": "p", "tags": "management"}),
        ("PUT", "/permissions/{v}/{v}-user", {"configure": "^m", "write": ".*", "read": ""}),
    ]:
        assert ask(at, *request)[0] < 300, request


def definitions(at: RabbitMQ) -> Any:
    """Of this vhost, with everything in an order that does not depend on the broker."""
    status, body = ask(at, "GET", "/definitions/{v}")
    assert status == 200
    sections = ("queues", "exchanges", "bindings", "policies")
    return {name: sorted(body[name], key=lambda row: json.dumps(row, sort_keys=True)) for name in sections}


class TestDefinitions:
    @pytest.mark.parametrize("way", ["there", "back"])
    def test_a_vhost_goes_from_one_broker_to_the_other(
        self, rabbitmq: RabbitMQ, embedded: RabbitMQ, way: str
    ) -> None:
        source, target = (rabbitmq, embedded) if way == "there" else (embedded, rabbitmq)
        furnish(source)
        try:
            exported = ask(source, "GET", "/definitions/{v}")[1]
            assert ask(target, "POST", "/definitions/{v}", exported)[0] == 204
            assert definitions(target) == definitions(source)
            assert wait_for(lambda: ask(target, "GET", "/queues/{v}/work")[1].get("policy")) == "p"
        finally:
            ask(source, "DELETE", "/users/{v}-user")

    @pytest.mark.parametrize("way", ["there", "back"])
    def test_users_vhosts_and_permissions_go_from_one_broker_to_the_other(
        self, rabbitmq: RabbitMQ, embedded: RabbitMQ, way: str
    ) -> None:
        source, target = (rabbitmq, embedded) if way == "there" else (embedded, rabbitmq)
        furnish(source)
        try:
            exported = ask(source, "GET", "/definitions")[1]
            mine = {
                section: [row for row in exported[section] if "{v}" in json.dumps(row)]
                for section in (
                    "users",
                    "permissions",
                    "vhosts",
                    "queues",
                    "exchanges",
                    "bindings",
                    "policies",
                )
            }
            mine["permissions"] = [row for row in mine["permissions"] if row["user"] == "{v}-user"]
            assert ask(target, "POST", "/definitions", {**exported, **mine})[0] == 204
            assert ask(target, "GET", "/whoami", who=(f"{target.vhost}-user", "p"))[1]["name"] == "{v}-user"
            path = "/permissions/{v}/{v}-user"
            assert ask(target, "GET", path) == ask(source, "GET", path)
            assert definitions(target) == definitions(source)
        finally:
            for at in (source, target):
                ask(at, "DELETE", "/users/{v}-user")


class TestRabbitmqadmin:
    """RabbitMQ's own tool is the witness that needs no knowledge of ours."""

    @pytest.fixture
    def admin(self, broker: RabbitMQ) -> Callable[..., str]:
        program = shutil.which("rabbitmqadmin")
        if program is None:
            pytest.skip("no rabbitmqadmin on this machine")
        address = urllib.parse.urlsplit(broker.management_url)
        where = ["-H", address.hostname or "", "-P", str(address.port), "-V", broker.vhost]
        login = ["-u", address.username or "", "-p", address.password or ""]

        def run(*args: str) -> str:
            done = subprocess.run(
                [program, *where, *login, *args], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        return run

    def test_it_declares_publishes_gets_and_deletes(self, admin: Callable[..., str]) -> None:
        assert "queue declared" in admin("declare", "queue", "name=q", "durable=true")
        assert "exchange declared" in admin("declare", "exchange", "name=e", "type=topic")
        assert "binding declared" in admin(
            "declare", "binding", "source=e", "destination=q", "destination_type=queue", "routing_key=a.#"
        )
        assert "policy declared" in admin(
            "declare", "policy", "name=p", "pattern=q", 'definition={"max-length":5}', "apply-to=queues"
        )
        assert "Message published" in admin("publish", "exchange=e", "routing_key=a.b", "payload=hello")
        assert "NOT routed" in admin("publish", "exchange=e", "routing_key=b", "payload=hello")
        (message,) = json.loads(admin("-f", "raw_json", "get", "queue=q", "ackmode=ack_requeue_false"))
        assert message["payload"] == "hello"
        names = json.loads(admin("-f", "raw_json", "list", "queues", "name"))
        assert names == [{"name": "q"}]
        assert "queue purged" in admin("purge", "queue", "name=q")
        assert "binding deleted" in admin(
            "delete", "binding", "source=e", "destination=q", "destination_type=queue", "properties_key=a.%23"
        )
        assert "queue deleted" in admin("delete", "queue", "name=q")
        assert "rabbitmq_version" in admin("-f", "raw_json", "show", "overview")
