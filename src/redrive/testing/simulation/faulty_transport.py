"""What is the broker to a process at whose edge things go wrong?

Its verbs are those of the memory transport; nothing is imitated here. Most are one step of the `Edge`. Those that can
go wrong in ways of their own tell them step by step: what is received may come twice or in another order, what is sent
or dead-lettered may be there twice, and the process may die between the dead letter and its settlement.

The rule: a process that has died does nothing any more, and what it held is back in its queue.
"""

from collections.abc import Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, Self, TypeVar

from redrive.errors import BrokerUnreachableError, PublishError
from redrive.letters import Message
from redrive.testing.simulation.edges import Edge
from redrive.testing.simulation.faults import ACCEPTING, BURYING, RECEIVING, SENDING, Kind
from redrive.testing.simulation.watch import short
from redrive.transports.base import Capabilities, Death, Delivery, Outcomes, Publication, Release, Source
from redrive.transports.memory import MemoryBroker, MemoryDelivery, MemoryReceiver, MemoryTransport

T = TypeVar("T")


class FaultyReceiver:
    """A receiver as one process sees it."""

    def __init__(self, receiver: MemoryReceiver, broker: MemoryBroker, edge: Edge) -> None:
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
            return await self._receiver.dead_letter(deaths)

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

    name: str = MemoryTransport.name
    capabilities: Capabilities = MemoryTransport.capabilities

    def __init__(self, transport: MemoryTransport, edge: Edge) -> None:
        self._transport = transport
        self._edge = edge

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
        return FaultyReceiver(inner, self._transport.broker, self._edge)

    async def publish(self, publications: Sequence[Publication]) -> Outcomes:
        """Send; it may be sent twice."""
        edge = self._edge

        async def send() -> Outcomes:
            edge.watch.sending(edge.life.name, publications)
            return await self._transport.publish(publications)

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

    async def depth(self, source: str) -> int:
        """How many messages wait."""
        return await self._edge.step(
            "depth", lambda: self._transport.depth(source), BrokerUnreachableError, about=source
        )

    async def peek(self, source: str, count: int) -> Sequence[Message]:
        """Look at messages."""
        return await self._transport.peek(source, count)

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
