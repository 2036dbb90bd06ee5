"""Take the measurements that alert rules compare.

Letters that were collected just now are measured at once, by `collected`. Everything else is measured by `looks`: each
of them waits for one thing only (the store, the broker's connection, the broker's management), and runs in a loop of
its own. What cannot be measured at the moment is left out; nothing is concluded from it.

Letters are counted for the served broker alone: a store may hold letters of others, whose servers measure them.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import msgspec

from redrive.clock import Clock
from redrive.errors import BrokerRefusedError, SourceMissingError, TransportError
from redrive.letters import DeadLetter, LetterHead, LetterState
from redrive.letters.verdict import QUEUE
from redrive.rules import Strategy
from redrive.serve.prober import Prober
from redrive.serve.watched import Watched
from redrive.stores.base import Store
from redrive.stores.brokers import known_brokers
from redrive.stores.many import load_those_there
from redrive.stores.query import Condition, Op, Query, Sort
from redrive.transports.base import Transport
from redrive.watch.alerts.rules import Measured

_MINUTE: Final = timedelta(minutes=1)
_RECENT: Final = 5 * _MINUTE
_USUAL: Final = 60 * _MINUTE
_MIN_SPIKE: Final = 10  # letters of an error type
_DAY: Final = timedelta(days=1)
_MIN_RESOLUTION: Final = 20  # letters of which a share means something
_MAX_IDS: Final = 100
_MAX_ORIGINS: Final = 20  # sources whose dead-letter queue is read from a letter, in one look
_REST: Final = 20  # times as long as the store took to count, it is left alone
_DEPTH_TIMEOUT: Final = 5.0  # seconds
_CONNECTING_INTERVAL: Final = timedelta(milliseconds=100)
_RESTARTED_WITHIN: Final = timedelta(minutes=1)  # a service, after what it needs is back
_OPEN: Final = Condition(
    "state", Op.IS, tuple(map(str, (LetterState.PENDING, LetterState.PROCESSING, LetterState.MANUAL)))
)
_AUTOMATIC: Final = (
    Condition("state", Op.IS, tuple(map(str, (LetterState.PENDING, LetterState.PROCESSING)))),
    Condition(
        "strategy", Op.IS, tuple(map(str, (Strategy.IMMEDIATE, Strategy.SCHEDULED, Strategy.CONDITIONAL)))
    ),
)
Subjects: TypeAlias = Callable[[str], Iterable[str]]  # of a measure: those that have open incidents


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements that are taken together."""

    name: str
    take: Callable[[Subjects], Awaitable[list[Measured]]]
    every: timedelta | None = None  # None: `alerts.interval`


class _Waiting(msgspec.Struct, frozen=True):
    """A dead-letter queue with messages: its depth, what its collector has done, and since when nothing was taken."""

    depth: int
    progress: int
    since: timedelta


class Measures:
    """All measurements of a server."""

    def __init__(
        self,
        store: Store,
        transport: Transport,
        services: Callable[[], Sequence[Watched]],
        queues: Callable[[], Mapping[str, int]],
        clock: Clock,
        *,
        component: str,
        dead_letter_queues: Mapping[str, str],
        clean: Callable[[str], str],
        broker: str | None = None,
        undeliverable: Callable[[], Mapping[str, str]] = dict,
        publish_failures: Callable[[], Mapping[str, int]] = dict,
        redrives: bool = True,
        prober: Prober | None = None,
        is_store_available: Callable[[], bool] = lambda: True,
        is_connecting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`queues` are the collected ones, each with a number that grows when its collector takes a message.

        `dead_letter_queues` maps sources to theirs. `clean` redacts ids. `broker` is the name of the served broker.
        `undeliverable` gives the sources whose redrives would reach no consumer, with the reason; `publish_failures`
        counts, by source, the dead letters that consumers could not publish. `redrives` is False where no worker runs.
        A store that is not available is not asked, nor is a broker until the first attempt to connect has ended.
        """
        self._store = store
        self._transport = transport
        self._services = services
        self._queues = queues
        self._clock = clock
        self._component = component
        self._dead_letter_queues = dict(dead_letter_queues)
        self._clean = clean
        self.broker = broker or transport.kind
        self._of_broker = Condition("broker", Op.IS, (self.broker,))
        self._undeliverable = undeliverable
        self._publish_failures = publish_failures
        self._redrives = redrives
        self._is_store_available = is_store_available
        self._is_connecting = is_connecting
        self._failed_at: dict[str | None, timedelta] = {}  # "store", "broker": when it was last found failing
        self.unserved: dict[str, int] = {}  # broker → letters that wait; as of the last look
        self.resolution: dict[str, float] = {}  # share of resolved letters by day of arrival; likewise
        self._prober = prober
        # By source: as of the last look, and what was collected since.
        self._open: Counter[str] = Counter()
        self._automatic: Counter[str] = Counter()  # of these, letters that are redriven without a person
        self._has_looked = False
        self._waiting: dict[str, _Waiting] = {}  # by dead-letter queue
        self.looks: Sequence[Look] = (
            Look(name="server", take=self._of_server),
            self._store_look("store", self._of_store),
            self._store_look("rates", self._of_rates),
            Look(name="queues", take=self._of_queues),
            *([] if prober is None else [Look(name="probe", take=self._of_probe, every=prober.every)]),
        )

    # --- at once ---------------------------------------------------------------------------------------------------

    def collected(self, queue: str, letters: Sequence[DeadLetter]) -> list[Measured]:
        """What follows from letters that were just collected from this queue."""
        by_source: dict[str, list[LetterHead]] = {}
        for letter in letters:
            by_source.setdefault(letter.source, []).append(letter)
        for source, heads in by_source.items():
            self._dead_letter_queues[source] = queue
            self._open[source] += len(heads)
            self._automatic[source] += sum(map(_is_automatic, heads))
        return [self._open_letters(source, heads) for source, heads in by_source.items()]

    def _open_letters(self, source: str, new: Sequence[LetterHead], *, is_news: bool = False) -> Measured:
        """The open letters of a source, of which these are new."""
        types, groups = {head.error_type for head in new}, {head.group for head in new}
        count = self._open[source]
        return Measured(
            measure="open_letters",
            subject=source,
            value=count,
            component=self._component,
            broker=self.broker,
            queue=self._dead_letter_queues.get(source),
            error_type=types.pop() if len(types) == 1 else None,
            group=groups.pop() if len(groups) == 1 else None,
            letter_id=new[0].id if len(new) == count == 1 else None,
            is_news=bool(new) or is_news,
            next=self._next(count, self._automatic[source] if self._redrives else 0),
            counts={"open": count, "new": len(new)} if new else {"open": count},
            correlation_ids=tuple(
                self._clean(head.correlation_id) for head in new[:_MAX_IDS] if head.correlation_id
            ),
        )

    @staticmethod
    def _next(count: int, automatic: int) -> str:
        """What happens with so many open letters."""
        if automatic <= 0:
            return "Manual intervention required."
        if automatic >= count:
            return "No intervention required: automatic redrive is pending."
        return f"Manual intervention required for {count - automatic:,}; {automatic:,} are redriven automatically."

    # --- the server itself -----------------------------------------------------------------------------------------

    async def _of_server(self, subjects: Subjects) -> list[Measured]:
        """What this process knows without asking."""
        return [
            self._store_state(),
            *self._running(subjects("service_failed")),
            *self._held_back(subjects("undeliverable")),
            *self._unpublished(subjects("dead_letter_publish_failures")),
        ]

    def _store_state(self) -> Measured:
        is_failing = not self._is_store_available()
        if is_failing:
            self._failed_at["store"] = self._clock.monotonic()
        return Measured(
            measure="store_unavailable", value=int(is_failing), component="store", broker=self.broker
        )

    def _running(self, known: Iterable[str]) -> list[Measured]:
        states = {service.name: self._has_failed(service) for service in self._services()}
        return [
            Measured(measure="service_failed", subject=name, value=int(states.get(name, False)))
            for name in sorted({*states, *known})
        ]

    def _has_failed(self, service: Watched) -> bool:
        """Whether a service fails by itself, and not because the store or the broker does, or did just now."""
        problem = service.problem
        if problem is None or problem.is_waiting:
            return False
        failed_at = self._failed_at.get(problem.cause)
        return failed_at is None or self._clock.monotonic() - failed_at > _RESTARTED_WITHIN

    def _held_back(self, known: Iterable[str]) -> list[Measured]:
        reasons = self._undeliverable()
        return [
            self._of_source("undeliverable", source, int(source in reasons))
            for source in sorted({*reasons, *known})
        ]

    def _unpublished(self, known: Iterable[str]) -> list[Measured]:
        failures = self._publish_failures()
        return [
            self._of_source("dead_letter_publish_failures", source, count, failures=count)
            for source in sorted({*failures, *known})
            for count in [failures.get(source, 0)]
        ]

    def _of_source(self, measure: str, source: str, value: int, **counts: int) -> Measured:
        return Measured(
            measure=measure,
            subject=source,
            value=value,
            component=self._component,
            broker=self.broker,
            queue=self._dead_letter_queues.get(source),
            counts={**counts},
        )

    # --- the store -------------------------------------------------------------------------------------------------

    def _store_look(self, name: str, take: Callable[[Subjects], Awaitable[list[Measured]]]) -> Look:
        """A look that asks the store: never while it is not available, and less often if it takes long."""
        rest_until = timedelta(0)

        async def rested(subjects: Subjects) -> list[Measured]:
            nonlocal rest_until
            began = self._clock.monotonic()
            if began < rest_until or not self._is_store_available():
                return []
            found = await take(subjects)
            ended = self._clock.monotonic()
            rest_until = ended + _REST * (ended - began)
            return found

        return Look(name=name, take=rested)

    async def _of_store(self, subjects: Subjects) -> list[Measured]:
        """The letters that are there."""
        return [
            *await self._letters(subjects("open_letters")),
            *await self._resolution(),
            *await self._unconfirmed(subjects("unconfirmed")),
            *await self._unserved(subjects("unserved")),
        ]

    async def _of_rates(self, subjects: Subjects) -> list[Measured]:
        """The letters that have come lately, whichever server collected them."""
        now = self._clock.now()
        count = await self._store.count(self._came_after(now - _MINUTE))
        ingestion = Measured(
            measure="ingestion",
            value=count,
            component="store",
            broker=self.broker,
            counts={"collected": count},
        )
        return [ingestion, *await self._spikes(now, subjects("error_spike"))]

    async def _spikes(self, now: datetime, known: Iterable[str]) -> list[Measured]:
        """How many times as often as in the hour before each error type came in the last minutes."""
        recent = Counter(await self._store.tally("error", self._came_after(now - _RECENT)))
        many = tuple(name for name, count in recent.items() if count >= _MIN_SPIKE)
        before: Counter[str] = Counter()
        if many:
            earlier = self._came_after(now - _RECENT - _USUAL)
            for condition in (
                Condition("created", Op.AT_MOST, (now - _RECENT,)),
                Condition("error", Op.IS, many),
            ):
                earlier = earlier.narrowed(condition)
            before.update(await self._store.tally("error", earlier))
        found = []
        for error_type in sorted({*recent, *known}):
            count = recent[error_type]
            usual = max(before[error_type] / (_USUAL / _RECENT), 1.0)
            found.append(
                Measured(
                    measure="error_spike",
                    subject=error_type,
                    value=count / usual if error_type in many else 0,
                    component="store",
                    broker=self.broker,
                    error_type=error_type,
                    counts={"collected": count, "usual": round(usual, 1)},
                )
            )
        return found

    def _came_after(self, time: datetime) -> Query:
        return Query((self._of_broker, Condition("created", Op.MORE, (time,))))

    async def _letters(self, known: Iterable[str]) -> list[Measured]:
        known, is_first, self._has_looked = set(known), not self._has_looked, True
        before, had_automatic = self._open, self._automatic
        self._open = Counter(await self._store.tally("source", Query((_OPEN, self._of_broker))))
        self._automatic = Counter(
            await self._store.tally("source", Query((*_AUTOMATIC, self._of_broker)))
            if self._open and self._redrives
            else {}
        )
        await self._find_queues()
        found = []
        for source in sorted({*self._open, *known}):
            new: Sequence[LetterHead] = ()
            grown = self._open[source] - before[source]
            # Another server collected them, or this one before its restart; those were reported.
            if grown > 0 and not (is_first and source in known):
                newest = Query((*self._open_of(source),), sort=Sort("created", descending=True))
                new = (await self._store.page(newest, limit=min(grown, _MAX_IDS))).heads
            was_manual = before[source] - had_automatic[source]
            is_manual = self._open[source] - self._automatic[source]
            is_news = self._redrives and not is_first and is_manual > was_manual
            found.append(self._open_letters(source, new, is_news=is_news))
        backlog = await self._store.count(Query((_OPEN,)))
        return [
            *found,
            Measured(measure="backlog", value=backlog, component="store", counts={"open": backlog}),
        ]

    def _open_of(self, source: str) -> tuple[Condition, ...]:
        return _OPEN, self._of_broker, Condition("source", Op.IS, (source,))

    async def _find_queues(self) -> None:
        """Learn from stored letters which queue they came from, where neither settings nor a collector say."""
        unknown = sorted(self._open.keys() - self._dead_letter_queues.keys())[:_MAX_ORIGINS]
        for source in unknown:
            newest = Query(self._open_of(source), sort=Sort("created", descending=True))
            heads = (await self._store.page(newest, limit=1)).heads
            for letter in await load_those_there(self._store, [head.id for head in heads]):
                if letter.origin.dead_letter_source is not None:
                    self._dead_letter_queues.setdefault(source, letter.origin.dead_letter_source)

    async def _resolution(self) -> list[Measured]:
        """Of the letters of the previous day, because each of them had a day in which it could be resolved."""
        self.resolution, total, resolved = {}, 0, 0
        for name, days in (("last_day", 1), ("previous_day", 2)):
            until = self._clock.now() - (days - 1) * _DAY
            arrived = (
                Condition("created", Op.AT_LEAST, (until - _DAY,)),
                Condition("created", Op.LESS, (until,)),
            )
            states = await self._store.tally("state", Query(arrived))
            resolved, total = states.get(LetterState.RESOLVED, 0), sum(states.values())
            if total:
                self.resolution[name] = resolved / total
        if total < _MIN_RESOLUTION:
            return []
        counts = {"resolved": resolved, "of": total}
        return [Measured(measure="resolution", value=resolved / total, component="store", counts={**counts})]

    async def _unconfirmed(self, known: Iterable[str]) -> list[Measured]:
        is_unconfirmed = Condition("unconfirmed", Op.IS, (1,))
        counts = await self._store.tally("source", Query((is_unconfirmed, self._of_broker)))
        return [
            self._of_source("unconfirmed", source, count, unconfirmed=count)
            for source in sorted({*counts, *known})
            for count in [counts.get(source, 0)]
        ]

    async def _unserved(self, known: Iterable[str]) -> list[Measured]:
        """Letters that no server will ever claim: their broker is not served, or not known."""
        pending = Query((Condition("state", Op.IS, (str(LetterState.PENDING),)),))
        waiting = await self._store.tally("broker", pending)
        brokers, now = await known_brokers(self._store), self._clock.now()
        served = {self.broker, *(name for name, broker in brokers.items() if broker.is_served(now))}
        self.unserved = {name: count for name, count in waiting.items() if name not in served}
        return [
            Measured(
                measure="unserved",
                subject=name,
                value=count,
                component="store",
                counts={"waiting": count},
            )
            for name in sorted({*self.unserved, *known})
            for count in [self.unserved.get(name, 0)]
        ]

    # --- the broker ------------------------------------------------------------------------------------------------

    async def _of_queues(self, subjects: Subjects) -> list[Measured]:
        """How deep the dead-letter queues are, whether they are drained, and whether the broker answers."""
        await self._first_attempt()
        collected = self._queues()
        probed = set() if self._prober is None else set(self._prober.sources())
        known = {*subjects("dlq_depth"), *subjects("uncollected"), *(set(subjects("queue_missing")) - probed)}
        found = [self._unreachable(0)]
        waiting: dict[str, _Waiting] = {}
        for queue in sorted({*collected, *known} or {QUEUE}):
            is_missing = False
            try:
                async with asyncio.timeout(_DEPTH_TIMEOUT):
                    depth = await self._transport.depth(queue)
            except SourceMissingError:
                depth, is_missing = 0, queue in collected
            except BrokerRefusedError:
                continue  # the broker answers, but this user may not see the queue
            except (TransportError, TimeoutError):
                return [self._unreachable(1)]
            if queue not in collected and queue not in known:
                continue  # asked only to know whether the broker answers
            if depth and queue in collected:
                waiting[queue] = self._waited(queue, depth, collected[queue])
            stored = sum(
                self._open[source] for source, dlq in self._dead_letter_queues.items() if dlq == queue
            )
            counts = {"messages": depth, "open_letters": stored}
            found += [
                self._of_queue("queue_missing", queue, int(is_missing)),
                self._of_queue("dlq_depth", queue, depth + stored, **counts),
                self._of_queue("uncollected", queue, self._seconds_since(waiting.get(queue)), messages=depth),
            ]
        self._waiting = waiting
        return found

    async def _first_attempt(self) -> None:
        """Wait until the first connection was made, or failed: until then queues that are missing are being created."""
        while self._is_connecting():
            await self._clock.sleep(_CONNECTING_INTERVAL)

    def _waited(self, queue: str, depth: int, progress: int) -> _Waiting:
        """Since when no message was taken. Another server may take them: then the queue is shorter at times."""
        before = self._waiting.get(queue)
        is_taken = before is None or depth < before.depth or progress != before.progress
        since = self._clock.monotonic() if before is None or is_taken else before.since
        return _Waiting(depth, progress, since)

    def _seconds_since(self, waiting: _Waiting | None) -> float:
        return 0 if waiting is None else (self._clock.monotonic() - waiting.since).total_seconds()

    def _unreachable(self, value: int) -> Measured:
        if value:
            self._failed_at["broker"] = self._clock.monotonic()
        return Measured(
            measure="broker_unreachable",
            subject=self.broker,
            value=value,
            component=self._component,
            broker=self.broker,
        )

    def _of_queue(self, measure: str, queue: str, value: float, **counts: int) -> Measured:
        return Measured(
            measure=measure,
            subject=queue,
            value=value,
            component=self._component,
            broker=self.broker,
            queue=queue,
            counts={**counts},
        )

    async def _of_probe(self, subjects: Subjects) -> list[Measured]:
        """What the broker's management says; if it says nothing, whether that is the fault of the broker first."""
        assert self._prober is not None  # noqa: S101  else it is not among the looks
        await self._first_attempt()
        found = await self._prober.measured()
        if self._prober.failures:
            found = [*await self._of_queues(subjects), *found]
        return found


def _is_automatic(head: LetterHead) -> bool:
    """Whether it is redriven without a person."""
    return head.state is not LetterState.MANUAL and head.strategy not in (None, str(Strategy.MANUAL))
