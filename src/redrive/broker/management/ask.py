"""What does a request ask for, and may its user ask for it?

An `Ask` is a request that has been read whole, of a user who has logged in. What a user may see and do is decided
here, by tag and by permission, as in RabbitMQ 4.3: administrators see every virtual host; to other users, one that they
may not enter does not exist.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from redrive.amqp.table import MAX_DEPTH
from redrive.broker.management.answers import (
    Answer,
    bad_request,
    keys_missing,
    no_such_object,
    not_authorised,
    not_found,
)
from redrive.broker.patterns import NameFilter
from redrive.broker.vhost import VHost

if TYPE_CHECKING:
    from redrive.broker.core import Broker
    from redrive.broker.management.stats import Rates
    from redrive.broker.server import Server

_NOTHING: Final = frozenset({b"", b"null", b"undefined"})  # bodies that RabbitMQ takes for none
_LACKS: Final = {
    "management": "Not management user",
    "monitoring": "Not monitor user",
    "administrator": "Not administrator user",
    "policymaker": "User not authorised to access object",
}
NO_OBJECT_ACCESS: Final = "User not authorised to access object"
Listener: TypeAlias = tuple[str, str, int]  # protocol, address, port


class Desk:
    """What requests are answered with: the server, its rates, and where it listens."""

    def __init__(self, server: "Server", rates: "Rates", listeners: Callable[[], list[Listener]]) -> None:
        self.server = server
        self.rates = rates
        self.listeners = listeners
        self.names = NameFilter()
        self.started_at = server.clock()


class Ask:
    """One request. `params` are the decoded variable parts of its path."""

    def __init__(
        self,
        desk: Desk,
        method: str,
        params: Mapping[str, str],
        query: Mapping[str, str],
        body: bytes,
        *,
        user: str,
        address: str,
    ) -> None:
        self.desk = desk
        self.server = desk.server
        self.broker: Broker = desk.server.broker
        self.method = method
        self.params = params
        self.query = query
        self.user = user
        self.address = address
        self.now = desk.server.clock()
        self._body = body
        self.steps: list[
            Iterator[None]
        ] = []  # work of the request that is done in portions, after its handler

    # --- what was sent -------------------------------------------------------------------------------------

    def json(self, *needed: str) -> dict[str, Any]:
        """The body, which has to be an object with these keys."""
        if self._body.strip() in _NOTHING:
            body: Any = {}
        else:
            try:
                body = msgspec.json.decode(self._body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise bad_request("not_json") from None
        if not isinstance(body, dict):
            raise bad_request("not_json")
        if self._body.count(b"[") + self._body.count(b"{") > MAX_DEPTH and _is_deeper(body, MAX_DEPTH):
            raise bad_request(f"the body is nested more than {MAX_DEPTH} levels deep")
        missing = [key for key in needed if key not in body]
        if missing:
            raise keys_missing(missing)
        return body

    def flag(self, name: str) -> bool:
        """A switch of the query."""
        return self.query.get(name) == "true"

    # --- who asks ------------------------------------------------------------------------------------------

    def is_a(self, tag: str) -> bool:
        """Whether the user has the tag, or one that includes it."""
        return self.broker.users.has_tag(self.user, tag)

    def need(self, tag: str) -> None:
        """401 unless the user has the tag."""
        if not self.is_a(tag):
            raise not_authorised(_LACKS[tag])

    def need_object(self, tag: str) -> None:
        """401 unless the user has the tag, in the words for things of other users."""
        if not self.is_a(tag):
            raise not_authorised(NO_OBJECT_ACCESS)

    @property
    def tags(self) -> tuple[str, ...]:
        """The user's own tags."""
        user = self.broker.users.get(self.user)
        return user.tags if user is not None else ()

    # --- what it is about ----------------------------------------------------------------------------------

    def vhosts(self) -> list[VHost]:
        """The virtual host that the path names, or all; of them those that the user sees in lists."""
        wanted = [self.vhost()] if "vhost" in self.params else list(self.broker.vhosts.values())
        sees_all, may_enter = self.is_a("administrator"), self.broker.users.may_enter
        return [vhost for vhost in wanted if sees_all or may_enter(self.user, vhost.name)]

    def vhost(self) -> VHost:
        """The virtual host that the path names, for administrators and for users who may enter it."""
        name = self.params["vhost"]
        vhost = self.broker.vhosts.get(name)
        if vhost is None:
            raise not_found("vhost_not_found") if self.method in {"PUT", "POST"} else no_such_object()
        if not self.is_a("administrator") and not self.broker.users.may_enter(self.user, name):
            raise not_found("Not Found")
        return vhost

    def apply_policies(self, vhost: VHost) -> None:
        """Store the policies of the virtual host, and apply them in portions before the request is answered."""
        self.steps.append(vhost.apply_policies(self.now))

    @property
    def name(self) -> str:
        """The name of the thing that the path names."""
        return self.params["name"]


def _is_deeper(body: Any, depth: int) -> bool:
    """Whether objects and lists are nested deeper than that."""
    level = [body]
    for _ in range(depth):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
    return bool(level)


Handler: TypeAlias = Callable[[Ask], Answer]


def boolean(body: Mapping[str, Any], key: str) -> bool:
    """A key that is true, false or absent; RabbitMQ takes the words for it as well."""
    value = body.get(key, False)
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise bad_request(["not_boolean", value])


def integer(value: Any) -> int:
    """A number, or the digits of one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch("[+-]?[0-9]{1,18}", value):
        return int(value)
    raise bad_request(["not_integer", value])


def text(body: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """A key that is a string."""
    value = body.get(key, default)
    if not isinstance(value, str):
        raise bad_request(["not_string", key])
    return value
