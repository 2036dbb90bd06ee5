"""The contract of `transports.base` as the shortest code that keeps it.

The executable specification: other transports are held against it by the same suite, and it serves tests and programs
that need no broker. `MemoryBroker` is the broker, a few named queues in this process; every `MemoryTransport` on it is
one connection to it. A message is taken out of its queue when `receive` hands it out and goes back to its old place
when it is given back, so the order of a queue is that of arrival, always.

The rule: nothing happens between two awaits, so a verb has happened as a whole or not at all. It has no exchanges and
no tasks of its own; time is the clock's alone, so that a test turns it by hand.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final, NamedTuple, Self

import msgspec

from redrive.clock import Clock
from redrive.errors import (
    BrokerUnreachableError,
    PublishError,
    RedriveError,
    SettingsError,
    SourceMissingError,
    TransportClosedError,
    did_you_mean,
)
from redrive.formats import own
from redrive.letters import Headers, Message, Origin
from redrive.transports.base import (
    Capabilities,
    Death,
    Delivery,
    Outcomes,
    Publication,
    Release,
    Source,
    Target,
)

_NAME: Final = "memory"
_NOTHING: Final = timedelta(0)


# --- the broker -------------------------------------------------------------------------------------------


class _Entry:
    """A message in a queue, or out of it with somebody who may give it back."""

    __slots__ = ("deliveries", "message", "number")

    def __init__(self, number: int, message: Message) -> None:
        self.number = number  # its place in the queue, for good
        self.message = message
        self.deliveries = 0

    def __lt__(self, other: "_Entry") -> bool:
        return self.number < other.number


class _Delayed(NamedTuple):
    """A message that may not be handed out yet, by the clock of whoever gave it back."""

    entry: _Entry
    clock: Clock
    due: timedelta

    @property
    def wait(self) -> timedelta:
        return self.due - self.clock.monotonic()


class _Queue:
    """Messages in the order they arrived in."""

    def __init__(self) -> None:
        self._ready: list[_Entry] = []  # a heap
        self._delayed: list[_Delayed] = []

    def put(self, entry: _Entry) -> None:
        heappush(self._ready, entry)

    def delay(self, entry: _Entry, clock: Clock, after: timedelta) -> None:
        self._delayed.append(_Delayed(entry, clock, clock.monotonic() + after))

    def take(self, most: int) -> list[_Entry]:
        ready = self._matured()
        return [heappop(ready) for _ in range(min(most, len(ready)))]

    def first(self, most: int) -> list[_Entry]:
        return nsmallest(most, self._matured())

    def depth(self) -> int:
        return len(self._matured())

    def next_due(self) -> _Delayed | None:
        return min(self._delayed, key=lambda delayed: delayed.wait, default=None)

    def _matured(self) -> list[_Entry]:
        """What may be handed out now."""
        if self._delayed:
            self._ready += [delayed.entry for delayed in self._delayed if delayed.wait <= _NOTHING]
            self._delayed = [delayed for delayed in self._delayed if delayed.wait > _NOTHING]
            heapify(self._ready)
        return self._ready


class MemoryBroker:
    """Named queues that transports meet on, and the ways a test can trouble them."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._refused: dict[str, str] = {}
        self._receivers: dict[MemoryReceiver, None] = {}  # in order: what repeats must wake in the same one
        self._away = False
        self._number = 0

    # --- trouble ------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Drop all connections. What was out comes again; who was connected is so again at once."""
        for receiver in self._receivers:
            receiver.lose_everything()
        self._wake()

    def leave(self) -> None:
        """Drop all connections and take no new ones."""
        self._away = True
        self.cut()

    def come_back(self) -> None:
        """Take connections again."""
        self._away = False
        self._wake()

    def refuse(self, queue: str, reason: str) -> None:
        """From now on, nothing can be written to this queue."""
        self._refused[queue] = reason

    def permit(self, queue: str) -> None:
        """It can be written to again."""
        self._refused.pop(queue, None)

    def remove(self, queue: str) -> None:
        """Delete a queue and what is in it."""
        self._queues.pop(queue, None)
        self._wake()

    # --- what transports ask for --------------------------------------------------------------------------

    @property
    def is_away(self) -> bool:
        """Whether nobody answers here."""
        return self._away

    def make(self, queue: str) -> None:
        """Make a queue, if there is none of this name."""
        self._queues.setdefault(queue, _Queue())

    def queue(self, name: str) -> _Queue:
        """The queue of this name."""
        if self._away:
            raise BrokerUnreachableError("the broker in memory was told to leave; let it come back")
        if name not in self._queues:
            hint = did_you_mean(name, self._queues) or "; provision it first"
            raise SourceMissingError(f"no queue is called '{name}'{hint}")
        return self._queues[name]

    def append(self, queue: str, message: Message) -> RedriveError | None:
        """Write a message to a queue; why that cannot be, if it cannot."""
        try:
            found = self.queue(queue)
        except SourceMissingError as error:
            return PublishError(str(error))
        except BrokerUnreachableError as error:
            return error
        if queue in self._refused:
            return PublishError(f"queue '{queue}' takes no message: {self._refused[queue]}")
        self._number += 1
        found.put(_Entry(self._number, message))
        self._wake()
        return None

    def give_back(self, queue: str, entry: _Entry, clock: Clock, after: timedelta) -> None:
        """Put a message back to its place, now or later; with a queue that was deleted it is gone."""
        found = self._queues.get(queue)
        if found is not None:
            if after > _NOTHING:
                found.delay(entry, clock, after)
            else:
                found.put(entry)
            self._wake()

    def join(self, receiver: "MemoryReceiver") -> None:
        """This receiver wants to be told of changes and of lost connections."""
        self._receivers[receiver] = None

    def part(self, receiver: "MemoryReceiver") -> None:
        """It no longer does."""
        self._receivers.pop(receiver, None)

    def _wake(self) -> None:
        for receiver in self._receivers:
            receiver.wake()


# --- receiving and settling -------------------------------------------------------------------------------


class MemoryDelivery(Delivery):
    """One message, taken out of its queue."""

    __slots__ = ("_count", "_message", "_receiver", "body", "entry", "settled")

    def __init__(self, receiver: "MemoryReceiver", entry: _Entry) -> None:
        self._receiver = receiver
        self._message = entry.message
        self._count = entry.deliveries
        self.body = entry.message.body
        self.entry = entry
        self.settled = False

    @property
    def message(self) -> Message:
        """The message as its producer sent it: nothing is added on the way here."""
        return self._message

    @property
    def origin(self) -> Origin:
        """The queue."""
        return Origin(transport=_NAME, source=self._receiver.source.name)

    @property
    def delivery_count(self) -> int:
        """How often it was delivered, this time included."""
        return self._count

    @property
    def alive(self) -> bool:
        """Whether it is still out."""
        return self._receiver.holds(self)

    @property
    def key(self) -> str:
        """Queue and place."""
        return f"{self._receiver.source.name}/{self.entry.number}"


class MemoryReceiver:
    """The deliveries of one queue."""

    def __init__(self, source: Source, broker: MemoryBroker, clock: Clock) -> None:
        self.source = source
        self._broker = broker
        self._clock = clock
        self._window = _checked_window(source.window)
        self._out: set[Delivery] = set()
        self._changed = asyncio.Event()
        self._stopped = self._closed = False
        broker.join(self)

    async def receive(self) -> Sequence[MemoryDelivery]:
        """T1 to T5, T19."""
        while True:
            self._check_open()
            if self._stopped:
                raise TransportClosedError(f"the receiver of '{self.source.name}' was stopped")
            if deliveries := self._taken():
                return deliveries
            await self._change()

    def accept(self, deliveries: Iterable[Delivery]) -> int:
        """T7, T13."""
        self._check_open()
        late = 0
        for delivery in map(_ours, deliveries):
            if not delivery.settled and not self._settle(delivery):
                late += 1
        return late

    async def release(self, releases: Sequence[Release]) -> Outcomes:
        """T8, T9."""
        self._check_open()
        outcomes: list[RedriveError | None] = []
        for release in releases:
            delivery = _ours(release.delivery)
            outcomes.append(self._why_not(delivery))
            if self._settle(delivery):
                after = release.after or _NOTHING
                delivery.entry.deliveries -= not release.counts
                self._broker.give_back(self.source.name, delivery.entry, self._clock, after)
        return outcomes

    async def dead_letter(self, deaths: Sequence[Death]) -> Outcomes:
        """T10 to T12."""
        self._check_open()
        outcomes: list[RedriveError | None] = []
        for death in deaths:
            delivery = _ours(death.delivery)
            error = self._why_not(delivery)
            if delivery.alive:
                error = self._broker.append(self.source.dlq, _enriched(delivery, death))
                if error is None:  # as durable as memory is; not before that may it leave its source
                    self._settle(delivery)
            outcomes.append(error)
        return outcomes

    def resize(self, window: int) -> None:
        """T3."""
        self._check_open()
        self._window = _checked_window(window)
        self.wake()

    async def stop(self) -> None:
        """T5. Nothing is ever left between the broker and `receive` here."""
        self._stopped = True
        self.wake()

    async def close(self) -> None:
        """T6."""
        await self.stop()
        self._broker.part(self)
        self._closed = True
        self.lose_everything()

    # --- what the broker and deliveries ask for -----------------------------------------------------------

    def holds(self, delivery: Delivery) -> bool:
        """Whether this delivery is out and unsettled."""
        return delivery in self._out

    def lose_everything(self) -> None:
        """The connection is gone: what was out is back in its queue."""
        out, self._out = self._out, set()
        for delivery in out:
            self._broker.give_back(self.source.name, _ours(delivery).entry, self._clock, _NOTHING)

    def wake(self) -> None:
        """Something has changed: whoever waits looks again."""
        self._changed.set()

    # --- inside -------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise TransportClosedError(f"the receiver of '{self.source.name}' was closed")

    def _taken(self) -> list[MemoryDelivery]:
        if self._broker.is_away:
            return []
        room = self._window - len(self._out)  # below zero after a resize
        deliveries: list[MemoryDelivery] = []
        for entry in self._broker.queue(self.source.name).take(max(0, room)):
            entry.deliveries += 1
            deliveries.append(MemoryDelivery(self, entry))
        self._out.update(deliveries)
        return deliveries

    async def _change(self) -> None:
        """Wait until something has changed, be it only the time."""
        self._changed.clear()
        due = None if self._broker.is_away else self._broker.queue(self.source.name).next_due()
        if due is None:
            await self._changed.wait()
            return
        timer = asyncio.create_task(due.clock.sleep(due.wait))
        timer.add_done_callback(lambda _: self.wake())
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    def _why_not(self, delivery: MemoryDelivery) -> RedriveError | None:
        """Why nothing can be done about this delivery, unless it can, or was done already."""
        if delivery.alive or delivery.settled:
            return None
        return BrokerUnreachableError(
            f"message {delivery.key} came by a connection that was lost; it comes again"
        )

    def _settle(self, delivery: MemoryDelivery) -> bool:
        if delivery not in self._out:
            return False
        self._out.remove(delivery)
        delivery.settled = True
        self.wake()  # there is room in the window
        return True


def _ours(delivery: Delivery) -> MemoryDelivery:
    if not isinstance(delivery, MemoryDelivery):
        raise TypeError(f"a {type(delivery).__name__} is no delivery of a memory transport")
    return delivery


def _enriched(delivery: MemoryDelivery, death: Death) -> Message:
    """The message with what `formats.own` tells of its death; what an earlier death told is replaced."""
    told = own.write(death.letter, delivery.delivery_count)
    headers = Headers([*own.strip(delivery.message.headers), *told])
    return msgspec.structs.replace(delivery.message, headers=headers)


def _checked_window(window: int) -> int:
    if window < 1:
        raise SettingsError(f"a window must hold one delivery at least, not {window}")
    return window


# --- the transport ----------------------------------------------------------------------------------------


class MemoryTransport:
    """A connection to a broker in memory; without one, to a broker of its own."""

    name: str = _NAME
    capabilities: Capabilities = Capabilities(survives_restart=False)

    def __init__(self, clock: Clock, broker: MemoryBroker | None = None) -> None:
        self.broker = broker or MemoryBroker()
        self._clock = clock
        self._receivers: list[MemoryReceiver] = []
        self._open = self._closed = False

    async def open(self) -> None:
        """Connect."""
        if self._closed:
            raise TransportClosedError("the transport was closed; make a new one")
        if self.broker.is_away:
            raise BrokerUnreachableError("the broker in memory was told to leave; let it come back")
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
            raise BrokerUnreachableError("the broker in memory was told to leave; let it come back")
        self.broker.make(name)

    def _published(self, publication: Publication) -> RedriveError | None:
        target: Target = publication.target
        if target.exchange:
            return PublishError(f"no exchange is called '{target.exchange}': the broker in memory has none")
        # "" is AMQP's name for the exchange that leads to the queue its routing key names.
        queue = target.name if target.exchange is None else target.routing_key or target.name
        return self.broker.append(queue, publication.message)

    def _check_open(self) -> None:
        if self._closed:
            raise TransportClosedError("the transport was closed")
        if not self._open:
            raise TransportClosedError("the transport is not open yet; use `async with`")


def _check_source(source: Source) -> None:
    if source.dead_letter == "reject":
        raise SettingsError(
            f"source '{source.name}': the broker in memory moves no rejected messages; "
            "set dead_letter to 'publish'"
        )
