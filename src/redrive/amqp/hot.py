"""How publish, deliver and ack are read and written when there are a hundred thousand of them a second.

The rule: nothing here builds an object that can be avoided, and everything here does exactly what `codec`
does, only quicker; the tests hold the two against each other. Readers take the payload of a method frame,
writers give whole frames.

A consumer has one `DeliverWriter`. The octets of a delivery that do not change from one message to the
next (frame heads, consumer tag, route, content header) are kept and only the tag and the body are new.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from redrive.amqp.codec import decode
from redrive.amqp.errors import FrameSyntaxError
from redrive.amqp.frames import (
    BODY,
    DELIVER_HEAD,
    FRAME_END,
    FRAME_OVERHEAD,
    HEADER,
    METHOD,
    content_frames,
)

_HEAD = struct.Struct(">BHI")
_ACK_PAYLOAD = struct.Struct(">IQB")
_ACK_FRAME = struct.Struct(">BHIIQBB")
_ACK_TAG = struct.Struct(">11xQ2x")
_TAG = struct.Struct(">Q")

_ACK_SIZE: Final = 13
_ACK: Final = 0x003C0050
_NACK: Final = 0x003C0078
_REJECT: Final = 0x003C005A


def parse_publish(payload: bytes) -> tuple[str, str, bool, bool]:
    """Exchange, routing key, mandatory, immediate of a `basic.publish`."""
    try:
        middle = 7 + payload[6]
        last = middle + 1 + payload[middle]
        flags = payload[last]
        if len(payload) == last + 1:
            return (
                payload[7:middle].decode(),
                payload[middle + 1 : last].decode(),
                flags & 1 != 0,
                flags & 2 != 0,
            )
    except (IndexError, UnicodeDecodeError):
        pass
    raise _explain(payload)


def parse_deliver(payload: bytes) -> tuple[str, int, bool, str, str]:
    """Consumer tag, delivery tag, redelivered, exchange, routing key of a `basic.deliver`."""
    try:
        tag = 5 + payload[4]
        exchange = tag + 10
        key = exchange + payload[exchange - 1] + 1
        if len(payload) == key + payload[key - 1]:
            return (
                payload[5:tag].decode(),
                _TAG.unpack_from(payload, tag)[0],
                payload[tag + 8] & 1 != 0,
                payload[exchange : key - 1].decode(),
                payload[key:].decode(),
            )
    except (IndexError, UnicodeDecodeError):
        pass
    raise _explain(payload)


def parse_route(payload: bytes) -> tuple[str, str]:
    """Exchange and routing key of a `basic.deliver`, which are the same for many."""
    try:
        route = payload[5 + payload[4] + 9 :]
    except IndexError:
        raise _explain(payload) from None
    return _route(route) or parse_deliver(payload)[3:]


@lru_cache(1024)
def _route(octets: bytes) -> tuple[str, str] | None:
    """Two short strings; None if they are not."""
    try:
        key = octets[0] + 2
        if len(octets) == key + octets[key - 1]:
            return octets[1 : key - 1].decode(), octets[key:].decode()
    except (IndexError, UnicodeDecodeError):
        pass
    return None


def parse_ack(payload: bytes) -> tuple[int, bool]:
    """Delivery tag and multiple of a `basic.ack`."""
    if len(payload) != _ACK_SIZE:
        raise _explain(payload)
    _, tag, flags = _ACK_PAYLOAD.unpack(payload)
    return tag, flags & 1 != 0


def parse_nack(payload: bytes) -> tuple[int, bool, bool]:
    """Delivery tag, multiple and requeue of a `basic.nack`."""
    if len(payload) != _ACK_SIZE:
        raise _explain(payload)
    _, tag, flags = _ACK_PAYLOAD.unpack(payload)
    return tag, flags & 1 != 0, flags & 2 != 0


def parse_reject(payload: bytes) -> tuple[int, bool]:
    """Delivery tag and requeue of a `basic.reject`."""
    return parse_ack(payload)


def parse_ack_run(run: bytes) -> list[int]:
    """The delivery tags of an `ACKS` item, in the order they came; none of them is a multiple."""
    return [tag for (tag,) in _ACK_TAG.iter_unpack(run)]


def _explain(payload: bytes) -> FrameSyntaxError:
    """Why a payload that a quick reader refused is wrong: `codec` finds the words."""
    try:
        decode(payload)
    except FrameSyntaxError as error:
        return error
    return FrameSyntaxError("not the method that it was taken for")


def publish_payload(exchange: bytes, routing_key: bytes, flags: int = 0) -> bytes:
    """A `basic.publish`; `flags` is 1 for mandatory."""
    return b"\x00\x3c\x00\x28\x00\x00%c%b%c%b%c" % (
        len(exchange), exchange, len(routing_key), routing_key, flags,
    )  # fmt: skip


def route_of(publish: bytes) -> bytes:
    """Exchange and routing key of a `basic.publish`, with their lengths, as a delivery repeats them."""
    return publish[6:-1]


def deliver_payload(consumer_tag: bytes, delivery_tag: int, redelivered: bool, route: bytes) -> bytes:  # noqa: FBT001  # a bit on the wire
    """A `basic.deliver`. `consumer_tag` comes without its length, `route` as `route_of` gives it."""
    return b"%b%c%b%b%c%b" % (
        DELIVER_HEAD, len(consumer_tag), consumer_tag, delivery_tag.to_bytes(8, "big"), redelivered, route,
    )  # fmt: skip


def ack_frame(channel: int, delivery_tag: int, multiple: bool = False) -> bytes:  # noqa: FBT001, FBT002  # a bit on the wire
    """A whole `basic.ack` frame: a consumer's, or a confirm."""
    return _ACK_FRAME.pack(METHOD, channel, _ACK_SIZE, _ACK, delivery_tag, multiple, 0xCE)


def ack_frames(channel: int, delivery_tags: Iterable[int]) -> bytes:
    """A `basic.ack` frame for each of the tags."""
    pack = _ACK_FRAME.pack
    return b"".join([pack(METHOD, channel, _ACK_SIZE, _ACK, tag, False, 0xCE) for tag in delivery_tags])


def nack_frame(channel: int, delivery_tag: int, flags: int) -> bytes:
    """A whole `basic.nack` frame; `flags` is 1 for multiple, 2 for requeue."""
    return _ACK_FRAME.pack(METHOD, channel, _ACK_SIZE, _NACK, delivery_tag, flags, 0xCE)


def reject_frame(channel: int, delivery_tag: int, requeue: bool) -> bytes:  # noqa: FBT001  # a bit on the wire
    """A whole `basic.reject` frame."""
    return _ACK_FRAME.pack(METHOD, channel, _ACK_SIZE, _REJECT, delivery_tag, requeue, 0xCE)


class ContentWriter:
    """Writes method + header + body on one channel when the same method and header come again and again.

    For publishing; `header` is the payload of the content header frame (`content_header`).
    """

    __slots__ = ("_channel", "_header", "_payload", "_prefix", "_room")

    def __init__(self, channel: int, frame_max: int) -> None:
        self._channel = channel
        self._room = frame_max - FRAME_OVERHEAD if frame_max else 0xFFFFFFFF
        self._payload = b""
        self._header = b""
        self._prefix = b""

    def frames(self, payload: bytes, header: bytes, body: bytes) -> bytes:
        """The frames of one content. The header must announce the size of the body."""
        if payload == self._payload and header == self._header:
            return b"%b%b\xce" % (self._prefix, body)
        channel = self._channel
        method = _HEAD.pack(METHOD, channel, len(payload)) + payload + FRAME_END
        if not 0 < len(body) <= self._room:
            return method + content_frames(channel, header[12:], body, self._room + FRAME_OVERHEAD)
        self._payload, self._header = payload, header
        self._prefix = b"".join((method, content_prefix(channel, header, len(body))))
        return b"%b%b\xce" % (self._prefix, body)


def content_prefix(channel: int, header: bytes, body_size: int) -> bytes:
    """The header frame and the head of the one body frame: all of a content but its body and an end octet."""
    return b"".join(
        (_HEAD.pack(HEADER, channel, len(header)), header, FRAME_END, _HEAD.pack(BODY, channel, body_size))
    )


class DeliverWriter:
    """Writes the deliveries of one consumer."""

    __slots__ = ("_channel", "_head", "_header", "_prefix", "_room", "_route", "_tag", "_tail")

    def __init__(self, channel: int, consumer_tag: bytes, frame_max: int) -> None:
        self._channel = channel
        self._tag = DELIVER_HEAD + bytes((len(consumer_tag),)) + consumer_tag
        self._room = frame_max - FRAME_OVERHEAD if frame_max else 0xFFFFFFFF
        self._route: bytes | None = None
        self._header: bytes | None = None
        self._head = b""
        self._tail = b""
        self._prefix = b""

    def frames(self, delivery_tag: int, redelivered: bool, route: bytes, header: bytes, body: bytes) -> bytes:  # noqa: FBT001  # a bit on the wire
        """The frames of one delivery.

        `route` is what `route_of` gives, `header` the payload of the content header as it came in; it must
        announce the size of `body`. Both are recognised by identity first, so pass the same objects again.
        """
        if route is not self._route:
            self._turn_to(route)
        if header is not self._header:
            if not 0 < len(body) <= self._room:
                return b"".join(
                    (
                        self._head,
                        delivery_tag.to_bytes(8, "big"),
                        b"\x01" if redelivered else b"\x00",
                        self._tail,
                        content_frames(self._channel, header[12:], body, self._room + FRAME_OVERHEAD),
                    )
                )
            self._header = header
            self._prefix = self._tail + content_prefix(self._channel, header, len(body))
        return b"%b%b%b%b%b\xce" % (
            self._head,
            delivery_tag.to_bytes(8, "big"),
            b"\x01" if redelivered else b"\x00",
            self._prefix,
            body,
        )

    def _turn_to(self, route: bytes) -> None:
        size = len(self._tag) + 9 + len(route)
        self._head = _HEAD.pack(METHOD, self._channel, size) + self._tag
        self._tail = route + FRAME_END
        self._route = route
        self._header = None
