"""Show and set policies and operator policies. They act on existing queues and exchanges at once."""

from collections.abc import Mapping
from typing import Any

from redrive.broker.management.answers import (
    NO_CONTENT,
    Answer,
    bad_request,
    keys_missing,
    no_such_object,
    put,
)
from redrive.broker.management.ask import Ask
from redrive.broker.management.lists import Row, listed, one
from redrive.broker.policies import OperatorPolicy, Policies, Policy, PolicyError
from redrive.broker.vhost import VHost


def policies(ask: Ask) -> Answer:
    """List the policies."""
    return _list(ask, [vhost.policies for vhost in ask.vhosts()])


def policy(ask: Ask) -> Answer:
    """Show one policy."""
    return _show(ask, ask.vhost().policies)


def put_policy(ask: Ask) -> Answer:
    """Set a policy."""
    ask.need("policymaker")
    vhost = ask.vhost()
    return _put(ask, vhost, vhost.policies, operator=False)


def delete_policy(ask: Ask) -> Answer:
    """Delete a policy; its queues are what their arguments say again."""
    ask.need("policymaker")
    vhost = ask.vhost()
    return _delete(ask, vhost, vhost.policies)


def operator_policies(ask: Ask) -> Answer:
    """List the operator policies."""
    return _list(ask, [vhost.operator_policies for vhost in ask.vhosts()])


def operator_policy(ask: Ask) -> Answer:
    """Show one operator policy."""
    return _show(ask, ask.vhost().operator_policies)


def put_operator_policy(ask: Ask) -> Answer:
    """Set an operator policy."""
    ask.need("administrator")
    vhost = ask.vhost()
    return _put(ask, vhost, vhost.operator_policies, operator=True)


def delete_operator_policy(ask: Ask) -> Answer:
    """Delete an operator policy."""
    ask.need("administrator")
    vhost = ask.vhost()
    return _delete(ask, vhost, vhost.operator_policies)


def load_policy(
    vhost: VHost, row: Mapping[str, Any], name: str, *, operator: bool = False, where: str = ""
) -> None:
    """Add a policy; the caller lets the virtual host apply it. `where` is added to the reason of a refusal."""
    policies, kind = (vhost.operator_policies, OperatorPolicy) if operator else (vhost.policies, Policy)
    try:
        policy = kind.from_json(row, vhost.name, name)
        policies.put(policy)
    except PolicyError as error:
        raise bad_request(error.reason + where) from None
    for key in policy.definition:
        if switch := vhost.broker.features.switch_off_of(key):
            vhost.broker.log.warning(
                "policy key ignored policy=%s vhost=%s key=%s: %s is off", name, vhost.name, key, switch
            )


def _list(ask: Ask, each: list[Policies]) -> Answer:
    rows = (
        Row((policy.vhost, policy.name), policy.name, policy.to_json)
        for policies in each
        for policy in policies.list()
    )
    return listed(ask, rows)


def _show(ask: Ask, policies: Policies) -> Answer:
    found = policies.get(ask.params["vhost"], ask.name)
    if found is None:
        raise no_such_object()
    return one(ask, found.to_json())


def _put(ask: Ask, vhost: VHost, policies: Policies, *, operator: bool) -> Answer:
    body = ask.json()
    missing = [key for key in ("pattern", "definition") if key not in body]
    if missing:
        raise keys_missing(missing)
    existed = policies.get(vhost.name, ask.name) is not None
    load_policy(vhost, body, ask.name, operator=operator)
    ask.apply_policies(vhost)
    return put(existed=existed)


def _delete(ask: Ask, vhost: VHost, policies: Policies) -> Answer:
    if not policies.delete(vhost.name, ask.name):
        raise no_such_object()
    ask.apply_policies(vhost)
    return NO_CONTENT
