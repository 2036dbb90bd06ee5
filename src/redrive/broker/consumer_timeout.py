"""What happens to a delivery of a quorum queue that is not acknowledged in time?

It goes back to its queue without counting as a failure, and its consumer gets a `basic.cancel` and nothing more. The
consumer and its delivery tags stay known: an acknowledgement that comes later changes nothing in the queue, and when
there is one for every delivery that was taken away, the consumer gets messages again. A client that cannot be notified,
because it does not support `basic.cancel` from a server or has no such consumer any more, loses its channel instead.

Nothing is done when a message is delivered but to note the time. A queue with consumers that have a timeout is looked
at when the oldest delivery is due, or after one timeout if there is none: what is delivered in between is due later.
"""

from typing import TYPE_CHECKING, Final

from redrive.amqp import methods as m
from redrive.amqp.errors import ReplyCode, SoftError
from redrive.broker.queue import NEVER, Queue

if TYPE_CHECKING:
    from redrive.broker.channel import Channel, Verdict
    from redrive.broker.consumer import Consumer
    from redrive.broker.vhost import VHost

DEFAULT_TIMEOUT: Final = 1_800_000  # milliseconds, RabbitMQ's
_SHORTEST: Final = 50  # a queue is not looked at more often, whatever its timeout is


def timeout_of(queue: Queue, wanted: int | None = None) -> int | None:
    """How long a delivery may stay unsettled; `wanted` is what a consumer asks for. None: as long as it likes."""
    if not queue.is_quorum:
        return None
    return queue_timeout(queue) if wanted is None else wanted


def queue_timeout(queue: Queue) -> int:
    """What the arguments and the policy of a queue say. The management API shows it for classic queues, too."""
    own = queue.options.consumer_timeout
    return DEFAULT_TIMEOUT if own is None else own


def watch(queue: Queue, timeout: int | None, now: int) -> None:
    """From now on there may be deliveries with this timeout."""
    if timeout is not None:
        _look_at(queue, now + max(timeout, _SHORTEST))


def _look_at(queue: Queue, at: int) -> None:
    if at < queue.timeout_at:
        queue.timeout_at = at
        queue.ground.wake(queue, at)


def time_out(vhost: "VHost", queue: Queue, now: int) -> None:
    """Take back what is overdue, and be called again for what is not."""
    queue.timeout_at = NEVER
    for channel in _channels_with_deliveries(vhost, queue):
        channel.session.now = now
        _time_out_channel(channel, queue, now)
    for consumer in queue.consumers:
        watch(queue, consumer.timeout, now)


def _channels_with_deliveries(vhost: "VHost", queue: Queue) -> "list[Channel]":
    """The channels that may have unsettled deliveries of a queue."""
    if sum(consumer.unacked for consumer in queue.consumers) == queue.unacked:
        return list(dict.fromkeys(consumer.channel for consumer in queue.consumers if consumer.unacked))
    # Some were fetched, or belong to a consumer that is gone: nothing says on which channel they are.
    sessions = [session for session in vhost.broker.sessions if session.vhost is vhost]
    return [channel for session in sessions for channel in session.channels.values()]


def _time_out_channel(channel: "Channel", queue: Queue, now: int) -> None:
    default = timeout_of(queue)
    overdue: dict[Consumer | None, list[int]] = {}
    for tag, (_, source, consumer, delivered_at) in channel.unacked.items():
        timeout = consumer.timeout if consumer is not None else default
        if source is not queue or timeout is None:
            continue
        if delivered_at + timeout <= now:
            overdue.setdefault(consumer, []).append(tag)
        else:
            _look_at(queue, max(delivered_at + timeout, now + 1))
    for consumer, tags in overdue.items():
        if channel.is_open:
            _release(channel, consumer, tags)


def _release(channel: "Channel", consumer: "Consumer | None", tags: list[int]) -> None:
    session = channel.session
    session.broker.log.warning(
        "consumer timeout, deliveries returned consumer=%s channel=%d client=%s deliveries=%d",
        consumer.tag if consumer is not None else "(basic.get)",
        channel.number,
        session.peer,
        len(tags),
    )
    channel.timed_out.update(dict.fromkeys(tags, consumer))
    if consumer is not None:
        consumer.timed_out.update(tags)
    channel.settle_all(tags, "requeue")
    if consumer is not None and session.wants_cancels and channel.consumers.get(consumer.tag) is consumer:
        consumer.queue.seat(consumer)
        session.send(m.BasicCancel(consumer.tag, True), channel.number)
        return
    text = (
        f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: -1 ms. "
        "This timeout value can be configured, see consumers doc guide to learn more"
    )
    session.close_channel(channel.number, SoftError(ReplyCode.PRECONDITION_FAILED, text))


def settle_late(channel: "Channel", tag: int, *, multiple: bool, verdict: "Verdict") -> bool:
    """A client settles deliveries that were taken away from it; whether `tag` is one of them."""
    known = tag in channel.timed_out
    late = [other for other in channel.timed_out if other <= tag or not tag] if multiple else [tag] * known
    for each in late:
        consumer = channel.timed_out.pop(each)
        # As in RabbitMQ, a consumer that wants such a delivery back in the queue stays without messages.
        if consumer is not None and verdict not in {"requeue", "fail"}:
            consumer.timed_out.discard(each)
            if not consumer.timed_out and consumer in consumer.queue.consumers:
                consumer.queue.seat(consumer)
                channel.session.broker.mark(consumer.queue)
    return known
