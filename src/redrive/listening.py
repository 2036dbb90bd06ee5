"""Serve an application over HTTP in the event loop of the caller.

The caller owns the process: signals and logging are left alone. Of uvicorn's server only start and shutdown are used;
its main loop, which wakes up ten times a second, has nothing to do here.

A client that does not finish what it began costs a connection and little else (`HttpLimits`): a request has to arrive
within a time limit, an answer has to be read at a minimum rate, and beyond the maximum number of connections the
one that has been waiting longest for its client is closed in favour of the new one.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_BACKLOG: Final = 128
_LOG: Final = logging.getLogger("redrive.http")
_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True)
class HttpLimits:
    """How long a client may take, and how many there may be."""

    request_timeout: float = 10  # seconds until a request has arrived; a body gets more at `min_rate`
    min_rate: int = 10_000  # octets a second at which a body has to arrive and an answer has to be read
    max_connections: int = 256


class Listening:
    """An application while it listens."""

    def __init__(
        self,
        web: uvicorn.Server,
        place: socket.socket,
        connections: "_Connections",
        grace: float,
        on_close: Callable[[], None],
    ) -> None:
        host, port = place.getsockname()[:2]
        self.port = int(port)
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._web = web
        self._place = place
        self._connections = connections
        self._grace = grace
        self._on_close = on_close

    async def close(self) -> None:
        """Stop listening; answers that are not complete after the grace period are cut off."""
        self._on_close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                await self._web.shutdown(sockets=[self._place])
        for connection in list(self._connections.open):
            connection.transport.abort()


def bind(host: str, port: int) -> socket.socket:
    """Bind a listening socket, or raise `OSError`; port 0 is any free one. `UnicodeError`: the host is no name."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    host.encode("idna")  # `create_server` would leave a socket behind
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


async def listen_at(
    place: socket.socket,
    app: Any,
    *,
    grace: float,
    limits: HttpLimits | None = None,
    on_close: Callable[[], None] = lambda: None,
    **options: Any,
) -> Listening:
    """Answer there. `grace`: seconds that an answer may take when it closes; `options`: uvicorn's."""
    connections = _Connections(limits or HttpLimits())
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(_Connection, connections)),
        ws="none",
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
    return Listening(web, place, connections, grace, on_close)


class _Connections:
    """The connections of a listener."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self.open: dict[_Connection, None] = {}
        self.waiting: dict[_Connection, None] = {}  # those whose request has not arrived, the oldest first

    def admit(self, new: "_Connection") -> bool:
        """Take a new connection, in place of the one that waits longest if there are too many; False: all are busy."""
        if len(self.open) >= self.limits.max_connections:
            oldest = next(iter(self.waiting), None)
            if oldest is None:
                return False
            _LOG.info(
                "connection closed client=%s connections=%d: limit reached", oldest.client, len(self.open)
            )
            self.remove(oldest)
            oldest.transport.abort()
        self.open[new] = None
        return True

    def remove(self, connection: "_Connection") -> None:
        """Forget a connection that is closed."""
        self.open.pop(connection, None)
        self.waiting.pop(connection, None)


class _Connection(H11Protocol):
    """A connection with limits on its client."""

    def __init__(self, connections: _Connections, **given: Any) -> None:
        super().__init__(**given)
        self._all = connections
        self._limits = connections.limits
        self._request_timer: asyncio.TimerHandle | None = None
        self._requested_at = 0.0
        self._received = 0  # octets of the request so far
        self._is_new = True  # whether no request has arrived yet
        self._unread_timer: asyncio.TimerHandle | None = None
        self._unread = 0  # octets of answers that were not read when that timer was set

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        super().connection_made(cast("asyncio.Transport", transport))
        if self._all.admit(self):
            self._watch_request()
        else:
            self.transport.write(_BUSY)
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Octets of a request have arrived."""
        self._received += len(data)
        super().data_received(data)
        self._watch_request()

    def on_response_complete(self) -> None:
        """An answer was written."""
        super().on_response_complete()
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._all.remove(self)
        self._stop_watching()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server stops: a request that has not arrived does not delay it."""
        if self._is_incomplete():
            self.transport.abort()
        else:
            super().shutdown()

    # --- requests that do not arrive -----------------------------------------------------------------------

    def _is_incomplete(self) -> bool:
        """Whether the client has more to send before it can be answered."""
        return self.conn.their_state in {h11.IDLE, h11.SEND_BODY}

    def _watch_request(self) -> None:
        if not self._is_incomplete() or self.transport.is_closing():
            self._is_new = False
            self._all.waiting.pop(self, None)
            self._stop_watching()
            return
        self._all.waiting.setdefault(self)
        began = self._is_new or self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]
        if began and self._request_timer is None:  # between requests uvicorn's keep-alive timer is enough
            self._requested_at = self.loop.time()
            self._received = len(self.conn.trailing_data[0])
            self._request_timer = self.loop.call_later(self._limits.request_timeout, self._check_request)

    def _stop_watching(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _check_request(self) -> None:
        timeout = self._limits.request_timeout
        if self.conn.their_state is h11.SEND_BODY:
            timeout += self._received / self._limits.min_rate
        left = self._requested_at + timeout - self.loop.time()
        if left > 0:
            self._request_timer = self.loop.call_later(left, self._check_request)
            return
        _LOG.info("connection closed client=%s timeout=%.0fs: request incomplete", self.client, timeout)
        self.transport.abort()

    # --- answers that are not read -------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client reads more slowly than it is sent."""
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        """The client has read nearly everything."""
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()

    def _watch_answer(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(self._limits.request_timeout, self._check_answer)

    def _check_answer(self) -> None:
        read = self._unread - self.transport.get_write_buffer_size()
        if read >= self._limits.min_rate * self._limits.request_timeout:
            self._watch_answer()
            return
        _LOG.info("connection closed client=%s: response not read", self.client)
        self.transport.abort()
