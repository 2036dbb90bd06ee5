"""What is seen by asking the broker's management API (C3)?

Every so often each source and its dead-letter queue is asked for. That the API does not answer is found, too. From what
the broker has counted follow the share of a source's messages that died, and that of the latest ones.

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
        return [self._state(), *self._shares(queues, {answer.queue: answer for answer in answers})]

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

    def _share(self, measure: str, source: str, dead_letter_queue: str, counted: _Counted) -> Measured:
        return Measured(
            measure=measure,
            subject=source,
            value=min(1.0, counted.dead / counted.delivered),
            component=self._component,
            queue=dead_letter_queue,
            counts={"delivered": float(counted.delivered), "dead": float(counted.dead)},
        )
