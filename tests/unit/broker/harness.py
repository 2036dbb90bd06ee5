"""A broker and its clients joined in memory, with a clock turned by hand: no socket, no wait."""

from collections.abc import Iterator
from typing import Any, TypeVar

from redrive.amqp import methods as m
from redrive.amqp.connection import Connection
from redrive.amqp.content import Content
from redrive.amqp.events import Failed, HeaderRefused, MethodReceived
from redrive.amqp.methods import Role
from redrive.amqp.properties import BasicProperties, encode_properties, read_headers
from redrive.amqp.sasl import PLAIN, Credentials, encode_response
from redrive.broker.core import Broker
from redrive.broker.session import Session

M = TypeVar("M", bound=m.Method)
NOON = 1_771_000_000_000


class World:
    """A broker, the time, and the clients."""

    def __init__(self, **options: Any) -> None:
        self.broker = Broker(**options).with_defaults()
        self.now = NOON
        self.clients: list[Peer] = []

    def client(self, **options: Any) -> "Peer":
        peer = Peer(self, **options)
        self.clients.append(peer)
        return peer

    def work(self) -> None:
        """End the turn: do what was left for later, and carry octets to the clients."""
        while self.broker.work(self.now):
            pass
        for peer in self.clients:
            peer.listen()

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.broker.tick(self.now)
        self.work()


class Peer:
    """A client with one channel open. What it is told and nobody has asked for yet is in `inbox`."""

    def __init__(
        self, world: World, *, user: str = "guest", password: str = "guest", vhost: str = "/"
    ) -> None:
        self.world = world
        self.session = Session(world.broker, "client")
        self.connection = Connection(Role.CLIENT)
        self.inbox: list[MethodReceived] = []
        world.clients.append(self)
        self.say(self.connection.initiate())
        self.take(m.ConnectionStart)
        abilities = {"capabilities": {"consumer_cancel_notify": True, "connection.blocked": True}}
        self.send(m.ConnectionStartOk(abilities, PLAIN, encode_response(PLAIN, Credentials(user, password))))
        if self.connection.state.name == "AWAIT_TUNE" and not self.sees(m.ConnectionTune):
            return
        self.send(self.connection.negotiate(self.take(m.ConnectionTune)))
        self.send(m.ConnectionOpen(vhost))
        if self.sees(m.ConnectionOpenOk):
            self.take(m.ConnectionOpenOk)
            self.call(m.ChannelOpen(), m.ChannelOpenOk)

    # --- octets --------------------------------------------------------------------------------------------

    def say(self, octets: bytes) -> None:
        self.session.receive(octets, self.world.now)
        self.world.work()

    def listen(self) -> None:
        for event in self.connection.receive(self.session.take()) if self.session.outbox else ():
            if isinstance(event, MethodReceived):
                self.inbox.append(event)
            else:
                assert not isinstance(event, Failed | HeaderRefused), event

    # --- methods -------------------------------------------------------------------------------------------

    def send(self, method: m.Method, channel: int = 0, content: Content | None = None) -> None:
        self.say(self.connection.send(method, channel, content))

    def call(self, method: m.Method, answer: type[M], channel: int = 1) -> M:
        self.send(method, channel)
        return self.take(answer)

    def sees(self, kind: type[m.Method]) -> bool:
        return any(isinstance(event.method, kind) for event in self.inbox)

    def take(self, kind: type[M]) -> M:
        """The first method of this kind; everything before it stays."""
        return self.take_whole(kind)[0]

    def take_whole(self, kind: type[M]) -> tuple[M, Content | None]:
        for index, event in enumerate(self.inbox):
            if isinstance(event.method, kind):
                del self.inbox[index]
                return event.method, event.content
        raise AssertionError(f"no {kind.__name__} among {[type(e.method).__name__ for e in self.inbox]}")

    def all_of(self, kind: type[M]) -> Iterator[tuple[M, Content | None]]:
        while self.sees(kind):
            yield self.take_whole(kind)

    # --- shortcuts -----------------------------------------------------------------------------------------

    def declare(self, queue: str, **options: Any) -> m.QueueDeclareOk:
        arguments = {
            name.replace("_", "-"): value for name, value in options.items() if name.startswith("x_")
        }
        flags = {name: value for name, value in options.items() if not name.startswith("x_")}
        return self.call(m.QueueDeclare(queue, arguments=arguments, **flags), m.QueueDeclareOk)

    def publish(
        self,
        key: str,
        body: bytes = b"body",
        exchange: str = "",
        *,
        mandatory: bool = False,
        **properties: Any,
    ) -> None:
        content = Content(encode_properties(BasicProperties(**properties)), body)
        self.send(m.BasicPublish(exchange, key, mandatory), 1, content)

    def get(self, queue: str, *, no_ack: bool = True) -> tuple[m.BasicGetOk, Content] | None:
        self.send(m.BasicGet(queue, no_ack), 1)
        if self.sees(m.BasicGetEmpty):
            self.take(m.BasicGetEmpty)
            return None
        method, content = self.take_whole(m.BasicGetOk)
        assert content is not None
        return method, content

    def bodies(self, queue: str) -> list[bytes]:
        """Everything in a queue, taken out."""
        found: list[bytes] = []
        while (one := self.get(queue)) is not None:
            found.append(one[1].body)
        return found

    def deaths(self, content: Content) -> list[Any]:
        """The x-death header of a message."""
        deaths = read_headers(content.properties)["x-death"]
        assert isinstance(deaths, list)
        return deaths

    def depth(self, queue: str) -> int:
        return self.call(m.QueueDeclare(queue, passive=True), m.QueueDeclareOk).message_count
