"""Show which features the broker has, and which deprecated ones are in use.

Feature flags switch behaviour in a cluster of several RabbitMQ versions. There is one version here, so that each flag
which names a behaviour of this broker is enabled and cannot be disabled.
"""

from functools import partial
from typing import Final

from redrive.broker.management.answers import NO_CONTENT, Answer, Json, bad_request
from redrive.broker.management.ask import Ask
from redrive.broker.management.lists import Row, listed

# RabbitMQ's names of what this broker does.
_FLAGS: Final = {
    "classic_queue_type_delivery_support": "Deliveries of classic queues by queue type",
    "detailed_queues_endpoint": "The path /api/queues/detailed",
    "drop_unroutable_metric": "Unroutable publishes that are dropped are counted",
    "empty_basic_get_metric": "basic.get on an empty queue is counted",
    "message_containers_deaths_v2": "Cycles of dead letters are detected by their x-death header",
    "quorum_queue": "Queues of type quorum",
    "rabbitmq_4.0.0": "Behaviour of RabbitMQ 4.0",
    "rabbitmq_4.1.0": "Behaviour of RabbitMQ 4.1",
    "rabbitmq_4.2.0": "Behaviour of RabbitMQ 4.2",
    "rabbitmq_4.3.0": "Behaviour of RabbitMQ 4.3",
    "user_limits": "Connections and channels of a user can be limited",
    "virtual_host_metadata": "Virtual hosts have a description, tags and a default queue type",
}
_TRANSIENT: Final = "transient_nonexcl_queues"
# What RabbitMQ 4.3 deprecates, and whether it is permitted here.
_DEPRECATED: Final = {
    "classic_queue_mirroring": ("denied", "removed"),
    "global_qos": ("denied", "denied_by_default"),
    "management_metrics_collection": ("permitted", "permitted_by_default"),
    "queue_master_locator": ("denied", "denied_by_default"),
    "ram_node_type": ("denied", "removed"),
    _TRANSIENT: ("permitted", "permitted_by_default"),
}


def feature_flags(ask: Ask) -> Answer:
    """List the feature flags."""
    return listed(ask, [Row((name,), name, partial(_flag, name)) for name in _FLAGS])


def enable(ask: Ask) -> Answer:
    """Enable a feature flag: all of them are."""
    ask.need("administrator")
    if ask.name not in _FLAGS:
        raise bad_request("unsupported")
    return NO_CONTENT


def _flag(name: str) -> Json:
    return {
        "name": name,
        "desc": _FLAGS[name],
        "doc_url": "",
        "state": "enabled",
        "stability": "required",
        "require_level": "hard",
        "experiment_level": "supported",
        "callbacks": [],
        "provided_by": "redrive",
    }


def deprecated(ask: Ask) -> Answer:
    """List the deprecated features."""
    return listed(ask, [Row((name,), name, partial(_deprecated, name)) for name in _DEPRECATED])


def deprecated_in_use(ask: Ask) -> Answer:
    """List the deprecated features that are in use: of those that are permitted, transient shared queues."""
    used = any(not queue.durable and queue.owner is None for _, queue in ask.broker.queues())
    return listed(ask, [Row((_TRANSIENT,), _TRANSIENT, partial(_deprecated, _TRANSIENT))] if used else [])


def _deprecated(name: str) -> Json:
    state, phase = _DEPRECATED[name]
    return {
        "name": name,
        "state": state,
        "desc": "",
        "deprecation_phase": phase,
        "doc_url": "",
        "provided_by": "redrive",
    }
