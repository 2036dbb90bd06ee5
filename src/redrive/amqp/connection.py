"""What the two ends of an AMQP connection may say to each other, and what it means.

Octets in, events out; methods in, octets out. There is no socket, no clock and no task in here, and one
class plays both roles. The rule: the peer's mistakes come out of `receive` as `Failed` events, never as
exceptions, with everything that an answer needs; our own mistakes are `MisuseError`s from `send`, raised
before anything has changed. Nothing is answered by itself: on `ConnectionClose` the owner sends
`ConnectionCloseOk`, on `Failed` it sends `close_for(error)`.

    connection = Connection(Role.CLIENT)
    sock.write(connection.initiate())
    for event in connection.receive(octets): ...
    sock.write(connection.send(BasicPublish(routing_key="q"), channel=1, content=Content(body=b"…")))

`receive` is made of layers that can be used alone. A broker in a hurry reads `splitter.feed_batches` itself,
takes publishes and acks on channels that are in `ready` by their raw payloads, and gives everything else to
`handle`. The steps themselves stand in `states`, what the ends agree on in `limits`, what comes out in
`events`. What is not known here: users, queues, messages.
"""

import struct
from collections.abc import Iterator
from typing import Final

from redrive.amqp import methods as m
from redrive.amqp.codec import decode, describe, encode
from redrive.amqp.content import MAX_MESSAGE_SIZE, Content, ContentAssembler
from redrive.amqp.errors import AmqpError, HardError, MisuseError, ReplyCode, SoftError, fit_reply_text
from redrive.amqp.events import (
    Event,
    Failed,
    HeaderReceived,
    HeaderRefused,
    HeartbeatReceived,
    MethodReceived,
)
from redrive.amqp.frames import (
    BODY,
    CONTENT_HEADER_SIZE,
    FRAME_MIN_SIZE,
    FRAME_OVERHEAD,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    PROTOCOL_HEADER,
    FrameSplitter,
    content_frames,
    method_frame,
    read_protocol_header,
)
from redrive.amqp.heartbeat import Heartbeats
from redrive.amqp.limits import Limits, answer_to, check_answer
from redrive.amqp.methods import Method, Role
from redrive.amqp.states import (
    CARRIES,
    CHANNEL_CLOSING,
    CHANNEL_STEPS,
    CONNECTION_CARRIES,
    CONNECTION_STEPS,
    ChannelState,
    ConnectionState,
)

# Until the limits are agreed on, and the least that a server agrees to; both as RabbitMQ 4.3.
HANDSHAKE_FRAME_MAX: Final = 8192
SERVER_LEAST_FRAME_MAX: Final = 8192
CHANNEL_MAX: Final = 65535
_CONNECTION: Final = 10
_CHANNEL: Final = 20


class Connection:
    """One end of a connection.

    `state`, `channels` and `limits` may be read at any time; `ready` has the channels that are open and not
    in the middle of a content.
    """

    __slots__ = (
        "_early",
        "_fresh",
        "_must_answer",
        "_tuned",
        "assembler",
        "channels",
        "heartbeats",
        "limits",
        "peer",
        "ready",
        "role",
        "splitter",
        "state",
    )

    def __init__(
        self, role: Role, limits: Limits | None = None, max_message_size: int = MAX_MESSAGE_SIZE
    ) -> None:
        if role not in (Role.CLIENT, Role.SERVER):
            raise MisuseError("the role must be Role.CLIENT or Role.SERVER")
        self.role = role
        self.peer = Role.SERVER if role is Role.CLIENT else Role.CLIENT
        self.limits = limits if limits is not None else Limits()
        self.state = ConnectionState.AWAIT_HEADER
        self.channels: dict[int, ChannelState] = {}
        self.ready: set[int] = set()
        self.splitter = FrameSplitter(HANDSHAKE_FRAME_MAX)
        self.assembler: ContentAssembler[Method] = ContentAssembler(max_message_size)
        self.heartbeats = Heartbeats(0)
        self._fresh = True  # nothing has come yet, or not the whole protocol header
        self._early = b""  # what there is of it
        self._tuned: m.ConnectionTune | None = None
        self._must_answer: set[int] = set()  # where the peer's close waits for close-ok; 0: the connection

    @property
    def closed(self) -> bool:
        """Whether everything has been said."""
        return self.state is ConnectionState.CLOSED

    # -- receiving ---------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """What `data` completes, in order. Never raises for what a peer does."""
        return list(self.events(data))

    def events(self, data: bytes) -> Iterator[Event]:
        """What `data` completes, one by one: what is sent meanwhile counts for the frames that follow.

        So a server can answer a client that does not wait for the answers of the handshake.
        """
        events: list[Event] = []
        if self.closed or self.splitter.error is not None:
            return
        if self._fresh:
            data = self._receive_first(data, events)
            yield from events
            if not data:
                return
        while True:
            limits = self.limits
            for kind, channel, payload in self.splitter.feed(data):
                yield from self.handle(kind, channel, payload)
            if self.limits is limits or self.splitter.error is not None:
                break
            # Frames behind a tune-ok in the same chunk were held against the limits before it.
            data = b""
        events = []
        self.check_splitter(events)
        yield from events

    def check_splitter(self, events: list[Event]) -> None:
        """Add the `Failed` event of a stream that could not be split; for those who read it themselves."""
        if self.splitter.error is not None and not self.closed:
            self._fail(0, self.splitter.error, events)

    def handle(self, kind: int, channel: int, payload: bytes) -> list[Event]:
        """What one frame means."""
        events: list[Event] = []
        if self.closed:
            return events
        if kind == HEARTBEAT:
            return [HeartbeatReceived()]
        if self._is_deaf() and (channel or kind != METHOD or not _is_close(payload, _CONNECTION)):
            return events
        try:
            if channel == 0:
                self._receive_on_connection(kind, payload, events)
            else:
                self._receive_on_channel(kind, channel, payload, events)
        except SoftError as error:
            self._fail(channel, error, events)
        except AmqpError as error:
            self._fail(0, error, events)
        return events

    def _receive_first(self, data: bytes, events: list[Event]) -> bytes:
        """Deal with what may stand in front of the first frame; what is left of `data`."""
        data = self._early + data
        verdict = read_protocol_header(data[:8])
        if self.role is Role.CLIENT:
            # Servers have no header to show, unless to say which one they would have liked.
            self._fresh = not data
            if data.startswith(b"A"):
                text = "the server does not speak AMQP 0-9-1: it answered with another protocol header"
                self._move(ConnectionState.CLOSED)
                events.append(Failed(0, HardError(ReplyCode.NOT_IMPLEMENTED, text)))
                return b""
            return data
        if verdict is None:
            self._early = data
            return b""
        self._fresh, self._early = False, b""
        if not verdict:
            self._move(ConnectionState.CLOSED)
            events.append(HeaderRefused())
            return b""
        self._move(ConnectionState.AWAIT_START)
        events.append(HeaderReceived())
        return data[8:]

    def _receive_on_connection(self, kind: int, payload: bytes, events: list[Event]) -> None:
        if kind != METHOD:
            raise HardError(ReplyCode.UNEXPECTED_FRAME, "a content frame on channel 0")
        method = decode(payload)
        self._check_sender(method)
        step = CONNECTION_STEPS.get((self.state, self.peer, type(method)))
        if step is None:
            text = f"unexpected {method.wire_name()} in connection state {self.state.name.lower()}"
            raise HardError(ReplyCode.CHANNEL_ERROR, text, method.spec.class_id, method.spec.method_id)
        if isinstance(method, m.ConnectionTune):
            self._tuned = method
        elif isinstance(method, m.ConnectionTuneOk):
            self._agree(method)
        elif isinstance(method, m.ConnectionClose):
            self._must_answer.add(0)
        self._move(step)
        events.append(MethodReceived(0, method))

    def _receive_on_channel(self, kind: int, channel: int, payload: bytes, events: list[Event]) -> None:
        if (self.state, self.peer) not in CONNECTION_CARRIES:
            text = f"a frame on channel {channel} in connection state {self.state.name.lower()}"
            raise HardError(ReplyCode.UNEXPECTED_FRAME, text)
        state = self.channels.get(channel, ChannelState.CLOSED)
        deaf = state is CHANNEL_CLOSING[self.role] or state is ChannelState.FAILED
        if deaf and (kind != METHOD or not _is_close(payload, _CHANNEL)):
            return
        whole = None
        if kind == METHOD:
            self.assembler.check_method(channel)
            method = decode(payload)
            self._check_sender(method)
            self._step_channel(channel, state, self.peer, method)
            if method.spec.content:
                self.assembler.begin(channel, method, method.spec.method_id)
                self.ready.discard(channel)
            else:
                events.append(MethodReceived(channel, method))
            return
        if (state, self.peer) not in CARRIES:
            raise HardError(ReplyCode.CHANNEL_ERROR, f"content on channel {channel}, which is not open")
        if kind == HEADER:
            whole = self.assembler.header(channel, payload)
        elif kind == BODY:
            whole = self.assembler.body(channel, payload)
        if whole is not None:
            if state is ChannelState.OPEN:
                self.ready.add(channel)
            events.append(MethodReceived(channel, *whole))

    def _step_channel(self, channel: int, state: ChannelState, sender: Role, method: Method) -> None:
        """Move the channel on, or raise and leave it as it is."""
        class_id, method_id = method.spec.class_id, method.spec.method_id
        if class_id == _CONNECTION:
            text = f"{method.wire_name()} belongs on channel 0"
            raise HardError(ReplyCode.COMMAND_INVALID, text, class_id, method_id)
        if class_id != _CHANNEL:
            if (state, sender) in CARRIES:
                return
            raise _not_open(channel, state, method)
        step = CHANNEL_STEPS.get((state, sender, type(method)))
        if step is None:
            raise _not_open(channel, state, method)
        if isinstance(method, m.ChannelOpen):
            self._check_channel_max()
        if isinstance(method, m.ChannelClose) and sender is self.peer:
            self._must_answer.add(channel)
        self._set_channel(channel, step)

    def _check_channel_max(self) -> None:
        """Whether one more channel may be opened; the numbers of channels do not matter."""
        most = self.limits.channel_max
        if not most or len(self.channels) < most:
            return
        count = sum(state in (ChannelState.OPENING, ChannelState.OPEN) for state in self.channels.values())
        if count >= most:
            text = f"number of channels opened ({count}) has reached the negotiated channel_max ({most})"
            raise HardError(ReplyCode.NOT_ALLOWED, text)

    def _set_channel(self, channel: int, state: ChannelState) -> None:
        if state is ChannelState.CLOSED:
            self.channels.pop(channel, None)
            self._must_answer.discard(channel)
        else:
            self.channels[channel] = state
        if state in (ChannelState.OPEN, ChannelState.OPENING):
            if state is ChannelState.OPEN and channel not in self.assembler.pending:
                self.ready.add(channel)
        else:
            self.ready.discard(channel)
            self.assembler.drop(channel)

    def _check_sender(self, method: Method) -> None:
        if not method.spec.sender & self.peer:
            text = f"{method.wire_name()} is not for a {_end(self.peer)} to send"
            raise HardError(ReplyCode.COMMAND_INVALID, text, method.spec.class_id, method.spec.method_id)

    def _agree(self, answer: m.ConnectionTuneOk) -> None:
        """Hold to what the client has answered, or raise and leave everything as it is."""
        least = SERVER_LEAST_FRAME_MAX if self.role is Role.SERVER else FRAME_MIN_SIZE
        check_answer(self._tuned or m.ConnectionTune(), answer, least)
        self.limits = Limits(answer.frame_max, answer.channel_max, answer.heartbeat)
        self.splitter.limit(answer.frame_max)
        self.heartbeats = Heartbeats(answer.heartbeat)

    def _fail(self, channel: int, error: AmqpError, events: list[Event]) -> None:
        if channel:
            self._set_channel(channel, ChannelState.FAILED)
        else:
            # One failure is enough, and one that comes while we are closing anyway is none.
            if self._is_deaf():
                return
            self._move(ConnectionState.FAILED)
        events.append(Failed(channel, error))

    def _is_deaf(self) -> bool:
        """Whether anything but a close is to be ignored: we failed, we are closing, or the peer is."""
        return self.state in _DEAF

    def _move(self, state: ConnectionState) -> None:
        self.state = state
        if state in _DEAF or state is ConnectionState.CLOSED:
            self.ready.clear()
            self.channels.clear()
            self.assembler.pending.clear()
            self._must_answer &= {0}

    # -- sending -----------------------------------------------------------------------------------------

    def initiate(self) -> bytes:
        """The client's first octets."""
        if self.role is not Role.CLIENT or self.state is not ConnectionState.AWAIT_HEADER:
            raise MisuseError("only a client begins, and only once")
        self.state = ConnectionState.AWAIT_START
        return PROTOCOL_HEADER

    def negotiate(self, tune: m.ConnectionTune, ours: Limits | None = None) -> m.ConnectionTuneOk:
        """The client's answer to what the server proposes: the lower of both."""
        return answer_to(tune, ours if ours is not None else self.limits)

    def send(self, method: Method, channel: int = 0, content: Content | None = None) -> bytes:
        """The octets of a method, with its content if it has one. Raises before anything has changed."""
        name = method.wire_name()
        if not 0 <= channel <= CHANNEL_MAX:
            raise MisuseError(f"there is no channel {channel}")
        if not method.spec.sender & self.role:
            raise MisuseError(f"{name} is not for a {_end(self.role)} to send")
        if method.spec.content is not (content is not None):
            raise MisuseError(f"{name} {'needs' if method.spec.content else 'has no'} content")
        payload = encode(method)
        frame_max = self._frame_max()
        if frame_max and len(payload) > frame_max - FRAME_OVERHEAD:
            raise MisuseError(f"{name} of {len(payload)} octets does not fit a frame of {frame_max}")
        octets = method_frame(channel, payload)
        if content is not None:
            size = len(content.properties)
            if frame_max and size + CONTENT_HEADER_SIZE > frame_max - FRAME_OVERHEAD:
                text = f"properties of {size} octets do not fit a frame of {frame_max}: shorten the headers"
                raise MisuseError(text)
            octets += content_frames(channel, content.properties, content.body, frame_max)
        if channel == 0:
            self._send_on_connection(method)
        else:
            self._send_on_channel(method, channel)
        return octets

    def close_for(self, error: AmqpError, channel: int = 0) -> bytes:
        """The close that answers an error: of the channel if it is a `SoftError` on one, else of all."""
        fields = (int(error.code), error.reply_text, error.class_id, error.method_id)
        if channel and isinstance(error, SoftError):
            return self.send(m.ChannelClose(*fields), channel)
        return self.send(m.ConnectionClose(*fields))

    def close(self, text: str = "", code: int = ReplyCode.SUCCESS) -> bytes:
        """An orderly end of the connection."""
        return self.send(m.ConnectionClose(code, fit_reply_text(text)))

    def _send_on_connection(self, method: Method) -> None:
        step = CONNECTION_STEPS.get((self.state, self.role, type(method)))
        if step is None or (isinstance(method, m.ConnectionCloseOk) and 0 not in self._must_answer):
            state = self.state.name.lower()
            raise MisuseError(f"{method.wire_name()} cannot be sent on channel 0 in connection state {state}")
        if isinstance(method, m.ConnectionTune):
            self._tuned = method
        elif isinstance(method, m.ConnectionTuneOk):
            try:
                self._agree(method)
            except HardError as error:
                raise MisuseError(error.text) from None
        elif isinstance(method, m.ConnectionCloseOk):
            self._must_answer.discard(0)
        self._move(step)

    def _send_on_channel(self, method: Method, channel: int) -> None:
        if (self.state, self.role) not in CONNECTION_CARRIES:
            state = self.state.name.lower()
            raise MisuseError(f"{method.wire_name()} cannot be sent in connection state {state}")
        if isinstance(method, m.ChannelCloseOk) and channel not in self._must_answer:
            raise MisuseError(f"channel {channel}: there is no close to answer")
        try:
            self._step_channel(channel, self.channels.get(channel, ChannelState.CLOSED), self.role, method)
        except HardError as error:
            raise MisuseError(error.text) from None
        if isinstance(method, m.ChannelCloseOk):
            self._must_answer.discard(channel)

    def _frame_max(self) -> int:
        return HANDSHAKE_FRAME_MAX if self.state in _BEFORE_TUNE else self.limits.frame_max

    # -- time --------------------------------------------------------------------------------------------

    def heartbeat(self) -> bytes:
        """A heartbeat frame; harmless at any time after the protocol header."""
        return HEARTBEAT_FRAME

    def next_heartbeat_due(self, now: float) -> float | None:
        """When the next heartbeat is to be sent; see `heartbeat`."""
        return self.heartbeats.next_due(now)

    def peer_is_dead(self, now: float) -> bool:
        """Whether the peer has missed two heartbeats."""
        return self.heartbeats.peer_is_dead(now)


_DEAF: Final = frozenset(
    {ConnectionState.FAILED, ConnectionState.CLIENT_CLOSING, ConnectionState.SERVER_CLOSING}
)
_BEFORE_TUNE: Final = frozenset(
    {
        ConnectionState.AWAIT_HEADER,
        ConnectionState.AWAIT_START,
        ConnectionState.AWAIT_START_OK,
        ConnectionState.AWAIT_TUNE,
        ConnectionState.AWAIT_SECURE_OK,
        ConnectionState.AWAIT_TUNE_OK,
    }
)


def _end(role: Role) -> str:
    return "client" if role is Role.CLIENT else "server"


def _is_close(payload: bytes, class_id: int) -> bool:
    """Whether a method payload is the close or close-ok of a class."""
    close = 50 if class_id == _CONNECTION else 40
    return payload[:4] in (struct.pack(">HH", class_id, close), struct.pack(">HH", class_id, close + 1))


def _not_open(channel: int, state: ChannelState, method: Method) -> HardError:
    code = ReplyCode.CHANNEL_ERROR
    if isinstance(method, m.ChannelCloseOk) and state is ChannelState.OPEN:
        code, text = (
            ReplyCode.COMMAND_INVALID,
            (f"channel.close-ok on channel {channel}, which was not being closed"),
        )
    elif isinstance(method, m.ChannelOpen):
        text = f"second channel.open seen on channel {channel}"
    elif state is ChannelState.CLOSED:
        text = f"expected channel.open on channel {channel}, got {method.wire_name()}"
    else:
        text = (
            f"unexpected {describe(method.spec.number)} on channel {channel}, which is {state.name.lower()}"
        )
    return HardError(code, text, method.spec.class_id, method.spec.method_id)
