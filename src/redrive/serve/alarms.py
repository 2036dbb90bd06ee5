"""How is an alert told that must not be lost, by one of several servers?

The incidents, and the alerts that somebody has not been told of yet, are one document in the store (S46 to S48). A
server looks at what is measured, writes down what follows from it, and only then tells it; when somebody has been told,
that is written down, too. Of several servers that find the same thing at the same time one is first to write it down:
that one tells it.

The rule: written down first, then told. A crash between the two gives the same alert a second time, from this server
when it is back or from another one after a while; never none.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from redrive.clock import Clock, pause, until_first
from redrive.letters import DeadLetter
from redrive.serve.measures import Measures
from redrive.stores.base import Store
from redrive.watch.alerts.alarm import Alarm, Book
from redrive.watch.alerts.alert import Alert
from redrive.watch.alerts.rules import Measured
from redrive.watch.alerts.written import Document, Unsent, Written

_LOOKS: Final = 4  # that may be late until another server takes over what this one tells
_SHORTEST: Final = timedelta(seconds=5)
_BREATH: Final = timedelta(milliseconds=200)


class Alarms:
    """Looks, writes down, and has it told."""

    name = "alarm"

    def __init__(
        self,
        store: Store,
        alarm: Alarm,
        measures: Measures,
        clock: Clock,
        *,
        every: timedelta,
        chosen: Callable[[Alert], Sequence[str]],
        tell: Callable[[Alert, Sequence[str]], None],
        trouble: Callable[[str, Exception], None],
    ) -> None:
        """`chosen` names who is to be told of an alert; `tell` has them told, and `ended` hears of it."""
        self._written = Written(store, self._begin_anew)
        self._alarm = alarm
        self._measures = measures
        self._clock = clock
        self._every = every
        self._ours_for = max(_LOOKS * every, _SHORTEST)
        self._chosen = chosen
        self._tell = tell
        self._trouble = trouble
        self._news: list[Measured] = []  # measured, and not yet looked at
        self._ended: set[tuple[str, datetime, str]] = set()  # told, and not yet written down
        self._ours: set[tuple[str, datetime]] = set()  # alerts that this server tells
        self._wake = asyncio.Event()

    # --- what others say -----------------------------------------------------------------------------------------

    def collected(self, queue: str, letters: Sequence[DeadLetter]) -> None:
        """These letters have just come from this queue."""
        self._news += self._measures.collected(queue, letters)
        self._wake.set()

    def ended(self, alert: Alert, name: str) -> None:
        """Somebody was told of it, or never will be."""
        self._ended.add((alert.incident, alert.time, name))
        self._wake.set()

    async def acknowledge(self, incident_id: str, by: str) -> bool:
        """Somebody takes care of an incident; False: it is not open."""
        now = self._clock.now()
        return await self._written.change(
            lambda document: document.book.acknowledge(incident_id, by, now) is not None
        )

    async def book(self) -> Book:
        """The incidents as they stand."""
        return await self._written.book()

    # --- the work --------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Look again and again until `stop` is set."""
        next_look = self._clock.monotonic()
        while not stop.is_set():
            self._wake.clear()
            if self._clock.monotonic() >= next_look:
                next_look = self._clock.monotonic() + self._every
                await self.look()
            else:
                await self._turn([])
            await pause(self._clock, _BREATH, stop)  # what comes in a flood is written down in portions
            rest = next_look - self._clock.monotonic()
            if rest > timedelta(0):
                await until_first(self._wake.wait(), stop.wait(), self._clock.sleep(rest))
        if self._ended:
            await self._turn([])

    async def look(self) -> None:
        """Measure everything, and tell what follows from it."""
        book = await self.book()
        await self._turn(await self._measures.taken(lambda measure: self._alarm.subjects(book, measure)))

    async def _turn(self, measured: Sequence[Measured]) -> None:
        """Write down what follows from this and from the news, then have it told."""
        news, ended = list(self._news), set(self._ended)

        def change(document: Document) -> list[Unsent]:
            now = self._clock.now()
            alerts = self._alarm.looked(document.book, [*news, *measured], now)
            to_tell = self._kept(document, ended, now)
            for alert in alerts:
                if names := tuple(self._chosen(alert)):
                    to_tell.append(Unsent(alert, names, now + self._ours_for))
            document.unsent += to_tell
            return to_tell

        to_tell = await self._written.change(change)
        del self._news[: len(news)]
        self._ended -= ended
        for one in to_tell:
            self._ours.add((one.alert.incident, one.alert.time))
            self._tell(one.alert, one.to)

    def _kept(self, document: Document, ended: set[tuple[str, datetime, str]], now: datetime) -> list[Unsent]:
        """Strike out whom was told, hold what we tell, and take over what nobody does; the latter is to be told."""
        left: list[Unsent] = []
        taken_over: list[Unsent] = []
        for one in document.unsent:
            key = one.alert.incident, one.alert.time
            to = tuple(name for name in one.to if (*key, name) not in ended)
            is_due = one.until <= now + self._ours_for / 2
            if not to:
                self._ours.discard(key)
            elif key in self._ours:
                left.append(Unsent(one.alert, to, now + self._ours_for if is_due else one.until))
            elif one.until <= now:
                taken_over.append(Unsent(one.alert, to, now + self._ours_for))
            else:
                left.append(one)
        document.unsent = left
        return taken_over

    def _begin_anew(self, error: Exception) -> None:
        self._trouble("what the alarm has written down cannot be read; it begins anew", error)
