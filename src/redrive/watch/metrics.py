"""How many messages came, were processed, retried, given back, dead-lettered, lost?

`Metrics` counts in plain integers while messages flow and makes Prometheus' samples only when somebody scrapes. The
names are those of seeds 000 and 003 (E10); two of them are counters without `_total`, which Prometheus' client would
add to a counter, so they are shown as untyped.

The rule: labels cannot grow without end. Error types and reasons beyond a number are counted as "other".

This file does not know what is done with the figures: `docs/reference/metrics.md` has rules for alerts.
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
_LONGEST_NAME: Final = 200  # what is longer is no name of a type or reason
_CALLBACK: Final = "callback"  # how `failed` names what failed if it was one

# name without `_total` → help; each has the label `queue_name`
_BY_QUEUE: Final = {
    "messages_received": "deliveries that came from the broker",
    "messages_processed": "deliveries that a handler completed",
    "messages_retried": "attempts that failed and were followed by another in the process",
    "messages_given_back": "deliveries given back to the broker, to come again",
    "messages_skipped": "redrives for another consumer group, accepted without running a handler",
    "messages_redelivered_expected": "deliveries done when their connection was gone: they come a second time",
    "callback_failures": "callbacks that raised, hung or were too slow",
    "consumer_timeouts": "times that the broker took deliveries back: not acknowledged within its consumer timeout",
    "consumer_failures": "what else went wrong beside the messages: the broker, a stuck thread",
}
_TOGETHER: Final = {
    "dlq_messages": "dead letters made durable",
    "dlq_publish_failures": "tries to make a dead letter durable that failed",
    "dlq_lost": "messages settled without a dead letter, in the mode best effort",
}
_DEATHS: Final = ("messages_deadlettered", "dead letters made durable, by the reason they were given up for")
_BY_ERROR_TYPE: Final = ("dlq_messages_by_error_type", "dead letters made durable, by type of error")
_BY_TOPIC: Final = (
    "dlq_messages_by_topic",
    "dead letters made durable, by the queue or topic they come from",
)
_UNPUBLISHED: Final = (
    "dlq_publish_failures_in_a_row",
    "failed tries to make a dead letter durable since the last one that succeeded",
)
_MOST_UNPUBLISHED: Final = 3  # so many in a row, and the consumer is not healthy
_PAUSED: Final = ("source_paused", "1 while nothing is taken from the source, else 0")


class _Queue:
    """The figures of one source. The first nine are in the order of `_BY_QUEUE`."""

    __slots__ = (
        "callback_failures",
        "consumer_failures",
        "consumer_timeouts",
        "deaths",
        "given_back",
        "late",
        "paused",
        "processed",
        "received",
        "retried",
        "skipped",
        "unpublished",
    )

    def __init__(self) -> None:
        self.received = self.processed = self.retried = self.given_back = self.skipped = self.late = 0
        self.callback_failures = self.consumer_timeouts = self.consumer_failures = 0
        self.paused = False
        self.unpublished = 0  # dead letters, since the last one that was published
        # A series that begins at one is an increase that nobody sees: the known reasons begin at zero.
        self.deaths: dict[str, int] = dict.fromkeys((str(reason) for reason in Reason), 0)

    def figures(self) -> Sequence[int]:
        return (
            self.received,
            self.processed,
            self.retried,
            self.given_back,
            self.skipped,
            self.late,
            self.callback_failures,
            self.consumer_timeouts,
            self.consumer_failures,
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
        if len(self._known) >= self._most or len(name) > _LONGEST_NAME:
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
                "this Prometheus registry has metrics of these names already; use one Metrics for all consumers, "
                "or give each a registry of its own"
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
            (self._queues.get(source) or self._queue(source)).given_back += 1

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

    def paused(self, source: str, why: str) -> None:  # noqa: ARG002  a gauge has no words
        """Nothing more is taken from a source for now."""
        with self._lock:
            (self._queues.get(source) or self._queue(source)).paused = True

    def resumed(self, source: str) -> None:
        """It goes on."""
        with self._lock:
            (self._queues.get(source) or self._queue(source)).paused = False

    def failed(self, source: str, what: str, error: Exception) -> None:
        """Something beside the message itself went wrong."""
        with self._lock:
            queue = self._queues.get(source) or self._queue(source)
            if what.startswith(_CALLBACK):
                queue.callback_failures += 1
            elif isinstance(error, ConsumerTimeoutError):
                queue.consumer_timeouts += 1
            else:
                queue.consumer_failures += 1

    def _queue(self, source: str) -> _Queue:
        queue = self._queues[source] = _Queue()
        return queue

    def health(self) -> Mapping[str, object]:
        """Whether dead letters can be published, as `/health` answers it."""
        with self._lock:
            unpublished = {source: queue.unpublished for source, queue in self._queues.items()}
        failing = any(count >= _MOST_UNPUBLISHED for count in unpublished.values())
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
