"""What is in a virtual host, and where does a message published to it go?

Exchanges, queues and bindings live here, with the dead-letter flow between them. Every verb either does all of what
it was asked or raises the error that the client is to be told. Routes are remembered until something changes that a
route could depend on; such changes are counted in `version`.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from redrive.amqp.errors import ReplyCode, SoftError
from redrive.amqp.properties import read_headers
from redrive.broker import at_least_once
from redrive.broker.arguments import Declared, check_equivalent, parse_queue_arguments
from redrive.broker.dead_letter import Reason, dead_letter_of, is_cycle
from redrive.broker.exchanges import Exchange, kind_is_known, route
from redrive.broker.message import ENTRY_COST, NO_PRIORITY, PURGE_COST, Entry, Message, priority_of
from redrive.broker.policies import Policies, combined, merge
from redrive.broker.queue import Queue

if TYPE_CHECKING:
    from redrive.broker.core import Broker
    from redrive.broker.publishing import Route

PREDECLARED: Final = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.rabbitmq.trace": "topic",
}
REPLY_TO: Final = "amq.rabbitmq.reply-to"
_MAX_ROUTES: Final = 32_768  # that are remembered
_MAX_ROUTE_QUEUES: Final = 1_000_000  # that they name: a route of a fan-out names many


class VHost:
    """One virtual host."""

    def __init__(self, broker: "Broker", name: str) -> None:
        self.broker = broker
        self.name = name
        self.exchanges: dict[str, Exchange] = {
            name: Exchange(name, kind, durable=True, internal=name == "amq.rabbitmq.trace")
            for name, kind in PREDECLARED.items()
        }
        self.queues: dict[str, Queue] = {}
        self.policies = Policies()
        self.operator_policies = Policies()
        self.version = 0
        self.routes: dict[bytes, Route] = {}  # by the octets of a publish, while they hold
        self._route_queues = 0  # queues that they name, all together
        self._remembered: dict[
            tuple[str, tuple[str, ...]], list[Queue]
        ] = {}  # ways of dead letters, while they hold
        self.metadata: dict[str, Any] = {"description": "", "tags": [], "default_queue_type": "classic"}
        self.published = 0  # messages from clients
        self.confirmed = 0  # of these, confirmed to their publishers
        self.unrouted: Counter[bool] = Counter()  # of these, without a queue, by `mandatory`
        self.limits: dict[str, int] = {}  # max-connections, max-queues; below zero is unlimited

    # --- finding -------------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """The exchange of this name, or 404."""
        found = self.exchanges.get(name)
        if found is None:
            raise SoftError(ReplyCode.NOT_FOUND, f"no exchange '{name}' in vhost '{self.name}'")
        return found

    def queue(self, name: str, session: object | None = None) -> Queue:
        """The queue of this name, or 404; 405 if it is another session's own."""
        found = self.queues.get(name)
        if found is None:
            raise SoftError(ReplyCode.NOT_FOUND, f"no queue '{name}' in vhost '{self.name}'")
        if found.owner is not None and session is not None and found.owner is not session:
            raise self._locked(name)
        return found

    def _locked(self, name: str) -> SoftError:
        return SoftError(
            ReplyCode.RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.name}'. It could be"
            " originally declared on another connection or the exclusive property value does not match that"
            " of the original declaration.",
        )

    # --- exchanges -----------------------------------------------------------------------------------------

    def declare_exchange(self, name: str, declared: Declared) -> Exchange:
        """The exchange, made if it is not there; 406 if it is there and different."""
        there = self.exchanges.get(name)
        if there is not None:
            existing = Declared(
                there.durable, there.auto_delete, there.arguments, type=there.kind, internal=there.internal
            )
            check_equivalent("exchange", name, self.name, existing, declared)
            return there
        if not kind_is_known(declared.type):
            raise SoftError(ReplyCode.PRECONDITION_FAILED, f"invalid exchange type '{declared.type}'")
        made = Exchange(
            name,
            declared.type,
            durable=declared.durable,
            auto_delete=declared.auto_delete,
            internal=declared.internal,
            arguments=declared.arguments,
        )
        self.exchanges[name] = made
        self._apply_policy_to_exchange(made)
        self.changed()
        if made.durable:
            self.broker.keep.exchange(self.name, made)
        return made

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """The exchange is no more, nor are its bindings."""
        found = self.exchanges.get(name)
        if found is None:
            return
        if if_unused and not found.is_unused:
            raise SoftError(ReplyCode.PRECONDITION_FAILED, f"exchange '{name}' in vhost '{self.name}' in use")
        del self.exchanges[name]
        if found.durable:
            self.broker.keep.exchange_gone(self.name, found)
        self._forget_destination(found)
        self.changed()

    # --- queues --------------------------------------------------------------------------------------------

    def declare_queue(self, name: str, declared: Declared, *, owner: object | None, now: int) -> Queue:
        """The queue, made if it is not there; 406 if it is there and different, 405 if it is somebody's own."""
        there = self.queues.get(name)
        self.broker.churn["queue_declared"] += 1
        if there is not None:
            if there.owner is not owner:
                raise self._locked(name)
            existing = Declared(there.durable, there.auto_delete, there.arguments)
            check_equivalent("queue", name, self.name, existing, declared)
            there.idle_since = now
            return there
        options = parse_queue_arguments(
            name,
            self.name,
            declared.arguments,
            durable=declared.durable,
            exclusive=owner is not None,
            auto_delete=declared.auto_delete,
            features=self.broker.features,
        )
        for warning in options.warnings:
            self.broker.log.warning("queue argument warning queue=%s vhost=%s: %s", name, self.name, warning)
        made = Queue(
            self,
            name,
            self.broker.next_queue_id(),
            options,
            dict(declared.arguments),
            durable=declared.durable,
            auto_delete=declared.auto_delete,
            owner=owner,
            now=now,
        )
        self.add_queue(made, now)
        if made.durable and owner is None:
            self.broker.keep.queue(self.name, made)
        return made

    def with_default_type(self, declared: Declared, *, exclusive: bool) -> Declared:
        """The declaration with the type that the virtual host gives to queues which do not ask for one.

        A transient, exclusive or auto-delete queue cannot be a quorum queue and stays a classic one. Journal recovery
        does not ask: the type of an existing queue does not change with the default.
        """
        kind = self.metadata.get("default_queue_type")
        fits = declared.durable and not exclusive and not declared.auto_delete
        if kind != "quorum" or not fits or "x-queue-type" in declared.arguments:
            return declared
        return replace(declared, arguments={**declared.arguments, "x-queue-type": kind})

    def check_queue_limit(self, name: str) -> None:
        """406 if the queue is new and the virtual host has as many queues as it may have."""
        limit = self.limits.get("max-queues", -1)
        if 0 <= limit <= len(self.queues) and name not in self.queues:
            text = f"cannot declare queue '{name}': queue limit in vhost '{self.name}' ({limit}) is reached"
            raise SoftError(ReplyCode.PRECONDITION_FAILED, text)

    def add_queue(self, queue: Queue, now: int) -> None:
        """A queue comes to be, by a client's wish or by a restart."""
        self.queues[queue.name] = queue
        self.broker.churn["queue_created"] += 1
        self.apply_policy(queue, now)
        self.changed()

    def delete_queue(self, queue: Queue) -> int:
        """The queue is no more, nor are its messages, bindings and consumers. Nothing is dead-lettered."""
        ready = queue.ready
        queue.is_deleted = True
        del self.queues[queue.name]
        self.broker.churn["queue_deleted"] += 1
        self.broker.past.add(queue.stats)
        self.broker.cost += PURGE_COST * queue.purge()
        if queue.durable and queue.owner is None:
            self.broker.keep.queue_gone(self.name, queue)
        for consumer in list(queue.consumers):
            consumer.channel.cancelled_by_broker(consumer)
        self._forget_destination(queue)
        self.changed()
        return ready

    def consumer_left(self, queue: Queue) -> None:
        """A consumer has gone; an auto-delete queue goes with its last one."""
        if queue.auto_delete and queue.had_consumers and not queue.consumers and not queue.is_deleted:
            self.delete_queue(queue)

    # --- bindings ------------------------------------------------------------------------------------------

    def bind(
        self, source: Exchange, target: Queue | Exchange, key: str, arguments: Mapping[str, object]
    ) -> None:
        """Messages go from the source to the target."""
        if source.bind(target, key, arguments):
            self.changed()
            if source.durable and target.durable and getattr(target, "owner", None) is None:
                self.broker.keep.binding(self.name, source, target, key, arguments)

    def unbind(
        self, source: Exchange, target: Queue | Exchange, key: str, arguments: Mapping[str, object]
    ) -> None:
        """They do so no longer."""
        if source.unbind(target, key, arguments):
            self.changed()
            self.broker.keep.binding_gone(self.name, source, target, key, arguments)
            self._auto_delete(source)

    def _forget_destination(self, target: Queue | Exchange) -> None:
        for source in list(self.exchanges.values()):
            if source.forget(target):
                self._auto_delete(source)

    def _auto_delete(self, exchange: Exchange) -> None:
        if exchange.auto_delete and exchange.is_unused and self.exchanges.get(exchange.name) is exchange:
            self.delete_exchange(exchange.name)

    def changed(self) -> None:
        """What was remembered about routes is not true any more."""
        self.version += 1
        self._forget_routes()

    # --- policies ------------------------------------------------------------------------------------------

    def policies_changed(self, now: int) -> None:
        """Store the policies and apply them to every queue and exchange at once."""
        deque(self.apply_policies(now), maxlen=0)

    def apply_policies(self, now: int) -> Iterator[None]:
        """Store the policies; the steps that are returned apply them to one queue or exchange each.

        The caller may do other work between two steps. A queue or exchange that is declared meanwhile is not missed: it
        gets its policy when it is declared.
        """
        for kind, policies in (("policies", self.policies), ("operator_policies", self.operator_policies)):
            rows = [policy.to_json() for policy in policies.list()]
            self.broker.keep.document(f"{kind}\x1f{self.name}", msgspec.json.encode(rows) if rows else None)
        return self._policy_steps(now)

    def _policy_steps(self, now: int) -> Iterator[None]:
        for exchange in list(self.exchanges.values()):
            self._apply_policy_to_exchange(exchange)
            self.changed()
            yield
        for queue in list(self.queues.values()):
            if not queue.is_deleted:
                self.apply_policy(queue, now)
            yield
        self.changed()

    def apply_policy(self, queue: Queue, now: int) -> None:
        """What is in force for this queue: its arguments, and the policies that fit it."""
        kind = queue.declared.queue_type
        policy = self.policies.effective("queue", queue.name, kind)
        operator = self.operator_policies.effective("queue", queue.name, kind)
        queue.policy = policy.name if policy else None
        queue.operator_policy = operator.name if operator else None
        options = queue.declared
        if policy or operator:
            options = merge(options, combined(policy, operator), self.broker.features)
        queue.apply(options, now)
        if queue.dead:
            at_least_once.policy_changed(self, queue, now)
        if options.dead_letter_strategy == "at-least-once" and not options.at_least_once:
            self.broker.log.warning(
                "dead-letter strategy is at-most-once queue=%s vhost=%s: at-least-once needs a dead-letter exchange"
                " and the overflow reject-publish",
                queue.name,
                self.name,
            )
        if options.expires is not None:
            self.broker.wake(queue, now + options.expires)

    def _apply_policy_to_exchange(self, exchange: Exchange) -> None:
        policy = self.policies.effective("exchange", exchange.name, None)
        alternate = policy.definition.get("alternate-exchange") if policy else None
        exchange.alternate = alternate if isinstance(alternate, str) else None

    # --- publishing ----------------------------------------------------------------------------------------

    def remember_route(self, payload: bytes, route: "Route") -> None:
        """Remember a route until something changes, or until there are too many."""
        self._make_room_for_route(route.queues)
        self.routes[payload] = route

    def _make_room_for_route(self, queues: list[Queue]) -> None:
        count = len(self.routes) + len(self._remembered)
        if count >= _MAX_ROUTES or self._route_queues > _MAX_ROUTE_QUEUES:
            self._forget_routes()
        self._route_queues += len(queues)

    def _forget_routes(self) -> None:
        self.routes.clear()
        self._remembered.clear()
        self._route_queues = 0

    def targets(
        self, exchange: str, keys: tuple[str, ...], headers: Callable[[], Mapping[str, object]]
    ) -> list[Queue]:
        """The queues that a message reaches; 404 if there is no such exchange."""
        if not exchange:
            return [queue for key in dict.fromkeys(keys) if (queue := self.queues.get(key)) is not None]
        reached = route(self.exchange(exchange), keys, headers, self.exchanges.get, _is_queue)
        return cast("list[Queue]", reached)  # it is made of what `_is_queue` said yes to

    def enqueue(
        self,
        queue: Queue,
        message: Message,
        now: int,
        expiration: int | None,
        priority: int,
        failures: int = 0,
    ) -> bool:
        """Put a message into a queue; False if the queue is full and refuses it."""
        if queue.refuses and not queue.has_room_for(message):
            if queue.options.overflow == "reject-publish-dlx":
                self.bury(queue, Entry(0, message, failures=failures), Reason.MAXLEN)
            return False
        queue.push(message, now, expiration, priority, failures)
        if queue.line and not queue.is_dirty:
            self.broker.mark(queue)
        return True

    # --- what queues ask of their ground -------------------------------------------------------------------

    def bury(self, queue: Queue, entry: Entry, reason: Reason) -> None:
        """Note the death for later, so that dead-lettering does not re-enter itself; a deleted queue has none."""
        if queue.is_deleted:
            self.forget(queue, entry)
            return
        self.broker.graves.append((self, queue, entry, reason))

    def forget(self, queue: Queue, entry: Entry) -> None:
        """The entry has left for good."""
        if entry.message.place:
            self.broker.keep.settled(queue, entry)

    def remember(self, queue: Queue, entry: Entry) -> None:
        """The entry has come to stay."""
        self.broker.keep.message(queue, entry)

    def delivered(self, queue: Queue, entry: Entry) -> None:
        """The entry was delivered and waits for its acknowledgement."""
        self.broker.keep.delivered(queue, entry)

    def returned(self, queue: Queue, entry: Entry) -> None:
        """The entry was delivered and has come back."""
        self.broker.keep.returned(queue, entry)

    def delayed(self, queue: Queue, entry: Entry, until: int) -> None:
        """The entry has come back and is delivered again from that time on."""
        self.broker.keep.delayed(queue, entry, until)

    def wake(self, queue: Queue, at: int) -> None:
        """Look after this queue at that time."""
        self.broker.wake(queue, at)

    # --- dead letters --------------------------------------------------------------------------------------

    def send_dead_letter(self, queue: Queue, entry: Entry, reason: Reason, now: int) -> None:
        """The message that died goes to the queue's dead-letter exchange, or nowhere."""
        options, message = queue.options, entry.message
        if options.at_least_once and entry.number:
            at_least_once.send_or_keep(self, queue, entry, reason, now)
            return
        exchange = options.dead_letter_exchange
        if exchange is None or not self.broker.features.dlx:
            self.broker.died(self, queue, reason, "disabled")
        elif exchange and exchange not in self.exchanges:
            self._fall_back(queue, entry, reason, f"dead-letter exchange '{exchange}' does not exist", now)
            self.broker.died(self, queue, reason, "dropped")
        else:
            self.broker.load(message)
            letter = dead_letter_of(
                message,
                queue=queue.name,
                reason=reason,
                exchange=exchange,
                routing_key=options.dead_letter_routing_key,
                seconds=self.broker.seconds(now),
            )
            raw = letter.properties
            targets = self.targets_of_the_dead(exchange, letter.keys, raw)
            reached = [target for target in targets if not is_cycle(letter.deaths, reason, target.name)]
            if not targets:
                self._fall_back(queue, entry, reason, f"nothing is bound to '{exchange}' for it", now)
            priority = priority_of(raw)
            if sum(target.keeps(letter) for target in reached) > 1:
                self.broker.keep.share(letter)
            for target in reached:
                self.enqueue(target, letter, now, None, priority, entry.failures)
            self.broker.cost += ENTRY_COST * len(reached)
            self.broker.died(self, queue, reason, "at_most_once" if reached else "dropped")
        if entry.number:
            self.forget(queue, entry)

    def targets_of_the_dead(self, exchange: str, keys: tuple[str, ...], raw: bytes) -> list[Queue]:
        """As `targets`, but remembered: the dead of one queue mostly go one way."""
        found = self._remembered.get((exchange, keys))
        if found is not None:
            return found
        asked: list[bool] = []

        def headers() -> dict[str, object]:
            asked.append(True)
            return read_headers(raw)

        found = self.targets(exchange, keys, headers)
        if not asked:
            self._make_room_for_route(found)
            self._remembered[exchange, keys] = found
        return found

    def _fall_back(self, queue: Queue, entry: Entry, reason: Reason, why: str, now: int) -> None:
        """Log a dead letter without a route, which RabbitMQ drops silently; a fallback queue may keep it."""
        fallback = self.queues.get(self.broker.dead_letter_fallback or "")
        kept = False
        if fallback is not None and fallback is not queue:
            self.broker.load(entry.message)
            letter = dead_letter_of(
                entry.message,
                queue=queue.name,
                reason=reason,
                exchange="",
                routing_key=fallback.name,
                seconds=self.broker.seconds(now),
            )
            kept = self.enqueue(fallback, letter, now, None, NO_PRIORITY, entry.failures)
        self.broker.unroutable(self, queue, reason, why, kept=kept)


def _is_queue(destination: object) -> bool:
    return isinstance(destination, Queue)
