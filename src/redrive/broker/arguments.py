"""What do the arguments of a declare, a consume or a publish mean, and how is a wrong one refused?

The rule: everything here is a pure function from what the client sent to a value or to one error, and the error's
code and text are RabbitMQ 4's, because client code matches on them. Checks run in RabbitMQ's order, so that of two
mistakes the same one is named. An argument that no queue type knows is the client's own business and is ignored.

This module does not know which queues exist, who may use them, or what a policy adds (`policies`). A stream is not
a type of this broker and is refused as an unknown one would be. Exclusive access (405) belongs to the caller.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from redrive.amqp.errors import HardError, ReplyCode, SoftError
from redrive.amqp.values import FieldTable, Timestamp
from redrive.broker.delayed_retry import RETRY_TYPES, DelayedRetry
from redrive.broker.erlang import erlang_string, erlang_term, octets, shown, type_name

QueueType: TypeAlias = Literal["classic", "quorum"]
Overflow: TypeAlias = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
Strategy: TypeAlias = Literal["at-most-once", "at-least-once"]
Kind: TypeAlias = Literal["queue", "exchange"]
_Check: TypeAlias = Callable[[Any], str | None]

MAX_EXPIRY: Final = 315_360_000_000  # ten years of 365 days, in milliseconds
MAX_MESSAGE_SIZE: Final = 16_777_216  # RabbitMQ's default
DEFAULT_DELIVERY_LIMIT: Final = 20
EXCHANGE_TYPES: Final = ("direct", "fanout", "topic", "headers")
# The exchange federation of a RabbitMQ tries this type on an upstream first. It uses a fanout exchange instead if the
# answer is the one that RabbitMQ gave to any unknown type up to version 3: 503, which ends that connection.
FEDERATION_TYPE: Final = "x-federation-upstream"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# In the order in which a difference is reported on a redeclare.
_CLASSIC: Final = _words(
    "x-expires x-message-ttl x-dead-letter-exchange x-dead-letter-routing-key x-max-length x-max-length-bytes"
    " x-max-priority x-overflow x-queue-mode x-queue-version x-single-active-consumer x-queue-type"
    " x-queue-master-locator x-queue-leader-locator"
)
_QUORUM: Final = _words(
    "x-dead-letter-exchange x-dead-letter-routing-key x-dead-letter-strategy x-expires x-max-length"
    " x-max-length-bytes x-max-in-memory-length x-max-in-memory-bytes x-overflow x-single-active-consumer"
    " x-queue-type x-quorum-initial-group-size x-delivery-limit x-message-ttl x-queue-leader-locator"
    " x-consumer-disconnected-timeout x-consumer-timeout x-delayed-retry-type x-delayed-retry-min"
    " x-delayed-retry-max"
)
_STREAM: Final = _words(
    "x-max-age x-stream-max-segment-size-bytes x-stream-filter-size-bytes x-initial-cluster-size"
)
_QUEUE_ARGUMENTS: Final = {"classic": _CLASSIC, "quorum": _QUORUM, "stream": _STREAM}
_CONSUMER_ARGUMENTS: Final = {
    "classic": ("x-priority",),
    "quorum": ("x-priority", "x-consumer-timeout"),
    "stream": ("x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered"),
}
_SWITCHES: Final = {
    "dlx": ("dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy"),
    "ttl": ("message-ttl", "expires"),
    "length_limit": ("max-length", "max-length-bytes", "overflow"),
}


@dataclass(frozen=True)
class Features:
    """Which extensions are on. The arguments of one that is off are ignored, with a warning."""

    dlx: bool = True
    ttl: bool = True
    length_limit: bool = True

    def switch_off_of(self, option: str) -> str | None:
        """The setting that turned `option` off (`message-ttl`; an argument's `x-` may stand before it)."""
        named = option.removeprefix("x-")
        off = (
            switch for switch, options in _SWITCHES.items() if named in options and not getattr(self, switch)
        )
        return next((f"enable_{switch}" for switch in off), None)


ALL_ON: Final = Features()


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """What a queue's arguments mean. Times are milliseconds; `given` names the options that an argument set."""

    queue_type: QueueType = "classic"
    message_ttl: int | None = None
    expires: int | None = None
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: Overflow = "drop-head"
    dead_letter_exchange: str | None = None  # "" is the default exchange
    dead_letter_routing_key: str | None = None
    dead_letter_strategy: Strategy = "at-most-once"
    max_priority: int | None = None
    single_active_consumer: bool = False
    delivery_limit: int | None = None  # quorum only; -1: unlimited
    consumer_timeout: int | None = None  # quorum only
    delayed_retry_type: str | None = None  # quorum only, as these
    delayed_retry_min: int | None = None
    delayed_retry_max: int | None = None
    given: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def at_least_once(self) -> bool:
        """Whether a message stays until its dead letter is confirmed: only where a quorum queue refuses overflow."""
        wanted = self.dead_letter_strategy == "at-least-once" and self.queue_type == "quorum"
        return wanted and self.overflow == "reject-publish" and self.dead_letter_exchange is not None

    @property
    def delayed_retry(self) -> DelayedRetry | None:
        """How returns are delayed; None if a part is missing or makes no sense, as RabbitMQ has it."""
        kind, low, high = self.delayed_retry_type, self.delayed_retry_min, self.delayed_retry_max
        if self.queue_type != "quorum" or kind not in RETRY_TYPES or low is None or low <= 0:
            return None
        return DelayedRetry(kind, low, high if high is not None and high > 0 else low)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """What a consumer asks for besides its messages."""

    priority: int = 0
    exclusive: bool = False
    timeout: int | None = None  # milliseconds a delivery may stay unacknowledged; quorum only


@dataclass(frozen=True)
class Declared:
    """What a declare says about a queue or an exchange; the last two of an exchange alone.

    An exclusive queue is never durable, whatever its declare asked for.
    """

    durable: bool = False
    auto_delete: bool = False
    arguments: FieldTable = field(default_factory=dict)
    type: str = ""
    internal: bool = False


# --- The reasons why a value is wrong ---------------------------------------------------------------------


def _integer(value: Any) -> str | None:
    wrong = isinstance(value, bool | Timestamp) or not isinstance(value, int)
    return f'"expected integer, got {type_name(value)}"' if wrong else None


def _within(low: int, high: int | None = None, too_high: str = "") -> _Check:
    def check(value: Any) -> str | None:
        if reason := _integer(value):
            return reason
        if value < 0:
            return f"{{value_negative,{int(value)}}}"
        if value < low:
            return "{value_zero,0}"
        return None if high is None or value <= high else f"{{{too_high},{int(value)}}}"

    return check


def _of_type(wanted: str) -> _Check:
    return lambda value: None if type_name(value) == wanted else f"{{unacceptable_type,{type_name(value)}}}"


def _one_of(reason: str, names: str) -> _Check:
    wrong_type = _of_type("longstr")
    return lambda value: wrong_type(value) or (None if value in names.split() else reason)


def _version(value: Any) -> str | None:
    return _within(0)(value) or (
        None if value == 2 else erlang_string(f"unsupported queue version '{shown(value)}'")
    )


def _queue_type(value: Any) -> str | None:
    # RabbitMQ 4 takes the two spellings of nothing for its default.
    known = value in ("classic", "quorum", "", "undefined")  # a value of any type, also one without a hash
    return _of_type("longstr")(value) or (
        None if known else erlang_string(f"unsupported queue type '{shown(value)}'")
    )


_CHECKS: Final[Mapping[str, _Check]] = {
    "x-expires": _within(1, MAX_EXPIRY, "value_too_large"),
    "x-message-ttl": _within(0, MAX_EXPIRY, "value_too_large"),
    "x-dead-letter-routing-key": _of_type("longstr"),
    "x-dead-letter-strategy": _one_of("invalid_dlx_strategy", "at-most-once at-least-once"),
    "x-max-length": _within(0),
    "x-max-length-bytes": _within(0),
    "x-max-in-memory-length": _within(0),
    "x-max-in-memory-bytes": _within(0),
    "x-max-priority": _within(0, 255, "max_value_exceeded"),
    "x-overflow": _one_of("invalid_overflow", "drop-head reject-publish reject-publish-dlx"),
    "x-queue-version": _version,
    "x-single-active-consumer": _of_type("bool"),
    "x-consumer-timeout": _within(0),
    "x-consumer-disconnected-timeout": _within(0),
    "x-quorum-initial-group-size": _within(1),
    "x-queue-leader-locator": _one_of(
        "invalid_queue_locator_arg", "client-local balanced random least-leaders"
    ),
    "x-priority": _integer,
}


# Refused as by RabbitMQ 4.3, and accepted by earlier versions of this broker: a journal may hold queues that have it.
RETIRED: Final = frozenset({"x-queue-master-locator"})
# As RabbitMQ says it; from the fourth line on it is cut off, because a reply text holds 255 octets.
_NO_MASTER_LOCATOR: Final = (
    "Feature `queue_master_locator` is deprecated.\nBy default, this feature is not permitted anymore.\n"
    "The feature will be removed from a future major RabbitMQ version, regardless of the configuration; "
    "actual version to be determined.\nTo continue, declare the queue without x-queue-master-locator."
)


def refused(text: str) -> SoftError:
    """The error that nearly everything here ends in."""
    return SoftError(ReplyCode.PRECONDITION_FAILED, text)


def _check_values(keys: Iterable[str], place: str, arguments: FieldTable) -> None:
    for key in keys:
        reason = _CHECKS[key](arguments[key]) if key in arguments else None
        if (
            not reason
            and key == "x-dead-letter-routing-key" in arguments
            and "x-dead-letter-exchange" not in arguments
        ):
            reason = "routing_key_but_no_dlx_defined"
        if reason:
            raise refused(f"invalid arg '{key}' for {place}: {reason}")


def _check_keys(table: Mapping[str, tuple[str, ...]], kind: str, place: str, keys: Iterable[str]) -> None:
    foreign = frozenset().union(*table.values()) - frozenset(table[kind])
    for key in keys:
        if key in foreign:
            raise refused(f"invalid arg '{key}' for {place} of queue type rabbit_{kind}_queue")


# --- Queues and exchanges ---------------------------------------------------------------------------------


def queue_type_of(arguments: FieldTable) -> QueueType:
    """Which type a queue with these arguments is of; whether it is a known one is for the declare to check."""
    return "quorum" if arguments.get("x-queue-type") == "quorum" else "classic"


def check_server_named(arguments: FieldTable) -> None:
    """May the server choose the name? To be asked before it does: a quorum queue must be named by its client."""
    if queue_type_of(arguments) == "quorum":
        raise refused("Cannot declare a server-named queue for type rabbit_quorum_queue")


def parse_queue_arguments(
    name: str,
    vhost: str,
    arguments: FieldTable,
    *,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    features: Features = ALL_ON,
) -> QueueOptions:
    """What a new queue is to be, or the error that its declare is answered with."""
    place = f"queue '{name}' in vhost '{vhost}'"
    off = {key: switch for key in arguments if (switch := features.switch_off_of(key))}
    warnings = [f"argument '{key}' of {place} is ignored: {switch} is off" for key, switch in off.items()]
    seen = {key: value for key, value in arguments.items() if key not in off}
    _check_exchange_name(seen, "x-dead-letter-exchange", place)
    if "x-queue-type" in seen and (reason := _queue_type(seen["x-queue-type"])):
        raise refused(f"invalid arg 'x-queue-type' for {place}: {reason}")
    kind = queue_type_of(seen)
    _check_values((key for key in _CHECKS if key in _QUEUE_ARGUMENTS[kind]), place, seen)
    # RabbitMQ sorts the arguments when it adds the type itself, so another one of two wrong keys comes first.
    _check_keys(_QUEUE_ARGUMENTS, kind, place, seen if "x-queue-type" in seen else sorted(seen))
    if not RETIRED.isdisjoint(seen):
        raise HardError(ReplyCode.INTERNAL_ERROR, _NO_MASTER_LOCATOR)
    if kind == "quorum":
        durable = durable and not exclusive
        for wrong, what in (
            (auto_delete, "auto-delete"),
            (exclusive, "exclusive-owner"),
            (not durable, "non-durable"),
        ):
            if wrong:
                raise refused(f"invalid property '{what}' for {place}")
    return _options(kind, seen, tuple(warnings), place)


def _options(kind: QueueType, seen: FieldTable, warnings: tuple[str, ...], place: str) -> QueueOptions:
    fields = QueueOptions.__dataclass_fields__.keys() - {"queue_type", "given", "warnings"}
    values: dict[str, Any] = {
        name: seen[key] for name in fields if (key := f"x-{name.replace('_', '-')}") in seen
    }
    for name, value in values.items():
        if isinstance(value, bytes):
            values[name] = value.decode("utf-8", "surrogateescape")
        elif isinstance(value, int) and not isinstance(value, bool):
            values[name] = int(value)
    if kind == "quorum":
        # Arguments that RabbitMQ does not check: what has the wrong type counts as absent.
        for unchecked in ("delivery_limit", "delayed_retry_min", "delayed_retry_max"):
            if unchecked in values and type(values[unchecked]) is not int:
                del values[unchecked]
        if not isinstance(values.get("delayed_retry_type", ""), str):
            del values["delayed_retry_type"]
        if "delivery_limit" in values:
            values["delivery_limit"] = max(values["delivery_limit"], -1)  # below zero is unlimited
        if values.get("overflow") == "reject-publish-dlx":
            del values["overflow"]
            warnings += (f"a quorum queue has no overflow 'reject-publish-dlx'; {place} drops its head",)
    given = frozenset(values)
    if kind == "quorum":
        values.setdefault("delivery_limit", DEFAULT_DELIVERY_LIMIT)
    return QueueOptions(queue_type=kind, given=given, warnings=warnings, **values)


def check_exchange(name: str, vhost: str, kind: str, arguments: FieldTable) -> str | None:
    """The alternate exchange of a new exchange; an unknown type is refused first."""
    if kind == FEDERATION_TYPE:
        raise HardError(ReplyCode.COMMAND_INVALID, f"unknown exchange type '{kind}'")
    if kind not in EXCHANGE_TYPES:
        raise refused(f"unknown exchange type '{kind}'")
    return _check_exchange_name(arguments, "alternate-exchange", f"exchange '{name}' in vhost '{vhost}'")


def _check_exchange_name(arguments: FieldTable, key: str, place: str) -> str | None:
    if key not in arguments:
        return None
    if (kind := type_name(arguments[key])) != "longstr":
        raise refused(f"invalid type '{kind}' for arg '{key}' in {place}")
    return shown(arguments[key])


def check_equivalent(kind: Kind, name: str, vhost: str, existing: Declared, requested: Declared) -> None:
    """Does a redeclare ask for what is there? Numbers of any width are equal, and no queue type means classic."""
    place = f"{kind} '{name}' in vhost '{vhost}'"
    fields = (
        ("type", "durable", "auto_delete", "internal") if kind == "exchange" else ("durable", "auto_delete")
    )
    for each in fields:
        old, new = getattr(existing, each), getattr(requested, each)
        if old != new:
            raise _differs(each, place, f"'{shown(new)}'", f"'{shown(old)}'")
    default: FieldTable = {} if kind == "exchange" else {"x-queue-type": "classic"}
    before, after = {**default, **existing.arguments}, {**default, **requested.arguments}
    keys = ("alternate-exchange",) if kind == "exchange" else _QUEUE_ARGUMENTS[queue_type_of(before)]
    for key in keys:
        if key in before and key in after:
            # Compared as terms: to Python 1 equals True and 1.0, to Erlang it does not.
            if erlang_term(before[key]) != erlang_term(after[key]):
                raise _differs(key, place, f"'{shown(after[key])}'", f"'{shown(before[key])}'")
        elif key in before or key in after:
            raise _differs(key, place, _typed(after, key), _typed(before, key))


def _differs(key: str, place: str, new: str, old: str) -> SoftError:
    return refused(f"inequivalent arg '{key}' for {place}: received {new} but current is {old}")


def _typed(arguments: FieldTable, key: str) -> str:
    if key not in arguments:
        return "none"
    return f"the value '{shown(arguments[key])}' of type '{type_name(arguments[key])}'"


# --- Consumers and messages -------------------------------------------------------------------------------


def consumer_arguments(
    name: str,
    vhost: str,
    arguments: FieldTable,
    *,
    queue_type: QueueType = "classic",
    exclusive: bool = False,
) -> ConsumerOptions:
    """What a consumer of this queue is to be, or the error that its consume is answered with."""
    place = f"queue '{name}' in vhost '{vhost}'"
    _check_values(_CONSUMER_ARGUMENTS[queue_type], place, arguments)
    _check_keys(_CONSUMER_ARGUMENTS, queue_type, place, arguments)
    checked: Mapping[str, Any] = arguments
    priority, timeout = checked.get("x-priority", 0), checked.get("x-consumer-timeout")
    return ConsumerOptions(
        priority=int(priority), exclusive=exclusive, timeout=None if timeout is None else int(timeout)
    )


def parse_expiration(text: bytes | str) -> int:
    """A message's own time to live in milliseconds."""
    raw = octets(text).decode("latin-1")  # Erlang counts octets here
    found = re.match(r"[+-]?[0-9]+", raw)
    if not found:
        reason: str | None = "no_integer"
    elif rest := raw[found.end() :]:
        reason = f"{{leftover_string,{erlang_string(rest)}}}"
    else:
        reason = _CHECKS["x-message-ttl"](int(raw))
        if not reason:
            return int(raw)
    raise refused(f"invalid expiration '{shown(text)}': {reason}")


def check_user_id(claimed: str | None, user: str, tags: Iterable[str] = ()) -> None:
    """Does a message say truly who sent it? An `impersonator` may say what it likes."""
    if claimed is not None and claimed != user and "impersonator" not in tags:
        raise refused(f"user_id property set to '{claimed}' but authenticated user was '{user}'")


def check_message_size(size: int, maximum: int = MAX_MESSAGE_SIZE) -> None:
    """Is the body small enough?"""
    if size > maximum:
        raise refused(f"message size {size} is larger than configured max size {maximum}")


def routing_headers(headers: FieldTable) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The further routing keys of a message, `CC` and `BCC`. What is no string among them is passed over."""
    cc, bcc = (_keys_in(headers, header) for header in ("CC", "BCC"))
    return cc, bcc


def _keys_in(headers: FieldTable, header: str) -> tuple[str, ...]:
    value: Any = headers.get(header, [])
    if header in headers and type_name(value) != "array":
        raise refused(f'invalid message: {{unacceptable_type_in_header,"{header}",{type_name(value)}}}')
    return tuple(
        octets(key).decode("utf-8", "surrogateescape") for key in value if type_name(key) == "longstr"
    )
