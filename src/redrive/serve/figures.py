"""How much was collected, sent back, resolved, and how much is left (E10)?

What the services have counted since they began, and what the store knows, as Prometheus reads it. The store is asked
when somebody scrapes, at most every few seconds: a scrape must not cost more than what it measures.

The time in the dead-letter queue is that of the letters that were resolved last, from their coming into the store on.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from redrive.clock import Clock
from redrive.letters import LetterState
from redrive.replay.counts import ReplayCounter
from redrive.serve.crew import Crew
from redrive.stores.base import Store
from redrive.stores.query import Condition, Op, Query, Sort
from redrive.watch.alerts.alert import Severity
from redrive.watch.clean import label

_FRESH: Final = timedelta(seconds=5)
_LAST: Final = 1000  # resolved letters whose time is looked at
_MOST_TYPES: Final = 50
_LAST_OPERATIONS: Final = 100  # whose letters are counted
_OPEN: Final = tuple(map(str, (LetterState.PENDING, LetterState.PROCESSING, LetterState.MANUAL)))
_RESOLVED: Final = Query(
    (Condition("state", Op.IS, (str(LetterState.RESOLVED),)),), sort=Sort("updated", descending=True)
)


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows."""

    states: dict[str, int]
    error_types: dict[str, int]
    times: tuple[float, ...]  # seconds in the dead-letter queue, sorted
    incidents: dict[str, int]  # open ones, by severity
    unconfirmed: int  # letters
    waiting: dict[str, int]  # letters by the condition that they wait for


class Figures:
    """What is asked by `/metrics`."""

    def __init__(self, store: Store, crew: Crew, clock: Clock) -> None:
        self._store = store
        self._crew = crew
        self._clock = clock
        self._known: Known | None = None
        self._at: timedelta | None = None
        self._replays = ReplayCounter(crew.broker, clock.now())

    async def text(self) -> bytes:
        """Everything, in Prometheus' text format. What the store cannot tell is left out."""
        registry = CollectorRegistry()
        known = await self._from_store()
        registry.register(
            _Once([*self._counted(), *self._replayed(), *_known(known), self._unserved(), self._resolution()])
        )
        return generate_latest(registry)

    # --- what the services have counted ------------------------------------------------------------------------

    def _counted(self) -> Iterator[Metric]:
        crew = self._crew
        collected = [(queue, collector.counts) for queue, collector in crew.collectors.items()]
        for name, what in (
            ("collected", "dead letters that came into the store"),
            ("known", "dead letters that were there already"),
            ("returned", "redrives that died again"),
            ("late", "redrives that died after their claim had ended"),
            (
                "separated",
                "dead letters with headers of a redrive that they were not: kept as letters of their own",
            ),
        ):
            family = CounterMetricFamily(f"redrive_{name}", what, labels=["queue_name"])
            for queue, counts in collected:
                family.add_metric([label(queue)], getattr(counts, name))
            yield family
        for name, what in (
            ("sent", "letters sent back by the workers of this server, and by replays to its broker"),
            ("not_sent", "letters that could not be sent back"),
            ("parked", "letters left to a person"),
            ("exhausted", "letters given up after too many redrives"),
            (
                "waiting",
                "letters claimed and given back because their strategy had changed and a condition was not met",
            ),
            ("undeliverable", "letters held back because no consumer would have received them"),
            ("stale", "writes that came after their lease was lost"),
        ):
            total = sum(getattr(worker.counts, name) for worker in crew.workers)
            if name == "sent":
                total += self._replays.sent
            if name == "exhausted":
                total += crew.rescued["given_up"]
                total += sum(counts.exhausted for _, counts in collected)
            yield _counter("redriven" if name == "sent" else name, what, total)
        verdicts, rescued = crew.verdicts.counts, crew.rescued
        yield _counter("resolved", "letters resolved by a verdict", verdicts.resolved)
        rejected = CounterMetricFamily(
            "redrive_verdicts_rejected", "verdicts that resolved nothing, by reason", labels=["reason"]
        )
        for reason in ("late", "unreadable", "other_consumer", "other_broker"):
            rejected.add_metric([reason], getattr(verdicts, reason))
        yield rejected
        confirmer = crew.confirmer.counts
        yield _counter(
            "unconfirmed", "redrives that got neither verdict nor death in time", confirmer.unconfirmed
        )
        yield _counter("presumed", "letters presumed resolved: taken, and nothing died", confirmer.presumed)
        yield _counter(
            "consumers_gone", "redrives whose consumer group was gone; pending again", confirmer.returned
        )
        yield _counter("deleted", "letters deleted because they were old", crew.retention.counts.deleted)
        yield _counter(
            "change_log_deleted",
            "lines of the change log deleted because of age or size",
            crew.change_log.deleted,
        )
        yield _counter("archived", "failed letters put into files", crew.retention.counts.archived)
        yield _counter("crashed", "letters whose worker was gone", rescued["crashed"])
        yield _counter(
            "awakened", "letters made due because their source works again", crew.awakening.awakened
        )
        alerts = CounterMetricFamily(
            "redrive_alerts", "alerts by what became of them", labels=["notifier", "outcome"]
        )
        for notifier, became in crew.delivering.counts.items():
            for outcome in ("sent", "failed", "retried", "dropped"):
                alerts.add_metric([label(notifier), outcome], getattr(became, outcome))
        yield alerts
        failures = CounterMetricFamily(
            "redrive_service_failures",
            "how often a service has failed and was started again",
            labels=["service"],
        )
        breakers = GaugeMetricFamily(
            "redrive_breaker_open", "1 while letters of a source are held back", labels=["source"]
        )
        for service in crew.services:
            failures.add_metric([label(service.name)], service.failures)
        still_open = set(crew.breakers.open_sources())
        for source in sorted({*still_open, *(source.name for source in crew.sources)}):
            breakers.add_metric([label(source)], float(source in still_open))
        yield failures
        yield breakers

    def _replayed(self) -> Iterator[Metric]:
        crew = self._crew
        yield _counter("replayed", "letters sent back by replays to this server's broker", self._replays.sent)
        resolved = crew.verdicts.counts.replays
        died = sum(collector.counts.replays for collector in crew.collectors.values())
        results = CounterMetricFamily(
            "redrive_replay_results", "letters sent by replays, by what became of them", labels=["result"]
        )
        results.add_metric(["resolved"], resolved)
        results.add_metric(["died"], died)
        yield results
        if resolved + died:
            yield GaugeMetricFamily(
                "redrive_replay_success_ratio",
                "share of the results of replays that are resolved, since the server began",
                resolved / (resolved + died),
            )

    def _unserved(self) -> Metric:
        family = GaugeMetricFamily(
            "redrive_letters_unserved",
            "letters that wait for a redrive while no server serves their broker",
            labels=["broker"],
        )
        for broker, count in self._crew.measures.unserved.items():
            family.add_metric([label(broker)], count)
        return family

    def _resolution(self) -> Metric:
        family = GaugeMetricFamily(
            "redrive_resolution_ratio",
            "share of the letters that arrived in the last day, and in the day before, that are resolved",
            labels=["arrived"],
        )
        for day, ratio in self._crew.measures.resolution.items():
            family.add_metric([day], ratio)
        return family

    # --- what the store knows ----------------------------------------------------------------------------------

    async def _from_store(self) -> Known:
        now = self._clock.monotonic()
        if self._known is None or self._at is None or now - self._at > _FRESH:
            states = await self._store.tally("state")
            types = await self._store.tally("error", Query((Condition("state", Op.IS, _OPEN),)))
            heads = (await self._store.page(_RESOLVED, limit=_LAST)).heads
            unconfirmed = await self._store.count(Query((Condition("unconfirmed", Op.IS, (1,)),)))
            waiting = await self._store.tally("waits_for")
            self._replays.update(await self._store.operations(limit=_LAST_OPERATIONS))
            severities = Counter(one.found.severity for one in (await self._crew.alarms.book()).open())
            self._known = Known(
                states={str(state): states.get(state, 0) for state in LetterState},
                error_types=dict(sorted(types.items(), key=lambda item: -item[1])[:_MOST_TYPES]),
                times=tuple(sorted((head.updated_at - head.created_at).total_seconds() for head in heads)),
                incidents={str(severity): severities[severity] for severity in Severity},
                unconfirmed=unconfirmed,
                waiting=dict(sorted(waiting.items(), key=lambda item: -item[1])[:_MOST_TYPES]),
            )
            self._at = now
        return self._known


def _known(known: Known) -> Iterator[Metric]:
    backlog = GaugeMetricFamily("redrive_backlog", "letters in the store, by state", labels=["state"])
    for state, count in known.states.items():
        backlog.add_metric([state], count)
    types = GaugeMetricFamily(
        "redrive_backlog_by_error_type",
        "open letters of the most frequent error types",
        labels=["error_type"],
    )
    by_label: Counter[str] = Counter()
    for error_type, count in known.error_types.items():
        by_label[label(error_type)] += count  # long names may share what is shown of them
    for error_type, count in by_label.items():
        types.add_metric([error_type], count)
    incidents = GaugeMetricFamily(
        "redrive_incidents_open",
        "incidents that somebody was told of and that are not over",
        labels=["severity"],
    )
    for severity, count in known.incidents.items():
        incidents.add_metric([severity], count)
    yield backlog
    yield GaugeMetricFamily(
        "redrive_letters_unconfirmed", "letters whose redrive nobody has confirmed", known.unconfirmed
    )
    waiting = GaugeMetricFamily(
        "redrive_letters_waiting", "due letters that wait for a condition, by its name", labels=["waits_for"]
    )
    for name, count in known.waiting.items():
        waiting.add_metric([label(name)], count)
    yield waiting
    yield types
    yield incidents
    if known.times:
        mean = sum(known.times) / len(known.times)
        p95 = known.times[min(len(known.times) - 1, int(len(known.times) * 0.95))]
        what = f"of the {_LAST} letters resolved last, from their coming into the store on"
        yield GaugeMetricFamily("redrive_time_in_dlq_mean_seconds", f"mean time {what}", mean)
        yield GaugeMetricFamily(
            "redrive_time_in_dlq_p95_seconds", f"95 % of the times {what}, are shorter", p95
        )


def _counter(name: str, what: str, value: int) -> Metric:
    return CounterMetricFamily(f"redrive_{name}", what, value)


class _Once:
    """Families as a registry wants them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families
