"""Receivers that are there for one test, and of which nothing is left when it ends."""

import asyncio
import email
import email.policy
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from email.message import EmailMessage
from typing import Any

from aiohttp import web
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

PASSWORD = "correct horse"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(talk: Talk) -> AsyncIterator[int]:
    """A server that has this talk with everybody who comes; its port."""
    talks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # whoever came has left, or the test is over
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks)
        await asyncio.sleep(0)  # in which the transports close


async def forever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Never say anything."""
    await asyncio.Event().wait()


class Hook:
    """A webhook: what it was sent, and its answers; when there are none left, 200."""

    def __init__(self, *answers: web.Response) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[web.BaseRequest, bytes]] = []

    @property
    def bodies(self) -> list[Any]:
        """The JSON of every request."""
        return [json.loads(body) for _, body in self.requests]

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Take it down, and say what is next to say."""
        self.requests.append((request, await request.read()))
        return self.answers.pop(0) if self.answers else web.Response(text="ok")


@asynccontextmanager
async def web_server(hook: Hook) -> AsyncIterator[str]:
    """The hook while it listens; its address."""
    runner = web.ServerRunner(web.Server(hook.answer), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Box:
    """What arrived; `answers` are given to mails before they are taken, `unknown` recipients are refused."""

    def __init__(self, answers: Sequence[str] = (), unknown: Sequence[str] = ()) -> None:
        self.answers = list(answers)
        self.unknown = unknown
        self.mails: list[EmailMessage] = []
        self.envelopes: list[Envelope] = []
        self.users: list[bytes] = []
        self.was_tls = False

    async def handle_RCPT(  # noqa: N802  the library's name
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.unknown:
            return "550 5.1.1 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802  likewise
        if self.answers:
            return self.answers.pop(0)
        assert isinstance(envelope.content, bytes)
        self.mails.append(parse(envelope.content))
        self.envelopes.append(envelope)
        self.was_tls = session.ssl is not None
        return "250 OK"

    def log_in(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: object
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.users.append(data.login)
        return AuthResult(success=data.password == PASSWORD.encode(), handled=False)


def parse(content: bytes) -> EmailMessage:
    mail = email.message_from_bytes(content, policy=email.policy.default)
    assert isinstance(mail, EmailMessage)
    return mail


@asynccontextmanager
async def mail_server(box: Box, tls: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    talks: list[SMTP] = []

    def talk() -> SMTP:
        talks.append(SMTP(box, loop=loop, hostname="localhost", **options))
        return talks[-1]

    server = await loop.create_server(talk, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in talks:
            if isinstance(each.transport, asyncio.WriteTransport):
                each.transport.abort()
        await asyncio.sleep(0.01)  # in which the transports close
