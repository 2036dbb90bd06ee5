"""Which requests of the management API are compared, and which fields have to be in its answers?

`{v}` stands for the vhost, `{n}` for the node. A request is a method, a path behind `/api`, and a body. The embedded
broker answers as RabbitMQ 4.3; `OLDER` names what the older versions answer differently.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

Request = tuple[str, str, Any]

WORK = {"durable": True, "arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}}
HELLO = {
    "routing_key": "work",
    "properties": {
        "delivery_mode": 2,
        "headers": {"a": 1, "b": [True, 1.5, {"c": "d"}]},
        "content_type": "text/plain",
    },
    "payload": "hello",
    "payload_encoding": "string",
}
GET = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
NEW = {"name": "new", "durable": True, "auto_delete": False, "arguments": {}}
PUBLISH = "/exchanges/{v}/amq.default/publish"
_VHOST = "/vhosts/{v}?columns=name,description,tags,default_queue_type,metadata,protected_from_deletion"
BINDING = "/bindings/{v}/e/amq.fanout/q/dlq"

FURNITURE: list[Request] = [
    ("PUT", "/queues/{v}/work", WORK),
    ("PUT", "/queues/{v}/dlq", {"durable": True}),
    ("PUT", "/exchanges/{v}/topics", {"type": "topic", "durable": True}),
]

SCRIPTS: Mapping[str, list[Request]] = {
    "queues": [
        ("PUT", "/queues/{v}/work", WORK),
        ("PUT", "/queues/{v}/work", {}),
        ("PUT", "/queues/{v}/new", None),
        ("PUT", "/queues/{v}/bad", {"arguments": {"x-message-ttl": "a"}}),
        ("PUT", "/queues/{v}/bad", {"durable": "maybe"}),
        ("PUT", "/queues/{v}/bad", {"durable": None}),
        ("PUT", "/queues/{v}/bad", {"arguments": {"x": None}}),
        ("PUT", "/queues/{v}/bad", [1]),
        ("PUT", "/queues/{v}/amq.bad", {}),
        ("PUT", "/queues/nowhere/bad", {}),
        ("PUT", f"/queues/{{v}}/{'x' * 300}", {}),
        ("POST", "/queues/{v}/work", {}),
        ("GET", "/queues/{v}/none", None),
        ("GET", "/queues/nowhere", None),
        ("GET", "/queues/nowhere/none", None),
        ("GET", "/nothing", None),
        ("GET", "/queues/{v}/dlq/bindings", None),
        ("GET", "/queues/{v}/none/bindings", None),
        ("GET", "/queues/{v}/work/get", None),
        ("DELETE", "/queues/{v}/none", None),
        ("DELETE", "/queues/{v}/none/contents", None),
        ("DELETE", "/queues/{v}/new?if-empty=true&if-unused=true", None),
        ("GET", "/queues/{v}?page=9", None),
        ("GET", "/queues/{v}?page=0&page_size=5", None),
        ("GET", "/queues/{v}?page=x", None),
        ("GET", "/queues/{v}?page=1&page_size=501", None),
        ("GET", "/queues/{v}?page=1&page_size=1&columns=name", None),
        ("GET", "/queues/{v}?page=1&name=^W&use_regex=true&columns=name,vhost", None),
        ("GET", "/queues/{v}?sort=name&sort_reverse=true&columns=name,arguments", None),
    ],
    "exchanges": [
        ("PUT", "/exchanges/{v}/topics", {"type": "topic", "durable": True}),
        ("PUT", "/exchanges/{v}/topics", {"type": "direct", "durable": True}),
        ("PUT", "/exchanges/{v}/plain", {}),
        ("PUT", "/exchanges/{v}/bad", {"type": "no-such"}),
        ("PUT", "/exchanges/{v}/bad", {"type": "topic", "internal": "x"}),
        ("PUT", "/exchanges/{v}/amq.bad", {"type": "topic"}),
        ("DELETE", "/exchanges/{v}/amq.direct", None),
        ("GET", "/exchanges/{v}/none", None),
        ("DELETE", "/exchanges/{v}/none", None),
        ("POST", "/bindings/{v}/e/topics/q/dlq", {"routing_key": "a.#"}),
        ("DELETE", "/exchanges/{v}/topics?if-unused=true", None),
        ("DELETE", "/exchanges/{v}/topics", None),
        ("GET", "/exchanges/{v}?columns=name,type,durable,internal,auto_delete,arguments", None),
        ("GET", "/exchanges/{v}/none/bindings/source", None),
    ],
    "bindings": [
        ("POST", BINDING, {"routing_key": "k"}),
        ("POST", BINDING, {"routing_key": "k"}),
        ("POST", BINDING, {"routing_key": "k a/b~"}),
        ("POST", BINDING, {}),
        ("POST", "/bindings/{v}/e/amq.fanout/e/topics", {"routing_key": "x"}),
        ("POST", "/bindings/{v}/e/amq.fanout/q/none", {}),
        ("POST", "/bindings/{v}/e/none/q/dlq", {}),
        ("POST", "/bindings/{v}/e/amq.default/q/dlq", {}),
        ("GET", BINDING + "?sort=properties_key", None),
        ("GET", BINDING + "/k", None),
        ("GET", BINDING + "/none", None),
        ("GET", "/exchanges/{v}/topics/bindings/destination", None),
        ("GET", "/bindings/{v}/e/none/q/dlq", None),
        ("DELETE", BINDING + "/none", None),
        ("DELETE", BINDING + "/k%2Ba%252Fb%257E", None),
        ("DELETE", BINDING + "/~", None),
        ("GET", BINDING, None),
    ],
    "messages": [
        ("POST", PUBLISH, HELLO),
        ("POST", PUBLISH, {**HELLO, "payload": "/wAB", "payload_encoding": "base64"}),
        ("POST", PUBLISH, {**HELLO, "routing_key": "nowhere"}),
        ("POST", "/exchanges/{v}/none/publish", HELLO),
        ("POST", PUBLISH, {}),
        ("POST", PUBLISH, {**HELLO, "payload_encoding": "x"}),
        ("POST", PUBLISH, {**HELLO, "payload": "%%", "payload_encoding": "base64"}),
        ("POST", PUBLISH, {**HELLO, "payload": {}}),
        ("POST", PUBLISH, {**HELLO, "properties": {"expiration": "x"}}),
        ("POST", PUBLISH, {**HELLO, "properties": {"expiration": 5}}),
        ("POST", PUBLISH, {**HELLO, "properties": {"delivery_mode": "x"}}),
        ("POST", PUBLISH, {**HELLO, "properties": {"user_id": "somebody"}}),
        ("POST", PUBLISH, {**HELLO, "properties": {"headers": {"a": None}}}),
        ("POST", "/queues/{v}/work/get", {**GET, "truncate": 3}),
        ("POST", "/queues/{v}/work/get", {**GET, "encoding": "base64"}),
        ("POST", "/queues/{v}/work/get", {**GET, "count": "1", "ackmode": "reject_requeue_true"}),
        ("POST", "/queues/{v}/work/get", {**GET, "count": 1, "ackmode": "ack_requeue_false"}),
        ("POST", "/queues/{v}/work/get", {**GET, "count": "x"}),
        ("POST", "/queues/{v}/work/get", {**GET, "encoding": "x"}),
        ("POST", "/queues/{v}/work/get", {"ackmode": "ack_requeue_true"}),
        ("POST", "/queues/{v}/none/get", GET),
        ("DELETE", "/queues/{v}/work?if-empty=true", None),
        ("DELETE", "/queues/{v}/work/contents", None),
        ("POST", "/queues/{v}/work/get", GET),
        ("PUT", "/queues/{v}/full", {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}),
        ("POST", PUBLISH, {**HELLO, "routing_key": "full"}),
        ("POST", PUBLISH, {**HELLO, "routing_key": "full"}),
    ],
    "policies": [
        (
            "PUT",
            "/policies/{v}/p",
            {"pattern": "^work$", "definition": {"max-length": 9}, "apply-to": "queues"},
        ),
        ("PUT", "/policies/{v}/p", {"pattern": "^work$", "definition": {"max-length": 5}, "priority": 3}),
        ("PUT", "/policies/{v}/bad", {"pattern": "x", "definition": {"none": 1}}),
        ("PUT", "/policies/{v}/bad", {"pattern": "x", "definition": {}}),
        ("PUT", "/policies/{v}/bad", {"definition": {"max-length": 1}}),
        ("PUT", "/policies/nowhere/bad", {"pattern": "x", "definition": {"max-length": 1}}),
        ("GET", "/policies/{v}", None),
        ("GET", "/policies/{v}/p", None),
        ("GET", "/policies/{v}/none", None),
        ("DELETE", "/policies/{v}/none", None),
        ("DELETE", "/policies/{v}/p", None),
    ],
    "users": [
        ("PUT", "/users/{v}-u", {"password": "p", "tags": "management"}),
        ("PUT", "/users/{v}-u", {"password": "p", "tags": "policymaker,other"}),
        ("PUT", "/users/{v}-bad", {"password": "p"}),
        ("PUT", "/users/{v}-bad", {"password_hash": "zz", "tags": ""}),
        ("PUT", "/permissions/{v}/{v}-u", {"configure": "^m", "write": ".*", "read": ""}),
        ("PUT", "/permissions/{v}/{v}-u", {"configure": "^m", "write": ".*", "read": ".*"}),
        ("PUT", "/permissions/{v}/{v}-u", {"configure": ""}),
        ("PUT", "/permissions/{v}/{v}-none", {"configure": "", "write": "", "read": ""}),
        ("PUT", "/permissions/nowhere/{v}-u", {"configure": "", "write": "", "read": ""}),
        ("GET", "/permissions/{v}/{v}-u", None),
        ("GET", "/permissions/{v}/{v}-none", None),
        ("GET", "/users/{v}-u?columns=name,tags,limits,hashing_algorithm", None),
        ("GET", "/users/{v}-u/permissions", None),
        ("GET", "/users/{v}-none", None),
        ("DELETE", "/permissions/{v}/{v}-none", None),
        ("DELETE", "/users/{v}-none", None),
        ("PUT", "/vhosts/{v}", None),
        ("GET", "/vhosts/{v}-none", None),
        ("DELETE", "/vhosts/{v}-none", None),
        ("DELETE", "/permissions/{v}/{v}-u", None),
        ("DELETE", "/users/{v}-u", None),
    ],
    "checks": [
        ("GET", "/health/checks/alarms", None),
        ("GET", "/health/checks/local-alarms", None),
        # Not virtual-hosts: other tests make and delete some at the same time, and RabbitMQ finds those down.
        ("GET", "/health/checks/protocol-listener/amqp", None),
        ("GET", "/health/checks/port-listener/x", None),
        ("GET", "/health/checks/none", None),
        (
            "POST",
            "/definitions/{v}",
            {"queues": [{"name": "new", "durable": True, "auto_delete": False, "arguments": {}}]},
        ),
        ("GET", "/definitions/{v}-none", None),
        ("POST", "/definitions/{v}-none", {"queues": []}),
        ("POST", "/definitions", {"queues": [{"name": "x", "vhost": "{v}-none"}]}),
        ("PUT", "/definitions", {}),
        ("GET", "/health/checks/protocol-listener/amqp,none", None),
        ("GET", "/health/checks/certificate-expiration/1/days", None),
        ("GET", "/health/checks/certificate-expiration/x/days", None),
        ("GET", "/health/checks/certificate-expiration/1/hours", None),
        ("GET", "/health/checks/node-is-quorum-critical", None),
        ("GET", "/health/checks/is-in-service", None),
        ("GET", "/health/checks/below-node-connection-limit", None),
        ("GET", "/health/checks/ready-to-serve-clients", None),
        ("GET", "/health/checks/reached-target-cluster-size", None),
        ("GET", "/health/checks/metadata-store/initialized", None),
        ("GET", "/health/checks/metadata-store/initialized/with-data", None),
        ("GET", "/health/checks/quorum-queues-without-elected-leaders/vhost/{v}/", None),
        ("GET", "/health/checks/quorum-queues-without-elected-leaders/vhost/{v}/pattern/x", None),
        ("GET", "/healthchecks/node", None),
        ("GET", "/healthchecks/node/{n}", None),
        ("GET", "/healthchecks/node/none", None),
        ("GET", "/aliveness-test/{v}-none", None),
    ],
    "vhosts": [
        ("PUT", "/vhosts/{v}", {"default_queue_type": "none"}),
        ("PUT", "/vhosts/{v}", {"default_queue_type": ""}),
        ("PUT", "/vhosts/{v}", {"default_queue_type": 5}),
        ("PUT", "/vhosts/{v}", {"default_queue_type": "quorum", "description": "d", "tags": "a,b"}),
        ("GET", _VHOST, None),
        ("PUT", "/queues/{v}/typed", {"durable": True}),
        ("PUT", "/queues/{v}/typed", {"durable": True}),
        ("PUT", "/queues/{v}/typed", {"durable": True, "arguments": {"x-queue-type": "classic"}}),
        ("PUT", "/queues/{v}/transient", {"durable": False}),
        ("PUT", "/queues/{v}/auto", {"durable": True, "auto_delete": True}),
        ("POST", "/definitions/{v}", {"queues": [{**NEW, "name": "imported"}]}),
        ("GET", "/queues/{v}?columns=name,type,arguments", None),
        ("PUT", "/vhosts/{v}", {"default_queue_type": "classic"}),
        ("PUT", "/queues/{v}/typed", {"durable": True}),
        ("PUT", "/vhosts/{v}", {}),
        ("GET", _VHOST, None),
        ("POST", "/vhosts/{v}/deletion/protection", None),
        ("GET", _VHOST, None),
        ("DELETE", "/vhosts/{v}/deletion/protection", None),
        ("POST", "/vhosts/{v}-none/deletion/protection", None),
        ("POST", "/vhosts/{v}/start/{n}", None),
    ],
    "limits": [
        ("GET", "/vhost-limits/{v}", None),
        ("GET", "/vhost-limits/{v}-none", None),
        ("PUT", "/vhost-limits/{v}/max-queues", {"value": 3}),
        ("PUT", "/vhost-limits/{v}/max-queues", {"value": "x"}),
        ("PUT", "/vhost-limits/{v}/max-queues", {}),
        ("PUT", "/vhost-limits/{v}/none", {"value": 3}),
        ("PUT", "/vhost-limits/{v}-none/max-queues", {"value": 3}),
        ("PUT", "/vhost-limits/{v}/max-connections", {"value": -1}),
        ("GET", "/vhost-limits/{v}", None),
        ("GET", "/parameters/vhost-limits/{v}", None),
        ("PUT", "/queues/{v}/third", {"durable": True}),
        ("PUT", "/queues/{v}/fourth", {"durable": True}),
        ("PUT", "/queues/{v}/third", {"durable": True}),
        ("DELETE", "/vhost-limits/{v}/max-queues", None),
        ("DELETE", "/vhost-limits/{v}/max-queues", None),
        ("DELETE", "/vhost-limits/{v}-none/max-queues", None),
        ("PUT", "/queues/{v}/fourth", {"durable": True}),
        ("PUT", "/users/{v}-l", {"password": "p", "tags": ""}),
        ("PUT", "/user-limits/{v}-l/max-channels", {"value": 5}),
        ("PUT", "/user-limits/{v}-l/none", {"value": 5}),
        ("PUT", "/user-limits/{v}-l/max-channels", {"value": "x"}),
        ("GET", "/user-limits/{v}-l", None),
        ("GET", "/user-limits/{v}-none", None),
        ("GET", "/users/{v}-l?columns=name,limits", None),
        ("DELETE", "/user-limits/{v}-l/max-channels", None),
        ("GET", "/user-limits/{v}-l", None),
        ("DELETE", "/user-limits/{v}-none/max-channels", None),
        ("POST", "/users/bulk-delete", {"users": ["{v}-l", "{v}-none"]}),
        ("POST", "/users/bulk-delete", {"users": ["{v}-l"]}),
        ("POST", "/users/bulk-delete", {}),
        ("GET", "/users/{v}-l", None),
    ],
    "parameters": [
        ("GET", "/parameters/none", None),
        ("GET", "/parameters/none/{v}", None),
        ("GET", "/parameters/none/{v}-none", None),
        ("GET", "/parameters/none/{v}/x", None),
        ("PUT", "/parameters/none/{v}/x", {"value": 1}),
        ("PUT", "/parameters/none/{v}/x", {}),
        ("PUT", "/parameters/none/{v}-none/x", {"value": 1}),
        ("DELETE", "/parameters/none/{v}/x", None),
        ("PUT", "/policies/{v}/p", {"pattern": "^work$", "definition": {"max-length": 9}}),
        ("GET", "/parameters/policy/{v}", None),
        ("GET", "/parameters/policy/{v}/p", None),
        ("PUT", "/parameters/policy/{v}/p", {"value": {}}),
        ("PUT", "/global-parameters/{v}", {"value": {"a": 1}}),
        ("PUT", "/global-parameters/{v}", {"value": [2]}),
        ("PUT", "/global-parameters/{v}", {}),
        ("GET", "/global-parameters/{v}", None),
        ("DELETE", "/global-parameters/{v}", None),
        ("DELETE", "/global-parameters/{v}", None),
        ("GET", "/global-parameters/{v}", None),
        ("GET", "/operator-policies/{v}", None),
        ("GET", "/operator-policies/{v}-none", None),
        ("GET", "/operator-policies/{v}/p", None),
        ("DELETE", "/operator-policies/{v}/p", None),
        ("GET", "/vhosts/{v}/topic-permissions", None),
        ("GET", "/topic-permissions/{v}/{v}-none", None),
        ("PUT", "/cluster-name", {}),
    ],
    "tools": [
        ("PUT", "/queues/{v}/quorum", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
        ("GET", "/queues/quorum/{v}/work/status", None),
        ("GET", "/queues/quorum/{v}/none/status", None),
        ("POST", "/queues/{v}/work/actions", {"action": "none"}),
        ("POST", "/queues/{v}/work/actions", {"action": "sync"}),
        ("GET", "/queues/{v}/work/actions", None),
        ("PUT", "/feature-flags/none/enable", {}),
        ("PUT", "/feature-flags/quorum_queue/enable", {}),
        ("GET", "/feature-flags/quorum_queue/enable", None),
        ("POST", "/rebalance/queues", None),
        ("GET", "/rebalance/queues", None),
        ("GET", "/nodes/none", None),
        ("GET", "/nodes/none/memory", None),
        ("GET", "/auth/attempts/none", None),
        ("GET", "/auth/attempts/{n}/source", None),
        ("GET", "/connections/username/{v}", None),
        ("DELETE", "/connections/username/{v}", None),
        ("GET", "/connections/none", None),
        ("GET", "/exchanges/{v}//?columns=name,type,durable", None),
        ("POST", "/exchanges/{v}//publish", HELLO),
        ("POST", "/exchanges/{v}-none//publish", HELLO),
        ("POST", "/exchanges/{v}//publish", {**HELLO, "routing_key": "nowhere"}),
        ("GET", "/bindings/{v}/e//q/work", None),
        ("POST", "/bindings/{v}/e/topics/q/work", {"routing_key": "a.#"}),
        ("GET", "/bindings/{v}/e/topics/q/work/a.%23", None),
        ("GET", "/bindings/{v}/e/topics/q/work/a.%2523", None),
        ("DELETE", "/bindings/{v}/e/topics/q/work/a.%23", None),
        ("DELETE", "/bindings/{v}/e/topics/q/work/a.%23", None),
        ("GET", "/whoami", None),
    ],
}

# What users of each tag get; the user may enter the vhost, and configure what begins with m.
TAGS: Mapping[str, list[Request]] = {
    "": [("GET", "/whoami", None), ("GET", "/queues/{v}", None), ("PUT", "/queues/{v}/mine", {})],
    "management": [
        ("GET", "/nodes", None),
        ("GET", "/users", None),
        ("GET", "/permissions", None),
        ("GET", "/definitions", None),
        ("GET", "/vhosts/{v}", None),
        ("GET", "/queues/%2F", None),
        ("PUT", "/queues/{v}/mine", {}),
        ("PUT", "/queues/{v}/yours", {}),
        ("PUT", "/vhosts/{v}-none", None),
        ("PUT", "/users/{v}-none", {"password": "p", "tags": ""}),
        ("PUT", "/policies/{v}/p", {"pattern": "x", "definition": {"max-length": 1}}),
        ("POST", PUBLISH, HELLO),
        ("POST", "/queues/{v}/work/get", GET),
        ("POST", "/definitions", {}),
        ("GET", "/connections", None),
        ("GET", "/exchanges/%2F/amq.topic", None),
        ("GET", "/consumers/%2F", None),
        ("PUT", "/queues/%2F/mine", {}),
        ("POST", "/exchanges/%2F/amq.topic/publish", HELLO),
        ("POST", "/queues/%2F/none/get", GET),
        ("GET", "/vhosts/%2F/connections", None),
        ("GET", "/vhost-limits/{v}", None),
        ("GET", "/user-limits", None),
        ("GET", "/connections/username/{v}", None),
        ("DELETE", "/connections/username/{v}", None),
        ("GET", "/global-parameters", None),
        ("GET", "/parameters", None),
        ("GET", "/topic-permissions", None),
        ("GET", "/auth/hash_password/x", None),
        ("GET", "/auth/attempts/{n}", None),
        ("PUT", "/cluster-name", {"name": "x"}),
        ("PUT", "/vhost-limits/{v}/max-queues", {"value": 1}),
        ("PUT", "/operator-policies/{v}/p", {"pattern": "x", "definition": {"max-length": 1}}),
        ("POST", "/users/bulk-delete", {"users": []}),
        ("POST", "/vhosts/{v}/deletion/protection", None),
        ("POST", "/rebalance/queues", None),
        ("GET", "/healthchecks/node", None),
    ],
    "policymaker": [
        ("PUT", "/policies/{v}/p", {"pattern": "x", "definition": {"max-length": 1}}),
        ("DELETE", "/policies/{v}/p", None),
        ("GET", "/nodes", None),
        ("PUT", "/policies/%2F/p", {"pattern": "x", "definition": {"max-length": 1}}),
        ("PUT", "/global-parameters/{v}", {"value": 1}),
        ("DELETE", "/global-parameters/{v}", None),
        ("GET", "/parameters/none", None),
    ],
    "monitoring": [
        ("GET", "/users", None),
        ("PUT", "/policies/{v}/p", {"pattern": "x", "definition": {"max-length": 1}}),
        ("PUT", "/queues/{v}/yours", {}),
        ("GET", "/queues/%2F", None),
        ("GET", "/exchanges/%2F/amq.topic", None),
        ("DELETE", "/queues/%2F/none", None),
        ("GET", "/connections/username/{v}", None),
        ("GET", "/global-parameters", None),
        ("GET", "/auth/hash_password/x", None),
    ],
}


# Fields that clients look at; a type that RabbitMQ does not settle is not compared.
FIELDS: Mapping[str, str] = {
    "queue": """
        name vhost type durable auto_delete exclusive arguments policy effective_policy_definition state
        consumers messages messages_ready messages_unacknowledged messages_details message_bytes
        message_bytes_ready message_bytes_unacknowledged memory head_message_timestamp message_stats
        node consumer_details
    """,
    "overview": """
        rabbitmq_version product_name product_version management_version node cluster_name object_totals
        queue_totals message_stats listeners exchange_types contexts rates_mode
    """,
    "exchange": """
        name vhost type durable auto_delete internal arguments incoming outgoing
        user_who_performed_action
    """,
    "binding": """
        source vhost destination destination_type routing_key arguments properties_key
    """,
    "connection": """
        name vhost user node host port peer_host peer_port protocol auth_mechanism client_properties
        channels channel_max frame_max timeout connected_at state ssl type recv_oct send_oct
        recv_oct_details
    """,
    "channel": """
        name number vhost user node connection_details state confirm transactional consumer_count
        prefetch_count global_prefetch_count messages_unacknowledged messages_unconfirmed
        messages_uncommitted acks_uncommitted message_stats
    """,
    "consumer": """
        arguments ack_required active activity_status channel_details consumer_tag exclusive
        prefetch_count queue
    """,
    "policy": """
        vhost name pattern apply-to definition priority
    """,
    "node": """
        name type running os_pid uptime processors mem_used mem_limit mem_alarm disk_free
        disk_free_limit disk_free_alarm fd_total sockets_total partitions exchange_types
    """,
    "vhost": """
        name description tags metadata tracing cluster_state default_queue_type
    """,
    "user": """
        name password_hash hashing_algorithm tags limits
    """,
}


class Older(NamedTuple):
    """What older versions of RabbitMQ answer differently from 4.3, and thus from the embedded broker."""

    on: tuple[str, ...]
    where: str  # names of scripts and tags
    requests: str  # a pattern of "METHOD path"
    why: str

    def covers(self, generation: str, where: str, request: Request) -> bool:
        """Whether the answer to this request may differ on that version."""
        if generation not in self.on or where not in self.where.split():
            return False
        return re.fullmatch(self.requests, f"{request[0]} {request[1]}") is not None


_BEFORE_43 = ("4.0", "3.10")
_BEFORE_4 = ("3.10",)
OLDER: tuple[Older, ...] = (
    Older(
        _BEFORE_43,
        "management policymaker monitoring",
        r".*/%2F.*",
        "no access to a vhost: 401, or an empty list",
    ),
    Older(_BEFORE_43, "management", r"GET /user-limits", "limits of all users are shown to everybody"),
    Older(_BEFORE_43, "policies", r"PUT /policies/\{v\}/bad", "texts are escaped for HTML"),
    Older(_BEFORE_43, "checks", r"GET /health/checks/protocol-listener/.*", "one protocol at a time"),
    Older(
        _BEFORE_43, "checks", r".*/checks/(is|below|ready|reached|metadata|quorum)-.*", "these do not exist"
    ),
    Older(_BEFORE_43, "vhosts", r"PUT /vhosts/\{v\}", "a wrong default queue type is accepted"),
    Older(_BEFORE_43, "vhosts", r"GET /vhosts/\{v\}\?.*", "no protection; 3.10: no default queue type"),
    Older(_BEFORE_43, "vhosts management", r".*/deletion/protection", "no protection from deletion"),
    Older(
        _BEFORE_4,
        "queues vhosts",
        r"GET .*columns=.*arguments",
        "the queue type is not added to the arguments",
    ),
    Older(_BEFORE_4, "vhosts", r"PUT /queues/\{v\}/typed", "no default queue type"),
    Older(
        _BEFORE_4, "messages", r"POST .*/none/(publish|get)", "what is missing is named by the error of AMQP"
    ),
    Older(_BEFORE_4, "checks", r"POST /definitions", "a missing vhost is a term"),
    Older(
        _BEFORE_4, "limits", r"DELETE /(vhost|user)-limits/\{v\}-none/.*", "500 for a missing vhost or user"
    ),
    Older(_BEFORE_4, "limits", r"POST /users/bulk-delete", "a missing user is an error"),
    Older(_BEFORE_4, "tools", r"POST /exchanges/\{v\}-none//publish", "401 for a missing vhost"),
    Older(_BEFORE_4, "tools", r"GET /queues/quorum/\{v\}/work/status", "404 for a classic queue"),
    Older(_BEFORE_4, "tools", r"POST /queues/\{v\}/work/actions", "mirrored queues can be synchronised"),
    Older(_BEFORE_4, "tools", r"GET /nodes/none", "500 for a missing node"),
    Older(_BEFORE_4, "tools", r"GET /whoami", "no is_internal_user"),
    Older(_BEFORE_4, "login", r"GET /whoami", "another text for a failed login"),
    Older(_BEFORE_4, "management", r".*/connections/username/.*", "500 for a user who does not monitor"),
    Older(_BEFORE_4, "management monitoring", r"GET /auth/hash_password/.*", "this path does not exist"),
)
