"""Is the broker fit to be used?

Each check answers 200 with `{"status": "ok"}`, or 503 with the reason.
"""

from http import HTTPStatus
from typing import Final

from redrive.broker.management.answers import Answer, Json, bad_request, no_such_object
from redrive.broker.management.ask import Ask
from redrive.broker.management.views import node_of

_UNITS: Final = ("days", "weeks", "months", "years")
# Other words for the protocols that there are.
_PROTOCOLS: Final = {
    **dict.fromkeys(("amqp091", "amqp0.9.1", "amqp0-9-1", "amqp0_9_1"), "amqp"),
    "amqps": "amqp/ssl",
    **dict.fromkeys(("http1", "http1.1", "http_api", "management", "management_ui", "ui"), "http"),
}


def _ok(**more: object) -> Answer:
    return Answer(body={"status": "ok", **more})


def _failed(reason: str, **more: object) -> Answer:
    return Answer(503, {"status": "failed", "reason": reason, **more})


def alarms(ask: Ask) -> Answer:
    """Whether no alarm holds up publishers anywhere."""
    return _alarms(ask, "There are alarms in effect in the cluster")


def local_alarms(ask: Ask) -> Answer:
    """Whether no alarm holds up publishers on this node."""
    return _alarms(ask, "There are alarms in effect on the node")


def _alarms(ask: Ask, reason: str) -> Answer:
    why = ask.broker.blocked_because
    if why is None:
        return _ok()
    alarm: Json = {"node": node_of(ask), "resource": "memory" if "memory" in why else "disk"}
    return _failed(reason, alarms=[alarm])


def virtual_hosts(_ask: Ask) -> Answer:
    """Whether all virtual hosts run: here they do as long as the broker does."""
    return _ok()


def port_listener(ask: Ask) -> Answer:
    """Whether somebody listens on this port."""
    if not ask.name.isdecimal():
        raise bad_request("Invalid port")
    port, ports = int(ask.name), [port for _, _, port in ask.desk.listeners()]
    return _ok(port=port) if port in ports else _failed("No active listener", missing=port, ports=ports)


def protocol_listener(ask: Ask) -> Answer:
    """Whether there are listeners for these protocols, separated by commas."""
    wanted = [_PROTOCOLS.get(name, name) for name in ask.name.lower().split(",")]
    listening = [protocol for protocol, _, _ in ask.desk.listeners()]
    missing = [name for name in wanted if name not in listening]
    if missing:
        return _failed("No active listener", missing=missing, protocols=listening)
    return _ok(protocols=sorted(set(listening)))


def in_service(ask: Ask) -> Answer:
    """Whether clients can connect."""
    if not ask.server.listeners:
        return _failed("this rabbit node is not currently available to serve")
    return _ok()


def below_connection_limit(ask: Ask) -> Answer:
    """Whether there is room for one more connection."""
    count, limit = len(ask.server.connections), ask.server.options.max_connections
    if count < limit:
        return _ok()
    return _failed("node connection limit is reached", connections=count, limit=limit)


def ready(ask: Ask) -> Answer:
    """Whether clients can connect, and there is room for one more."""
    room = below_connection_limit(ask)
    return in_service(ask) if room.status == HTTPStatus.OK else room


def node_health(ask: Ask) -> Answer:
    """The check of RabbitMQ 3: whether no alarm holds up publishers on the node that the path names, or this one."""
    if ask.params.get("name", node_of(ask)) != node_of(ask):
        raise no_such_object()
    return local_alarms(ask)


def certificate_expiration(ask: Ask) -> Answer:
    """Whether the certificates of the listeners are valid for some time to come: there is nothing to see here.

    RabbitMQ reads the certificates of its TLS listeners. The broker does not keep the path of the one that it was
    started with, so that it cannot answer for TLS listeners and says so.
    """
    if not ask.params["within"].isdecimal():
        raise bad_request("Invalid expiration value.")
    if ask.params["unit"] not in _UNITS:
        raise bad_request("Time unit not recognised. Supported units: days, weeks, months, years.")
    if any(protocol.endswith("/ssl") for protocol, _, _ in ask.desk.listeners()):
        return _failed("certificates of TLS listeners are not checked by this broker")
    return _ok()


def always_ok(_ask: Ask) -> Answer:
    """Checks of what cannot fail in one process: the metadata store, elected leaders, the size of the cluster."""
    return _ok()


def aliveness(ask: Ask) -> Answer:
    """What clients of old ask instead of the other checks."""
    ask.vhost()
    return _ok()


def single_node(_ask: Ask) -> Answer:
    """Checks about other nodes: there are none."""
    return Answer(body={"status": "ok", "reason": "single node cluster"})
