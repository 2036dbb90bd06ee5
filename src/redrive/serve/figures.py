"""Metrics of a server, in the text format of Prometheus.

`FAMILIES` declares every metric; `Figures` fills them with what the services have counted since the server started, and
with what the store knows. The store is queried when the metrics are scraped, at most every few seconds: a scrape must
not cost more than what it measures.

Counters of one broker have the label `broker`. Services that work on the whole store, such as the rescuer and the
retention, do not know whose letters they change, so their counters have no such label.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

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

_MAX_AGE: Final = timedelta(seconds=5)
_MAX_RESOLVED: Final = 1000  # resolved letters whose time in the store is measured
_MAX_TYPES: Final = 50
_MAX_OPERATIONS: Final = 100  # the latest ones, whose letters are counted
_OPEN: Final = tuple(map(str, (LetterState.PENDING, LetterState.PROCESSING, LetterState.MANUAL)))
_RESOLVED: Final = Query(
    (Condition("state", Op.IS, (str(LetterState.RESOLVED),)),), sort=Sort("updated", descending=True)
)


class Family(NamedTuple):
    """A metric without its samples. The name of a counter ends in `_total` when it is scraped."""

    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    help: str


_QUEUE: Final = ("broker", "source", "dead_letter_queue")
_BROKER: Final = ("broker",)
FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "redrive_letters_collected": Family("counter", _QUEUE, "Dead letters added to the store."),
        "redrive_letters_duplicate": Family(
            "counter", _QUEUE, "Dead letters that were already in the store and were not added again."
        ),
        "redrive_letters_separated": Family(
            "counter",
            _QUEUE,
            "Dead letters with copied redrive headers, stored as separate letters.",
        ),
        "redrive_redrives_failed": Family("counter", _QUEUE, "Redrives that were dead-lettered again."),
        "redrive_redrives_failed_late": Family(
            "counter", _QUEUE, "Redrives that were dead-lettered again after their claim had ended."
        ),
        "redrive_redrives_sent": Family(
            "counter",
            _BROKER,
            "Letters redriven by the workers of this server, and by replays to its broker.",
        ),
        "redrive_send_failures": Family("counter", _BROKER, "Redrives that the broker did not accept."),
        "redrive_redrives_unconfirmed": Family(
            "counter", _BROKER, "Redrives without verdict or dead letter within the verdict timeout."
        ),
        "redrive_redrives_without_consumer": Family(
            "counter", _BROKER, "Redrives whose consumer group no longer exists; pending again."
        ),
        "redrive_letters_parked": Family("counter", _BROKER, "Letters that workers parked for a person."),
        "redrive_letters_deferred": Family(
            "counter", _BROKER, "Letters that workers claimed and released, because a condition was not met."
        ),
        "redrive_letters_undeliverable": Family(
            "counter", _BROKER, "Letters held back because no consumer would have received them."
        ),
        "redrive_letters_resolved": Family("counter", _BROKER, "Letters resolved by a verdict."),
        "redrive_letters_presumed_resolved": Family(
            "counter",
            _BROKER,
            "Letters presumed resolved: their redrive was consumed, and no dead letter arrived.",
        ),
        "redrive_stale_writes": Family(
            "counter", _BROKER, "Writes of workers after their lease had expired."
        ),
        "redrive_verdicts_rejected": Family(
            "counter", ("broker", "reason"), "Verdicts that resolved no letter, by reason."
        ),
        "redrive_letters_rescheduled": Family(
            "counter", _BROKER, "Letters made due because the circuit breaker of their source has closed."
        ),
        "redrive_letters_replayed": Family(
            "counter", _BROKER, "Letters redriven by replays to the broker of this server."
        ),
        "redrive_replay_results": Family("counter", ("broker", "result"), "Redrives of replays, by result."),
        "redrive_replay_success_ratio": Family(
            "gauge",
            _BROKER,
            "Share of resolved letters among the results of replays since the server started.",
        ),
        "redrive_letters_failed": Family("counter", (), "Letters that reached the limit of redrives."),
        "redrive_leases_expired": Family(
            "counter", (), "Letters whose worker did not finish before its lease expired; pending again."
        ),
        "redrive_letters_deleted": Family("counter", (), "Letters deleted by retention."),
        "redrive_letters_archived": Family("counter", (), "Failed letters moved to archive files."),
        "redrive_change_log_deleted": Family(
            "counter", (), "Entries of the change log deleted because of age or size."
        ),
        "redrive_alerts": Family("counter", ("notifier", "outcome"), "Notifications, by outcome."),
        "redrive_service_failures": Family("counter", ("service",), "Failures and restarts of a service."),
        "redrive_breaker_open": Family(
            "gauge", ("broker", "source"), "1 while the circuit breaker holds back redrives to a source."
        ),
        "redrive_backlog": Family("gauge", ("state",), "Letters in the store, by state."),
        "redrive_backlog_by_error_type": Family(
            "gauge", ("error_type",), f"Open letters of the {_MAX_TYPES} most frequent error types."
        ),
        "redrive_letters_unconfirmed": Family("gauge", (), "Open letters whose redrive is unconfirmed."),
        "redrive_letters_waiting": Family(
            "gauge", ("waits_for",), "Due letters that wait for a condition, by its name."
        ),
        "redrive_letters_unserved": Family(
            "gauge", _BROKER, "Pending letters of brokers that no server serves."
        ),
        "redrive_incidents_open": Family("gauge", ("severity",), "Open incidents that were reported."),
        "redrive_resolution_ratio": Family(
            "gauge", ("arrived",), "Share of resolved letters among those that arrived on that day."
        ),
        "redrive_time_in_dlq_mean_seconds": Family(
            "gauge", (), f"Mean time from arrival to resolution of the last {_MAX_RESOLVED} resolved letters."
        ),
        "redrive_time_in_dlq_p95_seconds": Family(
            "gauge", (), f"95th percentile of that time, of the last {_MAX_RESOLVED} resolved letters."
        ),
    }
)


class StoreFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows."""

    states: dict[str, int]
    error_types: dict[str, int]
    times: tuple[float, ...]  # seconds in the store, sorted
    incidents: dict[str, int]  # open ones, by severity
    unconfirmed: int  # letters
    waiting: dict[str, int]  # letters by the condition that they wait for


class Figures:
    """The answer to `GET /metrics`."""

    def __init__(self, store: Store, crew: Crew, clock: Clock) -> None:
        self._store = store
        self._crew = crew
        self._clock = clock
        self._last: StoreFigures | None = None
        self._at: timedelta | None = None
        self._replays = ReplayCounter(crew.broker, clock.now())

    async def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        samples = _Samples()
        from_store = await self._from_store()
        self._count_collected(samples)
        self._count_redrives(samples)
        self._count_replays(samples)
        self._count_services(samples)
        _measure_store(samples, from_store)
        registry = CollectorRegistry()
        registry.register(samples)
        return generate_latest(registry)

    # --- what the services have counted ------------------------------------------------------------------------

    def _count_collected(self, samples: "_Samples") -> None:
        crew = self._crew
        for queue, collector in crew.collectors.items():
            counts, labels = collector.counts, (crew.broker, crew.source_of(queue), queue)
            samples.add("redrive_letters_collected", counts.collected, *labels)
            samples.add("redrive_letters_duplicate", counts.known, *labels)
            samples.add("redrive_letters_separated", counts.separated, *labels)
            samples.add("redrive_redrives_failed", counts.returned, *labels)
            samples.add("redrive_redrives_failed_late", counts.late, *labels)

    def _count_redrives(self, samples: "_Samples") -> None:
        crew = self._crew
        workers = [worker.counts for worker in crew.workers]
        confirmer, verdicts = crew.confirmer.counts, crew.verdicts.counts
        for name, count in (
            ("redrive_redrives_sent", sum(counts.sent for counts in workers) + self._replays.sent),
            ("redrive_send_failures", sum(counts.not_sent for counts in workers)),
            ("redrive_redrives_unconfirmed", confirmer.unconfirmed),
            ("redrive_redrives_without_consumer", confirmer.returned),
            ("redrive_letters_parked", sum(counts.parked for counts in workers)),
            ("redrive_letters_deferred", sum(counts.waiting for counts in workers)),
            ("redrive_letters_undeliverable", sum(counts.undeliverable for counts in workers)),
            ("redrive_letters_resolved", verdicts.resolved),
            ("redrive_letters_presumed_resolved", confirmer.presumed),
            ("redrive_stale_writes", sum(counts.stale for counts in workers)),
            ("redrive_letters_rescheduled", crew.awakening.awakened),
        ):
            samples.add(name, count, crew.broker)
        for reason, count in (
            ("late", verdicts.late),
            ("unreadable", verdicts.unreadable),
            ("other_consumer", verdicts.other_consumer),
            ("other_broker", verdicts.other_broker),
        ):
            samples.add("redrive_verdicts_rejected", count, crew.broker, reason)
        exhausted = [
            *(counts.exhausted for counts in workers),
            *(collector.counts.exhausted for collector in crew.collectors.values()),
            crew.rescued["given_up"],
        ]
        samples.add("redrive_letters_failed", sum(exhausted))

    def _count_replays(self, samples: "_Samples") -> None:
        crew = self._crew
        resolved = crew.verdicts.counts.replays
        failed = sum(collector.counts.replays for collector in crew.collectors.values())
        samples.add("redrive_letters_replayed", self._replays.sent, crew.broker)
        samples.add("redrive_replay_results", resolved, crew.broker, "resolved")
        samples.add("redrive_replay_results", failed, crew.broker, "failed")
        if resolved + failed:
            ratio = resolved / (resolved + failed)
            samples.add("redrive_replay_success_ratio", ratio, crew.broker)

    def _count_services(self, samples: "_Samples") -> None:
        crew = self._crew
        samples.add("redrive_leases_expired", crew.rescued["crashed"])
        samples.add("redrive_letters_deleted", crew.retention.counts.deleted)
        samples.add("redrive_letters_archived", crew.retention.counts.archived)
        samples.add("redrive_change_log_deleted", crew.change_log.deleted)
        for notifier, counts in crew.delivering.counts.items():
            for outcome, count in (
                ("sent", counts.sent),
                ("failed", counts.failed),
                ("retried", counts.retried),
                ("dropped", counts.dropped),
            ):
                samples.add("redrive_alerts", count, notifier, outcome)
        for service in crew.services:
            samples.add("redrive_service_failures", service.failures, service.name)
        still_open = set(crew.breakers.open_sources())
        for source in sorted({*still_open, *(source.name for source in crew.sources)}):
            samples.add("redrive_breaker_open", source in still_open, crew.broker, source)
        for broker, count in crew.measures.unserved.items():
            samples.add("redrive_letters_unserved", count, broker)
        for day, ratio in crew.measures.resolution.items():
            samples.add("redrive_resolution_ratio", ratio, day)

    # --- what the store knows ----------------------------------------------------------------------------------

    async def _from_store(self) -> StoreFigures:
        now = self._clock.monotonic()
        if self._last is None or self._at is None or now - self._at > _MAX_AGE:
            states = await self._store.tally("state")
            types = await self._store.tally("error", Query((Condition("state", Op.IS, _OPEN),)))
            heads = (await self._store.page(_RESOLVED, limit=_MAX_RESOLVED)).heads
            unconfirmed = await self._store.count(Query((Condition("unconfirmed", Op.IS, (1,)),)))
            waiting = await self._store.tally("waits_for")
            self._replays.update(await self._store.operations(limit=_MAX_OPERATIONS))
            severities = Counter(one.found.severity for one in (await self._crew.alarms.book()).open())
            self._last = StoreFigures(
                states={str(state): states.get(state, 0) for state in LetterState},
                error_types=dict(sorted(types.items(), key=lambda item: -item[1])[:_MAX_TYPES]),
                times=tuple(sorted((head.updated_at - head.created_at).total_seconds() for head in heads)),
                incidents={str(severity): severities[severity] for severity in Severity},
                unconfirmed=unconfirmed,
                waiting=dict(sorted(waiting.items(), key=lambda item: -item[1])[:_MAX_TYPES]),
            )
            self._at = now
        return self._last


def _measure_store(samples: "_Samples", figures: StoreFigures) -> None:
    for state, count in figures.states.items():
        samples.add("redrive_backlog", count, state)
    by_label: Counter[str] = Counter()
    for error_type, count in figures.error_types.items():
        by_label[label(error_type)] += count  # long names that differ only at their ends have one label
    for error_type, count in by_label.items():
        samples.add("redrive_backlog_by_error_type", count, error_type)
    samples.add("redrive_letters_unconfirmed", figures.unconfirmed)
    for condition, count in figures.waiting.items():
        samples.add("redrive_letters_waiting", count, condition)
    for severity, count in figures.incidents.items():
        samples.add("redrive_incidents_open", count, severity)
    if times := figures.times:
        samples.add("redrive_time_in_dlq_mean_seconds", sum(times) / len(times))
        samples.add("redrive_time_in_dlq_p95_seconds", times[min(len(times) - 1, int(len(times) * 0.95))])


class _Samples:
    """The samples of one scrape, as a collector of a registry."""

    def __init__(self) -> None:
        self._families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            name: (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(
                name, family.help, labels=family.labels
            )
            for name, family in FAMILIES.items()
        }

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add the value of one metric with these labels."""
        if len(labels) != len(FAMILIES[name].labels):
            raise ValueError(f"metric {name} requires the labels {FAMILIES[name].labels}")
        self._families[name].add_metric([label(each) for each in labels], value)

    def collect(self) -> Iterable[Metric]:
        """The families, for the registry."""
        return self._families.values()
