"""What do the broker's queues, exchanges and bindings look like as JSON?

The fields, names and types are RabbitMQ's; what only an Erlang process has (reductions, garbage collection, backing
queue status) is left out. Nothing here changes anything.
"""

import zlib
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote_plus

from redrive.amqp.properties import read_field
from redrive.amqp.table import encode_table
from redrive.broker.consumer import Consumer
from redrive.broker.consumer_timeout import queue_timeout
from redrive.broker.exchanges import Exchange
from redrive.broker.line import QuorumLine
from redrive.broker.management.answers import Json
from redrive.broker.management.ask import Ask
from redrive.broker.management.stats import queue_counters
from redrive.broker.management.tables import shown
from redrive.broker.policies import combined
from redrive.broker.queue import Queue
from redrive.broker.session import Session
from redrive.broker.vhost import PREDECLARED, VHost

_ENTRY_BYTES: Final = 400  # about what an entry, its message and their octets take besides the body
_QUEUE_BYTES: Final = 4000
DEFAULT_EXCHANGE: Final = "amq.default"  # what the exchange without a name is called in paths


def stamp(milliseconds: int) -> str:
    """A time as RabbitMQ writes it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def node_of(ask: Ask) -> str:
    """The one node there is."""
    return ask.broker.node_name


# --- queues ------------------------------------------------------------------------------------------------


def queue_row(ask: Ask, vhost: VHost, queue: Queue) -> Json:
    """A queue in a list: fields without a value are left out."""
    return {name: value for name, value in queue_view(ask, vhost, queue).items() if value is not None}


def queue_view(ask: Ask, vhost: VHost, queue: Queue) -> Json:
    """A queue, with null for what it could have and has not."""
    counts = depth(queue)
    policy = vhost.policies.get(vhost.name, queue.policy or "")
    operator = vhost.operator_policies.get(vhost.name, queue.operator_policy or "")
    active = queue.consumers[0].tag if queue.options.single_active_consumer and queue.consumers else None
    size = queue.bytes
    view: Json = {
        "name": queue.name,
        "vhost": vhost.name,
        "node": node_of(ask),
        "type": queue.declared.queue_type,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.owner is not None,
        "internal": False,
        "arguments": queue_arguments(queue),
        "policy": queue.policy,
        "operator_policy": queue.operator_policy,
        "effective_policy_definition": dict(combined(policy, operator)),
        "state": "running",
        "consumers": len(queue.consumers),
        "consumer_capacity": _capacity(queue),
        "consumer_utilisation": _capacity(queue),
        "single_active_consumer_tag": active,
        "head_message_timestamp": _head_timestamp(queue),
        "message_bytes": size,
        "message_bytes_ready": queue.bytes_ready,
        "message_bytes_unacknowledged": queue.unacked_bytes,
        "message_bytes_ram": size,
        "messages_ram": counts["messages"],
        "memory": _QUEUE_BYTES + counts["messages"] * _ENTRY_BYTES + size,
        **ask.desk.rates.look(("queue depth", queue.id), counts, ask.now),
        **(_quorum_fields(ask, queue) if queue.declared.queue_type == "quorum" else _classic_fields(queue)),
    }
    if not queue.consumers:
        view["idle_since"] = stamp(queue.idle_since)
    counters = queue_counters(queue.stats)
    if any(counters.values()):
        view["message_stats"] = ask.desk.rates.look(("queue", queue.id), counters, ask.now)
    return view


def queue_arguments(queue: Queue) -> Json:
    """The arguments, with the type also where the client did not name it."""
    arguments: Json = shown(queue.arguments)
    return arguments | {"x-queue-type": queue.declared.queue_type}


def _classic_fields(queue: Queue) -> Json:
    return {
        "exclusive_consumer_tag": queue.consumers[0].tag if queue.exclusive_consumer else None,
        "messages_ready_ram": queue.ready,
        "messages_unacknowledged_ram": queue.unacked,
        "storage_version": 2,
    }


def _quorum_fields(ask: Ask, queue: Queue) -> Json:
    """The one node is every member, and each message is persistent."""
    limit = queue.options.delivery_limit
    return {
        "leader": node_of(ask),
        "members": [node_of(ask)],
        "online": [node_of(ask)],
        "delivery_limit": "unlimited" if limit is None or limit < 0 else limit,
        "messages_persistent": depth(queue)["messages"],
        "message_bytes_persistent": queue.bytes,
        "open_files": {node_of(ask): 0},
        **_held_back(queue),
        **_priorities(queue.line),
    }


def queue_details(ask: Ask, vhost: VHost, queue: Queue) -> Json:
    """A queue on its own."""
    view = queue_view(ask, vhost, queue)
    view["consumer_details"] = [consumer_view(ask, consumer) for consumer in queue.consumers]
    view |= {"deliveries": [], "incoming": []}
    if isinstance(queue.owner, Session):
        view["owner_pid_details"] = connection_details(queue.owner)
    return view


def depth(queue: Queue) -> dict[str, int]:
    """How many messages there are."""
    return {
        "messages": queue.ready + queue.unacked + queue.held,
        "messages_ready": queue.ready,
        "messages_unacknowledged": queue.unacked,
    }


def _held_back(queue: Queue) -> Json:
    """What a quorum queue has that cannot be delivered now, and why."""
    view: Json = {
        "delayed_retry": str(queue.delayed_retry or "disabled"),
        "messages_dlx": len(queue.dead),
        "message_bytes_dlx": queue.dead.bytes,
        "messages_delayed": len(queue.delayed),
    }
    if queue.delayed:
        view |= {"next_delayed_at": queue.delayed.next_at, "last_delayed_at": queue.delayed.last_at}
    return view


def _priorities(line: object) -> Json:
    """What is ready in a quorum queue, by priority."""
    if not isinstance(line, QuorumLine):
        return {}
    levels = {str(priority): count for priority, count in line.by_priority().items()}
    return {
        "messages_by_priority": levels,
        "messages_active_priorities": len(levels),
        "messages_ready_returned": line.returned,
    }


def _capacity(queue: Queue) -> float:
    """1 where a consumer could take a message at once, as far as can be seen from one look."""
    return float(any(consumer.room() > 0 for consumer in queue.consumers))


def _head_timestamp(queue: Queue) -> int | None:
    heads = queue.line.heads()
    if not heads or not heads[0].message.header:  # nothing there, or not read from disk yet
        return None
    value = read_field(heads[0].message.properties, "timestamp")
    return value if isinstance(value, int) else None


# --- consumers and who they belong to ------------------------------------------------------------------------


def consumer_view(ask: Ask, consumer: Consumer) -> Json:
    """A consumer."""
    queue, session = consumer.queue, consumer.channel.session
    waits = queue.options.single_active_consumer and queue.consumers[0] is not consumer
    single = queue.options.single_active_consumer and not waits
    return {
        "arguments": shown(consumer.arguments),
        "ack_required": not consumer.no_ack,
        "active": not waits,
        "activity_status": "waiting" if waits else "single_active" if single else _activity(consumer),
        "channel_details": {
            "connection_name": session.peer,
            "name": f"{session.peer} ({consumer.channel.number})",
            "node": node_of(ask),
            "number": consumer.channel.number,
            **{name: value for name, value in connection_details(session).items() if name != "name"},
            "user": session.user,
        },
        "consumer_tag": consumer.tag,
        "consumer_timeout": queue_timeout(queue),
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "queue": {"name": queue.name, "vhost": session.vhost.name},
    }


def _activity(consumer: Consumer) -> str:
    """A consumer of a classic queue that holds as many messages as it may is blocked; a quorum queue says up."""
    classic = consumer.queue.declared.queue_type == "classic"
    return "blocked" if classic and consumer.room() <= 0 else "up"


def connection_details(session: Session) -> Json:
    """Which connection it is, inside another thing."""
    host, port = ends(session)[0]
    return {"name": session.peer, "peer_host": host, "peer_port": port}


def ends(session: Session) -> tuple[tuple[str, int], tuple[str, int]]:
    """Address and port of the client and of the broker, as the connection's name tells them."""
    client, _, broker = session.peer.partition(" -> ")
    return _end(client), _end(broker)


def _end(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port) if port.isdecimal() else 0


# --- exchanges and bindings ----------------------------------------------------------------------------------


def exchange_view(vhost: VHost, exchange: Exchange | None) -> Json:
    """An exchange; None is the default one."""
    if exchange is None:
        exchange = Exchange("", "direct", durable=True)
    internal = not exchange.name or exchange.name in PREDECLARED
    view: Json = {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.kind,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": shown(exchange.arguments),
        "user_who_performed_action": "rmq-internal" if internal else "",
    }
    policy = vhost.policies.effective("exchange", exchange.name, None) if exchange.name else None
    if policy is not None:
        view["policy"] = policy.name
    return view


def bindings_of(vhost: VHost) -> Iterator[Json]:
    """All bindings, those of the default exchange first."""
    yield from (default_binding(vhost, name) for name in sorted(vhost.queues))
    for name in sorted(vhost.exchanges):
        yield from exchange_bindings(vhost, vhost.exchanges[name])


def default_binding(vhost: VHost, queue: str) -> Json:
    """How the default exchange is bound to every queue."""
    return _binding_view(vhost, "", "queue", queue, queue, {})


def exchange_bindings(vhost: VHost, source: Exchange) -> Iterator[Json]:
    """The bindings from an exchange."""
    for binding in source.bindings():
        target: Any = binding.destination
        kind = "queue" if isinstance(target, Queue) else "exchange"
        yield _binding_view(vhost, source.name, kind, target.name, binding.key, binding.arguments)


def _binding_view(
    vhost: VHost, source: str, kind: str, target: str, key: str, arguments: Mapping[str, object]
) -> Json:
    return {
        "source": source,
        "vhost": vhost.name,
        "destination": target,
        "destination_type": kind,
        "routing_key": key,
        "arguments": shown(arguments),
        "properties_key": properties_key(key, arguments),
    }


def properties_key(key: str, arguments: Mapping[str, object]) -> str:
    """What names a binding among those of the same two ends: the key, and a check sum of the arguments."""
    quoted = quote_plus(key).replace("~", "%7E")
    if not arguments:
        return quoted or "~"
    octets = encode_table({name: arguments[name] for name in sorted(arguments)})
    mark = urlsafe_b64encode(zlib.crc32(octets).to_bytes(4, "big")).decode().rstrip("=")
    return f"{quoted}~{mark}"
