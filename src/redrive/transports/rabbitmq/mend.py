"""With which command is a fault mended?

The rule: what is told can be typed as it stands, changes nothing but what it is about, and holds no password (`curl -u
USER` asks for it). The management API is used, because it is the one way that every RabbitMQ and the embedded broker
have in common; what is merely missing is made by redrive itself.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from redrive.transports.finding import PROVISION
from redrive.transports.rabbitmq.delivery_counts import UNLIMITED
from redrive.transports.rabbitmq.found import DEFAULT_EXCHANGE, Access, Found, FoundQueue

_ABOVE_UNKNOWN: Final = 100  # a policy that cannot be seen has most likely a lower priority than this


def exactly(name: str) -> str:
    """The regular expression for this one name."""
    special = frozenset(r".^$*+?()[]{}|\/")
    return "^" + "".join(f"\\{char}" if char in special else char for char in name) + "$"


def set_policy(found: Found, queue: FoundQueue, settings: Mapping[str, object]) -> str:
    """Sets these for one queue and keeps what its policy sets; only one policy acts on a queue at a time."""
    name = f"redrive-{queue.name}"
    inner = {key: value for key, value in queue.definition.items() if key not in settings}
    body = {
        "pattern": exactly(queue.name),
        "apply-to": "queues",
        "priority": _priority(found, queue, name),
        "definition": {**inner, **{key: value for key, value in settings.items() if value is not None}},
    }
    return _put(found, f"policies/{_path(found.vhost)}/{_path(name)}", body)


def unset_policy(found: Found, queue: FoundQueue, *names: str) -> str:
    """Lifts what a policy sets for one queue, and keeps the rest."""
    if not queue.definition.keys() - set(names):
        return f"change the pattern of the policy '{queue.policy}' so that it does not match '{queue.name}'"
    return set_policy(found, queue, dict.fromkeys(names))


def lift_delivery_limit(found: Found, queue: FoundQueue) -> str:
    """Lets a queue give up no message by itself."""
    if "x-delivery-limit" in (queue.arguments or {}):
        return replace_queue(queue.name)
    if found.counting.can_be_unlimited:
        return set_policy(found, queue, {"delivery-limit": UNLIMITED})
    return unset_policy(found, queue, "delivery-limit")


def allow(found: Found, access: Access, name: str) -> str:
    """Lets the user do this with this name, besides what it may already."""
    more = exactly(name or DEFAULT_EXCHANGE)
    now = found.permissions
    if now is None:  # setting permissions replaces those that cannot be seen
        return (
            f"grant {access} permission on {more} with rabbitmqctl set_permissions, in addition to the "
            f"permissions that rabbitmqctl list_user_permissions {shlex.quote(found.user)} shows"
        )
    body = {each: getattr(now, each) for each in ("configure", "write", "read")}
    body[access] = f"{body[access]}|{more}" if body[access] else more
    ctl = shlex.join(["rabbitmqctl", "set_permissions", "-p", found.vhost, found.user, *body.values()])
    return f"{ctl}, or: {_put(found, f'permissions/{_path(found.vhost)}/{_path(found.user)}', body)}"


def bind(found: Found, exchange: str, queue: str, key: str) -> str:
    """Binds a queue to an exchange."""
    path = f"bindings/{_path(found.vhost)}/e/{_path(exchange)}/q/{_path(queue)}"
    return _ask(found, "POST", path, {"routing_key": key})


def replace_queue(name: str) -> str:
    """What cannot be changed in place."""
    return (
        "queue arguments cannot be changed in place: drain the queue (or move its messages with a "
        f"shovel), delete '{name}', then run {PROVISION}"
    )


def _priority(found: Found, queue: FoundQueue, name: str) -> int:
    if queue.policy is None:
        return 0
    policy = (found.policies or {}).get(queue.policy)
    if policy is None:
        return _ABOVE_UNKNOWN
    return policy.priority if policy.name == name else policy.priority + 1


def _put(found: Found, path: str, body: object) -> str:
    return _ask(found, "PUT", path, body)


def _ask(found: Found, method: str, path: str, body: Any) -> str:
    base = found.management or "http://HOST:15672"
    command = ["curl", "-u", found.operator or found.user, "-X", method, f"{base}/api/{path}"]
    return shlex.join([*command, "-H", "content-type: application/json", "-d", json.dumps(body)])


def _path(name: str) -> str:
    return quote(name or DEFAULT_EXCHANGE, safe="")
