"""How does a request become an answer?

Find the route, see who asks, read the body, let the handler do its work in one step, and let the broker end its turn
before the answer goes out, so that what was asked for has happened and, where there is a journal, is on disk. What
goes wrong inside is logged here and told to nobody.
"""

import asyncio
import logging
import time
from base64 import b64decode
from email.utils import formatdate
from itertools import chain
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from redrive.broker.management.answers import Answer, RefusalError, bad_request, no_such_object
from redrive.broker.management.ask import Ask, Desk
from redrive.broker.management.lists import LazyRows
from redrive.broker.management.routes import OPEN, Found, find

MAX_BODY: Final = 20 * 1024 * 1024  # a definitions file of a large broker fits
_WHO: Final = {"WWW-Authenticate": 'Basic realm="RabbitMQ Management"'}
_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}
_SAFE: Final = frozenset({"GET", "HEAD"})
_PORTION: Final = 0.005  # seconds of a request's work before the broker goes on
_PATIENCE: Final = 30.0  # seconds that a disk may take


class LoginError(RefusalError):
    """The client has to say who it is, or is not who it says."""


class App:
    """The ASGI application."""

    def __init__(self, desk: Desk, max_body: int = MAX_BODY) -> None:
        self._desk = desk
        self._max_body = max_body
        self._log = logging.getLogger("redrive.broker.management")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except LoginError as error:
            answer = error.answer if error.reason else Answer(401, headers=_WHO)
        except RefusalError as error:
            answer = error.answer
        except ClientDisconnect:
            return
        except Exception:  # noqa: BLE001  whatever it is, the client gets an answer and the log the reason
            self._log.exception("%s %s failed", request.method, scope.get("raw_path", b"").decode("latin-1"))
            answer = Answer(500, {"error": "internal_server_error", "reason": "see the broker's log"})
        await response(answer)(scope, receive, send)

    async def _answer(self, request: Request) -> Answer:
        path = request.scope.get("raw_path", b"").decode("latin-1").partition("?")[0]
        found = find(path)
        if found is None:
            raise no_such_object()
        allowed = ", ".join(["HEAD"] * ("GET" in found.handlers) + [*found.handlers, "OPTIONS"])
        if request.method == "OPTIONS":
            return Answer(200, headers={"Allow": allowed})
        handler = found.handlers.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            return Answer(405, headers={"Allow": allowed})
        address = request.client.host if request.client else ""
        user = "" if found.pattern in OPEN else self._log_in(request, address)
        ask = await self._ask(request, found, user, address)
        if user:
            ask.need("management")
        if request.method in _SAFE:
            return await _made(handler(ask))
        try:
            answer = handler(ask)
        finally:
            self._desk.server.schedule_turn()  # half of something may have been done before it was refused
            await self._finish(ask)
        await self._done()
        return answer

    def _log_in(self, request: Request, address: str) -> str:
        """Who asks. As over AMQP, `guest` has to come from this machine."""
        kind, _, encoded = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "basic":
            raise LoginError(401, "not_authorized", "")
        try:
            name, _, password = b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            raise LoginError(401, "not_authorized", "Not_Authorized") from None
        broker = self._desk.server.broker
        accepted = broker.users.check(name, password) and broker.users.may_connect(name, address)
        broker.logins["http", accepted] += 1
        if not accepted:
            self._log.warning("login refused user=%s client=%s", name, address)
            raise LoginError(401, "not_authorized", "Not_Authorized")
        return name

    async def _ask(self, request: Request, found: Found, user: str, address: str) -> Ask:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body:
                raise bad_request("Exceeded HTTP request body size limit")
        query = dict(parse_qsl(request.url.query, keep_blank_values=True))
        return Ask(self._desk, request.method, found.params, query, bytes(body), user=user, address=address)

    async def _finish(self, ask: Ask) -> None:
        """Do what the handler left to be done in portions."""
        pause_at = time.monotonic() + _PORTION
        for _ in chain.from_iterable(ask.steps):
            if time.monotonic() >= pause_at:
                self._desk.server.schedule_turn()
                await asyncio.sleep(0)
                pause_at = time.monotonic() + _PORTION
        if ask.steps:
            self._desk.server.schedule_turn()

    async def _done(self) -> None:
        """What was asked for has been done, dead letters and all, and is on disk."""
        keep = self._desk.server.broker.keep
        await asyncio.sleep(0)  # the turn ends
        position = keep.last_position()
        try:
            async with asyncio.timeout(_PATIENCE):
                while keep.durable_position() < position:  # noqa: ASYNC110  it ends with the thread that flushes
                    await asyncio.sleep(0.001)
        except TimeoutError:
            raise RefusalError(503, "service_unavailable", "the journal cannot be written to disk") from None


async def _made(answer: Answer) -> Answer:
    """The answer with all its rows."""
    return answer._replace(body=await answer.body.make()) if isinstance(answer.body, LazyRows) else answer


def response(answer: Answer) -> Response:
    """The answer as it is sent."""
    headers = {"Date": formatdate(usegmt=True), **_HEADERS, **answer.headers}
    if answer.body is None:
        return Response(status_code=answer.status, headers=headers)
    if isinstance(answer.body, str):
        return Response(answer.body, answer.status, headers)
    return Response(
        msgspec.json.encode(answer.body), answer.status, {"Content-Type": "application/json", **headers}
    )
