"""The AMQP 0-9-1 wire protocol, for both ends of a connection, without any I/O.

From the wire up: `frames` splits octets into frames, `codec` turns method payloads into the classes of
`methods`, `properties` and `table` read what messages carry, `content` puts messages together, `states` says
which step follows which, `limits` what the ends agree on, and `connection` is all of it in one object that gives
`events`. `hot` has the same for publish, deliver and ack when every microsecond counts. The room knows no sockets, no
clocks, no queues.
"""

from redrive.amqp.connection import Connection
from redrive.amqp.content import Content, ContentAssembler
from redrive.amqp.errors import (
    AmqpError,
    FrameSyntaxError,
    HardError,
    MisuseError,
    ReplyCode,
    SoftError,
    error_for,
)
from redrive.amqp.events import (
    Event,
    Failed,
    HeaderReceived,
    HeaderRefused,
    HeartbeatReceived,
    MethodReceived,
)
from redrive.amqp.frames import FrameSplitter
from redrive.amqp.limits import Limits
from redrive.amqp.methods import Method, Role
from redrive.amqp.properties import BasicProperties, decode_properties, encode_properties
from redrive.amqp.states import ChannelState, ConnectionState

__all__ = [
    "AmqpError",
    "BasicProperties",
    "ChannelState",
    "Connection",
    "ConnectionState",
    "Content",
    "ContentAssembler",
    "Event",
    "Failed",
    "FrameSplitter",
    "FrameSyntaxError",
    "HardError",
    "HeaderReceived",
    "HeaderRefused",
    "HeartbeatReceived",
    "Limits",
    "Method",
    "MethodReceived",
    "MisuseError",
    "ReplyCode",
    "Role",
    "SoftError",
    "decode_properties",
    "encode_properties",
    "error_for",
]
