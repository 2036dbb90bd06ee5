"""What time is it, and how does one wait for it?

Every part that needs time is given a `Clock`; none looks at the system's by itself. That is what lets the
whole system run on a clock that a test turns by hand (`redrive.testing.ManualClock`).
Times are aware datetimes in UTC, durations are `timedelta`.
"""

import asyncio
import time
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol


class Clock(Protocol):
    """The time of day, a time that only goes forward, and waiting."""

    def now(self) -> datetime:
        """The time of day in UTC. It may jump when somebody sets the machine's clock."""
        ...

    def monotonic(self) -> timedelta:
        """Time since some fixed moment; never jumps. For measuring, never for storing."""
        ...

    async def sleep(self, duration: timedelta) -> None:
        """Wait for `duration`."""
        ...


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    def now(self) -> datetime:
        """The time of day in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> timedelta:
        """Time since some fixed moment."""
        return timedelta(seconds=time.monotonic())

    async def sleep(self, duration: timedelta) -> None:
        """Wait for `duration`; zero or less gives way once."""
        await asyncio.sleep(max(0.0, duration.total_seconds()))


async def pause(clock: Clock, duration: timedelta, stop: asyncio.Event) -> None:
    """Wait for `duration`, but no longer than until `stop` is set."""
    await until_first(clock.sleep(duration), stop.wait())


async def until_first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for whichever ends first; the others are given up."""
    waiting = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
