"""What does a queue do with messages and consumers?

A queue takes entries in, hands them to consumers that have room, takes them back, and lets go of those that were
settled, expired or too many. It decides nothing about where a dead message goes: it tells its owner (`Grave`) and is
done. Time comes in as milliseconds; nothing here waits.
"""

from typing import TYPE_CHECKING, Final, Protocol

from redrive.broker.arguments import QueueOptions
from redrive.broker.at_least_once import KeptLetters
from redrive.broker.dead_letter import Reason
from redrive.broker.delayed_retry import DelayedEntries, DelayedRetry
from redrive.broker.line import Line, PriorityLine, QuorumLine
from redrive.broker.message import Entry, Message

if TYPE_CHECKING:
    from redrive.broker.consumer import Consumer

NEVER: Final = 1 << 62
# Deliveries of one queue in one turn, and about how many bytes: then the sockets get a chance to say that it is enough.
_MAX_DELIVERIES: Final = 2048
_MAX_DELIVERED_BYTES: Final = 8 << 20
_MAX_EXPIRED: Final = 2048  # in one turn


class Ground(Protocol):
    """What a queue stands on: its virtual host, as far as a queue needs it."""

    def bury(self, queue: "Queue", entry: Entry, reason: Reason) -> None:
        """An entry has left the queue without being processed."""
        ...

    def forget(self, queue: "Queue", entry: Entry) -> None:
        """An entry has left the queue for good."""
        ...

    def remember(self, queue: "Queue", entry: Entry) -> None:
        """An entry of a durable queue has come in; keep it if it is persistent."""
        ...

    def delivered(self, queue: "Queue", entry: Entry) -> None:
        """An entry of a durable quorum queue was delivered and waits for its acknowledgement."""
        ...

    def returned(self, queue: "Queue", entry: Entry) -> None:
        """An entry was delivered and has come back."""
        ...

    def delayed(self, queue: "Queue", entry: Entry, until: int) -> None:
        """An entry has come back and is not delivered before this time."""
        ...

    def wake(self, queue: "Queue", at: int) -> None:
        """Call `tick` at this time."""
        ...


class Queue:
    """One queue. `options` are the arguments and the policy together, as they are in force."""

    __slots__ = (
        "_next_number",
        "_turn",
        "arguments",
        "auto_delete",
        "bytes_ready",
        "consumers",
        "dead",
        "declared",
        "delayed",
        "delayed_retry",
        "durable",
        "eager",
        "exclusive_consumer",
        "expires_messages",
        "ground",
        "had_consumers",
        "id",
        "idle_since",
        "is_deleted",
        "is_dirty",
        "is_quorum",
        "keeps_all",
        "line",
        "name",
        "operator_policy",
        "options",
        "owner",
        "policy",
        "refuses",
        "stats",
        "timeout_at",
        "timer_at",
        "unacked",
        "unacked_bytes",
    )

    def __init__(
        self,
        ground: Ground,
        name: str,
        number: int,
        options: QueueOptions,
        arguments: dict[str, object],
        *,
        durable: bool,
        auto_delete: bool = False,
        owner: object | None = None,
        now: int = 0,
    ) -> None:
        self.ground = ground
        self.name = name
        self.id = number
        self.declared = options
        self.options = options
        self.arguments = arguments
        self.policy: str | None = None
        self.operator_policy: str | None = None
        self.durable = durable
        self.is_quorum = options.queue_type == "quorum"
        self.keeps_all = durable and self.is_quorum  # RabbitMQ stores every message of a quorum queue
        self.auto_delete = auto_delete
        self.owner = owner  # the session of an exclusive queue
        self.line: Line | PriorityLine | QuorumLine
        if self.is_quorum:
            self.line = QuorumLine()
        else:
            self.line = PriorityLine(options.max_priority) if options.max_priority else Line()
        self.expires_messages = False  # whether a message with a time to live ever came in
        self.dead = KeptLetters()
        self.delayed = DelayedEntries()
        self.delayed_retry: DelayedRetry | None = None
        self.bytes_ready = 0  # of entries in the line and of delayed ones
        self.unacked = 0
        self.unacked_bytes = 0
        self.consumers: list[Consumer] = []  # by falling priority, then in order of coming
        self.exclusive_consumer = False
        self.had_consumers = False
        self.is_deleted = False
        self.is_dirty = False  # waits for its turn to dispatch
        self.timer_at = NEVER
        self.timeout_at = NEVER  # when deliveries may be overdue
        self.idle_since = now
        self.stats = QueueStats()
        self._next_number = 1
        self._turn = 0
        self.eager = False
        self.refuses = False
        self.apply(options, now)

    def apply(self, options: QueueOptions, now: int) -> None:
        """These options are in force from now on (a policy may change them on a living queue)."""
        self.options = options
        # Limits and times to live judge what is left after delivery, so such queues deliver at once.
        limits = (options.max_length, options.max_length_bytes, options.message_ttl)
        self.eager = any(limit is not None for limit in limits)
        self.refuses = options.overflow != "drop-head"
        self.delayed_retry = options.delayed_retry
        if self.line:
            self.trim()
            self.expire(now)

    # --- coming in -----------------------------------------------------------------------------------------

    def size_of(self, message: Message) -> int:
        """What a message counts against byte limits: its body, in a quorum queue its properties as well."""
        return message.size + message.meta if self.is_quorum else message.size

    def has_room_for(self, message: Message) -> bool:
        """False if a queue that `refuses` publishes would overflow."""
        options = self.options
        if options.max_length is not None and len(self.line) + self.held >= options.max_length:
            return False
        largest = options.max_length_bytes
        return largest is None or self.bytes_ready + self.dead.bytes + self.size_of(message) <= largest

    def push(
        self, message: Message, now: int, expiration: int | None, priority: int, failures: int = 0
    ) -> Entry:
        """Put a message at the end, or deliver it at once. The caller has asked `has_room_for`.

        `failures`: how many deliveries failed in the queues that dead-lettered it before.
        """
        number = self._next_number
        self._next_number = number + 1
        entry = Entry(number, message, priority)
        if failures:
            entry.failures = failures
            # A classic queue that passes a message on without storing it does not look at the count.
            passed_on = not self.line and any(consumer.room() > 0 for consumer in self.consumers)
            entry.redelivered = self.is_quorum or not passed_on
        ttl = self.options.message_ttl
        if expiration is not None or ttl is not None:  # the smaller one, fixed now
            life = min(expiration if expiration is not None else NEVER, ttl if ttl is not None else NEVER)
            entry.expires_at = now + life or 1
            self.expires_messages = True
        if self.keeps_all or (self.durable and message.persistent):
            self.ground.remember(self, entry)
        self.stats.published += 1
        consumers = self.consumers
        if len(consumers) == 1 and not self.line and not entry.expires_at and consumers[0].room() > 0:
            consumers[0].deliver(entry, now)  # at once: nobody is before it, and nobody else could take it
            return entry
        self.line.append(entry)
        self.bytes_ready += message.size + message.meta if self.is_quorum else message.size
        if self.eager or entry.expires_at:
            self.dispatch(now)
            self.trim()
            self.expire(now)
        return entry

    def keeps(self, message: Message) -> bool:
        """Whether this message outlives the broker here: a persistent one does, and in a quorum queue any."""
        return self.keeps_all or (self.durable and message.persistent)

    def restore(self, entry: Entry, delayed_until: int = 0) -> None:
        """Put back what a journal kept, in the order it was kept."""
        self.restore_number(entry)
        if entry.expires_at:
            self.expires_messages = True
        self.bytes_ready += self.size_of(entry.message)
        if delayed_until:
            self.delay(entry, delayed_until)
        elif entry.acquired and self.is_quorum:
            self.line.give_back(entry)
        else:
            self.line.append(entry)

    def restore_delivered(self, entry: Entry, now: int) -> None:
        """Put back an entry whose delivery was under way when the broker was killed: it has failed."""
        self._next_number = max(self._next_number, entry.number + 1)
        self.expires_messages = self.expires_messages or bool(entry.expires_at)
        self.give_back(entry, now, failed=True)

    def restore_number(self, entry: Entry) -> None:
        """No new entry gets the number of this one."""
        self._next_number = max(self._next_number, entry.number + 1)

    def trim(self) -> None:
        """Drop from the head until the limits are kept."""
        options, line = self.options, self.line
        if self.refuses or (options.max_length is None and options.max_length_bytes is None):
            return
        longest = options.max_length if options.max_length is not None else NEVER
        largest = options.max_length_bytes if options.max_length_bytes is not None else NEVER
        longest -= self.held  # they count, and cannot be dropped
        while line and (len(line) > longest or self.bytes_ready > largest):
            entry = line.popleft()
            self.bytes_ready -= self.size_of(entry.message)
            self.ground.bury(self, entry, Reason.MAXLEN)

    def expire(self, now: int) -> None:
        """Let go of what is at the head and over its time; be woken for the next one, or for more of them."""
        line = self.line
        for _ in range(_MAX_EXPIRED):
            over = next((head for head in line.heads() if head.expires_at and head.expires_at <= now), None)
            if over is None:
                break
            line.remove_head(over)
            self.bytes_ready -= self.size_of(over.message)
            self.ground.bury(self, over, Reason.EXPIRED)
        soonest = min((head.expires_at for head in line.heads() if head.expires_at), default=NEVER)
        self._wake(soonest)

    def _wake(self, at: int) -> None:
        if at < self.timer_at:
            self.timer_at = at
            self.ground.wake(self, at)

    def tick(self, now: int) -> None:
        """Do what time has brought: delayed entries become ready, others expire."""
        self.timer_at = NEVER
        if self.delayed:
            for entry in self.delayed.take_ready(now):
                self.line.give_back(entry)
            if self.delayed.next_at is not None:
                self._wake(self.delayed.next_at)
        self.expire(now)

    # --- going out -----------------------------------------------------------------------------------------

    def dispatch(self, now: int) -> bool:
        """Hand entries to consumers while there are both; True if it was enough for one turn but not all."""
        line, consumers = self.line, self.consumers
        if not line or not consumers:
            return False
        if len(consumers) == 1:
            more = self._dispatch_to(consumers[0], now)
        elif self.options.single_active_consumer:
            active = self._active_consumer()
            more = active is not None and self._dispatch_to(active, now)
        else:
            more = self._dispatch_in_turns(now)
        if self.expires_messages:
            self.expire(now)  # another entry may be the first one now
        return more

    def _max_deliveries(self) -> int:
        """How many entries may be delivered in one turn, by their average size."""
        if self.bytes_ready <= _MAX_DELIVERED_BYTES:
            return _MAX_DELIVERIES
        fitting = _MAX_DELIVERED_BYTES * len(self.line) // self.bytes_ready
        return min(_MAX_DELIVERIES, max(1, fitting))

    def _dispatch_in_turns(self, now: int) -> bool:
        for _ in range(self._max_deliveries()):
            consumer = self._next_consumer() if self.line else None
            if consumer is None:
                return False
            entry = self._pop(now)
            if entry is None:
                return False
            consumer.deliver(entry, now)
        return bool(self.line)

    def _active_consumer(self) -> "Consumer | None":
        """The single active consumer; None while it is to be replaced but still has unsettled deliveries."""
        active, waiting = self.consumers[:2]
        if not self.is_quorum or waiting.priority <= active.priority or waiting.timed_out:
            return active
        if active.unacked:
            return None
        del self.consumers[0]
        self._insert(active, first=1)
        return waiting

    def _dispatch_to(self, consumer: "Consumer", now: int) -> bool:
        line = self.line
        room = consumer.room()
        most = self._max_deliveries()
        deliver = consumer.deliver
        for _ in range(min(room, len(line), most)):
            entry = line.popleft()
            message = entry.message
            self.bytes_ready -= message.size + message.meta if self.is_quorum else message.size
            if entry.expires_at and entry.expires_at <= now and not self._is_instant(entry, now):
                self.ground.bury(self, entry, Reason.EXPIRED)
            else:
                deliver(entry, now)
        return room > most and bool(line)

    def _pop(self, now: int) -> Entry | None:
        """The next entry that is not over its time."""
        line = self.line
        while line:
            entry = line.popleft()
            self.bytes_ready -= self.size_of(entry.message)
            if not entry.expires_at or entry.expires_at > now or self._is_instant(entry, now):
                return entry
            self.ground.bury(self, entry, Reason.EXPIRED)
        return None

    def _is_instant(self, entry: Entry, now: int) -> bool:
        """A time to live of zero still reaches a consumer that waits at this very moment."""
        return entry.expires_at == now and not entry.acquired and entry.number == self._next_number - 1

    def _next_consumer(self) -> "Consumer | None":
        """The next consumer with room: the highest priority first, in turns among equals."""
        consumers = self.consumers
        count = len(consumers)
        best: Consumer | None = None
        for step in range(count):
            consumer = consumers[(self._turn + step) % count]
            if (best is None or consumer.priority > best.priority) and consumer.room() > 0:
                best = consumer
        if best is not None:
            self._turn = (consumers.index(best) + 1) % count
        return best

    def take(self, now: int) -> Entry | None:
        """The next entry, for `basic.get`; what expires behind it goes as well."""
        entry = self._pop(now)
        self.expire(now)
        return entry

    # --- coming back ---------------------------------------------------------------------------------------

    def give_back(self, entry: Entry, now: int, *, failed: bool) -> None:
        """Take back a delivery that ended without an acknowledgement; the caller dispatches and trims.

        A quorum queue dead-letters the message instead if it failed more often than the delivery limit allows.
        """
        entry.acquired += 1
        entry.failures += failed
        if self.is_deleted:
            return
        limit = self.options.delivery_limit
        if self.is_quorum and limit is not None and 0 <= limit < entry.failures:
            self.ground.bury(self, entry, Reason.DELIVERY_LIMIT)
            return
        entry.redelivered = True
        if self.keeps(entry.message):
            self.ground.returned(self, entry)
        self.bytes_ready += self.size_of(entry.message)
        if self.delayed_retry is not None:
            delay = self.delayed_retry.delay(failed=failed, failures=entry.failures)
            if delay is not None:
                self.ground.delayed(self, entry, now + delay)
                self.delay(entry, now + delay)
                return
        self.line.give_back(entry)
        if entry.expires_at:
            self.expire(now)

    def delay(self, entry: Entry, until: int) -> None:
        """Keep an entry out of the line until then."""
        self.delayed.add(entry, until)
        self._wake(until)

    # --- consumers -----------------------------------------------------------------------------------------

    def add_consumer(self, consumer: "Consumer") -> None:
        """A consumer has come."""
        # A single active consumer stays active; `_active_consumer` decides when another one takes over.
        self._insert(consumer, first=1 if self.options.single_active_consumer and self.consumers else 0)
        self.had_consumers = True
        self.exclusive_consumer = self.exclusive_consumer or (consumer.exclusive and not self.is_quorum)

    def _insert(self, consumer: "Consumer", *, first: int) -> None:
        """Put a consumer behind those of its priority or a higher one, but not before the place `first`."""
        waiting = enumerate(self.consumers[first:], first)
        lower = (at for at, other in waiting if other.priority < consumer.priority)
        self.consumers.insert(next(lower, len(self.consumers)), consumer)

    def remove_consumer(self, consumer: "Consumer", now: int) -> None:
        """A consumer has gone."""
        self.consumers.remove(consumer)
        self._turn = 0
        if consumer.exclusive:
            self.exclusive_consumer = False
        if not self.consumers:
            self.idle_since = now

    def seat(self, consumer: "Consumer") -> None:
        """A consumer does not get messages any more, or gets them again: if only one may, see whose turn it is."""
        if self.options.single_active_consumer and not consumer.unacked:
            self.consumers.sort(key=lambda each: (bool(each.timed_out), -each.priority))

    # --- all at once ---------------------------------------------------------------------------------------

    def purge(self) -> int:
        """Drop everything that is not delivered; nothing of it is dead-lettered."""
        entries = self.line.take_all() + self.delayed.take_all() + self.dead.take_all()
        self.bytes_ready = 0
        for entry in entries:
            self.ground.forget(self, entry)
        return len(entries)

    @property
    def ready(self) -> int:
        """How many entries wait."""
        return len(self.line)

    @property
    def entries(self) -> int:
        """How many entries there are, ready or not."""
        return len(self.line) + self.unacked + self.held

    @property
    def bytes(self) -> int:
        """The size of all messages, as byte limits count it."""
        return self.bytes_ready + self.unacked_bytes + self.dead.bytes

    @property
    def held(self) -> int:
        """How many entries are in the queue, not delivered, and not ready either."""
        return len(self.delayed) + len(self.dead)


class QueueStats:
    """What happened in a queue, in numbers that only grow."""

    __slots__ = (
        "acked", "delivered", "delivered_no_ack", "got", "got_no_ack", "got_nothing", "published", "redelivered",
    )  # fmt: skip

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.acked = 0
        self.redelivered = 0
        self.got = 0
        self.delivered_no_ack = 0  # of the delivered
        self.got_no_ack = 0  # of the got
        self.got_nothing = 0

    def add(self, other: "QueueStats") -> None:
        """Count what another counted."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
