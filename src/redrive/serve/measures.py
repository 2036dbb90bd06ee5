"""What is measured for the alarm?

What the store knows, what the services have counted, and whether the broker answers. What cannot be told at the moment
is left out: nothing is concluded from it.

A dead letter that was just collected is measured at once, by `collected`; everything else when somebody looks.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeAlias

import msgspec

from redrive.clock import Clock
from redrive.errors import BrokerRefusedError, RedriveError, SourceMissingError, TransportError
from redrive.letters import DeadLetter, LetterHead, State
from redrive.serve.prober import Prober
from redrive.serve.watched import Watched
from redrive.stores.base import Store
from redrive.stores.brokers import known_brokers
from redrive.stores.query import Condition, Op, Query, Sort
from redrive.transports.base import Transport
from redrive.watch.alerts.rules import Measured

_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_LATELY: Final = 5 * _MINUTE
_USUALLY: Final = 60 * _MINUTE
_FEWEST: Final = 10  # letters of an error type that can be a spike
_DAY: Final = timedelta(days=1)
_FEWEST_OF_A_DAY: Final = 20  # letters of which a share means something
_MOST_IDS: Final = 100
_REST: Final = 20  # times as long as the store has worked for us, it is left alone
_PATIENCE: Final = 5.0  # seconds for one answer of the broker
_OPEN: Final = Condition("state", Op.IS, tuple(map(str, (State.PENDING, State.PROCESSING, State.MANUAL))))
Subjects: TypeAlias = Callable[[str], Iterable[str]]  # of a measure: those that have to be measured


class Measures:
    """Everything that is measured."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        services: Callable[[], Sequence[Watched]],
        queues: Callable[[], Iterable[str]],
        clock: Clock,
        *,
        component: str,
        dead_letter_queues: Mapping[str, str],
        clean: Callable[[str], str],
        broker: str | None = None,
        undeliverable: Callable[[], Mapping[str, str]] = dict,
        prober: Prober | None = None,
    ) -> None:
        """`queues` are those that are collected; `dead_letter_queues` tells where the letters of a source lie.

        `clean` takes out of an id what is not for everybody's eyes. `broker` is the name of the served broker;
        `undeliverable` gives the sources whose redrives would reach no consumer, with the reason.
        """
        self._store = store
        self._transport = transport
        self._services = services
        self._queues = queues
        self._clock = clock
        self._component = component
        self._dead_letter_queues = dict(dead_letter_queues)
        self._clean = clean
        self._broker = broker or transport.kind
        self._undeliverable = undeliverable
        self.unserved: dict[str, int] = {}  # broker → letters that wait; as of the last look
        self._prober = prober
        self._open: dict[str, int] = {}  # by source: as of the last look, and what was collected since
        self._has_looked = False
        self._rest_until = timedelta(0)
        self._came: deque[tuple[timedelta, Counter[str]]] = deque()  # letters by error type, the oldest first

    # --- at once ---------------------------------------------------------------------------------------------------

    def collected(self, queue: str, letters: Sequence[DeadLetter]) -> list[Measured]:
        """What follows from letters that were just collected from this queue."""
        now, types = self._clock.monotonic(), Counter(letter.error_type for letter in letters)
        if self._came and now - self._came[-1][0] < _SECOND:
            self._came[-1][1].update(types)
        else:
            self._came.append((now, types))
        by_source: dict[str, list[LetterHead]] = {}
        for letter in letters:
            by_source.setdefault(letter.source, []).append(letter)
        for source, heads in by_source.items():
            self._dead_letter_queues[source] = queue
            self._open[source] = self._open.get(source, 0) + len(heads)
        return [self._open_letters(source, heads) for source, heads in by_source.items()]

    def _open_letters(self, source: str, new: Sequence[LetterHead]) -> Measured:
        """The letters of a source that are open, of which these are new."""
        types, groups = {head.error_type for head in new}, {head.group for head in new}
        counts = {"open": float(self._open.get(source, 0))}
        return Measured(
            measure="open_letters",
            subject=source,
            value=counts["open"],
            component=self._component,
            queue=self._dead_letter_queues.get(source),
            error_type=types.pop() if len(types) == 1 else None,
            group=groups.pop() if len(groups) == 1 else None,
            is_news=bool(new),
            counts={**counts, "new": float(len(new))} if new else counts,
            correlation_ids=tuple(
                self._clean(head.correlation_id) for head in new[:_MOST_IDS] if head.correlation_id
            ),
        )

    # --- when somebody looks ---------------------------------------------------------------------------------------

    async def taken(self, subjects: Subjects) -> list[Measured]:
        """Everything that can be measured now."""
        found = [
            *self._ingestion(),
            *self._spikes(subjects("error_spike")),
            *self._running(subjects("service")),
            *self._not_delivered(subjects("undeliverable")),
        ]
        looks: list[Callable[[], Awaitable[list[Measured]]]] = [
            lambda: self._from_store(subjects),
            lambda: self._depths(subjects("dlq_depth")),
        ]
        if self._prober is not None:
            looks.append(self._prober.measured)
        for look in looks:
            try:
                found += await look()
            except RedriveError:  # `/health` says why
                continue
        return found

    async def _from_store(self, subjects: Subjects) -> list[Measured]:
        """What has to be counted there; a store that takes long for it is asked less often."""
        began = self._clock.monotonic()
        if began < self._rest_until:
            return []
        found = [
            *await self._letters(subjects("open_letters")),
            *await self._resolution(),
            *await self._unconfirmed(subjects("unconfirmed")),
            *await self._unserved(subjects("unserved")),
        ]
        ended = self._clock.monotonic()
        self._rest_until = ended + _REST * (ended - began)
        return found

    async def _letters(self, known: Iterable[str]) -> list[Measured]:
        known, is_first, self._has_looked = set(known), not self._has_looked, True
        before, self._open = self._open, await self._store.tally("source", Query((_OPEN,)))
        found = []
        for source in sorted({*self._open, *known}):
            new: Sequence[LetterHead] = ()
            grown = self._open.get(source, 0) - before.get(source, 0)
            # Another server has collected them, or this one before it was started again; it was told of those.
            if grown > 0 and not (is_first and source in known):
                of_source = Condition("source", Op.IS, (source,))
                newest = Query((_OPEN, of_source), sort=Sort("created", descending=True))
                new = (await self._store.page(newest, limit=min(grown, _MOST_IDS))).heads
            found.append(self._open_letters(source, new))
        backlog = float(sum(self._open.values()))
        return [
            *found,
            Measured(measure="backlog", value=backlog, component="store", counts={"open": backlog}),
        ]

    async def _resolution(self) -> list[Measured]:
        since = Condition("created", Op.AT_LEAST, (self._clock.now() - _DAY,))
        states = await self._store.tally("state", Query((since,)))
        resolved, total = float(states.get(State.RESOLVED, 0)), float(sum(states.values()))
        if total < _FEWEST_OF_A_DAY:
            return []
        counts = {"resolved": resolved, "of": total}
        return [Measured(measure="resolution", value=resolved / total, component="store", counts=counts)]

    async def _unconfirmed(self, known: Iterable[str]) -> list[Measured]:
        counts = await self._store.tally("source", Query((Condition("unconfirmed", Op.IS, (1,)),)))
        return [
            Measured(
                measure="unconfirmed",
                subject=source,
                value=float(counts.get(source, 0)),
                component=self._component,
                counts={"unconfirmed": float(counts.get(source, 0))},
            )
            for source in sorted({*counts, *known})
        ]

    async def _unserved(self, known: Iterable[str]) -> list[Measured]:
        """Letters that no server will ever claim: their broker is not served, or not known."""
        pending = Query((Condition("state", Op.IS, (str(State.PENDING),)),))
        waiting = await self._store.tally("broker", pending)
        brokers, now = await known_brokers(self._store), self._clock.now()
        served = {self._broker, *(name for name, broker in brokers.items() if broker.is_served(now))}
        self.unserved = {name: count for name, count in waiting.items() if name not in served}
        return [
            Measured(
                measure="unserved",
                subject=name,
                value=float(self.unserved.get(name, 0)),
                component="store",
                counts={"waiting": float(self.unserved.get(name, 0))},
            )
            for name in sorted({*self.unserved, *known})
        ]

    def _not_delivered(self, known: Iterable[str]) -> list[Measured]:
        reasons = self._undeliverable()
        return [
            Measured(
                measure="undeliverable",
                subject=source,
                value=float(source in reasons),
                component=self._component,
            )
            for source in sorted({*reasons, *known})
        ]

    async def _depths(self, known: Iterable[str]) -> list[Measured]:
        """How deep the queues are, and whether there is a broker that says so."""
        broker = Measured(measure="broker", subject=self._component, value=0, component=self._component)
        found = [broker]
        for queue in sorted({*self._queues(), *known}):
            try:
                async with asyncio.timeout(_PATIENCE):
                    depth = float(await self._transport.depth(queue))
            except SourceMissingError:
                depth = 0.0  # it has gone, and what lay in it
            except BrokerRefusedError:
                continue  # the broker is there; how deep this queue is, the user may not ask
            except (TransportError, TimeoutError):
                return [msgspec.structs.replace(broker, value=1)]
            found.append(
                Measured(
                    measure="dlq_depth",
                    subject=queue,
                    value=depth,
                    component=self._component,
                    queue=queue,
                    counts={"messages": depth},
                )
            )
        return found

    def _running(self, known: Iterable[str]) -> list[Measured]:
        states = {service.name: service.trouble is not None for service in self._services()}
        return [
            Measured(measure="service", subject=name, value=float(states.get(name, False)))
            for name in sorted({*states, *known})
        ]

    # --- what came lately --------------------------------------------------------------------------------------------

    def _ingestion(self) -> list[Measured]:
        came = float(self._between(_MINUTE, timedelta(0)).total())
        return [Measured(measure="ingestion", value=came, component="store", counts={"came": came})]

    def _spikes(self, known: Iterable[str]) -> list[Measured]:
        """How many times as often as in the hour before each error type came in the last minutes."""
        lately, before = self._between(_LATELY, timedelta(0)), self._between(_LATELY + _USUALLY, _LATELY)
        found = []
        for error_type in sorted({*lately, *known}):
            came = lately[error_type]
            usual = max(before[error_type] / (_USUALLY / _LATELY), 1.0)
            found.append(
                Measured(
                    measure="error_spike",
                    subject=error_type,
                    value=came / usual if came >= _FEWEST else 0.0,
                    component="store",
                    error_type=error_type,
                    counts={"came": float(came), "usual": round(usual, 1)},
                )
            )
        return found

    def _between(self, longest: timedelta, shortest: timedelta) -> Counter[str]:
        """Letters by error type that came so long ago at the most, and at the least."""
        now = self._clock.monotonic()
        while self._came and now - self._came[0][0] > _LATELY + _USUALLY:
            self._came.popleft()
        found: Counter[str] = Counter()
        for at, types in self._came:
            if shortest <= now - at < longest:
                found += types
        return found
