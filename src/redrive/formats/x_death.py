"""What does RabbitMQ's `x-death` tell of a message's journey?

An array of tables, the most recent death first, one for each queue and reason. A queue in which the message died again
has no new entry but a higher count, and its time, exchange and routing keys stay those of the first time; so a time is
when the message died there last only where the count is one. AMQP 1.0 has the same array under another name,
`x-opt-deaths`, in which the last time is told as well. RabbitMQ 3 keeps the most recent death in front but not the
order of the others; `x-first-death-*` name the oldest one on every version.

The one rule: no input raises out of `read`. A field that is not what it should be is None, and the header is named in
`unreadable`. Where the array is missing, `x-last-death-*` and `x-first-death-*` tell what they can. This file does not
know why a consumer rejected a message: RabbitMQ does not tell.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import msgspec

from redrive.formats import fields
from redrive.letters import FailureKind, Headers, HeaderValue, TypedValue
from redrive.letters.letter import EPOCH

_T = TypeVar("_T")

ARRAY: Final = "x-death"
OF_AMQP_1_0: Final = "x-opt-deaths"
_LAST: Final = "x-last-death-"
_FIRST: Final = "x-first-death-"
NAMES: Final = frozenset(
    {
        ARRAY,
        OF_AMQP_1_0,
        *(which + what for which in (_LAST, _FIRST) for what in ("queue", "reason", "exchange")),
    }
)

KINDS: Final = {
    "expired": FailureKind.EXPIRED,
    "maxlen": FailureKind.OVERFLOW,
    "rejected": FailureKind.UNKNOWN,
    "delivery_limit": FailureKind.UNKNOWN,
}
_BY_A_CONSUMER: Final = ("rejected", "delivery_limit")
_WITHOUT_A_CONSUMER: Final = ("expired", "maxlen")
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_LARGEST: Final = 2**63 - 1
_WAITING: Final = re.compile(r".+\.delay\.[0-9]+[smhd]", re.DOTALL)
_EXPIRATION: Final = re.compile(r"[0-9]{1,12}", re.ASCII)


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """One stop of the journey."""

    queue: str | None
    reason: str | None
    count: int | None
    at: datetime | None  # of the first time, if it died there more than once
    exchange: str | None
    routing_keys: tuple[str, ...] = ()
    last: datetime | None = None  # of the last time, where that is told

    @property
    def is_wait(self) -> bool:
        """Whether it only waited, in a delay queue of redrive; nobody rejects a message there."""
        fits = self.queue is not None and _WAITING.fullmatch(self.queue) is not None
        return fits and self.reason not in _BY_A_CONSUMER

    @property
    def last_at(self) -> datetime | None:
        """When it died there last, where that is told."""
        return self.last or (self.at if self.count == 1 else None)


class Journey(msgspec.Struct, frozen=True):
    """Where a message has died, most recent first, and which headers could not be read in full."""

    deaths: tuple[Death, ...] = ()
    unreadable: tuple[str, ...] = ()
    expiration: str | None = None  # what the message carried before its death; the broker takes it away
    oldest: tuple[str, str | None] | None = None  # queue and reason of the first death, by `x-first-death-*`

    def origin(self, *, found_in: str) -> Death | None:
        """The death in the queue that the message belongs to; never one in the queue it was found in.

        The queue whose consumer gave it up last, because later deaths are hops on the way from there. Where no
        consumer did, the queue that overflowed last; where it only expired, the queue in which it expired first.
        """
        deaths = [death for death in self.deaths if death.queue not in (None, found_in) and not death.is_wait]
        consumed = (death for death in deaths if death.reason not in _WITHOUT_A_CONSUMER)
        overflowed = (death for death in deaths if death.reason == "maxlen")
        return next(consumed, None) or next(overflowed, None) or self._oldest_of(deaths)

    def arrival(self, queue: str) -> tuple[str | None, str | None]:
        """The exchange and the routing key by which the message first came to this queue.

        The entry of a later death may name the exchange by which a retry brought it back.
        """
        first = self._oldest_of([death for death in self.deaths if death.queue == queue])
        if first is None:
            return None, None
        return first.exchange, first.routing_keys[0] if first.routing_keys else None

    def _oldest_of(self, deaths: Sequence[Death]) -> Death | None:
        for death in deaths:
            if (death.queue, death.reason) == self.oldest:
                return death
        # Times have whole seconds; among equal ones, the array tells.
        return min(reversed(deaths), key=lambda death: death.at or _NEVER, default=None)

    def last_in(self, queue: str) -> Death | None:
        """The most recent death in this queue."""
        return next((death for death in self.deaths if death.queue == queue), None)

    def rejections(self, queue: str) -> int | None:
        """How often consumers of this queue gave the message up."""
        counts = [
            death.count for death in self.deaths if death.queue == queue and death.reason in _BY_A_CONSUMER
        ]
        known = [count for count in counts if count is not None]
        if not known or len(known) < len(counts):
            return None
        return total if (total := sum(known)) <= _LARGEST else None

    def began(self, queue: str) -> datetime | None:
        """When it died in this queue for the first time."""
        return min((death.at for death in self.deaths if death.queue == queue and death.at), default=None)


# --- reading ------------------------------------------------------------------------------------------------


def recognises(headers: Mapping[str, HeaderValue]) -> bool:
    """Do the headers tell of a death that RabbitMQ wrote down?"""
    return not NAMES.isdisjoint(headers)


def read(headers: Mapping[str, HeaderValue]) -> Journey:
    """What the headers tell; never raises."""
    unreadable: list[str] = []
    deaths: list[Death] = []
    expiration: str | None = None
    for array in (ARRAY, OF_AMQP_1_0):
        if deaths:  # both tell of the same journey
            break
        for entry in _entries(headers.get(array), array, unreadable):
            if not isinstance(entry, Headers):
                unreadable.append(array)
                continue
            stop = _Table(dict(entry), unreadable, array)
            deaths.append(
                Death(
                    queue=stop.take("queue", name),
                    reason=stop.take("reason", name),
                    count=stop.take("count", fields.count),
                    at=stop.take("time", _time) or stop.take("first-time", _time_in_ms),
                    exchange=stop.take("exchange", name),
                    routing_keys=stop.take("routing-keys", _names) or (),
                    last=stop.take("last-time", _time_in_ms),
                )
            )
            # The oldest one is what its producer set.
            expiration = stop.take("original-expiration", _expiration) or stop.take("ttl", _ttl) or expiration
    if not deaths:
        deaths = _by_single_headers(headers, unreadable)
    return Journey(tuple(deaths), tuple(dict.fromkeys(unreadable)), expiration, _oldest(headers))


def _oldest(headers: Mapping[str, HeaderValue]) -> tuple[str, str | None] | None:
    table = _Table(headers, [])  # what is damaged there was named, or is of no further use
    queue = table.take(_FIRST + "queue", name)
    return None if queue is None else (queue, table.take(_FIRST + "reason", name))


class _Table:
    """The fields of one entry; a damaged one is None, and its array is named."""

    def __init__(
        self, values: Mapping[str, HeaderValue], unreadable: list[str], header: str | None = None
    ) -> None:
        """`header` is the array they stand in; without it each of them is a header itself."""
        self._values = values
        self._unreadable = unreadable
        self._header = header

    def take(self, key: str, parse: Callable[[object], _T]) -> _T | None:
        value = plain(self._values.get(key))
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError:
            self._unreadable.append(self._header or key)
            return None


def _entries(value: HeaderValue, array: str, unreadable: list[str]) -> tuple[object, ...]:
    found = plain(value)
    if isinstance(found, tuple):
        return tuple(map(plain, found))
    if isinstance(found, Headers):  # some client made an array of one into its only table
        return (found,)
    if found is not None:
        unreadable.append(array)
    return ()


def _by_single_headers(headers: Mapping[str, HeaderValue], unreadable: list[str]) -> list[Death]:
    table = _Table(headers, unreadable)
    found: list[Death] = []
    for which in (_LAST, _FIRST):
        queue, reason, exchange = (table.take(which + what, name) for what in ("queue", "reason", "exchange"))
        death = Death(queue=queue, reason=reason, count=None, at=None, exchange=exchange)
        if (queue or reason) and death not in found:
            found.append(death)
    return found


def plain(value: object) -> object:
    """The value without the wire's name for its type."""
    while isinstance(value, TypedValue):
        value = value.value
    return value


def name(value: object) -> str:
    """The name of something on a broker. One that is not UTF-8 keeps its octets, as everywhere in AMQP."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return fields.text(value)


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, tuple):
        raise ValueError("not an array")  # noqa: TRY004  # wrong data, not a wrong call
    return tuple(name(plain(item)) for item in value)


def _time(value: object, unit: timedelta = timedelta(seconds=1)) -> datetime:
    """AMQP's timestamp; a client that knows no such type makes it a number of seconds, or a text."""
    try:
        match value:
            case datetime():
                return value.astimezone(UTC)
            case int():
                return EPOCH + fields.count(value) * unit
    except OverflowError:
        raise ValueError("not a time") from None
    return fields.time(value)


def _time_in_ms(value: object) -> datetime:
    """The timestamp of AMQP 1.0, which counts milliseconds."""
    return _time(value, timedelta(milliseconds=1))


def _ttl(value: object) -> str:
    return _expiration(str(fields.count(value)))


def _expiration(value: object) -> str:
    """Milliseconds in digits, and no more of them than a broker takes."""
    text = name(value)
    if not _EXPIRATION.fullmatch(text):
        raise ValueError("not a number of milliseconds")
    return text
