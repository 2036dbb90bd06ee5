"""What does the management HTTP API tell of a virtual host?

`look` asks it for queues, exchanges, bindings, policies, permissions and the nodes' alarms, and gives a `Found`. The
rules: nothing is changed; credentials of the URL stand in no error; what the user's tags do not let it see is told as
unseen, not guessed. Whatever goes wrong (no answer, 4xx, 5xx, bad JSON) is a `TransportError` in one line.

The API is asked in a thread, one request after the other, over one connection. This file does not know what is wanted.
"""

import asyncio
import contextlib
import http.client
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec

from redrive.errors import BrokerRefusedError, BrokerUnreachableError, SettingsError, TransportError
from redrive.transports.rabbitmq.found import (
    Found,
    FoundExchange,
    FoundPolicy,
    FoundQueue,
    Permissions,
    in_force,
    merged,
    version_of,
)
from redrive.transports.rabbitmq.topology import Binding
from redrive.transports.rabbitmq.url import BrokerUrl, Tls

TIMEOUT: Final = timedelta(seconds=10)  # for each answer, whole
_LARGEST: Final = 64 * 1024 * 1024
_PORTS: Final = {"http": 15672, "https": 15671}
T = TypeVar("T")


# --- where it is ------------------------------------------------------------------------------------------


class ManagementUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where the management API is, and who asks."""

    tls: Tls | None = None
    host: str
    port: int
    path: str = ""
    user: str
    password: str

    @property
    def place(self) -> str:
        """The URL without credentials: what may be shown."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.path}"

    def __repr__(self) -> str:
        return f"ManagementUrl({self.place!r}, user={self.user!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("place", self.place), ("user", self.user)]


def parse_management_url(url: str) -> ManagementUrl:
    """`http://user:password@host:15672` as a value; without a user it is guest."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SettingsError(
            "management URL: write http://user:password@host:15672, with @ : / ? # % in a password as %40 %3A …"
        ) from None
    odd = (
        "@" in parts.path or parts.query or parts.fragment
    )  # perhaps the end of a password: it is not quoted
    if parts.scheme not in _PORTS or not parts.hostname or odd:
        raise SettingsError("management URL: write http://user:password@host:15672, or https://…")
    guest = parts.username is None
    return ManagementUrl(
        tls=Tls() if parts.scheme == "https" else None,
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        path=parts.path.rstrip("/").removesuffix("/api"),
        user="guest" if guest else unquote(parts.username or ""),
        password="guest" if guest else unquote(parts.password or ""),
    )


def guess_management_url(broker: BrokerUrl) -> ManagementUrl:
    """Where it usually is: on the broker's first host, at the usual port, with the same user and TLS."""
    return ManagementUrl(
        tls=broker.tls,
        host=broker.endpoints[0].host,
        port=_PORTS["https" if broker.tls else "http"],
        user=broker.user,
        password=broker.password or "",
    )


def management_of(url: str, broker: BrokerUrl) -> ManagementUrl:
    """Where it was said to be. Who vouches for the broker's certificate, vouches for this one too."""
    at = parse_management_url(url)
    both = at.tls is not None and broker.tls is not None
    return msgspec.structs.replace(at, tls=broker.tls) if both else at


# --- what it answers ----------------------------------------------------------------------------------------


class _Overview(msgspec.Struct):
    rabbitmq_version: str = ""
    cluster_name: str = ""


class _Queue(msgspec.Struct):
    name: str
    type: str = ""
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Any = None
    policy: str | None = None
    effective_policy_definition: Any = None  # RabbitMQ 3 writes an empty one as a list
    messages: int | None = None  # not there until the first statistics are
    messages_delayed: int = 0  # of these, wait for a delayed retry
    consumers: int | None = None

    def found(self, policies: "_Policies") -> FoundQueue:
        arguments = _table(self.arguments)
        kind = self.type or str(arguments.get("x-queue-type", "classic"))
        policy, definition = policies.of(self.name, kind) or (
            self.policy or None,
            _table(self.effective_policy_definition),
        )
        return FoundQueue(
            name=self.name,
            type=kind,
            durable=self.durable,
            auto_delete=self.auto_delete,
            exclusive=self.exclusive,
            arguments=arguments,
            policy=policy,
            definition=definition,
            messages=None if self.messages is None else max(0, self.messages - self.messages_delayed),
            consumers=self.consumers,
        )


class _Exchange(msgspec.Struct):
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Any = None

    def found(self, policies: "_Policies") -> FoundExchange:
        alternate = _table(self.arguments).get("alternate-exchange")
        if alternate is None and (acting := policies.of(self.name, "exchange")) is not None:
            alternate = acting[1].get("alternate-exchange")
        return FoundExchange(
            name=self.name,
            type=self.type,
            durable=self.durable,
            auto_delete=self.auto_delete,
            internal=self.internal,
            alternate=alternate if isinstance(alternate, str) else None,
        )


class _Binding(msgspec.Struct):
    source: str
    destination: str
    destination_type: Literal["queue", "exchange"]
    routing_key: str = ""
    arguments: Any = None


class _Policy(msgspec.Struct, rename={"apply_to": "apply-to"}):
    name: str
    pattern: str = ""
    apply_to: str = "all"
    priority: int = 0
    definition: Any = None

    def found(self) -> FoundPolicy:
        return FoundPolicy(
            name=self.name,
            pattern=self.pattern,
            apply_to=self.apply_to,
            priority=self.priority,
            definition=_table(self.definition),
        )


class _Policies:
    """Which policy acts on what. What a queue says of that itself is as old as its last statistics."""

    def __init__(self, policies: list[_Policy] | None, operators: list[_Policy] | None) -> None:
        self.seen = policies is not None and operators is not None
        self.own = [policy.found() for policy in policies or ()]
        self._operators = [policy.found() for policy in operators or ()]

    def of(self, name: str, kind: str) -> tuple[str | None, dict[str, Any]] | None:
        """The policy's name and all that policies set; None: that cannot be told."""
        if not self.seen:
            return None
        try:
            own, operators = (in_force(policies, name, kind) for policies in (self.own, self._operators))
        except re.error:  # a pattern that only the broker understands
            return None
        return (own.name if own else None), merged(own, operators)


class _Permission(msgspec.Struct):
    configure: str = ""
    write: str = ""
    read: str = ""


class _Node(msgspec.Struct):
    name: str
    mem_alarm: bool = False
    disk_free_alarm: bool = False
    mem_limit: Any = None
    disk_free_limit: Any = None


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# --- asking ---------------------------------------------------------------------------------------------------

_SEES_NOT: Final = {
    "policies": "policies set in the last seconds (needs the tag policymaker)",
    "permissions": "permissions of the user (needs the tag administrator)",
    "nodes": "alarms of the nodes (needs the tag monitoring)",
}


async def look(url: ManagementUrl, vhost: str, user: str, timeout: timedelta = TIMEOUT) -> Found:
    """All that can be seen of a virtual host; `user` is the one whose permissions are asked for."""
    return await asyncio.to_thread(_look, url, vhost, user, timeout)


def _look(url: ManagementUrl, vhost: str, user: str, timeout: timedelta) -> Found:
    with contextlib.closing(Api(url, timeout)) as api:
        where = quote(vhost, safe="")
        overview = api.get("overview", _Overview)
        columns = ",".join(_Queue.__struct_fields__)
        queues = api.get(f"queues/{where}?columns={columns}", list[_Queue])
        exchanges = api.get(f"exchanges/{where}", list[_Exchange])
        bindings = api.get(f"bindings/{where}", list[_Binding])
        policies = _Policies(api.get_if_allowed(f"policies/{where}", list[_Policy]), _operators(api, where))
        nodes = api.get_if_allowed("nodes", list[_Node])
        allowed, why_not = _permissions(api, where, user)
        unseen = [why_not] if why_not else []
        unseen += [] if policies.seen else [_SEES_NOT["policies"]]
        unseen += [] if nodes is not None else [_SEES_NOT["nodes"]]
        return Found(
            vhost=vhost,
            user=user,
            version=version_of(overview.rabbitmq_version),
            cluster=overview.cluster_name or None,
            management=url.place,
            operator=url.user,
            queues={queue.name: queue.found(policies) for queue in queues},
            exchanges={each.name: each.found(policies) for each in exchanges if each.name},
            bindings=tuple(_binding(binding) for binding in bindings if binding.source),
            policies={policy.name: policy for policy in policies.own} if policies.seen else None,
            permissions=allowed,
            alarms=None if nodes is None else tuple(_alarms(nodes)),
            unseen=tuple(unseen),
        )


def _operators(api: "Api", where: str) -> list[_Policy] | None:
    """Operators' policies; a broker that does not know the path has none."""
    try:
        return api.get_if_allowed(f"operator-policies/{where}", list[_Policy])
    except NotFoundError:
        return []


def _permissions(api: "Api", where: str, user: str) -> tuple[Permissions | None, str]:
    """What the user may, or why that cannot be seen."""
    try:
        given = api.get_if_allowed(f"permissions/{where}/{quote(user, safe='')}", _Permission)
    except NotFoundError:
        try:
            api.get(f"users/{quote(user, safe='')}", _Overview)
        except NotFoundError:
            return None, f"permissions of '{user}' (the user is not in the broker's internal database)"
        return Permissions(), ""
    if given is None:
        return None, _SEES_NOT["permissions"]
    return Permissions(configure=given.configure, write=given.write, read=given.read), ""


def _binding(binding: _Binding) -> Binding:
    return Binding(
        exchange=binding.source,
        destination=binding.destination,
        routing_key=binding.routing_key,
        to=binding.destination_type,
        arguments=_table(binding.arguments),
    )


def _alarms(nodes: Iterable[_Node]) -> Iterable[str]:
    for node in nodes:
        if node.mem_alarm:
            yield f"{node.name} is above its memory limit of {node.mem_limit} bytes"
        if node.disk_free_alarm:
            yield f"{node.name} is below its limit of {node.disk_free_limit} bytes of free disk"


class NotFoundError(TransportError):
    """There is nothing of this name (404)."""


class _NotAllowedError(BrokerRefusedError):
    """401 or 403."""


class Api:
    """One HTTP connection to the management API."""

    def __init__(self, url: ManagementUrl, timeout: timedelta) -> None:
        self._url = url
        self._seconds = timeout.total_seconds()
        self._connection = (
            http.client.HTTPSConnection(url.host, url.port, timeout=self._seconds, context=url.tls.context())
            if url.tls is not None
            else http.client.HTTPConnection(url.host, url.port, timeout=self._seconds)
        )

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def get_if_allowed(self, path: str, kind: type[T]) -> T | None:
        """The answer; None if the user's tags do not suffice for it."""
        try:
            return self.get(path, kind)
        except _NotAllowedError:
            return None

    def get(self, path: str, kind: type[T]) -> T:
        """The answer, as the values it should consist of."""
        what = f"the management API at {self._url.place}"
        shown = path.partition("?")[0]
        try:
            status, octets = self._exchange(path)
        except TimeoutError as error:
            raise BrokerUnreachableError(
                f"{what} did not answer within {self._seconds:g} s; it may be overloaded"
            ) from error
        except ssl.SSLCertVerificationError as error:
            raise BrokerUnreachableError(
                f"{what}: its certificate is not trusted ({error.verify_message}); set the CA file with "
                "cacertfile= in the amqps:// URL of the broker"
            ) from error
        except ssl.SSLError as error:
            raise BrokerUnreachableError(
                f"TLS handshake with {what} failed ({error.reason or error}); check --management-url"
            ) from error
        except (OSError, UnicodeError) as error:  # the latter: no name of a host
            why = getattr(error, "strerror", None) or error
            raise BrokerUnreachableError(
                f"{what} cannot be reached ({why}); set its address with --management-url"
            ) from error
        except http.client.HTTPException as error:
            raise TransportError(
                f"{what} does not speak HTTP ({type(error).__name__}); check --management-url"
            ) from error
        self._refuse(status, what, shown, octets)
        try:
            return msgspec.json.decode(octets, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TransportError(f"{what} gave an unexpected answer to {shown}: {error}") from None

    def _refuse(self, status: int, what: str, shown: str, octets: bytes) -> None:
        if status in {401, 403}:
            raise _NotAllowedError(
                f"{what} refused the user '{self._url.user}' ({status} to {shown}); check user, password and tags"
            )
        if status == 404:
            raise NotFoundError(
                f"{what} answered {shown} with 404; check the vhost and the URL, and that the user "
                f"'{self._url.user}' has permissions on the vhost (empty patterns are enough)"
            )
        if status != 200:
            said = octets[:200].decode("utf-8", "replace")
            raise TransportError(f"{what} answered {shown} with {status}: {said}")

    def _exchange(self, path: str) -> tuple[int, bytes]:
        ends = time.monotonic() + self._seconds
        token = b64encode(f"{self._url.user}:{self._url.password}".encode()).decode()
        headers = {"Authorization": f"Basic {token}", "Accept": "application/json"}
        self._connection.request("GET", f"{self._url.path}/api/{path}", headers=headers)
        response = self._connection.getresponse()
        octets = bytearray()
        while piece := response.read1(1024 * 1024):
            octets += piece
            if len(octets) > _LARGEST:
                raise TransportError(
                    f"the management API at {self._url.place} answers with more than {_LARGEST >> 20} MiB"
                )
            if time.monotonic() > ends:
                raise TimeoutError
        response.read()  # nothing is left; only this tells the connection so
        return response.status, bytes(octets)
