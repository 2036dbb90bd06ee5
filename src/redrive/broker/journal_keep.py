"""How does the core's story become records of the journal, and a journal a broker again?

Definitions are documents under a key that says what they are; field tables in them stay encoded, so that every wire
type survives. A message's place is even for an ordinary message and odd for a dead letter, which is all that has to be
known about it before it is read: after a restart messages are read from disk when somebody wants them.
"""

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.amqp.hot import publish_payload, route_of
from redrive.amqp.table import decode_table, encode_table
from redrive.broker.arguments import RETIRED, Declared
from redrive.broker.at_least_once import KeptLetter, keep
from redrive.broker.dead_letter import DeadLetter, Reason
from redrive.broker.exchanges import Exchange
from redrive.broker.journal import Journal
from redrive.broker.journal_recovery import Recovered, RecoveredEntry, RecoveredQueue
from redrive.broker.keep import Keep
from redrive.broker.message import PROPERTIES_AT, Entry, Message, priority_of
from redrive.broker.policies import OperatorPolicy, Policy
from redrive.broker.queue import Queue

if TYPE_CHECKING:
    from redrive.broker.core import Broker
    from redrive.broker.vhost import VHost

_DEEP: Final = 2000  # in a queue longer than this, bodies that are on disk leave memory
_PRIORITY_FLAG: Final = 0x08  # in the first octet of the properties
_CLEAN: Final = "clean"  # a document that is there only between an orderly stop and the next start
_CLUSTER_NAME: Final = "cluster_name"
# Why an entry is held back, as journals say it by number: it is delayed, or dead for one of the reasons.
_DELAYED: Final = 0
_REASONS: Final = (None, Reason.REJECTED, Reason.EXPIRED, Reason.MAXLEN, Reason.DELIVERY_LIMIT)
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class JournalKeep(Keep):
    """A `Keep` with a journal behind it."""

    def __init__(self, directory: Path, *, salvage: bool = False) -> None:
        self.journal, self._recovered = Journal.open(directory, salvage=salvage)
        self._is_restoring = False
        self._paged = 0
        self._next_place = self._recovered.next_place | 1
        # Deliveries of one quorum queue that are not in the journal yet: entries in a row.
        self._out_queue = 0
        self._out_first = 0
        self._out_last = 0
        self._durable = self.journal.position()
        self._leaving: deque[tuple[int, Message]] = (
            deque()
        )  # bodies to let go of, once their position is durable

    @property
    def recovered(self) -> Recovered:
        """What was there on opening."""
        return self._recovered

    @property
    def has_cluster_name(self) -> bool:
        """Whether the name of the cluster was there on opening; version 1 did not store one unless it was set."""
        return _CLUSTER_NAME in self._recovered.definitions

    # --- flushing ------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Bring everything to disk; runs in a thread."""
        self._durable = self.journal.flush()
        return self._durable

    def tidy(self) -> bool:
        """A slice of housekeeping after a flush, in the event loop; True if there is more to do."""
        durable = self._durable
        while self._leaving and self._leaving[0][0] <= durable:
            message = self._leaving.popleft()[1]
            if message.body is not None and self.journal.is_readable(message.place):
                message.body = None
                self._paged += message.size
        return self.journal.compact_step()

    def close(self) -> None:
        """An orderly end."""
        self._check_out()
        self.journal.put_definition(_CLEAN, b"")
        self.journal.close()

    # --- definitions ---------------------------------------------------------------------------------------

    def exchange(self, vhost: str, exchange: Exchange) -> None:
        """A durable exchange came."""
        fields = (exchange.kind, exchange.auto_delete, exchange.internal, encode_table(exchange.arguments))
        self.document(_key("exchange", vhost, exchange.name), _encode(fields))

    def exchange_gone(self, vhost: str, exchange: Exchange) -> None:
        """It went, and its bindings with it."""
        for binding in exchange.bindings():
            target = binding.destination
            if isinstance(target, Queue | Exchange):
                self.binding_gone(vhost, exchange, target, binding.key, binding.arguments)
        self._unbind_target(vhost, "exchange", exchange.name)
        self.document(_key("exchange", vhost, exchange.name), None)

    def queue(self, vhost: str, queue: Queue) -> None:
        """A durable queue came."""
        self.document(
            _key("queue", vhost, queue.name),
            _encode((queue.id, queue.auto_delete, encode_table(queue.arguments))),
        )

    def queue_gone(self, vhost: str, queue: Queue) -> None:
        """It went, and its messages and bindings with it."""
        self._check_out()
        self.journal.purge_queue(queue.id)
        self._unbind_target(vhost, "queue", queue.name)
        self.document(_key("queue", vhost, queue.name), None)

    def binding(
        self,
        vhost: str,
        source: Exchange,
        target: Queue | Exchange,
        key: str,
        arguments: Mapping[str, object],
    ) -> None:
        """A binding between durable things came."""
        self.document(_binding_key(vhost, source, target, key, arguments), b"")

    def binding_gone(
        self,
        vhost: str,
        source: Exchange,
        target: Queue | Exchange,
        key: str,
        arguments: Mapping[str, object],
    ) -> None:
        """It went."""
        self.document(_binding_key(vhost, source, target, key, arguments), None)

    def _unbind_target(self, vhost: str, kind: str, name: str) -> None:
        start = _key("binding", vhost, kind, name) + "\x1f"
        for key in self.journal.definition_keys(start):
            self.document(key, None)

    def document(self, key: str, value: bytes | None) -> None:
        """A definition is new, changed or gone."""
        if self._is_restoring:
            return
        if value is None:
            self.journal.delete_definition(key)
        else:
            self.journal.put_definition(key, value)

    # --- messages ------------------------------------------------------------------------------------------

    def share(self, message: Message) -> None:
        """The message goes to several queues: it is written once, and each of them refers to it."""
        message.place = self._place_of(message)
        body = message.body if message.body is not None else b""
        self.journal.add_message(message.place, message.exchange, message.keys, message.header, body)

    def message(self, queue: Queue, entry: Entry) -> None:
        """A persistent message came into a durable queue."""
        message = entry.message
        if message.place:
            self.journal.enqueue(message.place, queue.id, entry.number, entry.expires_at)
        else:
            message.place = self._place_of(message)
            body = message.body if message.body is not None else b""
            self.journal.publish(
                message.place,
                queue.id,
                entry.number,
                entry.expires_at,
                message.exchange,
                message.keys,
                message.header,
                body,
            )
        if entry.failures:
            self.journal.count(queue.id, entry.number, entry.acquired, entry.failures)
        if len(queue.line) > _DEEP:
            self._leaving.append((self.journal.position(), message))

    def _place_of(self, message: Message) -> int:
        place = self._next_place + 1 + isinstance(message, DeadLetter)
        self._next_place += 2
        return place

    def settled(self, queue: Queue, entry: Entry) -> None:
        """It went."""
        if entry.message.body is None:
            self._paged -= entry.message.size
        if self._out_queue:
            self._check_out()
        self.journal.settle(queue.id, entry.number)

    def delivered(self, queue: Queue, entry: Entry) -> None:
        """A message of a quorum queue was delivered and waits for its acknowledgement.

        A row of deliveries becomes one record, at the end of the turn or before one of them is settled: after a crash
        they are failures, and what has never been delivered is not.
        """
        number = entry.number
        if number == self._out_last + 1 and queue.id == self._out_queue:
            self._out_last = number
        else:
            self._check_out()
            self._out_queue = queue.id
            self._out_first = self._out_last = number

    def _check_out(self) -> None:
        if self._out_queue:
            self.journal.check_out(self._out_queue, self._out_first, self._out_last)
            self._out_queue = 0

    def returned(self, queue: Queue, entry: Entry) -> None:
        """It was delivered and came back."""
        if entry.message.place:
            self._check_out()
            self.journal.count(queue.id, entry.number, entry.acquired, entry.failures)

    def delayed(self, queue: Queue, entry: Entry, until: int) -> None:
        """After it came back: it is not delivered before this time."""
        if entry.message.place:
            self.journal.hold(queue.id, entry.number, _DELAYED, until)

    def died(self, queue: Queue, entry: Entry, reason: Reason, at: int) -> None:
        """It stays, as a dead letter that was not taken by all its targets."""
        if entry.message.place:
            self.returned(queue, entry)
            self.journal.hold(queue.id, entry.number, _REASONS.index(reason), at)

    def position(self, message: Message) -> int:
        """Where the message stands: 0 if nobody has to wait for it."""
        return self.journal.position() if message.place else 0

    def last_position(self) -> int:
        """Where the last thing said stands."""
        if self._out_queue:
            self._check_out()
        return self.journal.position()

    def durable_position(self) -> int:
        """Up to where everything is safe."""
        return self._durable

    def body(self, message: Message) -> bytes:
        """A body from disk, and with it everything else about a message that was there before the restart."""
        stored = self.journal.read_message(message.place)
        if not message.header:
            message.exchange, message.keys, message.header = stored.exchange, stored.keys, stored.header
            payload = publish_payload(stored.exchange.encode(), stored.keys[0].encode())
            message.route = route_of(payload)
        return stored.body

    def load(self, message: Message) -> None:
        """Have a body in memory again."""
        message.body = self.body(message)
        self._paged -= message.size

    def release_memory(self) -> None:
        """Give up memory that was needed in a flood and is not any more."""
        self.journal.release_memory()

    def paged_bytes(self) -> int:
        """How many bytes of bodies are on disk only."""
        return self._paged

    # --- starting again ------------------------------------------------------------------------------------

    def restore(self, broker: "Broker", now: int) -> None:
        """Make the broker what it was; what it says meanwhile is known already."""
        self._is_restoring = True
        try:
            self._restore(broker, now)
        finally:
            self._is_restoring = False
        if _CLEAN in self._recovered.definitions:
            self.journal.delete_definition(_CLEAN)

    def _restore(self, broker: "Broker", now: int) -> None:
        found = self._recovered
        documents = {tuple(key.split("\x1f")): value for key, value in found.definitions.items()}
        clean = (_CLEAN,) in documents
        by_kind: dict[str, list[tuple[tuple[str, ...], bytes]]] = {}
        for (kind, *rest), value in documents.items():
            by_kind.setdefault(kind, []).append((tuple(rest), value))
        for (name,), value in by_kind.get("vhost", []):
            described: dict[str, Any] = msgspec.json.decode(value)
            vhost = broker.add_vhost(name)
            vhost.limits.update(described.pop("limits", {}))
            vhost.metadata.update(described)
        self._restore_people(broker, by_kind)
        queues: dict[int, tuple[VHost, Queue]] = {}
        for (vhost_name, name), value in by_kind.get("exchange", []):
            kind, auto_delete, internal, arguments = _decode(value)
            declared = Declared(True, auto_delete, decode_table(arguments)[0], type=kind, internal=internal)
            broker.vhosts[vhost_name].declare_exchange(name, declared)
        for (vhost_name, name), value in by_kind.get("queue", []):
            number, auto_delete, arguments = _decode(value)
            vhost = broker.vhosts[vhost_name]
            broker.queue_ids_start_at(number)
            table = {key: kept for key, kept in decode_table(arguments)[0].items() if key not in RETIRED}
            declared = Declared(True, auto_delete, table)
            queues[number] = (vhost, vhost.declare_queue(name, declared, owner=None, now=now))
        broker.queue_ids_start_at(max(queues, default=0) + 1)
        for place, _ in by_kind.get("binding", []):
            self._restore_binding(broker, place)
        for number, entries in found.queues.items():
            if number in queues:
                self._restore_entries(queues[number][1], entries, now, clean=clean)

    def _restore_entries(self, queue: Queue, entries: RecoveredQueue, now: int, *, clean: bool) -> None:
        """Fill a queue; in a quorum queue returned entries come back in the order of their return, then failed ones."""
        returned: dict[int, Entry | None] = dict.fromkeys(entries.returned if queue.is_quorum else ())
        failed: list[Entry] = []
        for stored in entries:
            entry = _entry_of(stored)
            self._paged += stored.size
            if queue.declared.max_priority or (queue.is_quorum and stored.flags & _PRIORITY_FLAG):
                self.body(entry.message)  # to read its header
                entry.priority = priority_of(entry.message.properties)
            if not queue.is_quorum and not clean:
                entry.failures = max(entry.failures, 1)  # any message may have been delivered
                entry.redelivered = True
            if stored.held is not None:
                why, at = stored.held
                reason = _REASONS[why]
                if reason is None:
                    queue.restore(entry, delayed_until=at)
                else:
                    queue.restore_number(entry)
                    keep(queue, KeptLetter(entry, reason, at), retry_at=now)
            elif stored.checked_out:
                failed.append(entry)
            elif entry.number in returned:
                returned[entry.number] = entry
            else:
                queue.restore(entry)
        for back in returned.values():
            if back is not None:
                queue.restore(back)
        for entry in failed:
            queue.restore_delivered(entry, now)
        queue.trim()
        queue.tick(now)

    def _restore_people(
        self, broker: "Broker", by_kind: dict[str, list[tuple[tuple[str, ...], bytes]]]
    ) -> None:
        for _, value in by_kind.get("users", []):
            broker.users.load(msgspec.json.decode(value), is_stored=True)
        for _, value in by_kind.get(_CLUSTER_NAME, []):
            broker.rename_cluster(msgspec.json.decode(value))
        for (name,), value in by_kind.get("global_parameter", []):
            broker.set_global_parameter(name, msgspec.json.decode(value))
        for (vhost_name,), value in by_kind.get("policies", []):
            rows: list[dict[str, Any]] = msgspec.json.decode(value)
            for row in rows:
                stored = Policy.from_json(row, vhost_name, is_stored=True)
                broker.vhosts[vhost_name].policies.put(stored, is_stored=True)
        for (vhost_name,), value in by_kind.get("operator_policies", []):
            for row in msgspec.json.decode(value):
                stored = OperatorPolicy.from_json(row, vhost_name, is_stored=True)
                broker.vhosts[vhost_name].operator_policies.put(stored, is_stored=True)

    def _restore_binding(self, broker: "Broker", place: tuple[str, ...]) -> None:
        vhost_name, kind, target_name, source_name, key, arguments = place
        vhost = broker.vhosts[vhost_name]
        targets: Callable[[str], Queue | Exchange | None] = (
            vhost.queues.get if kind == "queue" else vhost.exchanges.get
        )
        target, source = targets(target_name), vhost.exchanges.get(source_name)
        if target is not None and source is not None:
            vhost.bind(source, target, key, decode_table(bytes.fromhex(arguments))[0])


def _entry_of(stored: RecoveredEntry) -> Entry:
    kind = DeadLetter if stored.place & 1 else Message
    meta = max(0, stored.header_size - PROPERTIES_AT)
    message = kind("", ("",), b"", b"", None, True, stored.size, meta, stored.place)
    entry = Entry(stored.number, message)
    entry.expires_at = stored.expires_at
    entry.acquired = stored.acquired
    entry.failures = stored.failures
    entry.redelivered = bool(stored.acquired or stored.failures)
    return entry


def _key(*words: str) -> str:
    return "\x1f".join(words)


def _binding_key(
    vhost: str, source: Exchange, target: Queue | Exchange, key: str, arguments: Mapping[str, object]
) -> str:
    kind = "queue" if isinstance(target, Queue) else "exchange"
    return _key("binding", vhost, kind, target.name, source.name, key, encode_table(arguments).hex())
