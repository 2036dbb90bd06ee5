"""Is the broker fit to be used?

Each check answers 200 with `{"status": "ok"}`, or 503 with the reason.
"""

from typing import Final

from redrive.broker.management.answers import Answer, Json, bad_request
from redrive.broker.management.ask import Ask
from redrive.broker.management.views import node_of

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
    """Whether somebody listens for this protocol."""
    wanted = _PROTOCOLS.get(ask.name.lower(), ask.name.lower())
    protocols = [protocol for protocol, _, _ in ask.desk.listeners()]
    if wanted in protocols:
        return _ok(protocol=wanted)
    return _failed("No active listener", missing=wanted, protocols=protocols)


def in_service(ask: Ask) -> Answer:
    """Whether clients can connect."""
    if not ask.server.listeners:
        return _failed("this rabbit node is not currently available to serve")
    return _ok()


def ready(ask: Ask) -> Answer:
    """Whether clients can connect, and there is room for one more."""
    if len(ask.server.connections) >= ask.server.options.max_connections:
        return _failed("connection limit of the node has been reached")
    return in_service(ask)


def aliveness(ask: Ask) -> Answer:
    """What clients of old ask instead of the other checks."""
    ask.vhost()
    return _ok()


def single_node(_ask: Ask) -> Answer:
    """Checks about other nodes: there are none."""
    return Answer(body={"status": "ok", "reason": "single node cluster"})
