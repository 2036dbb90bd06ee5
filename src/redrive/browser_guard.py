"""Refuse requests that a page of another site can make a browser send.

A browser on this machine reaches ports that are closed to the rest of the world. Any page may make it send requests
there, and cannot read the answers; a host name of the page's own that is made to resolve to 127.0.0.1 (DNS rebinding)
lifts even that. Three checks, none of which a page can get around:

- `Host` is a name or address of this machine, the address that was connected to, or a name from the settings;
- `Origin` and `Sec-Fetch-Site`, which browsers add and pages cannot change, do not name another site. A link that
  is followed by a person (a top-level GET) is let through: the other site cannot read its answer;
- a body has a content type, and none of those that a form or a script of another site may send without asking first.
"""

import ipaddress
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

_FORMS: Final = frozenset({"", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
_SAFE: Final = frozenset({"GET", "HEAD"})
_OWN: Final = frozenset({b"same-origin", b"none"})


class Refuse(Protocol):
    """How a refusal is written."""

    def __call__(self, status: HTTPStatus, reason: str) -> Response:
        """The answer."""


def _in_text(status: HTTPStatus, reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", status)


class BrowserGuard:
    """An application that only programs and pages of this server can use."""

    def __init__(
        self, app: ASGIApp, hosts: Iterable[str] = (), *, setting: str, refuse: Refuse = _in_text
    ) -> None:
        self._app = app
        self._hosts = frozenset(_canonical(host) for host in hosts)
        self._setting = setting  # where further names are added
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        app: ASGIApp = self._app
        if scope["type"] == "http" and (problem := self._problem(scope)) is not None:
            app = self._refuse(*problem)
        await app(scope, receive, send)

    def _problem(self, scope: Scope) -> tuple[HTTPStatus, str] | None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        hosts = [value.decode("latin-1") for value in headers.get(b"host", ())]
        if len(hosts) != 1 or not self._is_own(name_in(hosts[0]), scope):
            shown = hosts[0] if len(hosts) == 1 else ""
            return HTTPStatus.FORBIDDEN, (
                f"the host name '{shown[:100]}' is not one of this server; use 127.0.0.1, localhost or the address that"
                f" it listens on, or add the name to {self._setting}"
            )
        if self._is_cross_site(scope["method"], headers, hosts[0]):
            return HTTPStatus.FORBIDDEN, "requests from pages of other sites are refused"
        if scope["method"] not in _SAFE and _has_body(headers) and _content_type(headers) in _FORMS:
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, (
                "a request with a body needs its content type, and not that of a form: add the header"
                " 'Content-Type: application/json'"
            )
        return None

    def _is_own(self, name: str, scope: Scope) -> bool:
        server = scope.get("server")
        return is_loopback_name(name) or name in self._hosts or (server is not None and name == server[0])

    def _is_cross_site(self, method: str, headers: dict[bytes, list[bytes]], host: str) -> bool:
        for origin in headers.get(b"origin", ()):
            try:
                netloc = urlsplit(origin.decode("latin-1")).netloc
            except ValueError:
                return True
            if netloc.lower() != host.lower():
                return True
        sites = headers.get(b"sec-fetch-site", ())
        if all(site in _OWN for site in sites):
            return False
        is_link = headers.get(b"sec-fetch-mode") == [b"navigate"] and headers.get(b"sec-fetch-dest") == [
            b"document"
        ]
        return not (method in _SAFE and is_link)


def name_in(host: str) -> str:
    """The name or address in a `Host` header, without the port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return _canonical(name)


def is_loopback_name(name: str) -> bool:
    """Whether it is `localhost` or an address of this machine alone."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _canonical(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def _has_body(headers: dict[bytes, list[bytes]]) -> bool:
    return b"transfer-encoding" in headers or any(
        length.strip(b"0 ") for length in headers.get(b"content-length", ())
    )


def _content_type(headers: dict[bytes, list[bytes]]) -> str:
    types = headers.get(b"content-type", ())
    return types[0].decode("latin-1").partition(";")[0].strip().lower() if len(types) == 1 else ""
