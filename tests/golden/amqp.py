"""A minimal AMQP 0-9-1 client that gives and takes the properties of a message as raw bytes.

It is independent of redrive's own codec and of every client library, because what is stored and compared are the bytes
on the wire. It blocks, has one channel, and supports `basic.get` and confirmed `basic.publish`.
"""

import socket
import struct
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit

_METHOD, _HEADER, _BODY, _HEARTBEAT, _END = 1, 2, 3, 8, 0xCE
_TIMEOUT = 30.0


class Content(NamedTuple):
    """A message as it is on the wire."""

    exchange: str
    routing_key: str
    redelivered: bool
    properties: bytes  # the property flags and what follows them
    body: bytes


class Connection:
    """One connection with one channel, in confirm mode."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), _TIMEOUT)
        self._file = self._socket.makefile("rb")
        self._frame_max = 131_072
        login = f"\0{unquote(parts.username or 'guest')}\0{unquote(parts.password or 'guest')}".encode()
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(10, 10)
        start_ok = (
            struct.pack(">L", 0) + _short(b"PLAIN") + struct.pack(">L", len(login)) + login + _short(b"en_US")
        )
        self._send(0, 10, 11, start_ok)
        self._expect(10, 30)
        self._send(0, 10, 31, struct.pack(">HLH", 1, self._frame_max, 0))
        self._send(0, 10, 40, _short(unquote(parts.path[1:]).encode() or b"/") + b"\0\0")
        self._expect(10, 41)
        self._send(1, 20, 10, b"\0")
        self._expect(20, 11)
        self._send(1, 85, 10, b"\0")
        self._expect(85, 11)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; the broker requeues what was not acknowledged."""
        self._file.close()
        self._socket.close()

    def get(self, queue: str) -> Content | None:
        """The next message of a queue, which stays unacknowledged; None if the queue is empty."""
        self._send(1, 60, 70, struct.pack(">H", 0) + _short(queue.encode()) + b"\0")
        method = self._receive(_METHOD)
        if method[:4] == struct.pack(">HH", 60, 72):
            return None
        if method[:4] != struct.pack(">HH", 60, 71):
            raise ConnectionError(f"basic.get of '{queue}' failed: {method!r}")
        redelivered = method[12] == 1
        exchange, rest = _read_short(method[13:])
        routing_key, _ = _read_short(rest)
        header = self._receive(_HEADER)
        (size,) = struct.unpack(">Q", header[4:12])
        body = b""
        while len(body) < size:
            body += self._receive(_BODY)
        return Content(exchange, routing_key, redelivered, header[12:], body)

    def get_all(self, queue: str) -> list[Content]:
        """All messages of a queue."""
        found: list[Content] = []
        while (content := self.get(queue)) is not None:
            found.append(content)
        return found

    def publish(self, exchange: str, routing_key: str, properties: bytes, body: bytes) -> None:
        """Publish a message and wait until it is confirmed."""
        arguments = struct.pack(">H", 0) + _short(exchange.encode()) + _short(routing_key.encode()) + b"\0"
        self._send(1, 60, 40, arguments)
        self._write(_HEADER, 1, struct.pack(">HHQ", 60, 0, len(body)) + properties)
        room = self._frame_max - 8
        for start in range(0, len(body), room):
            self._write(_BODY, 1, body[start : start + room])
        self._expect(60, 80)

    def _send(self, channel: int, class_id: int, method_id: int, arguments: bytes) -> None:
        self._write(_METHOD, channel, struct.pack(">HH", class_id, method_id) + arguments)

    def _write(self, kind: int, channel: int, payload: bytes) -> None:
        self._socket.sendall(struct.pack(">BHL", kind, channel, len(payload)) + payload + bytes([_END]))

    def _expect(self, class_id: int, method_id: int) -> bytes:
        payload = self._receive(_METHOD)
        if payload[:4] != struct.pack(">HH", class_id, method_id):
            raise ConnectionError(f"expected method {class_id}.{method_id}, got {payload!r}")
        return payload[4:]

    def _receive(self, wanted: int) -> bytes:
        while True:
            head = self._file.read(7)
            if len(head) < 7:
                raise ConnectionError("the broker closed the connection")
            kind, _, size = struct.unpack(">BHL", head)
            payload = self._file.read(size)
            if self._file.read(1) != bytes([_END]):
                raise ConnectionError("a frame has no end octet")
            if kind == wanted:
                return payload
            if kind != _HEARTBEAT:
                raise ConnectionError(f"expected a frame of type {wanted}, got {kind}: {payload!r}")


def _short(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def _read_short(data: bytes) -> tuple[str, bytes]:
    return data[1 : 1 + data[0]].decode(), data[1 + data[0] :]
