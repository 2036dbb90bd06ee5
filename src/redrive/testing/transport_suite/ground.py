"""What every part of the suite stands on: a transport, a source on it, and the ways to trouble both."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar

import pytest

from redrive.errors import TransportError
from redrive.letters import DeadLetter, Headers, HeaderValue, Message, TypedValue
from redrive.letters.headers import EMPTY
from redrive.testing.factories import a_failure
from redrive.transports.base import (
    Death,
    Delivery,
    Outcomes,
    Publication,
    Receiver,
    Source,
    Target,
    Transport,
)

EVERY_BYTE = bytes(range(256))
PATIENCE = 15.0  # seconds after which what should have come is held not to come


class Ground:
    """A transport to be tested. Subclasses say how it is opened and how it is troubled."""

    #: How long it is watched that nothing comes, in seconds.
    quiet: ClassVar[float] = 0.3
    #: The shortest delay that the broker keeps.
    delay: ClassVar[timedelta] = timedelta(seconds=1)
    #: What the broker keeps about a message beside its headers, by the broker's names.
    properties: ClassVar[Headers] = EMPTY
    #: Headers with a value of each type that the broker carries.
    headers: ClassVar[Headers] = Headers(
        {
            "text": "north",
            "empty": "",
            "Größe": "🚚 and é",
            "number": 7,
            "large": 2**40,
            "negative": -5,
            "yes": True,
            "no": False,
            "half": 0.5,
            "nothing": None,
            "octets": b"\x00\xff\xfe",
            "table": Headers({"inner": Headers({"deep": ("a", 1)})}),
            "list": ("a", 1, True, None),
            "time": datetime(2026, 2, 11, 12, 0, tzinfo=UTC),
        }
    )
    #: True where the broker counts a look as a delivery, so that only who has looked can tell them apart.
    looking_counts: ClassVar[bool] = False
    #: A header's value that cannot be sent; None where there is none.
    unsendable: ClassVar[HeaderValue] = TypedValue("no-such-type", 1)

    # --- what a subclass has to say -----------------------------------------------------------------------

    @pytest.fixture
    def place(self, tmp_path: Path) -> Any:
        """What the other hooks need to find the broker: a directory, a URL, an object of the backend's own."""
        return tmp_path

    async def open_transport(self, place: Any) -> Transport:
        """A transport that is connected to the broker there; several may be open at a time."""
        raise NotImplementedError

    async def cut(self, place: Any) -> None:
        """Lose all connections to the broker, or whatever else holds deliveries; it is there again at once."""
        raise NotImplementedError

    async def leave(self, place: Any) -> None:
        """Make the broker unreachable."""
        raise NotImplementedError

    async def come_back(self, place: Any) -> None:
        """Make it reachable again."""
        raise NotImplementedError

    async def remove(self, place: Any, queue: str) -> None:
        """Delete a queue or topic of this name, by another way than the transport."""
        raise NotImplementedError

    async def make_source(self, transport: Transport, **fields: Any) -> Source:
        """A source that no other test uses, with everything it needs on the broker."""
        fields.setdefault("name", f"orders-{token_hex(4)}")
        source = Source(**fields)
        await transport.provision([source])
        return source

    def carried(self, value: HeaderValue) -> HeaderValue:
        """What becomes of a header's value on the way; most brokers carry it with its type."""
        return value

    # --- what tests ask for -------------------------------------------------------------------------------

    @pytest.fixture
    async def transport(self, place: Any) -> AsyncIterator[Transport]:
        """A transport that is open."""
        transport = await self.open_transport(place)
        yield transport
        await transport.close()

    @pytest.fixture
    async def source(self, transport: Transport) -> Source:
        """A source without messages."""
        return await self.make_source(transport)

    def a_full_message(self, body: bytes = EVERY_BYTE) -> Message:
        """A message with all that a broker can carry."""
        return Message(
            body=body,
            headers=self.headers,
            content_type="application/octet-stream",
            content_encoding="gzip",
            message_id="message-1",
            correlation_id="trace-1",
            sent_at=datetime(2026, 2, 11, 12, 0, 5, tzinfo=UTC),
            properties=self.properties,
        )

    async def fill(self, transport: Transport, source: Source | str, bodies: Iterable[bytes]) -> None:
        """Messages of these bodies."""
        await self.send(transport, source, [Message(body=body) for body in bodies])

    async def send(self, transport: Transport, source: Source | str, messages: Sequence[Message]) -> None:
        """These messages, all of them durable."""
        outcomes = await asyncio.wait_for(transport.publish(to(source, messages)), PATIENCE)
        assert list(outcomes) == [None] * len(messages)

    async def send_in_the_end(self, transport: Transport, source: Source, body: bytes) -> None:
        """Publish until it is durable: the connection may just be coming back."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(TransportError):
                    if all_done(await transport.publish(to(source, [Message(body=body)])), 1):
                        return
                await asyncio.sleep(0.05)

    async def take(self, receiver: Receiver, count: int) -> list[Delivery]:
        """So many deliveries, as they come; more is a failure."""
        taken: list[Delivery] = []
        async with asyncio.timeout(PATIENCE):
            while len(taken) < count:
                taken += await receiver.receive()
        assert len(taken) == count
        return taken

    async def take_all(self, transport: Transport, source: Source | str) -> list[Delivery]:
        """All that waits in a source, once; it is accepted."""
        name = source if isinstance(source, str) else source.name
        count = await transport.depth(name)  # before there is a receiver that could take them
        receiver = await transport.receiver(Source(name=name, window=1000))
        taken = await self.take(receiver, count)
        receiver.accept(taken)
        await receiver.close()
        return taken

    async def accept_in_the_end(self, receiver: Receiver, wanted: Iterable[bytes]) -> None:
        """Receive until all of these were accepted in time; what was too late comes again."""
        missing: set[bytes | None] = set(wanted)
        async with asyncio.timeout(PATIENCE):
            while missing:
                for delivery in await receiver.receive():
                    if receiver.accept([delivery]) == 0:
                        missing.discard(delivery.body)

    async def nothing_comes(self, receiver: Receiver) -> None:
        """For a while, no delivery comes."""
        receiving = asyncio.ensure_future(receiver.receive())
        done, _ = await asyncio.wait([receiving], timeout=self.quiet)
        receiving.cancel()
        assert not done, f"{len(receiving.result())} deliveries too many"
        await asyncio.gather(receiving, return_exceptions=True)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until it holds: a connection's end is noticed, but nobody is told."""
        for _ in range(int(PATIENCE / 0.01)):
            if holds():
                return
            await asyncio.sleep(0.01)
        pytest.fail(f"{what}: not within {PATIENCE:.0f} s")

    async def depth_becomes(self, transport: Transport, source: str, depth: int) -> None:
        """Wait until so many messages wait: accepting does not wait, so its effect has to be waited for."""
        found = -1
        for _ in range(int(PATIENCE / 0.02)):
            found = await transport.depth(source)
            if found == depth:
                return
            await asyncio.sleep(0.02)
        pytest.fail(f"{found} messages wait in {source} and not {depth}")

    def needs(self, has_it: object, what: str) -> None:
        """Skip the test if the broker does not have this."""
        if not has_it:
            pytest.skip(f"this broker has no {what}")


def to(source: Source | str, messages: Iterable[Message]) -> list[Publication]:
    """These messages, straight to a source."""
    target = Target(name=source if isinstance(source, str) else source.name)
    return [Publication(message, target) for message in messages]


def bodies(deliveries: Iterable[Delivery]) -> list[bytes | None]:
    """What is in them."""
    return [delivery.body for delivery in deliveries]


def numbered(count: int, prefix: bytes = b"") -> list[bytes]:
    """Bodies that tell their place."""
    return [prefix + b"%d" % number for number in range(count)]


def death_of(delivery: Delivery, reason: str = "NonRetryableError", **fields: Any) -> Death:
    """A letter of this delivery."""
    failure = a_failure(stack='Traceback:\n  File "app/orders.py", line 3, in handle\nTimeoutError: late\n')
    letter = DeadLetter.create(
        delivery.message, delivery.origin, failure, key=delivery.key, reason=reason, retry_count=3, **fields
    )
    return Death(delivery, letter)


def all_done(outcomes: Outcomes, count: int) -> bool:
    """Whether everything that was asked for is done."""
    return list(outcomes) == [None] * count


def difference(found: Message, sent: Message) -> str | None:
    """In what the one is not the other, types included; brokers may keep headers in an order of their own.

    Of the properties only those that were sent are looked at: brokers add some, and the time where none was sent.
    """
    if found.headers.names() != sent.headers.names() or len(found.headers) != len(sent.headers):
        return f"headers {sorted(found.headers.names())}, not {sorted(sent.headers.names())}"
    for name in sent.headers.names():
        values, wanted = found.headers.get_all(name), sent.headers.get_all(name)
        if Headers({name: values}) != Headers({name: wanted}):  # which tells 1 from True
            return f"header {name} is {values!r}, not {wanted!r}"
    for name, value in sent.properties:
        if Headers({name: found.properties.get(name)}) != Headers({name: value}):
            return f"property {name} is {found.properties.get(name)!r}, not {value!r}"
    looked_at = set(Message.__struct_fields__) - {"headers", "properties"}
    for field in looked_at if sent.sent_at is not None else looked_at - {"sent_at"}:
        if getattr(found, field) != getattr(sent, field):
            return f"{field} is {getattr(found, field)!r:.200}, not {getattr(sent, field)!r:.200}"
    return None
