"""Where one frame ends and the next begins.

The rule: chunks of any size go in, whole frames come out, in order, and nothing is copied twice on the
common path. A frame is `(kind, channel, payload)`, a plain tuple, because there are hundreds of thousands
of them in a second. A frame is checked for what can be seen from outside: its kind, its size against the
negotiated maximum, its end octet, and that a heartbeat is on channel 0 and empty.

`FrameSplitter` has two readers over one buffer:

- `feed` gives the frames as they are;
- `feed_batches` gives five-tuples and folds what travels together. A method, its content header and its one
  body frame become one `CONTENT` item; acknowledgements in a row become one `ACKS` item. Anything that does
  not fit those two shapes comes out as the frames it is made of: folding never reports an error, it only
  declines. A content that has begun to arrive is held back until it is whole or is seen not to fit, which
  nobody can notice, since nothing happens before it is whole.

Producers repeat themselves: the same exchange and key, the same properties, bodies of one size. So the
octets of a content seen twice are kept, up to its body, and one comparison recognises the next. The payload
and header of such a repetition are the very same objects as before; a cache may compare them by identity.

An error ends the stream. The frames in front of it are still given; the error stands in `error` and is
raised by every later call. The splitter knows no methods but the few it folds, and no channel states.
"""

import re
import struct
from typing import Final, TypeAlias

from redrive.amqp.errors import HardError, ReplyCode

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
# Kinds of items that are not on the wire:
CONTENT: Final = 100
ACKS: Final = 101

Frame: TypeAlias = tuple[int, int, bytes]
Item: TypeAlias = tuple[int, int, bytes, bytes, bytes]

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
_PROTOCOL_HEADERS: Final = (PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09")  # AMQP 0-9 is the same on the wire
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
FRAME_END: Final = b"\xce"
FRAME_OVERHEAD: Final = 8
FRAME_MIN_SIZE: Final = 4096  # of the specification; a server may ask for more
DEFAULT_FRAME_MAX: Final = 131072
_NO_LIMIT: Final = 0xFFFFFFFF

BASIC: Final = 60
PUBLISH_HEAD: Final = b"\x00\x3c\x00\x28"
RETURN_HEAD: Final = b"\x00\x3c\x00\x32"
DELIVER_HEAD: Final = b"\x00\x3c\x00\x3c"
GET_OK_HEAD: Final = b"\x00\x3c\x00\x47"
ACK_HEAD: Final = b"\x00\x3c\x00\x50"
_CONTENT_HEADS: Final = frozenset((PUBLISH_HEAD, RETURN_HEAD, DELIVER_HEAD, GET_OK_HEAD))

# Single acknowledgements of one channel in a row: the same eleven octets, a tag, no flag, the end octet.
_ACK_RUN: Final = re.compile(
    rb"(\x01..\x00\x00\x00\x0d\x00\x3c\x00\x50).{8}\x00\xce(?:\1.{8}\x00\xce)*", re.DOTALL
)
ACK_FRAME_SIZE: Final = 21

# The last content seen twice: its octets up to the body, those from the end of its method on (the end of the former),
# its channel, method, header, and the size of its body. An empty tuple is a prefix that nothing starts with.
_Last: TypeAlias = tuple[bytes | tuple[bytes, ...], bytes | tuple[bytes, ...], int, bytes, bytes, int]
_NOTHING_YET: Final[_Last] = ((), (), 0, b"", b"", 0)

_HEAD = struct.Struct(">BHI")
_HEADER_FRAME = struct.Struct(">BHIHHQ")
_END_AND_HEAD = struct.Struct(">BBHI")
_CONTENT_HEADER = struct.Struct(">HHQ")
CONTENT_HEADER_SIZE: Final = _CONTENT_HEADER.size  # of a content header without properties


class FrameSplitter:
    """Splits a stream of octets into frames. See the module for its two readers."""

    __slots__ = ("_last", "_limit", "_need", "_rest", "_too_long", "error")

    def __init__(self, frame_max: int = DEFAULT_FRAME_MAX) -> None:
        self.error: HardError | None = None
        self._rest: bytes | bytearray = b""
        self._need = 0
        self._too_long = False
        self.limit(frame_max)

    def limit(self, frame_max: int) -> None:
        """From now on no payload may be longer than `frame_max` octets; 0 is no limit.

        By the specification a whole frame counts, with the 8 octets around its payload. RabbitMQ allows for those, and
        some clients send payloads of `frame_max` octets. A frame that was too long for the limit before is judged
        again by the next call.
        """
        if self._too_long:
            self.error = None
            self._too_long = False
            self._need = 0
        self._limit = frame_max or _NO_LIMIT
        self._last: _Last = _NOTHING_YET

    @property
    def buffered(self) -> int:
        """How many octets wait for the rest of their frame."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[Frame]:
        """Every frame that `data` completes."""
        buf = self._join(data)
        frames: list[Frame] = []
        if buf is None:
            return frames
        append = frames.append
        unpack = _HEAD.unpack_from
        limit = self._limit
        size = len(buf)
        pos = 0
        need = FRAME_OVERHEAD
        while size - pos >= FRAME_OVERHEAD:
            kind, channel, length = unpack(buf, pos)
            end = pos + 7 + length
            if length > limit or kind not in _KNOWN_KINDS:
                self.error = _complaint(kind, channel, length, limit)
                self._too_long = kind in _KNOWN_KINDS
                break
            if end >= size:
                need = end + 1 - pos
                break
            if buf[end] != 0xCE:
                self.error = _no_end(buf[end])
                break
            if kind == HEARTBEAT and (length or channel):
                self.error = _complaint(kind, channel, length, limit)
                break
            append((kind, channel, buf[pos + 7 : end]))
            pos = end + 1
        self._keep(buf, pos, need)
        return frames

    def feed_batches(self, data: bytes) -> list[Item]:  # noqa: PLR0915  # one loop, or a call per message
        """Every frame that `data` completes, with contents and runs of acknowledgements folded."""
        buf = self._join(data)
        items: list[Item] = []
        if buf is None:
            return items
        append = items.append
        unpack = _HEAD.unpack_from
        startswith = buf.startswith
        limit = self._limit
        size = len(buf)
        pos = 0
        need = FRAME_OVERHEAD
        whole, tail, channel, payload, header, body_size = self._last
        last_payload, last_header = payload, header
        skip, tail_size = len(whole), len(tail)
        while size - pos >= FRAME_OVERHEAD:
            if startswith(whole, pos):
                start = pos + skip
                end = start + body_size
                if end >= size:
                    need = end + 1 - pos
                    break
                if buf[end] == 0xCE:
                    append((CONTENT, channel, payload, header, buf[start:end]))
                    pos = end + 1
                    continue
            kind, number, length = unpack(buf, pos)
            end = pos + 7 + length
            if startswith(tail, end) and number == channel and kind == METHOD and length <= limit:
                # Another method, the same header: deliveries, whose tags differ; publishes to many queues.
                method = buf[pos + 7 : end]
                if method[:4] in _CONTENT_HEADS:
                    start = end + tail_size
                    stop = start + body_size
                    if stop >= size:
                        need = stop + 1 - pos
                        break
                    if buf[stop] == 0xCE:
                        if method == last_payload:
                            whole, payload, skip = buf[pos:start], method, start - pos
                        last_payload = method
                        append((CONTENT, channel, method, header, buf[start:stop]))
                        pos = stop + 1
                        continue
            if length > limit or kind not in _KNOWN_KINDS:
                self.error = _complaint(kind, number, length, limit)
                self._too_long = kind in _KNOWN_KINDS
                break
            if end >= size:
                need = end + 1 - pos
                break
            if buf[end] != 0xCE:
                self.error = _no_end(buf[end])
                break
            if kind != METHOD:
                if kind == HEARTBEAT and (length or number):
                    self.error = _complaint(kind, number, length, limit)
                    break
                append((kind, number, buf[pos + 7 : end], b"", b""))
                pos = end + 1
                continue
            method = buf[pos + 7 : end]
            if method[:4] in _CONTENT_HEADS:
                after = end + 1
                found = _look_ahead(buf, after, size, number, limit)
                if found is None:
                    append((METHOD, number, method, b"", b""))
                    pos = after
                    continue
                header_end, start, stop = found
                if start < 0:
                    need = stop - pos
                    break
                content = buf[after + 7 : header_end]
                append((CONTENT, number, method, content, buf[start:stop]))
                if stop == start:
                    pos = stop
                    continue
                pos = stop + 1
                # Worth remembering when it comes a second time; headers with a message id never do.
                if content == last_header:
                    whole, tail, tail_size = (), buf[end:start], start - end
                    channel, header, body_size = number, content, stop - start
                last_payload, last_header = method, content
                continue
            if method[:4] == ACK_HEAD:
                run = _ACK_RUN.match(buf, pos)
                if run is not None:
                    append((ACKS, number, run.group(), b"", b""))
                    pos = run.end()
                    continue
            append((METHOD, number, method, b"", b""))
            pos = end + 1
        self._last = whole, tail, channel, payload, header, body_size
        self._keep(buf, pos, need)
        return items

    def _join(self, data: bytes) -> bytes | None:
        """Everything there is to split, or None while the next frame cannot be whole yet."""
        if self.error is not None:
            raise self.error
        rest = self._rest
        if not rest:
            return data
        if len(rest) + len(data) < self._need:
            # A big frame in small pieces: appending is cheap, and nothing is looked at before it is whole.
            if isinstance(rest, bytes):
                self._rest = rest = bytearray(rest)
            rest += data
            return None
        return b"".join((rest, data))

    def _keep(self, buf: bytes, pos: int, need: int) -> None:
        self._rest = buf[pos:]
        self._need = need


_KNOWN_KINDS: Final = frozenset((METHOD, HEADER, BODY, HEARTBEAT))


def _look_ahead(buf: bytes, pos: int, size: int, channel: int, limit: int) -> tuple[int, int, int] | None:
    """What follows a method with content, seen from `pos`, where its content header should begin.

    `(header end, body start, body end)` if the content is whole in one body frame; body start and end are
    both the place behind the header if the body is empty. `(0, -1, n)` if the buffer must reach to `n` to
    know more. None if it is anything else.
    """
    if pos + 19 <= size:
        # The likely case first, in two looks; what it does not recognise is taken apart below.
        kind, number, length, class_id, _weight, body_size = _HEADER_FRAME.unpack_from(buf, pos)
        header_end = pos + 7 + length
        likely = kind == HEADER and number == channel and class_id == BASIC and 14 <= length <= limit
        if likely and header_end + 8 <= size:
            mark, kind, number, length = _END_AND_HEAD.unpack_from(buf, header_end)
            end = header_end + 8 + length
            likely = mark == 0xCE and kind == BODY and number == channel and 0 < length == body_size <= limit
            if likely and end < size and buf[end] == 0xCE:
                return header_end, header_end + 8, end
    if pos + FRAME_OVERHEAD > size:
        return 0, -1, pos + FRAME_OVERHEAD
    kind, number, length = _HEAD.unpack_from(buf, pos)
    if kind != HEADER or number != channel or not 14 <= length <= limit:
        return None
    header_end = pos + 7 + length
    if header_end >= size:
        return 0, -1, header_end + 1
    class_id, _weight, body_size = _CONTENT_HEADER.unpack_from(buf, pos + 7)
    if buf[header_end] != 0xCE or class_id != BASIC:
        return None
    pos = header_end + 1
    if not body_size:
        return header_end, pos, pos
    if body_size > limit:
        return None
    if pos + FRAME_OVERHEAD > size:
        return 0, -1, pos + FRAME_OVERHEAD
    kind, number, length = _HEAD.unpack_from(buf, pos)
    if kind != BODY or number != channel or length != body_size:
        return None
    end = pos + 7 + length
    if end >= size:
        return 0, -1, end + 1
    return (header_end, pos + 7, end) if buf[end] == 0xCE else None


def _complaint(kind: int, channel: int, length: int, limit: int) -> HardError:
    if kind not in _KNOWN_KINDS:
        text = f"frame type {kind} is unknown"
    elif length > limit:
        text = f"a payload of {length} octets is larger than the negotiated frame_max ({limit})"
    elif channel:
        # The specification says 501; RabbitMQ says 505, and it is RabbitMQ that clients know.
        text = f"a heartbeat on channel {channel}; it belongs on channel 0"
        return HardError(ReplyCode.UNEXPECTED_FRAME, text)
    else:
        text = "a heartbeat with a payload"
    return HardError(ReplyCode.FRAME_ERROR, text)


def _no_end(octet: int) -> HardError:
    return HardError(ReplyCode.FRAME_ERROR, f"a frame ends with octet {octet}, not with 206")


def expand(item: Item) -> list[Frame]:
    """The frames that an item of `feed_batches` was folded from."""
    kind, channel, payload, header, body = item
    if kind == CONTENT:
        frames = [(METHOD, channel, payload), (HEADER, channel, header)]
        return [*frames, (BODY, channel, body)] if body else frames
    if kind == ACKS:
        return [
            (METHOD, channel, payload[start + 7 : start + 20])
            for start in range(0, len(payload), ACK_FRAME_SIZE)
        ]
    return [(kind, channel, payload)]


def read_protocol_header(data: bytes) -> bool | None:
    """Whether `data` begins with our protocol header, or that of 0-9; None while it is too short to tell."""
    if data.startswith(_PROTOCOL_HEADERS):
        return True
    return None if any(header.startswith(data) for header in _PROTOCOL_HEADERS) else False


def method_frame(channel: int, payload: bytes) -> bytes:
    """A method frame."""
    return b"%b%b\xce" % (_HEAD.pack(METHOD, channel, len(payload)), payload)


def content_header(properties: bytes, body_size: int) -> bytes:
    """The payload of a content header frame from raw properties."""
    return _CONTENT_HEADER.pack(BASIC, 0, body_size) + properties


def content_frames(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """The header frame and as many body frames as `frame_max` asks for; 0 is no limit.

    A header cannot be split: a larger one is written as it is, as RabbitMQ does with what another client sent.
    """
    header = content_header(properties, len(body))
    room = frame_max - FRAME_OVERHEAD if frame_max else _NO_LIMIT
    parts = [_HEAD.pack(HEADER, channel, len(header)), header, FRAME_END]
    if len(body) <= room:
        if body:
            parts += (_HEAD.pack(BODY, channel, len(body)), body, FRAME_END)
    else:
        for start in range(0, len(body), room):
            piece = body[start : start + room]
            parts += (_HEAD.pack(BODY, channel, len(piece)), piece, FRAME_END)
    return b"".join(parts)
