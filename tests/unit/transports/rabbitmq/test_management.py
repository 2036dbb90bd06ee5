"""What becomes of the answers of a management API, good and bad. The API here is a real HTTP server on loopback."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.errors import BrokerRefusedError, BrokerUnreachableError, SettingsError, TransportError
from redrive.transports.rabbitmq.found import Permissions
from redrive.transports.rabbitmq.management import (
    ManagementUrl,
    guess_management_url,
    look,
    parse_management_url,
)
from redrive.transports.rabbitmq.url import parse_url

GOOD: Mapping[str, Any] = {
    "/api/overview": {"rabbitmq_version": "3.10.8", "cluster_name": "rabbit@host"},
    "/api/queues/%2F": [
        {"name": "a", "type": "quorum", "arguments": {"x-delivery-limit": 3}, "effective_policy_definition": []},
        {"name": "b", "durable": False, "arguments": {}, "policy": "p", "effective_policy_definition": {"x": 1}},
    ],
    "/api/exchanges/%2F": [
        {"name": "", "type": "direct"},
        {"name": "dlx", "type": "topic", "arguments": {"alternate-exchange": "other"}},
    ],
    "/api/bindings/%2F": [
        {"source": "", "destination": "a", "destination_type": "queue", "routing_key": "a"},
        {"source": "dlx", "destination": "b", "destination_type": "queue", "routing_key": "#"},
    ],
    "/api/policies/%2F": [
        {"name": "mine", "pattern": "^a$", "apply-to": "queues", "priority": 2, "definition": {"max-length": 5}}
    ],
    "/api/operator-policies/%2F": [],
    "/api/nodes": [{"name": "rabbit@host", "mem_alarm": True, "mem_limit": 5, "disk_free_alarm": False}],
    "/api/permissions/%2F/shop": {"configure": "", "write": "^x$", "read": ".*"},
}  # fmt: skip


class Api:
    """A management API that answers what it is told to."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = dict(GOOD)
        self.asked: list[tuple[str, str | None]] = []
        self.claim_token = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                api.asked.append((self.path, self.headers["Authorization"]))
                answer = api.answers.get(path, 404)
                if answer == "wait":
                    api.claim_token.wait(10)
                    answer = 503
                status = answer if isinstance(answer, int) else 200
                body = (
                    answer
                    if isinstance(answer, bytes)
                    else json.dumps({} if status != 200 else answer).encode()
                )
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = parse_management_url(f"http://admin:hunter2@127.0.0.1:{self.server.server_port}")


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    thread = threading.Thread(target=api.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield api
    api.claim_token.set()
    api.server.shutdown()
    api.server.server_close()
    thread.join()


async def test_what_it_tells_becomes_what_was_found(api: Api) -> None:
    found = await look(api.url, "/", "shop")
    assert (found.version, found.cluster, found.vhost, found.user) == ((3, 10, 8), "rabbit@host", "/", "shop")
    assert (found.management, found.operator) == (api.url.place, "admin")
    assert found.queues["a"].definition == {"max-length": 5}, (
        "of the policies that fit, not of old statistics"
    )
    assert (found.queues["a"].policy, found.queues["b"].policy) == ("mine", None)
    assert found.queues["a"].number("delivery-limit") == 3
    assert found.queues["b"].durable is False
    assert list(found.exchanges) == ["dlx"]
    assert found.exchanges["dlx"].alternate == "other"
    assert [(each.exchange, each.destination) for each in found.bindings or ()] == [("dlx", "b")]
    assert found.permissions == Permissions(write="^x$", read=".*")
    assert found.alarms == ("rabbit@host is above its memory limit of 5 bytes",)
    assert found.unseen == ()


async def test_user_and_password_go_as_basic_authentication_and_names_are_escaped(api: Api) -> None:
    api.answers["/api/queues/a%2Fb"] = api.answers["/api/exchanges/a%2Fb"] = []
    api.answers["/api/bindings/a%2Fb"] = api.answers["/api/policies/a%2Fb"] = []
    api.answers["/api/permissions/a%2Fb/sh%40p"] = {}
    await look(api.url, "a/b", "sh@p")
    assert {authorization for _, authorization in api.asked} == {"Basic YWRtaW46aHVudGVyMg=="}


async def test_what_the_user_may_not_see_is_unseen(api: Api) -> None:
    for path in ("/api/policies/%2F", "/api/nodes", "/api/permissions/%2F/shop"):
        api.answers[path] = 401
    found = await look(api.url, "/", "shop")
    assert (found.policies, found.alarms, found.permissions) == (None, None, None)
    assert found.queues["b"].definition == {"x": 1}, "what the queue itself says is better than nothing"
    assert found.unseen == (
        "permissions of the user (needs the tag administrator)",
        "policies set in the last seconds (needs the tag policymaker)",
        "alarms of the nodes (needs the tag monitoring)",
    )


async def test_a_user_without_permissions_has_none_and_one_from_elsewhere_is_unseen(api: Api) -> None:
    del api.answers["/api/permissions/%2F/shop"]
    assert "the user is not in the broker's internal database" in (await look(api.url, "/", "shop")).unseen[0]
    api.answers["/api/users/shop"] = {"name": "shop"}
    assert (await look(api.url, "/", "shop")).permissions == Permissions()


@pytest.mark.parametrize(
    ("path", "answer", "error", "says"),
    [
        ("/api/overview", 401, BrokerRefusedError, "refused the user 'admin' (401 to overview)"),
        ("/api/queues/%2F", 403, BrokerRefusedError, "refused the user 'admin' (403 to queues/%2F)"),
        ("/api/queues/%2F", 404, TransportError, "answered queues/%2F with 404; check the vhost and the URL"),
        ("/api/bindings/%2F", 500, TransportError, "answered bindings/%2F with 500"),
        ("/api/overview", 503, TransportError, "answered overview with 503"),
        ("/api/overview", b"<html>", TransportError, "gave an unexpected answer"),
        ("/api/overview", b'"\xff"', TransportError, "gave an unexpected answer"),
        ("/api/queues/%2F", {"a": 1}, TransportError, "gave an unexpected answer"),
        ("/api/queues/%2F", [{"durable": True}], TransportError, "gave an unexpected answer"),
        ("/api/exchanges/%2F", [1], TransportError, "gave an unexpected answer"),
        ("/api/overview", "wait", BrokerUnreachableError, "did not answer within 0.2 s"),
    ],
)
async def test_a_bad_answer_is_one_line_without_credentials(
    api: Api, path: str, answer: Any, error: type[TransportError], says: str
) -> None:
    api.answers[path] = answer
    with pytest.raises(error) as refused:
        await look(api.url, "/", "shop", timedelta(seconds=0.2 if answer == "wait" else 10))
    assert says in str(refused.value)
    assert api.url.place in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_nobody_there_is_said_so() -> None:
    with pytest.raises(BrokerUnreachableError, match="cannot be reached"):
        await look(parse_management_url("http://127.0.0.1:1"), "/", "shop")


def _answer_once(server: socket.socket, octets: bytes) -> None:
    peer, _ = server.accept()
    with peer:
        peer.recv(65536)
        peer.sendall(octets)


async def test_a_port_that_speaks_something_else_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer_once, args=(server, b"AMQP\x00\x00\x09\x01"))
        thread.start()
        with pytest.raises(TransportError, match=r"does not speak HTTP"):
            await look(parse_management_url(f"http://127.0.0.1:{server.getsockname()[1]}"), "/", "shop")
        thread.join()


@pytest.fixture
def certificate(certificates: Path) -> Path:
    """A certificate for this machine, with its key, in one file."""
    return certificates / "address-and-key.pem"


async def test_over_tls_it_is_asked_with_the_authority_of_the_brokers_url(
    api: Api, certificate: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    api.server.socket = context.wrap_socket(api.server.socket, server_side=True)
    broker = parse_url(f"amqps://admin:hunter2@127.0.0.1/?cacertfile={certificate}")
    url = msgspec.structs.replace(guess_management_url(broker), port=api.server.server_port)
    assert (await look(url, "/", "shop")).version == (3, 10, 8)
    stranger = parse_management_url(f"https://admin:hunter2@127.0.0.1:{api.server.server_port}")
    with pytest.raises(BrokerUnreachableError, match="its certificate is not trusted"):
        await look(stranger, "/", "shop")
    plain = socket.create_server(("127.0.0.1", 0))
    with plain:
        thread = threading.Thread(target=_answer_once, args=(plain, b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        thread.start()
        with pytest.raises(BrokerUnreachableError, match="TLS handshake with"):
            await look(msgspec.structs.replace(url, port=plain.getsockname()[1]), "/", "shop")
        thread.join()


@pytest.mark.parametrize(
    ("text", "place", "user", "password"),
    [
        ("http://host", "http://host:15672", "guest", "guest"),
        ("https://host", "https://host:15671", "guest", "guest"),
        ("http://u:p%40@host:8080/rabbit/", "http://host:8080/rabbit", "u", "p@"),
        ("http://host:15672/api", "http://host:15672", "guest", "guest"),
        ("http://u@[::1]:15672", "http://[::1]:15672", "u", ""),
    ],
)
def test_a_url_is_read(text: str, place: str, user: str, password: str) -> None:
    url = parse_management_url(text)
    assert (url.place, url.user, url.password) == (place, user, password)


@pytest.mark.parametrize(
    "text",
    ["", "host", "amqp://host", "http://", "http://u:hunter2/x@host", "http://u:p@host:hunter2", "http://h/?hunter2"],
)  # fmt: skip
def test_a_url_that_is_none_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(
        SettingsError, match="management URL: write http://user:password@host:15672"
    ) as refused:
        parse_management_url(text)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("broker", "place"),
    [
        ("amqp://u:p@host:5673/v", "http://host:15672"),
        ("amqp://u:p@one,two/v", "http://one:15672"),
        ("amqps://u:p@host/v", "https://host:15671"),
        ("amqp://u:p@[::1]/v", "http://[::1]:15672"),
    ],
)
def test_it_is_guessed_from_the_brokers_url(broker: str, place: str) -> None:
    url = guess_management_url(parse_url(broker))
    assert (url.place, url.user, url.password) == (place, "u", "p")


def test_a_password_stands_in_no_repr() -> None:
    url = ManagementUrl(host="h", port=1, user="u", password="hunter2")
    assert "hunter2" not in f"{url!r} {url} {url.__rich_repr__()}"
