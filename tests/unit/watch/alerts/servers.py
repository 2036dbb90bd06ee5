"""Receivers that are there for one test, and of which nothing is left when it ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

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
