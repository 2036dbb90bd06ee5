"""How does redrive itself mark a dead letter that travels over a broker? (T12)

The body stays as it is; everything else is told in headers whose names begin with `redrive-`. Their values are
text, whole numbers and booleans, so that AMQP carries them with their types and Kafka as text, and `read` takes
them from either.

The one rule: what `write` was given, `read` gives back, and `strip` removes exactly what was added on the way.
Only the texts of an error may be cut, so that a long stack is never why a dead letter cannot be written. Names
that are not UTF-8 keep their octets by way of `surrogateescape`, as AMQP's own do. It does not know any broker,
and it hides nothing: a `Failure` is redacted where it is made.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from redrive.errors import SettingsError
from redrive.formats import fields
from redrive.letters import (
    DeadLetter,
    Failure,
    FailureKind,
    Headers,
    HeaderValue,
    Origin,
    SystemState,
    TypedValue,
)
from redrive.letters.headers import EMPTY
from redrive.rules import format_duration, parse_duration

PREFIX: Final = "redrive-"
VERSION: Final = "2"
_MARK: Final = PREFIX + "reason"  # no dead letter of ours is without it
_VERSION: Final = PREFIX + "version"

# In bytes of UTF-8. All headers of an AMQP message share one frame, of 128 KiB as a rule, with the message's own.
LONGEST_STACK: Final = 16 * 1024
LONGEST_DESCRIPTION: Final = 4 * 1024
LONGEST_WORD: Final = 1024  # reason, error type and rule are names, but people write them

_LONGEST_KEPT: Final = 8 * 1024  # of text and stack together, where what was written is remembered
Pair: TypeAlias = tuple[str, HeaderValue]

# What tells of the death.
_OF_THE_DEATH: Final = (
    "version",
    "reason",
    "description",
    "error-type",
    "failure-kind",
    "error-rule",
    "retryable",
    "retry-after",
    "failed-at",
    "first-failed-at",
    "retry-count",
    "delivery-count",
    "key",
    "correlation-id",
    "failure-group",
    "transport",
    "source",
    "origin-exchange",
    "origin-routing-key",
    "origin-partition",
    "origin-offset",
    "consumer-group",
    "host-cpu",
    "host-memory",
    "redacted",
    "letter-tags",
    "letter-priority",
    "stack",
)
# What transports add while a message is on its way; `redrive-original-*` belongs here too.
_OF_THE_WAY: Final = ("deliveries", "not-before")
# Headers of version 1 that have another name now. Dead letters of version 1 are read for good.
_VERSION_1: Final = {
    PREFIX + old: PREFIX + new
    for old, new in (
        ("error-kind", "failure-kind"),
        ("group", "failure-group"),
        ("exchange", "origin-exchange"),
        ("routing-key", "origin-routing-key"),
        ("partition", "origin-partition"),
        ("offset", "origin-offset"),
        ("cpu", "host-cpu"),
        ("memory", "host-memory"),
    )
}
_ADDED: Final = frozenset([*(PREFIX + name for name in (*_OF_THE_DEATH, *_OF_THE_WAY)), *_VERSION_1])
_ORIGINAL: Final = PREFIX + "original-"
_FAILED_AT: Final = PREFIX + "failed-at"
_FIRST_FAILED_AT: Final = PREFIX + "first-failed-at"
_TIME_LENGTH: Final = len("2026-01-01T00:00:00.000000+00:00")


_Time: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_OTHER_NAMES: Final = {
    "text": "description",
    "kind": "failure-kind",
    "rule": "error-rule",
    "group": "failure-group",
    "exchange": "origin-exchange",
    "routing_key": "origin-routing-key",
    "partition": "origin-partition",
    "offset": "origin-offset",
    "cpu": "host-cpu",
    "memory": "host-memory",
    "tags": "letter-tags",
    "priority": "letter-priority",
}


def _header(field: str) -> str:
    """The header that tells a field of `OwnDeath`."""
    return PREFIX + _OTHER_NAMES.get(field, field.replace("_", "-"))


class Share(float):
    """A number from 0 to 1, which travels as text."""


class OwnDeath(msgspec.Struct, frozen=True, kw_only=True, rename=_header):
    """What the headers tell. None is what they do not tell, or not legibly; `unreadable` says which."""

    unreadable: tuple[str, ...] = ()  # names of headers; never their content
    version: str | None = None
    # why
    reason: str | None = None
    error_type: str | None = None
    text: str | None = None
    kind: FailureKind | None = None
    rule: str | None = None
    retryable: bool | None = None
    retry_after: timedelta | None = None
    stack: str | None = None
    group: str | None = None  # the failure's fingerprint, made of what stood there before anything was cut
    redacted: str | None = None  # by which rules its texts were cleaned
    # how often and when
    retry_count: _Count | None = None
    delivery_count: _Count | None = None
    failed_at: _Time | None = None
    first_failed_at: _Time | None = None
    # who
    key: str | None = None
    correlation_id: str | None = None
    # where
    transport: str | None = None
    source: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    partition: _Count | None = None
    offset: _Count | None = None
    consumer_group: str | None = None
    # how busy the machine was
    cpu: Share | None = None
    memory: Share | None = None
    # how the letter is to be treated, if the handler has said so
    tags: str | None = None  # separated by commas
    priority: _Priority | None = None

    @property
    def failure(self) -> Failure | None:
        """The failure, if its type, its text and its time are told."""
        if self.error_type is None or self.text is None or self.failed_at is None:
            return None
        return Failure(
            error_type=self.error_type,
            text=self.text,
            at=self.failed_at,
            kind=self.kind or FailureKind.UNKNOWN,
            retryable=True if self.retryable is None else self.retryable,
            rule=self.rule,
            stack=self.stack,
            retry_after=self.retry_after,
            redacted=self.redacted,
        )

    @property
    def system_state(self) -> SystemState | None:
        """How busy the machine was, if it is told."""
        if self.cpu is None or self.memory is None:
            return None
        return SystemState(float(self.cpu), float(self.memory))

    @property
    def origin(self) -> Origin | None:
        """Where it died, if transport and source are told."""
        if self.transport is None or self.source is None:
            return None
        return Origin(
            transport=self.transport,
            source=self.source,
            exchange=self.exchange,
            routing_key=self.routing_key,
            partition=self.partition,
            offset=self.offset,
            consumer_group=self.consumer_group,
        )


# --- writing --------------------------------------------------------------------------------------------


class Told(NamedTuple):
    """The headers to add to the message of a letter, in two parts."""

    # What letters of one cause at one place have in common: the same object as long as it can be remembered, so that
    # a transport can know it again.
    shared: tuple[Pair, ...]
    single: tuple[Pair, ...]  # what is this letter's alone

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All of them."""
        return self.shared + self.single


def write(letter: DeadLetter, delivery_count: int | None) -> Headers:
    """The headers to add to the message of this letter; those it brought are not among them."""
    return Headers.of(tell(letter, delivery_count).pairs)


def tell(letter: DeadLetter, delivery_count: int | None) -> Told:
    """The same in two parts. Their values are nothing but texts, whole numbers and booleans."""
    failure, origin = letter.failure, letter.origin
    cause = _Cause(
        letter.reason,
        letter.group,
        letter.system_state,
        failure.error_type,
        failure.text,
        failure.kind,
        failure.rule,
        failure.retryable,
        failure.retry_after,
        failure.redacted,
        failure.stack,
        origin.transport,
        origin.source,
        origin.exchange,
        origin.routing_key,
        origin.consumer_group,
    )
    is_short = len(failure.text) + len(failure.stack or "") <= _LONGEST_KEPT
    at = _iso(failure.at)
    single: list[tuple[str, str | int | None]] = [
        ("redrive-failed-at", at),
        (
            "redrive-first-failed-at",
            at if letter.first_failed_at is failure.at else _iso(letter.first_failed_at),
        ),
        ("redrive-retry-count", letter.retry_count),
        ("redrive-delivery-count", delivery_count),
        ("redrive-key", _name(letter.key)),
        ("redrive-correlation-id", _name(letter.correlation_id)),
        ("redrive-origin-partition", origin.partition),
        ("redrive-origin-offset", origin.offset),
    ]
    if letter.tags:
        single.append(("redrive-letter-tags", ",".join(letter.tags)))
    if letter.priority:
        single.append(("redrive-letter-priority", letter.priority))
    return Told(
        _kept_shared(cause) if is_short else _shared(cause),
        tuple([pair for pair in single if pair[1] is not None]),
    )


class _Cause(NamedTuple):
    """What the shared part is made of."""

    reason: str
    group: str
    system_state: SystemState | None
    error_type: str
    text: str
    kind: FailureKind
    rule: str | None
    retryable: bool
    retry_after: timedelta | None
    redacted: str | None
    stack: str | None
    transport: str
    source: str
    exchange: str | None
    routing_key: str | None
    consumer_group: str | None


def _shared(cause: _Cause) -> tuple[Pair, ...]:
    state = cause.system_state
    values: dict[str, str | int | None] = {
        "version": VERSION,
        "reason": _beginning(cause.reason, LONGEST_WORD),
        "description": _beginning(cause.text, LONGEST_DESCRIPTION),
        "error-type": _beginning(cause.error_type, LONGEST_WORD),
        "failure-kind": cause.kind.value,
        "error-rule": None if cause.rule is None else _beginning(cause.rule, LONGEST_WORD),
        "retryable": cause.retryable,
        "retry-after": None if cause.retry_after is None else format_duration(cause.retry_after),
        "failure-group": _name(cause.group),
        "transport": _name(cause.transport),
        "source": _name(cause.source),
        "origin-exchange": _name(cause.exchange),
        "origin-routing-key": _name(cause.routing_key),
        "consumer-group": _name(cause.consumer_group),
        "host-cpu": None if state is None else f"{state.cpu_usage:.3f}",
        "host-memory": None if state is None else f"{state.memory_usage:.3f}",
        "redacted": cause.redacted,
        "stack": None if cause.stack is None else _end(cause.stack, LONGEST_STACK),
    }
    return tuple([(PREFIX + name, value) for name, value in values.items() if value is not None])


_kept_shared: Final = lru_cache(128)(_shared)


def strip(headers: Headers) -> Headers:
    """The headers without what redrive added on the way.

    `redrive-id`, `redrive-attempt`, `redrive-operation` and `x-replayed` stay: they belong to the message that was
    redriven, and its next death is known by them.
    """
    names = headers.by_name
    if _ADDED.issuperset(names):
        return EMPTY
    others = {name for name in names.keys() - _ADDED if not name.startswith(_ORIGINAL)}
    if len(others) == len(names):
        return headers
    return Headers.of([pair for pair in headers if pair[0] in others]) if others else EMPTY


def _iso(at: datetime) -> str:
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    return at.isoformat(timespec="microseconds")


def _name(text: str | None) -> str | None:
    """The name as it is; what not even `surrogateescape` can write becomes its escape."""
    if text is None or text.isascii():
        return text
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return _utf8(text).decode()
    return text


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _beginning(text: str, size: int) -> str:
    if type(text) is str and len(text) <= size and text.isascii():  # and no enumeration
        return text
    return _utf8(text)[:size].decode("utf-8", "ignore")  # a character that was cut through is left out


def _end(text: str, size: int) -> str:
    """The last of the text: Python prints the nearest frame and the error last."""
    if len(text) <= size and text.isascii():
        return text
    return _utf8(text)[-size:].decode("utf-8", "ignore")


# --- reading --------------------------------------------------------------------------------------------


def recognises(headers: Headers) -> bool:
    """Do the headers say that this is a dead letter of redrive?"""
    return _MARK in headers.by_name


def read(headers: Headers) -> OwnDeath | None:
    """What the headers tell; never raises. None if this is no dead letter of redrive."""
    found = headers.by_name
    if _MARK not in found:
        return None
    version = found.get(_VERSION)
    if version != VERSION and _plain(version) != VERSION and not _VERSION_1.keys().isdisjoint(found):
        found = _current_names(found)
    return _read_at_once(found) or _read_one_by_one(found)


def _current_names(found: Mapping[str, HeaderValue]) -> Mapping[str, HeaderValue]:
    """The headers of version 1 by the names of today; they replace what an earlier death may have left."""
    renamed = {name: value for name, value in found.items() if name not in _VERSION_1}
    for old, new in _VERSION_1.items():
        renamed.pop(new, None)
        if old in found:
            renamed[new] = found[old]
    return renamed


def _read_at_once(found: Mapping[str, HeaderValue]) -> OwnDeath | None:
    """As nearly all of them are: written by `write`, carried by AMQP. None if one of them is anything else.

    Ten times as fast as one by one, and the same: what would be read otherwise there is left to it.
    """
    try:
        death = msgspec.convert(found, OwnDeath, dec_hook=_share)
    except (msgspec.ValidationError, ValueError):  # the latter over text that is not UTF-8
        return None
    if death.unreadable or death.retry_after is not None or None in found.values():
        return None
    return death if all(map(_is_as_written, _times(found))) else None


def _share(_kind: type, value: object) -> Share:
    return Share(fields.fraction(value))


def _times(found: Mapping[str, HeaderValue]) -> tuple[Any, Any]:
    return found.get(_FAILED_AT), found.get(_FIRST_FAILED_AT)


def _is_as_written(time: object) -> bool:
    """Whether it is text, in UTC and in microseconds: of other forms two readers may think differently."""
    if time is None:
        return True
    return isinstance(time, str) and len(time) == _TIME_LENGTH and time.endswith("+00:00")


def _read_one_by_one(found: Mapping[str, HeaderValue]) -> OwnDeath:
    unreadable: list[str] = []
    told: dict[str, Any] = {}
    for name, value in found.items():
        if (reading := _READ.get(name)) is None:
            continue
        field, parse = reading
        if type(value) is str and parse is fields.text:
            told[field] = value
            continue
        try:
            told[field] = parse(_plain(value))
        except ValueError:
            unreadable.append(name)
    return OwnDeath(unreadable=tuple(unreadable), **told)


def _plain(value: HeaderValue) -> object:
    """The value without the wire's name for its type, and bytes as the text they are."""
    while isinstance(value, TypedValue):
        value = value.value
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


_TRUTHS: Final = {"true": True, "false": False}


def _duration(value: object) -> timedelta:
    try:
        return parse_duration(fields.text(value))
    except SettingsError as error:
        raise ValueError(str(error)) from None


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUTHS:
        return _TRUTHS[value.lower()]
    raise ValueError("neither true nor false")


def _priority(value: object) -> int:
    number = fields.whole(value)
    if not -(2**31) <= number < 2**31:
        raise ValueError("no priority")
    return number


# Header → field of `OwnDeath`, and what its value must be.
_READ: Final[dict[str, tuple[str, Callable[[object], object]]]] = {
    PREFIX + name: (field, parse)
    for name, field, parse in (
        ("version", "version", fields.text),
        ("reason", "reason", fields.text),
        ("description", "text", fields.text),
        ("error-type", "error_type", fields.text),
        ("failure-kind", "kind", lambda value: FailureKind(fields.text(value))),
        ("error-rule", "rule", fields.text),
        ("retryable", "retryable", _truth),
        ("retry-after", "retry_after", _duration),
        ("failed-at", "failed_at", fields.time),
        ("first-failed-at", "first_failed_at", fields.time),
        ("retry-count", "retry_count", fields.count),
        ("delivery-count", "delivery_count", fields.count),
        ("key", "key", fields.text),
        ("correlation-id", "correlation_id", fields.text),
        ("failure-group", "group", fields.text),
        ("transport", "transport", fields.text),
        ("source", "source", fields.text),
        ("origin-exchange", "exchange", fields.text),
        ("origin-routing-key", "routing_key", fields.text),
        ("origin-partition", "partition", fields.count),
        ("origin-offset", "offset", fields.count),
        ("consumer-group", "consumer_group", fields.text),
        ("host-cpu", "cpu", lambda value: Share(fields.fraction(value))),
        ("host-memory", "memory", lambda value: Share(fields.fraction(value))),
        ("redacted", "redacted", fields.text),
        ("letter-tags", "tags", fields.text),
        ("letter-priority", "priority", _priority),
        ("stack", "stack", fields.text),
    )
}
