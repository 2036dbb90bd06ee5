"""What is the broker in memory as a transport?

A connection to it: it makes queues, sends, looks, and opens receivers. The rule: no verb of a closed transport does
anything.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Self

from redrive.clock import Clock
from redrive.errors import (
    BrokerUnreachableError,
    PublishError,
    RedriveError,
    SettingsError,
    TransportClosedError,
)
from redrive.letters import Message
from redrive.transports.base import Capabilities, Outcomes, Publication, Source, Target, TargetState
from redrive.transports.memory.broker import MemoryBroker
from redrive.transports.memory.receiver import NAME, MemoryReceiver


class MemoryTransport:
    """A connection to a broker in memory; without one, to a broker of its own."""

    kind: str = NAME
    capabilities: Capabilities = Capabilities(survives_restart=False)

    def __init__(self, clock: Clock, broker: MemoryBroker | None = None) -> None:
        self.broker = broker or MemoryBroker()
        self._clock = clock
        self._receivers: list[MemoryReceiver] = []
        self._open = self._closed = False

    @property
    def endpoint(self) -> str:
        """There is no address: the broker is in this process."""
        return "memory:"

    @property
    def cluster_id(self) -> str:
        """T23."""
        return self.broker.cluster_id

    async def open(self) -> None:
        """Connect."""
        if self._closed:
            raise TransportClosedError("the transport was closed; create a new one")
        if self.broker.is_away:
            raise BrokerUnreachableError("the in-memory broker is stopped; start it again")
        self._open = True

    async def close(self) -> None:
        """Let go of everything."""
        self._open, self._closed = False, True
        for receiver in self._receivers:
            await receiver.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def receiver(self, source: Source) -> MemoryReceiver:
        """The deliveries of a queue."""
        self._check_open()
        _check_source(source)
        self.broker.queue(source.name)  # raises if there is none
        receiver = MemoryReceiver(source, self.broker, self._clock)
        self._receivers.append(receiver)
        return receiver

    async def publish(self, publications: Sequence[Publication]) -> Outcomes:
        """T14 to T16."""
        self._check_open()
        return [self._published(publication) for publication in publications]

    async def depth(self, source: str) -> int:
        """T17. What was given back for later waits elsewhere, as it does on other brokers."""
        self._check_open()
        return self.broker.queue(source).depth()

    async def peek(self, source: str, count: int) -> Sequence[Message]:
        """T18."""
        self._check_open()
        return [entry.message for entry in self.broker.queue(source).first(count)]

    async def taken_until(self, source: str, group: str = "") -> timedelta | None:  # noqa: ARG002  it has no groups
        """T24. Everything that was sent was taken once nothing waits, now or for later."""
        self._check_open()
        queue = self.broker.queue(source)
        return self._clock.monotonic() if not queue.depth() and queue.next_due() is None else None

    async def unreachable(self, consumers: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:  # noqa: ARG002
        """T25. A queue keeps what is sent to it until somebody consumes it."""
        self._check_open()
        return {}

    async def target_state(self, source: str, group: str = "") -> TargetState:  # noqa: ARG002  it has no groups
        """T26."""
        self._check_open()
        return TargetState(depth=self.broker.queue(source).depth())

    async def provision(self, sources: Sequence[Source]) -> None:
        """Make the queues and those of their dead letters."""
        self._check_open()
        for source in sources:
            _check_source(source)
        for source in sources:
            self.broker.make(source.name)
            self.broker.make(source.dlq)

    async def ensure_queue(self, name: str) -> None:
        """T22."""
        self._check_open()
        if self.broker.is_away:
            raise BrokerUnreachableError("the in-memory broker is stopped; start it again")
        self.broker.make(name)

    def _published(self, publication: Publication) -> RedriveError | None:
        target: Target = publication.target
        if target.exchange:
            return PublishError(
                f"cannot publish to exchange '{target.exchange}': the in-memory broker has no exchanges"
            )
        # "" is AMQP's name for the exchange that leads to the queue its routing key names.
        queue = target.name if target.exchange is None else target.routing_key or target.name
        return self.broker.append(queue, publication.message)

    def _check_open(self) -> None:
        if self._closed:
            raise TransportClosedError("the transport was closed")
        if not self._open:
            raise TransportClosedError("the transport is not open; open it with 'async with'")


def _check_source(source: Source) -> None:
    if source.dead_letter == "native":
        raise SettingsError(
            f"source '{source.name}': the in-memory broker has no native dead-lettering; set dead_letter "
            "to 'publish'"
        )
