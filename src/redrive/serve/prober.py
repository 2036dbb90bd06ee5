"""What is seen by asking the broker's management API?

Every so often each source and its dead-letter queue is asked for. That the API does not answer is found, too. From what
the broker has counted follow the share of a source's messages that died, that of the latest ones, and for how long a
queue has not drained: it has ready messages, and none was delivered.

The rule: nothing is concluded from few messages, nor from counters that have begun anew.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

import msgspec

from redrive.clock import Clock
from redrive.errors import RedriveError
from redrive.transports.probing import Probe, Probed
from redrive.watch.alerts.rules import Measured

_FEWEST: Final = 100  # messages of which a share means something
_FEWEST_LATELY: Final = 20


class _Counted(msgspec.Struct, frozen=True):
    """What a source's broker has counted."""

    delivered: int
    dead: int

    def since(self, before: "_Counted") -> "_Counted":
        return _Counted(self.delivered - before.delivered, self.dead - before.dead)


class _Waiting(msgspec.Struct, frozen=True):
    """A queue that has ready messages: the deliveries counted, and since when that number has stood."""

    deliveries: int
    since: timedelta


class Prober:
    """Asks, and remembers the answer until it asks again."""

    def __init__(
        self,
        probe: Probe,
        queues: Callable[[], Mapping[str, str]],
        clock: Clock,
        *,
        every: timedelta,
        component: str,
        trouble: Callable[[str, Exception], None],
    ) -> None:
        """`queues` are the sources and their dead-letter queues."""
        self._probe = probe
        self._queues = queues
        self._clock = clock
        self._every = every
        self._component = component
        self._trouble = trouble
        self._next: timedelta | None = None
        self._failures = 0
        self._before: dict[str, _Counted] = {}
        self._waiting: dict[str, _Waiting] = {}

    async def measured(self) -> list[Measured]:
        """What a look shows, when it is time for one."""
        now = self._clock.monotonic()
        if self._next is not None and now < self._next:
            return []
        self._next = now + self._every
        queues = dict(self._queues())
        try:
            answers = await self._probe.look([*queues, *queues.values()])
        except RedriveError as error:
            self._failures += 1
            self._trouble("the probe has failed", error)
            return [self._state()]
        self._failures = 0
        found = {answer.queue: answer for answer in answers}
        return [self._state(), *self._shares(queues, found), *self._drains(queues, found, now)]

    def _state(self) -> Measured:
        return Measured(
            measure="probe",
            subject=self._probe.place,
            value=self._failures,
            component=self._component,
            counts={"failures": float(self._failures)},
        )

    def _shares(self, queues: Mapping[str, str], found: Mapping[str, Probed]) -> list[Measured]:
        measured: list[Measured] = []
        for source, dead_letter_queue in queues.items():
            if source not in found or dead_letter_queue not in found:
                self._before.pop(source, None)
                continue
            counted = _Counted(found[source].delivered, found[dead_letter_queue].arrived)
            if counted.delivered >= _FEWEST:
                measured.append(self._share("dead_share", source, dead_letter_queue, counted))
            lately = counted.since(self._before[source]) if source in self._before else None
            if lately is not None and lately.delivered >= _FEWEST_LATELY and lately.dead >= 0:
                measured.append(self._share("dead_rate", source, dead_letter_queue, lately))
            self._before[source] = counted
        return measured

    def _drains(
        self, queues: Mapping[str, str], found: Mapping[str, Probed], now: timedelta
    ) -> list[Measured]:
        """How long nothing was delivered although messages were ready, and how old the first of them is."""
        letters_in = {**{queue: queue for queue in queues.values()}, **queues}
        before, self._waiting = self._waiting, {}
        measured: list[Measured] = []
        for name, queue in letters_in.items():
            counts, stalled = {"ready": 0.0}, timedelta(0)
            probed = found.get(name)
            if probed is not None and probed.ready:
                waiting = before.get(name)
                if waiting is None or waiting.deliveries != probed.deliveries:
                    waiting = _Waiting(probed.deliveries, now)
                self._waiting[name] = waiting
                stalled = now - waiting.since
                counts = {"ready": float(probed.ready), "consumers": float(probed.consumers)}
                if probed.head_at is not None:
                    counts["head_age"] = max(0.0, (self._clock.now() - probed.head_at).total_seconds())
            measured.append(
                Measured(
                    measure="stalled",
                    subject=name,
                    value=stalled.total_seconds(),
                    component=self._component,
                    queue=queue,
                    counts=counts,
                )
            )
        return measured

    def _share(self, measure: str, source: str, dead_letter_queue: str, counted: _Counted) -> Measured:
        return Measured(
            measure=measure,
            subject=source,
            value=min(1.0, counted.dead / counted.delivered),
            component=self._component,
            queue=dead_letter_queue,
            counts={"delivered": float(counted.delivered), "dead": float(counted.dead)},
        )
