"""How does a whole system run without waiting for time?

On an event loop whose time is a number. When nothing can run, the loop would wait for its next timer; here it sets its
time to that moment instead. Timers, time budgets and sleeps all follow, whoever set them, and hours pass in
milliseconds. The order of everything is a matter of the code and the seed alone.

The rule: no real time, no file and no socket is ever looked at. It is good for a month: after that, nanoseconds are
too small for the number.
"""

import asyncio
import selectors
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

START: Final = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)


class StuckError(Exception):
    """Nothing runs and nobody waits for a time: the simulation itself would hang for ever."""


class _Waiting(selectors.BaseSelector):
    """Waits for nothing but time, which it lets pass."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}
        self.passed = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self._keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return self._keys[number]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StuckError("deadlock: no task is ready and no timer is set")
        self.passed += max(0.0, timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits."""

    def __init__(self) -> None:
        self._waiting = _Waiting()
        super().__init__(self._waiting)

    def time(self) -> float:
        """Seconds since the loop was made, as far as anybody waited for them."""
        return self._waiting.passed


class VirtualClock:
    """The clock of a virtual loop. `jump` sets the time of day, as an operator or a time server does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jumped = timedelta(0)

    def now(self) -> datetime:
        """The time of day."""
        return START + self.monotonic() + self._jumped

    def monotonic(self) -> timedelta:
        """Time since the loop was made."""
        return timedelta(microseconds=round(self._loop.time() * 1e6))

    async def sleep(self, duration: timedelta) -> None:
        """Wait for `duration`."""
        await asyncio.sleep(max(0.0, duration.total_seconds()))

    def jump(self, by: timedelta) -> None:
        """Set the time of day; nobody wakes."""
        self._jumped += by
