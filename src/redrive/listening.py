"""How does an application answer over HTTP, beside others in this event loop?

Whoever starts it owns the process: signals and logging are left alone. Of uvicorn's server only the start and the end
are used; its main loop, which wakes up ten times a second, has nothing to do here.
"""

import asyncio
import socket
from typing import Any, Final

import uvicorn

_BACKLOG: Final = 128


class Listening:
    """An application while it listens."""

    def __init__(self, web: uvicorn.Server, place: socket.socket, grace: float) -> None:
        host, port = place.getsockname()[:2]
        self.port = int(port)
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._web = web
        self._place = place
        self._grace = grace

    async def close(self) -> None:
        """Stop listening, and let what is under way come to its end."""
        try:
            async with asyncio.timeout(self._grace):
                await self._web.shutdown(sockets=[self._place])
        except TimeoutError:
            pass  # whoever is slow has lost its answer


def bind(host: str, port: int) -> socket.socket:
    """Take this place, or raise `OSError`; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


async def listen_at(place: socket.socket, app: Any, *, grace: float, **options: Any) -> Listening:
    """Answer there; `grace` is how many seconds an answer may take when it closes, `options` are uvicorn's."""
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,  # here it would need a timer
        **options,
    )
    config.load()
    web = uvicorn.Server(config)
    web.lifespan = config.lifespan_class(config)
    await web.startup(sockets=[place])
    return Listening(web, place, grace)
