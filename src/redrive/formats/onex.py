"""How does an ONEX service write a dead letter to Kafka, and what does such a record tell?

The payload is a JSON object with the seven fields of the ONEX schema; thirteen headers repeat what brokers
and filters look at. The schema holds the original message as text. Whatever text cannot hold travels in
fields the schema does not know and does not forbid (docs/reference/wire-formats.md).

The one rule: what `write` was given, `read` gives back bit for bit, and the payload between them is valid
under the schema. A message that cannot be restored exactly is not restored at all: `read` then says why.

It does not know Kafka, clocks or how ids are made, and it hides nothing: a `Failure` is redacted where it is
made, once, so its text stands here as it is.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import UNSET, UnsetType

from redrive.formats import binary, fields
from redrive.formats.fields import Fields
from redrive.letters import Failure, Headers, Message, Origin
from redrive.letters.headers import EMPTY

_T = TypeVar("_T")

# --- what is written and read ---------------------------------------------------------------------------


class OnexSender(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes: the same for every record of one consumer."""

    environment: str
    group: str
    priority: str = "normal"
    max_retries: int = 3
    schema_version: str = "1.0.0"


class OnexRecord(NamedTuple):
    """What is sent to the dead-letter topic. Its Kafka key is for the sender to choose."""

    value: bytes
    headers: Headers


class OnexRead(msgspec.Struct, frozen=True, kw_only=True):
    """What a record tells. None is what it does not tell, or not legibly; `problems` says which."""

    recognised: bool = True  # False: not an ONEX dead letter, nothing was read
    problems: tuple[str, ...] = ()  # names of fields and what is wrong with them; never their content
    message: Message | None = None  # as it was, bit for bit, or None
    # where it died
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    # why and when
    error_type: str | None = None
    error_text: str | None = None
    failed_at: datetime | None = None
    retry_count: int | None = None
    correlation_id: str | None = None
    # about the record itself, from its headers
    message_id: str | None = None
    written_at: datetime | None = None
    written_by: str | None = None  # "{environment}.{group}"; both may have dots: see `group_in`
    schema_version: str | None = None
    priority: str | None = None
    max_retries: int | None = None
    # what was not understood
    extra: dict[str, object] = msgspec.field(default_factory=dict)
    extra_headers: Headers = EMPTY

    @property
    def whole(self) -> bool:
        """True if it is an ONEX dead letter and everything in it could be read."""
        return self.recognised and not self.problems

    def group_in(self, dead_letter_topic: str) -> str | None:
        """The consumer group that wrote it; None where it cannot be told from the environment.

        With one dot there is one way to read `written_by`. With more, the topic has to be that of the group.
        """
        writer = self.written_by or ""
        environment, _, group = writer.partition(".")
        if not environment or not group:
            return None
        if "." not in group:
            return group
        named = dead_letter_topic.removesuffix(".dlq")
        is_of_group = dead_letter_topic == dlq_topic(named) and named != self.topic
        return named if is_of_group and writer.endswith(f".{named}") else None


def dlq_topic(group: str, configured: str | None = None) -> str:
    """The dead-letter topic of a consumer group."""
    return configured or f"{group}.dlq"


# --- writing --------------------------------------------------------------------------------------------

# Headers that are the same on every record. `retry_count` is that of the dead-letter record itself, which
# is new; how often the original was tried is the payload's `retry_count`.
_FIXED: Final = {"content_type": "application/json", "event_type": "dlq_message", "retry_count": "0"}
_UNKNOWN: Final = -1  # Kafka's own word for "no such partition or offset"


class _Original(msgspec.Struct):
    key: str | None
    value: str
    offset: int
    partition: int
    key_encoding: str | UnsetType
    value_encoding: str | UnsetType
    headers: list[binary.HeldHeader] | UnsetType
    timestamp: str | UnsetType


class _Payload(msgspec.Struct):
    original_topic: str
    original_message: _Original
    failure_reason: str
    failure_timestamp: str
    correlation_id: str
    retry_count: int
    error_type: str
    original_correlation_id: str | UnsetType


def write(
    message: Message,
    origin: Origin,
    failure: Failure,
    sender: OnexSender,
    *,
    correlation_id: str,
    retry_count: int,
    message_id: str,
    now: datetime,
) -> OnexRecord:
    """The dead-letter record of a message that was consumed at `origin` and given up because of `failure`.

    `correlation_id` is the message's own (`correlation_id_of`), `message_id` the new record's, a UUID.
    """
    correlation = _uuid_for(correlation_id)
    failed_at = _iso(failure.at)
    payload = _Payload(
        original_topic=origin.source,
        original_message=_original(message, origin),
        failure_reason=failure.text,
        failure_timestamp=failed_at,
        correlation_id=correlation,
        retry_count=retry_count,
        error_type=failure.error_type,
        original_correlation_id=UNSET if correlation == correlation_id else correlation_id,
    )
    texts = {
        "content_type": _FIXED["content_type"],
        "correlation_id": correlation,
        "message_id": message_id,
        "timestamp": _iso(now),
        "source": f"{sender.environment}.{sender.group}",
        "event_type": _FIXED["event_type"],
        "schema_version": sender.schema_version,
        "priority": sender.priority,
        "retry_count": _FIXED["retry_count"],
        "max_retries": str(sender.max_retries),
        "original_topic": origin.source,
        "failure_reason": failure.text,
        "failure_timestamp": failed_at,
    }
    return OnexRecord(_json(payload), Headers((name, _utf8(text)) for name, text in texts.items()))


def _original(message: Message, origin: Origin) -> _Original:
    key, key_encoding = (None, None) if message.key is None else binary.hold(message.key)
    value, value_encoding = binary.hold(message.body)
    return _Original(
        key=key,
        value=value,
        offset=_UNKNOWN if origin.offset is None else origin.offset,
        partition=_UNKNOWN if origin.partition is None else origin.partition,
        key_encoding=key_encoding or UNSET,
        value_encoding=value_encoding or UNSET,
        headers=binary.hold_headers(message.headers) or UNSET,
        timestamp=_iso(message.sent_at) if message.sent_at else UNSET,
    )


_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_HEX: Final = re.compile(r"([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})", _UUID.flags)


def _uuid_for(correlation_id: str) -> str:
    """The id itself if it is a UUID, else the one that always stands for it."""
    if _UUID.fullmatch(correlation_id):
        return correlation_id
    if digits := _HEX.fullmatch(correlation_id):
        return "-".join(digits.groups())
    return str(uuid5(NAMESPACE_URL, f"urn:correlation:{_utf8(correlation_id).decode()}"))


def _iso(at: datetime) -> str:
    at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    return at.isoformat(timespec="microseconds")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _json(payload: _Payload) -> bytes:
    try:
        return msgspec.json.encode(payload)
    except UnicodeEncodeError:  # half a surrogate pair: no UTF-8, but JSON has an escape for it
        return json.dumps(msgspec.to_builtins(payload), separators=(",", ":")).encode()


# --- reading --------------------------------------------------------------------------------------------

_OBJECT: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")


def recognises(value: bytes | None, headers: Headers) -> bool:
    """A quick look: do the headers or the payload say that this is an ONEX dead letter?"""
    if headers.text("event_type") == _FIXED["event_type"]:
        return True
    if value is None or not _OBJECT.match(value):
        return False
    return b'"original_topic"' in value and b'"original_message"' in value


def read(value: bytes | None, headers: Headers) -> OnexRead:
    """What this record tells; never raises. Where payload and headers say the same, the payload counts."""
    if not recognises(value, headers):
        return OnexRead(recognised=False, problems=("not an ONEX dead letter",), extra_headers=headers)
    problems: list[str] = []
    found = fields.json_object(value, problems)
    payload = Fields(found or {}, problems, required=found is not None)
    original = payload.take("original_message", fields.mapping)
    parts = Fields(original or {}, problems, "original_message.", required=original is not None)
    texts = {name: fields.header_text(value) for name, value in headers}  # the last one of a name counts
    legible = {name: text for name, text in texts.items() if text is not None}
    notes = Fields(legible, problems, "header ", required=False)

    def either(name: str, parse: Callable[[object], _T]) -> _T | None:
        said, noted = payload.take(name, parse), notes.take(name, parse)
        if said is None:
            return noted
        if noted != said:  # the header says something else: it is kept
            notes.taken.pop(name, None)
        return said

    message = None if original is None else _message(parts)
    correlation_id = either("correlation_id", fields.text)
    own_correlation_id = payload.take("original_correlation_id", fields.text, required=False)
    told = OnexRead(
        message=message,
        topic=either("original_topic", fields.text),
        partition=parts.take("partition", _place),
        offset=parts.take("offset", _place),
        error_type=payload.take("error_type", fields.text),
        error_text=either("failure_reason", fields.text),
        failed_at=either("failure_timestamp", fields.time),
        retry_count=payload.take("retry_count", fields.count),
        correlation_id=correlation_id if own_correlation_id is None else own_correlation_id,
        message_id=notes.take("message_id", fields.text),
        written_at=notes.take("timestamp", fields.time),
        written_by=notes.take("source", fields.text),
        schema_version=notes.take("schema_version", fields.text),
        priority=notes.take("priority", fields.text),
        max_retries=notes.take("max_retries", fields.count),
    )
    left = parts.left if message else original
    return msgspec.structs.replace(
        told,
        problems=tuple(problems),
        extra=payload.left | ({"original_message": left} if left else {}),
        extra_headers=_untold(headers, _FIXED | notes.taken),
    )


def _untold(headers: Headers, told: Mapping[str, object]) -> Headers:
    """The headers that say anything else than what was told of them."""
    return Headers(
        (name, value)
        for name, value in headers
        if name not in told or told[name] != fields.header_text(value)
    )


def _message(parts: Fields) -> Message | None:
    """The original message, if every bit of it can be restored."""
    known = len(parts.problems)
    key = _restored(parts, "key", required=False)
    body = _restored(parts, "value", required=True)
    headers = parts.take("headers", binary.restore_headers, required=False)
    if len(parts.problems) > known:
        return None
    sent_at = parts.take("timestamp", fields.time, required=False)
    return Message(body=body, key=key, headers=headers or EMPTY, sent_at=sent_at)


def _restored(parts: Fields, name: str, *, required: bool) -> bytes | None:
    encoding = parts.take(f"{name}_encoding", fields.text, required=False)
    return parts.take(name, lambda value: binary.restore(value, encoding), required=required)


def _place(value: object) -> int | None:
    """A partition or an offset; None where Kafka's "unknown" stands."""
    number = fields.whole(value)
    return None if number == _UNKNOWN else number
