"""What the server answers over HTTP, on a real socket."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.responses import Response

from redrive.errors import (
    LetterNotFoundError,
    QueryError,
    ServiceError,
    SettingsError,
    StoreAccessError,
    StoreClosedError,
    StoreError,
)
from redrive.listening import Listening
from redrive.serve.condition import Condition
from redrive.serve.figures import Figures
from redrive.serve.web import check_loopback, listen, start_web
from redrive.settings import StoreOptions
from redrive.stores import open_store, wire
from redrive.stores.memory import MemoryStore
from redrive.stores.query import Condition as Where, Op, Query
from redrive.stores.remote import RemoteStore
from redrive.stores.server_key import StoreAccess, open_access, proof_of
from redrive.testing.factories import a_failure, a_letter
from tests.unit.serve.test_crew import Place


class Served:
    def __init__(self, place: Place, web: Listening, access: StoreAccess) -> None:
        self.place = place
        self.web = web
        self.access = access

    async def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        def exchange() -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", self.web.port, timeout=10)
            try:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                connection.request(method, path, body, named)
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                connection.close()

        return await asyncio.to_thread(exchange)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    place = Place(tmp_path)
    await place.open()
    condition = Condition(place.store, place.transport, lambda: (), place.clock)
    access = open_access(tmp_path, None)
    web = await start_web(
        place.store, condition, Figures(place.store, place.crew, place.clock), "127.0.0.1", 0, access
    )
    served = Served(place, web, access)
    yield served
    await served.web.close()


OURS = {"Content_Type": "application/msgpack"}


async def test_health_is_200_or_503_with_the_reason(served: Served) -> None:
    status, body = await served.ask("GET", "/health")
    assert (status, json.loads(body)["status"]) == (200, "ok")
    served.place.transport.broker.leave()
    status, body = await served.ask("GET", "/health")
    assert (status, json.loads(body)["status"]) == (503, "failing")
    served.place.transport.broker.come_back()
    assert (await served.ask("GET", "/health"))[0] == 200


async def test_metrics_are_prometheus_text_and_503_without_a_store(served: Served) -> None:
    status, body = await served.ask("GET", "/metrics")
    assert status == 200
    assert b"# TYPE redrive_letters_collected_total counter" in body
    await served.place.store.close()
    served.place.clock.advance(
        served.place.crew._settings.recover.poll_interval
    )  # what was known is no longer fresh
    status, body = await served.ask("GET", "/metrics")
    assert status == 503
    assert body.count(b"\n") == 1


async def test_labels_of_metrics_are_cut_and_have_no_control_characters(served: Served) -> None:
    long = "E" * 60_000
    for at, error_type in enumerate((f"{long}1", f"{long}2", "Bad\x1b[31mError", "Evil\u202eError")):
        letter = a_letter(f"orders/{at}", failure=a_failure(error_type=error_type))
        await served.place.store.add([letter])
    status, body = await served.ask("GET", "/metrics")
    text = body.decode()
    assert status == 200
    assert len(text) < 40_000
    assert "\x1b" not in text
    assert "\u202e" not in text
    rows = [line for line in text.splitlines() if line.startswith("redrive_backlog_by_error_type{")]
    assert sorted(line.rpartition(" ")[2] for line in rows) == [
        "1.0",
        "1.0",
        "2.0",
    ]  # two share what is shown
    assert any(r"Bad\\x1b[31mError" in line for line in rows)


@pytest.mark.parametrize("name", ["evil.example", "evil.example:80", "169.254.1.1", "[2001:db8::1]", ""])
async def test_who_calls_us_by_a_foreign_name_is_refused(served: Served, name: str) -> None:
    status, _ = await served.ask("GET", "/health", Host=name)
    assert status == 403


@pytest.mark.parametrize("name", ["localhost", "localhost:99", "127.0.0.1:1", "[::1]:8642"])
async def test_names_of_this_machine_will_do(served: Served, name: str) -> None:
    status, _ = await served.ask("GET", "/health", Host=name)
    assert status == 200


async def test_questions_that_are_none_are_refused_with_the_reason(served: Served) -> None:
    authorization = f"Bearer {served.access.key}"
    for path, body, headers, status, words in (
        ("/store/load", b"\xc1", OURS, 400, "cannot be read"),
        ("/store/load", msgspec.msgpack.encode({"ids": 3}), OURS, 400, "cannot be read"),
        ("/store/load", msgspec.msgpack.encode({"ids": [3]}), OURS, 400, "an id is text"),
        ("/store/laod", b"\x80", OURS, 400, "did you mean 'load'?"),
        ("/store/close", b"\x80", OURS, 400, "no verb 'close'"),
        ("/store/__init__", b"\x80", OURS, 400, "no verb"),
        ("/store/damage", b"\x80", {"Content_Type": "application/json"}, 400, "content type"),
        ("/store/load", msgspec.msgpack.encode({"ids": ["x"]}), OURS, 404, "no letter has the id"),
    ):
        found, answer = await served.ask("POST", path, body, Authorization=authorization, **headers)
        assert found == status, path
        assert words in msgspec.msgpack.decode(answer)["text"]
    for headers in ({}, {"Content_Type": "text/plain"}):
        assert (await served.ask("POST", "/store/damage", b"\x80", **headers))[0] == 415
    assert (await served.ask("GET", "/store/damage"))[0] == 405
    assert (await served.ask("GET", "/nothing"))[0] == 404


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org", ""])
def test_it_listens_on_loopback_only(host: str) -> None:
    with pytest.raises(SettingsError, match=r"server\.host = .* is not a loopback address"):
        check_loopback(host)
    for good in ("127.0.0.1", "127.0.0.9", "::1", "localhost"):
        check_loopback(good)


async def test_a_port_that_is_taken_is_told(served: Served) -> None:
    place = served.place
    with pytest.raises(ServiceError, match=rf"cannot listen on 127\.0\.0\.1:{served.web.port}: "):
        await start_web(
            place.store,
            Condition(place.store, place.transport, lambda: (), place.clock),
            Figures(place.store, place.crew, place.clock),
            "127.0.0.1",
            served.web.port,
            served.access,
        )


# --- the key of the store ----------------------------------------------------------------------------------


EVERY_VERB = sorted(wire.VERBS)


@pytest.mark.parametrize("verb", EVERY_VERB)
async def test_store_verb_without_the_key_is_refused(served: Served, verb: str) -> None:
    for authorization in ({}, {"Authorization": "Bearer "}, {"Authorization": f"Basic {served.access.key}"}):
        status, answer = await served.ask("POST", f"/store/{verb}", b"\x80", **OURS, **authorization)
        assert status == 401
        told = msgspec.msgpack.decode(answer)
        assert told["kind"] == "StoreAccessError"
        assert str(served.access.file) in told["text"]
        assert "REDRIVE_SERVER_KEY" in told["text"]
        assert served.access.key not in told["text"]


@pytest.mark.parametrize(
    "change", [str.upper, str.lower, lambda key: key[:-1], lambda key: key + "x", lambda _: "ü"]
)
async def test_store_with_another_key_is_refused(served: Served, change: Callable[[str], str]) -> None:
    key = change(served.access.key)
    if not key.isascii():
        key = key.encode().decode("latin-1")
    status, _ = await served.ask("POST", "/store/count", b"\x80", Authorization=f"Bearer {key}", **OURS)
    assert status == 401


async def test_remote_store_finds_the_key_in_the_server_s_directory(served: Served) -> None:
    store = await RemoteStore.open(served.web.url)
    assert await store.count() == 0
    await store.close()


async def test_remote_store_uses_the_key_of_the_settings_when_it_cannot_read_the_file(served: Served) -> None:
    assert served.access.file is not None
    served.access.file.unlink()
    with pytest.raises(StoreAccessError, match=r"this account cannot read .*server\.key; run as the account"):
        await RemoteStore.open(served.web.url)
    store = await open_store(StoreOptions(url=served.web.url), server_key=served.access.key)
    assert await store.count() == 0
    await store.close()
    with pytest.raises(StoreAccessError, match=r"REDRIVE_SERVER_KEY.* is not that of the server"):
        await RemoteStore.open(served.web.url, "another-key-of-somebody")


async def test_remote_store_does_not_send_the_key_to_a_server_that_cannot_prove_it(served: Served) -> None:
    assert served.access.file is not None
    seen: list[str] = []

    async def impostor(scope: Any, _receive: Any, send: Any) -> None:
        seen.extend(value.decode() for name, value in scope["headers"] if name == b"authorization")
        proof = wire.KeyProof(proof_of("a guess", "nonce"), str(served.access.file))
        await Response(msgspec.json.encode(proof))(scope, _receive, send)

    web = await listen(impostor, "127.0.0.1", 0)
    with pytest.raises(StoreAccessError, match="another program answers there"):
        await RemoteStore.open(web.url)
    with pytest.raises(StoreAccessError, match="is not that of the server"):
        await RemoteStore.open(web.url, served.access.key)
    await web.close()
    assert seen == []


async def test_remote_store_reads_no_other_file_than_a_key_file(served: Served, tmp_path: Path) -> None:
    secret = tmp_path / "id_ed25519"
    secret.write_text("x" * 40)

    async def impostor(scope: Any, receive: Any, send: Any) -> None:
        nonce = scope["query_string"].decode().removeprefix("nonce=")
        proof = wire.KeyProof(proof_of("x" * 40, nonce), str(secret))
        await Response(msgspec.json.encode(proof))(scope, receive, send)

    web = await listen(impostor, "127.0.0.1", 0)
    with pytest.raises(StoreAccessError, match="needs the key of its server"):
        await RemoteStore.open(web.url)
    await web.close()


async def test_remote_store_names_a_server_that_proves_nothing(served: Served) -> None:
    web = await listen(Response("hello"), "127.0.0.1", 0)
    with pytest.raises(StoreError, match="did not prove its key"):
        await RemoteStore.open(web.url)
    await web.close()


@pytest.mark.parametrize("nonce", ["", "short", "x" * 129])
async def test_proof_needs_a_nonce_of_some_length(served: Served, nonce: str) -> None:
    assert (await served.ask("GET", f"/store/proof?nonce={nonce}"))[0] == 400


# --- the store from another process ------------------------------------------------------------------------


async def test_errors_come_back_as_what_they_were(served: Served) -> None:
    store = await open_store(StoreOptions(url=served.web.url))
    assert isinstance(store, RemoteStore)
    with pytest.raises(LetterNotFoundError, match="no letter has the id 'x'"):
        await store.load(["x"])
    with pytest.raises(QueryError):
        await store.tally("body")
    await served.place.store.close()
    with pytest.raises(StoreClosedError):
        await store.count()
    await store.close()


async def test_what_the_server_cannot_do_is_told_and_logged(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    store = await RemoteStore.open(served.web.url)
    nonsense = Query((Where("no such field", Op.IS, ("x",)),))
    await served.place.store.add([a_letter()])
    with pytest.raises(StoreError, match="internal server error: KeyError; see the log of the server"):
        await store.count(nonsense)
    assert "store request failed verb=count" in caplog.text
    assert await store.count() == 1  # and goes on
    await store.close()


async def test_a_server_that_is_gone_is_told_in_one_line_and_found_when_it_is_back(served: Served) -> None:
    store = await RemoteStore.open(served.web.url)
    assert await store.count() == 0
    await served.web.close()
    with pytest.raises(
        StoreError,
        match=rf"the store at {served.web.url} does not answer: .*check that redrive serve is running",
    ):
        await store.count()
    place = served.place
    served.web = await start_web(
        place.store,
        Condition(place.store, place.transport, lambda: (), place.clock),
        Figures(place.store, place.crew, place.clock),
        "127.0.0.1",
        served.web.port,
        served.access,
    )
    assert await store.count() == 0
    await store.close()


async def test_an_address_that_is_no_server_is_refused() -> None:
    for url in (
        "http://",
        "http:///x",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:1/path",
        "http:127.0.0.1",
    ):
        with pytest.raises(
            SettingsError, match=r"is not the URL of a server; write http://127\.0\.0\.1:8642"
        ):
            await open_store(StoreOptions(url=url))
    with pytest.raises(StoreError, match="does not answer"):
        await open_store(StoreOptions(url="http://127.0.0.1:1"))


async def test_a_memory_store_is_shared_by_all_who_ask(served: Served) -> None:
    one, two = await RemoteStore.open(served.web.url), await RemoteStore.open(served.web.url)
    await one.add([a_letter()])
    claims = await asyncio.gather(*(store.claim("w", broker="rabbitmq") for store in (one, two) * 5))
    assert sum(map(len, claims)) == 1
    await one.close()
    await two.close()
    assert isinstance(served.place.store, MemoryStore)
    assert await served.place.store.count() == 1


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("journal", {"letter_id": "x", "after": 2**63, "limit": 1}),
        ("items", {"operation_id": "x", "after": 2**64 - 1, "limit": 1}),
        ("measure_change_log", {"after": 2**63, "limit": 1}),
    ],
)
async def test_number_beyond_64_bits_is_refused(
    served: Served, verb: str, arguments: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    key = {"Authorization": f"Bearer {served.access.key}"}
    status, answer = await served.ask(
        "POST", f"/store/{verb}", msgspec.msgpack.encode(arguments), **OURS, **key
    )
    assert status == 400
    assert "cannot be read" in msgspec.msgpack.decode(answer)["text"]
    assert "Traceback" not in caplog.text


async def test_aborted_upload_is_not_an_error(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", served.web.port)
    writer.write(
        b"POST /store/load HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"
        b"Authorization: Bearer %s\r\nContent-Length: 100\r\n\r\n\x81" % served.access.key.encode()
    )
    await writer.drain()
    async with asyncio.timeout(30):
        while not served.web._web.server_state.tasks:  # noqa: ASYNC110  the request has arrived
            await asyncio.sleep(0.001)
        writer.transport.abort()
        while served.web._web.server_state.tasks:  # noqa: ASYNC110  and is over
            await asyncio.sleep(0.001)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
