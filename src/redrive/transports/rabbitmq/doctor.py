"""What would be lost on this broker, why, and how is it mended?

Pure rules over what was found, one function each, for each source. The rules:

======================  ==========================================================================================
queue-missing           the work queue does not exist
queue-fleeting          the work queue does not outlive a restart, its connection or its consumers
no-dead-letter-exchange the work queue has no dead-letter exchange, by argument or by policy
drops-overflow          … and throws its oldest messages out when it is full
drops-expired           … and its messages expire
exchange-missing        the dead-letter exchange does not exist
exchange-unbound        no queue is reached from it, whatever the key
key-misses              some queue is, but not with the routing key that dead letters have
dead-letters-elsewhere  the dead letters reach a queue, but not the one that redrive looks into
dlq-missing             the dead-letter queue does not exist
dlq-fleeting            it does not outlive a restart, its connection or its consumers
dlq-expires             its messages, or the queue itself, expire
dlq-limited             it throws its oldest letters out when it is full, or takes no more
dlq-cycle               it dead-letters back to the work queue
dlq-waiting             letters lie there and nobody consumes them (information)
dlq-uses-up             it has a delivery limit: letters that are looked at or given back are dropped
delivery-limit-low      the broker gives up before we do
delivery-limit-none     nothing ends a message that kills its consumers
delay-missing           queues of delays are not there: no delayed give-back
delay-wrong             one is there, but does not bring its messages back in time
permission              the user may not do what consuming, dead-lettering or provisioning needs
retry-ladder-drops      any queue whose messages come back to it through an expiring queue, and which has a limit
delayed-retry-ignored   a queue asks for delayed retry, and the broker does not do it
delayed-retry-hides     a queue delays what is only looked at or given back
version-unknown         the broker is newer than those that redrive knows (information)
alarm                   a node is short of memory or disk and takes no messages
======================  ==========================================================================================

Severity: an `error` loses messages in the ordinary run of things, a `warning` when something else happens as well (a
restart, a crash, a full queue) or keeps redrive from working, `info` is only told. A rule is silent about what could
not be seen. Nothing here asks a broker or changes anything.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from redrive.transports.base import Source
from redrive.transports.finding import PROVISION, Diagnosis, Finding, Severity
from redrive.transports.rabbitmq.delivery_counts import NEWEST
from redrive.transports.rabbitmq.doctor_retry import delayed_retry, ladders
from redrive.transports.rabbitmq.doctor_way import dead_letter_queue, fleeting, milliseconds, quoted, ways
from redrive.transports.rabbitmq.found import Access, Found, FoundQueue
from redrive.transports.rabbitmq.mend import allow, replace_queue, set_policy, unset_policy
from redrive.transports.rabbitmq.plan import queue_differences
from redrive.transports.rabbitmq.rights import RIGHTS
from redrive.transports.rabbitmq.topology import Queue, delivery_limit, wanted


def diagnose(found: Found, sources: Sequence[Source]) -> Diagnosis:
    """Every fault that can be seen."""
    told = [finding for source in sources for rule in RULES for finding in rule(found, source)]
    told += [*ladders(found), *_version(found), *_alarms(found)]
    return Diagnosis.of(told, found.unseen)


# --- the work queue ---------------------------------------------------------------------------------------


def _work_queue(found: Found, source: Source) -> Iterator[Finding]:
    subject = f"queue {source.name}"
    queue = found.queues.get(source.name)
    if queue is None:
        yield Finding(
            rule="queue-missing",
            severity="error",
            subject=subject,
            text=f"the work queue '{source.name}' does not exist",
            loss="The broker drops messages for it, unless they are published as mandatory.",
            mend=PROVISION,
        )
    elif (why := fleeting(queue)) is not None:
        yield Finding(
            rule="queue-fleeting",
            severity="warning",
            subject=subject,
            text=f"the work queue '{source.name}' is {why[0]}",
            loss=f"All messages in it are lost when {why[1]}.",
            mend=unset_policy(found, queue, "expires")
            if _expires_by_policy(queue)
            else replace_queue(queue.name),
        )


def _expires_by_policy(queue: FoundQueue) -> bool:
    return queue.durable and "expires" in queue.definition and "x-expires" not in (queue.arguments or {})


def _no_exchange(found: Found, source: Source) -> Iterator[Finding]:
    queue = found.queues.get(source.name)
    if queue is None or not queue.seen or queue.dlx is not None:
        return
    subject = f"queue {source.name}"
    mend = set_policy(found, queue, _dead_letters(source))
    rejects = source.dead_letter == "native"
    yield Finding(
        rule="no-dead-letter-exchange",
        severity="error" if rejects else "warning",
        subject=subject,
        text=f"'{source.name}' has no dead-letter exchange, neither by argument nor by policy",
        loss=(
            'With dead_letter = "native" every dead letter is LOST: the broker drops rejected messages.'
            if rejects
            else (
                "Messages that the broker itself removes are dropped (delivery limit, rejects of "
                "other consumers)."
            )
        ),
        mend=mend,
    )
    if queue.drops_head:
        yield Finding(
            rule="drops-overflow",
            severity="error",
            subject=subject,
            text=f"'{source.name}' has a length limit, drops its oldest messages and has no dead-letter exchange",
            loss="When it is full, each new message drops the oldest one.",
            mend=mend,
        )
    if (after := queue.number("message-ttl")) is not None:
        yield Finding(
            rule="drops-expired",
            severity="error",
            subject=subject,
            text=f"messages in '{source.name}' expire after {milliseconds(after)}; it has no dead-letter exchange",
            loss="Messages that are not consumed in time are dropped.",
            mend=mend,
        )


def _dead_letters(source: Source) -> dict[str, object]:
    settings: dict[str, object] = {"dead-letter-exchange": source.dlx}
    if source.dead_letter_routing_key is not None:
        settings["dead-letter-routing-key"] = source.dead_letter_routing_key
    return settings


# --- limits and delays ---------------------------------------------------------------------------------------


def _limit(found: Found, source: Source) -> Iterator[Finding]:
    queue = found.queues.get(source.name)
    if queue is None or not queue.seen or queue.type != "quorum":
        return
    limit = found.counting.limit_in_force(queue.number("delivery-limit"))
    enough = delivery_limit(source.max_deliveries)
    by_argument = "x-delivery-limit" in (queue.arguments or {})
    mend = replace_queue(queue.name) if by_argument else set_policy(found, queue, {"delivery-limit": enough})
    subject = f"queue {source.name}"
    if limit is None:
        yield Finding(
            rule="delivery-limit-none",
            severity="warning",
            subject=subject,
            text=f"the quorum queue '{source.name}' has no delivery limit",
            loss=(
                "No messages are lost, but a message that crashes its consumers is redelivered "
                "forever and blocks the messages behind it."
            ),
            mend=mend,
        )
    elif limit < source.max_deliveries:
        to = "dropped" if queue.dlx is None else "dead-lettered by the broker, without reason and error"
        yield Finding(
            rule="delivery-limit-low",
            severity="error" if queue.dlx is None else "warning",
            subject=subject,
            text=(
                f"the delivery limit of the queue is {limit}, below max_deliveries = {source.max_deliveries}"
            ),
            loss=f"A failing message is {to}, before all of its deliveries were used.",
            mend=f"set max_deliveries to {limit} or less, or: {mend}",
        )


def _delays(found: Found, source: Source) -> Iterator[Finding]:
    delays = [queue for queue in wanted([source]).queues if queue.role == "delay"]
    missing = [queue.name for queue in delays if queue.name not in found.queues]
    if missing:
        yield Finding(
            rule="delay-missing",
            severity="warning",
            subject=f"queue {source.name}",
            text=f"{len(missing)} of {len(delays)} delay queues are missing: {quoted(missing)}",
            loss="No messages are lost, but deliveries cannot be requeued with a delay.",
            mend=PROVISION,
        )
    for queue in delays:
        there = found.queues.get(queue.name)
        if there is not None and there.seen:
            yield from _wrong_delay(source, there, queue)


def _wrong_delay(source: Source, queue: FoundQueue, should: Queue) -> Iterator[Finding]:
    differences = list(queue_differences(queue, should))
    if not differences:
        return
    told = "; ".join(f"{each.what} is {each.found}, expected {each.wanted}" for each in differences)
    back = queue.dlx == "" and queue.dlx_key == source.name
    yield Finding(
        rule="delay-wrong",
        severity="warning" if back else "error",
        subject=f"queue {queue.name}",
        text=f"the delay queue '{queue.name}' is configured differently: {told}",
        loss=(
            "Messages requeued with a delay may be lost, or be delivered at the wrong time."
            if back
            else f"Messages requeued with a delay do not return to '{source.name}'."
        ),
        mend=replace_queue(queue.name),
    )


# --- the user, the nodes ---------------------------------------------------------------------------------------


def _permission(found: Found, source: Source) -> Iterator[Finding]:
    topology = wanted([source])
    missing = [each.name for each in topology.queues if each.name not in found.queues]
    missing += [each.name for each in topology.exchanges if each.name not in found.exchanges]
    for right in RIGHTS:
        name = right.name(source)
        if right.is_needed(source) and _is_refused(found, right.access, name):
            yield _no_permission(
                found, right.access, _named(right.resource, name), name, right.severity, right.without
            )
    for name in missing:
        if _is_refused(found, "configure", name):
            loss = "No messages are lost, but redrive provision cannot create it."
            yield _no_permission(found, "configure", f"'{name}'", name, "warning", loss)


def _is_refused(found: Found, access: Access, name: str) -> bool:
    """Whether the user's permissions, or the broker's answer to a look at it, exclude this."""
    if found.permissions is not None:
        return found.permissions.allow(access, name) is False
    return name in found.refused


def _no_permission(
    found: Found, access: Access, what: str, name: str, severity: Severity, loss: str
) -> Finding:
    return Finding(
        rule="permission",
        severity=severity,
        subject=f"user {found.user}",
        text=f"the user '{found.user}' has no {access} permission on {what}",
        loss=loss,
        mend=allow(found, access, name),
    )


def _named(what: str, name: str) -> str:
    return f"{what} '{name}'" if name else what


def _version(found: Found) -> Iterator[Finding]:
    if found.version is None or found.version[:2] <= NEWEST.since:
        return
    version, known = (".".join(map(str, each)) for each in (found.version, NEWEST.since))
    yield Finding(
        rule="version-unknown",
        severity="info",
        subject=f"RabbitMQ {version}",
        text=f"RabbitMQ {version} is newer than {known}, the newest version that redrive is tested with",
        loss=f"No problem is known; redrive treats it like {known}.",
        mend="check for a newer version of redrive",
    )


def _alarms(found: Found) -> Iterator[Finding]:
    for alarm in found.alarms or ():
        yield Finding(
            rule="alarm",
            severity="warning",
            subject=f"node {alarm.partition(' ')[0]}",
            text=f"{alarm}: the broker blocks publishers",
            loss=(
                "No messages are lost, but no dead letter can be written, so consuming stops at the "
                "first message that fails."
            ),
            mend="free memory or disk on that node, or raise its limit",
        )


RULES: Final[tuple[Callable[[Found, Source], Iterator[Finding]], ...]] = (
    _work_queue,
    _no_exchange,
    ways,
    dead_letter_queue,
    _limit,
    _delays,
    delayed_retry,
    _permission,
)
