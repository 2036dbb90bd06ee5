"""Show the node and its memory.

The broker is one process, so the node is always running and its cluster has no other member. Numbers that only an
Erlang runtime has are zero where tools require the field and are left out elsewhere.
"""

import os
import resource
import shutil
import sys
from typing import Final

from redrive._version import __version__
from redrive.amqp.sasl import AMQPLAIN, ANONYMOUS, EXTERNAL, PLAIN
from redrive.broker.core import RABBITMQ_VERSION
from redrive.broker.exchanges import KINDS
from redrive.broker.management.answers import NO_CONTENT, Answer, Json, no_such_object
from redrive.broker.management.ask import Ask
from redrive.broker.management.lists import Row, listed, one
from redrive.broker.management.views import node_of
from redrive.broker.memory import resident_bytes

PLUGINS: Final = ("rabbitmq_management", "rabbitmq_prometheus")  # what is built in and what tools call it
EXCHANGE_TYPES: Final = [
    {
        "name": kind,
        "description": f"AMQP {kind} exchange, as per the AMQP specification",
        "enabled": True,
    }
    for kind in sorted(KINDS)
]
_CHURN: Final = (
    "channel_closed", "channel_created", "connection_closed", "connection_created", "queue_created",
    "queue_declared", "queue_deleted",
)  # fmt: skip
# Parts of the memory of an Erlang node that have no counterpart here; tools require each of them.
_NO_MEMORY: Final = (
    "allocated_unused", "atom", "connection_channels", "connection_other", "connection_readers",
    "connection_writers", "metadata_store", "metadata_store_ets", "metrics", "mgmt_db", "mnesia", "msg_index",
    "other_ets", "other_system", "plugins", "quorum_ets", "quorum_queue_dlx_procs", "reserved_unallocated",
    "stream_queue_coordinator_procs", "stream_queue_procs", "stream_queue_replica_reader_procs", "code",
)  # fmt: skip


def nodes(ask: Ask) -> Answer:
    """List the nodes: this one."""
    ask.need("monitoring")
    return listed(ask, [Row((node_of(ask),), node_of(ask), lambda: _node(ask))])


def node(ask: Ask) -> Answer:
    """Show one node."""
    check_node(ask)
    return one(ask, _node(ask))


def check_node(ask: Ask) -> None:
    """404 unless the path names this node; only users who monitor may ask."""
    ask.need("monitoring")
    if ask.name != node_of(ask):
        raise no_such_object()


def rebalance(ask: Ask) -> Answer:
    """Rebalance the leaders of queues: with one node they are balanced."""
    ask.need("administrator")
    return NO_CONTENT


def churn(ask: Ask) -> Json:
    """How many connections, channels and queues were created and closed, with rates."""
    counters = {name: ask.broker.churn[name] for name in _CHURN}
    return ask.desk.rates.look(("churn",), counters, ask.now)


def contexts(ask: Ask) -> list[Json]:
    """Where the management API listens."""
    return [
        {
            "node": node_of(ask),
            "description": "RabbitMQ Management",
            "path": "/",
            "ip": address,
            "port": str(port),
            "ssl_opts": [],
        }
        for protocol, address, port in ask.desk.listeners()
        if protocol == "http"
    ]


def versions() -> Json:
    """The versions that tools read; the runtime is Python."""
    runtime = sys.implementation.name
    version = ".".join(map(str, sys.version_info[:3]))
    return {
        "rabbitmq_version": RABBITMQ_VERSION,
        "erlang_version": version,
        "erlang_full_version": f"{runtime} {version}",
    }


def _node(ask: Ask) -> Json:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    gauges = {
        "mem_used": resident_bytes(),
        "disk_free": shutil.disk_usage("/").free,
        "fd_used": _open_files(),
        "sockets_used": len(ask.server.connections),
        "proc_used": 1,
    }
    return {
        "name": node_of(ask),
        "type": "disc",
        "running": True,
        "being_drained": False,
        "os_pid": str(os.getpid()),
        "uptime": ask.now - ask.desk.started_at,
        "run_queue": 0,
        "processors": os.cpu_count() or 1,
        "proc_total": 1,
        "mem_limit": ask.broker.memory_limit or 0,
        "mem_alarm": ask.broker.blocked_because is not None,
        "mem_calculation_strategy": "rss",
        "disk_free_limit": 0,
        "disk_free_alarm": False,
        "fd_total": files,
        "sockets_total": ask.server.options.max_connections,
        "rates_mode": "basic",
        "exchange_types": EXCHANGE_TYPES,
        "auth_mechanisms": [
            {"name": name, "description": f"SASL {name} authentication mechanism", "enabled": True}
            for name in _mechanisms(ask)
        ],
        "contexts": contexts(ask),
        "partitions": [],
        "cluster_links": [],
        "log_files": [],
        "config_files": [],
        "net_ticktime": 60,
        "applications": [{"name": "redrive", "description": "redrive broker", "version": __version__}],
        "enabled_plugins": list(PLUGINS),
        **versions(),
        **ask.desk.rates.look(("node",), gauges, ask.now),
        **churn(ask),
    }


def _mechanisms(ask: Ask) -> list[str]:
    """The ways to log in that some client is offered."""
    offered = {AMQPLAIN, PLAIN}
    if ask.broker.anonymous is not None:
        offered.add(ANONYMOUS)
    if any(protocol == "amqp/ssl" for protocol, _, _ in ask.desk.listeners()):
        offered.add(EXTERNAL)
    return sorted(offered)


# --- memory --------------------------------------------------------------------------------------------------


def memory(ask: Ask) -> Answer:
    """Show what the memory is used for, in bytes: message bodies by queue type, and everything else."""
    check_node(ask)
    total = resident_bytes()
    totals = {"rss": total, "allocated": total, "erlang": total}
    return one(ask, {"memory": {**_breakdown(ask, total), "strategy": "rss", "total": totals}})


def relative_memory(ask: Ask) -> Answer:
    """Show what the memory is used for, in percent; what is there at all is at least one."""
    check_node(ask)
    total = resident_bytes()
    parts = {name: -(-size * 100 // total) for name, size in _breakdown(ask, total).items()}
    return one(ask, {"memory": {"total": 100, **parts}})


def _breakdown(ask: Ask, total: int) -> dict[str, int]:
    held = {"classic": 0, "quorum": 0}
    for _, queue in ask.broker.queues():
        held[queue.declared.queue_type] += queue.bytes
    bodies = max(sum(held.values()) - ask.broker.keep.paged_bytes(), 0)
    return {
        **dict.fromkeys(_NO_MEMORY, 0),
        "queue_procs": 0,
        "quorum_queue_procs": 0,
        "binary": min(bodies, total),
        "other_proc": max(total - bodies, 0),
    }


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  names are not needed, only their number
    except OSError:
        return 0
