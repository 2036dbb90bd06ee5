"""What a page of another site can make a browser send is refused; what programs send is not."""

from typing import Any

import pytest

from redrive.browser_guard import BrowserGuard


async def status(
    method: str = "GET", headers: dict[str, str] | None = None, *, hosts: tuple[str, ...] = ()
) -> int:
    """How a request is answered: 200 if it reaches the application."""
    given = {"Host": "localhost:15672", **(headers or {})}
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "method": method,
        "server": ("192.168.7.7", 15672),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
    }
    await BrowserGuard(app, hosts, setting="server.allowed_hosts")(scope, receive, send)
    found: int = sent[0]["status"]
    return found


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1", "127.8.9.1:80", "[::1]:8642", "192.168.7.7:15672",
     "rabbit:15672"],
)  # fmt: skip
async def test_host_of_this_server_is_answered(host: str) -> None:
    assert await status("GET", {"Host": host}, hosts=("Rabbit",)) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:15672", "localhost.evil.example", "192.168.7.8", "[2001:db8::1]", "",
     "127.0.0.1.nip.io", "localhost@evil"],
)  # fmt: skip
async def test_any_other_host_is_refused_so_that_dns_rebinding_fails(host: str) -> None:
    assert await status("GET", {"Host": host}, hosts=("rabbit",)) == 403


@pytest.mark.parametrize(
    ("headers", "method", "expected"),
    [
        ({"Origin": "http://localhost:15672"}, "POST", 200),
        ({"Origin": "http://localhost:3000"}, "POST", 403),
        ({"Origin": "https://evil.example"}, "GET", 403),
        ({"Origin": "null"}, "POST", 403),
        ({"Origin": "http://[evil"}, "POST", 403),
        ({"Sec-Fetch-Site": "same-origin"}, "POST", 200),
        ({"Sec-Fetch-Site": "none"}, "GET", 200),
        ({"Sec-Fetch-Site": "cross-site"}, "POST", 403),
        ({"Sec-Fetch-Site": "same-site"}, "POST", 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, "GET", 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, "GET", 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, "POST", 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, "GET", 403),
        ({"Origin": "https://evil.example", "Access-Control-Request-Method": "PUT"}, "OPTIONS", 403),
    ],
)  # fmt: skip
async def test_pages_of_other_sites_are_refused(headers: dict[str, str], method: str, expected: int) -> None:
    assert await status(method, headers) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("application/msgpack", 200),
        ("application/octet-stream", 200),
        ("application/x-www-form-urlencoded", 415),  # what `curl -d` sends by itself
        ("text/plain;charset=UTF-8", 415),
        ("TEXT/PLAIN", 415),
        ("multipart/form-data; boundary=x", 415),
        (None, 415),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("body", [{"Content-Length": "2"}, {"Transfer-Encoding": "chunked"}])
async def test_body_needs_a_type_that_no_form_can_send(
    method: str, kind: str | None, body: dict[str, str], expected: int
) -> None:
    headers = body if kind is None else {**body, "Content-Type": kind}
    assert await status(method, headers) == expected


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "POST"])
async def test_request_without_a_body_needs_no_type(method: str) -> None:
    assert await status(method, {"Content-Length": "0"}) == 200
    assert await status(method) == 200
