"""What happens on one channel?

A channel publishes, consumes and settles. The hot verbs (`publish`, `ack_run`) work on octets; every other method
comes decoded and is found in `methods`. Whatever a client does wrong is raised as an error of `amqp.errors`; the
session answers it and the channel is closed by `close`, which gives back what was not settled.
"""

from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Literal

from redrive.amqp import methods as m
from redrive.amqp.codec import encode
from redrive.amqp.errors import ReplyCode, SoftError
from redrive.amqp.frames import content_frames, method_frame
from redrive.amqp.hot import ack_frame, nack_frame, parse_ack, parse_ack_run, parse_nack, parse_reject
from redrive.amqp.properties import read_headers, replace_fields
from redrive.broker.consumer import Consumer
from redrive.broker.consumer_timeout import settle_late
from redrive.broker.dead_letter import Reason
from redrive.broker.message import ENTRY_COST, PROPERTIES_AT, Entry, Message
from redrive.broker.publishing import HeaderFacts, Route
from redrive.broker.queue import Queue
from redrive.broker.vhost import REPLY_TO

if TYPE_CHECKING:
    from redrive.broker.session import Session

Unacked = tuple[Entry, Queue, Consumer | None, int]  # the last is the time of the delivery

# How a delivery ends. Back into the queue: `requeue` (basic.nack, basic.recover) or `fail` (basic.reject, channel or
# connection lost). Dead-lettered: `discard` (basic.nack) or `reject` (basic.reject). `fail` and `reject` are failures,
# which is what the delivery limit of a quorum queue counts; the others are not.
Verdict = Literal["ack", "requeue", "fail", "discard", "reject"]


def _ack(payload: bytes) -> tuple[int, bool, Verdict]:
    return *parse_ack(payload), "ack"


def _nack(payload: bytes) -> tuple[int, bool, Verdict]:
    tag, multiple, requeue = parse_nack(payload)
    return tag, multiple, "requeue" if requeue else "discard"


def _reject(payload: bytes) -> tuple[int, bool, Verdict]:
    tag, requeue = parse_reject(payload)
    return tag, False, "fail" if requeue else "reject"


# The first octets of the methods that settle → (tag, multiple, verdict).
SETTLING: Final[dict[bytes, Callable[[bytes], tuple[int, bool, Verdict]]]] = {
    b"\x00\x3c\x00\x50": _ack,
    b"\x00\x3c\x00\x78": _nack,
    b"\x00\x3c\x00\x5a": _reject,
}
_NACK_BITS: Final = 3  # as RabbitMQ sets them: multiple (all before it are answered by then) and requeue


class Channel:
    """One channel of a session."""

    def __init__(self, session: "Session", number: int) -> None:
        self.session = session
        self.number = number
        self.is_open = True
        session.broker.churn["channel_created"] += 1
        self.next_tag = 1
        self.last_queue: str | None = None  # what an empty queue name means
        self.unacked: dict[int, Unacked] = {}  # by delivery tag, in order
        self.timed_out: dict[int, Consumer | None] = {}  # by delivery tag: taken away
        self.consumers: dict[str, Consumer] = {}
        self.consumer_prefetch = 0  # of each consumer to come; 0: no limit
        self.reply_consumer: str | None = None  # the tag of a direct reply-to consumer
        # publisher confirms
        self.confirms = False
        self.next_confirm = 1
        self.unconfirmed: deque[tuple[int, int, bool]] = deque()  # tag, place in the journal, accepted
        # transactions
        self.transaction: Transaction | None = None
        self._facts: HeaderFacts | None = None
        self._last_header: bytes | None = None

    # --- publishing ----------------------------------------------------------------------------------------

    def publish(self, payload: bytes, header: bytes, body: bytes) -> None:
        """A message has come, whole: the payloads of its method and header frames, and its body."""
        session = self.session
        route = session.vhost.routes.get(payload)
        if route is None or not session.may_take(route):
            route = session.find_route(payload)
        if header is not self._last_header and header != self._last_header:
            self._facts = HeaderFacts(session, header)
            self._last_header = header
        facts = self._facts
        assert facts is not None  # noqa: S101  set with the last header
        if facts.plain and route.fixed:
            queues = route.queues
            message = Message(
                route.exchange,
                route.keys,
                route.route,
                facts.header,
                body,
                facts.persistent,
                len(body),
                facts.meta,
            )
        else:
            queues, message = self._route_slowly(route, facts, body)
        if self.transaction is not None:
            self.transaction.publishes.append((queues, message, facts, route.mandatory))
            return
        accepted = self.enqueue(queues, message, facts, mandatory=route.mandatory)
        if self.confirms:
            self.unconfirmed.append((self.next_confirm, session.broker.keep.position(message), accepted))
            self.next_confirm += 1
            session.broker.confirming.add(self)

    def _route_slowly(self, route: Route, facts: HeaderFacts, body: bytes) -> tuple[list[Queue], Message]:
        """With keys of its own (CC, BCC), with headers that matter, or with an answer to come straight back."""
        session = self.session
        raw = facts.header[PROPERTIES_AT:]
        keys = (*route.keys, *facts.carbon_keys, *facts.blind_keys)
        header = facts.header
        if facts.reply_to:
            if self.reply_consumer is None:
                raise SoftError(ReplyCode.PRECONDITION_FAILED, "fast reply consumer does not exist", 60, 40)
            name = f"{REPLY_TO}.{session.broker.reply_name(self)}"
            header = header[:PROPERTIES_AT] + replace_fields(raw, reply_to=name)
        queues = session.vhost.targets(route.exchange, keys, lambda: read_headers(raw))
        # A route that is told to consumers and dead letters names CC keys, never BCC ones.
        persistent, meta = facts.persistent, facts.meta
        return queues, Message(route.exchange, keys, route.route, header, body, persistent, len(body), meta)

    def enqueue(self, queues: list[Queue], message: Message, facts: HeaderFacts, *, mandatory: bool) -> bool:
        """Put a message into its queues; False if one of them refused it."""
        session = self.session
        broker, vhost, now = session.broker, session.vhost, session.now
        accepted = True
        count = len(queues)
        if count > 1 and sum(queue.keeps(message) for queue in queues) > 1:
            broker.keep.share(message)
        for queue in queues:
            if queue.is_deleted:
                continue
            accepted = vhost.enqueue(queue, message, now, facts.expiration, facts.priority) and accepted
        vhost.published += 1
        broker.cost += message.size + ENTRY_COST * count
        if not count and not self._reply_directly(message):
            vhost.unrouted[mandatory] += 1
            if mandatory:
                self._return(message)
        return accepted

    def _reply_directly(self, message: Message) -> bool:
        key = message.keys[0]
        if message.exchange or not key.startswith(REPLY_TO + "."):
            return False
        target = self.session.broker.reply_channel(key[len(REPLY_TO) + 1 :])
        if target is None or target.reply_consumer is None:
            return False
        deliver = m.BasicDeliver(target.reply_consumer, target.next_tag, False, "", key)
        target.next_tag += 1
        target.send_content(deliver, message)
        return True

    def _return(self, message: Message) -> None:
        self.send_content(m.BasicReturn(312, "NO_ROUTE", message.exchange, message.keys[0]), message)

    def send_content(self, method: m.Method, message: Message, header: bytes | None = None) -> None:
        """A method with a message behind it, under its own header or another."""
        session = self.session
        body = message.body if message.body is not None else session.broker.body_of(message)
        properties = (header or message.header)[PROPERTIES_AT:]
        session.write(method_frame(self.number, encode(method)))
        session.write(content_frames(self.number, properties, body, session.frame_max))

    def confirm(self, durable: int) -> None:
        """Tell the publisher about everything that is safe by now."""
        waiting = self.unconfirmed
        confirmed = len(waiting)
        first = last = 0  # accepted publishes in a row
        write = self.session.write
        while waiting and waiting[0][1] <= durable:
            tag, _, accepted = waiting.popleft()
            if accepted:
                first, last = first or tag, tag
                continue
            if last:
                write(ack_frame(self.number, last, first != last))
                first = last = 0
            write(nack_frame(self.number, tag, _NACK_BITS))
            confirmed -= 1
        if last:
            write(ack_frame(self.number, last, first != last))
        self.session.vhost.confirmed += confirmed - len(waiting)

    # --- settling ------------------------------------------------------------------------------------------

    def add_unacked(self, entry: Entry, queue: Queue, now: int) -> int:
        """Note an entry that was fetched without a consumer as unsettled; its delivery tag."""
        tag = self.next_tag
        self.next_tag = tag + 1
        self.unacked[tag] = (entry, queue, None, now)
        queue.unacked += 1
        queue.unacked_bytes += queue.size_of(entry.message)
        if queue.is_quorum and entry.message.place:
            queue.ground.delivered(queue, entry)
        return tag

    def ack_run(self, run: bytes) -> None:
        """Acknowledgements in a row, each of one delivery."""
        unacked = self.unacked
        if self.transaction is not None:
            for tag in parse_ack_run(run):
                self.settle(tag, multiple=False, verdict="ack")
            return
        mark = self.session.broker.mark
        for tag in parse_ack_run(run):
            found = unacked.pop(tag, None)
            if found is None:
                if settle_late(self, tag, multiple=False, verdict="ack"):
                    continue
                raise SoftError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
            entry, queue, consumer, _ = found
            queue.unacked -= 1
            message = entry.message
            queue.unacked_bytes -= message.size + message.meta if queue.is_quorum else message.size
            queue.stats.acked += 1
            if consumer is not None:
                consumer.unacked -= 1
            if message.place:
                queue.ground.forget(queue, entry)
            if not queue.is_dirty and queue.line:
                mark(queue)

    def settle_raw(self, payload: bytes) -> None:
        """A `basic.ack`, `basic.nack` or `basic.reject` as it came."""
        tag, multiple, verdict = SETTLING[payload[:4]](payload)
        if multiple or self.transaction is not None:
            self.settle(tag, multiple=multiple, verdict=verdict)
        elif tag in self.unacked:
            self.settle_all([tag], verdict)
        elif not settle_late(self, tag, multiple=False, verdict=verdict):
            raise SoftError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")

    def settle(self, tag: int, *, multiple: bool, verdict: Verdict) -> None:
        """End one delivery, or all up to it."""
        is_late = bool(self.timed_out) and settle_late(self, tag, multiple=multiple, verdict=verdict)
        tags = self._tags(tag, multiple=multiple, is_late=is_late)
        transaction = self.transaction
        if transaction is not None:
            transaction.settles.append((tags, verdict))
            transaction.held.update((known, self.unacked.pop(known)) for known in tags)
            return
        self.settle_all(tags, verdict)

    def _tags(self, tag: int, *, multiple: bool, is_late: bool) -> list[int]:
        """The unsettled deliveries that a settlement means; 0 with `multiple` is all there are."""
        if multiple and not tag:
            return list(self.unacked)
        if is_late:
            return list(takewhile(tag.__ge__, self.unacked)) if multiple else []
        if tag not in self.unacked:
            raise SoftError(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        return list(takewhile(tag.__ge__, self.unacked)) if multiple else [tag]  # `unacked` is in order

    def end_transaction(self) -> "Transaction | None":
        """Take the transaction off the channel; the deliveries that it held are unsettled again."""
        transaction, self.transaction = self.transaction, None
        if transaction is not None and transaction.held:
            self.unacked = dict(sorted((self.unacked | transaction.held).items()))
        return transaction

    def settle_all(self, tags: list[int], verdict: Verdict) -> None:
        """Carry out a verdict on deliveries, in the order of their tags."""
        taken = [self._take(tag) for tag in tags]
        self.session.broker.cost += ENTRY_COST * len(taken)
        if verdict == "ack":
            for entry, queue in taken:
                queue.stats.acked += 1
                queue.ground.forget(queue, entry)
        elif verdict in {"discard", "reject"}:
            for entry, queue in taken:
                entry.failures += verdict == "reject"
                queue.ground.bury(queue, entry, Reason.REJECTED)
        else:
            self._give_back(taken, failed=verdict == "fail")

    def _take(self, tag: int) -> tuple[Entry, Queue]:
        """The entry of a delivery that ends."""
        entry, queue, consumer, _ = self.unacked.pop(tag)
        queue.unacked -= 1
        queue.unacked_bytes -= queue.size_of(entry.message)
        if consumer is not None:
            consumer.unacked -= 1
        if not queue.is_dirty:
            self.session.broker.mark(queue)
        return entry, queue

    def _give_back(self, taken: list[tuple[Entry, Queue]], *, failed: bool) -> None:
        """Back to their queues: to a quorum queue in the order of their return, to a classic one at their place."""
        now = self.session.now
        for entry, queue in taken:
            if queue.is_quorum:
                queue.give_back(entry, now, failed=failed)
        for entry, queue in reversed(taken):  # most go to the front: the last one first
            if not queue.is_quorum:
                queue.give_back(entry, now, failed=failed)
        for queue in dict.fromkeys(queue for _, queue in taken if queue.eager and not queue.is_deleted):
            queue.dispatch(now)
            queue.trim()

    # --- consumers -----------------------------------------------------------------------------------------

    def cancelled_by_broker(self, consumer: Consumer) -> None:
        """The consumer's queue has gone; tell the client if it wants to hear it."""
        self.drop_consumer(consumer)
        if self.session.wants_cancels and self.is_open:
            self.session.send(m.BasicCancel(consumer.tag, True), self.number)

    def drop_consumer(self, consumer: Consumer) -> None:
        """The consumer takes nothing any more; what it has stays unsettled on this channel."""
        self.consumers.pop(consumer.tag, None)
        if consumer in consumer.queue.consumers:
            consumer.queue.remove_consumer(consumer, self.session.now)
            self.session.broker.mark(consumer.queue)

    def close(self) -> None:
        """The channel is closed: consumers go, and what was not settled goes back."""
        if self.is_open:
            self.session.broker.churn["channel_closed"] += 1
        self.is_open = False
        session = self.session
        session.broker.reply_gone(self)
        consumers = list(self.consumers.values())
        for consumer in consumers:
            self.drop_consumer(consumer)
        self.end_transaction()
        self.settle_all(list(self.unacked), "fail")
        for consumer in consumers:
            session.vhost.consumer_left(consumer.queue)
        session.broker.confirming.discard(self)


class Transaction:
    """What a transaction holds back until it is committed.

    A delivery that it settles moves from `Channel.unacked` to `held`, so that nothing else can settle it.
    """

    __slots__ = ("held", "publishes", "settles")

    def __init__(self) -> None:
        self.publishes: list[tuple[list[Queue], Message, HeaderFacts, bool]] = []
        self.settles: list[tuple[list[int], Verdict]] = []
        self.held: dict[int, Unacked] = {}  # by delivery tag
