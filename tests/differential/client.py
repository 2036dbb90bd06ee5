"""How does a script talk to a broker so that everything the broker says is on record?

The one rule: a step sends something, waits for what answers it, and records that. What comes without being
asked for (deliveries, confirms, returns, cancels) waits in its channel's inbox until a step asks for it; what
nobody asked for until the end is recorded then, so that nothing is overlooked. The order of the record is the
script's order, so two brokers differ only if they said different things.

Waiting ends with what was waited for, with the end of the channel or connection (which is recorded in its
place), or after `PATIENCE` with `NothingCameError`. The driver is this project's own codec in the client role: a
broker that breaks the protocol is caught by it, and header types are visible.

This file does not know which broker it talks to, nor what is compared.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from redrive.amqp import methods as m
from redrive.amqp.codec import encode
from redrive.amqp.connection import Connection
from redrive.amqp.content import Content
from redrive.amqp.events import Failed, HeartbeatReceived, MethodReceived
from redrive.amqp.frames import FrameSplitter, method_frame
from redrive.amqp.limits import Limits
from redrive.amqp.methods import Method, Role
from redrive.amqp.properties import BasicProperties, encode_properties
from redrive.amqp.sasl import Credentials, encode_response
from redrive.amqp.states import ConnectionState
from tests.differential.record import (
    Entry,
    Names,
    Plain,
    Record,
    plain_method,
    plain_properties,
)
from tests.services import RabbitMQ

PATIENCE = 10.0  # seconds for anything that has to come
TICK = 0.01

CAPABILITIES: Mapping[str, object] = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "exchange_exchange_bindings": True,
    "per_consumer_qos": True,
    "publisher_confirms": True,
}


class NothingCameError(Exception):
    """The broker did not say what a script waits for."""


class NeedsManagementError(Exception):
    """A script wants the management API of a broker that has none."""


class Scene:
    """What a script plays in: one vhost of one broker, and the record of what happens there."""

    def __init__(self, broker: RabbitMQ, *, checked: bool = False) -> None:
        self.broker = broker
        self._checked = checked
        self.address = urlsplit(broker.amqp_url)
        self.user = unquote(self.address.username or "guest")
        self.password = unquote(self.address.password or "guest")
        self.record: Record = []
        self.names = Names(broker.vhost, self.user, time.time())
        self.declared: list[Method] = []  # what undoes the declarations
        self._wires: list[Wire] = []
        self._user_count = 0
        self._clean_up = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends every connection; what nobody has asked for goes on record."""
        with self._clean_up:
            for wire in self._wires:
                wire.end()
            if not self.broker.management_url:
                self._remove_everything()

    def _remove_everything(self) -> None:
        """Without a vhost of its own, a script has to leave the broker as it found it."""
        wire = self.connect()
        for method in dict.fromkeys(self.declared):
            wire.channel(confirm=False)._call(method)
        wire.end()

    def _api(self, method: str, path: str, body: object = None) -> None:
        if not self.broker.management_url:
            raise NeedsManagementError(f"{method} {path}: this broker has no management API")
        self.broker.api(method, path, body)

    def note(self, where: str, step: str, got: Plain) -> None:
        """One more entry for the record."""
        self.record.append(Entry(where, step, got))

    def wire(self) -> "Wire":
        """A connection of which nothing has been said yet."""
        wire = Wire(self, str(len(self._wires) + 1))
        self._wires.append(wire)
        return wire

    def connect(self, **options: Any) -> "Wire":
        """A connection that is ready for use, or on which the broker has refused something (see `log_in`)."""
        wire = self.wire()
        wire.log_in(**options)
        return wire

    def channel(self, *, confirm: bool = True) -> "Channel":
        """A channel on a connection of its own: all that most scripts need."""
        return self.connect().channel(confirm=confirm)

    def demand(self, what: str, *, holds: bool) -> None:
        """State what has to hold on the embedded broker, whatever RabbitMQ does."""
        if self._checked and not holds:
            self.note("", "demand", f"not so: {what}")

    # -- the management API ------------------------------------------------------------------------------

    def policy(self, pattern: str, name: str = "policy", priority: int = 0, **definition: object) -> None:
        """Lay a policy over this vhost's queues: `policy("^work$", message_ttl=50)`."""
        path = f"/policies/{self.broker.vhost}/{name}"
        body = {"pattern": pattern, "apply-to": "queues", "priority": priority}
        self._api("PUT", path, {**body, "definition": _dashed(definition)})

    def new_user(self, configure: str = "", write: str = "", read: str = "") -> str:
        """A user who may do in this vhost what the patterns allow; the password is the name."""
        self._user_count += 1
        name = f"somebody-{self._user_count}-{self.broker.vhost}"
        self.names.call(name, "somebody")
        self._api("PUT", f"/users/{name}", {"password": name, "tags": ""})
        self._clean_up.callback(self._api, "DELETE", f"/users/{name}")
        rights = {"configure": configure, "write": write, "read": read}
        self._api("PUT", f"/permissions/{self.broker.vhost}/{name}", rights)
        return name

    def stranger(self) -> str:
        """A user who may do nothing, not even enter this vhost."""
        name = self.new_user()
        self._api("DELETE", f"/permissions/{self.broker.vhost}/{name}")
        return name


class Wire:
    """One connection."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene = scene
        self.name = name
        self.connection = Connection(Role.CLIENT)
        self.channels: dict[int, Channel] = {}
        self.inbox: list[MethodReceived] = []
        self.gone = False  # the broker has hung up
        self.closed_by: m.ConnectionClose | None = None
        self.heartbeats = 0
        self._socket = socket.create_connection((scene.address.hostname, scene.address.port), PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # -- beginning and end -------------------------------------------------------------------------------

    def log_in(
        self,
        user: str | None = None,
        password: str | None = None,
        vhost: str | None = None,
        mechanism: str = "PLAIN",
        capabilities: Mapping[str, object] = CAPABILITIES,
        limits: Limits | None = None,
    ) -> None:
        """Shake hands. Only a refusal goes on record."""
        ours = limits or Limits(heartbeat=0)
        self.send_octets(self.connection.initiate())
        if self.await_method(m.ConnectionStart) is None:
            return
        credentials = Credentials(user or self.scene.user, password or user or self.scene.password)
        response = encode_response(mechanism, credentials)
        self.send(m.ConnectionStartOk({"capabilities": dict(capabilities)}, mechanism, response))
        tune = self.await_method(m.ConnectionTune)
        if tune is None:
            self.note("log in", self.ending())
            return
        answer = self.connection.negotiate(tune, ours)
        # RabbitMQ takes the client's heartbeat as it is; 0 is none, not "whatever you like".
        self.send(m.ConnectionTuneOk(answer.channel_max, answer.frame_max, ours.heartbeat))
        self.send(m.ConnectionOpen(self.scene.broker.vhost if vhost is None else vhost))
        if self.await_method(m.ConnectionOpenOk) is None:
            self.note("open vhost", self.ending())

    def channel(self, *, confirm: bool = True, number: int | None = None) -> "Channel":
        """One more channel, in confirm mode unless a script is about something else."""
        channel = Channel(self, number or max(self.channels, default=0) + 1)
        self.channels[channel.number] = channel
        self.send(m.ChannelOpen(), channel.number)
        channel.await_method(m.ChannelOpenOk)
        if confirm:
            channel.confirms_publishes = True
            channel.send(m.ConfirmSelect())
            channel.await_method(m.ConfirmSelectOk)
        return channel

    def close(self) -> None:
        """End in order, as a client does that has done its work."""
        self.send_octets(self.connection.close())
        self.await_method(m.ConnectionCloseOk)
        self.gone = True
        self._socket.close()

    def drop(self) -> None:
        """Vanish without a word, as a client does whose machine has died."""
        self.gone = True
        self._socket.close()

    def end(self) -> None:
        """End in order if that is still possible, and record what nobody has asked for."""
        if not self.gone and self.connection.state is ConnectionState.RUNNING:
            self.send_octets(self.connection.close())
            with contextlib.suppress(NothingCameError):
                self.until(lambda: self.connection.closed, "connection.close-ok")
        self._socket.close()
        for channel in self.channels.values():
            channel.forget_confirms()
            left = [channel.plain(event) for event in channel.inbox]
            if left:
                self.scene.note(channel.name, "nobody asked for", left)

    # -- steps for scripts about the connection itself ---------------------------------------------------

    def note(self, step: str, got: Plain) -> None:
        """One more entry for the record, about the connection."""
        self.scene.note(self.name, step, got)

    def see_end(self, step: str) -> None:
        """Record how the broker ends this connection."""
        self.until(lambda: self.gone or self.closed_by is not None, "the end of the connection")
        self.note(step, self.ending())

    def ending(self) -> Plain:
        """How the connection has ended."""
        if self.closed_by is not None:
            return self.plain(self.closed_by)
        return "hung up" if self.gone else "still open"

    def octets_until_end(self) -> bytes:
        """Everything the broker says until it hangs up, unread."""
        self._socket.settimeout(PATIENCE)
        octets = b""
        with contextlib.suppress(OSError):
            while more := self._socket.recv(4096):
                octets += more
        self.gone = True
        return octets

    def frames_until(self, kind: type[Method], count: int = 1, more: int = 0) -> list[tuple[int, bytes]]:
        """Channel and payload of each frame up to the last of `count` methods and `more` frames behind it.

        They are not read by the connection: for what its state machine does not expect.
        """
        found: list[tuple[int, bytes]] = []
        head = kind.spec.number.to_bytes(4)
        splitter = FrameSplitter(0)
        self._socket.settimeout(PATIENCE)

        def complete() -> bool:
            wanted = [at for at, (_, payload) in enumerate(found) if payload[:4] == head]
            return len(wanted) >= count and len(found) - wanted[count - 1] > more

        with contextlib.suppress(OSError):
            while not complete():
                octets = self._socket.recv(1 << 20)
                if not octets:
                    self.gone = True
                    break
                found += [(channel, payload) for _, channel, payload in splitter.feed(octets)]
        return found

    def is_alive(self) -> None:
        """Record whether a new channel can be used."""
        channel = self.channel()
        channel.qos(1)

    def plain(self, method: Method) -> Plain:
        """A method for the record."""
        return [method.wire_name(), plain_method(method, self.scene.names)]

    # -- octets ------------------------------------------------------------------------------------------

    def send(self, method: Method, channel: int = 0, content: Content | None = None) -> None:
        """Say something that the protocol allows here."""
        self.send_octets(self.connection.send(method, channel, content))

    def send_anyway(self, method: Method, channel: int = 0) -> None:
        """Say something whether the protocol allows it or not."""
        self.send_octets(method_frame(channel, encode(method)))

    def send_octets(self, octets: bytes) -> None:
        """Say anything."""
        try:
            self._socket.sendall(octets)
        except OSError:
            self.gone = True

    def await_method(self, *kinds: type[Method]) -> Any:
        """The next of these methods on channel 0; None if the connection ends before it."""
        found: list[MethodReceived] = []

        def came() -> bool:
            found[:] = [event for event in self.inbox if isinstance(event.method, kinds)][:1]
            return bool(found) or self.gone or self.closed_by is not None

        self.until(came, " or ".join(kind.wire_name() for kind in kinds))
        if not found:
            return None
        self.inbox.remove(found[0])
        return found[0].method

    def until(self, came: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """Read until `came()`."""
        end = time.monotonic() + patience
        while not came():
            if self.gone or not self.read(end - time.monotonic()):
                raise NothingCameError(f"{what} did not come on connection {self.name}")

    def read(self, seconds: float) -> bool:
        """Take in whatever comes next; False if nothing does in that time."""
        if seconds <= 0:
            return False
        self._socket.settimeout(seconds)
        try:
            octets = self._socket.recv(1 << 20)
        except TimeoutError:
            return False
        except OSError:
            octets = b""
        if not octets:
            self.gone = True
            return True
        for event in self.connection.receive(octets):
            self._take(event)
        return True

    def _take(self, event: object) -> None:
        if isinstance(event, HeartbeatReceived):
            self.heartbeats += 1
        elif isinstance(event, Failed):
            self.note("the broker broke the protocol", [event.channel, str(event.error)])
        elif isinstance(event, MethodReceived):
            if event.channel:
                self.channels[event.channel].take(event)
            elif isinstance(event.method, m.ConnectionClose):
                self.closed_by = event.method
                self.send(m.ConnectionCloseOk())
            else:
                self.inbox.append(event)


class Channel:
    """One channel. Every step but the acknowledgements waits for its answer and records it.

    A publish is answered by its confirm. That is more than a record: when it is here, the queues have the
    message. RabbitMQ counts a queue's messages ahead of what it still has to do, so without the confirm a count
    says little; after an acknowledgement, a get is the only step that waits its turn.
    """

    def __init__(self, wire: Wire, number: int) -> None:
        self.wire = wire
        self.number = number
        self.name = f"{wire.name}.{number}"
        self.inbox: list[MethodReceived] = []
        self.closed_by: m.ChannelClose | None = None
        self.confirms_publishes = False
        self.last: Content | None = None  # what the last get brought
        self._published = 0
        self._verdicts: dict[int, str] = {}

    # -- exchanges, queues, bindings ---------------------------------------------------------------------

    def exchange(
        self,
        exchange: str,
        kind: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        **arguments: object,
    ) -> None:
        """Declare an exchange; `alternate_exchange="x"` is the argument `alternate-exchange`."""
        flags = {"passive": passive, "durable": durable, "auto_delete": auto_delete, "internal": internal}
        self.wire.scene.declared.append(m.ExchangeDelete(exchange))
        self.call(m.ExchangeDeclare(exchange, kind, **flags, arguments=_dashed(arguments)), exchange, kind)

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange."""
        self.call(m.ExchangeDelete(exchange, if_unused), exchange)

    def queue(
        self,
        queue: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        **arguments: object,
    ) -> str:
        """Declare a queue; `message_ttl=50` is the argument `x-message-ttl`. Its name, if it is there."""
        flags = {"passive": passive, "durable": durable, "exclusive": exclusive, "auto_delete": auto_delete}
        table = {f"x-{name}": value for name, value in _dashed(arguments).items()}
        answer = self.call(m.QueueDeclare(queue, **flags, arguments=table), queue)
        name = answer.queue if isinstance(answer, m.QueueDeclareOk) else queue
        self.wire.scene.declared.append(m.QueueDelete(name))
        return name

    def count(self, queue: str) -> None:
        """Record how many messages and consumers a queue has. What it did before has reached us then."""
        self.call(m.QueueDeclare(queue, passive=True), f"{queue} passive")

    def await_count(self, queue: str, messages: int) -> None:
        """Wait until a queue has that many messages; not for the record."""
        self._poll(queue, lambda answer: answer.message_count == messages, f"{messages} messages in {queue}")

    def await_consumers(self, queue: str, consumers: int) -> None:
        """Wait until a queue has that many consumers; not for the record."""
        self._poll(
            queue, lambda answer: answer.consumer_count == consumers, f"{consumers} consumers of {queue}"
        )

    def await_gone(self, queue: str) -> None:
        """Wait until a queue is not there any more; not for the record."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            probe = self.wire.channel(confirm=False)
            if probe._call(m.QueueDeclare(queue, passive=True)) is None:
                return
            time.sleep(TICK)
        raise NothingCameError(f"the end of {queue}")

    def bind(self, queue: str, exchange: str, key: str = "", **arguments: object) -> None:
        """Bind a queue; `x_match="any"` is the argument `x-match`."""
        self.call(m.QueueBind(queue, exchange, key, arguments=_dashed(arguments)), queue, exchange, key)

    def unbind(self, queue: str, exchange: str, key: str = "", **arguments: object) -> None:
        """Undo `bind`."""
        self.call(m.QueueUnbind(queue, exchange, key, _dashed(arguments)), queue, exchange, key)

    def bind_exchange(self, destination: str, source: str, key: str = "") -> None:
        """Bind an exchange to an exchange."""
        self.call(m.ExchangeBind(destination, source, key), destination, source, key)

    def unbind_exchange(self, destination: str, source: str, key: str = "") -> None:
        """Undo `bind_exchange`."""
        self.call(m.ExchangeUnbind(destination, source, key), destination, source, key)

    def purge(self, queue: str) -> None:
        """Throw away what is ready."""
        self.call(m.QueuePurge(queue), queue)

    def delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> None:
        """Delete a queue."""
        self.call(m.QueueDelete(queue, if_unused, if_empty), queue)

    # -- messages ----------------------------------------------------------------------------------------

    def publish(
        self,
        key: str,
        body: str = "",
        exchange: str = "",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        wait: bool = True,
        **properties: Any,
    ) -> None:
        """Publish, and record the confirm if the channel has confirms. Without an exchange, `key` is a queue."""
        content = Content(encode_properties(BasicProperties(**properties)), body.encode())
        self._publish(m.BasicPublish(exchange, key, mandatory, immediate), content, wait=wait)

    def publish_raw(
        self, key: str, properties: bytes, body: str, *, mandatory: bool = False, wait: bool = True
    ) -> None:
        """As `publish` to the default exchange, with properties as they are encoded."""
        method = m.BasicPublish("", key, mandatory)
        self._publish(method, Content(properties, body.encode()), wait=wait)

    def _publish(self, method: m.BasicPublish, content: Content, *, wait: bool) -> None:
        self.send(method, content)
        self._published += 1
        if wait and self.confirms_publishes:
            self.confirms(1)

    def get(self, queue: str, *, no_ack: bool = False, wait: bool = False, record: bool = True) -> int:
        """Get a message, or record that there is none; its delivery tag. `wait`: until there is one."""
        step = f"basic.get {queue}{' no-ack' * no_ack}"
        end = time.monotonic() + PATIENCE
        while True:
            event = self._call(m.BasicGet(queue, no_ack))
            if not wait or event is None or not isinstance(event.method, m.BasicGetEmpty):
                break
            if time.monotonic() > end:
                raise NothingCameError(f"a message in {queue}")
            time.sleep(TICK)
        self.last = event.content if event else None
        if record:
            self.note(step, self.plain(event) if event else self.ending())
        return event.method.delivery_tag if event and isinstance(event.method, m.BasicGetOk) else 0

    def last_headers(self) -> Mapping[str, Any]:
        """The headers of what the last get brought."""
        return {} if self.last is None else self.last.decoded().headers or {}

    def last_body(self) -> str | None:
        """The body that the last get brought."""
        return None if self.last is None else self.last.body.decode()

    def last_reply_to(self) -> str:
        """Where an answer to what the last get brought is to go."""
        return "" if self.last is None else self.last.decoded().reply_to or ""

    def consume(
        self,
        queue: str,
        tag: str = "",
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        **arguments: object,
    ) -> str:
        """Start a consumer; `x_priority=5` is the argument `x-priority`. Its tag, if it started."""
        method = m.BasicConsume(queue, tag, no_ack=no_ack, exclusive=exclusive, arguments=_dashed(arguments))
        answer = self.call(method, queue, tag)
        return answer.consumer_tag if isinstance(answer, m.BasicConsumeOk) else tag

    def cancel(self, tag: str) -> None:
        """End a consumer."""
        self.call(m.BasicCancel(tag), tag)

    def qos(self, count: int, *, for_channel: bool = False, size: int = 0) -> None:
        """Set the prefetch, for consumers to come or for the channel as a whole."""
        self.call(m.BasicQos(size, count, for_channel), str(count), "global" * for_channel)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """A delivery is done."""
        self.send(m.BasicAck(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = False) -> None:
        """Deliveries are refused."""
        self.send(m.BasicNack(tag, multiple, requeue))

    def reject(self, tag: int, *, requeue: bool = False) -> None:
        """A delivery is refused."""
        self.send(m.BasicReject(tag, requeue))

    def recover(self, *, requeue: bool = True) -> None:
        """Give back all open deliveries."""
        self.call(m.BasicRecover(requeue), "requeue" * requeue)

    def pass_time(self, milliseconds: int) -> None:
        """Wait as long as the broker thinks that this takes; not for the record."""
        tick = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "tick"}
        timer = f"timer-{milliseconds}"
        self.wire.scene.declared += [m.QueueDelete("tick"), m.QueueDelete(timer)]
        self._call(m.QueueDeclare("tick"))
        self._call(m.QueueDeclare(timer, arguments={**tick, "x-message-ttl": milliseconds}))
        self.publish(timer, wait=False)
        self.get("tick", wait=True, no_ack=True, record=False)

    # -- modes -------------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Have every publish confirmed."""
        self.call(m.ConfirmSelect())

    def tx(self) -> None:
        """Make the channel transactional."""
        self.call(m.TxSelect())

    def commit(self) -> None:
        """Let the transaction take effect."""
        self.call(m.TxCommit())

    def rollback(self) -> None:
        """Forget the transaction."""
        self.call(m.TxRollback())

    def close(self) -> None:
        """Close the channel in order."""
        self.call(m.ChannelClose())

    # -- what comes without being asked for --------------------------------------------------------------

    def deliveries(self, count: int, tag: str | None = None) -> list[int]:
        """Record the next deliveries, of one consumer if `tag` says so; their delivery tags."""
        events = self._collect(
            count,
            lambda event: (
                isinstance(event.method, m.BasicDeliver) and (tag is None or event.method.consumer_tag == tag)
            ),
        )
        self.note(f"{count} deliveries{f' to {tag}' if tag else ''}", [self.plain(event) for event in events])
        return [event.method.delivery_tag for event in events if isinstance(event.method, m.BasicDeliver)]

    def no_deliveries(self, queue: str) -> None:
        """Record that a queue has nothing more for us: what it had sent before it answers is here."""
        self.count(queue)
        self.note("deliveries so far", [self.plain(event) for event in self._take_now(m.BasicDeliver)])

    def confirms(self, count: int) -> None:
        """Record what became of the last publishes, one by one: a broker may settle several at once."""
        wanted = range(self._published - count + 1, self._published + 1)

        def came() -> bool:
            for event in self._take_now(m.BasicAck, m.BasicNack):
                self._settle(event.method)
            return self.is_over or all(tag in self._verdicts for tag in wanted)

        self.wire.until(came, f"{count} confirms on channel {self.name}")
        verdicts: list[Plain] = [self._verdicts[tag] for tag in wanted if tag in self._verdicts]
        self.note("confirms", verdicts if len(verdicts) == count else [*verdicts, self.ending()])

    def forget_confirms(self) -> None:
        """Confirms that no step waited for are nothing to wonder about."""
        self._take_now(m.BasicAck, m.BasicNack)

    def _settle(self, method: Any) -> None:
        first = 1 if method.multiple else method.delivery_tag
        for tag in range(first, method.delivery_tag + 1):
            self._verdicts.setdefault(tag, "ack" if isinstance(method, m.BasicAck) else "nack")

    def arrivals(self, count: int) -> None:
        """Record the next things that come on this channel, whatever they are, in the order they come."""
        events = self._collect(count, lambda event: True)
        self.note(f"{count} arrivals", [self.plain(event) for event in events])

    def see_close(self, step: str) -> None:
        """Record how the broker ends this channel."""
        self.wire.until(lambda: self.is_over, f"the end of channel {self.name}")
        self.note(step, self.ending())

    # -- one floor down ----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come."""
        return self.closed_by is not None or self.wire.closed_by is not None or self.wire.gone

    def ending(self) -> Plain:
        """How the channel has ended."""
        return self.wire.ending() if self.closed_by is None else self.wire.plain(self.closed_by)

    def note(self, step: str, got: Plain) -> None:
        """One more entry for the record, about this channel."""
        self.wire.scene.note(self.name, self.wire.scene.names.text(step), got)

    def send(self, method: Method, content: Content | None = None) -> None:
        """Say something on this channel, if there still is one."""
        if not self.is_over:
            self.wire.send(method, self.number, content)

    def call(self, method: Method, *told: str) -> Method | None:
        """Say something, wait for the answer and record it; None if the channel ended instead."""
        event = self._call(method)
        step = " ".join(filter(None, (method.wire_name(), *told)))
        self.note(step, self.plain(event) if event else self.ending())
        return event.method if event else None

    def _call(self, method: Method) -> MethodReceived | None:
        self.send(method)
        kinds = tuple(m.BY_NAME[name] for name in method.spec.replies)
        return next(iter(self._collect(1, lambda event: isinstance(event.method, kinds))), None)

    def await_method(self, kind: type[Method]) -> None:
        """Wait for a method that is not worth a line in the record."""
        self._collect(1, lambda event: isinstance(event.method, kind))

    def take(self, event: MethodReceived) -> None:
        """Something has come on this channel."""
        if isinstance(event.method, m.ChannelClose):
            self.closed_by = event.method
            self.wire.send(m.ChannelCloseOk(), self.number)
        else:
            self.inbox.append(event)

    def plain(self, event: MethodReceived) -> Plain:
        """An event for the record: name, fields, and the message if it has one."""
        names = self.wire.scene.names
        plain: list[Plain] = [event.method.wire_name(), plain_method(event.method, names)]
        if event.content is not None:
            plain.append(plain_properties(event.content.decoded(), names))
            plain.append(event.content.body.decode("utf-8", "backslashreplace"))
        return plain

    def _collect(self, count: int, wanted: Callable[[MethodReceived], bool]) -> list[MethodReceived]:
        """The next events of a kind; fewer if the channel ends before they are there."""
        found: list[MethodReceived] = []

        def came() -> bool:
            for event in [event for event in self.inbox if wanted(event)][: count - len(found)]:
                self.inbox.remove(event)
                found.append(event)
            return len(found) >= count or self.is_over

        self.wire.until(came, f"{count} more events on channel {self.name}, after {len(found)},")
        return found

    def _take_now(self, *kinds: type[Method]) -> list[MethodReceived]:
        """What is here of these kinds, without waiting."""
        taken = [event for event in self.inbox if isinstance(event.method, kinds)]
        self.inbox = [event for event in self.inbox if not isinstance(event.method, kinds)]
        return taken

    def _poll(self, queue: str, is_so: Callable[[m.QueueDeclareOk], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            event = self._call(m.QueueDeclare(queue, passive=True))
            if event is None or (isinstance(event.method, m.QueueDeclareOk) and is_so(event.method)):
                return
            if time.monotonic() > end:
                raise NothingCameError(what)
            time.sleep(TICK)


def _dashed(arguments: Mapping[str, object]) -> dict[str, object]:
    """`{"message_ttl": 50}` as the wire spells it."""
    return {name.replace("_", "-"): value for name, value in arguments.items()}
