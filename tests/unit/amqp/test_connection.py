"""A client and a server joined in memory, and everything a peer can do wrong."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies as st

from redrive.amqp import (
    AmqpError,
    BasicProperties,
    ChannelState,
    Connection,
    ConnectionState,
    Content,
    Event,
    Failed,
    FrameSyntaxError,
    HardError,
    HeaderReceived,
    HeaderRefused,
    HeartbeatReceived,
    Limits,
    MethodReceived,
    MisuseError,
    ReplyCode,
    Role,
    SoftError,
    encode_properties,
    methods as m,
)
from redrive.amqp.codec import encode
from redrive.amqp.frames import (
    CONTENT,
    HEARTBEAT_FRAME,
    PROTOCOL_HEADER,
    content_frames,
    content_header,
    expand,
    method_frame,
)
from redrive.amqp.limits import lower
from redrive.amqp.sasl import Credentials, decode_response, encode_response

PERSISTENT = encode_properties(BasicProperties(delivery_mode=2, message_id="m"))


class Pair:
    """A client and a server whose wires are joined; `step` is how many octets arrive at a time."""

    def __init__(self, step: int = 0, client: Limits | None = None, server: Limits | None = None) -> None:
        self.client = Connection(Role.CLIENT, client)
        self.server = Connection(Role.SERVER, server, max_message_size=100_000)
        self.step = step

    def pieces(self, octets: bytes) -> Iterator[bytes]:
        step = self.step or len(octets) or 1
        for start in range(0, len(octets), step):
            yield octets[start : start + step]

    def to_server(self, octets: bytes) -> list[Event]:
        return [event for piece in self.pieces(octets) for event in self.server.receive(piece)]

    def to_client(self, octets: bytes) -> list[Event]:
        return [event for piece in self.pieces(octets) for event in self.client.receive(piece)]

    def ask(self, method: m.Method, channel: int = 0, content: Content | None = None) -> None:
        """The client sends; exactly this arrives."""
        events = self.to_server(self.client.send(method, channel, content))
        assert events == [MethodReceived(channel, method, content)]

    def answer(self, method: m.Method, channel: int = 0, content: Content | None = None) -> None:
        """The server sends; exactly this arrives."""
        events = self.to_client(self.server.send(method, channel, content))
        assert events == [MethodReceived(channel, method, content)]

    def open(self) -> "Pair":
        assert self.to_server(self.client.initiate()) == [HeaderReceived()]
        self.answer(m.ConnectionStart(server_properties={"product": "redrive"}))
        login = encode_response("PLAIN", Credentials("guest", "guest"))
        self.ask(m.ConnectionStartOk(response=login))
        limits = self.server.limits
        tune = m.ConnectionTune(limits.channel_max, limits.frame_max, limits.heartbeat)
        self.answer(tune)
        self.ask(self.client.negotiate(tune))
        self.ask(m.ConnectionOpen("/"))
        self.answer(m.ConnectionOpenOk())
        return self

    def channel(self, number: int = 1) -> "Pair":
        self.ask(m.ChannelOpen(), number)
        self.answer(m.ChannelOpenOk(), number)
        return self


@pytest.fixture
def pair() -> Pair:
    return Pair().open().channel()


def fails(events: list[Event]) -> AmqpError:
    """The one failure at the end of the events."""
    assert events
    last = events[-1]
    assert isinstance(last, Failed)
    return last.error


@pytest.mark.parametrize("step", [0, 1, 5, 1000])
def test_a_whole_life_in_any_chunks(step: int) -> None:
    pair = Pair(step, client=Limits(frame_max=8192)).open().channel().channel(2)
    assert pair.client.limits == pair.server.limits == Limits(8192, 2047, 60)
    pair.ask(m.QueueDeclare("q", durable=True, arguments={"x-max-length": 5}), 1)
    pair.answer(m.QueueDeclareOk("q", 0, 0), 1)
    pair.ask(m.BasicConsume("q", "c"), 2)
    pair.answer(m.BasicConsumeOk("c"), 2)
    for body in (b"", b"x", b"x" * 8184, b"x" * 8185, b"x" * 20_000):
        content = Content(PERSISTENT, body)
        pair.ask(m.BasicPublish("", "q"), 1, content)
        pair.answer(m.BasicDeliver("c", 1, False, "", "q"), 2, content)
        pair.ask(m.BasicAck(1), 2)
    assert pair.to_server(pair.client.heartbeat()) == [HeartbeatReceived()]
    pair.ask(m.ChannelClose(200, "bye"), 1)
    pair.answer(m.ChannelCloseOk(), 1)
    assert pair.client.channels == pair.server.channels == {2: ChannelState.OPEN}
    assert pair.client.ready == pair.server.ready == {2}
    pair.ask(m.ConnectionClose(200, "bye"))
    pair.answer(m.ConnectionCloseOk())
    assert pair.client.closed
    assert pair.server.closed
    assert pair.to_server(HEARTBEAT_FRAME) == []


def test_the_server_may_close_too(pair: Pair) -> None:
    pair.answer(m.ChannelClose(404, "NOT_FOUND - no queue"), 1)
    pair.ask(m.ChannelCloseOk(), 1)
    pair.channel(1)
    pair.answer(m.ConnectionClose(320, "CONNECTION_FORCED - shutting down"))
    pair.ask(m.ConnectionCloseOk())
    assert pair.client.closed
    assert pair.server.closed


def test_a_login_may_take_several_rounds_and_be_refused() -> None:
    pair = Pair()
    pair.to_server(pair.client.initiate())
    pair.answer(m.ConnectionStart())
    pair.ask(m.ConnectionStartOk(mechanism="PLAIN", response=b"\x00a\x00b"))
    pair.answer(m.ConnectionSecure(b"really?"))
    pair.ask(m.ConnectionSecureOk(b"yes"))
    assert decode_response("PLAIN", b"\x00a\x00b") == Credentials("a", "b")
    refused = SoftError(ReplyCode.ACCESS_REFUSED, "login refused")
    events = pair.to_client(pair.server.close_for(refused))
    assert events == [MethodReceived(0, m.ConnectionClose(403, "ACCESS_REFUSED - login refused"))]
    pair.ask(m.ConnectionCloseOk())
    assert pair.server.closed


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"), [(0, 0, 0), (0, 5, 5), (5, 0, 5), (4, 5, 4), (5, 4, 4)]
)
def test_the_lower_limit_holds_and_zero_is_none(ours: int, theirs: int, agreed: int) -> None:
    assert lower(ours, theirs) == agreed


@pytest.mark.parametrize(
    ("client", "server", "agreed"),
    [
        (Limits(0, 0, 0), Limits(0, 0, 0), Limits(0, 0, 0)),
        (Limits(0, 0, 0), Limits(131072, 2047, 60), Limits(131072, 2047, 60)),
        (Limits(8192, 10, 5), Limits(131072, 2047, 60), Limits(8192, 10, 5)),
        (Limits(131072, 2047, 60), Limits(0, 0, 0), Limits(131072, 2047, 60)),
    ],
)
def test_limits_are_negotiated(client: Limits, server: Limits, agreed: Limits) -> None:
    pair = Pair(client=client, server=server).open()
    assert pair.client.limits == pair.server.limits == agreed


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (m.ConnectionTuneOk(2047, 131073, 60), "frame_max = 131073 is higher"),
        (m.ConnectionTuneOk(2047, 0, 60), r"frame_max = 0 \(no limit\) is higher"),
        (m.ConnectionTuneOk(2047, 4095, 60), "frame_max = 4095 is lower"),
        (m.ConnectionTuneOk(2048, 131072, 60), "channel_max = 2048 is higher"),
        (m.ConnectionTuneOk(0, 131072, 60), "channel_max = 0"),
    ],
)
def test_a_client_that_raises_a_limit_is_not_allowed(answer: m.ConnectionTuneOk, words: str) -> None:
    pair = Pair()
    pair.to_server(pair.client.initiate())
    pair.answer(m.ConnectionStart())
    pair.ask(m.ConnectionStartOk())
    pair.answer(m.ConnectionTune(2047, 131072, 60))
    with pytest.raises(MisuseError, match=words):
        pair.client.send(answer)
    error = fails(pair.to_server(method_frame(0, encode(answer))))
    assert error.code is ReplyCode.NOT_ALLOWED


@pytest.mark.parametrize("hello", [b"AMQP\x00\x01\x00\x00", b"GET / HTTP/1.1\r\n", b"\x00", b"AMQP\x03"])
def test_a_wrong_protocol_header_is_answered_with_ours(hello: bytes) -> None:
    server = Connection(Role.SERVER)
    assert server.receive(hello) == [HeaderRefused(PROTOCOL_HEADER)]
    assert server.closed
    assert server.receive(PROTOCOL_HEADER) == []


def test_a_protocol_header_may_come_in_pieces() -> None:
    server = Connection(Role.SERVER)
    for octet in PROTOCOL_HEADER[:-1]:
        assert server.receive(bytes((octet,))) == []
    assert server.receive(PROTOCOL_HEADER[-1:]) == [HeaderReceived()]


def test_a_client_understands_the_header_of_a_server_that_speaks_something_else() -> None:
    client = Connection(Role.CLIENT)
    client.initiate()
    error = fails(client.receive(b"AMQP\x00\x01\x00\x00"))
    assert "does not speak AMQP 0-9-1" in error.text
    assert client.closed


def test_frames_behind_a_tune_ok_are_held_against_the_new_limit() -> None:
    pair = Pair()
    pair.to_server(pair.client.initiate())
    pair.answer(m.ConnectionStart())
    pair.ask(m.ConnectionStartOk())
    pair.answer(m.ConnectionTune(2047, 131072, 60))
    content = Content(body=b"x" * 50_000)
    ahead = (
        pair.client.send(m.ConnectionTuneOk(2047, 131072, 60))
        + pair.client.send(m.ConnectionOpen("/"))
        + pair.client.send(m.ChannelOpen(), 1)
        + pair.client.send(m.BasicPublish("", "q"), 1, content)
    )
    events = pair.to_server(ahead)
    assert events[-1] == MethodReceived(1, m.BasicPublish("", "q"), content)
    assert pair.server.ready == set()
    pair.server.send(m.ConnectionOpenOk())
    pair.server.send(m.ChannelOpenOk(), 1)
    assert pair.server.ready == {1}


def test_server_handles_a_handshake_sent_in_one_piece() -> None:
    server = Connection(Role.SERVER)
    methods = (m.ConnectionStartOk(), m.ConnectionTuneOk(2047, 131072, 60), m.ConnectionOpen("/"))
    ahead = PROTOCOL_HEADER + b"".join(method_frame(0, encode(method)) for method in methods)
    answers = iter((m.ConnectionStart(), m.ConnectionTune(2047, 131072, 60), None, m.ConnectionOpenOk()))
    for event in server.events(ahead + method_frame(1, encode(m.ChannelOpen()))):
        assert not isinstance(event, Failed)
        if (answer := next(answers, None)) is not None:
            server.send(answer)
    assert server.channels == {1: ChannelState.OPENING}


def test_server_refuses_a_frame_max_below_8192_and_client_accepts_4096() -> None:
    for frame_max, refused in ((8192, False), (8191, True)):
        pair = Pair(server=Limits(frame_max=131072))
        pair.to_server(pair.client.initiate())
        pair.answer(m.ConnectionStart())
        pair.ask(m.ConnectionStartOk())
        pair.answer(m.ConnectionTune(2047, 131072, 60))
        events = pair.to_server(pair.client.send(m.ConnectionTuneOk(2047, frame_max, 60)))
        assert isinstance(events[-1], Failed) is refused
    client = Connection(Role.CLIENT, Limits())
    assert client.negotiate(m.ConnectionTune(2047, 4096, 60)).frame_max == 4096


def test_channel_max_limits_the_number_of_open_channels() -> None:
    pair = Pair(client=Limits(channel_max=2)).open()
    for number in (60_000, 7):
        pair.channel(number)
    error = fails(pair.to_server(method_frame(8, encode(m.ChannelOpen()))))
    assert error.code is ReplyCode.NOT_ALLOWED
    assert error.text == "number of channels opened (2) has reached the negotiated channel_max (2)"
    with pytest.raises(MisuseError, match="number of channels"):
        pair.client.send(m.ChannelOpen(), 8)


def test_closed_channel_makes_room_below_channel_max() -> None:
    pair = Pair(client=Limits(channel_max=1)).open().channel(1)
    pair.to_client(pair.server.close_for(SoftError(ReplyCode.NOT_FOUND, "no queue"), 1))
    pair.channel(2)
    assert pair.server.channels[2] is ChannelState.OPEN


def test_a_frame_too_long_for_the_handshake_is_refused() -> None:
    server = Connection(Role.SERVER)
    server.receive(PROTOCOL_HEADER)
    server.send(m.ConnectionStart())
    error = fails(server.receive(method_frame(0, b"x" * 10_000)))
    assert error.code is ReplyCode.FRAME_ERROR


def publish_frames(channel: int = 1) -> tuple[bytes, bytes, bytes]:
    method = method_frame(channel, encode(m.BasicPublish("", "q")))
    header = content_frames(channel, PERSISTENT, b"abc", 0)[: -(7 + 3 + 1)]
    body = content_frames(channel, PERSISTENT, b"abc", 0)[-(7 + 3 + 1) :]
    return method, header, body


METHOD, HEADER, BODY = publish_frames()

HARD: list[tuple[str, bytes, ReplyCode]] = [
    ("a header without a method", HEADER, ReplyCode.UNEXPECTED_FRAME),
    ("a body without a method", BODY, ReplyCode.UNEXPECTED_FRAME),
    ("a body without a header", METHOD + BODY, ReplyCode.UNEXPECTED_FRAME),
    ("a method amid a content", METHOD + HEADER + METHOD, ReplyCode.UNEXPECTED_FRAME),
    ("a body too many", METHOD + HEADER + BODY + BODY, ReplyCode.UNEXPECTED_FRAME),
    ("content on channel 0", HEADER.replace(b"\x00\x01", b"\x00\x00", 1), ReplyCode.UNEXPECTED_FRAME),
    ("a channel that is not open", method_frame(9, encode(m.BasicGet("q"))), ReplyCode.CHANNEL_ERROR),
    ("content on a closed channel", publish_frames(9)[1], ReplyCode.CHANNEL_ERROR),
    ("a second open", method_frame(1, encode(m.ChannelOpen())), ReplyCode.CHANNEL_ERROR),
    ("close-ok without a close", method_frame(1, encode(m.ChannelCloseOk())), ReplyCode.COMMAND_INVALID),
    (
        "a connection method in a late state",
        method_frame(0, encode(m.ConnectionOpen())),
        ReplyCode.CHANNEL_ERROR,
    ),
    ("a queue method on channel 0", method_frame(0, encode(m.BasicGet("q"))), ReplyCode.CHANNEL_ERROR),
    (
        "a connection method on a channel",
        method_frame(1, encode(m.ConnectionClose())),
        ReplyCode.COMMAND_INVALID,
    ),
    ("a method of the server", method_frame(1, encode(m.QueueDeclareOk("q"))), ReplyCode.COMMAND_INVALID),
    ("an unknown method", method_frame(1, b"\x00\x63\x00\x01"), ReplyCode.COMMAND_INVALID),
    ("a method cut short", method_frame(1, encode(m.BasicGet("q"))[:-1]), ReplyCode.FRAME_ERROR),
    ("no method at all", method_frame(1, b""), ReplyCode.FRAME_ERROR),
    ("bad properties", METHOD + HEADER[:-5] + b"\xff\xff\xff\xff\xce", ReplyCode.FRAME_ERROR),
    ("a bad frame end", method_frame(1, b"abc")[:-1] + b"\x00", ReplyCode.FRAME_ERROR),
]


@pytest.mark.parametrize(("octets", "code"), [row[1:] for row in HARD], ids=[row[0] for row in HARD])
def test_a_peer_that_breaks_the_protocol_fails_the_connection(
    pair: Pair, octets: bytes, code: ReplyCode
) -> None:
    error = fails(pair.to_server(octets))
    assert isinstance(error, HardError)
    assert error.code is code
    assert pair.server.state is ConnectionState.FAILED
    # What comes behind is not looked at, and the close goes out with the code.
    assert pair.to_server(METHOD) == []
    events = pair.to_client(pair.server.close_for(error))
    assert isinstance(events[0], MethodReceived)
    assert isinstance(events[0].method, m.ConnectionClose)
    assert events[0].method.reply_code == code
    assert events[0].method.reply_text.startswith(code.name)


def test_a_failure_after_the_close_is_none(pair: Pair) -> None:
    pair.server.close("bye")
    assert pair.to_server(method_frame(1, b"") + b"garbage" * 10) == []
    assert pair.server.state is ConnectionState.SERVER_CLOSING


def test_frames_on_channels_before_the_connection_runs_are_unexpected() -> None:
    server = Connection(Role.SERVER)
    events = server.receive(PROTOCOL_HEADER + method_frame(1, encode(m.ChannelOpen())))
    assert fails(events).code is ReplyCode.UNEXPECTED_FRAME


def test_a_message_above_the_limit_costs_only_its_channel(pair: Pair) -> None:
    pair.channel(2)
    octets = pair.client.send(m.BasicPublish("", "q"), 1, Content(body=b"x" * 200_000))
    events = pair.to_server(octets)
    assert len(events) == 1
    error = fails(events)
    assert isinstance(error, SoftError)
    assert pair.server.ready == {2}
    pair.ask(m.BasicGet("q"), 2)
    assert pair.to_server(octets) == []
    events = pair.to_client(pair.server.close_for(error, 1))
    assert isinstance(events[0], MethodReceived)
    assert events[0].method == m.ChannelClose(406, error.reply_text, 60, 40)
    pair.ask(m.ChannelCloseOk(), 1)
    pair.channel(1)


def test_contents_of_several_channels_may_be_interleaved(pair: Pair) -> None:
    pair.channel(2)
    one, two = publish_frames(1), publish_frames(2)
    events = pair.to_server(one[0] + two[0] + two[1] + one[1] + HEARTBEAT_FRAME)
    assert events == [HeartbeatReceived()]
    assert pair.server.ready == set()
    events = pair.to_server(one[2] + two[2])
    assert [event.channel for event in events if isinstance(event, MethodReceived)] == [1, 2]
    assert pair.server.ready == {1, 2}


def test_a_closing_channel_ignores_all_but_close_and_close_ok(pair: Pair) -> None:
    pair.server.send(m.ChannelClose(404, "gone"), 1)
    assert pair.to_server(METHOD + HEADER + BODY + method_frame(1, b"\x00")) == []
    assert pair.to_server(pair.client.send(m.ChannelClose(), 1)) == [MethodReceived(1, m.ChannelClose())]


def test_both_ends_may_close_a_channel_at_once(pair: Pair) -> None:
    from_client = pair.client.send(m.ChannelClose(), 1)
    from_server = pair.server.send(m.ChannelClose(404, "gone"), 1)
    pair.to_server(from_client)
    pair.to_client(from_server)
    ok_client, ok_server = pair.client.send(m.ChannelCloseOk(), 1), pair.server.send(m.ChannelCloseOk(), 1)
    pair.to_server(ok_client)
    pair.to_client(ok_server)
    assert pair.client.channels == pair.server.channels == {}


def test_both_ends_may_close_the_connection_at_once(pair: Pair) -> None:
    from_client, from_server = pair.client.close(), pair.server.close("too")
    assert len(pair.to_server(from_client)) == 1
    assert len(pair.to_client(from_server)) == 1
    ok_client, ok_server = pair.client.send(m.ConnectionCloseOk()), pair.server.send(m.ConnectionCloseOk())
    pair.to_server(ok_client)
    pair.to_client(ok_server)
    assert pair.client.closed
    assert pair.server.closed


def test_a_close_in_the_middle_of_a_content_forgets_it(pair: Pair) -> None:
    pair.to_server(METHOD + HEADER)
    pair.server.send(m.ChannelClose(404, "gone"), 1)
    assert not pair.server.assembler.pending
    assert pair.to_server(BODY) == []


MISUSES: list[tuple[str, m.Method, int, Content | None]] = [
    ("the server's method", m.QueueDeclareOk("q"), 1, None),
    ("a publish without content", m.BasicPublish(), 1, None),
    ("content that does not belong", m.BasicGet(), 1, Content()),
    ("a channel that is not open", m.BasicGet(), 5, None),
    ("a channel opened twice", m.ChannelOpen(), 1, None),
    ("no such channel", m.ChannelOpen(), 65536, None),
    ("a negative channel", m.ChannelOpen(), -1, None),
    ("a queue method on channel 0", m.BasicGet(), 0, None),
    ("a connection method on a channel", m.ConnectionClose(), 1, None),
    ("a step of the handshake", m.ConnectionOpen(), 0, None),
    ("close-ok without a close", m.ConnectionCloseOk(), 0, None),
    ("channel close-ok without a close", m.ChannelCloseOk(), 1, None),
    ("a method longer than a frame", m.QueueDeclare(arguments={"k": "x" * 200_000}), 1, None),
    ("properties longer than a frame", m.BasicPublish(), 1, Content(b"\x00" * 200_000)),
]


@pytest.mark.parametrize(
    ("method", "channel", "content"), [row[1:] for row in MISUSES], ids=[r[0] for r in MISUSES]
)
def test_our_own_mistakes_are_misuses_and_change_nothing(
    pair: Pair, method: m.Method, channel: int, content: Content | None
) -> None:
    with pytest.raises(MisuseError):
        pair.client.send(method, channel, content)
    assert pair.client.state is ConnectionState.RUNNING
    assert pair.client.channels == {1: ChannelState.OPEN}
    pair.ask(m.BasicGet("q"), 1)


def test_nothing_is_sent_after_a_close(pair: Pair) -> None:
    pair.client.close()
    with pytest.raises(MisuseError):
        pair.client.send(m.BasicGet("q"), 1)
    with pytest.raises(MisuseError):
        pair.client.close()


def test_only_a_client_begins_and_only_once() -> None:
    with pytest.raises(MisuseError):
        Connection(Role.SERVER).initiate()
    client = Connection(Role.CLIENT)
    client.initiate()
    with pytest.raises(MisuseError):
        client.initiate()
    with pytest.raises(MisuseError):
        Connection(Role.EITHER)


def test_heartbeats_follow_the_negotiated_interval() -> None:
    pair = Pair(server=Limits(heartbeat=10)).open()
    assert pair.client.next_heartbeat_due(100.0) == 105.0
    pair.client.heartbeats.spoke(103.0)
    assert pair.client.next_heartbeat_due(103.0) == 108.0
    assert not pair.client.peer_is_dead(100.0)
    assert pair.client.peer_is_dead(121.0)
    assert Connection(Role.CLIENT).next_heartbeat_due(0.0) is None


def test_a_broker_may_take_contents_from_the_splitter_and_hand_on_the_rest(pair: Pair) -> None:
    server = pair.server
    stream = METHOD + HEADER + BODY + HEARTBEAT_FRAME + method_frame(1, encode(m.BasicGet("q")))
    taken, events = [], []
    for item in server.splitter.feed_batches(stream):
        if item[0] == CONTENT and item[1] in server.ready:
            taken.append(item)
        else:
            for frame in expand(item):
                events += server.handle(*frame)
    server.check_splitter(events)
    assert [(item[3], item[4]) for item in taken] == [(content_header(PERSISTENT, 3), b"abc")]
    assert events == [HeartbeatReceived(), MethodReceived(1, m.BasicGet("q"))]
    server.splitter.feed_batches(b"\xff" * 20)
    server.check_splitter(events)
    assert fails(events).code is ReplyCode.FRAME_ERROR


def test_extensions_of_a_running_connection_pass(pair: Pair) -> None:
    pair.answer(m.ConnectionBlocked("low on memory"))
    pair.answer(m.ConnectionUnblocked())
    pair.ask(m.ConnectionUpdateSecret(b"token", "expiring"))
    pair.answer(m.ConnectionUpdateSecretOk())
    pair.answer(m.BasicCancel("c"), 1)
    pair.ask(m.ChannelFlow(False), 1)
    pair.answer(m.ChannelFlowOk(False), 1)


@given(st.binary(max_size=200), st.sampled_from([Role.CLIENT, Role.SERVER]))
@settings(max_examples=200, deadline=None)
def test_receive_never_raises_for_garbage(garbage: bytes, role: Role) -> None:
    pair = Pair().open().channel()
    connection = pair.client if role is Role.CLIENT else pair.server
    events = connection.receive(garbage)
    assert all(isinstance(event, Failed | MethodReceived | HeartbeatReceived) for event in events)


def test_syntax_errors_name_their_method(pair: Pair) -> None:
    error = fails(pair.to_server(method_frame(1, encode(m.BasicGet("q")) + b"\x00")))
    assert isinstance(error, FrameSyntaxError)
    assert (error.class_id, error.method_id) == (60, 70)
    assert "basic.get" in error.text
