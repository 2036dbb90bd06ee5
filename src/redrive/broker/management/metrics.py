"""What does Prometheus get to read?

RabbitMQ's names, in the text format. `/metrics` holds sums and tells no names, so nobody has to log in for it, as on
RabbitMQ; `/metrics/per-object` tells each queue by name and is for those who monitor.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from redrive._version import __version__
from redrive.broker.core import RABBITMQ_VERSION, Broker
from redrive.broker.dead_letter import Reason
from redrive.broker.management.answers import Answer
from redrive.broker.management.ask import Ask
from redrive.broker.management.stats import queue_counters
from redrive.broker.queue import Queue, QueueStats
from redrive.errors import on_one_line

TYPE: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
_STRATEGIES: Final = ("disabled", "at_most_once", "at_least_once")
_GAUGES: Final = {
    "rabbitmq_queue_messages": "messages that are ready or unacknowledged",
    "rabbitmq_queue_messages_ready": "messages that are ready to be delivered",
    "rabbitmq_queue_messages_unacked": "messages that are delivered and not acknowledged",
    "rabbitmq_queue_messages_bytes": "size of all message bodies",
    "rabbitmq_queue_messages_ready_bytes": "size of the bodies that are ready to be delivered",
    "rabbitmq_queue_messages_unacked_bytes": "size of the bodies that are not acknowledged",
    "rabbitmq_queue_consumers": "consumers",
}
Sample = tuple[Mapping[str, str], float]


def sums(ask: Ask) -> Answer:
    """Everything, added up."""
    broker = ask.broker
    queues = [queue for _, queue in broker.queues()]
    lines = [*_build(), *_totals(broker), *_deaths(broker)]
    together = zip(*map(_gauges, queues), strict=True) if queues else [(0,)] * len(_GAUGES)
    for (name, what), values in zip(_GAUGES.items(), together, strict=True):
        lines += _metric(name, "gauge", what, [({}, sum(values))])
    return Answer(body="\n".join([*lines, ""]), headers=TYPE)


def per_object(ask: Ask) -> Answer:
    """Each queue by its name."""
    ask.need("monitoring")
    queues = [({"vhost": vhost.name, "queue": queue.name}, queue) for vhost, queue in ask.broker.queues()]
    lines = [*_build(), *_totals(ask.broker), *_deaths(ask.broker)]
    gauges = [(labels, _gauges(queue)) for labels, queue in queues]
    for place, (name, what) in enumerate(_GAUGES.items()):
        lines += _metric(name, "gauge", what, [(labels, values[place]) for labels, values in gauges])
    return Answer(body="\n".join([*lines, ""]), headers=TYPE)


def _gauges(queue: Queue) -> tuple[int, ...]:
    """In the order of `_GAUGES`."""
    return (
        queue.ready + queue.unacked + queue.held,
        queue.ready,
        queue.unacked,
        queue.bytes,
        queue.bytes_ready,
        queue.unacked_bytes,
        len(queue.consumers),
    )


def _build() -> Iterable[str]:
    labels = {"rabbitmq_version": RABBITMQ_VERSION, "product_name": "redrive", "product_version": __version__}
    return _metric("rabbitmq_build_info", "gauge", "what this is", [(labels, 1)])


def _totals(broker: Broker) -> Iterable[str]:
    everything = QueueStats()
    everything.add(broker.past)
    for _, queue in broker.queues():
        everything.add(queue.stats)
    seen = queue_counters(everything)
    publishes = broker.publishes()
    counters = {
        "messages_received_total": (publishes["publish"], "messages published by clients"),
        "messages_unroutable_dropped_total": (
            publishes["drop_unroutable"],
            "publishes that reached no queue",
        ),
        "messages_unroutable_returned_total": (
            publishes["return_unroutable"],
            "publishes that were returned",
        ),
        "messages_delivered_total": (seen["deliver_get"], "messages handed to clients"),
        "messages_redelivered_total": (seen["redeliver"], "of these, not for the first time"),
        "messages_acknowledged_total": (seen["ack"], "messages that clients acknowledged"),
    }
    for name, (value, what) in counters.items():
        yield from _metric(f"rabbitmq_global_{name}", "counter", what, [({"protocol": "amqp091"}, value)])
    for name, value, what in (
        ("connections", len(broker.sessions), "connections"),
        ("channels", sum(len(session.channels) for session in broker.sessions), "channels"),
        ("queues", sum(len(vhost.queues) for vhost in broker.vhosts.values()), "queues"),
        ("consumers", sum(len(queue.consumers) for _, queue in broker.queues()), "consumers"),
        ("alarms_memory_used_watermark", int(broker.blocked_because is not None), "1 while publishers wait"),
    ):
        yield from _metric(f"rabbitmq_{name}", "gauge", what, [({}, value)])


def _deaths(broker: Broker) -> Iterable[str]:
    """Deaths under RabbitMQ's names; what had nowhere to go is counted there too, and once more on its own."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for (queue_type, reason, strategy), count in broker.deaths.items():
        counts[queue_type, reason, strategy if strategy in _STRATEGIES else "at_most_once"] += count
    for reason in Reason:
        types = ("quorum",) if reason is Reason.DELIVERY_LIMIT else ("classic", "quorum")
        samples: list[Sample] = [
            (
                {"queue_type": f"rabbit_{kind}_queue", "dead_letter_strategy": strategy},
                counts[kind, reason, strategy],
            )
            for kind in types
            for strategy in _STRATEGIES
            if kind == "quorum" or strategy != "at_least_once"
        ]
        name = f"rabbitmq_global_messages_dead_lettered_{reason}_total"
        yield from _metric(name, "counter", f"messages that died: {reason}", samples)
    confirmed = {"queue_type": "rabbit_quorum_queue", "dead_letter_strategy": "at_least_once"}
    yield from _metric(
        "rabbitmq_global_messages_dead_lettered_confirmed_total",
        "counter",
        "dead letters that all targets have taken",
        [(confirmed, broker.dead_letters_confirmed)],
    )
    drops: list[Sample] = [({"reason": reason}, broker.drops[reason]) for reason in Reason]
    what = "dead letters that had nowhere to go"
    yield from _metric("redrive_dead_letters_unroutable_total", "counter", what, drops)


def _metric(name: str, kind: str, what: str, samples: Iterable[Sample]) -> Iterable[str]:
    yield f"# TYPE {name} {kind}"
    yield f"# HELP {name} {what}"
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _escaped(text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    if quoted.isprintable():
        return quoted
    return "".join(char if char.isprintable() else f"\\\\{on_one_line(char)[1:]}" for char in quoted)
