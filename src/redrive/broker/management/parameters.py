"""Show and set runtime parameters.

Global parameters are stored for tools that want them. Parameters of a virtual host belong to a component. There are
three here: `policy`, which has paths of its own, `operator_policy` and `vhost-limits`. A plugin's component is refused
as unknown, as RabbitMQ does without that plugin.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from redrive.broker.management.answers import (
    NO_CONTENT,
    Answer,
    Json,
    RefusalError,
    bad_request,
    no_such_object,
    put,
)
from redrive.broker.management.ask import Ask
from redrive.broker.management.limits import set_vhost_limits
from redrive.broker.management.lists import Row, listed, one
from redrive.broker.management.policies import load_policy
from redrive.broker.policies import Policy
from redrive.broker.vhost import VHost

_POLICY: Final = "policy"
OPERATOR_POLICY: Final = "operator_policy"
LIMITS: Final = "vhost-limits"


def unknown_component(component: str) -> RefusalError:
    """400: there is no such component."""
    return bad_request(f"Validation failed\n\ncomponent {component} not found\n")


# --- of a virtual host ---------------------------------------------------------------------------------------


def parameters(ask: Ask) -> Answer:
    """List the parameters of all components or of one; policies are listed only where they are asked for."""
    ask.need("policymaker")
    wanted = ask.params.get("component")
    rows = (
        row for vhost in ask.vhosts() for row in _of_vhost(vhost) if row["component"] == (wanted or LIMITS)
    )
    return listed(ask, [Row((row["vhost"], row["name"]), row["name"], partial(_same, row)) for row in rows])


def parameter(ask: Ask) -> Answer:
    """Show one parameter."""
    return one(ask, _named(ask))


def put_parameter(ask: Ask) -> Answer:
    """Set the limits of a virtual host or an operator policy; other components take no parameters."""
    ask.need("policymaker")
    vhost, component = ask.vhost(), ask.params["component"]
    value = ask.json("value")["value"]
    if component == _POLICY:
        raise bad_request("policies may not be set using this method")
    if component not in (LIMITS, OPERATOR_POLICY):
        raise unknown_component(component)
    ask.need("administrator")
    existed = any((row["component"], row["name"]) == (component, ask.name) for row in vhost_parameters(vhost))
    set_parameter(vhost, component, ask.name, value)
    ask.apply_policies(vhost)
    return put(existed=existed)


def set_parameter(vhost: VHost, component: str, name: str, value: Any, where: str = "") -> None:
    """Set one of the two; the caller lets the virtual host apply its policies."""
    if component == LIMITS:
        set_vhost_limits(vhost, value)
    elif isinstance(value, dict):
        load_policy(vhost, value, name, operator=True, where=where)
    else:
        raise bad_request(f"the value of operator policy {name} should be an object{where}")


def delete_parameter(ask: Ask) -> Answer:
    """Remove the limits of a virtual host or an operator policy."""
    found = _named(ask)
    vhost = ask.vhost()
    if found["component"] == _POLICY:
        raise bad_request("policies may not be cleared using this method")
    ask.need("administrator")
    if found["component"] == LIMITS:
        set_vhost_limits(vhost, {})
    else:
        vhost.operator_policies.delete(vhost.name, ask.name)
        ask.apply_policies(vhost)
    return NO_CONTENT


def vhost_parameters(vhost: VHost) -> Iterator[Json]:
    """The parameters of a virtual host for definitions."""
    if vhost.limits:
        yield {"component": LIMITS, "name": "limits", "value": dict(vhost.limits)}
    for policy in vhost.operator_policies.list():
        yield {"component": OPERATOR_POLICY, "name": policy.name, "value": _policy(policy)}


def _of_vhost(vhost: VHost) -> Iterator[Json]:
    for row in vhost_parameters(vhost):
        yield {"vhost": vhost.name, **row}
    for policy in vhost.policies.list():
        yield {"vhost": vhost.name, "component": _POLICY, "name": policy.name, "value": _policy(policy)}


def _policy(policy: Policy) -> dict[str, Any]:
    return {key: value for key, value in policy.to_json().items() if key not in ("vhost", "name")}


def _named(ask: Ask) -> Json:
    ask.need("policymaker")
    wanted = (ask.params["component"], ask.name)
    for row in _of_vhost(ask.vhost()):
        if (row["component"], row["name"]) == wanted:
            return row
    raise no_such_object()


def _same(row: Json) -> Json:
    return row


# --- of the broker -------------------------------------------------------------------------------------------


def global_parameters(ask: Ask) -> Answer:
    """List the global parameters."""
    ask.need("policymaker")
    stored = ask.broker.global_parameters
    return listed(ask, [Row((name,), name, partial(_global, name, value)) for name, value in stored.items()])


def global_parameter(ask: Ask) -> Answer:
    """Show one global parameter."""
    ask.need("policymaker")
    if ask.name not in ask.broker.global_parameters:
        raise no_such_object()
    return one(ask, _global(ask.name, ask.broker.global_parameters[ask.name]))


def put_global_parameter(ask: Ask) -> Answer:
    """Set a global parameter."""
    ask.need("policymaker")
    value = ask.json("value")["value"]
    existed = ask.name in ask.broker.global_parameters
    ask.broker.set_global_parameter(ask.name, value)
    return put(existed=existed)


def delete_global_parameter(ask: Ask) -> Answer:
    """Delete a global parameter."""
    ask.need("policymaker")
    if not ask.broker.clear_global_parameter(ask.name):
        raise no_such_object()
    return NO_CONTENT


def _global(name: str, value: object) -> Json:
    return {"name": name, "value": value}
