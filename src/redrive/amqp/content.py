"""How a method, its content header and its bodies become one message.

The rule: on each channel a content is method, header, bodies until the announced size is reached, and
nothing else may come between on that channel. Other channels may. A message that announces more than the
limit is refused at its header, before anything of it is kept; that costs the channel (406), every other
breach of order costs the connection (505).

The assembler does not know what a method is: it hands back whatever it was given with `begin`, so that the
broker may pass raw payloads and the `Connection` decoded methods.
"""

import struct
from typing import Final, Generic, TypeVar

from msgspec import Struct

from redrive.amqp.errors import FrameSyntaxError, HardError, ReplyCode, SoftError
from redrive.amqp.frames import BASIC
from redrive.amqp.properties import NO_PROPERTIES, BasicProperties, check_properties, decode_properties

T = TypeVar("T")

# RabbitMQ 4's default; it was 128 MiB before.
MAX_MESSAGE_SIZE: Final = 16 * 1024 * 1024

_HEADER = struct.Struct(">HHQ")
_PUBLISH: Final = 40


class Content(Struct, frozen=True):
    """The properties as they travel (see `properties`) and the body."""

    properties: bytes = NO_PROPERTIES
    body: bytes = b""

    def decoded(self) -> BasicProperties:
        """The properties, all fields of them."""
        return decode_properties(self.properties)


class _Pending(Generic[T]):
    """A content that is not whole yet; `properties` is None until its header has come."""

    __slots__ = ("method", "method_id", "pieces", "properties", "remaining")

    def __init__(self, method: T, method_id: int) -> None:
        self.method = method
        self.method_id = method_id
        self.properties: bytes | None = None
        self.remaining = 0
        self.pieces: list[bytes] = []


class ContentAssembler(Generic[T]):
    """Puts contents together, one at a time on each channel. `pending` has the channels that are at it."""

    __slots__ = ("_limit", "pending")

    def __init__(self, max_message_size: int = MAX_MESSAGE_SIZE) -> None:
        self._limit = max_message_size
        self.pending: dict[int, _Pending[T]] = {}

    def begin(self, channel: int, method: T, method_id: int = _PUBLISH) -> None:
        """A method that content follows has come; `method_id` is for error texts."""
        self.check_method(channel)
        self.pending[channel] = _Pending(method, method_id)

    def check_method(self, channel: int) -> None:
        """Raise unless a method may come on this channel now."""
        pending = self.pending.get(channel)
        if pending is not None:
            expected = "a content header" if pending.properties is None else "a content body"
            raise _unexpected(f"expected {expected}, got a method", pending)

    def header(self, channel: int, payload: bytes) -> tuple[T, Content] | None:
        """A content header has come; the whole message if its body is empty."""
        pending = self.pending.get(channel)
        if pending is None:
            raise _unexpected("expected a method, got a content header")
        if pending.properties is not None:
            raise _unexpected("expected a content body, got a content header", pending)
        if len(payload) < _HEADER.size + 2:
            raise FrameSyntaxError("a content header is too short")
        class_id, _weight, size = _HEADER.unpack_from(payload)
        if class_id != BASIC:
            raise _unexpected(f"expected a content header for class {BASIC}, got one for {class_id}", pending)
        if size > self._limit:
            del self.pending[channel]
            raise SoftError(
                ReplyCode.PRECONDITION_FAILED,
                f"message size {size} is larger than configured max size {self._limit}",
                BASIC,
                pending.method_id,
            )
        properties = payload[_HEADER.size :]
        check_properties(properties)
        pending.properties = properties
        pending.remaining = size
        return self._whole(channel, pending) if not size else None

    def body(self, channel: int, payload: bytes) -> tuple[T, Content] | None:
        """A content body has come; the whole message if this was its last."""
        pending = self.pending.get(channel)
        if pending is None:
            raise _unexpected("expected a method, got a content body")
        if pending.properties is None:
            raise _unexpected("expected a content header, got a content body", pending)
        pending.remaining -= len(payload)
        if pending.remaining < 0:
            raise _unexpected(
                f"a body of {-pending.remaining} octets more than its header announced", pending
            )
        if payload:
            pending.pieces.append(payload)
        return self._whole(channel, pending) if not pending.remaining else None

    def drop(self, channel: int) -> None:
        """Forget what has begun on this channel."""
        self.pending.pop(channel, None)

    def _whole(self, channel: int, pending: _Pending[T]) -> tuple[T, Content]:
        del self.pending[channel]
        pieces = pending.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return pending.method, Content(pending.properties or NO_PROPERTIES, body)


def _unexpected(text: str, pending: "_Pending[T] | None" = None) -> HardError:
    ids = (BASIC, pending.method_id) if pending is not None else (0, 0)
    return HardError(ReplyCode.UNEXPECTED_FRAME, text, *ids)
