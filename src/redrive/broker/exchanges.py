"""Which queues does a message reach?

An `Exchange` answers for its own bindings: which destinations does this routing key, do these headers, match?
`route` puts the answers together: over all keys of a message, on through exchanges bound to exchanges, and where an
exchange matched nothing through its alternate exchange, as RabbitMQ does.

The rule: an answer costs what it finds, not what there is. A direct exchange is a dictionary, a topic exchange a trie
whose walk sees a few nodes whether ten keys are bound or ten thousand; only a headers exchange looks at every binding.
What is unbound leaves nothing behind.

It does not know what a queue is: a destination is anything hashable, and whoever asks says which ones are queues.
Nor does it know the default exchange, which has no bindings; its owner looks up the queue by name.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from redrive.amqp.errors import ReplyCode, SoftError
from redrive.amqp.table import encode_table, encode_value
from redrive.broker.erlang import erlang_binary, erlang_term, type_name

Destination: TypeAlias = Hashable
Headers: TypeAlias = Callable[[], Mapping[str, object]]


class Binding(NamedTuple):
    """From this exchange to `destination`, for what matches `key` or, on a headers exchange, `arguments`."""

    destination: Destination
    key: str
    arguments: Mapping[str, object]


# How often a destination is bound for one and the same thing: it may be bound twice with different arguments.
_Counts: TypeAlias = dict[Destination, int]


class Exchange:
    """A named point that messages are published to, with its bindings.

    `match(key, headers)` gives the destinations for one routing key, each once and in a stable order. Only a
    headers exchange calls `headers`. The answer may be the live index: read it, and do not keep it.
    `alternate` is for a policy to set; the exchange's own argument wins over it.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        if not kind_is_known(kind):
            raise SoftError(ReplyCode.PRECONDITION_FAILED, f"unknown exchange type '{kind}'")
        self.name = name
        self.kind = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments: Mapping[str, object] = {} if arguments is None else arguments
        self.alternate: str | None = None
        self._last = 0
        self._bindings: dict[int, Binding] = {}  # by number, which is the order they were made in
        # By destination, so that a deleted queue is forgotten without a look at the bindings of the others.
        self._numbers: dict[Destination, dict[tuple[str, bytes], int]] = {}
        self._index: _Index = _INDEXES[kind]()
        # Not a method of this class: a publish asks the index itself.
        self.match: Callable[[str, Headers], Collection[Destination]] = self._index.match

    def bind(self, destination: Destination, key: str, arguments: Mapping[str, object]) -> bool:
        """Adds a binding; False if exactly this one is there already. `arguments` are kept and must not change."""
        if self.kind == "headers":
            _check_x_match(arguments)
        identity = _identity(key, arguments)
        numbers = self._numbers.setdefault(destination, {})
        if identity in numbers:
            return False
        number = self._last = self._last + 1
        numbers[identity] = number
        binding = self._bindings[number] = Binding(destination, key, arguments)
        self._index.add(number, binding)
        return True

    def unbind(self, destination: Destination, key: str, arguments: Mapping[str, object]) -> bool:
        """Takes a binding away; False if there is none like it."""
        numbers = self._numbers.get(destination, {})
        number = numbers.pop(_identity(key, arguments), None)
        if number is None:
            return False
        if not numbers:
            del self._numbers[destination]
        self._index.remove(number, self._bindings.pop(number))
        return True

    def forget(self, destination: Destination) -> int:
        """Takes away every binding to a destination that was deleted, and says how many there were."""
        numbers = self._numbers.pop(destination, {})
        for number in numbers.values():
            self._index.remove(number, self._bindings.pop(number))
        return len(numbers)

    def bindings(self) -> list[Binding]:
        """Every binding, in the order they were made."""
        return list(self._bindings.values())

    @property
    def is_unused(self) -> bool:
        """Whether nothing is bound to it: `if-unused` and auto-delete ask that."""
        return not self._bindings

    @property
    def alternate_exchange(self) -> str | None:
        """The name of the exchange that gets what matches nothing here, from the argument or else the policy."""
        named = self.arguments.get("alternate-exchange")
        return named if isinstance(named, str) else self.alternate

    def __len__(self) -> int:
        return len(self._bindings)

    def __bool__(self) -> bool:
        return True  # an exchange without bindings is still an exchange


def route(
    exchange: Exchange,
    keys: Sequence[str],
    headers: Headers,
    find: Callable[[str], Exchange | None],
    is_queue: Callable[[Destination], bool],
) -> list[Destination]:
    """The queues that a message with these keys reaches from `exchange`, each once, nearest first.

    `find` looks up an alternate exchange by name; one that is not there is passed over, as in RabbitMQ.
    """
    queues: dict[Destination, None] = {}
    seen = {exchange}
    work = [exchange]
    for current in work:  # grows while it is read; `seen` ends every circle
        matched = _match_all_keys(current, keys, headers)
        if not matched:
            name = current.alternate_exchange
            alternate = None if name is None else find(name)
            matched = () if alternate is None else (alternate,)
        for destination in matched:
            if is_queue(destination):
                queues[destination] = None
            elif isinstance(destination, Exchange) and destination not in seen:
                seen.add(destination)
                work.append(destination)
    return list(queues)


def _match_all_keys(exchange: Exchange, keys: Sequence[str], headers: Headers) -> Collection[Destination]:
    if len(keys) == 1 or exchange.kind in ("fanout", "headers"):
        return exchange.match(keys[0] if keys else "", headers)
    return dict.fromkeys(found for key in keys for found in exchange.match(key, headers))


def _identity(key: str, arguments: Mapping[str, object]) -> tuple[str, bytes]:
    """What makes a binding this one: its key and its arguments with their wire types, in any order."""
    return key, encode_table({name: arguments[name] for name in sorted(arguments)}) if arguments else b""


def _count(counts: _Counts, destination: Destination) -> None:
    counts[destination] = counts.get(destination, 0) + 1


def _uncount(counts: _Counts, destination: Destination) -> None:
    counts[destination] -= 1
    if not counts[destination]:
        del counts[destination]


class _Direct:
    """The key is the binding's key."""

    def __init__(self) -> None:
        self._keys: dict[str, _Counts] = {}

    def add(self, _number: int, binding: Binding) -> None:
        _count(self._keys.setdefault(binding.key, {}), binding.destination)

    def remove(self, _number: int, binding: Binding) -> None:
        counts = self._keys[binding.key]
        _uncount(counts, binding.destination)
        if not counts:
            del self._keys[binding.key]

    def match(self, key: str, _headers: Headers, /) -> Collection[Destination]:
        return self._keys.get(key, ())


class _Fanout:
    """Everybody gets everything."""

    def __init__(self) -> None:
        self._counts: _Counts = {}

    def add(self, _number: int, binding: Binding) -> None:
        _count(self._counts, binding.destination)

    def remove(self, _number: int, binding: Binding) -> None:
        _uncount(self._counts, binding.destination)

    def match(self, _key: str, _headers: Headers, /) -> Collection[Destination]:
        return self._counts


def _words(key: str) -> list[str]:
    """The words of a key. The empty key has none, so `*` does not match it; `a.` has two."""
    return key.split(".") if key else []


class _Node:
    """A place in the trie: the pattern's words up to here. `many` is set where the last of them is `#`."""

    __slots__ = ("children", "counts", "many")

    def __init__(self, *, many: bool = False) -> None:
        self.children: dict[str, _Node] = {}
        self.counts: _Counts = {}
        self.many = many


class _Topic:
    """The key's words follow the pattern: `*` is one word, `#` any number of them."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, _number: int, binding: Binding) -> None:
        node = self._root
        for word in _words(binding.key):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node(many=word == "#")
            node = child
        _count(node.counts, binding.destination)

    def remove(self, _number: int, binding: Binding) -> None:
        node = self._root
        path: list[tuple[_Node, str]] = []
        for word in _words(binding.key):
            path.append((node, word))
            node = node.children[word]
        _uncount(node.counts, binding.destination)
        while path and not node.counts and not node.children:
            node, word = path.pop()
            del node.children[word]

    def match(self, key: str, _headers: Headers, /) -> Collection[Destination]:
        # All places the words so far can have led to. A place is kept once however many ways lead there, so several
        # `#` in a pattern cost their number and not every way to share out the words among them.
        places: dict[_Node, None] = {}
        _arrive(self._root, places)
        for word in _words(key):
            after: dict[_Node, None] = {}
            for node in places:
                if node.many:
                    after[node] = None
                _arrive(node.children.get(word), after)
                _arrive(node.children.get("*"), after)
            places = after
        found = [node.counts for node in places if node.counts]
        if len(found) == 1:
            return found[0]
        return dict.fromkeys(destination for counts in found for destination in counts)


def _arrive(node: _Node | None, places: dict[_Node, None]) -> None:
    """Adds the node, if there is one, and what it leads to with no further word: a `#` may stand for none."""
    while node is not None:
        places[node] = None
        node = node.children.get("#")


_X_MATCH: Final = "x-match"
_X_MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")


class _Headers:
    """The message's headers are, all or any of them, what the binding's arguments say."""

    def __init__(self) -> None:
        # By number: the destination, whether all must agree, and the value wanted per header (None: any value).
        self._tests: dict[int, tuple[Destination, bool, Mapping[str, object]]] = {}

    def add(self, number: int, binding: Binding) -> None:
        how = str(binding.arguments.get(_X_MATCH, "all"))
        with_x = how.endswith("-with-x")
        wanted = {
            name: None if value is None else _comparable(value)
            for name, value in binding.arguments.items()
            if name != _X_MATCH and (with_x or not name.startswith("x-"))
        }
        self._tests[number] = (binding.destination, how.startswith("all"), wanted)

    def remove(self, number: int, _binding: Binding) -> None:
        del self._tests[number]

    def match(self, _key: str, headers: Headers, /) -> Collection[Destination]:
        if not self._tests:
            return ()
        values = {name: _comparable(value) for name, value in headers().items()}
        matched: dict[Destination, None] = {}
        for destination, every, wanted in self._tests.values():
            hits = (name in values and want in (None, values[name]) for name, want in wanted.items())
            # Without anything to ask for, "all" is met and "any" is not.
            if all(hits) if every else any(hits):
                matched[destination] = None
        return matched


def _check_x_match(arguments: Mapping[str, object]) -> None:
    how = arguments.get(_X_MATCH, "all")
    if not isinstance(how, str):
        text = f"Invalid x-match field type {type_name(how)} (value {erlang_term(how)}); expected longstr"
        raise SoftError(ReplyCode.PRECONDITION_FAILED, text)
    if how not in _X_MATCHES:
        shown = erlang_binary(how.encode())
        text = f"Invalid x-match field value {shown}; expected all, any, all-with-x, or any-with-x"
        raise SoftError(ReplyCode.PRECONDITION_FAILED, text)


def _comparable(value: object) -> object:
    """Equal for two header values if and only if RabbitMQ 4 holds them to be equal.

    The width of a number does not matter, nor whether octets came as string or as byte array; but a number is no
    string, 1 is neither 1.0 nor true, and inside arrays and tables the types must be the same as well.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, float):
        return float, value
    return list, encode_value(value)


_Index: TypeAlias = _Direct | _Fanout | _Topic | _Headers
_INDEXES: Final[dict[str, type[_Index]]] = {
    "direct": _Direct,
    "fanout": _Fanout,
    "topic": _Topic,
    "headers": _Headers,
}
KINDS: Final = tuple(_INDEXES)


def kind_is_known(kind: str) -> bool:
    """Whether there are exchanges of this kind."""
    return kind in _INDEXES
