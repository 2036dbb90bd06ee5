"""What can have come over a connection?

What `Connection.receive` gives, in the past tense. The rule: an event has everything that an answer to it needs.
"""

from typing import TypeAlias

from msgspec import Struct

from redrive.amqp.content import Content
from redrive.amqp.errors import AmqpError
from redrive.amqp.frames import PROTOCOL_HEADER
from redrive.amqp.methods import Method


class HeaderReceived(Struct, frozen=True):
    """A client has shown the right protocol header; the server is to send `ConnectionStart`."""


class HeaderRefused(Struct, frozen=True):
    """A client has shown something else; the server is to send `answer` and hang up."""

    answer: bytes = PROTOCOL_HEADER


class MethodReceived(Struct, frozen=True):
    """A method has come, whole with its content if it has one."""

    channel: int
    method: Method
    content: Content | None = None


class HeartbeatReceived(Struct, frozen=True):
    """The peer has nothing to say but is there."""


class Failed(Struct, frozen=True):
    """The peer has broken the protocol. Channel 0 is the connection; answer with `close_for`."""

    channel: int
    error: AmqpError


Event: TypeAlias = HeaderReceived | HeaderRefused | MethodReceived | HeartbeatReceived | Failed
