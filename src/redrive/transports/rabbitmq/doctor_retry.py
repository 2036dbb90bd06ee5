"""The rules of `redrive doctor` about messages that are retried: retry ladders of others, and delayed retry.

A retry ladder is a work queue whose rejected messages wait in a queue with a time to live and come back from there.
RabbitMQ drops a message that comes back to a queue without having been rejected on the way; so a death by the delivery
limit ends in a silent loss. From RabbitMQ 4.3 on, the limit is compared with all failures on all rounds, so every
message that fails often enough ends this way. These rules look at every queue of the virtual host.
"""

from collections.abc import Iterator

from redrive.transports.base import Source
from redrive.transports.finding import Finding
from redrive.transports.rabbitmq.found import Found, FoundQueue
from redrive.transports.rabbitmq.mend import lift_delivery_limit, replace_queue, set_policy, unset_policy
from redrive.transports.rabbitmq.topology import DELAYED_RETRY_SINCE

_DELAYED_RETRY = ("delayed-retry-type", "delayed-retry-min", "delayed-retry-max")
_DELAYS_RETURNS = ("all", "returned")


# --- ladders ----------------------------------------------------------------------------------------------


def ladders(found: Found) -> Iterator[Finding]:
    """Does a message that is retried by way of an expiring queue vanish at the delivery limit?"""
    counting = found.counting
    if found.bindings is None:
        return
    for queue in found.queues.values():
        if queue.type != "quorum" or not queue.seen or queue.dlx is None:
            continue
        limit = counting.limit_in_force(queue.number("delivery-limit"))
        if limit is None or (waits := _way_round(found, queue)) is None:
            continue
        through = " and ".join(f"'{name}'" for name in waits)
        yield Finding(
            rule="retry-ladder-drops",
            severity="error" if counting.limits_carried else "warning",
            subject=f"queue {queue.name}",
            text=(
                f"messages of '{queue.name}' return to it through {through}, and its delivery limit is "
                f"{limit}"
            ),
            loss=(
                f"The broker silently drops a message that has failed more than {limit} times in all "
                "rounds together: RabbitMQ treats its next round as a dead-letter cycle."
                if counting.limits_carried
                else f"The broker silently drops a message that is returned more than {limit} times in "
                "one round: RabbitMQ treats the round as a dead-letter cycle."
            ),
            mend=lift_delivery_limit(found, queue),
        )


def _way_round(found: Found, start: FoundQueue) -> list[str] | None:
    """The expiring queues through which a dead letter of this queue comes back to it, if there is such a way."""
    ahead: list[tuple[FoundQueue, str, tuple[str, ...]]] = [
        (start, key, ()) for key in _keys(start, found.keys_into(start.name))
    ]
    been: set[tuple[str, str]] = set()
    while ahead:
        queue, key, through = ahead.pop()
        for name in sorted(found.routes(queue.dlx or "", key)):
            if name == start.name and through:
                return list(through)
            following = found.queues.get(name)
            if following is None or following.dlx is None or (name, key) in been:
                continue
            been.add((name, key))
            if following.number("message-ttl") is not None:
                ahead += [(following, each, (*through, name)) for each in _keys(following, frozenset({key}))]
    return None


def _keys(queue: FoundQueue, carried: frozenset[str]) -> frozenset[str]:
    """The routing keys that the dead letters of a queue may have."""
    return carried if queue.dlx_key is None else frozenset({queue.dlx_key})


# --- delayed retry ----------------------------------------------------------------------------------------


def delayed_retry(found: Found, source: Source) -> Iterator[Finding]:
    """Is a delayed retry that was asked for in force, and does it hide messages that were only looked at?"""
    for name, is_work in ((source.name, True), (source.dlq, False)):
        queue = found.queues.get(name)
        if queue is None or not queue.seen or queue.setting("delayed-retry-type") in (None, "disabled"):
            continue
        yield from _not_in_force(found, queue) if _is_ignored(found, queue) else _hides(found, queue, is_work)


def _is_ignored(found: Found, queue: FoundQueue) -> bool:
    known = found.counting.since >= DELAYED_RETRY_SINCE
    return not known or queue.type != "quorum" or not queue.number("delayed-retry-min")


def _not_in_force(found: Found, queue: FoundQueue) -> Iterator[Finding]:
    if queue.type != "quorum":
        why = "it is not a quorum queue"
    elif found.counting.since < DELAYED_RETRY_SINCE:
        why = "this broker is older than RabbitMQ 4.3"
    else:
        why = "delayed-retry-min is missing"
    yield Finding(
        rule="delayed-retry-ignored",
        severity="warning",
        subject=f"queue {queue.name}",
        text=(
            f"'{queue.name}' is configured for delayed retry ({queue.setting('delayed-retry-type')}), "
            f"but {why}"
        ),
        loss="No messages are lost, but a failed message is redelivered immediately.",
        mend="set delayed-retry-min in milliseconds, by argument or by policy"
        if why.startswith("delayed")
        else (
            "remove it and use redrive's delay queues, which work with every RabbitMQ version and queue type"
        ),
    )


def _hides(found: Found, queue: FoundQueue, is_work: bool) -> Iterator[Finding]:  # noqa: FBT001
    if queue.setting("delayed-retry-type") not in _DELAYS_RETURNS:
        return
    what = "a message that a stopping consumer releases" if is_work else "a dead letter that was inspected"
    by_argument = "x-delayed-retry-type" in (queue.arguments or {})
    yield Finding(
        rule="delayed-retry-hides",
        severity="warning",
        subject=f"queue {queue.name}",
        text=f"'{queue.name}' delays all returned messages, not only failed ones",
        loss=(
            f"No messages are lost, but {what} cannot be delivered for at least "
            f"{queue.number('delayed-retry-min')} ms."
        ),
        mend=replace_queue(queue.name)
        if by_argument
        else set_policy(found, queue, {"delayed-retry-type": "failed"})
        if is_work
        else unset_policy(found, queue, *_DELAYED_RETRY),
    )
