"""Which requests of the management API are compared, and which fields have to be in its answers?

`{v}` stands for the vhost. A request is a method, a path behind `/api`, and a body.
"""

from collections.abc import Mapping
from typing import Any

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
    ],
    "policymaker": [
        ("PUT", "/policies/{v}/p", {"pattern": "x", "definition": {"max-length": 1}}),
        ("DELETE", "/policies/{v}/p", None),
        ("GET", "/nodes", None),
    ],
    "monitoring": [
        ("GET", "/users", None),
        ("PUT", "/policies/{v}/p", {"pattern": "x", "definition": {"max-length": 1}}),
        ("PUT", "/queues/{v}/yours", {}),
    ],
}


# AMQP.md's lists, and what clients look at besides; a type that RabbitMQ does not settle is not compared.
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
