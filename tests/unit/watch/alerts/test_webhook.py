"""An alert arrives at a real HTTP server, or it is said why not, without a word that is secret."""

import asyncio
import hashlib
import hmac
import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given, settings

from redrive.errors import NotifyError, SettingsError
from redrive.testing import ManualClock
from redrive.watch.alerts import shapes
from redrive.watch.alerts.alert import Alert
from redrive.watch.alerts.webhook import WebhookNotifier
from tests.unit.watch.alerts.examples import ORDINARY, alerts
from tests.unit.watch.alerts.servers import Hook, forever, raw_server, web_server

KEY = "0123456789abcdef0123456789abcdef"
PATH = "/services/T00000000/B11111111/xXsecretXx?api-version=1&sig=s3cr3t%2Fs1gn"
SECRETS = ["T00000000", "B11111111", "xXsecretXx", "s3cr3t", "s1gn", "services"]


async def send(url: str, shape: str = "json", told: Alert = ORDINARY, **options: Any) -> None:
    notifier = WebhookNotifier(url, shape, **options)
    try:
        await notifier.send(told)
    finally:
        await notifier.close()


async def failure(url: str, **options: Any) -> NotifyError:
    """How it fails; nothing secret is in it, nor in what it came from."""
    with pytest.raises(NotifyError) as caught:
        await send(url + PATH, **options)
    error = caught.value
    assert str(error).startswith(f"{url} ")
    assert not [each for each in SECRETS if each in str(error)]
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    return error


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("json", shapes.as_json(ORDINARY)),
        ("slack", shapes.as_slack(ORDINARY)),
        ("teams", shapes.as_teams(ORDINARY)),
        ("alertmanager", shapes.as_alertmanager(ORDINARY)),
    ],
)
async def test_each_shape_arrives_as_json_at_the_very_address_that_was_given(
    shape: str, expected: Any
) -> None:
    hook = Hook()
    async with web_server(hook) as url:
        await send(url + PATH, shape)
    ((request, _),) = hook.requests
    assert (request.method, request.raw_path) == ("POST", PATH)
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["User-Agent"] == "redrive"
    assert hook.bodies == [expected]
    assert "X-Redrive-Signature" not in request.headers


async def test_pagerduty_gets_the_key_of_the_service() -> None:
    hook = Hook(web.Response(status=202))
    async with web_server(hook) as url:
        await send(url, "pagerduty", routing_key=KEY)
    assert hook.bodies == [shapes.as_pagerduty(ORDINARY, KEY)]


async def test_headers_are_added_and_the_body_stays_json() -> None:
    hook = Hook()
    async with web_server(hook) as url:
        await send(
            url, headers={"authorization": "Bearer xyz", "content-type": "text/plain", "X-Team": "ops"}
        )
    ((request, _),) = hook.requests
    assert request.headers["Authorization"] == "Bearer xyz"
    assert request.headers["X-Team"] == "ops"
    assert request.headers.getall("Content-Type") == ["application/json"]


async def test_a_user_in_the_address_is_sent_as_such_and_is_not_told() -> None:
    hook = Hook(web.Response(status=401, text="hunter22 is wrong"))
    async with web_server(hook) as url:
        with pytest.raises(NotifyError) as caught:
            await send(url.replace("://", "://redrive:hunter22@"))
    assert hook.requests[0][0].headers["Authorization"].startswith("Basic ")
    assert str(caught.value) == f"{url} answered 401: … is wrong"


async def test_the_signature_is_that_of_the_bytes_which_arrive() -> None:
    hook = Hook()
    async with web_server(hook) as url:
        await send(url, secret="s3cr3t", told=ORDINARY)
    ((request, body),) = hook.requests
    expected = hmac.new(b"s3cr3t", body, hashlib.sha256).hexdigest()
    assert request.headers["X-Redrive-Signature"] == f"sha256={expected}"


async def test_one_session_serves_all_alerts_and_is_opened_again_after_closing() -> None:
    hook = Hook()
    async with web_server(hook) as url:
        notifier = WebhookNotifier(url)
        await notifier.close()
        await notifier.send(ORDINARY)
        session = notifier._session
        await notifier.send(ORDINARY)
        assert notifier._session is session
        await notifier.close()
        await notifier.close()
        assert session is not None
        assert session.closed
        await notifier.send(ORDINARY)
        await notifier.close()
    assert len(hook.requests) == 3


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_every_2xx_is_success(status: int) -> None:
    hook = Hook(web.Response(status=status))
    async with web_server(hook) as url:
        await send(url)
    assert len(hook.requests) == 1


@pytest.mark.parametrize(
    ("status", "is_permanent"),
    [(400, True), (401, True), (403, True), (404, True), (410, True), (413, True),
     (408, False), (429, False), (500, False), (502, False), (503, False), (504, False)],
)  # fmt: skip
async def test_the_status_says_whether_another_attempt_may_help(status: int, is_permanent: bool) -> None:
    hook = Hook(web.Response(status=status, text="no_service"))
    async with web_server(hook) as url:
        error = await failure(url)
    assert error.is_permanent is is_permanent
    assert str(error) == f"{url} answered {status}: no_service"
    assert error.retry_after is None


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("7", timedelta(seconds=7)),
        ("0", timedelta(0)),
        ("99999999", timedelta(seconds=99_999_999)),
        ("Wed, 11 Feb 2026 12:01:30 GMT", timedelta(seconds=90)),
        ("Wed, 11 Feb 2026 11:00:00 GMT", timedelta(0)),
        ("Wed, 11 Feb 2026 12:00:10 -0000", timedelta(seconds=10)),
        ("soon", None),
        ("-1", None),
        ("9" * 400, None),
        ("", None),
    ],
)
async def test_who_asks_to_be_left_alone_says_for_how_long(header: str, wait: timedelta | None) -> None:
    hook = Hook(web.Response(status=429, headers={"Retry-After": header}))
    async with web_server(hook) as url:
        error = await failure(url, clock=ManualClock())
    assert error.retry_after == wait
    assert not error.is_permanent


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(status: int) -> None:
    elsewhere = Hook()
    async with web_server(elsewhere) as other:
        hook = Hook(web.Response(status=status, headers={"Location": other}))
        async with web_server(hook) as url:
            error = await failure(url)
    assert error.is_permanent
    assert "redirects are not followed" in str(error)
    assert not elsewhere.requests


@pytest.mark.parametrize(
    "said",
    [
        f"Cannot POST {PATH}",
        "no route for /services/T00000000/B11111111/xXsecretXx",
        "sig s3cr3t/s1gn is wrong",
        "bad token tok-123456 of Bearer tok-123456",
        "x" * 4080 + "xXsecretXx",
        "x" * 4090 + "xXsecretXx" * 100,
        "xXsecretXx" * 1000,
    ],
)
async def test_an_answer_that_repeats_the_address_or_a_header_is_quoted_without_it(said: str) -> None:
    hook = Hook(web.Response(status=404, text=said))
    async with web_server(hook) as url:
        error = await failure(url, headers={"Authorization": "Bearer tok-123456"})
    assert "tok-123456" not in str(error)
    assert len(str(error)) < 300


async def test_what_is_hidden_is_hidden_where_reading_ends_in_the_midst_of_it() -> None:
    hook = Hook(web.Response(status=404, text=PATH * 100))
    async with web_server(hook) as url:
        error = await failure(url)
    assert set(str(error).removeprefix(f"{url} answered 404")) <= set(": …")


async def test_what_is_hidden_is_hidden_however_the_answer_comes_in_pieces() -> None:
    async def pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        said = b"Cannot POST /services/T00000000/B11111111/xXsecretXx"
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(said))
        for n in range(0, len(said), 5):
            writer.write(said[n : n + 5])
            await writer.drain()
            await asyncio.sleep(0.001)

    async with raw_server(pieces) as port:
        error = await failure(f"http://127.0.0.1:{port}")
    assert str(error).endswith(" answered 404: Cannot POST …")


async def test_an_answer_that_ends_too_early_still_has_its_status() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 1000\r\n\r\n/services/T0000")
        await writer.drain()

    async with raw_server(cut) as port:
        error = await failure(f"http://127.0.0.1:{port}")
    assert error.is_permanent
    assert str(error).endswith(" answered 404")


async def test_an_answer_of_many_lines_is_quoted_on_one() -> None:
    hook = Hook(web.Response(status=500, body=b"<html>\r\n<b>\x1b[31mBad\x00</b> \xff" + b"x" * 100_000))
    async with web_server(hook) as url:
        error = await failure(url)
    assert str(error).isprintable()
    assert str(error).startswith(f"{url} answered 500: <html> <b>\\x1b[31mBad\\x00</b> �xxx")


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example.org ESMTP /services/T00000000\r\n\x00\xff\r\n\r\n")
    await writer.drain()
    await reader.read(100)


@pytest.mark.parametrize("talk", [hang_up, babble])
async def test_who_hangs_up_or_does_not_speak_http_may_be_asked_again(talk: Any) -> None:
    async with raw_server(talk) as port:
        error = await failure(f"http://127.0.0.1:{port}")
    assert not error.is_permanent
    assert "cannot be reached, or did not answer in HTTP" in str(error)


async def test_who_does_not_answer_is_not_waited_for() -> None:
    async with raw_server(forever) as port:
        error = await failure(f"http://127.0.0.1:{port}", timeout=timedelta(milliseconds=100))
    assert not error.is_permanent
    assert "did not answer within 0.1 s" in str(error)


async def test_where_nobody_listens_another_attempt_may_help() -> None:
    async with raw_server(forever) as port:
        pass
    error = await failure(f"http://127.0.0.1:{port}")
    assert not error.is_permanent
    assert "cannot be reached" in str(error)


@settings(max_examples=10)
@given(told=alerts)
def test_whatever_the_names_are_it_arrives_as_json(told: Alert) -> None:
    async def scenario() -> None:
        hook = Hook()
        async with web_server(hook) as url:
            for shape in ("json", "slack", "teams", "alertmanager"):
                await send(url, shape, told)
        assert [body for _, body in hook.requests] == [
            msgspec.json.encode(make(told))
            for make in (shapes.as_json, shapes.as_slack, shapes.as_teams, shapes.as_alertmanager)
        ]
        assert all(json.loads(body) for _, body in hook.requests)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"shape": "slak"}, "unknown shape 'slak'; did you mean 'slack'"),
        ({"shape": "pagerduty"}, "a routing key, and requires it"),
        ({"shape": "slack", "routing_key": KEY}, "only the shape pagerduty takes a routing key"),
        ({"shape": "slack", "secret": "x"}, "only the shape json can be signed"),
        ({"secret": ""}, "the secret must not be empty"),
        ({"timeout": timedelta(0)}, "the timeout must be longer than 0"),
        ({"headers": {"X-A": "b\r\nX-C: d"}}, "'X-A' is not a valid header, or its value has several lines"),
        ({"headers": {"X A": "b"}}, "'X A' is not a valid header"),
        ({"url": "ftp://hooks.example.org/xXsecretXx"}, "not a valid URL"),
        ({"url": "https:///xXsecretXx"}, "not a valid URL"),
        ({"url": "https://hooks.example.org:http/xXsecretXx"}, "not a valid URL"),
        ({"url": "https://hooks.example.org/xXsecretXx\n"}, "not a valid URL"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=f"^webhook: .*{why}") as caught:
        WebhookNotifier(**{"url": "https://hooks.example.org/xXsecretXx", **options})
    assert "xXsecretXx" not in str(caught.value)


def test_a_notifier_is_named_after_its_shape_unless_it_has_a_name() -> None:
    assert WebhookNotifier("https://x.example").name == "json"
    assert WebhookNotifier("https://x.example", "slack", name="ops").name == "ops"
    assert "x.example/secret" not in repr(WebhookNotifier("https://x.example/secret"))
