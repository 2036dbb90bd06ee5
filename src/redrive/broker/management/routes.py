"""Which path is answered by what?

Paths are matched part by part before they are decoded, because `%2F` is the name of a virtual host and not two parts.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from redrive.broker.management import definitions, health, messages, metrics, objects, people, seeing
from redrive.broker.management.ask import Handler

_CHECKS: Final = "/api/health/checks"
_BINDINGS: Final = "/api/bindings/{vhost}/e/{source}/{kind:q|e}/{name}"

# Tools ask for these lists before they do anything else.
_NOT_HERE: Final = (
    "extensions", "feature-flags", "global-parameters", "operator-policies", "parameters", "topic-permissions",
    "vhost-limits",
)  # fmt: skip

ROUTES: Final[Mapping[str, Mapping[str, Handler]]] = {
    "/api/overview": {"GET": seeing.overview},
    "/api/cluster-name": {"GET": seeing.cluster_name},
    "/api/nodes": {"GET": seeing.nodes},
    "/api/nodes/{name}": {"GET": seeing.node},
    "/api/whoami": {"GET": people.whoami},
    "/api/queues": {"GET": objects.queues},
    "/api/queues/{vhost}": {"GET": objects.queues},
    "/api/queues/{vhost}/{name}": {
        "GET": objects.queue,
        "PUT": objects.put_queue,
        "DELETE": objects.delete_queue,
    },
    "/api/queues/{vhost}/{name}/bindings": {"GET": objects.queue_bindings},
    "/api/queues/{vhost}/{name}/contents": {"DELETE": objects.purge_queue},
    "/api/queues/{vhost}/{name}/get": {"POST": messages.get},
    "/api/exchanges": {"GET": objects.exchanges},
    "/api/exchanges/{vhost}": {"GET": objects.exchanges},
    "/api/exchanges/{vhost}/{name}": {
        "GET": objects.exchange,
        "PUT": objects.put_exchange,
        "DELETE": objects.delete_exchange,
    },
    "/api/exchanges/{vhost}/{name}/bindings/source": {"GET": objects.exchange_sources},
    "/api/exchanges/{vhost}/{name}/bindings/destination": {"GET": objects.exchange_targets},
    "/api/exchanges/{vhost}/{name}/publish": {"POST": messages.publish},
    "/api/bindings": {"GET": objects.bindings},
    "/api/bindings/{vhost}": {"GET": objects.bindings},
    _BINDINGS: {"GET": objects.bindings_between, "POST": objects.bind},
    _BINDINGS + "/{key}": {"GET": objects.binding, "DELETE": objects.unbind},
    "/api/connections": {"GET": seeing.connections},
    "/api/connections/{name}": {"GET": seeing.connection, "DELETE": seeing.close_connection},
    "/api/connections/{name}/channels": {"GET": seeing.connection_channels},
    "/api/channels": {"GET": seeing.channels},
    "/api/channels/{name}": {"GET": seeing.channel},
    "/api/consumers": {"GET": seeing.consumers},
    "/api/consumers/{vhost}": {"GET": seeing.consumers},
    "/api/vhosts": {"GET": people.vhosts},
    "/api/vhosts/{name}": {"GET": people.vhost, "PUT": people.put_vhost, "DELETE": people.delete_vhost},
    "/api/vhosts/{vhost}/permissions": {"GET": people.permissions},
    "/api/vhosts/{vhost}/connections": {"GET": seeing.connections},
    "/api/vhosts/{vhost}/channels": {"GET": seeing.channels},
    "/api/users": {"GET": people.users},
    "/api/users/without-permissions": {"GET": people.users_without_permissions},
    "/api/users/{name}": {"GET": people.user, "PUT": people.put_user, "DELETE": people.delete_user},
    "/api/users/{name}/permissions": {"GET": people.permissions},
    "/api/permissions": {"GET": people.permissions},
    "/api/permissions/{vhost}/{name}": {
        "GET": people.permission,
        "PUT": people.put_permission,
        "DELETE": people.delete_permission,
    },
    "/api/policies": {"GET": people.policies},
    "/api/policies/{vhost}": {"GET": people.policies},
    "/api/policies/{vhost}/{name}": {
        "GET": people.policy,
        "PUT": people.put_policy,
        "DELETE": people.delete_policy,
    },
    "/api/definitions": {"GET": definitions.export_all, "POST": definitions.import_all},
    "/api/definitions/{vhost}": {"GET": definitions.export_vhost, "POST": definitions.import_vhost},
    f"{_CHECKS}/alarms": {"GET": health.alarms},
    f"{_CHECKS}/local-alarms": {"GET": health.local_alarms},
    f"{_CHECKS}/virtual-hosts": {"GET": health.virtual_hosts},
    f"{_CHECKS}/port-listener/{{name}}": {"GET": health.port_listener},
    f"{_CHECKS}/protocol-listener/{{name}}": {"GET": health.protocol_listener},
    f"{_CHECKS}/is-in-service": {"GET": health.in_service},
    f"{_CHECKS}/ready-to-serve-clients": {"GET": health.ready},
    f"{_CHECKS}/node-is-quorum-critical": {"GET": health.single_node},
    "/api/aliveness-test/{vhost}": {"GET": health.aliveness},
    **{f"/api/{name}": {"GET": seeing.nothing} for name in _NOT_HERE},
    "/metrics": {"GET": metrics.sums},
    "/metrics/per-object": {"GET": metrics.per_object},
}
OPEN: Final = frozenset({"/metrics"})  # for whoever asks


class Found(NamedTuple):
    """A route that fits a path."""

    pattern: str
    handlers: Mapping[str, Handler]
    params: Mapping[str, str]


def _parts(path: str) -> list[str]:
    return path.strip("/").split("/")


_TABLE: Final = [(pattern, _parts(pattern), handlers) for pattern, handlers in ROUTES.items()]


def find(raw_path: str) -> Found | None:
    """The route of a path that is not decoded yet; literal parts win over names, as they stand first."""
    parts = _parts(raw_path)
    for pattern, wanted, handlers in _TABLE:
        if len(wanted) == len(parts):
            params = _match(wanted, parts)
            if params is not None:
                return Found(pattern, handlers, params)
    return None


def _match(wanted: list[str], parts: list[str]) -> dict[str, str] | None:
    params: dict[str, str] = {}
    for want, part in zip(wanted, parts, strict=True):
        if not want.startswith("{"):
            if want != part:
                return None
            continue
        name, _, choices = want[1:-1].partition(":")
        try:
            params[name] = unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            return None
        if not part or (choices and params[name] not in choices.split("|")):
            return None
    return params
