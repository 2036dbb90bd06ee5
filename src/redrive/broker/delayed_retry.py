"""How long does a returned message of a quorum queue wait before it is delivered again?

A queue with delayed retry keeps what was returned to it out of its line until a time that grows with the number of
failed deliveries. This module knows the rule and the order of the waiting entries; the queue decides what is a
return and journals it.
"""

import heapq
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from redrive.broker.message import Entry

RetryType: TypeAlias = Literal["all", "failed", "returned"]
RETRY_TYPES: Final = get_args(RetryType)


@dataclass(frozen=True)
class DelayedRetry:
    """Which returns are delayed, and by how many milliseconds at least and at most."""

    type: RetryType
    min: int
    max: int

    def delay(self, *, failed: bool, failures: int) -> int | None:
        """The delay of a message that was returned after `failures` failed deliveries; None: none."""
        if self.type != "all" and (self.type == "failed") != failed:
            return None
        return min(self.min * max(1, failures), self.max)

    def __str__(self) -> str:
        return f"{self.type} (min: {self.min}ms, max: {self.max}ms)"


class DelayedEntries:
    """The entries of one queue that wait, those that are ready first in front."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, Entry]] = []  # ready at, then by their place in the queue

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_at(self) -> int | None:
        """When the first one is ready."""
        return self._heap[0][0] if self._heap else None

    @property
    def last_at(self) -> int | None:
        """When the last one is ready."""
        return max(at for at, _ in self._heap) if self._heap else None

    def add(self, entry: Entry, at: int) -> None:
        """This entry is ready at that time."""
        heapq.heappush(self._heap, (at, entry))

    def take_ready(self, now: int) -> list[Entry]:
        """Take out what is ready, in order."""
        heap = self._heap
        ready = []
        while heap and heap[0][0] <= now:
            ready.append(heapq.heappop(heap)[1])
        return ready

    def take_all(self) -> list[Entry]:
        """Take everything out."""
        everything = [entry for _, entry in sorted(self._heap)]
        self._heap.clear()
        return everything
