"""What is there on a broker, and where would a dead letter go?

`Found` is what was seen: over the management API nearly all of it, over AMQP alone only what exists. The rule: what
could not be seen is None, never a guess, and `unseen` says so in words.

Arguments and policies are put together as RabbitMQ does it, and exchanges lead where RabbitMQ's lead.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from redrive.transports.rabbitmq.delivery_counts import DeliveryCounts, counts_of_version
from redrive.transports.rabbitmq.topology import Arguments, Binding

Access: TypeAlias = Literal["configure", "write", "read"]
DEFAULT_EXCHANGE: Final = "amq.default"  # what permissions and paths call the exchange without a name
_SMALLER_WINS: Final = frozenset(
    {"message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit"}
)


class FoundQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that exists; `arguments` None: only its existence could be seen."""

    name: str
    type: str = "classic"
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: Arguments | None = None
    policy: str | None = None  # the name of the one policy that acts on it
    definition: Arguments = {}  # what policies set for it, all in all
    messages: int | None = None
    consumers: int | None = None

    @property
    def seen(self) -> bool:
        """Whether more than its existence is known."""
        return self.arguments is not None

    def setting(self, name: str) -> object | None:
        """What is in force of `dead-letter-exchange`, `message-ttl` and their like, by argument or by policy."""
        argument = (self.arguments or {}).get(f"x-{name}")
        policy = self.definition.get(name)
        if name in _SMALLER_WINS and isinstance(argument, int) and isinstance(policy, int):
            return _stricter(name, [argument, policy])
        return policy if argument is None else argument

    def number(self, name: str) -> int | None:
        """The same, where it is a number."""
        value = self.setting(name)
        return value if isinstance(value, int) else None

    @property
    def dlx(self) -> str | None:
        """The exchange its dead go to; None: they are dropped. The empty name is the default exchange."""
        value = self.setting("dead-letter-exchange")
        return value if isinstance(value, str) else None

    @property
    def dlx_key(self) -> str | None:
        """The routing key its dead get; None: they keep their own."""
        value = self.setting("dead-letter-routing-key")
        return value if isinstance(value, str) else None

    @property
    def drops_head(self) -> bool:
        """Whether a limit makes it throw its oldest messages out."""
        limited = self.number("max-length") is not None or self.number("max-length-bytes") is not None
        return limited and self.setting("overflow") in {None, "drop-head"}


class FoundExchange(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange that exists; `type` None: only its existence could be seen."""

    name: str
    type: str | None = None
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate: str | None = None  # where it sends what it has no binding for


class FoundPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, whole, so that it can be set again with something added."""

    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: Arguments

    def acts_on(self, name: str, kind: str) -> bool:
        """Whether it acts on this queue of this type, or on an exchange (`kind` is "exchange")."""
        if self.apply_to not in _APPLIES.get(kind, ("all", "queues", f"{kind}_queues")):
            return False
        return re.search(self.pattern, name) is not None


_APPLIES: Final = {"exchange": ("all", "exchanges"), "stream": ("all", "queues", "streams")}


def in_force(policies: Iterable[FoundPolicy], name: str, kind: str) -> FoundPolicy | None:
    """The one policy that acts: of those that fit, the one with the highest priority."""
    return max(
        (policy for policy in policies if policy.acts_on(name, kind)),
        key=lambda policy: policy.priority,
        default=None,
    )


def merged(policy: FoundPolicy | None, operators: FoundPolicy | None) -> dict[str, object]:
    """What a policy and an operator's policy set together: of two limits the smaller, else the policy's."""
    definition = {**(operators.definition if operators else {}), **(policy.definition if policy else {})}
    for name in _SMALLER_WINS & definition.keys():
        limits = [each.definition[name] for each in (policy, operators) if each and name in each.definition]
        numbers = [limit for limit in limits if isinstance(limit, int)]
        definition[name] = _stricter(name, numbers) if numbers else definition[name]
    return definition


def _stricter(name: str, limits: Sequence[int]) -> int:
    """Which of several limits is in force: the smallest. A negative delivery limit is none."""
    real = [limit for limit in limits if limit >= 0] if name == "delivery-limit" else limits
    return min(real or limits)


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may do in a virtual host: regular expressions that are searched for in names."""

    configure: str = ""
    write: str = ""
    read: str = ""

    def allow(self, access: Access, name: str) -> bool | None:
        """Whether the user may; None: the expression is one that only the broker understands."""
        try:
            return re.search(getattr(self, access) or "^$", name or DEFAULT_EXCHANGE) is not None
        except re.error:
            return None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a virtual host. None: it could not be seen."""

    vhost: str = "/"
    user: str = "guest"
    version: tuple[int, ...] | None = None  # RabbitMQ's
    is_embedded: bool = False  # it is the embedded broker, which announces a version of RabbitMQ
    counts: DeliveryCounts | None = None  # how it counts deliveries, where more than its version says so
    cluster: str | None = None  # what the brokers call themselves
    management: str | None = None  # where the management API is, without credentials
    operator: str | None = None  # who asks there
    queues: Mapping[str, FoundQueue] = {}
    exchanges: Mapping[str, FoundExchange] = {}
    bindings: tuple[Binding, ...] | None = None
    policies: Mapping[str, FoundPolicy] | None = None
    permissions: Permissions | None = None
    alarms: tuple[str, ...] | None = None  # what the nodes are short of
    unseen: tuple[str, ...] = ()
    refused: frozenset[str] = frozenset()  # names that the broker says nothing of: no permission on them

    @property
    def counting(self) -> DeliveryCounts:
        """How the broker counts deliveries."""
        return self.counts or counts_of_version(self.version)

    def has_exchange(self, name: str) -> bool:
        """Whether it exists; the default exchange always does."""
        return name == "" or name in self.exchanges

    def outgoing(self, exchange: str) -> Iterator[Binding]:
        """The bindings that lead away from an exchange."""
        return (binding for binding in self.bindings or () if binding.exchange == exchange)

    def routes(self, exchange: str, key: str) -> frozenset[str]:
        """The queues that a message with this key may reach from an exchange.

        Where only the message's headers or a plugin could say, every binding counts.
        """
        queues: set[str] = set()
        ahead, been = [exchange], {exchange}
        while ahead:
            name = ahead.pop()
            if name == "":
                queues |= {key} & self.queues.keys()
                continue
            here = self.exchanges.get(name)
            if here is None:
                continue
            taken = [binding for binding in self.outgoing(name) if _takes(here.type, binding, key)]
            queues |= {binding.destination for binding in taken if binding.to == "queue"}
            further = [binding.destination for binding in taken if binding.to == "exchange"]
            if not taken and here.alternate is not None:
                further.append(here.alternate)
            ahead += [following for following in further if following not in been]
            been.update(further)
        return frozenset(queues)

    def keys_into(self, queue: str) -> frozenset[str]:
        """Routing keys, or patterns of them, that messages in a queue may have: its own name and its bindings'."""
        fanouts = {
            name for name, exchange in self.exchanges.items() if exchange.type in {"fanout", "headers"}
        }
        bound = (
            binding.routing_key
            for binding in self.bindings or ()
            if binding.to == "queue" and binding.destination == queue and binding.exchange not in fanouts
        )
        return frozenset({queue, *bound})


def _takes(kind: str | None, binding: Binding, key: str) -> bool:
    if kind == "direct":
        return binding.routing_key == key
    if kind == "topic":
        return covers(binding.routing_key, key)
    return True


def covers(pattern: str, key: str) -> bool:
    """Whether a topic pattern takes a key. The key may be a pattern itself: then all that it stands for."""
    return _covers(tuple(pattern.split(".")), tuple(key.split(".")), {})


def _covers(pattern: tuple[str, ...], words: tuple[str, ...], known: dict[tuple[int, int], bool]) -> bool:
    """By what is left of both; remembered, so that many `#` cost a table and not a forest."""
    at = (len(pattern), len(words))
    if at not in known:
        if not pattern:
            known[at] = not words
        elif pattern[0] == "#":
            known[at] = _covers(pattern[1:], words, known) or (
                bool(words) and _covers(pattern, words[1:], known)
            )
        else:
            fits = bool(words) and words[0] != "#" and pattern[0] in {"*", words[0]}
            known[at] = fits and _covers(pattern[1:], words[1:], known)
    return known[at]


def version_of(text: object) -> tuple[int, ...] | None:
    """The numbers of a version such as `3.10.8`."""
    match = re.match(r"\d+(?:\.\d+)*", text) if isinstance(text, str) else None
    return tuple(int(number) for number in match[0].split(".")) if match else None
