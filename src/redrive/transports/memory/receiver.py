"""How does a message in memory come, and how is it settled?

The sentences T1 to T13 and T19 of `transports.base`, a few lines each. The rule: a dead letter is in its queue
before its message leaves the source.

It does not know how queues keep their order; see `broker`.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from redrive.clock import Clock
from redrive.errors import (
    BrokerUnreachableError,
    RedriveError,
    SettingsError,
    TransportClosedError,
)
from redrive.formats import own
from redrive.letters import Headers, Message, Origin
from redrive.transports.base import Death, Delivery, Outcomes, Release, Source
from redrive.transports.memory.broker import Entry, MemoryBroker

NAME: Final = "memory"
_NOTHING: Final = timedelta(0)


class MemoryDelivery(Delivery):
    """One message, taken out of its queue."""

    __slots__ = ("_count", "_message", "_receiver", "body", "entry", "settled")

    def __init__(self, receiver: "MemoryReceiver", entry: Entry) -> None:
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
        return Origin(transport=NAME, source=self._receiver.source.name)

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

    @property
    def unsettled(self) -> int:
        """How many deliveries are out."""
        return len(self._out)

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
            f"message {delivery.key} was received over a connection that was lost; it will be delivered again"
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
        raise TypeError(f"a {type(delivery).__name__} is not a delivery of the in-memory transport")
    return delivery


def _enriched(delivery: MemoryDelivery, death: Death) -> Message:
    """The message with what `formats.own` tells of its death; what an earlier death told is replaced."""
    told = own.write(death.letter, delivery.delivery_count)
    headers = Headers([*own.strip(delivery.message.headers), *told])
    return msgspec.structs.replace(delivery.message, headers=headers)


def _checked_window(window: int) -> int:
    if window < 1:
        raise SettingsError(f"prefetch must be at least 1, not {window}")
    return window
