"""Probe the broker: what it has counted, and which queues have stopped draining.

Each source, its dead-letter queue and every other collected queue is asked for. From what the broker has counted follow
the share of a source's messages that were dead-lettered, in all and since the last probe, and for how long a queue has
not drained: it has ready messages, and none was delivered. A failed probe is a measurement, too, and so is a source
that does not exist.

Nothing is concluded from few messages, nor from counters that were reset.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Final

import msgspec

from redrive.clock import Clock
from redrive.errors import RedriveError
from redrive.transports.probing import Probe, Probed
from redrive.watch.alerts.alert import Number
from redrive.watch.alerts.rules import Measured

_MIN_MESSAGES: Final = 100  # of which a share means something
_MIN_RECENT_MESSAGES: Final = 20


class _Counted(msgspec.Struct, frozen=True):
    """What a source's broker has counted."""

    delivered: int = 0
    dead: int = 0

    def since(self, before: "_Counted") -> "_Counted":
        return _Counted(self.delivered - before.delivered, self.dead - before.dead)


class _Waiting(msgspec.Struct, frozen=True):
    """A queue that has ready messages: the deliveries counted, and since when that number has not changed."""

    deliveries: int
    since: timedelta


class Prober:
    """Probes a broker and compares the answer with the last one."""

    def __init__(
        self,
        probe: Probe,
        sources: Callable[[], Mapping[str, str]],
        clock: Clock,
        *,
        every: timedelta,
        component: str,
        trouble: Callable[[str, Exception], None],
        collected: Callable[[], Iterable[str]] = tuple,
        broker: str | None = None,
    ) -> None:
        """`sources` maps sources to their dead-letter queues; `collected` are all queues that are collected."""
        self._probe = probe
        self.sources = sources
        self._clock = clock
        self.every = every
        self._component = component
        self._trouble = trouble
        self._collected = collected
        self._broker = broker
        self.failures = 0  # in a row
        self._before: dict[str, _Counted] = {}
        self._reset_at: dict[str, _Counted] = {}  # what was counted when a counter began anew
        self._waiting: dict[str, _Waiting] = {}

    async def measured(self) -> list[Measured]:
        """Probe once."""
        sources = dict(self.sources())
        queues = dict.fromkeys([*sources, *sources.values(), *self._collected()])
        try:
            answers = await self._probe.look([*queues])
        except RedriveError as error:
            self.failures += 1
            self._trouble(f"probe failed place={self._probe.place} failures={self.failures}", error)
            return [self._state()]
        self.failures = 0
        found = {answer.queue: answer for answer in answers}
        return [
            self._state(),
            *(self._measured("queue_missing", source, int(source not in found)) for source in sources),
            *self._ratios(sources, found),
            *self._drains(queues, sources, found),
        ]

    def _state(self) -> Measured:
        return self._measured(
            "probe_failures", self._probe.place, self.failures, counts={"failures": self.failures}
        )

    def _ratios(self, sources: Mapping[str, str], found: Mapping[str, Probed]) -> list[Measured]:
        measured: list[Measured] = []
        for source, dead_letter_queue in sources.items():
            if source not in found or dead_letter_queue not in found:
                self._before.pop(source, None)
                continue
            counted = _Counted(found[source].delivered, found[dead_letter_queue].arrived)
            before = self._before.get(source)
            if before is not None:
                self._notice_reset(source, before, counted)
            total = counted.since(self._reset_at.get(source, _Counted()))
            if total.delivered >= _MIN_MESSAGES:
                measured.append(self._ratio("dead_letter_ratio", source, dead_letter_queue, total))
            recent = None if before is None else counted.since(before)
            if recent is not None and recent.delivered >= _MIN_RECENT_MESSAGES and recent.dead >= 0:
                measured.append(self._ratio("recent_dead_letter_ratio", source, dead_letter_queue, recent))
            self._before[source] = counted
        return measured

    def _notice_reset(self, source: str, before: _Counted, counted: _Counted) -> None:
        """A queue that was made anew counts from zero; the other one's counts from before are not comparable."""
        was_reset = (counted.delivered < before.delivered, counted.dead < before.dead)
        if any(was_reset):
            self._reset_at[source] = _Counted(
                delivered=0 if was_reset[0] else before.delivered, dead=0 if was_reset[1] else before.dead
            )

    def _ratio(self, measure: str, source: str, dead_letter_queue: str, counted: _Counted) -> Measured:
        return self._measured(
            measure,
            source,
            min(1.0, counted.dead / counted.delivered),
            queue=dead_letter_queue,
            counts={"delivered": counted.delivered, "dead": counted.dead},
        )

    def _drains(
        self, queues: Iterable[str], sources: Mapping[str, str], found: Mapping[str, Probed]
    ) -> list[Measured]:
        """For how long nothing was delivered although messages were ready, and how old the first of them is."""
        now = self._clock.monotonic()
        before, self._waiting = self._waiting, {}
        measured: list[Measured] = []
        for name in queues:
            counts: dict[str, Number] = {"ready": 0}
            stalled = timedelta(0)
            probed = found.get(name)
            if probed is not None and probed.ready:
                waiting = before.get(name)
                if waiting is None or waiting.deliveries != probed.deliveries:
                    waiting = _Waiting(probed.deliveries, now)
                self._waiting[name] = waiting
                stalled = now - waiting.since
                counts = {"ready": probed.ready}
                if probed.consumers is not None:
                    counts["consumers"] = probed.consumers
                if probed.head_at is not None:
                    counts["head_age"] = max(0, round((self._clock.now() - probed.head_at).total_seconds()))
            queue = sources.get(name, name)
            measured.append(
                self._measured("stalled", name, stalled.total_seconds(), queue=queue, counts=counts)
            )
        return measured

    def _measured(
        self,
        measure: str,
        subject: str,
        value: float,
        queue: str | None = None,
        counts: dict[str, Number] | None = None,
    ) -> Measured:
        return Measured(
            measure=measure,
            subject=subject,
            value=value,
            component=self._component,
            broker=self._broker,
            queue=queue,
            counts=counts or {},
        )
