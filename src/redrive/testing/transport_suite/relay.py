"""How is a connection to a real broker lost on demand?

A `Relay` stands between the two and passes bytes on, unread. The rule: neither side can tell it from a network, so
what is seen when it cuts is what is seen when a cable is pulled and both ends notice. It listens on loopback alone.
"""

import asyncio
import contextlib
from typing import Final, Self
from urllib.parse import urlsplit

_LOOPBACK: Final = "127.0.0.1"
_AT_ONCE: Final = 256 * 1024  # bytes passed on in one go


class Relay:
    """A way to the broker at `url`; its own `url` is the same but for host and port.

    It listens at `port`, or at one that is free: a broker that tells its clients where it is has to know it before.
    """

    def __init__(self, url: str, default_port: int = 5672, port: int = 0) -> None:
        self._address = urlsplit(url)
        self._broker = (self._address.hostname or _LOOPBACK, self._address.port or default_port)
        self._server: asyncio.Server | None = None
        self._port = port
        self._pairs: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.come_back()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.leave()

    @property
    def url(self) -> str:
        """Where it listens."""
        user, _, _ = self._address.netloc.rpartition("@")
        netloc = f"{user}@{_LOOPBACK}:{self._port}" if user else f"{_LOOPBACK}:{self._port}"
        return self._address._replace(netloc=netloc).geturl()

    async def cut(self) -> None:
        """Lose all connections; new ones are taken at once."""
        pairs = list(self._pairs)
        for pair in pairs:
            pair.cancel()
        await asyncio.gather(*pairs, return_exceptions=True)

    async def leave(self) -> None:
        """Lose all connections and take no new ones: who tries is refused."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await self.cut()
        if server is not None:
            await server.wait_closed()

    async def come_back(self) -> None:
        """Take connections again, at the same port."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, _LOOPBACK, self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # it left while this connection was being accepted
            writer.transport.abort()
            return
        pair = asyncio.get_running_loop().create_task(self._joined(reader, writer))
        self._pairs.add(pair)

        def ended(pair: "asyncio.Task[None]") -> None:  # also if it is cancelled before it has begun
            self._pairs.discard(pair)
            writer.transport.abort()

        pair.add_done_callback(ended)

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both ways, until either end is gone."""
        try:
            onward_reader, onward_writer = await asyncio.open_connection(*self._broker)
        except OSError:
            return
        ways = [
            asyncio.create_task(_pass_on(reader, onward_writer)),
            asyncio.create_task(_pass_on(onward_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            onward_writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_AT_ONCE):
            writer.write(data)
            await writer.drain()
