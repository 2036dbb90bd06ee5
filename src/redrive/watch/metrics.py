"""Metrics of consumers: messages received, processed, retried, requeued, dead-lettered and lost.

`Metrics` counts in plain integers while messages are processed and makes the samples of Prometheus only for a scrape.
Two counters have names without `_total`, which the client of Prometheus would add to a counter, so they are exported as
untyped.

The number of label values is limited: further error types and reasons are counted as "other".

`docs/reference/metrics.md` lists the metrics, and rules for alerts on them.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from threading import Lock
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    UntypedMetricFamily,
)

from redrive.errors import ConsumerTimeoutError, SettingsError
from redrive.letters import Failure
from redrive.letters.event import DeadLettered
from redrive.letters.letter import storable
from redrive.letters.redact import Redactor
from redrive.rules.decide import Reason
from redrive.transports.base import Delivery
from redrive.watch.clean import Clean, label
from redrive.watch.endpoint import MetricsServer, serve_metrics
from redrive.watch.silent import Silent

__all__ = ["MOST_ERROR_TYPES", "MOST_REASONS", "OTHER", "Metrics", "MetricsServer", "serve_metrics"]

OTHER: Final = "other"
MOST_ERROR_TYPES: Final = 1_000
MOST_REASONS: Final = 100
_MAX_NAME_CHARS: Final = 200  # longer texts are not names of types or reasons
_CALLBACK: Final = "callback"  # how the component begins if a callback failed

# name without `_total` → help; each has the label `queue_name`
_BY_QUEUE: Final = {
    "messages_received": "Deliveries received from the broker.",
    "messages_processed": "Deliveries that a handler processed successfully.",
    "messages_retried": "Failed attempts that were followed by another attempt in the same process.",
    "messages_requeued": "Deliveries released to the broker for another delivery.",
    "messages_skipped": "Redrives for another consumer group, accepted without running a handler.",
    "messages_settled_late": "Deliveries settled after their connection was lost; the broker delivers them again.",
    "callback_failures": "Callbacks that raised an exception, did not return or were too slow.",
    "consumer_timeouts": "Times that the broker took unacknowledged deliveries back after its consumer timeout.",
    "consumer_errors": "Errors that do not belong to one message, such as a lost connection or a stuck thread.",
}
_TOGETHER: Final = {
    "dlq_messages": "Dead letters published.",
    "dlq_publish_failures": "Failed attempts to publish a dead letter.",
    "dlq_lost": "Messages settled without a dead letter, in best-effort mode.",
}
_DEATHS: Final = ("messages_deadlettered", "Dead letters published, by reason.")
_BY_ERROR_TYPE: Final = ("dlq_messages_by_error_type", "Dead letters published, by type of error.")
_BY_TOPIC: Final = ("dlq_messages_by_topic", "Dead letters published, by source queue or topic.")
_UNPUBLISHED: Final = (
    "dlq_publish_failures_in_a_row",
    "Failed attempts to publish a dead letter since the last success.",
)
_MAX_UNPUBLISHED: Final = 3  # with so many in a row the consumer is not healthy
_PAUSED: Final = ("source_paused", "1 while the consumer is paused by its circuit breaker, else 0.")


class _Queue:
    """The counters of one source; `figures` are in the order of `_BY_QUEUE`."""

    __slots__ = (
        "callback_failures",
        "consumer_errors",
        "consumer_timeouts",
        "deaths",
        "late",
        "paused",
        "processed",
        "received",
        "requeued",
        "retried",
        "skipped",
        "unpublished",
    )

    def __init__(self) -> None:
        self.received = self.processed = self.retried = self.requeued = self.skipped = self.late = 0
        self.callback_failures = self.consumer_timeouts = self.consumer_errors = 0
        self.paused = False
        self.unpublished = 0  # dead letters, since the last one that was published
        # `increase()` does not see the first value of a series, so the known reasons start at zero.
        self.deaths: dict[str, int] = dict.fromkeys((str(reason) for reason in Reason), 0)

    def figures(self) -> Sequence[int]:
        return (
            self.received,
            self.processed,
            self.retried,
            self.requeued,
            self.skipped,
            self.late,
            self.callback_failures,
            self.consumer_timeouts,
            self.consumer_errors,
        )


class _Names:
    """The values of a label: redacted, cut, and no more than so many."""

    __slots__ = ("_clean", "_known", "_most")

    def __init__(self, most: int, clean: Clean) -> None:
        self._most = most
        self._clean = clean
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        return self._known.get(name) or self._meet(name)

    def _meet(self, name: str) -> str:
        if len(self._known) >= self._most or len(name) > _MAX_NAME_CHARS:
            return OTHER
        shown = self._known[name] = storable(self._clean.line(name)) or "unknown"
        return shown


class Metrics(Silent):
    """Counts what is heard, for all consumers of a process. It is a collector of its registry."""

    def __init__(
        self, registry: CollectorRegistry | None = None, *, redactor: Redactor | None = None
    ) -> None:
        clean = Clean(redactor)
        self._lock = Lock()  # consumers may run in several threads, and a scrape comes from another
        self._queues: dict[str, _Queue] = {}
        self._reasons = _Names(MOST_REASONS, clean)
        self._types = _Names(MOST_ERROR_TYPES, clean)
        self._dlq_messages = self._publish_failures = self._lost = 0
        self._by_type: dict[str, int] = {}
        self._by_topic: dict[str, int] = {}
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        try:
            self._registry.register(self)
        except ValueError:
            raise SettingsError(
                "this Prometheus registry already has metrics with these names; use one Metrics for all "
                "consumers, or a separate registry for each"
            ) from None

    def close(self) -> None:
        """Be no longer scraped. The registry is then free for another."""
        self._registry.unregister(self)

    # --- heard -----------------------------------------------------------------------------------------

    def received(self, source: str, count: int) -> None:
        """So many deliveries have come."""
        with self._lock:
            (self._queues.get(source) or self._queue(source)).received += count

    def completed(self, source: str, count: int) -> None:
        """So many deliveries were processed."""
        with self._lock:
            (self._queues.get(source) or self._queue(source)).processed += count

    def retrying(
        self,
        source: str,
        delivery: Delivery,  # noqa: ARG002  only counted
        attempt: int,  # noqa: ARG002  likewise
        failure: Failure,  # noqa: ARG002  likewise
        wait: timedelta,  # noqa: ARG002  likewise
    ) -> None:
        """An attempt failed; the next one follows."""
        with self._lock:
            (self._queues.get(source) or self._queue(source)).retried += 1

    def skipped(self, source: str, count: int) -> None:
        """So many deliveries were redrives for another consumer group."""
        with self._lock:
            (self._queues.get(source) or self._queue(source)).skipped += count

    def given_back(
        self,
        source: str,
        delivery: Delivery,  # noqa: ARG002  only counted
        after: timedelta | None,  # noqa: ARG002  likewise
        failure: Failure | None,  # noqa: ARG002  likewise
    ) -> None:
        """A delivery will come again."""
        with self._lock:
            (self._queues.get(source) or self._queue(source)).requeued += 1

    def dead_lettered(self, event: DeadLettered) -> None:
        """A dead letter is durable, or is not."""
        with self._lock:
            queue = self._queues.get(event.source) or self._queue(event.source)
            if not event.durable:
                self._publish_failures += 1
                self._lost += event.lost
                queue.unpublished += 1
                return
            queue.unpublished = 0
            reason, kind = self._reasons.of(event.reason), self._types.of(event.failure.error_type)
            queue.deaths[reason] = queue.deaths.get(reason, 0) + 1
            self._dlq_messages += 1
            self._by_type[kind] = self._by_type.get(kind, 0) + 1
            self._by_topic[event.source] = self._by_topic.get(event.source, 0) + 1

    def too_late(self, source: str, count: int) -> None:
        """So many deliveries will come a second time."""
        with self._lock:
            (self._queues.get(source) or self._queue(source)).late += count

    def paused(self, source: str, reason: str) -> None:  # noqa: ARG002  only counted
        """The consumer is paused."""
        with self._lock:
            (self._queues.get(source) or self._queue(source)).paused = True

    def resumed(self, source: str) -> None:
        """The consumer continues."""
        with self._lock:
            (self._queues.get(source) or self._queue(source)).paused = False

    def failed(self, source: str, component: str, error: Exception) -> None:
        """An error that does not belong to one message."""
        with self._lock:
            queue = self._queues.get(source) or self._queue(source)
            if component.startswith(_CALLBACK):
                queue.callback_failures += 1
            elif isinstance(error, ConsumerTimeoutError):
                queue.consumer_timeouts += 1
            else:
                queue.consumer_errors += 1

    def _queue(self, source: str) -> _Queue:
        queue = self._queues[source] = _Queue()
        return queue

    def health(self) -> Mapping[str, object]:
        """Whether dead letters can be published, as `/health` answers it."""
        with self._lock:
            unpublished = {source: queue.unpublished for source, queue in self._queues.items()}
        failing = any(count >= _MAX_UNPUBLISHED for count in unpublished.values())
        return {
            "status": "failing" if failing else "ok",
            "queues": {
                label(source): {"dlq_publish_failures_in_a_row": count}
                for source, count in unpublished.items()
            },
        }

    # --- scraped ---------------------------------------------------------------------------------------

    def describe(self) -> Iterable[Metric]:
        """The families without their samples: what two collectors of one registry must not share."""
        return _Families().every

    def collect(self) -> Iterable[Metric]:
        """The families as they are now, for the registry."""
        with self._lock:  # consumers wait for it, so only copies are made
            queues = [
                (label(source), queue.figures(), queue.deaths.copy(), queue.paused, queue.unpublished)
                for source, queue in self._queues.items()
            ]
            together = (self._dlq_messages, self._publish_failures, self._lost)
            by_type, by_topic = self._by_type.copy(), self._by_topic.copy()
        families = _Families()
        for name, figures, deaths, paused, unpublished in queues:
            for counter, value in zip(families.by_queue, figures, strict=True):
                counter.add_metric([name], value)
            for reason, count in deaths.items():
                families.deaths.add_metric([name, reason], count)
            families.paused.add_metric([name], float(paused))
            families.unpublished.add_metric([name], unpublished)
        for counter, value in zip(families.together, together, strict=True):
            counter.add_metric([], value)
        for kind, count in by_type.items():
            families.by_type.add_metric([kind], count)
        for topic, count in by_topic.items():
            families.by_topic.add_metric([label(topic)], count)
        return families.every


class _Families:
    """What a scrape is made of, still empty."""

    def __init__(self) -> None:
        queue = ["queue_name"]
        self.by_queue = [CounterMetricFamily(name, what, labels=queue) for name, what in _BY_QUEUE.items()]
        self.deaths = CounterMetricFamily(*_DEATHS, labels=[*queue, "reason"])
        self.together = [CounterMetricFamily(name, what, labels=[]) for name, what in _TOGETHER.items()]
        self.by_type = UntypedMetricFamily(*_BY_ERROR_TYPE, labels=["error_type"])
        self.by_topic = UntypedMetricFamily(*_BY_TOPIC, labels=["original_topic"])
        self.paused = GaugeMetricFamily(*_PAUSED, labels=queue)
        self.unpublished = GaugeMetricFamily(*_UNPUBLISHED, labels=queue)

    @property
    def every(self) -> list[Metric]:
        return [
            *self.by_queue,
            self.deaths,
            *self.together,
            self.by_type,
            self.by_topic,
            self.paused,
            self.unpublished,
        ]
