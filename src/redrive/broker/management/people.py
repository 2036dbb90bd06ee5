"""Who may use the broker, where, and under which policies?

Virtual hosts, users, permissions and policies. What is changed here is kept (`users_changed`, `policies_changed`) and
acts at once: routes that sessions remember were allowed under the old permissions and are forgotten.
"""

import html
from base64 import b64decode
from binascii import Error as Base64Error
from functools import partial
from typing import Any

from redrive.broker.management.answers import (
    NO_CONTENT,
    Answer,
    Json,
    bad_request,
    keys_missing,
    no_such_object,
    put,
)
from redrive.broker.management.ask import Ask, text
from redrive.broker.management.lists import Row, listed, one
from redrive.broker.management.seeing import depths
from redrive.broker.management.views import node_of
from redrive.broker.policies import Policy, PolicyError
from redrive.broker.users import SHA256, Permission, User
from redrive.broker.vhost import VHost
from redrive.errors import SettingsError


def permissions_changed(ask: Ask) -> None:
    """Keep the users, and let no session go on by what it was allowed before."""
    ask.broker.users_changed()
    for vhost in ask.broker.vhosts.values():
        vhost.changed()


def whoami(ask: Ask) -> Answer:
    """The user who asks."""
    return Answer(body={"name": ask.user, "tags": list(ask.tags)})


# --- virtual hosts -------------------------------------------------------------------------------------------


def vhosts(ask: Ask) -> Answer:
    """The virtual hosts that the user may enter, or all for those who monitor."""
    seen = ask.broker.vhosts.values() if ask.is_a("monitoring") else ask.vhosts()
    return listed(ask, [Row((vhost.name,), vhost.name, partial(_vhost, ask, vhost)) for vhost in seen])


def vhost(ask: Ask) -> Answer:
    """One virtual host."""
    ask.need("administrator")
    found = ask.broker.vhosts.get(ask.name)
    if found is None:
        raise no_such_object()
    return one(ask, _vhost(ask, found))


def put_vhost(ask: Ask) -> Answer:
    """Make a virtual host, where the user who makes it may do everything."""
    ask.need("administrator")
    name, body = ask.name, ask.json()
    existed = name in ask.broker.vhosts
    made = ask.broker.add_vhost(name)
    describe(made, body)
    if not existed:
        ask.broker.users.set_permission(ask.user, name, ".*", ".*", ".*")
        permissions_changed(ask)
    return put(existed=existed)


def describe(vhost: VHost, body: Json) -> None:
    """What people are told about a virtual host."""
    told = body.get("metadata") if isinstance(body.get("metadata"), dict) else body
    assert isinstance(told, dict)  # noqa: S101  one of two objects
    if isinstance(told.get("description"), str):
        vhost.metadata["description"] = told["description"]
    if "tags" in told:
        vhost.metadata["tags"] = tags_of(told["tags"])
    vhost.broker.vhost_changed(vhost)


def delete_vhost(ask: Ask) -> Answer:
    """Delete a virtual host with everything in it."""
    ask.need("administrator")
    if ask.name not in ask.broker.vhosts:
        raise no_such_object()
    ask.broker.delete_vhost(ask.name)
    permissions_changed(ask)
    return NO_CONTENT


def _vhost(ask: Ask, vhost: VHost) -> Json:
    return {
        "name": vhost.name,
        **vhost.metadata,
        "metadata": dict(vhost.metadata),
        "default_queue_type": "classic",
        "tracing": False,
        "cluster_state": {node_of(ask): "running"},
        **ask.desk.rates.look(("vhost", vhost.name), depths([vhost]), ask.now),
    }


# --- users ---------------------------------------------------------------------------------------------------


def users(ask: Ask) -> Answer:
    """All users."""
    ask.need("administrator")
    return listed(
        ask, [Row((user.name,), user.name, partial(_user, user)) for user in ask.broker.users.users()]
    )


def users_without_permissions(ask: Ask) -> Answer:
    """The users who may enter no virtual host."""
    ask.need("administrator")
    held = {user for user, _, _ in ask.broker.users.permissions()}
    found = [user for user in ask.broker.users.users() if user.name not in held]
    return listed(ask, [Row((user.name,), user.name, partial(_user, user)) for user in found])


def user(ask: Ask) -> Answer:
    """One user."""
    return one(ask, _user(_named_user(ask)))


def put_user(ask: Ask) -> Answer:
    """Add a user, or change one. Without a password nobody can log in by one."""
    ask.need("administrator")
    body = ask.json()
    if "tags" not in body:
        raise bad_request("tags_not_present")
    existed = ask.broker.users.get(ask.name) is not None
    password = body.get("password")
    password_hash = body.get("password_hash", "") if password is None else None
    if password_hash:
        try:
            b64decode(password_hash, validate=True)
        except (Base64Error, ValueError, TypeError):
            raise bad_request(["not_base64", password_hash]) from None
    try:
        ask.broker.users.add(
            ask.name,
            password if password is None else text(body, "password"),
            password_hash=password_hash,
            hashing_algorithm=text(body, "hashing_algorithm", SHA256),
            tags=tags_of(body["tags"]),
        )
    except SettingsError as error:
        raise bad_request(str(error)) from None
    permissions_changed(ask)
    return put(existed=existed)


def delete_user(ask: Ask) -> Answer:
    """Remove a user, and close its connections."""
    name = _named_user(ask).name
    ask.broker.users.delete(name)
    permissions_changed(ask)
    for session in [session for session in ask.broker.sessions if session.user == name]:
        ask.broker.close(session, f"user '{name}' is deleted")
    return NO_CONTENT


def tags_of(value: Any) -> list[str]:
    """Tags, as a list or as one text with commas."""
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise bad_request("tags should be a list of strings")
    return value


def _named_user(ask: Ask) -> User:
    ask.need("administrator")
    found = ask.broker.users.get(ask.name)
    if found is None:
        raise no_such_object()
    return found


def _user(user: User) -> Json:
    return user._asdict() | {"tags": list(user.tags), "limits": {}}


# --- permissions ---------------------------------------------------------------------------------------------


def permissions(ask: Ask) -> Answer:
    """All permissions, or those of a user or in a virtual host, if the path names one."""
    ask.need("administrator")
    of_user = _named_user(ask).name if "name" in ask.params else None
    in_vhost = ask.params.get("vhost")
    if in_vhost is not None and in_vhost not in ask.broker.vhosts:
        raise no_such_object()
    rows = (
        Row((vhost, user), user, partial(_permission, user, vhost, held))
        for user, vhost, held in ask.broker.users.permissions()
        if of_user in {None, user} and in_vhost in {None, vhost}
    )
    return listed(ask, rows)


def permission(ask: Ask) -> Answer:
    """What one user may do in one virtual host."""
    return one(ask, _permission(ask.name, ask.params["vhost"], _named_permission(ask)))


def put_permission(ask: Ask) -> Answer:
    """Say what a user may do in a virtual host."""
    ask.need("administrator")
    body = ask.json("configure", "write", "read")
    vhost, broker = ask.params["vhost"], ask.broker
    if vhost not in broker.vhosts or broker.users.get(ask.name) is None:
        raise bad_request("vhost_or_user_not_found")
    existed = broker.users.may_enter(ask.name, vhost)
    patterns = [text(body, key) for key in ("configure", "write", "read")]
    try:
        broker.users.set_permission(ask.name, vhost, *patterns)
    except SettingsError as error:
        raise bad_request(["invalid_regexp", str(error)]) from None
    permissions_changed(ask)
    return put(existed=existed)


def delete_permission(ask: Ask) -> Answer:
    """Shut a user out of a virtual host."""
    _named_permission(ask)
    ask.broker.users.clear_permission(ask.name, ask.params["vhost"])
    permissions_changed(ask)
    return NO_CONTENT


def _named_permission(ask: Ask) -> Permission:
    ask.need("administrator")
    wanted = (ask.name, ask.params["vhost"])
    for user, vhost, held in ask.broker.users.permissions():
        if (user, vhost) == wanted:
            return held
    raise no_such_object()


def _permission(user: str, vhost: str, held: Permission) -> Json:
    return {"user": user, "vhost": vhost, **held._asdict()}


# --- policies ------------------------------------------------------------------------------------------------


def policies(ask: Ask) -> Answer:
    """All policies."""
    rows = (
        Row((vhost.name, policy.name), policy.name, policy.to_json)
        for vhost in ask.vhosts()
        for policy in vhost.policies.list()
    )
    return listed(ask, rows)


def policy(ask: Ask) -> Answer:
    """One policy."""
    vhost = ask.vhost()
    found = vhost.policies.get(vhost.name, ask.name)
    if found is None:
        raise no_such_object()
    return one(ask, found.to_json())


def put_policy(ask: Ask) -> Answer:
    """Put a policy, which acts on living queues at once."""
    ask.need("policymaker")
    vhost, body = ask.vhost(), ask.json()
    missing = [key for key in ("pattern", "definition") if key not in body]
    if missing:
        raise keys_missing(missing)
    existed = vhost.policies.get(vhost.name, ask.name) is not None
    try:
        vhost.policies.put(Policy.from_json(body, vhost.name, ask.name))
    except PolicyError as error:
        raise bad_request(html.escape(error.reason, quote=False)) from None
    vhost.policies_changed(ask.now)
    return put(existed=existed)


def delete_policy(ask: Ask) -> Answer:
    """Delete a policy; queues are what their arguments say again."""
    ask.need("policymaker")
    vhost = ask.vhost()
    if not vhost.policies.delete(vhost.name, ask.name):
        raise no_such_object()
    vhost.policies_changed(ask.now)
    return NO_CONTENT
