"""What is RabbitMQ as a transport?

Two connections: deliveries come and are settled over the one, publishes go over the other, because a broker that is
short of memory stops reading from whoever publishes. Both are replaced when they are lost; what `provision` made is
then made again before anybody receives. The rule: errors are `TransportError`s that say what to do, and no verb of a
closed transport does anything.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote

from redrive.amqp import methods as m
from redrive.amqp.properties import NO_PROPERTIES
from redrive.clock import Clock
from redrive.errors import (
    BrokerUnreachableError,
    FormatError,
    TransportClosedError,
)
from redrive.letters import Message
from redrive.rules.durations import format_duration
from redrive.transports.base import Capabilities, Outcomes, Publication, Source, TargetState
from redrive.transports.rabbitmq.backlog import Backlogs
from redrive.transports.rabbitmq.delivery import NAME
from redrive.transports.rabbitmq.envelope import seal_publication
from redrive.transports.rabbitmq.lifeline import Lifeline
from redrive.transports.rabbitmq.link import Link
from redrive.transports.rabbitmq.message import to_properties
from redrive.transports.rabbitmq.peeks import Peeks
from redrive.transports.rabbitmq.publisher import Outgoing, Publisher
from redrive.transports.rabbitmq.receiver import RabbitReceiver
from redrive.transports.rabbitmq.url import parse_url
from redrive.transports.telling import Tell, to_log
from redrive.transports.writing import written

if TYPE_CHECKING:
    from redrive.transports.rabbitmq.looking import Viewer

_TO_LOG: Final = to_log(logging.getLogger("redrive.transports.rabbitmq"))
_CLOSED: Final = "the transport was closed"
_ALARM_TIMEOUT: Final = timedelta(seconds=5)
_ALARM_INTERVAL: Final = timedelta(milliseconds=50)


class RabbitTransport:
    """RabbitMQ, or the embedded broker."""

    kind = NAME
    capabilities = Capabilities(native_dead_letter=True)

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        publish_timeout: timedelta = timedelta(seconds=30),
        management_url: str | None = None,
        on_event: Tell = _TO_LOG,
    ) -> None:
        """`management_url` is needed by `peek` where looking counts; by default it is the usual port of the host."""
        self._url = parse_url(url)
        self._management_url = management_url
        self._clock = clock
        self._patience = publish_timeout
        self._tell = on_event
        self._receiving: Lifeline | None = None
        self._publishing: Lifeline | None = None
        self._publisher: Publisher | None = None
        self._receivers: list[RabbitReceiver] = []
        self._provisioned: list[Source] = []
        self._ensured: dict[str, None] = {}  # names of plain queues, in the order they were asked for
        self._peeks = Peeks()
        self._backlogs = Backlogs(clock)
        self._viewer: Viewer | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"RabbitTransport({self._url.place!r})"

    @property
    def endpoint(self) -> str:
        """The broker's URL without credentials."""
        return self._url.place

    @property
    def cluster_id(self) -> str | None:
        """The cluster's name and the virtual host, which is percent-encoded; None if the broker announces no name."""
        name = None if self._receiving is None else self._receiving.cluster_name
        return f"{name}/{quote(self._url.vhost, safe='')}" if name else None

    async def open(self) -> None:
        """Connect; raises a `TransportError` that says what to do if that cannot be."""
        self._check_open()
        if self._receiving is not None:
            return
        receiving = Lifeline(self._url, "redrive: receives", self._clock, self._tell)
        publishing = Lifeline(self._url, "redrive: publishes", self._clock, self._tell)
        try:
            await receiving.open()
            await publishing.open()
        except BaseException:
            await receiving.close()
            await publishing.close()
            raise
        receiving.on_link = self._provision_again
        self._receiving, self._publishing = receiving, publishing
        self._publisher = Publisher(publishing, self._patience)

    async def close(self) -> None:
        """Let go of everything; receivers are closed first."""
        self._is_closed = True
        await asyncio.gather(*(receiver.close() for receiver in self._receivers))
        if self._publisher is not None:
            self._publisher.close()
        for lifeline in (self._receiving, self._publishing):
            if lifeline is not None:
                await lifeline.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- receiving and publishing ------------------------------------------------------------------------------

    async def receiver(self, source: Source) -> RabbitReceiver:
        """The deliveries of a queue; raises `SourceMissingError` if it does not exist."""
        lifeline, publisher = self._opened()
        receiver = RabbitReceiver(source, lifeline, publisher, self._peeks, self._clock, self._tell)
        await receiver.open()
        self._receivers = [each for each in self._receivers if not each.is_closed] + [receiver]
        return receiver

    async def publish(self, publications: Sequence[Publication]) -> Outcomes:
        """Send, and return when the broker has made them durable."""
        _, publisher = self._opened()
        going, outcomes = written(publications, partial(_outgoing, publisher.user))
        for place, outcome in zip(going, await publisher.publish(list(going.values())), strict=True):
            outcomes[place] = outcome
        return outcomes

    # --- looking -----------------------------------------------------------------------------------------------

    async def depth(self, source: str) -> int:
        """How many messages wait; `SourceMissingError` if there is no such queue."""
        async with (await self._link()).channel() as channel:
            return (await channel.call(m.QueueDeclare(source, passive=True), m.QueueDeclareOk)).message_count

    async def peek(self, source: str, count: int) -> Sequence[Message]:
        """The first messages, which stay where they are."""
        _, publisher = self._opened()
        if self._viewer is None:
            self._viewer = self._new_viewer(publisher)
        return await self._viewer.peek(await self._link(), source, count)

    async def taken_until(self, source: str, group: str = "") -> timedelta | None:  # noqa: ARG002  it has no groups
        """The moment before which everything sent to this queue was taken; None: not known, or no such queue.

        Messages that are out with a consumer cannot be seen over AMQP: they count as taken. Those that the queue itself
        holds back for a delayed retry cannot be seen either, so nothing is said of queues that were provisioned so.
        """
        link = await self._link()
        if any(each.delayed_retry for each in self._provisioned if each.name == source):
            return None
        return await self._backlogs.taken_until(link, source)

    async def unreachable(self, consumers: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:  # noqa: ARG002
        """None of them: a queue keeps what is sent to it, and a publish to a queue that does not exist fails."""
        self._check_open()
        return {}

    async def target_state(self, source: str, group: str = "") -> TargetState:  # noqa: ARG002  it has no groups
        """What the queue says of itself, and the alarm of the broker."""
        async with (await self._link()).channel() as channel:
            queue = await channel.call(m.QueueDeclare(source, passive=True), m.QueueDeclareOk)
        return TargetState(
            depth=queue.message_count, consumers=queue.consumer_count, alarm=await self._find_alarm()
        )

    async def _find_alarm(self) -> str | None:
        """Why the broker accepts no messages; None: it accepts them, or does not say.

        A broker announces an alarm to a connection that publishes, accepts that message and reads no more. So this
        publishes two messages that no queue receives: the second one is returned, unless there is an alarm.
        """
        _, publisher = self._opened()
        nowhere = Outgoing("", f"redrive.probe.{token_hex(8)}", NO_PROPERTIES, b"")

        async def probe() -> None:
            for _ in range(2):
                await publisher.publish([nowhere])

        probing = asyncio.ensure_future(probe())
        try:
            for _ in range(int(_ALARM_TIMEOUT / _ALARM_INTERVAL)):
                link = None if self._publishing is None else self._publishing.current
                if link is not None and link.blocked is not None:
                    return link.blocked
                done, _ = await asyncio.wait({probing}, timeout=_ALARM_INTERVAL.total_seconds())
                if done:
                    break
            return None
        finally:
            probing.cancel()

    def _new_viewer(self, publisher: Publisher) -> "Viewer":
        from redrive.transports.rabbitmq.looking import Limits, Viewer  # noqa: PLC0415  # only who looks needs it
        from redrive.transports.rabbitmq.management import guess_management_url, management_of  # noqa: PLC0415

        url = self._management_url
        at = management_of(url, self._url) if url else guess_management_url(self._url)
        return Viewer(publisher, self._peeks, Limits(at, self._clock))

    # --- making ------------------------------------------------------------------------------------------------

    async def provision(self, sources: Sequence[Source]) -> None:
        """Make what is missing for these sources; what exists is left as it is."""
        await self._make(await self._link(), sources)
        known = {source.name for source in sources}
        self._provisioned = [each for each in self._provisioned if each.name not in known] + list(sources)

    async def ensure_queue(self, name: str) -> None:
        """Make a plain durable queue, unless there is one of this name."""
        await self._make(await self._link(), (), [name])
        self._ensured[name] = None

    async def _make(self, link: Link, sources: Sequence[Source], queues: Collection[str] = ()) -> None:
        from redrive.transports.rabbitmq.provision import make_missing  # noqa: PLC0415  # only who provisions needs it
        from redrive.transports.rabbitmq.topology import plain_queues, wanted  # noqa: PLC0415

        for topology in (wanted(sources, link.counts), plain_queues(queues, link.counts)):
            if topology.queues:
                await make_missing(link.channel, topology)

    async def _provision_again(self, link: Link) -> None:
        """A broker that came back empty gets what was made before."""
        await self._make(link, self._provisioned, self._ensured)

    # --- inside ------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise TransportClosedError(_CLOSED)

    def _opened(self) -> tuple[Lifeline, Publisher]:
        self._check_open()
        if self._receiving is None or self._publisher is None:
            raise TransportClosedError("the transport is not open; open it with 'async with'")
        return self._receiving, self._publisher

    async def _link(self) -> Link:
        lifeline, _ = self._opened()
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                return await lifeline.link()
        except TimeoutError:
            why = lifeline.lost_because or "no broker was found"
            raise BrokerUnreachableError(
                f"not connected for {format_duration(self._patience)}: {why}"
            ) from None


def _outgoing(user: str, publication: Publication) -> Outgoing:
    message, target = publication.message, publication.target
    if message.body is None:
        raise FormatError("AMQP cannot carry a message without a body; send an empty one")
    exchange = target.exchange or ""
    key = target.name if target.routing_key is None else target.routing_key
    for name in (exchange, key):
        if len(name.encode("utf-8", "surrogatepass")) > 255:
            raise FormatError("exchange name or routing key is longer than 255 bytes, the limit of AMQP")
    properties = seal_publication(to_properties(message), user, to_one=target.exchange is None)
    return Outgoing(exchange, key, properties, message.body)
