"""How are connections and channels opened, agreed on, misused and closed? (B1)

The rule: what the codec would refuse to send is sent as octets. A breach ends either the channel or the
connection, and the record says which, with code and text.
"""

from redrive.amqp import methods as m
from redrive.amqp.codec import decode, encode
from redrive.amqp.content import Content
from redrive.amqp.frames import BODY, HEADER, METHOD, PROTOCOL_HEADER, content_header, method_frame
from redrive.amqp.limits import Limits
from redrive.amqp.properties import NO_PROPERTIES, BasicProperties, encode_properties
from redrive.amqp.sasl import Credentials, encode_response
from tests.differential.client import CAPABILITIES, Scene, Wire
from tests.differential.differences import differs
from tests.differential.record import plain_table


def _frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return bytes((kind,)) + channel.to_bytes(2) + len(payload).to_bytes(4) + payload + end


def _until_tune(scene: Scene) -> tuple[Wire, m.ConnectionTune]:
    """A connection that waits for tune-ok."""
    wire = scene.wire()
    wire.send_octets(wire.connection.initiate())
    wire.await_method(m.ConnectionStart)
    response = encode_response("PLAIN", Credentials(scene.user, scene.password))
    wire.send(m.ConnectionStartOk({"capabilities": dict(CAPABILITIES)}, "PLAIN", response))
    return wire, wire.await_method(m.ConnectionTune)


@differs("identity", "anonymous-login")
def the_broker_says_what_it_can_do(scene: Scene) -> None:
    wire = scene.wire()
    wire.send_octets(wire.connection.initiate())
    start = wire.await_method(m.ConnectionStart)
    wire.note("version", [start.version_major, start.version_minor])
    wire.note("mechanisms", sorted(start.mechanisms.decode().split()))  # in any order, another at each start
    wire.note("locales", start.locales.decode())
    wire.note("properties", plain_table(start.server_properties, scene.names))


def the_broker_proposes_limits(scene: Scene) -> None:
    wire, tune = _until_tune(scene)
    wire.note("tune", wire.plain(tune))


@differs("amqp-1.0")
def a_foreign_protocol_header_is_answered_with_the_right_one(scene: Scene) -> None:
    for header in (b"AMQP\x00\x00\x09\x02", b"AMQP\x00\x00\x08\x00", b"HTTP/1.1", b"AMQP\x02\x01\x00\x00"):
        wire = scene.wire()
        wire.send_octets(header)
        wire.note(f"answer to {header!r}", wire.octets_until_end().hex())


def limits_may_be_lowered(scene: Scene) -> None:
    wire = scene.connect(limits=Limits(frame_max=8192, channel_max=3, heartbeat=0))
    ch = wire.channel()
    ch.queue("work")
    ch.publish("work", "x" * 20_000)
    ch.get("work", record=False)
    ch.note("length", len(ch.last_body() or ""))


def one_channel_more_than_agreed_is_refused(scene: Scene) -> None:
    wire = scene.connect(limits=Limits(channel_max=3, heartbeat=0))
    for _ in range(3):
        wire.channel()
    wire.send_anyway(m.ChannelOpen(), 4)
    wire.see_end("channel 4 of 3")


def a_channel_may_have_any_number(scene: Scene) -> None:
    wire = scene.connect(limits=Limits(channel_max=2, heartbeat=0))
    for number in (2, 65_535, 1000, 3):
        ch = wire.channel(number=number)
        ch.queue("work")
        if number > 2:
            ch.close()
            del wire.channels[number]
    wire.channel().queue("missing", passive=True)
    wire.channel().queue("work")


def limits_may_not_be_raised(scene: Scene) -> None:
    _see_refused_limits(scene, (262_144, 2047), (0, 2047), (131_072, 4000), (131_072, 0), (4095, 2047))


@differs("least-frame-max")
def a_frame_max_below_8192_is_refused(scene: Scene) -> None:
    _see_refused_limits(scene, (8191, 2047), (4096, 2047))


def _see_refused_limits(scene: Scene, *asked: tuple[int, int]) -> None:
    wires = [_until_tune(scene)[0] for _ in asked]
    for wire, (frame_max, channel_max) in zip(wires, asked, strict=True):
        wire.send_anyway(m.ConnectionTuneOk(channel_max, frame_max, 0))
    for wire, (frame_max, channel_max) in zip(wires, asked, strict=True):
        wire.see_end(f"frame_max {frame_max}, channel_max {channel_max}")


def a_handshake_may_come_in_one_piece(scene: Scene) -> None:
    """A client that does not wait for any answer, down to a declare and a publish."""
    wire = scene.wire()
    response = encode_response("PLAIN", Credentials(scene.user, scene.password))
    body = b"x" * 10_000  # more than fits a frame before the limits are agreed on
    methods = (
        (0, m.ConnectionStartOk({"capabilities": dict(CAPABILITIES)}, "PLAIN", response)),
        (0, m.ConnectionTuneOk(2047, 131_072, 0)),
        (0, m.ConnectionOpen(scene.broker.vhost)),
        (1, m.ChannelOpen()),
        (1, m.QueueDeclare("work")),
        (1, m.BasicPublish("", "work")),
    )
    octets = [PROTOCOL_HEADER, *(method_frame(channel, encode(method)) for channel, method in methods)]
    octets += [_frame(HEADER, 1, content_header(NO_PROPERTIES, len(body))), _frame(BODY, 1, body)]
    octets.append(method_frame(1, encode(m.QueueDeclare("other"))))
    wire.send_octets(b"".join(octets))
    answers = wire.frames_until(m.QueueDeclareOk, 2)
    wire.note("answers", [[channel, decode(payload).wire_name()] for channel, payload in answers])
    scene.channel().get("work", wait=True, record=False)


def a_refused_login_in_one_piece_is_answered_once(scene: Scene) -> None:
    wire = scene.wire()
    response = encode_response("PLAIN", Credentials(scene.user, "wrong"))
    methods = (
        m.ConnectionStartOk({"capabilities": dict(CAPABILITIES)}, "PLAIN", response),
        m.ConnectionTuneOk(2047, 131_072, 0),
        m.ConnectionOpen(scene.broker.vhost),
    )
    wire.send_octets(PROTOCOL_HEADER + b"".join(method_frame(0, encode(method)) for method in methods))
    answers = wire.frames_until(m.ConnectionClose)
    wire.note("answers", [[channel, decode(payload).wire_name()] for channel, payload in answers])


def the_header_of_amqp_0_9_is_accepted(scene: Scene) -> None:
    wire = scene.wire()
    wire.send_octets(b"AMQP\x01\x01\x00\x09")
    start = decode(wire.frames_until(m.ConnectionStart)[0][1])
    assert isinstance(start, m.ConnectionStart)
    wire.note("version", [start.version_major, start.version_minor])


def a_payload_of_frame_max_is_accepted(scene: Scene) -> None:
    """Some clients count the payload alone, not the whole frame."""
    wire = scene.connect(limits=Limits(frame_max=8192, heartbeat=0))
    ch = wire.channel()
    ch.queue("work")
    for size in (8184, 8185, 8192):
        wire.send_octets(_frame(METHOD, 1, encode(m.BasicPublish("", "work"))))
        wire.send_octets(_frame(HEADER, 1, content_header(NO_PROPERTIES, size)))
        wire.send_octets(_frame(BODY, 1, b"x" * size))
        ch.get("work", wait=True, no_ack=True, record=False)
        ch.note("length", len(ch.last_body() or ""))


def headers_of_frame_max_are_delivered(scene: Scene) -> None:
    """Also to a client whose frames are smaller: a content header cannot be split."""
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("taken")
    ch.queue("left")
    properties = encode_properties(BasicProperties(headers={"h": "x" * (131_072 - 25)}))
    ch.note("octets of properties", len(properties))
    for body in (b"", b"small", b"large" * 10_000):
        for queue in ("taken", "left"):
            wire.send_octets(_frame(METHOD, 1, encode(m.BasicPublish("", queue))))
            wire.send_octets(_frame(HEADER, 1, content_header(properties, len(body))))
            pieces = (body[at : at + 8192] for at in range(0, len(body), 8192))
            wire.send_octets(b"".join(_frame(BODY, 1, piece) for piece in pieces))
        ch.get("taken", wait=True, no_ack=True, record=False)
        ch.note("received", [len(ch.last_body() or ""), len(str(ch.last_headers()["h"]))])
    ch.await_count("left", 3)
    small = scene.connect(limits=Limits(frame_max=8192, heartbeat=0))
    small.send_octets(method_frame(1, encode(m.ChannelOpen())))
    for method in (m.BasicConsume("left", "tag", no_ack=True), m.QueueDeclare("last")):
        small.send_octets(method_frame(1, encode(method)))
    frames = small.frames_until(m.BasicDeliver, 3, more=8)
    small.note("deliveries", [len(payload) for _, payload in frames if payload[:4] == b"\x00\x3c\x00\x00"])


def a_heartbeat_of_one_second_is_kept(scene: Scene) -> None:
    wire = scene.connect(limits=Limits(heartbeat=1))
    wire.until(lambda: wire.heartbeats > 0, "a heartbeat")
    wire.send_octets(wire.connection.heartbeat())
    wire.is_alive()


def a_client_without_heartbeats_is_given_up(scene: Scene) -> None:
    wire = scene.connect(limits=Limits(heartbeat=1))
    wire.see_end("silence")


@differs("protocol-error-texts")
def channels_are_opened_once(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel()
    wire.send_anyway(m.ChannelOpen(), 1)
    wire.see_end("opened twice")


@differs("protocol-error-texts")
def a_channel_that_is_not_open(scene: Scene) -> None:
    wire = scene.connect()
    wire.send_anyway(m.QueueDeclare("work"), 1)
    wire.see_end("declare on a channel that is not open")


def a_channel_can_be_closed_and_opened_again(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("mine")
    ch.close()
    del wire.channels[1]
    wire.channel().queue("", passive=True)


def what_comes_on_a_channel_that_was_just_closed_is_ignored(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel(confirm=False)
    wire.send(m.QueueDeclare("missing", passive=True), 1)
    wire.send(m.QueueDeclare("made"), 1)
    ch.see_close("refused")
    wire.channel().queue("made", passive=True)


@differs("unknown-method")
def a_method_that_does_not_exist_ends_the_connection(scene: Scene) -> None:
    for payload in (b"\x00\x32\x00\x63", b"\x00\x63\x00\x0a", b"\x00\x0a\x00\x63"):
        wire = scene.connect()
        wire.channel()
        wire.send_octets(_frame(METHOD, 1, payload))
        wire.see_end(payload.hex())


@differs("protocol-error-texts")
def a_method_of_the_server_ends_the_connection(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel()
    wire.send_anyway(m.QueueDeclareOk("work"), 1)
    wire.see_end("queue.declare-ok from a client")


@differs("protocol-error-texts")
def methods_on_the_wrong_channel_end_the_connection(scene: Scene) -> None:
    wire = scene.connect()
    wire.send_anyway(m.QueueDeclare("work"), 0)
    wire.see_end("queue.declare on channel 0")
    wire = scene.connect()
    wire.channel()
    wire.send_anyway(m.ConnectionClose(), 1)
    wire.see_end("connection.close on channel 1")


@differs("protocol-error-texts")
def opening_twice_ends_the_connection(scene: Scene) -> None:
    wire = scene.connect()
    wire.send_anyway(m.ConnectionOpen(scene.broker.vhost))
    wire.see_end("connection.open again")


@differs("protocol-error-texts")
def a_frame_that_is_too_large_ends_the_connection(scene: Scene) -> None:
    for size in (8193, 10_000):
        wire = scene.connect(limits=Limits(frame_max=8192, heartbeat=0))
        wire.channel()
        wire.send_octets(_frame(METHOD, 1, encode(m.BasicPublish("", "work"))))
        wire.send_octets(_frame(HEADER, 1, content_header(NO_PROPERTIES, size)))
        wire.send_octets(_frame(BODY, 1, b"x" * size))
        wire.see_end(f"{size} octets of 8192")


@differs("protocol-error-texts")
def a_frame_without_its_end_octet_ends_the_connection(scene: Scene) -> None:
    wire = scene.connect()
    wire.send_octets(_frame(METHOD, 1, encode(m.ChannelOpen()), b"\xcd"))
    wire.see_end("end octet 0xcd")


@differs("protocol-error-texts")
def an_unknown_frame_type_ends_the_connection(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel()
    wire.send_octets(_frame(7, 1, b"what"))
    wire.see_end("frame type 7")


@differs("protocol-error-texts")
def a_method_between_header_and_body_ends_the_connection(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel()
    wire.send_octets(_frame(METHOD, 1, encode(m.BasicPublish("", "work"))))
    wire.send_octets(method_frame(1, encode(m.BasicQos(0, 1, False))))
    wire.see_end("a method instead of a header")
    wire = scene.connect()
    wire.channel()
    wire.send_octets(_frame(METHOD, 1, encode(m.BasicPublish("", "work"))))
    wire.send_octets(_frame(HEADER, 1, content_header(NO_PROPERTIES, 10)))
    wire.send_octets(method_frame(1, encode(m.BasicQos(0, 1, False))))
    wire.see_end("a method instead of a body")


@differs("protocol-error-texts")
def content_without_a_method_ends_the_connection(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel()
    wire.send_octets(_frame(HEADER, 1, content_header(NO_PROPERTIES, 1)))
    wire.see_end("a header alone")
    wire = scene.connect()
    wire.channel()
    wire.send_octets(_frame(BODY, 1, b"x"))
    wire.see_end("a body alone")


@differs("protocol-error-texts")
def a_header_of_another_class_ends_the_connection(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel()
    wire.send_octets(_frame(METHOD, 1, encode(m.BasicPublish("", "work"))))
    wire.send_octets(_frame(HEADER, 1, b"\x00\x32" + content_header(NO_PROPERTIES, 1)[2:]))
    wire.see_end("a header of class 50")


@differs("protocol-error-texts")
def methods_that_end_too_early_end_the_connection(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel()
    wire.send_octets(_frame(METHOD, 1, encode(m.QueueDeclare("work"))[:-6]))
    wire.see_end("half a queue.declare")


def several_channels_do_not_disturb_each_other(scene: Scene) -> None:
    wire = scene.connect()
    one, two = wire.channel(), wire.channel()
    one.queue("missing", passive=True)
    two.queue("work")
    two.publish("work", "body")
    two.get("work")
    wire.is_alive()


def contents_of_two_channels_may_be_interleaved(scene: Scene) -> None:
    wire = scene.connect()
    one, two = wire.channel(), wire.channel()
    one.queue("one")
    two.queue("two")
    for number, queue in ((1, "one"), (2, "two")):
        wire.send_octets(_frame(METHOD, number, encode(m.BasicPublish("", queue))))
    for number in (1, 2):
        wire.send_octets(_frame(HEADER, number, content_header(NO_PROPERTIES, 2)))
    for number, octet in ((1, b"a"), (2, b"b"), (2, b"b"), (1, b"a")):
        wire.send_octets(_frame(BODY, number, octet))
    one.get("one", wait=True)
    two.get("two", wait=True)


def flow_may_be_resumed_but_not_stopped(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().call(m.ChannelFlow(True))
    wire.channel().call(m.ChannelFlow(False))
    wire.see_end("flow off")


def nowait_is_silent_unless_it_fails(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.send(m.QueueDeclare("work", nowait=True))
    ch.send(m.ExchangeDeclare("x", "fanout", nowait=True))
    ch.send(m.QueueBind("work", "x", nowait=True))
    ch.send(m.BasicConsume("work", "tag", no_ack=True, nowait=True))
    ch.publish("", "body", "x")
    ch.deliveries(1)
    ch.send(m.BasicCancel("tag", nowait=True))
    ch.send(m.QueuePurge("work", nowait=True))
    ch.send(m.QueueDelete("work", nowait=True))
    ch.send(m.ExchangeDelete("x", nowait=True))
    ch.qos(1)
    ch.send(m.QueueDeclare("amq.mine", nowait=True))
    ch.see_close("a reserved name")


def a_message_may_be_published_before_open_ok(scene: Scene) -> None:
    wire = scene.connect()
    ch = wire.channel()
    ch.queue("work")
    wire.send(m.ChannelOpen(), 2)
    wire.send(m.BasicPublish("", "work"), 2, Content(NO_PROPERTIES, b"early"))
    wire.channels[2] = type(ch)(wire, 2)
    ch.get("work", wait=True)
    wire.channels[2].await_method(m.ChannelOpenOk)


def an_access_request_is_answered_or_refused(scene: Scene) -> None:
    wire = scene.connect()
    wire.channel().call(m.AccessRequest("/data"))


def closing_the_connection_is_answered_and_hanging_up_is_left_to_the_client(scene: Scene) -> None:
    """Hanging up while the client still writes would cost it the answer: its kernel hears of a reset."""
    wire = scene.connect()
    wire.channel().queue("work")
    wire.send_octets(wire.connection.close("good bye", 200))
    wire.note("close-ok", wire.await_method(m.ConnectionCloseOk) is not None)
    wire.read(0.2)
    wire.note("then", wire.ending())
