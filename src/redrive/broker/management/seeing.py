"""Who is connected, and what is the broker as a whole?

Overview, connections, channels and consumers. A user who does not monitor sees only what is its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Final

from redrive._version import __version__
from redrive.broker.channel import Channel
from redrive.broker.core import RABBITMQ_VERSION, publish_counters
from redrive.broker.management.answers import NO_CONTENT, Answer, Json, no_such_object
from redrive.broker.management.ask import Ask, text
from redrive.broker.management.lists import Row, listed, one
from redrive.broker.management.nodes import EXCHANGE_TYPES, churn, contexts, versions
from redrive.broker.management.stats import queue_counters
from redrive.broker.management.tables import shown
from redrive.broker.management.views import (
    connection_details,
    consumer_view,
    depth,
    ends,
    node_of,
)
from redrive.broker.queue import QueueStats
from redrive.broker.server import Connection
from redrive.broker.session import Session
from redrive.broker.vhost import VHost

_NAME: Final = "RabbitMQ"  # what clients of this API look for


# --- the whole -----------------------------------------------------------------------------------------------


def overview(ask: Ask) -> Answer:
    """Versions, totals and rates; for those who monitor also where it listens."""
    vhosts, sessions = ask.vhosts(), visible_sessions(ask)
    view: Json = {
        "management_version": RABBITMQ_VERSION,
        "rates_mode": "basic",
        "exchange_types": EXCHANGE_TYPES,
        "product_version": RABBITMQ_VERSION,
        "product_name": _NAME,
        **versions(),
        "redrive_version": __version__,
        "cluster_name": ask.broker.cluster_name,
        "cluster_tags": {},
        "node_tags": {},
        "default_queue_type": "classic",
        "is_op_policy_updating_enabled": True,
        "churn_rates": churn(ask),
        "disable_stats": False,
        "enable_queue_totals": False,
        "message_stats": ask.desk.rates.look(("overview", ask.user), totals(ask, vhosts), ask.now),
        "queue_totals": ask.desk.rates.look(("depth", ask.user), depths(vhosts), ask.now),
        "object_totals": {
            "channels": sum(len(session.channels) for session in sessions),
            "connections": len(sessions),
            "consumers": sum(len(queue.consumers) for vhost in vhosts for queue in vhost.queues.values()),
            "exchanges": sum(len(vhost.exchanges) + 1 for vhost in vhosts),
            "queues": sum(len(vhost.queues) for vhost in vhosts),
        },
        "statistics_db_event_queue": 0,
    }
    if ask.is_a("monitoring"):
        view["node"] = node_of(ask)
        view["listeners"] = [
            {
                "node": node_of(ask),
                "protocol": protocol,
                "ip_address": address,
                "port": port,
                "tls": protocol.endswith("/ssl"),
                "socket_opts": {},
            }
            for protocol, address, port in ask.desk.listeners()
        ]
        view["contexts"] = contexts(ask)
    return one(ask, view)


def totals(ask: Ask, vhosts: Iterable[VHost]) -> dict[str, int]:
    """What happened to messages; to an administrator also in queues that are no more."""
    everything = QueueStats()
    if ask.is_a("administrator"):
        everything.add(ask.broker.past)
    for queue in chain.from_iterable(vhost.queues.values() for vhost in vhosts):
        everything.add(queue.stats)
    published = ask.broker.publishes() if ask.is_a("monitoring") else publish_counters(vhosts)
    return queue_counters(everything) | published


def depths(vhosts: Iterable[VHost]) -> dict[str, int]:
    """How many messages there are in all queues together."""
    together = dict.fromkeys(("messages", "messages_ready", "messages_unacknowledged"), 0)
    for queue in chain.from_iterable(vhost.queues.values() for vhost in vhosts):
        for name, count in depth(queue).items():
            together[name] += count
    return together


def version(_ask: Ask) -> Answer:
    """The version of RabbitMQ that this broker behaves as."""
    return Answer(body=f'"{RABBITMQ_VERSION}"', headers={"Content-Type": "application/json"})


def cluster_name(ask: Ask) -> Answer:
    """What the cluster is called."""
    return Answer(body={"name": ask.broker.cluster_name})


def put_cluster_name(ask: Ask) -> Answer:
    """Rename the cluster; the node keeps its name."""
    ask.need("administrator")
    ask.broker.rename_cluster(text(ask.json("name"), "name"))
    return NO_CONTENT


# --- connections ---------------------------------------------------------------------------------------------


def visible_sessions(ask: Ask) -> list[Session]:
    """The connections that the user may see: its own, or all for those who monitor; of one virtual host if named."""
    vhost = ask.vhost() if "vhost" in ask.params else None
    return [
        session
        for session in ask.broker.sessions
        if (ask.is_a("monitoring") or session.user == ask.user) and vhost in {None, session.vhost}
    ]


def connections(ask: Ask) -> Answer:
    """All connections."""
    sockets = _sockets(ask)
    rows = (
        Row((session.vhost.name, session.peer), session.peer, partial(_connection, ask, session, sockets))
        for session in visible_sessions(ask)
    )
    return listed(ask, rows)


def connection(ask: Ask) -> Answer:
    """One connection."""
    return one(ask, _connection(ask, _named_session(ask), _sockets(ask)))


def user_connections(ask: Ask) -> Answer:
    """List the connections of one user, by name only."""
    if ask.params["user"] != ask.user:
        ask.need_object("monitoring")
    rows = (
        Row((session.vhost.name, session.peer), session.peer, partial(_connection_row, ask, session))
        for session in _sessions_of_user(ask)
    )
    return listed(ask, rows)


def close_user_connections(ask: Ask) -> Answer:
    """Close the connections of one user: one's own, or any user's as an administrator."""
    if ask.params["user"] != ask.user:
        ask.need_object("administrator")
    for session in _sessions_of_user(ask):
        ask.broker.close(session, "Closed via management plugin")
    return NO_CONTENT


def _sessions_of_user(ask: Ask) -> list[Session]:
    return [session for session in visible_sessions(ask) if session.user == ask.params["user"]]


def _connection_row(ask: Ask, session: Session) -> Json:
    return {
        "name": session.peer,
        "vhost": session.vhost.name,
        "user": session.user,
        "node": node_of(ask),
    }


def close_connection(ask: Ask) -> Answer:
    """Close a connection: one's own, or any as an administrator."""
    session = _named_session(ask)
    if session.user != ask.user:
        ask.need_object("administrator")
    ask.broker.close(session, "Closed via management plugin")
    return NO_CONTENT


def _named_session(ask: Ask) -> Session:
    found = next((session for session in ask.broker.sessions if session.peer == ask.name), None)
    if found is None:
        raise no_such_object()
    if found.user != ask.user:
        ask.need_object("monitoring")
    return found


def _sockets(ask: Ask) -> Mapping[Session, Connection]:
    return {socket.session: socket for socket in ask.server.connections}


def _connection(ask: Ask, session: Session, sockets: Mapping[Session, Connection]) -> Json:
    (peer_host, peer_port), (host, port) = ends(session)
    limits = session.connection.limits
    socket = sockets.get(session)
    octets = {"recv_oct": socket.octets_in if socket else 0, "send_oct": socket.octets_out if socket else 0}
    given = session.client_properties.get("connection_name")
    return {
        "name": session.peer,
        **({"user_provided_name": given} if isinstance(given, str) else {}),
        "vhost": session.vhost.name,
        "user": session.user,
        "user_who_performed_action": session.user,
        "node": node_of(ask),
        "host": host,
        "port": port,
        "peer_host": peer_host,
        "peer_port": peer_port,
        "protocol": "AMQP 0-9-1",
        "type": "network",
        "auth_mechanism": session.mechanism,
        "client_properties": shown(session.client_properties),
        "channels": len(session.channels),
        "channel_max": limits.channel_max,
        "frame_max": limits.frame_max,
        "timeout": limits.heartbeat,
        "connected_at": session.opened_at,
        "state": "blocked" if session.was_blocked and session.publishes else "running",
        "ssl": socket is not None and socket.is_encrypted,
        **dict.fromkeys(("ssl_protocol", "ssl_cipher", "ssl_hash", "ssl_key_exchange"), None),
        **dict.fromkeys(
            ("peer_cert_issuer", "peer_cert_subject", "peer_cert_validity", "peer_cert_serial_number"), None
        ),
        "recv_cnt": socket.reads if socket else 0,
        "send_cnt": socket.writes if socket else 0,
        "send_pend": 0,
        **ask.desk.rates.look(("connection", session.peer, session.opened_at), octets, ask.now),
    }


# --- channels and consumers ----------------------------------------------------------------------------------


def channels(ask: Ask) -> Answer:
    """All channels."""
    return listed(ask, _channel_rows(ask, visible_sessions(ask)))


def connection_channels(ask: Ask) -> Answer:
    """The channels of one connection."""
    return listed(ask, _channel_rows(ask, [_named_session(ask)]))


def _channel_rows(ask: Ask, sessions: Iterable[Session]) -> Iterator[Row]:
    for session in sessions:
        for number, channel in session.channels.items():
            name = f"{session.peer} ({number})"
            yield Row((session.vhost.name, session.peer, number), name, partial(_channel, ask, channel))


def channel(ask: Ask) -> Answer:
    """One channel."""
    peer, _, rest = ask.name.rpartition(" (")
    number = rest.removesuffix(")")
    session = next((session for session in ask.broker.sessions if session.peer == peer), None)
    found = session.channels.get(int(number)) if session is not None and number.isdecimal() else None
    if found is None:
        raise no_such_object()
    if found.session.user != ask.user:
        ask.need_object("monitoring")
    view = _channel(ask, found)
    view["consumer_details"] = [consumer_view(ask, consumer) for consumer in found.consumers.values()]
    return one(ask, view | {"deliveries": [], "publishes": []})


def _channel(ask: Ask, channel: Channel) -> Json:
    session, transaction = channel.session, channel.transaction
    counters = {"deliver_get": channel.next_tag - 1}
    if channel.confirms:
        counters["publish"] = channel.next_confirm - 1
        counters["confirm"] = channel.next_confirm - 1 - len(channel.unconfirmed)
    key = ("channel", session.peer, session.opened_at, channel.number)
    return {
        "name": f"{session.peer} ({channel.number})",
        "number": channel.number,
        "vhost": session.vhost.name,
        "user": session.user,
        "user_who_performed_action": session.user,
        "node": node_of(ask),
        "connection_details": connection_details(session),
        "state": "running",
        "confirm": channel.confirms,
        "transactional": transaction is not None,
        "consumer_count": len(channel.consumers),
        "prefetch_count": channel.consumer_prefetch,
        "global_prefetch_count": 0,
        "messages_unacknowledged": len(channel.unacked),
        "messages_unconfirmed": len(channel.unconfirmed),
        "messages_uncommitted": len(transaction.publishes) if transaction else 0,
        "acks_uncommitted": len(transaction.held) if transaction else 0,
        "message_stats": ask.desk.rates.look(key, counters, ask.now),
    }


def consumers(ask: Ask) -> Answer:
    """All consumers."""
    rows = (
        Row((vhost.name, queue.name, consumer.tag), consumer.tag, partial(consumer_view, ask, consumer))
        for vhost in ask.vhosts()
        for queue in vhost.queues.values()
        for consumer in queue.consumers
    )
    return listed(ask, rows)
