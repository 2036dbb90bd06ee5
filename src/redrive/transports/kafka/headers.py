"""How does a message become a Kafka record, and a record a message?

A record has a key, a value, a time and headers, which are names with bytes or null. What a message has beside these
(its id, its content type, the time it was first sent) travels in headers whose names begin with `redrive-property-`,
and is taken out of them again; a header that its producer wrote is never touched. The time of a copy is that of its
writing: a record that is as old as its original would be swept away by the retention of the topic it is put into.

The rule: bytes stay the bytes they were, null stays null, order and repeated names are kept.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message as Record

from redrive.errors import FormatError
from redrive.letters import Headers, HeaderValue, Message
from redrive.letters.letter import EPOCH

Pair: TypeAlias = tuple[str, bytes | None]
PROPERTY: Final = "redrive-property-"
_MILLISECOND: Final = timedelta(milliseconds=1)
_SENT_AT: Final = f"{PROPERTY}sent-at"
# Header → field of `Message`.
_FIELDS: Final = {
    f"{PROPERTY}content-type": "content_type",
    f"{PROPERTY}content-encoding": "content_encoding",
    f"{PROPERTY}message-id": "message_id",
    f"{PROPERTY}correlation-id": "correlation_id",
}
# What other producers call it; theirs stays where it is.
_CONTENT_TYPES: Final = ("content-type", "content_type", "Content-Type", "contentType")


class Outgoing(NamedTuple):
    """A record as it goes over the wire."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Pair]
    partition: int | None = None


# --- reading -------------------------------------------------------------------------------------------------


def pairs_of(record: Record) -> list[Pair]:
    """The headers as they stand in the record."""
    found: Any = record.headers()  # typed as what may be sent; what comes is pairs of text and bytes
    return found or []


def message_of(record: Record, pairs: Sequence[Pair], added: frozenset[str] = frozenset()) -> Message:
    """The message that its producer sent; `added` are names of headers that were added on the way."""
    fields: dict[str, Any] = {}
    left: list[tuple[str, HeaderValue]] = []
    for name, value in pairs:
        if name in _FIELDS and value is not None:
            fields[_FIELDS[name]] = value.decode("utf-8", "surrogateescape")
        elif name == _SENT_AT and (sent_at := _time(value)) is not None:
            fields["sent_at"] = sent_at
        elif name not in added:
            left.append((name, value))
    if "sent_at" not in fields:
        fields["sent_at"] = _timestamp(record)
    if "content_type" not in fields:
        fields["content_type"] = content_type_of(pairs)
    return Message(body=record.value(), key=record.key(), headers=Headers(left), **fields)


def content_type_of(pairs: Iterable[Pair]) -> str | None:
    """What the producer says the value is, by the name that most give it."""
    found = None
    for name, value in pairs:
        if value is not None and (name in _CONTENT_TYPES or name == f"{PROPERTY}content-type"):
            found = value.decode("utf-8", "surrogateescape")
    return found


def text_of(pairs: Iterable[Pair], name: str) -> str | None:
    """The last header of this name, as text."""
    value = last_of(pairs, name)
    return None if value is None else value.decode("utf-8", "surrogateescape")


def last_of(pairs: Iterable[Pair], name: str) -> bytes | None:
    """The last header of this name."""
    found = None
    for each, value in pairs:
        if each == name:
            found = value
    return found


def _timestamp(record: Record) -> datetime | None:
    kind, milliseconds = record.timestamp()
    if kind == TIMESTAMP_NOT_AVAILABLE or milliseconds < 0:
        return None
    try:
        return EPOCH + milliseconds * _MILLISECOND
    except OverflowError:
        return None


def _time(value: bytes | None) -> datetime | None:
    try:
        at = datetime.fromisoformat((value or b"").decode())
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


# --- writing -------------------------------------------------------------------------------------------------


def outgoing(message: Message, topic: str, partition: int | None = None) -> Outgoing:
    """The record of a message; a header that Kafka cannot carry is a `FormatError`."""
    headers = [*pairs_from(message.headers), *properties_of(message)]
    return Outgoing(topic, message.key, message.body, headers, partition)


def properties_of(message: Message) -> list[Pair]:
    """What of the message stands in no other part of a record."""
    pairs = [
        (name, _utf8(text))
        for name, field in _FIELDS.items()
        if (text := getattr(message, field)) is not None
    ]
    if (
        message.content_type is not None
        and content_type_of(_bytes_alone(message.headers)) == message.content_type
    ):
        pairs = [
            pair for pair in pairs if pair[0] != f"{PROPERTY}content-type"
        ]  # its producer's header tells it
    if message.sent_at is not None:
        pairs.append((_SENT_AT, message.sent_at.isoformat().encode()))
    return list(pairs)


def pairs_from(headers: Headers) -> list[Pair]:
    """The headers as Kafka carries them: bytes and null as they are, text and numbers as text."""
    return [(name, value if type(value) is bytes else _wire(name, value)) for name, value in headers]


def _wire(name: str, value: HeaderValue) -> bytes | None:
    match value:
        case None | bytes():
            return value
        case str():
            return _utf8(value)
        case bool():
            return b"true" if value else b"false"
        case int() | float() | Decimal() | UUID():
            return str(value).encode()
        case datetime():
            return value.isoformat().encode()
        case _:
            raise FormatError(
                f"header '{name}' is a {type(value).__name__}, but Kafka headers can only be text or "
                "bytes; change it or remove it"
            )


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def _bytes_alone(headers: Headers) -> list[Pair]:
    return [(name, value) for name, value in headers if isinstance(value, bytes)]
