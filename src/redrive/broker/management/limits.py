"""Show and set the limits of virtual hosts and users.

A virtual host can limit its connections and queues, a user its connections and channels. A limit acts on what is
opened or declared afterwards; a value below zero does not limit.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from redrive.broker.erlang import erlang_binary
from redrive.broker.management.answers import NO_CONTENT, Answer, Json, bad_request, no_such_object, not_found
from redrive.broker.management.ask import Ask
from redrive.broker.management.lists import Row, listed
from redrive.broker.vhost import VHost
from redrive.errors import SettingsError

VHOST_LIMITS: Final = ("max-connections", "max-queues")


def vhost_limits(ask: Ask) -> Answer:
    """List the virtual hosts that have limits, or the one that the path names."""
    return listed(ask, _rows("vhost", ((vhost.name, vhost.limits) for vhost in ask.vhosts())))


def put_vhost_limit(ask: Ask) -> Answer:
    """Set a limit of a virtual host."""
    ask.need("administrator")
    vhost = ask.vhost()
    set_vhost_limits(vhost, {**vhost.limits, ask.name: ask.json("value")["value"]})
    return NO_CONTENT


def delete_vhost_limit(ask: Ask) -> Answer:
    """Remove a limit of a virtual host; one that is not set is passed over."""
    ask.need("administrator")
    vhost = ask.broker.vhosts.get(ask.params["vhost"])
    if vhost is None:
        raise not_found("vhost_not_found")
    set_vhost_limits(vhost, {kind: value for kind, value in vhost.limits.items() if kind != ask.name})
    return NO_CONTENT


def set_vhost_limits(vhost: VHost, limits: Any) -> None:
    """Replace the limits of a virtual host and store them; 400 changes nothing."""
    if not isinstance(limits, dict):
        raise bad_request("Validation failed\n\nlimits should be an object\n")
    for kind, value in limits.items():
        shown = erlang_binary(value.encode()) if isinstance(value, str) else value
        if kind not in VHOST_LIMITS:
            term = f"{{{erlang_binary(kind.encode())},{shown}}}"
            raise bad_request(f"Validation failed\n\nUnrecognised terms [{term}] in limits\n")
        if not isinstance(value, int) or isinstance(value, bool):
            raise bad_request(f"Validation failed\n\n{kind} should be a number, actually was {shown}\n")
    vhost.limits = dict(limits)
    vhost.broker.vhost_changed(vhost)


def user_limits(ask: Ask) -> Answer:
    """List the users who have limits, or the one whom the path names."""
    name = ask.params.get("name")
    if name is None:
        ask.need("administrator")
    elif name != ask.user:
        ask.need_object("monitoring")
    users = [user for user in ask.broker.users.users() if name in {None, user.name}]
    if name is not None and not users:
        raise no_such_object()
    return listed(ask, _rows("user", ((user.name, ask.broker.users.limits(user.name)) for user in users)))


def put_user_limit(ask: Ask) -> Answer:
    """Set a limit of a user."""
    ask.need("administrator")
    if ask.broker.users.get(ask.name) is None:
        raise no_such_object()
    try:
        ask.broker.users.set_limit(ask.name, ask.params["kind"], ask.json("value")["value"])
    except SettingsError as error:
        raise bad_request(str(error)) from None
    ask.broker.users_changed()
    return NO_CONTENT


def delete_user_limit(ask: Ask) -> Answer:
    """Remove a limit of a user; one that is not set is passed over."""
    ask.need("administrator")
    if ask.broker.users.get(ask.name) is None:
        raise not_found("vhost_not_found")  # RabbitMQ's words
    ask.broker.users.clear_limit(ask.name, ask.params["kind"])
    ask.broker.users_changed()
    return NO_CONTENT


def _rows(kind: str, owners: Iterable[tuple[str, Any]]) -> list[Row]:
    return [Row((name,), name, partial(_row, kind, name, dict(limits))) for name, limits in owners if limits]


def _row(kind: str, name: str, limits: Json) -> Json:
    return {kind: name, "value": limits}
