"""How is a message made durable, and how is it known that it was?

Every publish is mandatory and confirmed; `publish` answers for each message when the broker has. The rule: a message is
durable when the broker has confirmed it and has not returned it, and in no other case. There is one channel per
exchange, so that an exchange that does not exist costs nobody else their confirms. Whatever goes wrong is a
`PublishError` for exactly the messages it concerns.

It works on raw properties and bodies; it does not know where they come from.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from redrive.amqp import methods as m
from redrive.amqp.content import Content
from redrive.amqp.frames import FRAME_OVERHEAD, content_header
from redrive.amqp.hot import ContentWriter, parse_ack_run, publish_payload
from redrive.errors import (
    PublishError,
    SourceConflictError,
    SourceMissingError,
    TransportClosedError,
    TransportError,
)
from redrive.transports.rabbitmq.channel import Channel
from redrive.transports.rabbitmq.lifeline import Lifeline
from redrive.transports.rabbitmq.link import Link

_MANDATORY: Final = 1
_CHUNK: Final = 256 * 1024  # octets that are written before the socket is asked whether it keeps up
_MOST_LANES: Final = 64


class Outgoing(NamedTuple):
    """A message as it goes over the wire."""

    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


class _Batch:
    """The messages of one call, and what became of them."""

    __slots__ = ("done", "left", "messages", "outcomes")

    def __init__(self, messages: Sequence[Outgoing]) -> None:
        self.messages = messages
        self.outcomes: list[PublishError | None] = [None] * len(messages)
        self.left = set(range(len(messages)))  # nothing is known of them yet
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, index: int, error: PublishError | None = None) -> None:
        """This is what became of a message; the first word counts, but a return is never taken back."""
        if index not in self.left:
            return
        self.left.remove(index)
        if error is not None:
            self.outcomes[index] = error
        if not self.left and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: PublishError, indices: Iterable[int] | None = None) -> None:
        for index in list(self.left if indices is None else indices):
            self.settle(index, error)


class Publisher:
    """Publishes over one connection, which is replaced when it is lost."""

    def __init__(self, lifeline: Lifeline, timeout: timedelta) -> None:
        self._lifeline = lifeline
        self._timeout = timeout
        self._lanes: dict[str, asyncio.Task[_Lane]] = {}
        self._is_closed = False

    @property
    def user(self) -> str:
        """Whose messages these are."""
        return self._lifeline.url.user

    @property
    def room(self) -> int:
        """How many octets the properties of a message may have."""
        link = self._lifeline.current
        frame_max = link.connection.limits.frame_max if link is not None else 131072
        return frame_max - FRAME_OVERHEAD - 12 if frame_max else 2**31

    async def publish(self, messages: Sequence[Outgoing]) -> list[PublishError | None]:
        """Send them; one answer for each, in order."""
        if self._is_closed:
            raise TransportClosedError("the transport was closed")
        if not messages:
            return []
        batch = _Batch(messages)
        by_exchange: dict[str, list[int]] = {}
        for index, message in enumerate(messages):
            by_exchange.setdefault(message.exchange, []).append(index)
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                link = await self._lifeline.link()
                await link.until_unblocked()
                for exchange, indices in by_exchange.items():
                    try:
                        lane = await self._lane(link, exchange)
                        await lane.send(batch, indices)
                    except TransportError as error:
                        batch.fail(_why(exchange, error), indices)
                await batch.done
        except TimeoutError:
            batch.fail(self._too_late())
        except TransportClosedError as error:
            batch.fail(PublishError(str(error)))
        if any(isinstance(error, _RefusedError) for error in batch.outcomes) and len(messages) > 1:
            return await self._one_by_one(messages, batch.outcomes)
        return batch.outcomes

    async def _one_by_one(
        self, messages: Sequence[Outgoing], outcomes: list[PublishError | None]
    ) -> list[PublishError | None]:
        """The broker refused one of them and closed the channel over it: find out which; the others are innocent."""
        for index, error in enumerate(outcomes):
            if isinstance(error, _RefusedError):
                [outcomes[index]] = await self.publish([messages[index]])
        return outcomes

    def _too_late(self) -> PublishError:
        link, seconds = self._lifeline.current, f"{self._timeout.total_seconds():g} s"
        if link is None:
            return PublishError(
                f"not connected for {seconds}: {self._lifeline.lost_because or 'no broker was found'}"
            )
        if link.blocked is not None:
            return PublishError(
                f"the broker blocks publishers: {link.blocked}; it accepts no messages until its alarm "
                "is cleared"
            )
        return PublishError(
            f"the broker did not confirm the message within {seconds}; it may be published twice"
        )

    async def _lane(self, link: Link, exchange: str) -> "_Lane":
        opening = self._lanes.get(exchange)
        if opening is not None and opening.done():
            failed = opening.cancelled() or opening.exception() is not None
            if not failed and (lane := opening.result()).link is link and lane.alive:
                return lane
            opening = None
        if opening is None:
            await self._make_room()
            opening = asyncio.get_running_loop().create_task(_Lane.open(link, exchange))
            opening.add_done_callback(_look_at)  # whoever asked for it may be gone
            self._lanes[exchange] = opening
        return await asyncio.shield(opening)

    async def _make_room(self) -> None:
        """Exchanges come and go; channels that nobody uses any more are given back."""
        if len(self._lanes) < _MOST_LANES:
            return
        for exchange, opening in list(self._lanes.items()):
            if opening.done():
                lane = None if opening.cancelled() or opening.exception() else opening.result()
                if lane is None or lane.is_idle:
                    del self._lanes[exchange]
                    if lane is not None:
                        await lane.close()

    def close(self) -> None:
        """Take no more; what is under way ends with its connection."""
        self._is_closed = True


class _Lane:
    """One channel in confirm mode, for one exchange."""

    def __init__(self, channel: Channel, exchange: str) -> None:
        self.link = channel.link
        self._channel = channel
        self._exchange = exchange
        self._writer = ContentWriter(channel.number, channel.link.connection.limits.frame_max)
        self._sent = 0
        self._unconfirmed: dict[int, tuple[_Batch, int]] = {}  # by number, so in the order they were sent
        channel.on_acks = self._confirmed_singly
        channel.on_method = self._heard
        channel.on_end = self._ended

    @classmethod
    async def open(cls, link: Link, exchange: str) -> "_Lane":
        channel = link.new_channel()
        await channel.call(m.ChannelOpen())
        await channel.call(m.ConfirmSelect())
        return cls(channel, exchange)

    @property
    def alive(self) -> bool:
        return self._channel.alive

    @property
    def is_idle(self) -> bool:
        return not self._unconfirmed

    async def close(self) -> None:
        await self._channel.close()

    async def send(self, batch: _Batch, indices: Sequence[int]) -> None:
        """Send these messages of a batch, as fast as the broker reads them."""
        if self._channel.error is not None:
            raise self._channel.error
        exchange, room = self._exchange.encode(), self.link.connection.limits.frame_max - FRAME_OVERHEAD
        parts: list[bytes] = []
        size = 0
        for index in indices:
            _, key, properties, body = batch.messages[index]
            header = content_header(properties, len(body))
            if 0 < room < len(header):
                text = (
                    f"the headers have {len(header)} bytes, but only {room} bytes fit into a frame; "
                    "shorten them"
                )
                batch.settle(index, PublishError(text))
                continue
            self._sent += 1
            self._unconfirmed[self._sent] = (batch, index)
            parts.append(
                self._writer.frames(publish_payload(exchange, key.encode(), _MANDATORY), header, body)
            )
            size += len(parts[-1])
            if size > _CHUNK:
                self._channel.write(b"".join(parts))
                parts.clear()
                size = 0
                await self.link.drain()
                if self._channel.error is not None:
                    raise self._channel.error
        self._channel.write(b"".join(parts))

    # --- what the broker says --------------------------------------------------------------------------------

    def _confirmed_singly(self, run: bytes) -> None:
        take = self._unconfirmed.pop
        for number in parse_ack_run(run):
            entry = take(number, None)
            if entry is not None:
                entry[0].settle(entry[1])

    def _heard(self, method: m.Method, content: Content | None) -> None:
        match method:
            case m.BasicAck():
                self._confirmed(method.delivery_tag, None, multiple=method.multiple)
            case m.BasicNack():
                error = PublishError(
                    "the broker refused the message: a queue is full, or its disk cannot be written"
                )
                self._confirmed(method.delivery_tag, error, multiple=method.multiple)
            case m.BasicReturn() if content is not None:
                self._returned(method, content)
            case _:
                pass

    def _confirmed(self, number: int, error: PublishError | None, *, multiple: bool) -> None:
        unconfirmed = self._unconfirmed
        numbers = [number]
        if multiple:
            numbers = []
            for sent in unconfirmed:
                if number and sent > number:  # 0: everything that was sent
                    break
                numbers.append(sent)
        for sent in numbers:
            batch, index = unconfirmed.pop(sent, (None, 0))
            if batch is not None:
                batch.settle(index, error)

    def _returned(self, back: m.BasicReturn, content: Content) -> None:
        """A message had nowhere to go. Its confirm comes right after; what counts is this.

        A return has no number, so the message is known by what it is; a message that equals it went the same way.
        """
        same_route = [
            (batch, index)
            for batch, index in self._unconfirmed.values()
            if batch.messages[index].routing_key == back.routing_key and index in batch.left
        ]
        same = [(batch, index) for batch, index in same_route if batch.messages[index].body == content.body]
        exact = [
            (batch, index) for batch, index in same if batch.messages[index].properties == content.properties
        ]
        for batch, index in (exact or same or same_route)[:1]:
            batch.settle(index, UnroutableError(_describe_return(back)))

    def _ended(self, error: TransportError) -> None:
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        why = _why(self._exchange, error)
        for batch, index in unconfirmed.values():
            batch.settle(index, why)


def _describe_return(back: m.BasicReturn) -> str:
    if not back.exchange:  # the default exchange routes to the queue that the key names
        return f"queue '{back.routing_key}' does not exist; redrive provision creates it, or start its consumer first"
    exchange, key = back.exchange, back.routing_key
    return f"no queue is bound to exchange '{exchange}' with routing key '{key}'; run redrive provision"


class UnroutableError(PublishError):
    """No queue would have taken it."""


class _RefusedError(PublishError):
    """One message of the channel was refused, and the broker does not say which."""


def _look_at(opening: "asyncio.Task[_Lane]") -> None:
    if not opening.cancelled():
        opening.exception()


def _why(exchange: str, error: TransportError) -> PublishError:
    if isinstance(error, SourceMissingError):
        return PublishError(f"exchange '{exchange}' does not exist; run redrive provision")
    if isinstance(error, SourceConflictError):
        return _RefusedError(f"the broker refused the message: {error}")
    return PublishError(f"not confirmed: {error}")
