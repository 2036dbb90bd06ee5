"""What becomes of a message that dies in a queue?

The rule: a dead letter is a new message. Its body is the same object, its properties are the sender's, octet by
octet, but for two: `expiration` is gone and `headers` tell the death. Every rule about these headers is in this file.

A death that the broker wrote and one that a client sent look the same on the wire: a consumer that publishes a dead
letter again sends our own octets back. So it is the type that tells. A `DeadLetter` was made here and its `x-death`
is carried on; in any other `Message` an `x-death` is a header like any other, never read, and replaced at the first
death. Whatever a client writes there, it fakes no count, stops no message by a made-up cycle and raises nothing.

Header values are never decoded, only put in order. This module knows no queues, no bindings and no clock: whether
there is an exchange to go to and in which order messages die is for the queue to know.
"""

import struct
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from redrive.amqp.errors import SHORTSTR_MAX, AmqpError, MisuseError
from redrive.amqp.properties import (
    NO_PROPERTIES,
    check_properties,
    read_expiration,
    replace_fields,
)
from redrive.amqp.table import decode_bare_table, encode_bare_table
from redrive.broker.header_table import headers_of, with_headers
from redrive.broker.message import PROPERTIES_AT, Message

_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")
_U64 = struct.Struct(">Q")
_COUNT_MAX: Final = 2**63 - 1


class Reason(StrEnum):
    """Why a message dies."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


class Death(NamedTuple):
    """One entry of `x-death`: two are the same if queue and reason are."""

    queue: str
    reason: str
    times: int  # the field `count`
    before: bytes  # the encoded fields in front of it
    after: bytes  # the encoded fields behind it


Deaths: TypeAlias = tuple[Death, ...]


class DeadLetter(Message, gc=False, eq=False):
    """A message that this broker has dead-lettered. Whoever reads one back from a journal gives no `told`."""

    told: Deaths | None = None

    @property
    def deaths(self) -> Deaths:
        """What its `x-death` says, most recent first."""
        if self.told is None:
            self.told = tuple(_read_deaths(self.header))
        return self.told


def dead_letter_of(
    message: Message, *, queue: str, reason: Reason, exchange: str, routing_key: str | None, seconds: int
) -> DeadLetter:
    """What goes to the dead-letter exchange when `message` dies in `queue`, `seconds` after 1970 began.

    `exchange` and `routing_key` are the queue's dead-letter arguments; no routing key is None, not `""`. The body
    of the message has to be in memory.
    """
    body = message.body
    if body is None:
        raise MisuseError("the body of a message must be read from disk before it can be dead-lettered")
    known = message.deaths if isinstance(message, DeadLetter) else ()
    header, deaths = _record(message.header, known, message.exchange, message.keys, queue, reason, seconds)
    keys = message.keys if routing_key is None else (routing_key,)
    route = _route(exchange, keys[0])
    return DeadLetter(
        exchange, keys, route, header, body, message.persistent, message.size, message.meta, 0, deaths
    )


def is_cycle(deaths: Iterable[Death], reason: Reason, target: str) -> bool:
    """Whether a letter with these deaths, the one of `reason` in front, must be kept from the queue `target`."""
    if reason is Reason.REJECTED:
        return False
    for death in deaths:  # with a rejection on the way, it is a client that keeps the cycle going
        if death.reason == Reason.REJECTED:
            return False
        if death.queue == target:
            return True
    return False


# What follows is cached because messages that die together are mostly alike: the same queue, the same second, often
# the same properties. They then share one header object, which the writer of deliveries recognises by identity.


@lru_cache(maxsize=64)
def _record(
    header: bytes,
    known: Deaths,
    exchange: str,
    keys: tuple[str, ...],
    queue: str,
    reason: Reason,
    seconds: int,
) -> tuple[bytes, Deaths]:
    """The content header with one death more, and all deaths that it tells."""
    raw = header[PROPERTIES_AT:]
    before = b""
    try:
        expiration = read_expiration(raw)
        if expiration is not None:
            before = _text_field(b"original-expiration", expiration)
            raw = replace_fields(raw, drop=("expiration",))
        elif not known:
            check_properties(raw)
    except AmqpError:
        raw, before = NO_PROPERTIES, b""  # nobody could have read them; the body must not be lost with them
    shown = keys if len(keys) == 1 else _shown(keys, headers_of(raw).get(b"CC"))
    after = _after(exchange, shown, queue, reason, seconds)
    deaths = _with_death(known, Death(queue, reason.value, 1, before, after))
    fields = {b"x-death": _x_death(deaths)}
    fields.update(_marks(b"last", exchange, queue, reason))
    if not known:
        fields.update(_marks(b"first", exchange, queue, reason))
    return with_headers(header[:PROPERTIES_AT] + raw, fields), deaths


def _with_death(known: Deaths, new: Death) -> Deaths:
    """`known` with `new` in front, or with the one of the same queue and reason counted up and moved there."""
    for death in known:
        if death.queue == new.queue and death.reason == new.reason:
            again = death._replace(times=min(death.times + 1, _COUNT_MAX))
            return (again, *[other for other in known if other is not death])
    return (new, *known)


def _x_death(deaths: Deaths) -> bytes:
    """The header `x-death`: an array of tables."""
    array = b""
    for _, _, times, before, after in deaths:
        size = len(before) + 15 + len(after)
        array += b"F%b%b\x05countl%b%b" % (_U32.pack(size), before, _I64.pack(times), after)
    return b"\x07x-deathA%b%b" % (_U32.pack(len(array)), array)


@lru_cache(maxsize=256)
def _after(exchange: str, shown: tuple[str, ...], queue: str, reason: Reason, seconds: int) -> bytes:
    """The fields of an entry that follow its count."""
    keys = b"".join([b"S%b%b" % (_U32.pack(len(key)), key) for key in map(_encode, shown)])
    return b"%b%b\x04timeT%b%b\x0crouting-keysA%b%b" % (
        _text_field(b"reason", reason.value),
        _text_field(b"queue", queue),
        _U64.pack(seconds),
        _text_field(b"exchange", exchange),
        _U32.pack(len(keys)),
        keys,
    )


@lru_cache(maxsize=256)
def _marks(which: bytes, exchange: str, queue: str, reason: Reason) -> tuple[tuple[bytes, bytes], ...]:
    """The three headers that name the first or the last death, by their names."""
    said = ((b"exchange", exchange), (b"queue", queue), (b"reason", reason.value))
    names = [(b"x-%b-death-%b" % (which, what), text) for what, text in said]
    return tuple((name, _text_field(name, text)) for name, text in names)


@lru_cache(maxsize=256)
def _route(exchange: str, key: str) -> bytes:
    """Exchange and routing key as a delivery carries them. A key from an argument may be too long: it is cut."""
    raw, name = _encode(key), _encode(exchange)
    if len(raw) > SHORTSTR_MAX:
        raw = raw[:SHORTSTR_MAX].decode("utf-8", "ignore").encode()
    return b"%c%b%c%b" % (len(name), name, len(raw), raw)


def _shown(keys: tuple[str, ...], cc: bytes | None) -> tuple[str, ...]:
    """The key of the publish, then those of `keys` that the CC header names: the others were blind copies."""
    try:
        named = decode_bare_table(cc or b"").get("CC")
    except AmqpError:
        named = None
    left = list(named) if isinstance(named, list) else []
    shown = [keys[0]]
    for key in keys[1:]:
        if key in left:
            left.remove(key)
            shown.append(key)
    return tuple(shown)


def _read_deaths(header: bytes) -> Iterator[Death]:
    """The deaths in a content header that this broker has written; a damaged one has none."""
    raw = header[PROPERTIES_AT:]
    try:
        check_properties(raw)
        entries = decode_bare_table(headers_of(raw).get(b"x-death", b"")).get("x-death")
    except AmqpError:
        return
    for entry in entries if isinstance(entries, list) else ():
        match entry:
            case {"queue": str(queue), "reason": str(reason), "count": int(times)}:
                at = list(entry).index("count")
                before, after = dict(list(entry.items())[:at]), dict(list(entry.items())[at + 1 :])
                yield Death(queue, reason, times, encode_bare_table(before), encode_bare_table(after))


def _text_field(name: bytes, text: str) -> bytes:
    raw = _encode(text)
    return b"%c%bS%b%b" % (len(name), name, _U32.pack(len(raw)), raw)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
