"""What is Kafka as a transport?

One producer for all that is written, one member of a consumer group for each source that is received, and one client
that asks questions. librdkafka keeps the connections. The rule: errors are `TransportError`s that say what to do, and
no verb of a closed transport does anything.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from redrive.clock import Clock
from redrive.errors import (
    FormatError,
    SettingsError,
    TransportClosedError,
)
from redrive.letters import Message
from redrive.transports.base import Capabilities, Outcomes, Publication, Source, TargetState
from redrive.transports.kafka import looking
from redrive.transports.kafka.copies import Writer
from redrive.transports.kafka.delivery import NAME
from redrive.transports.kafka.groups import Groups
from redrive.transports.kafka.headers import Outgoing, message_of, outgoing, pairs_of
from redrive.transports.kafka.names import retries_of, retry_topics
from redrive.transports.kafka.publisher import Publisher
from redrive.transports.kafka.receiver import KafkaReceiver
from redrive.transports.kafka.references import GONE
from redrive.transports.kafka.settling import Settler
from redrive.transports.kafka.topics import Topics
from redrive.transports.kafka.transactions import Transactions
from redrive.transports.kafka.url import parse_url
from redrive.transports.telling import Tell, to_log
from redrive.transports.writing import written

if TYPE_CHECKING:
    from redrive.transports.kafka.topology import Topology

_TO_LOG: Final = to_log(logging.getLogger("redrive.transports.kafka"))
_LIBRDKAFKA: Final = logging.getLogger("redrive.transports.kafka.librdkafka")
_LIBRDKAFKA.addHandler(logging.NullHandler())  # heard by who listens, not by whoever looks at a terminal
_CLOSED: Final = "the transport was closed"


class _Clients(NamedTuple):
    """What an open transport speaks to the cluster by."""

    topics: Topics
    publisher: Publisher
    groups: Groups


class KafkaTransport:
    """A Kafka cluster."""

    kind: str = NAME

    def __init__(self, url: str, clock: Clock, *, on_event: Tell = _TO_LOG) -> None:
        self._url = parse_url(url)
        self.capabilities = Capabilities(
            partitions=True, broadcast=True, delivery_count=self._url.count_deliveries
        )
        self._clock = clock
        self._tell = on_event
        self._clients: _Clients | None = None
        self._receivers: list[KafkaReceiver] = []
        self._is_closed = False

    def __repr__(self) -> str:
        return f"KafkaTransport({self._url.place!r})"

    @property
    def endpoint(self) -> str:
        """The brokers of the URL, without credentials."""
        return self._url.place

    @property
    def cluster_id(self) -> str | None:
        """The id that the cluster was formatted with; None before it is open."""
        return None if self._clients is None else self._clients.topics.cluster_id

    async def open(self) -> None:
        """Connect; raises a `TransportError` that says what to do if that cannot be."""
        if self._is_closed:
            raise TransportClosedError(_CLOSED)
        if self._clients is not None:
            return
        topics = Topics(self._url, _LIBRDKAFKA)
        await topics.reach()
        publisher = Publisher(self._url, topics, _LIBRDKAFKA)
        self._clients = _Clients(topics, publisher, Groups(topics, self._clock))

    async def close(self) -> None:
        """Let go of everything; receivers are closed first."""
        self._is_closed = True
        await asyncio.gather(*(receiver.close() for receiver in self._receivers))
        if self._clients is not None:
            await self._clients.publisher.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- receiving and publishing ------------------------------------------------------------------------------

    async def receiver(self, source: Source) -> KafkaReceiver:
        """The deliveries of a topic; raises `SourceMissingError` if it does not exist."""
        topics, publisher, _ = self._opened()
        _check(source)
        await topics.partitions(source.name)
        group = self._url.group_of(source.name, source.consumer_group)
        transactions = Transactions(self._url, group, _LIBRDKAFKA) if self._url.transactions else None
        settler = Settler(
            source, self._url, Writer(source, group, self._url, self._clock), publisher, transactions
        )
        retries = await self._retries(topics, source)
        receiver = KafkaReceiver(
            source, group, retries, self._url, settler, self._clock, self._tell, _LIBRDKAFKA
        )
        self._receivers = [each for each in self._receivers if not each.is_closed] + [receiver]
        return receiver

    async def _retries(self, topics: Topics, source: Source) -> dict[str, timedelta]:
        """The retry topics of a source that there are."""
        steps = retry_topics(source) if self._url.retry == "topics" else {}
        return {topic: steps[topic] for topic in await topics.existing(steps)}

    async def publish(self, publications: Sequence[Publication]) -> Outcomes:
        """Send, and return when all replicas in sync have them."""
        publisher = self._opened().publisher
        going, outcomes = written(publications, _outgoing)
        for place, outcome in zip(going, await publisher.publish(list(going.values())), strict=True):
            outcomes[place] = outcome
        return outcomes

    # --- looking -----------------------------------------------------------------------------------------------

    async def depth(self, source: str) -> int:
        """How many records wait for the group of this topic."""
        topics = self._opened().topics
        found = await looking.waiting(topics, self._group_of(source), source)
        total = sum(seen.total for seen in found.values())
        for receiver in self._receivers:
            if receiver.source.name == source and not receiver.is_closed:
                with receiver.intake.holdings.lock:
                    total -= looking.not_waiting(found, receiver.intake.holdings.of(source))
        return max(0, total)

    async def peek(self, source: str, count: int) -> Sequence[Message]:
        """The first records that wait, which stay where they are."""
        topics = self._opened().topics
        found = await looking.waiting(topics, self._group_of(source), source)
        if count < 1:
            return []
        records = await asyncio.to_thread(looking.first_records, self._url, source, found, count, _LIBRDKAFKA)
        return [message_of(record, pairs_of(record)) for record in records]

    async def target_state(self, source: str, group: str = "") -> TargetState:
        """How far the group is behind, and whether it has members; without a group neither is known."""
        topics = self._opened().topics
        found = await looking.waiting(topics, group or self._group_of(source), source)
        if not group:
            return TargetState()
        active = await topics.active_groups()
        return TargetState(depth=sum(seen.total for seen in found.values()), consumers=int(group in active))

    async def taken_until(self, source: str, group: str = "") -> timedelta | None:
        """T24. Without a group it cannot be said: every group takes each record for itself."""
        groups = self._opened().groups
        return await groups.taken_until(source, group) if group else None

    async def unreachable(self, consumers: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """T25. A group that nothing consumes in the name of never gets to a record."""
        return await self._opened().groups.unreachable(consumers)

    def group_of(self, source: Source) -> str:
        """The consumer group that receives this topic."""
        return self._url.group_of(source.name, source.consumer_group)

    def _group_of(self, source: str) -> str:
        """The group by which this topic is received here; else the one that it would be received by."""
        own = [receiver for receiver in self._receivers if receiver.source.name == source]
        return own[-1].group if own else self._url.group_of(source, None)

    # --- making ------------------------------------------------------------------------------------------------

    async def provision(self, sources: Sequence[Source]) -> None:
        """Make what is missing for these sources; what exists is left as it is."""
        topics = self._opened().topics
        from redrive.transports.kafka.topology import wanted  # noqa: PLC0415  # only who provisions needs it

        await self._make(topics, wanted(sources, retries_of(sources, self._url)))

    async def ensure_queue(self, name: str) -> None:
        """Make a plain topic, unless there is one of this name."""
        topics = self._opened().topics
        from redrive.transports.kafka.topology import plain_topics  # noqa: PLC0415

        await self._make(topics, plain_topics([name]))

    async def _make(self, topics: Topics, topology: "Topology") -> None:
        from redrive.transports.kafka.provision import Admin, make_missing  # noqa: PLC0415

        await make_missing(Admin(topics, self._url), topology)
        for name in topology.names:
            topics.forget(name)

    # --- inside ------------------------------------------------------------------------------------------------

    def _opened(self) -> _Clients:
        if self._is_closed:
            raise TransportClosedError(_CLOSED)
        if self._clients is None:
            raise TransportClosedError("the transport is not open; open it with 'async with'")
        return self._clients


def _outgoing(publication: Publication) -> Outgoing:
    target = publication.target
    if target.exchange:
        raise FormatError(
            f"cannot publish to exchange '{target.exchange}': Kafka has no exchanges; name a topic"
        )
    # "" is AMQP's name for the exchange that leads to the queue its routing key names.
    topic = target.name if target.exchange is None else target.routing_key or target.name
    if publication.message.headers.get(GONE) is not None:
        raise FormatError(
            "its value was too large for the dead-letter topic, and the original record was deleted: "
            "there is nothing to send"
        )
    if not topic:
        raise FormatError("no topic to publish to; name one")
    return outgoing(publication.message, topic, target.partition)


def _check(source: Source) -> None:
    if source.dead_letter == "native":
        raise SettingsError(
            f"source '{source.name}': Kafka has no native dead-lettering; set dead_letter to 'publish'"
        )
