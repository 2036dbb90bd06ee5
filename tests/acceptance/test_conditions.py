"""Letters wait while a check of `[[conditions]]` fails, and are redriven when it succeeds: with a real server."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

from redrive import App
from redrive.letters import LetterState
from tests.acceptance.serving import PATIENCE, QUICK, Serving, serving

SETTINGS = (
    QUICK
    + """
    [[sources]]
    name = "mail"

    [[conditions]]
    name = "bank"
    url = "tcp://127.0.0.1:{bank}"
    sources = ["orders"]
    interval = "1s"
    timeout = "500ms"

    [[conditions]]
    name = "post"
    url = "http://127.0.0.1:{post}/health"
    sources = ["mail"]
    interval = "1s"
    timeout = "500ms"
"""
)


class Post:
    """An HTTP server with a health check."""

    def __init__(self) -> None:
        self.port = 0
        self.status = "503 Service Unavailable"
        self.checks = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["Post"]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.checks += 1
        writer.write(f"HTTP/1.1 {self.status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()


async def letters_are(server: Serving, wanted: dict[str, tuple[LetterState, str | None, int]]) -> None:
    """Wait until the letter of each source has this state, waits for this gate, and was redriven so often."""
    end = time.monotonic() + PATIENCE
    while True:
        found = {
            head.source: (head.state, head.waits_for, head.dlq_retry_count) for head in await server.heads()
        }
        if found == wanted:
            return
        assert time.monotonic() < end, f"{found}; {server.errors[-5:]}"
        await asyncio.sleep(0.05)


async def test_letter_waits_while_its_check_fails_and_is_redriven_when_it_succeeds(tmp_path: Path) -> None:
    with socket.socket() as bank:
        bank.bind(("127.0.0.1", 0))  # and does not listen: connections are refused
        async with Post().listening() as post:
            settings = SETTINGS.format(bank=bank.getsockname()[1], post=post.port)
            with serving(tmp_path, settings=settings) as server:
                app, seen = App(server.broker), list[str]()

                async def handle(source: str) -> None:
                    seen.append(source)
                    if seen.count(source) == 1:
                        raise TimeoutError("no answer")

                @app.consume("orders")
                async def order(_body: bytes) -> None:
                    await handle("orders")

                @app.consume("mail")
                async def mail(_body: bytes) -> None:
                    await handle("mail")

                # Given a dead letter of each source, and both checks fail
                async with app:
                    for source in ("orders", "mail"):
                        await app.publish(source, "1")
                    bank_waits = (LetterState.PENDING, "condition:bank", 0)
                    post_waits = (LetterState.PENDING, "condition:post", 0)
                    await letters_are(server, {"orders": bank_waits, "mail": post_waits})
                    # When the first check succeeds, its letter is redriven, and the other one waits on
                    bank.listen()
                    resolved = (LetterState.RESOLVED, None, 1)
                    await letters_are(server, {"orders": resolved, "mail": post_waits})
                    assert post.checks > 0
                    # When the second check succeeds
                    post.status = "204 No Content"
                    await letters_are(server, {"orders": resolved, "mail": resolved})
                assert sorted(seen) == ["mail", "mail", "orders", "orders"]
                assert server.end() == 0
