"""What is a broker that lies in this process?

Named queues, and the ways a test can trouble them. A message is taken out of its queue when it is handed out and goes
back to its old place when it is given back, so the order of a queue is that of arrival, always. The rule: whoever has
joined is told of every change.

It does not know what became of a message that is out: receivers remember those, and may give them back.
"""

from datetime import timedelta
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final, NamedTuple, Protocol

from redrive.clock import Clock
from redrive.errors import (
    BrokerUnreachableError,
    PublishError,
    RedriveError,
    SourceMissingError,
    did_you_mean,
)
from redrive.letters import Message

_NOTHING: Final = timedelta(0)


class Entry:
    """A message in a queue, or out of it with somebody who may give it back."""

    __slots__ = ("deliveries", "message", "number")

    def __init__(self, number: int, message: Message) -> None:
        self.number = number  # its place in the queue, for good
        self.message = message
        self.deliveries = 0

    def __lt__(self, other: "Entry") -> bool:
        return self.number < other.number


class Delayed(NamedTuple):
    """A message that may not be handed out yet, by the clock of whoever gave it back."""

    entry: Entry
    clock: Clock
    due: timedelta

    @property
    def wait(self) -> timedelta:
        """How long it still waits; nothing is left when it is due."""
        return self.due - self.clock.monotonic()


class Queue:
    """Messages in the order they arrived in."""

    def __init__(self) -> None:
        self._ready: list[Entry] = []  # a heap
        self._delayed: list[Delayed] = []

    def put(self, entry: Entry) -> None:
        """Put a message to its place in the order."""
        heappush(self._ready, entry)

    def delay(self, entry: Entry, clock: Clock, after: timedelta) -> None:
        """Put it there, but not yet."""
        self._delayed.append(Delayed(entry, clock, clock.monotonic() + after))

    def take(self, most: int) -> list[Entry]:
        """The first messages, which leave the queue."""
        ready = self._matured()
        return [heappop(ready) for _ in range(min(most, len(ready)))]

    def first(self, most: int) -> list[Entry]:
        """The first messages, which stay where they are."""
        return nsmallest(most, self._matured())

    def depth(self) -> int:
        """How many may be handed out now."""
        return len(self._matured())

    def next_due(self) -> Delayed | None:
        """The next of those that may not be handed out yet."""
        return min(self._delayed, key=lambda delayed: delayed.wait, default=None)

    def _matured(self) -> list[Entry]:
        """What may be handed out now."""
        if self._delayed:
            self._ready += [delayed.entry for delayed in self._delayed if delayed.wait <= _NOTHING]
            self._delayed = [delayed for delayed in self._delayed if delayed.wait > _NOTHING]
            heapify(self._ready)
        return self._ready


class Listener(Protocol):
    """Somebody who has a connection here."""

    def wake(self) -> None:
        """Something has changed."""
        ...

    def lose_everything(self) -> None:
        """The connection is gone, and with it what was out."""
        ...


class MemoryBroker:
    """Named queues that transports meet on, and the ways a test can trouble them."""

    def __init__(self, cluster_id: str = "memory") -> None:
        self.cluster_id = cluster_id
        self._queues: dict[str, Queue] = {}
        self._refused: dict[str, str] = {}
        self._receivers: dict[Listener, None] = {}  # in order: what repeats must wake in the same one
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
        self._queues.setdefault(queue, Queue())

    def queue(self, name: str) -> Queue:
        """The queue of this name."""
        if self._away:
            raise BrokerUnreachableError("the in-memory broker is stopped; start it again")
        if name not in self._queues:
            hint = did_you_mean(name, self._queues) or "; provision it first"
            raise SourceMissingError(f"queue '{name}' does not exist{hint}")
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
            return PublishError(f"queue '{queue}' refuses messages: {self._refused[queue]}")
        self._number += 1
        found.put(Entry(self._number, message))
        self._wake()
        return None

    def give_back(self, queue: str, entry: Entry, clock: Clock, after: timedelta) -> None:
        """Put a message back to its place, now or later; with a queue that was deleted it is gone."""
        found = self._queues.get(queue)
        if found is not None:
            if after > _NOTHING:
                found.delay(entry, clock, after)
            else:
                found.put(entry)
            self._wake()

    def join(self, receiver: Listener) -> None:
        """This receiver wants to be told of changes and of lost connections."""
        self._receivers[receiver] = None

    def part(self, receiver: Listener) -> None:
        """It no longer does."""
        self._receivers.pop(receiver, None)

    def _wake(self) -> None:
        for receiver in self._receivers:
            receiver.wake()
