"""A memory broker as one process sees it, with faults.

Most verbs are one step of the `Edge`. Some fail in ways of their own: deliveries come twice or in another order, a
message is published or dead-lettered twice, a process dies between the dead letter and the acknowledgement.

A dead process does nothing any more, and its deliveries are back in their queues. A queue may have a mirror: every
redrive published to it is copied there with all headers, as by an exchange that fans out.
"""

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self, TypeVar

from redrive.errors import BrokerUnreachableError, PublishError
from redrive.letters import Message
from redrive.letters.redrive import ID
from redrive.letters.verdict import QUEUE
from redrive.testing.simulation.edges import Edge
from redrive.testing.simulation.faults import ACCEPTING, BURYING, RECEIVING, SENDING, Kind
from redrive.testing.simulation.watch import short
from redrive.transports.base import (
    Capabilities,
    Death,
    Delivery,
    Outcomes,
    Publication,
    Release,
    Source,
    TargetState,
)
from redrive.transports.memory import MemoryBroker, MemoryDelivery, MemoryReceiver, MemoryTransport

T = TypeVar("T")


class SimulatedBroker(MemoryBroker):
    """A broker whose redrives to the queues in `mirrors` are copied to another queue."""

    def __init__(self, name: str) -> None:
        super().__init__(cluster_id=name)
        self.name = name
        self.mirrors: dict[str, str] = {}
        self.has_evidence = True  # whether it can tell what was taken from its queues
        self.has_verdicts = True  # whether verdicts reach it

    @property
    def unsettled(self) -> int:
        """How many deliveries are out: they are in no queue, and not lost."""
        return sum(each.unsettled for each in self._receivers if isinstance(each, MemoryReceiver))


class FaultyReceiver:
    """A receiver as one process sees it."""

    def __init__(self, receiver: MemoryReceiver, broker: SimulatedBroker, edge: Edge) -> None:
        self.source: Source = receiver.source
        self._receiver = receiver
        self._broker = broker
        self._edge = edge
        edge.life.holds(self)

    def lose(self) -> None:
        """The process is gone, and what it had is back in the queue."""
        at_once(self._receiver.close())

    def cut(self) -> None:
        """The connection is lost, and back at once."""
        self._receiver.lose_everything()
        self._receiver.wake()

    async def receive(self) -> Sequence[Delivery]:
        """Receive; a fault is met when there is something to receive, not before."""
        edge = self._edge
        await edge.life.gate()
        batch: Sequence[MemoryDelivery] = await self._receiver.receive()
        edge.watch.took(self._broker.name, self.source.name, [one.message for one in batch])
        fault = edge.meet("receive", RECEIVING, f"{self.source.name} {[one.body for one in batch]}")
        match fault:
            case Kind.CRASH_AFTER:
                raise edge.killed()
            case Kind.PAUSE_AFTER:
                await edge.stand_still()
            case Kind.JUMP:
                edge.jump()
            case Kind.CUT:
                self.cut()
            case Kind.DUPLICATE:
                self._broker.append(self.source.name, batch[0].message)
            case Kind.REORDER:
                batch = [batch[place] for place in edge.faults.shuffled(len(batch))]
        await edge.life.gate()
        return batch

    def accept(self, deliveries: Iterable[Delivery]) -> int:
        """Accept."""
        if self._edge.life.dead:
            return 0
        deliveries = list(deliveries)
        fault = self._edge.meet("accept", ACCEPTING, f"{self.source.name} {[one.body for one in deliveries]}")
        if fault is Kind.CRASH_BEFORE:
            self._edge.life.die()
            return 0
        if fault is Kind.CUT:
            self.cut()
        late = self._receiver.accept(deliveries)
        if fault is Kind.CRASH_AFTER:
            self._edge.life.die()
        return late

    async def release(self, releases: Sequence[Release]) -> Outcomes:
        """Give back."""
        about = [one.delivery.body for one in releases]
        return await self._edge.step(
            "release", lambda: self._receiver.release(releases), BrokerUnreachableError, about=about
        )

    async def dead_letter(self, deaths: Sequence[Death]) -> Outcomes:
        """Make dead letters; they may be durable and their deliveries not settled."""
        edge = self._edge

        async def bury() -> Outcomes:
            outcomes = await self._receiver.dead_letter(deaths)
            for death, error in zip(deaths, outcomes, strict=True):
                if error is None:
                    delivery = death.delivery
                    edge.watch.buried(self._broker.name, self.source.name, delivery.key, delivery.message)
            return outcomes

        await edge.life.gate()
        fault = edge.meet("dead_letter", BURYING, [one.delivery.body for one in deaths])
        match fault:
            case Kind.TORN:
                entries = [_entry(one.delivery) for one in deaths if one.delivery.alive]
                await bury()
                for entry in entries:
                    self._broker.give_back(self.source.name, entry, edge.life.clock, timedelta(0))
                raise edge.killed()
            case Kind.CUT:
                self.cut()
            case Kind.CRASH_BEFORE:
                raise edge.killed()
            case Kind.REFUSE:
                return [PublishError("the dead letter is refused")] * len(deaths)
            case Kind.PAUSE_BEFORE:
                await edge.stand_still()
            case Kind.JUMP:
                edge.jump()
        outcomes = await bury()
        match fault:
            case Kind.CRASH_AFTER:
                raise edge.killed()
            case Kind.DUPLICATE:
                buried = self._broker.queue(self.source.dlq).first(1000)
                self._broker.append(self.source.dlq, buried[-1].message)
            case Kind.LOST_REPLY:
                raise BrokerUnreachableError("the answer to dead_letter was lost")
            case Kind.PAUSE_AFTER:
                await edge.stand_still()
        await edge.life.gate()
        return outcomes

    def resize(self, window: int) -> None:
        """Resize."""
        if not self._edge.life.dead:
            self._receiver.resize(window)

    async def stop(self) -> None:
        """Stop."""
        await self._edge.life.gate()
        await self._receiver.stop()

    async def close(self) -> None:
        """Close."""
        await self._edge.life.gate()
        await self._receiver.close()


class FaultyTransport:
    """The broker as one process sees it."""

    kind: str = MemoryTransport.kind
    capabilities: Capabilities = MemoryTransport.capabilities

    def __init__(self, transport: MemoryTransport, broker: SimulatedBroker, edge: Edge) -> None:
        self._transport = transport
        self._broker = broker
        self._edge = edge

    @property
    def endpoint(self) -> str:
        """The address of the broker."""
        return self._transport.endpoint

    @property
    def cluster_id(self) -> str | None:
        """Which broker it is."""
        return self._transport.cluster_id

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """The process lets go; the broker stays for the others."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def receiver(self, source: Source) -> FaultyReceiver:
        """Receive from a queue."""
        inner = await self._edge.step(
            "receiver", lambda: self._transport.receiver(source), BrokerUnreachableError, about=source.name
        )
        return FaultyReceiver(inner, self._broker, self._edge)

    async def publish(self, publications: Sequence[Publication]) -> Outcomes:
        """Send; it may be sent twice."""
        edge = self._edge

        async def send() -> Outcomes:
            if not self._broker.has_verdicts and publications[0].target.name == QUEUE:
                return [None] * len(publications)
            edge.watch.sending(edge.life.name, self._broker.name, publications)
            outcomes = await self._transport.publish(publications)
            self._mirror(publications)
            return outcomes

        await edge.life.gate()
        fault = edge.meet("publish", SENDING, [_told(one) for one in publications])
        match fault:
            case Kind.CRASH_BEFORE:
                raise edge.killed()
            case Kind.REFUSE:
                if edge.faults.coin():
                    raise BrokerUnreachableError("publish is refused")
                return [PublishError("publish is refused")] * len(publications)
            case Kind.PAUSE_BEFORE:
                await edge.stand_still()
            case Kind.JUMP:
                edge.jump()
        outcomes = await send()
        match fault:
            case Kind.DUPLICATE:
                await self._transport.publish(publications[:1])
            case Kind.CRASH_AFTER:
                raise edge.killed()
            case Kind.LOST_REPLY:
                raise BrokerUnreachableError("the answer to publish was lost")
            case Kind.PAUSE_AFTER:
                await edge.stand_still()
        await edge.life.gate()
        return outcomes

    def _mirror(self, publications: Sequence[Publication]) -> None:
        for publication in publications:
            copy = self._broker.mirrors.get(publication.target.name)
            if copy is not None and publication.message.headers.get(ID) is not None:
                self._broker.append(copy, publication.message)
                self._edge.watch.copied(self._broker.name, copy, publication.message)

    async def depth(self, source: str) -> int:
        """How many messages wait."""
        return await self._edge.step(
            "depth", lambda: self._transport.depth(source), BrokerUnreachableError, about=source
        )

    async def peek(self, source: str, count: int) -> Sequence[Message]:
        """Look at messages."""
        return await self._transport.peek(source, count)

    async def taken_until(self, source: str, group: str = "") -> timedelta | None:
        """Until when everything was taken; None where the broker cannot tell."""

        async def ask() -> timedelta | None:
            answer = await self._transport.taken_until(source, group) if self._broker.has_evidence else None
            self._edge.watch.answered(self._broker.name, source, answer)
            return answer

        return await self._edge.step("taken_until", ask, BrokerUnreachableError, about=source)

    async def target_state(self, source: str, group: str = "") -> TargetState:
        """Whether messages would be accepted and received."""
        return await self._transport.target_state(source, group)

    async def unreachable(self, consumers: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """Who would never receive anything."""
        return await self._transport.unreachable(consumers)

    async def provision(self, sources: Sequence[Source]) -> None:
        """Everything is there from the start."""

    async def ensure_queue(self, name: str) -> None:
        """Everything is there from the start."""


def _entry(delivery: Delivery) -> Any:
    assert isinstance(delivery, MemoryDelivery)
    return delivery.entry


def _told(publication: Publication) -> str:
    headers = publication.message.headers
    mark = headers.text("redrive-id")
    body = publication.message.body
    return f"{publication.target.name} {body!r}" if not mark else f"{body!r} as {short(mark)}"


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of something that is called asynchronous and waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("it waits for something")
