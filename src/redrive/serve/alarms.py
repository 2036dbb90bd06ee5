"""Evaluate measurements, store the incidents, and have the alerts sent by one of several servers.

The incidents, and the alerts that were not delivered yet, are one document in the store. A server evaluates what was
measured, stores the result, and only then hands the alerts to the notifiers; a delivered alert is stored as delivered.
If several servers find the same thing at the same time, the first one to store it sends the alert. A crash between
storing and sending repeats the alert, from this server after its restart or from another one after a while. An alert
ends for a notifier when it was delivered or given up (`watch.alerts.delivering`).

Nothing that can take long is between a dead letter and its alert. Each kind of measurement has a separate loop, so a
hanging management API or a slow count delays only itself. What was measured is evaluated in turns: at once if it
raises an alert, otherwise together with whatever else comes within `_GATHER`.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from redrive.clock import Clock, pause, until_first
from redrive.errors import RedriveError
from redrive.letters import DeadLetter
from redrive.serve.measures import Look, Measures
from redrive.stores.base import Store
from redrive.watch.alerts.alarm import Alarm, Book
from redrive.watch.alerts.alert import Alert
from redrive.watch.alerts.rules import Measured
from redrive.watch.alerts.written import Document, Unsent, Written

_LATE_TURNS: Final = 4  # intervals after which another server takes over what this one sends
_MIN_TAKEOVER: Final = timedelta(seconds=5)
_GATHER: Final = timedelta(milliseconds=200)  # measurements that raise no alert are stored together
_MAX_NEWS: Final = 1000  # kept while the store cannot be written; the next look finds what is dropped
_Subject: TypeAlias = tuple[str, str | None, str]  # measure, broker and subject


def takeover_after(every: timedelta) -> timedelta:
    """How long a server that measures so often may be silent until others take over."""
    return max(_LATE_TURNS * every, _MIN_TAKEOVER)


class Alarms:
    """Turns measurements into alerts."""

    name = "alerts"

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
        is_store_available: Callable[[], bool] | None = None,
    ) -> None:
        """`chosen` names the notifiers of an alert; `tell` hands it to them, and `ended` is called for each result.

        With `is_store_available`, incidents are kept in memory while the store is not available.
        """
        self._written = Written(store, self._begin_anew, is_available=is_store_available)
        self._alarm = alarm
        self._measures = measures
        self._clock = clock
        self._every = every
        self._ours_for = takeover_after(every)
        self._chosen = chosen
        self._tell = tell
        self._trouble = trouble
        self._book: Book | None = None  # as of the last turn
        self._news: list[Measured] = []  # letters that came, and were not evaluated yet
        self._latest: dict[_Subject, Measured] = {}  # the last of all other measurements, likewise
        self._ended: set[tuple[str, datetime, str]] = set()  # delivered, and not yet stored as such
        self._ours: set[tuple[str, datetime]] = set()  # alerts that this server sends
        self._has_work = asyncio.Event()
        self._is_urgent = asyncio.Event()

    # --- what others report --------------------------------------------------------------------------------------

    def collected(self, queue: str, letters: Sequence[DeadLetter]) -> None:
        """These letters were collected from this queue just now."""
        self.measured(self._measures.collected(queue, letters))

    def measured(self, found: Sequence[Measured]) -> None:
        """Evaluate these in the next turn."""
        self._keep(found)
        self._has_work.set()
        if self._book is None or self._alarm.would_alert(self._book, found, self._clock.now()):
            self._is_urgent.set()

    def ended(self, alert: Alert, name: str) -> None:
        """This notifier has delivered the alert, or has given it up."""
        self._ended.add((alert.incident, alert.time, name))
        self._has_work.set()

    async def acknowledge(self, incident_id: str, by: str) -> bool:
        """Acknowledge an incident; False if it is not open."""
        now = self._clock.now()
        return await self._written.change(
            lambda document: document.book.acknowledge(incident_id, by, now) is not None
        )

    async def book(self) -> Book:
        """The incidents as they are stored."""
        return await self._written.book()

    # --- running -------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Measure and evaluate until `stop` is set."""
        looking = [asyncio.create_task(self._repeat(look, stop)) for look in self._measures.looks]
        try:
            await self._turns(stop)
        finally:
            for task in looking:
                task.cancel()
            await asyncio.gather(*looking, return_exceptions=True)

    async def look(self) -> None:
        """Take every measurement once, and evaluate them."""
        self._book = await self.book()
        for look in self._measures.looks:
            self._keep(await self._taken(look))
        await self.turn()

    async def _repeat(self, look: Look, stop: asyncio.Event) -> None:
        every = look.every or self._every
        due = self._clock.monotonic()
        while not stop.is_set():
            self.measured(await self._taken(look))
            due = max(due + every, self._clock.monotonic())
            await pause(self._clock, due - self._clock.monotonic(), stop)

    async def _taken(self, look: Look) -> Sequence[Measured]:
        try:
            return await look.take(self._subjects)
        except RedriveError:  # `/health` reports it
            return ()
        except Exception as error:  # noqa: BLE001  the other measurements go on, and this one is taken again
            self._trouble(f"measurement failed measure={look.name}", error)
            return ()

    def _keep(self, found: Sequence[Measured]) -> None:
        """Until the next turn. Of a value that is measured again, only the last measurement counts."""
        for one in found:
            if one.is_news:
                self._news.append(one)
            else:
                self._latest[one.measure, one.broker, one.subject] = one
        del self._news[:-_MAX_NEWS]

    def _subjects(self, measure: str) -> set[str]:
        book = self._book
        return set() if book is None else self._alarm.subjects(book, measure, self._measures.broker)

    async def _turns(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if not self._has_work.is_set():
                await until_first(self._has_work.wait(), stop.wait())
                continue
            if not self._is_urgent.is_set():
                await until_first(self._is_urgent.wait(), stop.wait(), self._clock.sleep(_GATHER))
            began = self._clock.monotonic()
            await self.turn()
            # At most half of the time is spent here, however many alerts there are.
            await pause(self._clock, min(self._clock.monotonic() - began, _GATHER), stop)
        if self._ended or self._news or self._latest:
            await self.turn()

    async def turn(self) -> None:
        """Evaluate what was measured, store the result, then hand the alerts to the notifiers."""
        self._has_work.clear()
        self._is_urgent.clear()
        news, self._news = self._news, []
        latest, self._latest = self._latest, {}
        ended = set(self._ended)

        def change(document: Document) -> tuple[Book, list[Unsent]]:
            now = self._clock.now()
            alerts = self._alarm.looked(document.book, [*news, *latest.values()], now)
            to_send = self._kept(document, ended, now)
            for alert in alerts:
                if names := tuple(self._chosen(alert)):
                    to_send.append(Unsent(alert, names, now + self._ours_for))
            document.unsent += to_send
            return document.book, to_send

        try:
            self._book, to_send = await self._written.change(change)
        except BaseException:  # the next turn does it again
            self._news = [*news, *self._news][-_MAX_NEWS:]
            self._latest = latest | self._latest
            self._has_work.set()
            raise
        self._ended -= ended
        for one in to_send:
            self._ours.add((one.alert.incident, one.alert.time))
            self._tell(one.alert, one.to)

    def _kept(self, document: Document, ended: set[tuple[str, datetime, str]], now: datetime) -> list[Unsent]:
        """Remove what was delivered, keep what this server sends, and take over what no server sends any more."""
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
        self._trouble("alert state unreadable, replaced by an empty one", error)
