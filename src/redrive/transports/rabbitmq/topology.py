"""Which queues, exchanges and bindings does a source need on RabbitMQ?

For each source: the work queue, the exchange its dead letters go through, the queue they lie in, what joins the two,
and one queue per delay. The rule: no dead letter can miss. The exchange is a fanout, so that no routing key matters;
the dead-letter queue is durable and has neither a time to live nor a limit. It has no delivery limit either: a dead
letter that was returned too often, by lost connections or by looking at it, would be dropped. Where sources share an
exchange but not the queue behind it, it is a direct one, and each needs a dead-letter routing key of its own.

Everything here is a value; nothing is asked of a broker. `plan` compares it with what is there.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, Final, Literal, TypeAlias, TypeVar

import msgspec

from redrive.errors import SettingsError
from redrive.transports.base import DelayedRetry, Source
from redrive.transports.plan import Thing, told
from redrive.transports.rabbitmq.delivery_counts import NEWEST, UNLIMITED, DeliveryCounts
from redrive.transports.rabbitmq.names import STEPS, delay_queue

Arguments: TypeAlias = Mapping[str, object]
Role: TypeAlias = Literal["work", "dead letters", "delay"]

DELAYED_RETRY_SINCE: Final = (4, 3)  # the first version that delays retries inside quorum queues
LEAST_DELIVERY_LIMIT: Final = 20  # what RabbitMQ 4 sets by itself
ANY_KEY: Final = "#"  # a fanout does not look at it, and on a topic exchange it takes everything
_LONGEST_NAME: Final = 255


class Queue(Thing, frozen=True, kw_only=True):
    """A queue that is wanted, and what for."""

    kind: ClassVar = "queue"
    name: str
    role: Role
    durable: bool = True
    arguments: Arguments = msgspec.field(default_factory=dict)

    @property
    def type(self) -> str:
        """`quorum` or `classic`."""
        return str(self.arguments.get("x-queue-type", "classic"))

    @property
    def title(self) -> str:
        """Its name."""
        return self.name

    @property
    def details(self) -> tuple[str, ...]:
        """Its type and its arguments."""
        arguments = (each for each in self.arguments.items() if each[0] != "x-queue-type")
        return (self.type, *(f"{name}={told(value)}" for name, value in arguments))


class Exchange(Thing, frozen=True, kw_only=True):
    """An exchange that is wanted."""

    kind: ClassVar = "exchange"
    name: str
    type: str = "fanout"
    durable: bool = True

    @property
    def title(self) -> str:
        """Its name."""
        return self.name

    @property
    def details(self) -> tuple[str, ...]:
        """Its type."""
        return (self.type,)


class Binding(Thing, frozen=True, kw_only=True):
    """What leads from an exchange to a queue, or to another exchange."""

    kind: ClassVar = "binding"
    harmless_again: ClassVar = True
    exchange: str
    destination: str
    routing_key: str = ""
    to: Literal["queue", "exchange"] = "queue"
    arguments: Arguments = msgspec.field(default_factory=dict)

    @property
    def title(self) -> str:
        """Its two ends."""
        return f"{self.exchange} → {self.destination}"

    @property
    def details(self) -> tuple[str, ...]:
        """The key it is for."""
        return (f"key {told(self.routing_key)}",)


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """All that is wanted, in the order in which it can be made."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()


def wanted(sources: Sequence[Source], counts: DeliveryCounts = NEWEST) -> Topology:
    """What these sources need on such a broker; `SettingsError` where two of them cannot both be served."""
    for source in sources:
        _check(source, counts)
    exchanges = [Exchange(name=source.dlx, type=_exchange_type(source, sources)) for source in sources]
    queues = [queue for source in sources for queue in _queues(source, counts)]
    bindings = [
        Binding(
            exchange=source.dlx,
            destination=source.dlq,
            routing_key=source.dead_letter_routing_key or ANY_KEY,
        )
        for source in sources
    ]
    return Topology(
        exchanges=_without_repeats("exchange", exchanges),
        queues=_without_repeats("queue", queues),
        bindings=tuple(binding for at, binding in enumerate(bindings) if binding not in bindings[:at]),
    )


def plain_queues(names: Collection[str], counts: DeliveryCounts = NEWEST) -> Topology:
    """Durable queues that lead nowhere else."""
    for name in names:
        if not 0 < _bytes_of(name) <= _LONGEST_NAME or name.startswith("amq."):
            raise SettingsError(
                f"'{name[:60]}' is not a valid queue name: it must have 1 to {_LONGEST_NAME} bytes of "
                "UTF-8 and must not start with amq."
            )
    arguments = {"x-queue-type": "quorum", **_without_limit("quorum", counts)}
    return Topology(queues=tuple(Queue(name=name, role="work", arguments=arguments) for name in names))


def _without_limit(queue_type: str, counts: DeliveryCounts) -> dict[str, object]:
    """The argument by which a queue gives up no message. A version without a limit of its own needs none."""
    if queue_type == "quorum" and counts.default_limit is not None:
        return {"x-delivery-limit": UNLIMITED}
    return {}


def delivery_limit(max_deliveries: int) -> int:
    """Where the broker gives up: late enough that we, who can say why, always do so first."""
    return max(LEAST_DELIVERY_LIMIT, 2 * max_deliveries)


# A delay that ends while the quorum queue behind it has no leader, as after a restart: a classic queue would drop the
# message, and so would a quorum queue without these.
_NO_LOSS: Final[dict[str, object]] = {
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


def _queues(source: Source, counts: DeliveryCounts) -> Iterable[Queue]:
    dead_letters: dict[str, object] = {"x-dead-letter-exchange": source.dlx}
    if source.dead_letter_routing_key is not None:
        dead_letters["x-dead-letter-routing-key"] = source.dead_letter_routing_key
    kind: dict[str, object] = {"x-queue-type": source.queue_type}
    limit: dict[str, object] = (
        {"x-delivery-limit": delivery_limit(source.max_deliveries)} if source.queue_type == "quorum" else {}
    )
    unlimited = _without_limit(source.queue_type, counts)
    yield Queue(name=source.dlq, role="dead letters", arguments={**kind, **unlimited})
    for step in STEPS:
        yield Queue(
            name=delay_queue(source.name, step),
            role="delay",
            arguments={
                **kind,
                **(_NO_LOSS if source.queue_type == "quorum" else {}),
                "x-message-ttl": step // timedelta(milliseconds=1),
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": source.name,
            },
        )
    # Last: where there is a work queue, there is also what catches its dead letters.
    retry = _delayed_retry(source.delayed_retry)
    yield Queue(name=source.name, role="work", arguments={**kind, **dead_letters, **limit, **retry})


def _delayed_retry(asked: DelayedRetry | None) -> dict[str, object]:
    """Only what has failed is delayed: what is merely looked at or given back by a stopping consumer is not."""
    if asked is None:
        return {}
    return {
        "x-delayed-retry-type": "failed",
        "x-delayed-retry-min": asked.least // timedelta(milliseconds=1),
        "x-delayed-retry-max": asked.most // timedelta(milliseconds=1),
    }


# --- what cannot be served ------------------------------------------------------------------------------


def _check(source: Source, counts: DeliveryCounts) -> None:
    names = {
        "its name": source.name,
        "dead_letter_queue": source.dlq,
        "dead_letter_exchange": source.dlx,
        "the longest name of its delay queues": max(
            (delay_queue(source.name, step) for step in STEPS), key=len
        ),
    }
    for what, name in names.items():
        if not 0 < _bytes_of(name) <= _LONGEST_NAME:
            raise SettingsError(
                f"source '{source.name[:60]}': {what} must have 1 to {_LONGEST_NAME} bytes of UTF-8"
            )
    for name in (source.name, source.dlq):
        if name.startswith("amq."):
            raise SettingsError(
                f"source '{source.name}': '{name}' is not a valid queue name: names that start with "
                "amq. are reserved by RabbitMQ"
            )
    if source.delayed_retry is not None:
        _check_delayed_retry(source, counts)
    if source.dlq == source.name:
        raise SettingsError(
            f"source '{source.name}': its dead letters would return to it; set another dead_letter_queue"
        )


def _check_delayed_retry(source: Source, counts: DeliveryCounts) -> None:
    instead = "remove it: redrive's delay queues work with every RabbitMQ version and queue type"
    if source.queue_type != "quorum":
        raise SettingsError(
            f"source '{source.name}': only quorum queues support delayed retry, but its queue_type is "
            f"{source.queue_type}; {instead}"
        )
    if counts.since < DELAYED_RETRY_SINCE:
        raise SettingsError(
            f"source '{source.name}': delayed retry needs RabbitMQ 4.3 or later, but this broker is "
            f"{counts.versions} and would silently ignore the arguments; {instead}"
        )


def _bytes_of(name: str) -> int:
    try:
        return len(name.encode())
    except UnicodeEncodeError:  # half a character, which a shell may pass on
        return 0


def _exchange_type(source: Source, sources: Sequence[Source]) -> str:
    """A fanout, unless it has to tell dead letters of several queues apart."""
    sharing = [other for other in sources if other.dlx == source.dlx]
    if len({other.dlq for other in sharing}) == 1:
        return "fanout"
    for other in sharing:
        if other.dead_letter_routing_key is None:
            raise SettingsError(
                f"source '{other.name}' shares the exchange '{other.dlx}' with sources that have another "
                "dead-letter queue; set a separate dead_letter_routing_key or dead_letter_exchange for it"
            )
    keys = {other.dead_letter_routing_key: other for other in sharing}
    for other in sharing:
        if keys[other.dead_letter_routing_key].dlq != other.dlq:
            raise SettingsError(
                f"sources '{other.name}' and '{keys[other.dead_letter_routing_key].name}' share the "
                f"exchange '{other.dlx}' and the routing key '{other.dead_letter_routing_key}', but not "
                "the dead-letter queue; set another dead_letter_routing_key for one of them"
            )
    return "direct"


_Item = TypeVar("_Item", Queue, Exchange)


def _without_repeats(what: str, items: Iterable[_Item]) -> tuple[_Item, ...]:
    found: dict[str, _Item] = {}
    for item in items:
        if found.setdefault(item.name, item) != item:
            raise SettingsError(
                f"the sources need the {what} '{item.name}' with different settings; rename one of them"
            )
    return tuple(found.values())
