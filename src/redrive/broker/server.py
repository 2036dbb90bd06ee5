"""How do octets get in and out?

The only file of the broker with sockets. Each connection is an asyncio protocol that hands what it reads to its
session; at the end of a turn of the event loop everything that sessions have to say is sent, one write for each, and
what the journal was told is brought to disk in a thread. Time-outs, limits on connections and back-pressure are here.

A turn is short, whatever it is that clients send. What sockets bring in between two turns has a budget; a session that
it does not suffice for keeps the rest, and its socket is not read meanwhile. At the end of each turn such sessions get
a slice each, in turn, until the time of the turn is over: first those that have had nothing yet, so that a client
with one request does not wait for those with thousands.
"""

import asyncio
import gc
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

from redrive.amqp.frames import HEARTBEAT_FRAME
from redrive.amqp.states import ConnectionState
from redrive.broker.core import Broker
from redrive.broker.journal_keep import JournalKeep
from redrive.broker.message import ENTRY_COST
from redrive.broker.session import Session

_HIGH_WATER: Final = 4 * 1024 * 1024  # octets waiting for a slow reader before its consumers get a rest
_LINGER: Final = 3.0  # seconds that a client has to hang up after the last word
# See `Broker.cost`. A thousand entries take about a millisecond.
_MAX_READ_COST: Final = 4096 * ENTRY_COST  # of what sockets bring in between two turns
_SLICE_COST: Final = 1024 * ENTRY_COST  # of a session with a backlog, until it is another one's turn
_MAX_BACKLOG_TIME: Final = 0.005  # seconds of a turn
_RELEASE_INTERVAL: Final = 10.0  # seconds
_MIN_RELEASE_COST: Final = 64 << 20  # after less than that there is no memory worth giving back
_IDLE_COST: Final = 1 << 20  # of an interval in which there was little to do


@dataclass(frozen=True)
class ServerOptions:
    """How the server treats connections."""

    handshake_timeout: timedelta = timedelta(seconds=10)
    max_connections: int = 10_000
    close_timeout: timedelta = timedelta(seconds=2)


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
        self._new_backlogs: deque[Connection] = deque()  # of what was read, nothing is handled yet
        self._backlogs: deque[Connection] = deque()  # whose turn is next first
        self._blocked_backlogs: list[Connection] = []  # of publishers that have to wait
        self.is_blocked = False  # publishers are not read from; follows the alarm at the end of a turn
        self._release_timer: asyncio.TimerHandle | None = None
        self.trim_memory: Callable[[int], int] = lambda _: 0  # gives free memory back to the system
        self._cost_at_check = 0
        self._cost_at_release = 0
        self._set_budget()
        self.on_failure: Callable[[BaseException], None] | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen there; gives the port, which may have been 0."""
        server = await self._loop.create_server(
            lambda: Connection(self),
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else self.options.handshake_timeout.total_seconds(),
            backlog=1024,
        )
        self._servers.append(server)
        if self._release_timer is None:
            self._release_timer = self._loop.call_later(_RELEASE_INTERVAL, self._release_memory)
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
        for timer in (self._timer, self._release_timer):
            if timer is not None:
                timer.cancel()
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
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_scheduled = False
        self.end_turn()
        if self._new_backlogs or self._backlogs:
            self._handle_backlogs()
            self._set_budget()
            self.schedule_turn()

    def _set_budget(self) -> None:
        """Let sockets bring in something until the next turn; less where others have to wait."""
        broker = self.broker
        broker.budget = broker.cost + (_SLICE_COST if self._backlogs else _MAX_READ_COST)

    def end_turn(self) -> None:
        """Do what was left for later, and send what there is to say."""
        broker = self.broker
        more = broker.work(self.clock())
        if self.is_blocked != (broker.blocked_because is not None):
            self._follow_alarm()
        self._send()
        self._start_flushing()
        if more:
            self.schedule_turn()
        self._set_timer()
        self._set_budget()

    def _follow_alarm(self) -> None:
        """Publishers are blocked from now on, or are not any more."""
        self.is_blocked = not self.is_blocked
        for connection in self.connections:
            connection.pause_or_resume()
        if not self.is_blocked and self._blocked_backlogs:
            self._backlogs.extend(self._blocked_backlogs)
            self._blocked_backlogs.clear()
            self.schedule_turn()

    # --- backlogs ------------------------------------------------------------------------------------------

    def add_backlog(self, connection: "Connection", *, is_new: bool) -> None:
        """Handle what a connection has read in later turns; `is_new`: nothing of it was handled in this one."""
        (self._new_backlogs if is_new else self._backlogs).append(connection)

    def _handle_backlogs(self) -> None:
        """Go on with what was read earlier, a slice for each connection, until the time of this turn is over."""
        end = time.monotonic() + _MAX_BACKLOG_TIME
        while self._new_backlogs and time.monotonic() < end:
            self._handle_slice(self._new_backlogs.popleft())
        while self._backlogs:  # at least one
            self._handle_slice(self._backlogs.popleft())
            if time.monotonic() >= end:
                return

    def _handle_slice(self, connection: "Connection") -> None:
        if connection not in self.connections:
            return
        if self.is_blocked and connection.session.publishes:
            self._blocked_backlogs.append(connection)
            return
        self.broker.budget = self.broker.cost + _SLICE_COST
        if connection.handle_backlog():
            self._backlogs.append(connection)

    # --- memory --------------------------------------------------------------------------------------------

    def _release_memory(self) -> None:
        """Give back what a flood has left, once it is over."""
        self._release_timer = self._loop.call_later(_RELEASE_INTERVAL, self._release_memory)
        cost, since = self.broker.cost, self._cost_at_check
        self._cost_at_check = cost
        if cost - since < _IDLE_COST and cost - self._cost_at_release > _MIN_RELEASE_COST:
            self._cost_at_release = cost
            self.broker.release_memory()
            gc.collect()
            self.trim_memory(0)

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
            self.log.critical("journal write failed: %s", error)
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
        self._has_backlog = False  # and waits for its turn
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
                "connection refused client=%s connections=%d: limit reached",
                self.session.peer,
                len(server.connections),
            )
            transport.abort()
            return
        timeout = server.options.handshake_timeout.total_seconds()
        self._deadline = self._loop.call_later(timeout, self._give_up)

    def _give_up(self) -> None:
        """The handshake took too long: whoever it is, is not serious."""
        if self.session.connection.state is not ConnectionState.RUNNING:
            self._server.log.warning("connection closed client=%s: handshake timeout", self.session.peer)
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
        before = server.broker.cost
        session.receive(data, server.clock())
        if session.has_backlog and not self._has_backlog:
            self._has_backlog = True
            server.add_backlog(self, is_new=server.broker.cost == before)
        self._handled(was_running=was_running)
        connection.heartbeats.heard(self._loop.time())
        server.schedule_turn()

    def handle_backlog(self) -> bool:
        """Handle more of what was read earlier; whether there is still more."""
        session = self.session
        was_running = session.connection.state is ConnectionState.RUNNING
        session.resume(self._server.clock())
        self._has_backlog = session.has_backlog
        self._handled(was_running=was_running)
        return self._has_backlog

    def _handled(self, *, was_running: bool) -> None:
        """Something of what was read has been handled."""
        session = self.session
        if not was_running and session.connection.state is ConnectionState.RUNNING:
            self._start_beating()
        if session.is_done and not session.outbox and not self._is_finishing:
            self._finish()
        if not self._is_reading or session.has_backlog or self._server.is_blocked:
            self.pause_or_resume()

    def pause_or_resume(self) -> None:
        """Read from the socket, unless something is to be handled first or a publisher has to wait."""
        session = self.session
        is_blocked = session.publishes and self._server.is_blocked
        reads = self._is_finishing or not (session.has_backlog or is_blocked)
        if reads == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = reads
        if reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def send(self, octets: bytes) -> None:
        """Send, and close if that was the last word."""
        if not self._is_reading:
            self.pause_or_resume()  # it may have been told that its connection is closed
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
        self.pause_or_resume()
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
        if self._deadline is not None:
            self._deadline.cancel()  # of the handshake
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
        if not self._is_reading:
            connection.heartbeats.heard(now)  # what it says is not read
        if connection.peer_is_dead(now):
            self._server.log.warning("connection closed client=%s: missed heartbeats", self.session.peer)
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
