"""How does the API listen, beside the broker and in its event loop?

Whoever starts it owns the process: signals and logging are left alone. Of uvicorn's server only the start and the end
are used; its main loop, which wakes up ten times a second, has nothing to do here.
"""

import asyncio
import socket
from typing import Final

import uvicorn

from redrive.broker.management.app import App
from redrive.broker.management.ask import Desk, Listener
from redrive.broker.management.stats import Rates
from redrive.broker.server import Server

_GRACE: Final = 2  # seconds that answers under way may take when it closes
_BACKLOG: Final = 128
_MOST: Final = 256  # connections at a time; one more is told to come later


class Management:
    """The API while it listens."""

    def __init__(self, port: int, web: uvicorn.Server, place: socket.socket) -> None:
        self.port = port
        self._web = web
        self._place = place

    async def close(self) -> None:
        """Stop listening, and let what is under way come to its end."""
        try:
            async with asyncio.timeout(_GRACE):
                await self._web.shutdown(sockets=[self._place])
        except TimeoutError:
            pass  # whoever is slow has lost its answer


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
        date_header=False,  # the application's: here it would need a timer
        limit_concurrency=_MOST,
    )
    config.load()
    web = uvicorn.Server(config)
    web.lifespan = config.lifespan_class(config)
    await web.startup(sockets=[place])
    return Management(int(number), web, place)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)
