"""What has to be made on a RabbitMQ, what is there already, and what is there but otherwise than wanted?

`plan` compares what is wanted with what was found, item by item. What differs is told with the way to mend it, and left
alone, because RabbitMQ changes no queue in place and redrive deletes nothing.

A setting that a policy gives counts as if it were an argument. Nothing here asks a broker; `provision` does.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from redrive.transports.plan import Difference, Item, Plan
from redrive.transports.rabbitmq.found import Found, FoundExchange, FoundQueue
from redrive.transports.rabbitmq.mend import replace_queue, set_policy, unset_policy
from redrive.transports.rabbitmq.topology import ANY_KEY, Binding, Exchange, Queue, Role, Topology

# What a queue of this role must not have, because it would lose or hide messages by it.
_LIMITS: Final = ("message-ttl", "max-length", "max-length-bytes", "expires")
FORBIDDEN: Final[dict[Role, tuple[str, ...]]] = {
    "work": ("expires",),
    "dead letters": _LIMITS,
    "delay": _LIMITS[1:],
}
_DELAYED_RETRY: Final = frozenset({"delayed-retry-type", "delayed-retry-min", "delayed-retry-max"})
_ARGUMENTS_ONLY: Final = (4, 3, 0)  # this version knows delayed retry by argument, and not yet by policy
_BY_POLICY: Final = _DELAYED_RETRY | {"dead-letter-exchange", "dead-letter-routing-key", "delivery-limit"}


def plan(found: Found, wanted: Topology) -> Plan:
    """How everything that is wanted stands."""
    exchanges = [_exchange(found, exchange, wanted) for exchange in wanted.exchanges]
    queues = [_queue(found, queue) for queue in wanted.queues]
    bindings = [_binding(found, binding) for binding in wanted.bindings]
    return Plan(
        about={"vhost": found.vhost},
        items=tuple(in_order(exchanges, queues, bindings)),
        unseen=found.unseen,
    )


def in_order(exchanges: Iterable[Item], queues: Iterable[Item], bindings: Iterable[Item]) -> Iterator[Item]:
    """Whatever catches dead letters comes before what they come from."""
    queues = list(queues)
    yield from exchanges
    yield from (item for item in queues if _role(item) == "dead letters")
    yield from bindings
    yield from (item for item in queues if _role(item) == "delay")
    yield from (item for item in queues if _role(item) == "work")


def _role(item: Item) -> Role | None:
    return item.wanted.role if isinstance(item.wanted, Queue) else None


# --- one thing each ---------------------------------------------------------------------------------------


def _queue(found: Found, wanted: Queue) -> Item:
    queue = found.queues.get(wanted.name)
    if queue is None:
        return Item(wanted=wanted, state="missing")
    if not queue.seen:
        return Item(wanted=wanted, state="unseen")
    differences = tuple(queue_differences(queue, wanted))
    return Item(
        wanted=wanted,
        state="differs" if differences else "same",
        differences=differences,
        mend=_mend_queue(found, queue, differences) if differences else "",
    )


def queue_differences(queue: FoundQueue, wanted: Queue) -> Iterator[Difference]:
    """What is otherwise about a queue."""
    if queue.type != wanted.type:
        yield Difference("type", queue.type, wanted.type)
    for what, is_, should in (
        ("durable", queue.durable, wanted.durable),
        ("auto-delete", queue.auto_delete, False),
        ("exclusive", queue.exclusive, False),
    ):
        if is_ != should:
            yield Difference(what, is_, should)
    for argument, value in wanted.arguments.items():
        name = argument.removeprefix("x-")
        if name != "queue-type" and queue.setting(name) != value and not _of_other_type(queue, name):
            yield Difference(name, queue.setting(name), value)
    for name in FORBIDDEN[wanted.role]:
        if queue.setting(name) is not None:
            yield Difference(name, queue.setting(name), None)


def _of_other_type(queue: FoundQueue, name: str) -> bool:
    """A classic queue counts no deliveries: that it is classic has been said."""
    return name == "delivery-limit" and queue.type != "quorum"


def _mend_queue(found: Found, queue: FoundQueue, differences: tuple[Difference, ...]) -> str:
    arguments = queue.arguments or {}
    arguments_only = found.version == _ARGUMENTS_ONLY and not found.is_embedded
    settable = _BY_POLICY - _DELAYED_RETRY if arguments_only else _BY_POLICY
    if all(each.what in settable and f"x-{each.what}" not in arguments for each in differences):
        return set_policy(found, queue, {each.what: each.wanted for each in differences})
    lifted = [each.what for each in differences if each.wanted is None and f"x-{each.what}" not in arguments]
    if len(lifted) == len(differences):
        return unset_policy(found, queue, *lifted)
    return replace_queue(queue.name)


def _exchange(found: Found, wanted: Exchange, topology: Topology) -> Item:
    exchange = found.exchanges.get(wanted.name)
    if exchange is None:
        return Item(wanted=wanted, state="missing")
    if exchange.type is None:
        return Item(wanted=wanted, state="unseen")
    differences = tuple(_exchange_differences(exchange, wanted, topology))
    mend = (
        "an exchange cannot be changed in place: set another dead_letter_exchange, or delete "
        f"'{wanted.name}' and apply the plan again"
    )
    return Item(
        wanted=wanted,
        state="differs" if differences else "same",
        differences=differences,
        mend=mend if differences else "",
    )


def _exchange_differences(
    exchange: FoundExchange, wanted: Exchange, topology: Topology
) -> Iterator[Difference]:
    if exchange.type != wanted.type and not _as_good(exchange, topology):
        yield Difference("type", exchange.type, wanted.type)
    for what, is_, should in (
        ("durable", exchange.durable, True),
        ("auto-delete", exchange.auto_delete, False),
        ("internal", exchange.internal, False),
    ):
        if is_ != should:
            yield Difference(what, is_, should)


def _as_good(exchange: FoundExchange, topology: Topology) -> bool:
    """Whether the wanted bindings lead all dead letters through an exchange of another type too."""
    keys = [binding.routing_key for binding in topology.bindings if binding.exchange == exchange.name]
    return exchange.type == "topic" or (exchange.type == "direct" and ANY_KEY not in keys)


def _binding(found: Found, wanted: Binding) -> Item:
    exchange = found.exchanges.get(wanted.exchange)
    if found.bindings is None:
        there = exchange is not None and wanted.destination in found.queues
        return Item(wanted=wanted, state="unseen" if there else "missing")
    # Another key is as good where the message gets there anyhow.
    reached = exchange is not None and wanted.destination in found.routes(wanted.exchange, wanted.routing_key)
    return Item(wanted=wanted, state="same" if reached else "missing")
