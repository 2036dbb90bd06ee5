"""Keep the change log from growing for ever.

Lines are deleted when they are older than the retention period, or, oldest first, while the log is larger than its
limit. The history of a letter that is open (pending, processing or manual) is kept, and does not count: a person who
looks at it has to see what was done.

The log is measured once after the start, segment by segment, and after that only its new lines are. Deleting is done in
small batches, each of them a transaction of its own, so that no other writer waits for long.
"""

import asyncio
from collections import deque
from datetime import timedelta
from typing import Final, NamedTuple

import msgspec

from redrive.clock import Clock, pause
from redrive.errors import SettingsError
from redrive.stores.base import Store

_SEGMENT: Final = 10_000  # lines that are measured as one
_BATCH: Final = 500  # lines that one transaction deletes


class ChangeLogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long lines are kept, and how large the log may become."""

    age: timedelta = timedelta(days=30)
    max_bytes: int = 1_000_000_000
    every: timedelta = timedelta(hours=1)

    def __post_init__(self) -> None:
        if self.age <= timedelta(0) or self.every <= timedelta(0) or self.max_bytes < 1:
            raise SettingsError("change log: age, size and interval must be greater than 0")


class _Segment(NamedTuple):
    last: int  # the number of its last line
    bytes: int


class ChangeLogRetention:
    """Trims the change log of one store."""

    name = "change-log"

    def __init__(
        self, store: Store, clock: Clock, options: ChangeLogOptions, *, segment: int = _SEGMENT
    ) -> None:
        self._store = store
        self._clock = clock
        self._options = options
        self._segment = segment
        self._segments: deque[_Segment] = deque()
        self._measured = 0  # the number of the last line that was measured
        self._up_to = 0  # lines up to this number are deleted because of the size
        self.bytes = 0  # of the lines that may be deleted
        self.deleted = 0  # since the start

    async def run(self, stop: asyncio.Event) -> None:
        """Trim again and again until `stop` is set."""
        while not stop.is_set():
            await self.turn(stop)
            await pause(self._clock, self._options.every, stop)

    async def turn(self, stop: asyncio.Event | None = None) -> None:
        """Trim once; `stop` ends it between two batches."""
        await self._measure(stop)
        while self._segments and self.bytes > self._options.max_bytes:
            segment = self._segments.popleft()
            self.bytes -= segment.bytes
            self._up_to = segment.last
        before = self._clock.now() - self._options.age
        after, done = 0, False
        while not done and (stop is None or not stop.is_set()):
            trimmed = await self._store.trim_change_log(
                before=before, up_to=self._up_to, after=after, limit=_BATCH
            )
            after, done = trimmed.last, trimmed.done
            self.deleted += trimmed.deleted
        while self._segments and self._segments[0].last <= after:
            self.bytes -= self._segments.popleft().bytes

    async def _measure(self, stop: asyncio.Event | None) -> None:
        """Measure the lines that are new since the last time."""
        while stop is None or not stop.is_set():
            found = await self._store.measure_change_log(after=self._measured, limit=self._segment)
            if found.last == self._measured:
                return
            self._measured = found.last
            self._segments.append(_Segment(found.last, found.bytes))
            self.bytes += found.bytes
