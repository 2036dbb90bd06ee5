"""Deliver alerts to notifiers, of which some are slow and some are unreachable.

Each notifier has a separate queue. A delivery that fails for a time is retried after a delay that grows, or that the
receiver asks for; one that is refused for good is not. Every alert ends as sent, failed or dropped for each notifier;
all three are counted, the latter two are logged.

A notifier never delays another one. `tell` does not wait, and a queue is bounded: when it is full, the oldest alert is
dropped that is not the last one of its incident, or else the oldest.

`ended` is called for each alert that was sent or given up, so that the caller can repeat the others after a restart. An
alert that is still queued when the server stops has not ended.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Final, Protocol

from redrive.clock import Clock, pause, until_first
from redrive.errors import NotifyError, SettingsError, on_one_line
from redrive.rules.backoff import Backoff, Exponential
from redrive.watch.alerts.alert import Alert

_LOG: Final = logging.getLogger("redrive.alerts")


class Notifier(Protocol):
    """A way to tell people."""

    @property
    def name(self) -> str:
        """What people call it; no two have the same."""

    async def send(self, alert: Alert) -> None:
        """Tell it within the notifier's own time-out, or raise `NotifyError`."""

    async def close(self) -> None:
        """Let go of what is open. A later `send` may open it again."""


async def attempt(notifier: Notifier, alert: Alert) -> NotifyError | None:
    """Send it once; why it was not taken, if it was not."""
    try:
        await notifier.send(alert)
    except NotifyError as error:
        return error
    except Exception as error:  # noqa: BLE001  whatever it is, the others go on
        # Nobody has looked at its text, so it is not repeated.
        return NotifyError(f"{type(error).__name__} in the notifier", is_permanent=True)
    return None


@dataclass(frozen=True, slots=True)
class DeliverOptions:
    """How hard one tries."""

    attempts: int = 10
    backoff: Backoff = Exponential(max_delay=timedelta(minutes=5))  # noqa: RUF009  it is a value
    longest_wait: timedelta = timedelta(minutes=10)  # whatever a receiver asks for
    line: int = 100  # alerts for each notifier
    grace: timedelta = timedelta(seconds=5)  # for what is in line when everything stops

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise SettingsError("alerts: there must be at least one attempt")
        if self.line < 2:
            raise SettingsError("alerts: the queue must hold at least two alerts")


@dataclass(slots=True)
class Counts:
    """What became of the alerts for one notifier."""

    sent: int = 0
    failed: int = 0  # refused for good, or not taken in any attempt
    retried: int = 0  # attempts that were not the first
    dropped: int = 0  # the line was full, or there was no time left


@dataclass(slots=True)
class _Line:
    """The alerts that wait for one notifier. The first stays until its sending has ended."""

    notifier: Notifier
    waiting: list[Alert] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    is_sending: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, alert: Alert, most: int) -> Alert | None:
        """Put it in line, and return what had to go for it."""
        self.waiting.append(alert)
        self.wake.set()
        return self.waiting.pop(self._least()) if len(self.waiting) > most else None

    def _least(self) -> int:
        last = {alert.incident: place for place, alert in enumerate(self.waiting)}
        begin = int(self.is_sending)
        old = (n for n in range(begin, len(self.waiting)) if last[self.waiting[n].incident] != n)
        return next(old, begin)


def _named(alert: Alert) -> str:
    return f"occasion={alert.occasion} incident={on_one_line(alert.incident[:100])}"


class Delivering:
    """The queues of all notifiers."""

    name = "notifications"

    def __init__(
        self,
        notifiers: Sequence[Notifier],
        *,
        clock: Clock,
        options: DeliverOptions | None = None,
        ended: Callable[[Alert, str], None] = lambda _alert, _name: None,
        random: Random | None = None,
    ) -> None:
        self._lines = {notifier.name: _Line(notifier) for notifier in notifiers}
        if len(self._lines) < len(notifiers):
            raise SettingsError("alerts: two notifiers have the same name; rename one of them")
        self._clock = clock
        self._options = options or DeliverOptions()
        self._ended = ended
        self._random = random or Random()  # noqa: S311  it spreads waits

    @property
    def counts(self) -> Mapping[str, Counts]:
        """Notifier → what became of its alerts until now."""
        return {name: replace(line.counts) for name, line in self._lines.items()}

    @property
    def waiting(self) -> Mapping[str, int]:
        """Notifier → how many alerts are in line, with the one that is being sent."""
        return {name: len(line.waiting) for name, line in self._lines.items()}

    def tell(self, alert: Alert, to: Collection[str] | None = None) -> None:
        """Put it in line for these notifiers, or for all. From the event loop; it never waits."""
        for line in self._lines.values() if to is None else [self._lines[name] for name in to]:
            if gone := line.add(alert, self._options.line):
                self._drop(line, gone, "its queue is full")
                self._end(gone, line.notifier.name)

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop` is set; what is in line then is given a short time."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._serve(line, stop)) for line in self._lines.values()]
                await stop.wait()
                if tasks:
                    await until_first(asyncio.wait(tasks), self._clock.sleep(self._options.grace))
                for task in tasks:
                    task.cancel()
        finally:
            for line in self._lines.values():
                await self._close(line)
        for line in self._lines.values():
            while line.waiting:
                self._drop(line, line.waiting.pop(0), "the server stopped")

    async def _serve(self, line: _Line, stop: asyncio.Event) -> None:
        while not stop.is_set() or line.waiting:
            if not line.waiting:
                line.wake.clear()
                await until_first(line.wake.wait(), stop.wait())
                continue
            line.is_sending = True
            try:
                await self._deliver(line, line.waiting[0], stop)
            finally:
                line.is_sending = False
            line.waiting.pop(0)

    async def _deliver(self, line: _Line, alert: Alert, stop: asyncio.Event) -> None:
        """One alert to its end, sent or failed."""
        what = _named(alert)
        name, counts, number = line.notifier.name, line.counts, 1
        while error := await attempt(line.notifier, alert):
            wait = None if stop.is_set() else self._wait(error, number)
            if wait is None:
                counts.failed += 1
                _LOG.error("alert not delivered notifier=%s %s attempts=%d: %s", name, what, number, error)
                if not stop.is_set():
                    self._end(alert, name)
                return
            _LOG.warning(
                "alert delivery failed notifier=%s %s attempt=%d/%d retry_in=%.1fs: %s",
                name, what, number, self._options.attempts, wait.total_seconds(), error,
            )  # fmt: skip
            await pause(self._clock, wait, stop)
            counts.retried += 1
            number += 1
        counts.sent += 1
        self._end(alert, name)

    def _end(self, alert: Alert, name: str) -> None:
        try:
            self._ended(alert, name)
        except Exception as error:  # noqa: BLE001  the next one waits
            why = on_one_line(f"{type(error).__name__}: {error}")
            _LOG.error("result of alert not recorded notifier=%s %s: %s", name, _named(alert), why)

    def _wait(self, error: NotifyError, number: int) -> timedelta | None:
        """How long until the next attempt; None if there is none."""
        if error.is_permanent or number >= self._options.attempts:
            return None
        wait = self._options.backoff.delay(number, self._random)
        if wait is None or error.retry_after is None:
            return wait
        return max(wait, min(error.retry_after, self._options.longest_wait))

    def _drop(self, line: _Line, alert: Alert, why: str) -> None:
        line.counts.dropped += 1
        _LOG.error("alert dropped notifier=%s %s: %s", line.notifier.name, _named(alert), why)

    async def _close(self, line: _Line) -> None:
        try:
            await line.notifier.close()
        except Exception as error:  # noqa: BLE001  the others are closed as well
            _LOG.warning("notifier not closed notifier=%s: %s", line.notifier.name, type(error).__name__)
