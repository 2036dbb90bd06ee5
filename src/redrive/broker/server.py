"""How do octets get in and out?

The only file of the broker with sockets. Each connection is an asyncio protocol that hands what it reads to its
session; at the end of a turn of the event loop everything that sessions have to say is sent, one write for each, and
what the journal was told is brought to disk in a thread. Time-outs, limits on connections and back-pressure are here.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

from redrive.amqp.frames import HEARTBEAT_FRAME
from redrive.amqp.states import ConnectionState
from redrive.broker.core import Broker
from redrive.broker.journal_keep import JournalKeep
from redrive.broker.session import Session

_HIGH_WATER: Final = 4 * 1024 * 1024  # octets waiting for a slow reader before its consumers get a rest
_LINGER: Final = 3.0  # seconds that a client has to hang up after the last word


@dataclass(frozen=True)
class ServerOptions:
    """How the server treats connections."""

    handshake_timeout: timedelta = timedelta(seconds=10)
    max_connections: int = 10_000
    close_timeout: timedelta = timedelta(seconds=3)


def milliseconds() -> int:
    """The time of day as the broker counts it."""
    return time.time_ns() // 1_000_000


class Server:
    """Listens for a broker."""

    def __init__(
        self,
        broker: Broker,
        options: ServerOptions | None = None,
        *,
        keep: JournalKeep | None = None,
        clock: Callable[[], int] = milliseconds,
    ) -> None:
        self.broker = broker
        self.options = options or ServerOptions()
        self.clock = clock
        self.log = logging.getLogger("redrive.broker.server")
        self.connections: set[Connection] = set()
        self._journal = keep  # flushed in a thread at the end of each turn that had something durable
        self._flushing = False
        self._loop = asyncio.get_running_loop()
        self._turn_is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._servers: list[asyncio.Server] = []
        self.listeners: list[tuple[str, str, int]] = []  # protocol, address, port
        self._of_session: dict[Session, Connection] = {}
        self.on_failure: Callable[[BaseException], None] | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen there; gives the port, which may have been 0."""
        server = await self._loop.create_server(lambda: Connection(self), host, port, ssl=tls, backlog=1024)
        self._servers.append(server)
        address = server.sockets[0].getsockname()
        self.listeners.append(("amqp" if tls is None else "amqp/ssl", str(address[0]), int(address[1])))
        return int(address[1])

    async def close(self) -> None:
        """Say good-bye to everybody, bring everything to disk, and stop."""
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.say_goodbye()
        self.end_turn()
        await self._flushes_end()
        deadline = self._loop.time() + self.options.close_timeout.total_seconds()
        while self.connections and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
        await self._flushes_end()
        journal, self._journal = self._journal, None  # nothing is flushed any more but by closing
        if journal is not None:
            await asyncio.to_thread(journal.close)

    async def _flushes_end(self) -> None:
        while self._flushing:  # noqa: ASYNC110  it ends with the thread that flushes
            await asyncio.sleep(0.001)

    def abandon(self) -> None:
        """Stop at once, without a word: the journal has failed, and nothing more may be promised."""
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.abort()

    # --- turns ---------------------------------------------------------------------------------------------

    def schedule_turn(self) -> None:
        """Something happened: end the turn after everything that is happening with it."""
        if not self._turn_is_scheduled:
            self._turn_is_scheduled = True
            self._loop.call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Do what was left for later, and send what there is to say."""
        self._turn_is_scheduled = False
        broker = self.broker
        was_blocked = broker.blocked_because is not None
        more = broker.work(self.clock())
        is_blocked = broker.blocked_because is not None
        if was_blocked and not is_blocked:
            for connection in self.connections:
                connection.resume_reading()
        elif is_blocked and not was_blocked:
            for connection in self.connections:
                connection.pause_if_publishing()
        self._send()
        self._start_flushing()
        if more:
            self.schedule_turn()
        self._set_timer()

    def _send(self) -> None:
        broker = self.broker
        talking, broker.talking = broker.talking, []
        durable = broker.keep.durable_position()
        for session in talking:
            connection = self._of_session.get(session)
            if connection is None:
                session.take()
            elif session.hold_until > durable:
                broker.talking.append(session)
            else:
                connection.send(session.take())

    def _start_flushing(self) -> None:
        keep = self._journal
        if keep is not None and not self._flushing and keep.last_position() > keep.durable_position():
            self._flushing = True
            self._loop.run_in_executor(None, keep.flush).add_done_callback(self._flushed)

    def _flushed(self, done: "asyncio.Future[int]") -> None:
        self._flushing = False
        error = done.exception()
        if error is not None:
            self.log.critical("the journal cannot be written: %s", error)
            if self.on_failure is not None:
                self.on_failure(error)
            return
        self.broker.confirm()
        if self._journal is not None and self._journal.tidy():
            self.schedule_turn()
        self.end_turn()

    def _set_timer(self) -> None:
        at = self.broker.next_timer
        if at is None or (self._timer is not None and self._timer_at == at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay = max(0.0, (at - self.clock()) / 1000)
        self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.broker.tick(self.clock())
        self.end_turn()

    def opened(self, connection: "Connection") -> None:
        """A connection has come."""
        self.connections.add(connection)
        self._of_session[connection.session] = connection

    def closed(self, connection: "Connection") -> None:
        """A connection has gone."""
        self.connections.discard(connection)
        self._of_session.pop(connection.session, None)
        connection.session.gone(self.clock())
        self.schedule_turn()


class Connection(asyncio.Protocol):
    """One socket."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.session: Session
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._is_reading = True
        self._is_finishing = False
        self.octets_in = self.octets_out = self.reads = self.writes = 0
        self.is_encrypted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = transport = cast("asyncio.Transport", transport)  # of TCP or TLS, on any event loop
        server = self._server
        self.is_encrypted = transport.get_extra_info("sslcontext") is not None
        peer = transport.get_extra_info("peername") or ("?", 0)
        local = transport.get_extra_info("sockname") or ("?", 0)
        self.session = Session(
            server.broker,
            f"{peer[0]}:{peer[1]} -> {local[0]}:{local[1]}",
            peer_address=str(peer[0]),
            certificate_user=_certificate_user(transport),
        )
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        server.opened(self)
        if len(server.connections) > server.options.max_connections:
            server.log.warning(
                "connection %s refused: there are %d", self.session.peer, len(server.connections)
            )
            transport.abort()
            return
        timeout = server.options.handshake_timeout.total_seconds()
        self._deadline = self._loop.call_later(timeout, self._give_up)

    def _give_up(self) -> None:
        """The handshake took too long: whoever it is, is not serious."""
        if self.session.connection.state is not ConnectionState.RUNNING:
            self._server.log.warning("connection %s closed: handshake timeout", self.session.peer)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Octets have come."""
        session, server = self.session, self._server
        if self._is_finishing:
            return
        connection = session.connection
        was_running = connection.state is ConnectionState.RUNNING
        self.octets_in += len(data)
        self.reads += 1
        session.receive(data, server.clock())
        if not was_running and connection.state is ConnectionState.RUNNING:
            self._start_beating()
        connection.heartbeats.heard(self._loop.time())
        if session.is_done and not session.outbox:
            self._finish()
        if server.broker.blocked_because is not None:
            self.pause_if_publishing()
        server.schedule_turn()

    def pause_if_publishing(self) -> None:
        """A publisher has to wait: nothing is read from it until the alarm is over."""
        if self.session.publishes and self._is_reading and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """The alarm is over."""
        if not self._is_reading and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()

    def send(self, octets: bytes) -> None:
        """Send, and close if that was the last word."""
        self.octets_out += len(octets)
        self.writes += 1
        self._transport.write(octets)
        self.session.connection.heartbeats.spoke(self._loop.time())
        if self.session.is_done:
            self._finish()

    def _finish(self) -> None:
        """Everything has been said; the client gets a moment to hang up by itself.

        Closing now would reset the connection if octets of the client are under way, and it might never read our
        last word.
        """
        self._is_finishing = True
        if self._beat is not None:
            self._beat.cancel()
        hang_up = not self.session.is_left_to_client and self._transport.can_write_eof()
        if hang_up and not self._transport.is_closing():
            self._transport.write_eof()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(_LINGER, self._transport.close)

    def pause_writing(self) -> None:
        """The client reads more slowly than it is sent: its consumers get a rest."""
        self.session.is_congested = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        session, broker = self.session, self._server.broker
        session.is_congested = False
        for channel in session.channels.values():
            for consumer in channel.consumers.values():
                broker.mark(consumer.queue)
        self._server.schedule_turn()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's interface
        """The socket is closed."""
        for handle in (self._deadline, self._beat):
            if handle is not None:
                handle.cancel()
        self._server.closed(self)

    def say_goodbye(self) -> None:
        """Close in an orderly way."""
        connection = self.session.connection
        if connection.state is ConnectionState.RUNNING:
            self._server.broker.close(self.session, "broker forced connection closure with reason 'shutdown'")
        else:
            self._transport.abort()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # --- heartbeats ----------------------------------------------------------------------------------------

    def _start_beating(self) -> None:
        heartbeats = self.session.connection.heartbeats
        now = self._loop.time()
        heartbeats.heard(now)
        heartbeats.spoke(now)
        self._next_beat()

    def _next_beat(self) -> None:
        due = self.session.connection.next_heartbeat_due(self._loop.time())
        if due is not None:
            self._beat = self._loop.call_at(due, self._on_beat)

    def _on_beat(self) -> None:
        now = self._loop.time()
        connection = self.session.connection
        if connection.peer_is_dead(now):
            self._server.log.warning("connection %s closed: missed heartbeats from client", self.session.peer)
            self._transport.abort()
            return
        due = connection.next_heartbeat_due(now)
        if due is not None and due <= now:
            self._transport.write(HEARTBEAT_FRAME)
            connection.heartbeats.spoke(now)
        self._next_beat()


def _certificate_user(transport: asyncio.Transport) -> str | None:
    """Whom the client's certificate names."""
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return None
    names = [value for rdn in certificate.get("subject", ()) for name, value in rdn if name == "commonName"]
    return names[0] if names else None
