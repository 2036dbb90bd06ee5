"""What is the broker, without sockets, files and clocks?

`Broker` holds the virtual hosts and users, and does what was left for later: deaths (so that dead-lettering never
re-enters itself), dispatch of what stands in line (once per turn, however much came in), timers and confirms. Its
owner calls `receive` of a session with octets, then `work`, and sends what the sessions in `talking` have to say. Times
are milliseconds since 1970, and always come from the owner.

No call takes long, whatever clients do. Work is counted in `cost`: the size of a message and `ENTRY_COST` for each
queue that it reaches, and for a delivery, a death or another method what takes as much time. A session stops when
`cost` has reached `budget`, which the owner sets; `work` has an allowance of its own. The smallest part is one message.
"""

import heapq
import logging
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from math import inf
from typing import Final
from uuid import uuid4

import msgspec

from redrive._version import __version__
from redrive.amqp import methods as m
from redrive.amqp.content import MAX_MESSAGE_SIZE
from redrive.amqp.errors import HardError, ReplyCode
from redrive.amqp.limits import Limits
from redrive.amqp.sasl import AMQPLAIN, ANONYMOUS, EXTERNAL, PLAIN, Credentials
from redrive.broker.arguments import Features
from redrive.broker.at_least_once import retry
from redrive.broker.channel import Channel
from redrive.broker.consumer_timeout import time_out
from redrive.broker.dead_letter import Reason
from redrive.broker.keep import Keep
from redrive.broker.memory import shrink
from redrive.broker.message import ENTRY_COST, Entry, Message
from redrive.broker.queue import Queue, QueueStats
from redrive.broker.session import Session
from redrive.broker.users import Users, is_loopback
from redrive.broker.vhost import VHost

RABBITMQ_VERSION: Final = "4.3.0"  # whose behaviour this is; clients read it to know what a server can do
NODE_NAME: Final = "redrive@localhost"
GUEST: Final = Credentials("guest", "guest")  # of a new broker
DEAD_LETTER_RETRY: Final = 180_000  # milliseconds, RabbitMQ's
_MAX_WORK_COST: Final = 2048 * ENTRY_COST  # of one call of `work`: some circles of dead letters have no end
_QUEUES_PER_MILLISECOND: Final = 100  # looked at for their memory while publishers are blocked


class Broker:
    """Everything but the outside world."""

    def __init__(
        self,
        *,
        keep: Keep | None = None,
        features: Features | None = None,
        limits: Limits | None = None,
        max_message_size: int = MAX_MESSAGE_SIZE,
        memory_limit: int | None = None,
        resident: Callable[[], int] | None = None,
        dead_letter_fallback: str | None = None,
        dead_letter_retry: int = DEAD_LETTER_RETRY,
        log: logging.Logger | None = None,
        cluster_name: str | None = None,
        anonymous: Credentials | None = GUEST,
    ) -> None:
        self.keep: Keep = keep or Keep()
        self.features = features or Features()
        self.limits = limits or Limits()
        self.max_message_size = max_message_size
        self.memory_limit = memory_limit  # bytes of messages in memory before publishers have to wait
        self._resident = resident  # bytes of memory that the process has
        self.dead_letter_fallback = dead_letter_fallback
        self.dead_letter_retry = max(
            1, dead_letter_retry
        )  # milliseconds until a kept dead letter is sent again
        self.log = log or logging.getLogger("redrive.broker")
        self._warned: set[str] = set()
        self._tells_deaths = self.log.isEnabledFor(logging.DEBUG)
        self.node_name = NODE_NAME
        self.cluster_name = cluster_name or f"redrive@{uuid4()}"  # distinguishes this broker from all others
        self.anonymous = anonymous  # as whom a client without credentials logs in; None: it cannot
        self.global_parameters: dict[str, object] = {}  # stored for tools; the broker does not read them
        self.users = Users()
        self.vhosts: dict[str, VHost] = {}
        self.no_vhost = VHost(self, "")
        self.sessions: dict[Session, None] = {}
        self.talking: list[Session] = []  # sessions with something to send
        self.confirming: set[Channel] = set()  # channels with publishes to confirm
        self.graves: deque[tuple[VHost, Queue, Entry, Reason]] = deque()
        self.dirty: list[Queue] = []
        self.cost = 0  # of everything done so far
        self.budget: float = inf  # the `cost` at which sessions stop for this turn
        self._memory_checked_at_cost = 0
        self._next_memory_check = 0  # while publishers are blocked: a time
        self._memory_check_is_due = False  # one was put off until then
        self.past = QueueStats()  # of queues that are no more
        self.past_publishes: Counter[str] = Counter()  # of virtual hosts that were deleted
        self.churn: Counter[str] = Counter()  # created and closed connections, channels and queues
        self.logins: Counter[tuple[str, bool]] = Counter()  # login attempts by protocol and success
        self.deaths: Counter[tuple[str, Reason, str]] = Counter()  # queue type, reason, what became of it
        self.dead_letters_confirmed = 0  # of queues with the strategy at-least-once
        self.drops: Counter[Reason] = Counter()
        self.blocked_because: str | None = None
        self._timers: list[tuple[int, int, Queue]] = []
        self._armed: set[tuple[int, int]] = set()  # id and time of each queue in `_timers`
        self._order = count()
        self._queue_ids = count(1)
        self._replies: dict[str, Channel] = {}
        self._reply_names: dict[Channel, str] = {}
        self.properties: dict[str, object] = {
            "capabilities": dict.fromkeys(
                (
                    "publisher_confirms",
                    "exchange_exchange_bindings",
                    "basic.nack",
                    "consumer_cancel_notify",
                    "connection.blocked",
                    "consumer_priorities",
                    "authentication_failure_close",
                    "per_consumer_qos",
                    "direct_reply_to",
                ),
                True,
            ),
            "cluster_name": self.cluster_name,
            "copyright": "Licensed under the Apache License 2.0",
            "information": "An embedded broker that speaks AMQP 0-9-1 as RabbitMQ does",
            "platform": f"redrive {__version__}",
            "product": "RabbitMQ",
            "version": RABBITMQ_VERSION,
        }

    def with_defaults(self) -> "Broker":
        """The virtual host `/` and the user guest, as a new RabbitMQ has them."""
        self.add_vhost("/")
        self.users.add(GUEST.username, GUEST.password, tags=("administrator",))
        self.users.set_permission(GUEST.username, "/", ".*", ".*", ".*")
        self.users_changed()
        return self

    def users_changed(self) -> None:
        """Users or permissions are not what they were: keep them as they are now."""
        self.keep.document("users", msgspec.json.encode(self.users.export()))

    def rename_cluster(self, name: str) -> None:
        """Set the name that clients and tools are shown, and store it."""
        self.cluster_name = name
        self.properties["cluster_name"] = name
        self.keep.document("cluster_name", msgspec.json.encode(name))

    def set_global_parameter(self, name: str, value: object) -> None:
        """Store a parameter of the whole broker, or replace its value."""
        self.global_parameters[name] = value
        self.keep.document(f"global_parameter\x1f{name}", msgspec.json.encode(value))

    def clear_global_parameter(self, name: str) -> bool:
        """Delete a parameter of the whole broker; False if there is none of that name."""
        if name not in self.global_parameters:
            return False
        del self.global_parameters[name]
        self.keep.document(f"global_parameter\x1f{name}", None)
        return True

    # --- virtual hosts and queues --------------------------------------------------------------------------

    def add_vhost(self, name: str) -> VHost:
        """The virtual host, made if it is not there."""
        if name not in self.vhosts:
            self.vhosts[name] = VHost(self, name)
            self.vhost_changed(self.vhosts[name])
        return self.vhosts[name]

    def vhost_changed(self, vhost: VHost) -> None:
        """A virtual host is new, or is described differently: keep it."""
        stored = {**vhost.metadata, "limits": vhost.limits}
        self.keep.document(f"vhost\x1f{vhost.name}", msgspec.json.encode(stored))

    def delete_vhost(self, name: str) -> None:
        """A virtual host goes, with everything in it; its connections are closed."""
        vhost = self.vhosts.pop(name, None)
        if vhost is None:
            return
        for session in [one for one in self.sessions if one.vhost is vhost]:
            self.close(session, f"vhost '{name}' is deleted")
        for queue in list(vhost.queues.values()):
            vhost.delete_queue(queue)
        for exchange in list(vhost.exchanges):
            vhost.delete_exchange(exchange)
        self.past_publishes.update(publish_counters([vhost]))
        self.users.forget_vhost(name)
        self.users_changed()
        self.keep.document(f"policies\x1f{name}", None)
        self.keep.document(f"operator_policies\x1f{name}", None)
        self.keep.document(f"vhost\x1f{name}", None)

    def queues(self) -> Iterator[tuple[VHost, Queue]]:
        """All queues."""
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                yield vhost, queue

    def publishes(self) -> dict[str, int]:
        """What happened to publishes in all virtual hosts, those that were deleted among them."""
        counters = publish_counters(self.vhosts.values())
        return {name: count + self.past_publishes[name] for name, count in counters.items()}

    def next_queue_id(self) -> int:
        """A number that no queue has had."""
        return next(self._queue_ids)

    def queue_ids_start_at(self, first: int) -> None:
        """Numbers below are taken."""
        self._queue_ids = count(first)

    # --- sessions ------------------------------------------------------------------------------------------

    def may_log_in(self, credentials: Credentials, session: Session, *, external: bool) -> bool:
        """Whether these credentials are good, from there; each attempt is counted."""
        accepted = self._credentials_are_good(credentials, session, external=external)
        self.logins["amqp091", accepted] += 1
        return accepted

    def _credentials_are_good(self, credentials: Credentials, session: Session, *, external: bool) -> bool:
        name = credentials.username
        if external:
            good = bool(name) and self.users.get(name) is not None
        else:
            good = credentials.password is not None and self.users.check(name, credentials.password)
        if not good:
            self.log.warning("login refused user=%s client=%s: wrong user or password", name, session.peer)
            return False
        if not self.users.may_connect(name, session.peer_address):
            self.log.warning(
                "login refused user=%s client=%s: allowed from loopback only", name, session.peer
            )
            return False
        return True

    def mechanisms(self, session: Session) -> bytes:
        """The ways to log in that are offered to this session; ANONYMOUS from this machine only."""
        offered = [AMQPLAIN, PLAIN]
        if session.certificate_user:
            offered.append(EXTERNAL)
        if self.anonymous is not None and is_loopback(session.peer_address):
            offered.append(ANONYMOUS)
        return " ".join(sorted(offered)).encode()

    def check_connection_limits(self, user: str, vhost: VHost) -> None:
        """530 if the virtual host or the user has as many connections as it may have."""
        limit = vhost.limits.get("max-connections", -1)
        if 0 <= limit <= sum(session.vhost is vhost for session in self.sessions):
            text = f"access to vhost '{vhost.name}' refused for user '{user}': connection limit ({limit}) is reached"
            raise HardError(ReplyCode.NOT_ALLOWED, text)
        limit = self.users.limits(user).get("max-connections", -1)
        if 0 <= limit <= sum(session.user == user for session in self.sessions):
            text = f"connection refused for user '{user}': user connection limit ({limit}) is reached"
            raise HardError(ReplyCode.NOT_ALLOWED, text)

    def check_channel_limit(self, user: str) -> None:
        """530 if the user has as many channels open as it may have."""
        limit = self.users.limits(user).get("max-channels", -1)
        if 0 <= limit <= sum(len(session.channels) for session in self.sessions if session.user == user):
            text = f"number of channels opened for user '{user}' has reached the maximum allowed user limit of {limit}"
            raise HardError(ReplyCode.NOT_ALLOWED, text)

    def opened(self, session: Session) -> None:
        """A session has logged in and entered its virtual host."""
        self.sessions[session] = None
        self.churn["connection_created"] += 1
        if self.blocked_because is not None:
            self._tell_blocked(session)

    def left(self, session: Session) -> None:
        """A session is over; its exclusive queues go with it."""
        if session in self.sessions:
            del self.sessions[session]
            self.churn["connection_closed"] += 1
        if (
            session.has_exclusive_queues
        ):  # to look for them costs more than all the rest where there are many queues
            session.has_exclusive_queues = False
            for queue in [queue for queue in session.vhost.queues.values() if queue.owner is session]:
                session.vhost.delete_queue(queue)

    def close(self, session: Session, why: str) -> None:
        """An operator closes a connection."""
        session.write(session.connection.close(f"CONNECTION_FORCED - {why}", 320))
        session.gone(session.now)

    # --- alarms --------------------------------------------------------------------------------------------

    def block(self, reason: str | None) -> None:
        """Publishers have to wait (a resource is low), or may go on (None)."""
        self.blocked_because = reason
        for session in self.sessions:
            self._tell_blocked(session)

    def _tell_blocked(self, session: Session) -> None:
        if not session.wants_blocked or session.was_blocked == (self.blocked_because is not None):
            return
        session.was_blocked = self.blocked_because is not None
        if self.blocked_because is not None:
            session.send(m.ConnectionBlocked(self.blocked_because))
        else:
            session.send(m.ConnectionUnblocked())

    # --- later in the turn ---------------------------------------------------------------------------------

    def mark(self, queue: Queue) -> None:
        """This queue may have something to dispatch."""
        if not queue.is_dirty:
            queue.is_dirty = True
            self.dirty.append(queue)

    def work(self, now: int) -> bool:
        """Do what was left for later; True if there is more, for another turn."""
        allowed = self.cost + _MAX_WORK_COST
        unfinished: list[Queue] = []
        while (self.graves or self.dirty) and self.cost < allowed:
            while self.graves and self.cost < allowed:
                self._send_dead_letter(*self.graves.popleft(), now)
            self._dispatch(unfinished, allowed, now)
        for queue in unfinished:
            self.mark(queue)
        if self.confirming:
            self.confirm()
        if self.memory_limit is not None:
            self._watch_memory(self.memory_limit, now)
        return bool(self.dirty or self.graves)

    def _send_dead_letter(self, vhost: VHost, queue: Queue, entry: Entry, reason: Reason, now: int) -> None:
        self.cost += ENTRY_COST
        try:
            vhost.send_dead_letter(queue, entry, reason, now)
        except Exception:
            self.log.exception("dead-lettering failed queue=%s vhost=%s", queue.name, vhost.name)

    def _dispatch(self, unfinished: list[Queue], allowed: int, now: int) -> None:
        """Let dirty queues deliver, the one that has waited longest first; adds those that have more."""
        dirty, self.dirty = self.dirty, []
        for at, queue in enumerate(dirty):
            if self.cost >= allowed:
                self.dirty = dirty[at:] + self.dirty
                return
            queue.is_dirty = False
            if queue.is_deleted or not queue.consumers:
                continue
            ready = queue.ready
            try:
                if queue.dispatch(now):
                    unfinished.append(queue)
            except Exception:
                self.log.exception("dispatch failed queue=%s", queue.name)
            self.cost += ENTRY_COST * (ready - queue.ready)

    def _watch_memory(self, limit: int, now: int) -> None:
        """Block publishers above the limit, let them go on well below it; looked at after a fiftieth of it."""
        if self.blocked_because is None:
            if self.cost - self._memory_checked_at_cost < limit // 50:
                return
        elif now < self._next_memory_check:
            self._memory_check_is_due = True
            return
        self._memory_checked_at_cost = self.cost
        self._memory_check_is_due = False
        held = self.held_bytes()
        if self.blocked_because is None and held > limit:
            self.log.warning("publishers blocked memory_bytes=%d limit_bytes=%d", held, limit)
            self.block("low on memory")
        elif self.blocked_because is not None and held < limit * 0.8:
            self.log.warning("publishers unblocked memory_bytes=%d limit_bytes=%d", held, limit)
            self.block(None)
        if self.blocked_because is not None:
            count = sum(len(vhost.queues) for vhost in self.vhosts.values())
            self._next_memory_check = now + count // _QUEUES_PER_MILLISECOND

    def held_bytes(self) -> int:
        """Bytes of memory that messages take, at most.

        Each queue counts the whole of a message although all share one, so this is too much after a fan-out; what the
        process has is too much after a peak. The smaller of both is the better estimate.
        """
        held = sum(queue.bytes + ENTRY_COST * queue.entries for _, queue in self.queues())
        held -= self.keep.paged_bytes()
        return held if self._resident is None else min(held, self._resident())

    def release_memory(self) -> None:
        """Give up memory that was needed in a flood and is not any more; called when there is little to do."""
        for session in self.sessions:
            for channel in session.channels.values():
                channel.unacked = shrink(channel.unacked)
        self.keep.release_memory()

    def confirm(self) -> None:
        """Tell publishers what is safe."""
        durable = self.keep.durable_position()
        for channel in list(self.confirming):
            channel.confirm(durable)
            if not channel.unconfirmed:
                self.confirming.discard(channel)

    # --- timers --------------------------------------------------------------------------------------------

    def wake(self, queue: Queue, at: int) -> None:
        """Look after this queue at that time."""
        if (queue.id, at) not in self._armed:
            self._armed.add((queue.id, at))
            heapq.heappush(self._timers, (at, next(self._order), queue))

    @property
    def next_timer(self) -> int | None:
        """When `tick` is to be called next."""
        first = self._timers[0][0] if self._timers else None
        if not self._memory_check_is_due:
            return first
        return self._next_memory_check if first is None else min(first, self._next_memory_check)

    def tick(self, now: int) -> None:
        """Do what time has brought."""
        timers = self._timers
        due: list[tuple[int, int, Queue]] = []
        while timers and timers[0][0] <= now:
            due.append(heapq.heappop(timers))
        for at, _, queue in due:  # what they set for now is for the next turn
            self._armed.discard((queue.id, at))
            if queue.is_deleted:
                continue
            assert isinstance(queue.ground, VHost)  # noqa: S101  every queue of a broker stands on one
            if queue.timeout_at <= now:
                time_out(queue.ground, queue, now)
            if queue.dead.retry_at <= now:
                retry(queue.ground, queue, now)
            queue.tick(now)
            if queue.line:
                self.mark(queue)
            self._expire_queue(queue, now)
        self.work(now)

    def _expire_queue(self, queue: Queue, now: int) -> None:
        """A queue that nobody used for as long as x-expires says is deleted; nothing is dead-lettered."""
        expires = queue.options.expires
        if expires is None:
            return
        if queue.consumers:
            self.wake(queue, now - now % expires + expires)  # the same time for every look within `expires`
            return
        if queue.idle_since + expires > now:
            self.wake(queue, queue.idle_since + expires)
            return
        assert isinstance(queue.ground, VHost)  # noqa: S101  every queue of a broker stands on one
        queue.ground.delete_queue(queue)

    def seconds(self, now: int) -> int:
        """Whole seconds since 1970."""
        return now // 1000

    # --- bodies, replies, counts ---------------------------------------------------------------------------

    def body_of(self, message: Message) -> bytes:
        """The body of a message, wherever it is."""
        return message.body if message.body is not None else self.keep.body(message)

    def load(self, message: Message) -> None:
        """Have the whole message in memory."""
        if message.body is None:
            self.keep.load(message)

    def reply_name(self, channel: Channel) -> str:
        """The name under which replies reach a channel directly."""
        if channel not in self._reply_names:
            name = secrets.token_urlsafe(18)
            self._reply_names[channel] = name
            self._replies[name] = channel
        return self._reply_names[channel]

    def reply_channel(self, name: str) -> Channel | None:
        """The channel that replies of this name go to."""
        return self._replies.get(name)

    def reply_gone(self, channel: Channel) -> None:
        """A channel takes no replies any more."""
        name = self._reply_names.pop(channel, None)
        if name is not None:
            del self._replies[name]

    def warn_once(self, text: str) -> None:
        """Log a warning that would come with every message."""
        if text not in self._warned:
            self._warned.add(text)
            self.log.warning("%s", text)

    def died(self, vhost: VHost, queue: Queue, reason: Reason, strategy: str) -> None:
        """Count a death and tell it."""
        self.deaths[queue.options.queue_type, reason, strategy] += 1
        if not self._tells_deaths:
            return
        self.log.debug(
            "message dead-lettered queue=%s vhost=%s reason=%s strategy=%s",
            queue.name,
            vhost.name,
            reason,
            strategy,
        )

    def unroutable(self, vhost: VHost, queue: Queue, reason: Reason, why: str, *, kept: bool) -> None:
        """A dead letter had nowhere to go."""
        self.drops[reason] += 1
        fate = f"kept in {self.dead_letter_fallback}" if kept else "dropped"
        self.log.warning(
            "dead letter %s queue=%s vhost=%s reason=%s: %s", fate, queue.name, vhost.name, reason, why
        )


def publish_counters(vhosts: Iterable[VHost]) -> dict[str, int]:
    """What happened to the publishes in these virtual hosts, by the names of the management API."""
    counters = dict.fromkeys(("publish", "confirm", "drop_unroutable", "return_unroutable"), 0)
    for vhost in vhosts:
        counters["publish"] += vhost.published
        counters["confirm"] += vhost.confirmed
        counters["drop_unroutable"] += vhost.unrouted[False]
        counters["return_unroutable"] += vhost.unrouted[True]
    return counters
