"""Do dead letters get where they should, and do they stay there?

The rules of `doctor` about the exchange, the keys and the queue of dead letters. They look at both ways: that of the
broker, which follows the work queue's arguments and policies, and ours, which follows the source's settings.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from redrive.rules import format_duration
from redrive.transports.base import Source
from redrive.transports.finding import PROVISION, Finding
from redrive.transports.rabbitmq.found import Found, FoundQueue
from redrive.transports.rabbitmq.mend import bind, lift_delivery_limit, replace_queue, unset_policy
from redrive.transports.rabbitmq.topology import ANY_KEY

# --- from the work queue to the dead letters ------------------------------------------------------------


def ways(found: Found, source: Source) -> Iterator[Finding]:
    """Do dead letters get where they should: those that the broker moves, and those that we write?"""
    queue = found.queues.get(source.name)
    both: list[tuple[str, str | None]] = []  # exchange, fixed key
    if queue is not None and queue.dlx is not None:
        both.append((queue.dlx, queue.dlx_key))
    # A queue without one is told by another rule; what it should have is looked at all the same.
    if not both or source.dead_letter == "publish":
        both.append((source.dlx, source.dead_letter_routing_key))
    for exchange, key in dict.fromkeys(both):
        yield from _way(found, source, exchange, key)


def _way(found: Found, source: Source, exchange: str, fixed: str | None) -> Iterator[Finding]:
    subject = f"exchange {exchange or '(default)'}"
    if not found.has_exchange(exchange):
        # Ours are not lost: they are published so that the broker has to say where they went.
        lost = (
            "every dead letter"
            if source.dead_letter == "native"
            else "every message that the broker itself dead-letters"
        )
        yield Finding(
            rule="exchange-missing",
            severity="error",
            subject=subject,
            text=f"the dead-letter exchange '{exchange}' of '{source.name}' does not exist",
            loss=f"The broker drops silently: {lost} is LOST.",
            mend=PROVISION if exchange == source.dlx else f"{PROVISION}, with {_set_exchange(exchange)}",
        )
        return
    if found.bindings is None:
        return
    keys = found.keys_into(source.name) if fixed is None else frozenset({fixed})
    reached = {key: found.routes(exchange, key) for key in sorted(keys)}
    everything: frozenset[str] = frozenset().union(*reached.values())
    missing = [key for key, queues in reached.items() if not queues]
    if not everything and exchange and not any(found.outgoing(exchange)):
        yield Finding(
            rule="exchange-unbound",
            severity="error",
            subject=subject,
            text=f"no queue is bound to the dead-letter exchange '{exchange}' of '{source.name}'",
            loss="The broker drops every dead letter that goes through it.",
            mend=PROVISION if exchange == source.dlx else _join(found, exchange, source, keys),
        )
    elif missing:
        yield Finding(
            rule="key-misses",
            severity="warning" if everything else "error",
            subject=subject,
            text=f"dead letters of '{source.name}' with the key {quoted(missing)} reach no queue from '{exchange}'",
            loss="The broker drops them.",
            mend=_join(found, exchange, source, missing),
        )
    if everything and source.dlq not in everything:
        yield Finding(
            rule="dead-letters-elsewhere",
            severity="warning",
            subject=f"queue {source.dlq}",
            text=f"dead letters of '{source.name}' go through '{exchange}' to "
            f"{quoted(sorted(everything))}, but redrive collects from '{source.dlq}'",
            loss="No messages are lost, but redrive does not collect them.",
            mend=f'set dead_letter_queue = "{min(everything)}" for the source, or: '
            + _join(found, exchange, source, keys),
        )


def _join(found: Found, exchange: str, source: Source, keys: Sequence[str] | frozenset[str]) -> str:
    if exchange == "":
        return f"declare a queue with that name, or {_set_exchange(source.dlx)}"
    kind = found.exchanges[exchange].type
    if kind in {"fanout", "topic"}:
        return bind(found, exchange, source.dlq, ANY_KEY)
    return "; ".join(bind(found, exchange, source.dlq, key) for key in sorted(keys))


def _set_exchange(name: str) -> str:
    return f'dead_letter_exchange = "{name}" set for the source'


# --- where dead letters lie --------------------------------------------------------------------------------


def dead_letter_queue(found: Found, source: Source) -> Iterator[Finding]:
    """Is there a queue for dead letters, and does it keep them?"""
    subject = f"queue {source.dlq}"
    dlq = found.queues.get(source.dlq)
    if dlq is None:
        yield Finding(
            rule="dlq-missing",
            severity="error",
            subject=subject,
            text=f"the dead-letter queue '{source.dlq}' of '{source.name}' does not exist",
            loss=(
                "Messages that the broker dead-letters are dropped; the consumer cannot publish dead "
                "letters and stops at the first message that fails."
            ),
            mend=PROVISION,
        )
        return
    if dlq.messages and dlq.consumers == 0:
        yield Finding(
            rule="dlq-waiting",
            severity="info",
            subject=subject,
            text=f"{dlq.messages} dead letter{'s are' if dlq.messages > 1 else ' is'} waiting in "
            f"'{dlq.name}', which has no consumer",
            loss="No messages are lost; the dead letters stay in the queue.",
            mend=f"start redrive serve to collect '{dlq.name}'",
        )
    if dlq.seen:
        yield from _fleeting_letters(found, dlq)
        yield from _limited_letters(found, dlq)
        yield from _used_up_letters(found, dlq)
        yield from _cycle(found, source, dlq)


def _fleeting_letters(found: Found, dlq: FoundQueue) -> Iterator[Finding]:
    subject = f"queue {dlq.name}"
    why = fleeting(dlq)
    by_time = why is not None and dlq.durable and not dlq.auto_delete and not dlq.exclusive
    if why is not None and not by_time:
        yield Finding(
            rule="dlq-fleeting",
            severity="error",
            subject=subject,
            text=f"the dead-letter queue '{dlq.name}' is {why[0]}",
            loss=f"All dead letters in it are lost when {why[1]}.",
            mend=replace_queue(dlq.name),
        )
    if why is not None and by_time:
        yield Finding(
            rule="dlq-expires",
            severity="error",
            subject=subject,
            text=f"the dead-letter queue '{dlq.name}' is {why[0]}",
            loss=f"The queue and all dead letters in it are lost when {why[1]}.",
            mend=_lift(found, dlq, "expires"),
        )
    if (after := dlq.number("message-ttl")) is not None:
        onward = f"are moved to the exchange '{dlq.dlx}'" if dlq.dlx is not None else "are lost"
        yield Finding(
            rule="dlq-expires",
            severity="error",
            subject=subject,
            text=f"dead letters in '{dlq.name}' expire after {milliseconds(after)}",
            loss=f"Dead letters {onward} if they are not collected within {milliseconds(after)}.",
            mend=_lift(found, dlq, "message-ttl"),
        )


def _limited_letters(found: Found, dlq: FoundQueue) -> Iterator[Finding]:
    limits = [name for name in ("max-length", "max-length-bytes") if dlq.number(name) is not None]
    if not limits:
        return
    told = ", ".join(f"{name} {dlq.number(name)}" for name in limits)
    overflow = dlq.setting("overflow") or "drop-head"
    yield Finding(
        rule="dlq-limited",
        severity="error" if dlq.drops_head else "warning",
        subject=f"queue {dlq.name}",
        text=f"the dead-letter queue '{dlq.name}' has a limit: {told}, overflow {overflow}",
        loss=(
            "When it is full, each new dead letter drops the oldest one."
            if dlq.drops_head
            else (
                "When it is full, messages that the broker dead-letters are dropped, and the consumer "
                "cannot publish dead letters."
            )
        ),
        mend=_lift(found, dlq, *limits),
    )


def _used_up_letters(found: Found, dlq: FoundQueue) -> Iterator[Finding]:
    """A delivery limit drops letters that are looked at, given back, or that have failed often enough before."""
    counting = found.counting
    limit = counting.limit_in_force(dlq.number("delivery-limit"))
    if dlq.type != "quorum" or limit is None:
        return
    goes = "dropped" if dlq.dlx is None else f"moved to the exchange '{dlq.dlx}'"
    by_itself = dlq.number("delivery-limit") is None
    yield Finding(
        rule="dlq-uses-up",
        severity="error" if dlq.dlx is None else "warning",
        subject=f"queue {dlq.name}",
        text=f"the dead-letter queue '{dlq.name}' has a delivery limit of {limit}"
        + (", RabbitMQ's own" if by_itself else ""),
        loss=(
            f"A dead letter that was inspected or released more than {limit} times is {goes}."
            if counting.looking_counts
            else f"A dead letter that has failed more than {limit} times, including in its work queue, is "
            f"{goes} when it is first inspected or released."
        ),
        mend=lift_delivery_limit(found, dlq),
    )


def _cycle(found: Found, source: Source, dlq: FoundQueue) -> Iterator[Finding]:
    if dlq.dlx is None or found.bindings is None:
        return
    keys = {source.name, *found.keys_into(source.name)} if dlq.dlx_key is None else {dlq.dlx_key}
    if any(source.name in found.routes(dlq.dlx, key) for key in keys):
        yield Finding(
            rule="dlq-cycle",
            severity="error",
            subject=f"queue {dlq.name}",
            text=f"the dead-letter queue '{dlq.name}' dead-letters back to '{source.name}'",
            loss=(
                "Messages that are rejected or expire there loop forever, or the broker drops them as "
                "a cycle."
            ),
            mend=_lift(found, dlq, "dead-letter-exchange", "dead-letter-routing-key"),
        )


def _lift(found: Found, queue: FoundQueue, *names: str) -> str:
    """By the policy that sets it, or else by another queue."""
    by_argument = any(f"x-{name}" in (queue.arguments or {}) for name in names)
    return replace_queue(queue.name) if by_argument else unset_policy(found, queue, *names)


# --- words for both files of rules --------------------------------------------------------------


def fleeting(queue: FoundQueue) -> tuple[str, str] | None:
    """How a queue is not there to stay, and when it goes."""
    if not queue.seen:
        return None
    if queue.exclusive:
        return "exclusive", "the connection that declared it closes"
    if not queue.durable:
        return "not durable", "the broker restarts"
    if queue.auto_delete:
        return "deleted with its last consumer (auto-delete)", "its last consumer stops"
    if (after := queue.number("expires")) is not None:
        return f"deleted when it is unused for {milliseconds(after)}", "it has no consumer for that long"
    return None


def quoted(names: Sequence[str]) -> str:
    """The first few of these names."""
    few = ", ".join(f"'{name}'" for name in names[:3])
    return few if len(names) <= 3 else f"{few} and {len(names) - 3} more"


def milliseconds(number: int) -> str:
    """A number of milliseconds as a duration."""
    try:
        return format_duration(timedelta(milliseconds=number))
    except OverflowError:
        return f"{number} ms"
