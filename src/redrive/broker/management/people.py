"""Who may use the broker, and where?

Virtual hosts, users and permissions. What is changed here is stored (`users_changed`) and acts at once: routes that
sessions remember were allowed under the old permissions and are forgotten.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from functools import partial
from typing import Any, get_args

from redrive.broker.arguments import QueueType
from redrive.broker.core import publish_counters
from redrive.broker.management.answers import (
    NO_CONTENT,
    Answer,
    Json,
    RefusalError,
    bad_request,
    no_such_object,
    not_found,
    put,
)
from redrive.broker.management.ask import Ask, text
from redrive.broker.management.lists import Row, listed, one
from redrive.broker.management.seeing import depths
from redrive.broker.management.stats import queue_counters
from redrive.broker.management.views import node_of
from redrive.broker.queue import QueueStats
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
    return Answer(body={"name": ask.user, "tags": list(ask.tags), "is_internal_user": True})


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
    """Make a virtual host, where the user who makes it may do everything; or describe one anew."""
    ask.need("administrator")
    name, body = ask.name, ask.json()
    metadata = described(body)
    existed = name in ask.broker.vhosts
    made = ask.broker.add_vhost(name)
    describe(made, metadata)
    if not existed:
        ask.broker.users.set_permission(ask.user, name, ".*", ".*", ".*")
        permissions_changed(ask)
    return put(existed=existed)


def described(body: Json) -> Json:
    """The description, tags and default queue type that a body gives to a virtual host; what it leaves out is reset."""
    given = {**body, **body["metadata"]} if isinstance(body.get("metadata"), dict) else body
    description = given.get("description", "")
    return {
        "description": description if isinstance(description, str) else "",
        "tags": tags_of(given.get("tags", [])),
        "default_queue_type": _default_queue_type(given.get("default_queue_type", "undefined")),
    }


def _default_queue_type(kind: object) -> str:
    if kind == "undefined":
        return "classic"
    if not isinstance(kind, str):
        raise bad_request(f"{kind} is not a valid default_queue_type value")
    if not kind:
        raise bad_request("default_queue_type must not be an empty string")
    if kind == "stream":
        raise bad_request("stream queues are not supported by this broker; use classic or quorum")
    if kind not in get_args(QueueType):
        raise bad_request(f"{kind} is not a valid queue type")
    return kind


def describe(vhost: VHost, metadata: Json) -> None:
    """Change and store what is known of a virtual host; protection from deletion stays as it is."""
    vhost.metadata.update(metadata)
    vhost.broker.vhost_changed(vhost)


def delete_vhost(ask: Ask) -> Answer:
    """Delete a virtual host with everything in it."""
    ask.need("administrator")
    found = ask.broker.vhosts.get(ask.name)
    if found is None:
        raise no_such_object()
    if found.metadata.get("protected_from_deletion"):
        reason = f"Refusing to delete virtual host '{ask.name}' because it is protected from deletion"
        raise RefusalError(412, "precondition_failed", reason)
    ask.broker.delete_vhost(ask.name)
    permissions_changed(ask)
    return NO_CONTENT


def protect_vhost(ask: Ask) -> Answer:
    """Refuse to delete a virtual host from now on."""
    return _protect(ask, "enable", {"protected_from_deletion": True})


def unprotect_vhost(ask: Ask) -> Answer:
    """Allow a virtual host to be deleted again."""
    return _protect(ask, "disable", {"protected_from_deletion": False})


def _protect(ask: Ask, verb: str, metadata: Json) -> Answer:
    ask.need("administrator")
    found = ask.broker.vhosts.get(ask.name)
    if found is None:
        reason = f"Cannot {verb} deletion protection of virtual host '{ask.name}' because it does not exist"
        raise not_found(reason)
    describe(found, metadata)
    return NO_CONTENT


def start_vhost(ask: Ask) -> Answer:
    """Start a virtual host on a node: it runs as long as the broker does."""
    ask.need("administrator")
    if ask.name not in ask.broker.vhosts or ask.params["node"] != node_of(ask):
        raise no_such_object()
    return NO_CONTENT


def _vhost(ask: Ask, vhost: VHost) -> Json:
    view: Json = {
        "name": vhost.name,
        "protected_from_deletion": False,
        **vhost.metadata,
        "metadata": dict(vhost.metadata),
        "tracing": False,
        "cluster_state": {node_of(ask): "running"},
        **ask.desk.rates.look(("vhost", vhost.name), depths([vhost]), ask.now),
    }
    everything = QueueStats()
    for queue in vhost.queues.values():
        everything.add(queue.stats)
    counters = queue_counters(everything) | publish_counters([vhost])
    if any(counters.values()):
        view["message_stats"] = ask.desk.rates.look(("vhost messages", vhost.name), counters, ask.now)
    return view


# --- users ---------------------------------------------------------------------------------------------------


def users(ask: Ask) -> Answer:
    """All users."""
    ask.need("administrator")
    return listed(
        ask, [Row((user.name,), user.name, partial(_user, ask, user)) for user in ask.broker.users.users()]
    )


def users_without_permissions(ask: Ask) -> Answer:
    """The users who may enter no virtual host."""
    ask.need("administrator")
    held = {user for user, _, _ in ask.broker.users.permissions()}
    found = [user for user in ask.broker.users.users() if user.name not in held]
    return listed(ask, [Row((user.name,), user.name, partial(_user, ask, user)) for user in found])


def user(ask: Ask) -> Answer:
    """One user."""
    return one(ask, _user(ask, named_user(ask)))


def put_user(ask: Ask) -> Answer:
    """Add a user, or change one. Without a password nobody can log in by one."""
    ask.need("administrator")
    body = ask.json()
    if "tags" not in body:
        raise bad_request("tags_not_present")
    existed = ask.broker.users.get(ask.name) is not None
    password = body.get("password")
    if password is not None and "password_hash" in body:
        raise bad_request("both_password_and_password_hash_are_provided")
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
    _delete_users(ask, [named_user(ask).name])
    return NO_CONTENT


def delete_users(ask: Ask) -> Answer:
    """Remove several users at once; one that does not exist is passed over."""
    ask.need("administrator")
    names = ask.json("users")["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("users should be a list of names")
    _delete_users(ask, names)
    return NO_CONTENT


def _delete_users(ask: Ask, names: list[str]) -> None:
    for name in names:
        ask.broker.users.delete(name)
    permissions_changed(ask)
    for session in [session for session in ask.broker.sessions if session.user in names]:
        ask.broker.close(session, f"user '{session.user}' is deleted")


def tags_of(value: Any) -> list[str]:
    """Tags, as a list or as one text with commas."""
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise bad_request("tags should be a list of strings")
    return value


def named_user(ask: Ask) -> User:
    """The user whom the path names, for administrators, or 404."""
    ask.need("administrator")
    found = ask.broker.users.get(ask.name)
    if found is None:
        raise no_such_object()
    return found


def _user(ask: Ask, user: User) -> Json:
    return user._asdict() | {"tags": list(user.tags), "limits": dict(ask.broker.users.limits(user.name))}


# --- permissions ---------------------------------------------------------------------------------------------


def permissions(ask: Ask) -> Answer:
    """All permissions, or those of a user or in a virtual host, if the path names one."""
    ask.need("administrator")
    of_user = named_user(ask).name if "name" in ask.params else None
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
