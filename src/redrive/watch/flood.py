"""Ten thousand equal lines a second: which of them are written?

Of each kind the first so many in a second; the rest is counted, and told in one line when the second is over. That
line comes by itself if an event loop runs, so a flood that ends is told of as well; without a loop it comes before
the next line of its kind, or with `tell`.

This file does not know what a line says.
"""

import asyncio
from collections.abc import Callable, Hashable
from datetime import timedelta
from typing import Final, Generic, TypeVar

from redrive.clock import Clock
from redrive.errors import SettingsError

K = TypeVar("K", bound=Hashable)
SECOND: Final = timedelta(seconds=1)
_MOST_KINDS: Final = 1_000


class _Second:
    """What came of one kind since `start`."""

    __slots__ = ("count", "start")

    def __init__(self, start: timedelta) -> None:
        self.start = start
        self.count = 0


class Flood(Generic[K]):
    """Lets `most` of each kind pass in a second. `rest` hears how many of a kind did not."""

    def __init__(self, most: int, rest: Callable[[K, int], None], clock: Clock) -> None:
        if type(most) is not int or most < 1:
            raise SettingsError(f"lines per second must be an integer of at least 1, not {most!r:.40}")
        self._most = most
        self._rest = rest
        self._clock = clock
        self._seconds: dict[K, _Second] = {}
        self._later: asyncio.Task[None] | None = None

    def lets(self, kind: K) -> bool:
        """Whether one more of this kind may pass."""
        now = self._clock.monotonic()
        second = self._seconds.get(kind)
        if second is None or now - second.start >= SECOND:
            if second is not None:
                self._end(kind)
            elif len(self._seconds) >= _MOST_KINDS:
                self.tell()
            second = self._seconds[kind] = _Second(now)
        second.count += 1
        if second.count <= self._most:
            return True
        if second.count == self._most + 1:
            self._tell_later()
        return False

    def tell(self) -> None:
        """Tell of everything that did not pass, and begin anew."""
        for kind in list(self._seconds):
            self._end(kind)

    def _end(self, kind: K) -> None:
        second = self._seconds.pop(kind, None)
        if second is not None and second.count > self._most:
            self._rest(kind, second.count - self._most)

    def _tell_later(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        later = self._later
        if later is None or later.done() or later.get_loop() is not loop:
            self._later = loop.create_task(self._wait_and_tell(), name="redrive-log-flood")

    async def _wait_and_tell(self) -> None:
        try:
            await self._clock.sleep(SECOND)
        finally:  # a process that ends tells it at once
            self.tell()
