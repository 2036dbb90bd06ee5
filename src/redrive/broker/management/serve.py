"""How does the API listen, beside the broker and in its event loop?

Whoever starts it owns the process: signals and logging are left alone.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn

from redrive.broker.management.app import App
from redrive.broker.management.ask import Desk, Listener
from redrive.broker.management.stats import Rates
from redrive.broker.server import Server

_GRACE: Final = 2  # seconds that answers under way may take when it closes
_BACKLOG: Final = 128


class Management:
    """The API while it listens."""

    def __init__(self, host: str, port: int, web: uvicorn.Server, task: "asyncio.Task[None]") -> None:
        self.host = host
        self.port = port
        self._web = web
        self._task = task

    async def close(self) -> None:
        """Stop listening, and let what is under way come to its end."""
        self._web.should_exit = True
        await self._task


class _Web(uvicorn.Server):
    """A server that leaves the process's signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None of them."""
        yield


async def start_management(server: Server, host: str, port: int) -> Management:
    """Listen there; port 0 is any that is free."""
    place = _bind(host, port)
    address, number = place.getsockname()[:2]
    here: Listener = ("http", str(address), int(number))
    desk = Desk(server, Rates(), lambda: [*server.listeners, here])
    config = uvicorn.Config(
        App(desk),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )
    web = _Web(config)
    task = asyncio.get_running_loop().create_task(web.serve(sockets=[place]), name="management")
    while not web.started and not task.done():  # noqa: ASYNC110  a few turns
        await asyncio.sleep(0)
    if task.done():
        place.close()
        await task
    return Management(host, int(number), web, task)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)
