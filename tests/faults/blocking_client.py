"""A small blocking AMQP client for tests that need every octet under control."""

import select
import socket
from collections.abc import Iterator
from typing import TypeVar

from redrive.amqp import methods as m
from redrive.amqp.connection import Connection
from redrive.amqp.content import Content
from redrive.amqp.events import Failed, MethodReceived
from redrive.amqp.methods import Role
from redrive.amqp.properties import BasicProperties, encode_properties
from redrive.amqp.sasl import PLAIN, Credentials, encode_response

PERSISTENT = encode_properties(BasicProperties(delivery_mode=2))
M = TypeVar("M", bound=m.Method)


class Client:
    """One connection with one channel. Raises `ConnectionError` when the broker goes away."""

    def __init__(self, port: int, timeout: float = 30.0, **capabilities: bool) -> None:
        self.abilities: dict[str, object] = {"capabilities": capabilities}
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.connection = Connection(Role.CLIENT)
        self.inbox: list[MethodReceived] = []
        try:
            self._log_in()
        except BaseException:
            self.socket.close()
            raise

    def _log_in(self) -> None:
        self.socket.sendall(self.connection.initiate())
        self.wait_for(m.ConnectionStart)
        self.send(
            m.ConnectionStartOk(self.abilities, PLAIN, encode_response(PLAIN, Credentials("guest", "guest")))
        )
        self.send(self.connection.negotiate(self.wait_for(m.ConnectionTune)))
        self.send(m.ConnectionOpen("/"))
        self.wait_for(m.ConnectionOpenOk)
        self.call(m.ChannelOpen(), m.ChannelOpenOk)

    def send(self, method: m.Method, channel: int = 0, content: Content | None = None) -> None:
        self.socket.sendall(self.connection.send(method, channel, content))

    def call(self, method: m.Method, answer: type[M]) -> M:
        self.send(method, 1)
        return self.wait_for(answer)

    def wait_for(self, kind: type[M]) -> M:
        """The next method of this kind; what comes before it is kept in the inbox."""
        while True:
            for index, event in enumerate(self.inbox):
                if isinstance(event.method, kind):
                    del self.inbox[index]
                    return event.method
            self._receive()

    def drain(self, seconds: float) -> Iterator[MethodReceived]:
        """What has come, waiting at most so long for more."""
        if not self.inbox and select.select([self.socket], [], [], seconds)[0]:
            self._receive()
        events, self.inbox = self.inbox, []
        yield from events

    def _receive(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker has closed the connection")
        for event in self.connection.receive(data):
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, MethodReceived):
                self.inbox.append(event)

    def close(self) -> None:
        self.socket.close()
