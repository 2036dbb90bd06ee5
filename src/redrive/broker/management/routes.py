"""Which path is answered by what?

Paths are matched part by part before they are decoded, because `%2F` is the name of a virtual host and not two parts.
A name with a question mark may be empty: the default exchange has no name.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from redrive.broker.management import (
    definitions,
    features,
    health,
    limits,
    logins,
    messages,
    metrics,
    nodes,
    objects,
    pages,
    parameters,
    people,
    policies,
    refusals,
    seeing,
)
from redrive.broker.management.answers import Answer
from redrive.broker.management.ask import Ask, Handler

_CHECKS: Final = "/api/health/checks"
_BINDINGS: Final = "/api/bindings/{vhost}/e/{source?}/{kind:q|e}/{name}"

# Lists of what plugins of RabbitMQ bring.
_EMPTY: Final = (
    "extensions", "federation-links", "federation-links/{vhost}", "shovels", "shovels/{vhost}",
)  # fmt: skip
_TOPIC_PERMISSIONS: Final = (
    "topic-permissions", "vhosts/{vhost}/topic-permissions", "users/{user}/topic-permissions",
)  # fmt: skip
_QUORUM_CHECK: Final = f"{_CHECKS}/quorum-queues-without-elected-leaders"


def _index(_ask: Ask) -> Answer:
    return pages.index(ROUTES)


ROUTES: Final[Mapping[str, Mapping[str, Handler]]] = {
    "/api/overview": {"GET": seeing.overview},
    "/api/cluster-name": {"GET": seeing.cluster_name, "PUT": seeing.put_cluster_name},
    "/api/version": {"GET": seeing.version},
    "/api/nodes": {"GET": nodes.nodes},
    "/api/nodes/{name}": {"GET": nodes.node},
    "/api/nodes/{name}/memory": {"GET": nodes.memory},
    "/api/nodes/{name}/memory/relative": {"GET": nodes.relative_memory},
    "/api/whoami": {"GET": people.whoami},
    "/api/auth/attempts/{name}": {"GET": logins.attempts, "DELETE": logins.reset_attempts},
    "/api/auth/attempts/{name}/source": {"GET": logins.attempts_by_source, "DELETE": logins.reset_attempts},
    "/api/auth/hash_password/{name}": {"GET": logins.hashed_password},
    "/api/feature-flags": {"GET": features.feature_flags},
    "/api/feature-flags/{name}/enable": {"PUT": features.enable},
    "/api/deprecated-features": {"GET": features.deprecated},
    "/api/deprecated-features/used": {"GET": features.deprecated_in_use},
    "/api/rebalance/queues": {"POST": nodes.rebalance},
    "/api/queues": {"GET": objects.queues},
    "/api/queues/detailed": {"GET": objects.detailed_queues},
    "/api/queues/quorum/{vhost}/{name}/status": {"GET": objects.quorum_status},
    "/api/queues/{vhost}": {"GET": objects.queues},
    "/api/queues/{vhost}/{name}": {
        "GET": objects.queue,
        "PUT": objects.put_queue,
        "DELETE": objects.delete_queue,
    },
    "/api/queues/{vhost}/{name}/bindings": {"GET": objects.queue_bindings},
    "/api/queues/{vhost}/{name}/contents": {"DELETE": objects.purge_queue},
    "/api/queues/{vhost}/{name}/get": {"POST": messages.get},
    "/api/queues/{vhost}/{name}/actions": {"POST": objects.queue_action},
    "/api/exchanges": {"GET": objects.exchanges},
    "/api/exchanges/{vhost}": {"GET": objects.exchanges},
    "/api/exchanges/{vhost}/{name?}": {
        "GET": objects.exchange,
        "PUT": objects.put_exchange,
        "DELETE": objects.delete_exchange,
    },
    "/api/exchanges/{vhost}/{name?}/bindings/source": {"GET": objects.exchange_sources},
    "/api/exchanges/{vhost}/{name?}/bindings/destination": {"GET": objects.exchange_targets},
    "/api/exchanges/{vhost}/{name?}/publish": {"POST": messages.publish},
    "/api/bindings": {"GET": objects.bindings},
    "/api/bindings/{vhost}": {"GET": objects.bindings},
    _BINDINGS: {"GET": objects.bindings_between, "POST": objects.bind},
    _BINDINGS + "/{key}": {"GET": objects.binding, "DELETE": objects.unbind},
    "/api/connections": {"GET": seeing.connections},
    "/api/connections/username/{user}": {
        "GET": seeing.user_connections,
        "DELETE": seeing.close_user_connections,
    },
    "/api/connections/{name}": {"GET": seeing.connection, "DELETE": seeing.close_connection},
    "/api/connections/{name}/channels": {"GET": seeing.connection_channels},
    "/api/channels": {"GET": seeing.channels},
    "/api/channels/{name}": {"GET": seeing.channel},
    "/api/consumers": {"GET": seeing.consumers},
    "/api/consumers/{vhost}": {"GET": seeing.consumers},
    "/api/vhosts": {"GET": people.vhosts},
    "/api/vhosts/{name}": {"GET": people.vhost, "PUT": people.put_vhost, "DELETE": people.delete_vhost},
    "/api/vhosts/{name}/deletion/protection": {
        "POST": people.protect_vhost,
        "DELETE": people.unprotect_vhost,
    },
    "/api/vhosts/{name}/start/{node}": {"POST": people.start_vhost},
    "/api/vhosts/{vhost}/permissions": {"GET": people.permissions},
    "/api/vhosts/{vhost}/connections": {"GET": seeing.connections},
    "/api/vhosts/{vhost}/channels": {"GET": seeing.channels},
    "/api/users": {"GET": people.users},
    "/api/users/without-permissions": {"GET": people.users_without_permissions},
    "/api/users/bulk-delete": {"POST": people.delete_users},
    "/api/users/{name}": {"GET": people.user, "PUT": people.put_user, "DELETE": people.delete_user},
    "/api/users/{name}/permissions": {"GET": people.permissions},
    "/api/permissions": {"GET": people.permissions},
    "/api/permissions/{vhost}/{name}": {
        "GET": people.permission,
        "PUT": people.put_permission,
        "DELETE": people.delete_permission,
    },
    "/api/policies": {"GET": policies.policies},
    "/api/policies/{vhost}": {"GET": policies.policies},
    "/api/policies/{vhost}/{name}": {
        "GET": policies.policy,
        "PUT": policies.put_policy,
        "DELETE": policies.delete_policy,
    },
    "/api/operator-policies": {"GET": policies.operator_policies},
    "/api/operator-policies/{vhost}": {"GET": policies.operator_policies},
    "/api/operator-policies/{vhost}/{name}": {
        "GET": policies.operator_policy,
        "PUT": policies.put_operator_policy,
        "DELETE": policies.delete_operator_policy,
    },
    "/api/topic-permissions/{vhost}/{user}": {
        "GET": refusals.nothing_there,
        "PUT": refusals.topic_permissions,
        "DELETE": refusals.nothing_there,
    },
    "/api/vhost-limits": {"GET": limits.vhost_limits},
    "/api/vhost-limits/{vhost}": {"GET": limits.vhost_limits},
    "/api/vhost-limits/{vhost}/{name}": {"PUT": limits.put_vhost_limit, "DELETE": limits.delete_vhost_limit},
    "/api/user-limits": {"GET": limits.user_limits},
    "/api/user-limits/{name}": {"GET": limits.user_limits},
    "/api/user-limits/{name}/{kind}": {"PUT": limits.put_user_limit, "DELETE": limits.delete_user_limit},
    "/api/parameters": {"GET": parameters.parameters},
    "/api/parameters/{component}": {"GET": parameters.parameters},
    "/api/parameters/{component}/{vhost}": {"GET": parameters.parameters},
    "/api/parameters/{component}/{vhost}/{name}": {
        "GET": parameters.parameter,
        "PUT": parameters.put_parameter,
        "DELETE": parameters.delete_parameter,
    },
    "/api/global-parameters": {"GET": parameters.global_parameters},
    "/api/global-parameters/{name}": {
        "GET": parameters.global_parameter,
        "PUT": parameters.put_global_parameter,
        "DELETE": parameters.delete_global_parameter,
    },
    "/api/definitions": {"GET": definitions.export_all, "POST": definitions.import_all},
    "/api/all-configuration": {"GET": definitions.export_all, "POST": definitions.import_all},  # its old name
    "/api/definitions/{vhost}": {"GET": definitions.export_vhost, "POST": definitions.import_vhost},
    f"{_CHECKS}/alarms": {"GET": health.alarms},
    f"{_CHECKS}/local-alarms": {"GET": health.local_alarms},
    f"{_CHECKS}/virtual-hosts": {"GET": health.virtual_hosts},
    f"{_CHECKS}/port-listener/{{name}}": {"GET": health.port_listener},
    f"{_CHECKS}/protocol-listener/{{name}}": {"GET": health.protocol_listener},
    f"{_CHECKS}/is-in-service": {"GET": health.in_service},
    f"{_CHECKS}/ready-to-serve-clients": {"GET": health.ready},
    f"{_CHECKS}/node-is-quorum-critical": {"GET": health.single_node},
    f"{_CHECKS}/below-node-connection-limit": {"GET": health.below_connection_limit},
    f"{_CHECKS}/certificate-expiration/{{within}}/{{unit}}": {"GET": health.certificate_expiration},
    f"{_CHECKS}/metadata-store/initialized": {"GET": health.always_ok},
    f"{_CHECKS}/metadata-store/initialized/with-data": {"GET": health.always_ok},
    f"{_CHECKS}/reached-target-cluster-size": {"GET": health.always_ok},
    f"{_QUORUM_CHECK}/all-vhosts": {"GET": health.always_ok},
    f"{_QUORUM_CHECK}/all-vhosts/pattern/{{pattern}}": {"GET": health.always_ok},
    f"{_QUORUM_CHECK}/vhost/{{name}}": {"GET": health.always_ok},
    f"{_QUORUM_CHECK}/vhost/{{name}}/pattern/{{pattern}}": {"GET": health.always_ok},
    "/api/aliveness-test/{vhost}": {"GET": health.aliveness},
    "/api/healthchecks/node": {"GET": health.node_health},
    "/api/healthchecks/node/{name}": {"GET": health.node_health},
    **{f"/api/{name}": {"GET": refusals.empty_list} for name in _EMPTY},
    **{f"/api/{name}": {"GET": refusals.no_topic_permissions} for name in _TOPIC_PERMISSIONS},
    "/": {"GET": pages.to_index},
    "/api": {"GET": pages.to_index},
    "/api/index.html": {"GET": _index},
    "/cli": {"GET": pages.to_cli},
    "/cli/index.html": {"GET": pages.cli},
    "/metrics": {"GET": metrics.sums},
    "/metrics/per-object": {"GET": metrics.per_object},
}
# Open to clients that do not log in.
OPEN: Final = frozenset({"/metrics", "/", "/api", "/api/index.html", "/cli", "/cli/index.html"})


class Found(NamedTuple):
    """A route that fits a path."""

    pattern: str
    handlers: Mapping[str, Handler]
    params: Mapping[str, str]


def _parts(path: str) -> list[str]:
    """The parts of a path; one slash at the end changes nothing, more are empty parts."""
    return path.removeprefix("/").removesuffix("/").split("/")


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
        may_be_empty, name = name.endswith("?"), name.removesuffix("?")
        try:
            params[name] = unquote_to_bytes(part).decode()
        except UnicodeDecodeError:
            return None
        if (not part and not may_be_empty) or (choices and params[name] not in choices.split("|")):
            return None
    return params
