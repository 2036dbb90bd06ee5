"""A clock that only a test moves."""

import asyncio
import heapq
from datetime import UTC, datetime, timedelta
from itertools import count


class ManualClock:
    """Time stands still until `advance`; who sleeps wakes exactly when its time has come, in order."""

    def __init__(self, start: datetime = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)) -> None:
        self._start = start
        self._now = start
        self._jumped = timedelta(0)
        self._sleepers: list[tuple[timedelta, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> datetime:
        """The time of day."""
        return self._now + self._jumped

    def monotonic(self) -> timedelta:
        """Time passed since the clock was made; jumps do not show."""
        return self._now - self._start

    async def sleep(self, duration: timedelta) -> None:
        """Wait until a test has moved the clock by `duration`."""
        if duration <= timedelta(0):
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.monotonic() + duration, next(self._order), future))
        await future

    def advance(self, duration: timedelta) -> None:
        """Let time pass and wake whoever slept until now."""
        if duration < timedelta(0):
            raise ValueError("time only goes forward; use jump() to set the clock back")
        self._now += duration
        while self._sleepers and self._sleepers[0][0] <= self.monotonic():
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)

    def jump(self, by: timedelta) -> None:
        """Set the time of day, as an operator or a time server does; nobody wakes."""
        self._jumped += by

    @property
    def sleepers(self) -> int:
        """How many are asleep."""
        return sum(not future.done() for _, _, future in self._sleepers)
