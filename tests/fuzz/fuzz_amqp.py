"""Feed broken AMQP to every reader and see that only an `AmqpError` ever comes out.

    python tests/fuzz/fuzz_amqp.py --inputs 1000000 --seed 1

Each input is a stream of valid frames, damaged: bits flipped, octets cut out, doubled, spliced in from
elsewhere, lengths that lie. It goes in random chunks into a `Connection` of either role, fresh or already
running, into both readers of the splitter, whose results must agree, and its payloads into the quick
readers, which must agree with the codec. What a reader keeps may never be more than what it was given.
"""

import argparse
import random
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable

from redrive.amqp import (
    AmqpError,
    BasicProperties,
    ChannelState,
    Connection,
    ConnectionState,
    Failed,
    FrameSplitter,
    Limits,
    MethodReceived,
    Role,
    encode_properties,
    methods as m,
)
from redrive.amqp.codec import decode, encode
from redrive.amqp.frames import (
    ACK_HEAD,
    DELIVER_HEAD,
    HEADER,
    HEARTBEAT_FRAME,
    METHOD,
    PROTOCOL_HEADER,
    PUBLISH_HEAD,
    Frame,
    content_frames,
    expand,
    method_frame,
)
from redrive.amqp.hot import parse_ack, parse_deliver, parse_publish
from redrive.amqp.properties import decode_properties, read_field, replace_fields
from redrive.amqp.sasl import Credentials, decode_response, encode_response
from redrive.amqp.values import DecimalValue, Float32, Int8, Int32, RawStr, Timestamp, UInt16

TABLE: dict[str, object] = {
    "x-death": [
        {
            "count": 3,
            "reason": "rejected",
            "queue": "q",
            "time": Timestamp(1_700_000_000),
            "exchange": "",
            "routing-keys": ["a", "b"],
        }
    ],
    "i": Int32(5),
    "b": Int8(-1),
    "u": UInt16(9),
    "f": Float32(1.5),
    "d": 2.5,
    "D": DecimalValue(2, 314),
    "t": True,
    "V": None,
    "x": b"\x00\x01",
    "raw": RawStr(b"\xff"),
    "F": {"deep": {"er": [1, [2, [3]]]}},
}
PROPERTIES = [
    b"\x00\x00",
    encode_properties(BasicProperties(delivery_mode=2, content_type="text/plain")),
    encode_properties(BasicProperties(headers=TABLE, expiration="60000", message_id="m", timestamp=7)),
]
BODIES = [b"", b"x" * 20, b"y" * 200]


def handshake(role: Role) -> list[bytes]:
    """What the peer of `role` says until the connection runs."""
    if role is Role.SERVER:
        login = encode_response("PLAIN", Credentials("guest", "guest"))
        said: list[m.Method] = [
            m.ConnectionStartOk(client_properties=TABLE, response=login),
            m.ConnectionTuneOk(2047, 131072, 60),
            m.ConnectionOpen("/"),
        ]
        return [PROTOCOL_HEADER, *(method_frame(0, encode(method)) for method in said)]
    said = [
        m.ConnectionStart(server_properties=TABLE),
        m.ConnectionTune(2047, 131072, 60),
        m.ConnectionOpenOk(),
    ]
    return [method_frame(0, encode(method)) for method in said]


def pieces() -> list[bytes]:
    """Frames of a running connection, of both sides: those of the wrong side are worth a look too."""
    parts = [HEARTBEAT_FRAME]
    for kind in m.ALL:
        if kind.spec.class_id == 10 and kind not in (m.ConnectionClose, m.ConnectionCloseOk):
            parts.append(method_frame(0, encode(kind())))
        elif kind.spec.content:
            for properties in PROPERTIES:
                # Short frames where the header allows it, so that some bodies come in several.
                frame_max = 128 if len(properties) < 100 else 4096
                parts += [
                    method_frame(channel, encode(kind()))
                    + content_frames(channel, properties, body, frame_max)
                    for body in BODIES
                    for channel in (1, 2)
                ]
        else:
            parts.append(method_frame(0 if kind.spec.class_id == 10 else 1, encode(kind())))
    parts += [method_frame(1, encode(m.BasicAck(tag))) * 3 for tag in (1, 2)]
    parts.append(method_frame(1, encode(m.QueueDeclare("q", arguments=TABLE))))
    parts.append(method_frame(3, encode(m.ChannelOpen())))
    return parts


LIES = (0, 1, 7, 8, 0x7F, 0xFF, 0x100, 0xFFFF, 131064, 131065, 0x7FFFFFFF, 0xFFFFFFFF)


def damage(stream: bytearray, rng: random.Random, corpus: list[bytes]) -> None:
    """One mutation, in place."""
    if not stream:
        return
    at = rng.randrange(len(stream))
    match rng.randrange(8):
        case 0 | 1:
            stream[at] ^= 1 << rng.randrange(8)
        case 2:
            stream[at] = rng.randrange(256)
        case 3:
            del stream[at : at + rng.randrange(1, 16)]
        case 4:
            del stream[at:]
        case 5:
            donor = rng.choice(corpus)
            start = rng.randrange(len(donor))
            stream[at:at] = donor[start : start + rng.randrange(1, 40)]
        case 6:
            stream[at : at + 4] = rng.choice(LIES).to_bytes(4, "big")
        case _:
            stream[at:at] = stream[at : at + rng.randrange(1, 32)]


def running(role: Role) -> Connection:
    """A connection that is past its handshake, made without going through it."""
    connection = Connection(role, Limits(4096, 2047, 60), max_message_size=1000)
    connection.state = ConnectionState.RUNNING
    connection._fresh = False
    connection.splitter.limit(4096)
    connection.channels = {1: ChannelState.OPEN, 2: ChannelState.OPEN}
    connection.ready = {1, 2}
    return connection


def chunks(stream: bytes, rng: random.Random) -> list[bytes]:
    cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(3)))
    return [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


def try_connection(connection: Connection, parts: list[bytes]) -> None:
    """Feed a connection, answer what must be answered, and see that it keeps no more than it got."""
    given = 0
    for part in parts:
        given += len(part)
        for event in connection.receive(part):
            try:
                if isinstance(event, Failed):
                    connection.close_for(event.error, event.channel)
                elif isinstance(event, MethodReceived):
                    if event.content is not None:
                        event.content.decoded()
                    if isinstance(event.method, m.ConnectionStartOk):
                        decode_response(event.method.mechanism, event.method.response)
                        connection.send(m.ConnectionTune(2047, 131072, 60))
                    elif isinstance(event.method, m.ConnectionOpen):
                        connection.send(m.ConnectionOpenOk())
                    elif isinstance(event.method, m.ConnectionStart):
                        connection.send(m.ConnectionStartOk())
                    elif isinstance(event.method, m.ConnectionTune):
                        connection.send(connection.negotiate(event.method))
                        connection.send(m.ConnectionOpen())
                    elif isinstance(event.method, m.ChannelOpen):
                        connection.send(m.ChannelOpenOk(), event.channel)
                    elif isinstance(event.method, m.ChannelClose):
                        connection.send(m.ChannelCloseOk(), event.channel)
                    elif isinstance(event.method, m.ConnectionClose):
                        connection.send(m.ConnectionCloseOk())
                elif connection.state is ConnectionState.AWAIT_START:
                    connection.send(m.ConnectionStart())
            except AmqpError:
                pass
        kept = sum(len(piece) for p in connection.assembler.pending.values() for piece in p.pieces)
        assert connection.splitter.buffered + kept <= given


def split(parts: list[bytes], batches: bool) -> tuple[list[Frame], AmqpError | None]:
    splitter = FrameSplitter(4096)
    frames: list[Frame] = []
    try:
        for part in parts:
            if batches:
                for item in splitter.feed_batches(part):
                    frames += expand(item)
            else:
                frames += splitter.feed(part)
    except AmqpError:
        pass
    return frames, splitter.error


def same(quick: Callable[[bytes], object], payload: bytes, fields: tuple[str, ...]) -> None:
    """The quick reader and the codec find the same, or both refuse."""
    try:
        method = decode(payload)
        expected: object = tuple(getattr(method, field) for field in fields)
    except AmqpError:
        expected = AmqpError
    try:
        found = quick(payload)
    except AmqpError:
        found = AmqpError
    assert found == expected, (payload, found, expected)


def try_frames(frames: list[Frame]) -> None:
    """Give each payload to the readers that a broker would use."""
    for kind, _channel, payload in frames:
        if kind == METHOD:
            head = payload[:4]
            if head == PUBLISH_HEAD:
                same(parse_publish, payload, ("exchange", "routing_key", "mandatory", "immediate"))
            elif head == DELIVER_HEAD:
                fields = ("consumer_tag", "delivery_tag", "redelivered", "exchange", "routing_key")
                same(parse_deliver, payload, fields)
            elif head == ACK_HEAD:
                same(parse_ack, payload, ("delivery_tag", "multiple"))
        elif kind == HEADER and len(payload) > 12:
            raw = payload[12:]
            try:
                read_field(raw, "expiration")
                replaced = replace_fields(raw, drop=("expiration",), headers={"a": 1})
                decode_properties(replaced)
                decode_properties(raw)
            except AmqpError:
                pass


def try_splitters(parts: list[bytes]) -> None:
    frames, error = split(parts, batches=False)
    folded, folded_error = split(parts, batches=True)
    # A content that is not whole is held back, so the folding reader may be behind; never wrong.
    assert folded == frames[: len(folded)]
    assert len(frames) - len(folded) <= 2
    assert (error is None) == (folded_error is None) or len(folded) < len(frames)
    try_frames(frames)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    corpus = pieces()
    hellos = {role: handshake(role) for role in (Role.CLIENT, Role.SERVER)}
    began = time.monotonic()
    resident = 0
    for count in range(1, options.inputs + 1):
        role = Role.SERVER if rng.random() < 0.6 else Role.CLIENT
        fresh = rng.random() < 0.15
        parts = hellos[role][:] if fresh else []
        parts += [rng.choice(corpus) for _ in range(rng.randrange(1, 4))]
        stream = bytearray(b"".join(parts))
        for _ in range(rng.randrange(1, 4)):
            damage(stream, rng, corpus)
        cut = chunks(bytes(stream), rng)
        measured = count % 5000 == 0
        if measured:
            tracemalloc.start()
        if fresh:
            connection = Connection(role)
            if role is Role.CLIENT:
                connection.initiate()
        else:
            connection = running(role)
        try:
            try_connection(connection, cut)
            try_splitters(cut)
        except BaseException:
            sys.stdout.write(f"input {count} of seed {options.seed}: {role!r} {cut!r}\n")
            raise
        if measured:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 200_000 + 300 * len(stream), (peak, len(stream))
        if count == 20_000:
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if count % 100_000 == 0:
            sys.stdout.write(f"{count:,} inputs, {time.monotonic() - began:.0f} s\n")
            sys.stdout.flush()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident if resident else 0
    assert grown < 50_000, f"resident memory grew by {grown} kB"
    seconds = time.monotonic() - began
    sys.stdout.write(f"done: {options.inputs:,} inputs, seed {options.seed}, {seconds:.0f} s, +{grown} kB\n")


if __name__ == "__main__":
    main()
