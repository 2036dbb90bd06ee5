"""What is one client's connection to the broker?

Octets and the time come in through `receive`; octets for the client pile up in `outbox`, which whoever owns the socket
takes. What one call handles is limited by `Broker.budget`; the rest is the backlog, which `resume` goes on with. The
handshake, permissions and the closing of channels and connections are here; what happens on a channel is in `channel`
and `handlers`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from redrive.amqp import methods as m
from redrive.amqp.codec import encode
from redrive.amqp.connection import Connection
from redrive.amqp.errors import AmqpError, HardError, ReplyCode, SoftError
from redrive.amqp.events import (
    Event,
    Failed,
    HeaderReceived,
    HeaderRefused,
    HeartbeatReceived,
    MethodReceived,
)
from redrive.amqp.frames import ACKS, CONTENT, METHOD, PUBLISH_HEAD, content_header, expand, method_frame
from redrive.amqp.hot import parse_publish, publish_payload
from redrive.amqp.methods import Role
from redrive.amqp.sasl import ANONYMOUS, EXTERNAL, Credentials, decode_response
from redrive.amqp.states import ConnectionState
from redrive.broker.channel import SETTLING, Channel
from redrive.broker.handlers import HANDLERS
from redrive.broker.message import ENTRY_COST
from redrive.broker.publishing import Route

if TYPE_CHECKING:
    from redrive.broker.core import Broker
    from redrive.broker.queue import Queue
    from redrive.broker.vhost import VHost

METHOD_COST: Final = (
    16 * ENTRY_COST
)  # of a method that is neither a publish nor a settlement; see `Broker.cost`
_COST_PER_ACK_OCTET: Final = 8  # an acknowledgement has 21


class Session:
    """One connection. `peer` names it; `certificate_user` is who a TLS client certificate says it is."""

    def __init__(
        self,
        broker: "Broker",
        peer: str,
        *,
        peer_address: str = "127.0.0.1",
        certificate_user: str | None = None,
    ) -> None:
        self.broker = broker
        self.peer = peer
        self.peer_address = peer_address
        self.certificate_user = certificate_user
        self.connection = Connection(Role.SERVER, broker.limits, broker.max_message_size)
        self.outbox: list[bytes] = []
        self.write: Callable[[bytes], None] = self._first_write
        self.channels: dict[int, Channel] = {}
        self.writable: set[str] = set()  # exchanges that this user may publish to, as far as it has tried
        self._allowed_at = -1  # the version of the virtual host at which that was found
        self.now = 0
        self.user = ""
        self.mechanism = ""  # by which it logged in
        self.tags: Sequence[str] = ()
        self.client_properties: dict[str, object] = {}
        self.wants_cancels = False
        self.wants_blocked = False
        self.was_blocked = False
        self.publishes = False
        self.is_congested = False
        self.has_exclusive_queues = False  # or had
        self.is_tuned = False  # the limits of the connection are agreed on
        self.is_done = False  # everything has been said: close the socket once the outbox is empty
        self.is_left_to_client = False  # it has said good-bye, and hangs up by itself
        self.hold_until = 0  # a place in the journal: nothing is sent before it is on disk
        self.opened_at = 0
        self.vhost: VHost = broker.no_vhost
        self._handling: Iterator[None] | None = None  # what has been received and is handled in part
        self._unread: deque[bytes] = deque()  # received after that

    # --- writing -------------------------------------------------------------------------------------------

    def _first_write(self, octets: bytes) -> None:
        """The first octets of a turn: tell the broker that there is something to flush."""
        self.outbox.append(octets)
        self.write = self.outbox.append
        self.broker.talking.append(self)

    def take(self) -> bytes:
        """Everything that is to be sent, once."""
        octets = self.outbox[0] if len(self.outbox) == 1 else b"".join(self.outbox)
        self.outbox = []
        self.write = self._first_write
        return octets

    def send(self, method: m.Method, channel: int = 0) -> None:
        """A method without content."""
        if channel and not isinstance(method, m.ChannelCloseOk | m.ChannelOpenOk | m.ChannelClose):
            self.write(method_frame(channel, encode(method)))  # what needs no step of the state machine
        else:
            self.write(self.connection.send(method, channel))

    def hold_for_durability(self) -> None:
        """Send nothing more before everything done so far is on disk."""
        self.hold_until = max(self.hold_until, self.broker.keep.last_position())

    # --- receiving -----------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: int) -> None:
        """Take octets that have come, and handle them as far as `Broker.budget` allows."""
        self._unread.append(data)
        if self._handling is None:
            self.resume(now)

    @property
    def has_backlog(self) -> bool:
        """Whether something that was received is not handled yet; `resume` goes on with it."""
        return self._handling is not None or bool(self._unread)

    def resume(self, now: int) -> None:
        """Handle what was received, until the budget is used up or nothing is left."""
        self.now = now
        broker = self.broker
        try:
            while self._handling is not None or (self._unread and broker.cost < broker.budget):
                handling = self._handling or self._handle_octets(self._unread.popleft())
                self._handling = None  # unless it is interrupted once more; an error ends it
                for _ in handling:
                    self._handling = handling
                    return
        except AmqpError as error:
            self._fail(0, error)
        except Exception as error:  # noqa: BLE001  whatever it is, the client gets an answer
            self._fail_internally(error)

    def _handle_octets(self, data: bytes) -> Iterator[None]:
        """Handle octets in their order; stops where the budget is used up, before the next frame."""
        connection, broker = self.connection, self.broker
        if connection.state is not ConnectionState.RUNNING:
            for event in connection.events(data):
                self._handle_all((event,))
                broker.cost += METHOD_COST
                if broker.cost >= broker.budget:
                    yield
            return
        channels, ready = self.channels, connection.ready
        for item in connection.splitter.feed_batches(data):
            if broker.cost >= broker.budget:
                yield
            kind, number, payload, header, body = item
            if number in ready:
                try:
                    if (
                        kind == CONTENT
                        and payload[:4] == PUBLISH_HEAD
                        and len(body) <= broker.max_message_size
                    ):
                        self.publishes = True
                        channels[number].publish(payload, header, body)
                        continue
                    if kind == ACKS:
                        channels[number].ack_run(payload)
                        broker.cost += len(payload) * _COST_PER_ACK_OCTET
                        continue
                    if kind == METHOD and payload[:4] in SETTLING:
                        channels[number].settle_raw(payload)
                        continue
                except AmqpError as error:
                    if not error.class_id:
                        error.class_id, error.method_id = 60, payload[3] if kind != ACKS else 80
                    self._fail(number, error)
                    continue
            for frame in expand(item):
                self._handle_all(connection.handle(*frame))
            broker.cost += METHOD_COST
        if connection.splitter.error is not None:
            events: list[Event] = []
            connection.check_splitter(events)
            self._handle_all(events)

    def _handle_all(self, events: Iterable[Event]) -> None:
        for event in events:
            if self.is_done:
                return  # it was told so, or hung up on
            try:
                self._handle(event)
            except AmqpError as error:
                number = event.channel if isinstance(event, MethodReceived) else 0
                if isinstance(event, MethodReceived) and not error.class_id:
                    error.class_id, error.method_id = event.method.spec.class_id, event.method.spec.method_id
                self._fail(number, error)

    def _handle(self, event: Event) -> None:
        match event:
            case MethodReceived(channel=0, method=method):
                self._on_connection(method)
            case MethodReceived(channel=number, method=method, content=content):
                self._on_channel(
                    number, method, content.properties if content else b"", content.body if content else b""
                )
            case HeaderReceived():
                self.send(
                    m.ConnectionStart(
                        server_properties=self.broker.properties, mechanisms=self.broker.mechanisms(self)
                    )
                )
            case HeaderRefused(answer=answer):
                self.write(answer)
                self.is_done = True
            case Failed(channel=number, error=error):
                self._fail(number, error)
            case HeartbeatReceived():
                pass

    def _fail(self, number: int, error: AmqpError) -> None:
        """Tell the client what it did wrong, and close what has to be closed."""
        if isinstance(error, SoftError) and number:
            channel = self.channels.pop(number, None)
            if channel is not None:
                self.broker.log.info("channel closed channel=%d client=%s: %s", number, self.peer, error)
                channel.close()
            if number in self.connection.channels:
                self.write(self.connection.close_for(error, number))
            return
        if not self.is_tuned:  # as RabbitMQ: before the limits are agreed on, a client is not answered
            self._hang_up(str(error))
            return
        self.broker.log.warning("connection closed client=%s: %s", self.peer, error)
        if not self.connection.closed:
            try:
                self.write(self.connection.close_for(error))
            except AmqpError:
                self.is_done = True
        self._leave()
        if self.connection.splitter.error is not None:
            self.is_done = True  # no close-ok can be read any more

    def _fail_internally(self, error: Exception) -> None:
        """Close the connection after an internal error: the client gets the reply code, the log has the traceback."""
        self.broker.log.error("connection closed client=%s: internal error", self.peer, exc_info=error)
        try:
            self._fail(0, HardError(ReplyCode.INTERNAL_ERROR, "see the log of the broker"))
        except Exception:
            self.broker.log.exception("connection not closed client=%s: internal error", self.peer)
            self.is_done = True

    def close_channel(self, number: int, error: SoftError) -> None:
        """Close a channel for a reason that is not in what its client has just said."""
        self._fail(number, error)

    # --- the connection itself -----------------------------------------------------------------------------

    def _on_connection(self, method: m.Method) -> None:
        match method:
            case m.ConnectionStartOk():
                if self._log_in(method):
                    limits = self.broker.limits
                    self.send(m.ConnectionTune(limits.channel_max, limits.frame_max, limits.heartbeat))
            case m.ConnectionTuneOk():
                self.is_tuned = True
            case m.ConnectionOpen():
                self._enter(method.virtual_host)
                self.send(m.ConnectionOpenOk())
                self.opened_at = self.now
                self.broker.opened(self)
            case m.ConnectionClose():
                self._leave()
                self.send(m.ConnectionCloseOk())
                self.is_done = self.is_left_to_client = True
            case m.ConnectionCloseOk():
                self.is_done = True
            case m.ConnectionUpdateSecret():
                self.send(m.ConnectionUpdateSecretOk())
            case _:
                pass

    def _log_in(self, answer: m.ConnectionStartOk) -> bool:
        """Whether the client is who it says."""
        self.client_properties = dict(answer.client_properties)
        abilities = self.client_properties.get("capabilities")
        abilities = abilities if isinstance(abilities, dict) else {}
        self.wants_cancels = bool(abilities.get("consumer_cancel_notify"))
        self.wants_blocked = bool(abilities.get("connection.blocked"))
        mechanism = answer.mechanism
        if mechanism.encode() not in self.broker.mechanisms(self).split():
            self._hang_up(f"unknown authentication mechanism '{mechanism}'")
            return False
        if mechanism == EXTERNAL:
            credentials = Credentials(self.certificate_user or "")
        elif mechanism == ANONYMOUS and self.broker.anonymous is not None:
            credentials = self.broker.anonymous
        else:
            credentials = decode_response(mechanism, answer.response)
        if not self.broker.may_log_in(credentials, self, external=mechanism == EXTERNAL):
            text = f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
            if abilities.get("authentication_failure_close"):
                self.write(self.connection.close_for(HardError(ReplyCode.ACCESS_REFUSED, text)))
                self.broker.log.warning("connection closed client=%s: %s", self.peer, text)
            else:
                self._hang_up(text)  # the client would not understand a close so early
            return False
        self.user = credentials.username
        self.mechanism = mechanism
        user = self.broker.users.get(self.user)
        self.tags = user.tags if user is not None else ()
        return True

    def _hang_up(self, why: str) -> None:
        self.broker.log.warning("connection closed client=%s: %s", self.peer, why)
        self.is_done = True

    def _enter(self, name: str) -> None:
        vhost = self.broker.vhosts.get(name)
        if vhost is None:
            raise HardError(ReplyCode.NOT_ALLOWED, f"vhost {name} not found")
        if not self.broker.users.may_enter(self.user, name):
            text = f"access to vhost '{name}' refused for user '{self.user}'"
            raise HardError(ReplyCode.NOT_ALLOWED, text)
        self.broker.check_connection_limits(self.user, vhost)
        self.vhost = vhost

    def _leave(self) -> None:
        """Nothing of this connection stays: channels, consumers, exclusive queues."""
        for channel in list(self.channels.values()):
            try:
                channel.close()
            except Exception:
                self.broker.log.exception(
                    "channel not closed channel=%d client=%s: internal error", channel.number, self.peer
                )
        self.channels.clear()
        self.publishes = False
        self.broker.left(self)

    def gone(self, now: int) -> None:
        """The socket is closed, for whatever reason, or is to be."""
        self.now = now
        self._handling = None
        self._unread.clear()
        self._leave()

    # --- channels ------------------------------------------------------------------------------------------

    def _on_channel(self, number: int, method: m.Method, properties: bytes, body: bytes) -> None:
        if isinstance(method, m.ChannelOpen):
            self.broker.check_channel_limit(self.user)
            self.channels[number] = Channel(self, number)
            self.send(m.ChannelOpenOk(), number)
            return
        if isinstance(method, m.ChannelClose):
            self.broker.work(self.now)
            channel = self.channels.pop(number, None)
            if channel is not None:
                channel.confirm(self.broker.keep.durable_position())
                channel.close()
            self.send(m.ChannelCloseOk(), number)
            return
        channel = self.channels.get(number)
        if channel is None:
            return
        if isinstance(method, m.BasicPublish):
            flags = method.mandatory | method.immediate << 1
            payload = publish_payload(method.exchange.encode(), method.routing_key.encode(), flags)
            self.publishes = True
            channel.publish(payload, content_header(properties, len(body)), body)
            return
        if isinstance(
            method, m.BasicAck | m.BasicNack | m.BasicReject
        ):  # not taken on the way in: mid-content
            channel.settle_raw(encode(method))
            return
        handler = HANDLERS.get(type(method))
        if handler is not None:
            self.broker.work(self.now)  # whatever was asked before is done before
            handler(channel, method)

    # --- asked by channels and handlers --------------------------------------------------------------------

    @property
    def frame_max(self) -> int:
        """The largest frame that was agreed on."""
        return self.connection.limits.frame_max

    def find_route(self, payload: bytes) -> Route:
        """The route of a `basic.publish` that this user may take; remembered from now on, for everybody."""
        vhost = self.vhost
        if self._allowed_at != vhost.version:  # permissions may have changed as well
            self.writable.clear()
            self._allowed_at = vhost.version
        exchange = parse_publish(payload)[0]
        self.check("write", "exchange", exchange)
        route = vhost.routes.get(payload)
        if route is None:
            route = Route(vhost, payload)
            vhost.remember_route(payload, route)
        if route.is_internal:
            text = f"cannot publish to internal exchange '{exchange}' in vhost '{vhost.name}'"
            raise SoftError(ReplyCode.ACCESS_REFUSED, text)
        self.writable.add(exchange)
        return route

    def may_take(self, route: Route) -> bool:
        """Whether this user was found to be allowed to take this route, which the virtual host remembers."""
        return self._allowed_at == self.vhost.version and route.exchange in self.writable

    def queue(self, name: str) -> "Queue":
        """The queue of this name that this session may use."""
        return self.vhost.queue(name, self)

    def check(self, what: str, kind: str, name: str) -> None:
        """403 unless the user may configure, write or read it."""
        if not self._may(what, name):
            shown = name if name or kind == "queue" else "amq.default"
            text = f"{what} access to {kind} '{shown}' in vhost '{self.vhost.name}' refused for user '{self.user}'"
            raise SoftError(ReplyCode.ACCESS_REFUSED, text)

    def check_any(self, kind: str, name: str) -> None:
        """403 unless the user has some right to it; the refusal is that of a declare."""
        if not self._may("read", name) and not self._may("write", name):
            self.check("configure", kind, name)

    def _may(self, what: str, name: str) -> bool:
        return self.broker.users.may(self.user, self.vhost.name, what, name)  # type: ignore[arg-type]
