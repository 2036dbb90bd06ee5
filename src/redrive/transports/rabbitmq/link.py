"""How is one connection to a broker kept?

`connect` logs in and gives a `Link`: an asyncio protocol around the sans-I/O `amqp.Connection`. The rule: everything
that is written in a turn of the event loop leaves as one write, and what a read brings is handed on before the next
one is asked for. Heartbeats, the broker's alarms (`blocked`), and an orderly end are here; errors of sockets, TLS and
login are translated into `TransportError`s that say what to do.

A link that is lost stays lost: finding the broker again is `lifeline`'s. It does not know what channels are used for.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, cast

from redrive._version import __version__
from redrive.amqp import methods as m
from redrive.amqp.connection import Connection
from redrive.amqp.errors import AmqpError, ReplyCode
from redrive.amqp.events import Event, Failed, MethodReceived
from redrive.amqp.frames import ACKS, CONTENT, DELIVER_HEAD, HEARTBEAT, HEARTBEAT_FRAME, expand
from redrive.amqp.limits import Limits
from redrive.amqp.methods import Role
from redrive.amqp.sasl import EXTERNAL, PLAIN, Credentials, encode_response
from redrive.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    TransportClosedError,
    TransportError,
)
from redrive.transports.rabbitmq.channel import CLOSED, Channel
from redrive.transports.rabbitmq.delivery_counts import DeliveryCounts, counts_of, is_embedded
from redrive.transports.rabbitmq.url import BrokerUrl, Endpoint

# The broker decides how large a message may be; here only nonsense is refused.
_LARGEST_MESSAGE: Final = 2**31
_HIGH_WATER: Final = 1024 * 1024  # octets waiting for the socket before a publisher is asked to wait
_GOODBYE: Final = 5.0  # seconds for the broker to answer a close
_CAPABILITIES: Final = {
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
    "connection.blocked": True,
    "basic.nack": True,
    "authentication_failure_close": True,
}


async def connect(url: BrokerUrl, endpoint: Endpoint, title: str = "redrive") -> "Link":
    """Log in there. `title` is what the broker's management shows for this connection."""
    tls = url.tls.context() if url.tls is not None else None
    loop = asyncio.get_running_loop()
    link = Link(url, endpoint, title)
    seconds = url.connect_timeout.total_seconds()
    try:
        async with asyncio.timeout(seconds):
            await loop.create_connection(lambda: link, endpoint.host, endpoint.port, ssl=tls)
            await link.opened
    except TimeoutError as error:
        link.abort()
        raise BrokerUnreachableError(
            f"{endpoint} did not answer within {seconds:g} s; check host and port, and that an AMQP "
            "broker listens there"
        ) from error
    except ssl.SSLCertVerificationError as error:
        raise BrokerUnreachableError(
            f"{endpoint}: its certificate is not trusted ({error.verify_message}); set the CA file with "
            "cacertfile=, or use the host name in the certificate"
        ) from error
    except ssl.SSLError as error:
        raise BrokerUnreachableError(
            f"TLS handshake with {endpoint} failed ({error.reason or error}); check that this is a TLS "
            "port, or use amqp://"
        ) from error
    except OSError as error:
        raise BrokerUnreachableError(
            f"{endpoint} cannot be reached ({error.strerror or error}); check that the broker is "
            "running there"
        ) from error
    except BaseException:
        link.abort()
        raise
    return link


class Link(asyncio.Protocol):
    """One connection. Made by `connect`, which returns it logged in."""

    def __init__(self, url: BrokerUrl, endpoint: Endpoint, title: str) -> None:
        self.url = url
        self.endpoint = endpoint
        self.connection = Connection(Role.CLIENT, Limits(heartbeat=url.heartbeat), _LARGEST_MESSAGE)
        self.server_properties: dict[str, object] = {}
        self.blocked: str | None = None  # the broker's reason to take no publishes for now
        self.error: TransportError | None = None  # why it is over
        self.on_blocked: Callable[[str | None], None] = lambda _reason: None
        self.on_end: Callable[[TransportError], None] = lambda _error: None
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._unblocked = asyncio.Event()
        self._unblocked.set()
        self._writable = asyncio.Event()
        self._writable.set()
        self._title = title
        self._transport: asyncio.Transport | None = None
        self._channels: dict[int, Channel] = {}
        self._outbox: list[bytes] = []
        self._beat: asyncio.TimerHandle | None = None
        self._is_running = False
        self._logged_in = False  # a start-ok has gone out
        self._is_closing = False  # we have said good-bye

    # --- for users -------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether it can be used."""
        return self.error is None and self._is_running

    @property
    def counts(self) -> DeliveryCounts:
        """How the broker counts deliveries."""
        return counts_of(self.server_properties)

    @property
    def is_embedded(self) -> bool:
        """Whether it is redrive's own broker."""
        return is_embedded(self.server_properties)

    @property
    def _explains_refusals(self) -> bool:
        """Whether the broker closes a refused login with a reason, so that a silent end is a lost connection."""
        abilities = self.server_properties.get("capabilities")
        return isinstance(abilities, Mapping) and bool(abilities.get("authentication_failure_close"))

    @property
    def cluster_name(self) -> str | None:
        """What the broker calls its cluster; None if it does not say."""
        name = self.server_properties.get("cluster_name")
        if isinstance(name, bytes):
            name = name.decode("utf-8", "replace")
        return str(name) if name else None

    @contextlib.asynccontextmanager
    async def channel(self) -> AsyncIterator[Channel]:
        """A channel, open inside the block."""
        async with self.new_channel() as channel:
            yield channel

    def new_channel(self) -> Channel:
        """A channel that is not open yet; it has to be entered (`async with`) or told `ChannelOpen`."""
        if self.error is not None:
            raise self.error
        most = self.connection.limits.channel_max or 65535
        number = next((free for free in range(1, most + 1) if free not in self._channels), None)
        if number is None:
            raise TransportError(f"all {most} channels of the connection to {self.endpoint} are in use")
        channel = self._channels[number] = Channel(self, number)
        return channel

    def write(self, octets: bytes) -> None:
        """Send this with everything else of this turn."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(octets)

    async def drain(self) -> None:
        """Wait until the socket has taken what was written, or the link is over."""
        await self._writable.wait()

    async def until_unblocked(self) -> None:
        """Wait while the broker takes no publishes; returns as well when the link is over."""
        await self._unblocked.wait()

    async def close(self) -> None:
        """Say good-bye and hang up. What was written before is read by the broker first."""
        if self.error is None and self._is_running:
            self._is_closing = True
            self._is_running = False
            self.write(self.connection.close("closed by redrive"))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._gone), _GOODBYE)
        self.abort()
        if self._transport is not None:
            await asyncio.shield(self._gone)

    def abort(self) -> None:
        """Hang up at once."""
        self._end(TransportClosedError(CLOSED))
        if self._transport is not None:
            self._transport.abort()

    def forget(self, number: int) -> None:
        """A channel has ended; its number may be used again."""
        self._channels.pop(number, None)

    # --- what asyncio tells ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open, and encrypted if it is to be."""
        self._transport = transport = cast("asyncio.Transport", transport)  # of TCP or TLS, on any event loop
        if self.error is not None:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        transport.write(self.connection.initiate())

    def data_received(self, data: bytes) -> None:
        """Octets have come."""
        connection = self.connection
        connection.heartbeats.heard(self._loop.time())
        if not self._is_running:
            for event in connection.receive(data):
                self._happened(event)
            return
        channels, ready = self._channels, connection.ready
        for item in connection.splitter.feed_batches(data):
            kind, number, payload, header, body = item
            if kind == CONTENT and payload.startswith(DELIVER_HEAD) and number in ready:
                channels[number].on_delivery(payload, header, body)
            elif kind == ACKS and number in ready:
                channels[number].on_acks(payload)
            elif kind != HEARTBEAT:
                for frame in expand(item):
                    for event in connection.handle(*frame):
                        self._happened(event)
        if connection.splitter.error is not None:
            events: list[Event] = []
            connection.check_splitter(events)
            for event in events:
                self._happened(event)

    def pause_writing(self) -> None:
        """The broker reads more slowly than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._is_closing:
            self._end(TransportClosedError(CLOSED))
        if self._logged_in and not self._explains_refusals and not self.opened.done():
            # A broker that hangs up without a word during login has no better way to say no.
            self._end(
                BrokerRefusedError(
                    f"{self.endpoint} closed the connection during login; check user, password and vhost"
                )
            )
        elif not self.opened.done():
            tls = self.url.tls
            hint = (
                "check that this is its AMQP port"
                if tls is None or tls.certfile
                else "it may require a client certificate (certfile=)"
            )
            when = "during login; the broker may have stopped" if self._logged_in else f"before login; {hint}"
            self._end(BrokerUnreachableError(f"{self.endpoint} closed the connection {when}"))
        why = f": {exc}" if exc is not None else ""
        self._end(BrokerUnreachableError(f"the connection to {self.endpoint} was lost{why}"))
        if not self._gone.done():
            self._gone.set_result(None)

    # --- inside ----------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(outbox))
            self.connection.heartbeats.spoke(self._loop.time())

    def _happened(self, event: Event) -> None:
        if isinstance(event, Failed):
            self._failed(event.channel, event.error)
        elif isinstance(event, MethodReceived):
            if event.channel:
                channel = self._channels.get(event.channel)
                if channel is not None:
                    channel.received(event)
            else:
                self._received(event.method)

    def _failed(self, number: int, error: AmqpError) -> None:
        """The broker broke the protocol. That costs the channel or the connection, as the error says."""
        if not self.connection.closed:
            self.write(self.connection.close_for(error, number))
        broken = TransportError(f"{self.endpoint} does not follow AMQP 0-9-1: {error}")
        channel = self._channels.get(number)
        if channel is not None:
            channel.end(broken)
        elif not number:
            self._end(broken)
            self._hang_up()

    def _received(self, method: m.Method) -> None:
        """A method on channel 0."""
        connection = self.connection
        match method:
            case m.ConnectionStart():
                self.server_properties = dict(method.server_properties)
                self._log_in(method.mechanisms.split())
            case m.ConnectionTune():
                self.write(connection.send(connection.negotiate(method)))
                self.write(connection.send(m.ConnectionOpen(self.url.vhost)))
            case m.ConnectionOpenOk():
                self._is_running = True
                self._next_beat()
                if not self.opened.done():
                    self.opened.set_result(None)
            case m.ConnectionBlocked():
                self.blocked = method.reason or "no reason given"
                self._unblocked.clear()
                self.on_blocked(self.blocked)
            case m.ConnectionUnblocked():
                self.blocked = None
                self._unblocked.set()
                self.on_blocked(None)
            case m.ConnectionClose():
                error = self._why_closed(method)
                self.write(connection.send(m.ConnectionCloseOk()))
                self._end(error)
                self._hang_up()
            case m.ConnectionCloseOk():
                self._hang_up()
            case _:
                pass  # secure and update-secret belong to mechanisms that we do not offer

    def _log_in(self, mechanisms: list[bytes]) -> None:
        url = self.url
        mechanism = EXTERNAL if url.password is None else PLAIN
        if mechanism.encode() not in mechanisms:
            offered = b" ".join(mechanisms).decode("ascii", "replace")
            hint = (
                "write user and password in the URL"
                if mechanism == EXTERNAL
                else "this login mechanism is not supported by redrive"
            )
            self._end(
                BrokerRefusedError(f"{self.endpoint} does not offer {mechanism}, only {offered}; {hint}")
            )
            self._hang_up()
            return
        properties = {
            "product": "redrive",
            "version": __version__,
            "platform": "Python",
            "connection_name": self._title,
            "capabilities": _CAPABILITIES,
        }
        response = encode_response(mechanism, Credentials(url.user, url.password))
        self.write(self.connection.send(m.ConnectionStartOk(properties, mechanism, response)))
        self._logged_in = True

    def _why_closed(self, close: m.ConnectionClose) -> TransportError:
        url, said = self.url, f"{close.reply_code} {close.reply_text}"
        if not self._is_running and close.reply_code == ReplyCode.ACCESS_REFUSED:
            return BrokerRefusedError(
                f"{self.endpoint} refused the user '{url.user}'; check user and password"
            )
        if not self._is_running and close.reply_code in (ReplyCode.NOT_ALLOWED, ReplyCode.INVALID_PATH):
            return BrokerRefusedError(
                f"{self.endpoint} refused the user '{url.user}' access to vhost '{url.vhost}' "
                f"({close.reply_text}); create the vhost, or grant the user permissions on it"
            )
        if close.reply_code in (ReplyCode.CONNECTION_FORCED, ReplyCode.INTERNAL_ERROR):
            return BrokerUnreachableError(f"{self.endpoint} closed the connection: {said}")
        return TransportError(f"{self.endpoint} closed the connection: {said}")

    def _hang_up(self) -> None:
        """Close the socket once everything is written."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _end(self, error: TransportError) -> None:
        """It is over: everybody who waits is told, once."""
        if self.error is not None:
            return
        self.error = error
        self._is_running = False
        if self._beat is not None:
            self._beat.cancel()
        self._unblocked.set()
        self._writable.set()
        for channel in list(self._channels.values()):
            channel.end(error)
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # whoever waits gets it; if nobody does, that is no news
        self.on_end(error)

    # --- heartbeats ------------------------------------------------------------------------------------------

    def _next_beat(self) -> None:
        due = self.connection.next_heartbeat_due(self._loop.time())
        if due is not None:
            self._beat = self._loop.call_at(due, self._on_beat)

    def _on_beat(self) -> None:
        now = self._loop.time()
        if self.connection.peer_is_dead(now):
            silence = 2 * self.connection.heartbeats.interval
            self._end(BrokerUnreachableError(f"{self.endpoint} has said nothing for {silence:g} s"))
            if self._transport is not None:
                self._transport.abort()
            return
        due = self.connection.next_heartbeat_due(now)
        if due is not None and due <= now:
            self.write(HEARTBEAT_FRAME)
            self.connection.heartbeats.spoke(now)
        self._next_beat()
