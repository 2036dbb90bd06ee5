"""Which headers do other systems put on their dead letters, and what do they mean?

A convention is a row of a table (`CONVENTIONS`): the headers it is known by, which fact stands in which of them and in
what form, and which headers it has added to the message and so are not the producer's. A system that is not here is
one more row, without code.

The one rule: no input raises out of `recognised`. What a convention does not tell is not in `Facts.values`; a header
that is not in the form its row says is named in `unreadable`, never quoted. This file does not know what a fact is
used for, nor what RabbitMQ itself writes (`x_death`).
"""

import codecs
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from uuid import UUID

import msgspec

from redrive.errors import SettingsError, use_instead
from redrive.formats import fields
from redrive.formats.x_death import name, plain
from redrive.letters import Headers, HeaderValue, Message
from redrive.letters.letter import EPOCH

# --- the forms a value may have ---------------------------------------------------------------------------
# Each takes a value without its wire type, and raises a ValueError if it is not in this form.


def _text(value: object) -> str:
    """Text or UTF-8; the half of a character that was left where somebody cut it is dropped."""
    if isinstance(value, bytes):
        return codecs.utf_8_decode(value, "strict", False)[0]
    return str(value) if isinstance(value, UUID) else fields.text(value)


def _queue(value: object) -> str:
    if not (queue := name(value)):
        raise ValueError("empty")
    return queue


def _address(value: object) -> str:
    """The queue at the end of an address: `rabbitmq://host/vhost/queue?durable=true`."""
    return _queue(unquote(urlsplit(name(value)).path.rpartition("/")[2]))


def _count(value: object) -> int:
    return fields.count(_text(value) if isinstance(value, bytes) else value)


def _time(value: object) -> datetime:
    """ISO 8601, or a time as the wire itself has it."""
    if isinstance(value, datetime):
        try:
            return value.astimezone(UTC)
        except OverflowError:
            raise ValueError("not a time") from None
    return fields.time(_text(value))


def _nservicebus_time(value: object) -> datetime:
    """`yyyy-MM-dd HH:mm:ss:ffffff Z`."""
    return datetime.strptime(_text(value), "%Y-%m-%d %H:%M:%S:%f Z").replace(tzinfo=UTC)


def _unix_ms(value: object) -> datetime:
    try:
        return EPOCH + timedelta(milliseconds=_count(value))
    except OverflowError:
        raise ValueError("not a time") from None


# Between the tracebacks of an error and of what caused it.
_CHAIN: Final = re.compile(
    r"\n\n(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n"
)
# Behind the frames, which are indented, stands the error: its type, and its text where it has one.
_FRAMES_AND_ERROR: Final = re.compile(
    r"(?:[ \t][^\n]*\n)++(?P<type>[^\W\d][\w.]*)(?:: (?P<text>.*))?", re.DOTALL
)


def _raised(value: object, part: str) -> str | None:
    """The type or the text of the error that a Python traceback ends with."""
    last = _CHAIN.split(_text(value))[-1]
    frames = last.find('  File "')
    found = _FRAMES_AND_ERROR.match(last, frames) if frames >= 0 else None
    return found[part].rstrip("\n") if found and found[part] is not None else None


FORMS: Final[Mapping[str, Callable[[object], Any]]] = {
    "text": _text,
    "name": name,
    "queue": _queue,
    "address": _address,
    "count": _count,
    "time": _time,
    "nservicebus-time": _nservicebus_time,
    "unix-ms": _unix_ms,
    "python-type": lambda value: _raised(value, "type"),
    "python-text": lambda value: _raised(value, "text"),
}
# Every fact that a convention can tell, and its form if the row does not say another one.
FACTS: Final[Mapping[str, str]] = {
    "reason": "text",
    "error_type": "text",
    "error_text": "text",
    "stack": "text",
    "source": "queue",
    "exchange": "name",
    "routing_key": "name",
    "retry_count": "count",
    "delivery_count": "count",
    "first_failed_at": "time",
    "failed_at": "time",
    "correlation_id": "text",
    "message_id": "text",
}
# Whoever tells one of these has told what went wrong.
ERROR_FACTS: Final = ("reason", "error_type", "error_text", "stack")


# --- the table --------------------------------------------------------------------------------------------


class Convention(msgspec.Struct, frozen=True, kw_only=True):
    """How one system marks its dead letters."""

    name: str
    recognised_by: tuple[str, ...]  # headers; one of them is enough
    needs_all: bool = False  # or not: they are everyday names, so all of them have to be there
    fields: dict[
        str, str | tuple[str, ...]
    ]  # fact: the header that tells it, or several, the first one counts
    forms: dict[str, str] = {}  # fact: its form, where it is not the usual one
    adds: tuple[str, ...] = ()  # headers that are not the producer's; `prefix*` stands for all that begin so
    queue_suffixes: tuple[str, ...] = ()  # its dead-letter queues are called like the source, and this
    in_body: bool = False  # all of this stands in the body, a JSON object; names are paths: `options.retries`

    def __post_init__(self) -> None:
        if not self.recognised_by:
            raise SettingsError(f"convention '{self.name}': say which headers it is recognised by")
        for fact in (*self.fields, *self.forms):
            if fact not in FACTS:
                raise SettingsError(
                    f"convention '{self.name}': unknown fact '{fact}'{use_instead(fact, FACTS)}"
                )
        for form in self.forms.values():
            if form not in FORMS:
                raise SettingsError(
                    f"convention '{self.name}': unknown form '{form}'{use_instead(form, FORMS)}"
                )
        if self.in_body and self.adds:
            raise SettingsError(
                f"convention '{self.name}': a body stays as it is, so nothing is taken out of it"
            )

    def added(self, header: str) -> bool:
        """Whether it is this convention that adds a header of this name."""
        return header in self.adds or any(
            header.startswith(each[:-1]) for each in self.adds if each.endswith("*")
        )

    def source_of(self, dead_letter_queue: str) -> str | None:
        """The queue whose dead letters lie in this one, as far as its name tells."""
        for suffix in self.queue_suffixes:
            if dead_letter_queue.endswith(suffix) and dead_letter_queue != suffix:
                return dead_letter_queue.removesuffix(suffix)
        return None


MASSTRANSIT: Final = Convention(
    name="masstransit",
    recognised_by=("MT-Reason", "MT-Fault-Message"),
    fields={
        "reason": "MT-Reason",
        "error_type": "MT-Fault-ExceptionType",
        "error_text": "MT-Fault-Message",
        "stack": "MT-Fault-StackTrace",
        "source": "MT-Fault-InputAddress",
        "failed_at": "MT-Fault-Timestamp",
        "retry_count": "MT-Fault-RetryCount",
        "message_id": "MT-OriginalMessageId",
    },
    forms={"source": "address"},
    # One by one: `MT-Fault-Address` and `MT-Host-Info` are the producer's.
    adds=(
        "MT-Reason",
        "MT-Fault-ExceptionType",
        "MT-Fault-InputAddress",
        "MT-Fault-Message",
        "MT-Fault-MessageType",
        "MT-Fault-ConsumerType",
        "MT-Fault-Timestamp",
        "MT-Fault-StackTrace",
        "MT-Fault-RetryCount",
        "MT-Fault-RedeliveryCount",
        "MT-Redelivery-Count",
        "MT-Host-MachineName",
        "MT-Host-ProcessName",
        "MT-Host-ProcessId",
        "MT-Host-Assembly",
        "MT-Host-AssemblyVersion",
        "MT-Host-MassTransitVersion",
        "MT-Host-FrameworkVersion",
        "MT-Host-OperatingSystemVersion",
    ),
    queue_suffixes=("_error", "_skipped"),
)

NSERVICEBUS: Final = Convention(
    name="nservicebus",
    recognised_by=("NServiceBus.FailedQ", "NServiceBus.ExceptionInfo.ExceptionType"),
    fields={
        "error_type": "NServiceBus.ExceptionInfo.ExceptionType",
        "error_text": "NServiceBus.ExceptionInfo.Message",
        "stack": "NServiceBus.ExceptionInfo.StackTrace",
        "source": "NServiceBus.FailedQ",
        "failed_at": "NServiceBus.TimeOfFailure",
        "retry_count": ("NServiceBus.Retries", "NServiceBus.FLRetries"),
        "correlation_id": "NServiceBus.CorrelationId",
        "message_id": "NServiceBus.MessageId",
    },
    forms={"failed_at": "nservicebus-time"},
    adds=(
        "NServiceBus.FailedQ",
        "NServiceBus.ExceptionInfo.*",
        "NServiceBus.TimeOfFailure",
        "NServiceBus.Retries",
        "NServiceBus.FLRetries",
        "NServiceBus.ProcessingEndpoint",
        "NServiceBus.ProcessingMachine",
    ),
)

SPRING_AMQP: Final = Convention(
    name="spring-amqp",
    recognised_by=("x-exception-message", "x-exception-stacktrace"),
    fields={
        "error_text": "x-exception-message",
        "stack": "x-exception-stacktrace",
        "exchange": "x-original-exchange",
        "routing_key": "x-original-routingKey",
    },
    adds=("x-exception-message", "x-exception-stacktrace", "x-original-exchange", "x-original-routingKey"),
)

REBUS: Final = Convention(
    name="rebus",
    recognised_by=("rbs2-error-details",),
    # The details are text and stack in one.
    fields={"error_text": "rbs2-error-details", "stack": "rbs2-error-details", "source": "rbs2-source-queue"},
    adds=("rbs2-error-details", "rbs2-source-queue"),
)

WOLVERINE: Final = Convention(
    name="wolverine",
    recognised_by=("exception-type", "failed-at"),
    needs_all=True,
    fields={
        "error_type": "exception-type",
        "error_text": "exception-message",
        "stack": "exception-stack",
        "source": "original-destination",
        "failed_at": "failed-at",
    },
    forms={"source": "address", "failed_at": "unix-ms"},
    adds=(
        "exception-type",
        "exception-message",
        "exception-stack",
        "failed-at",
        "original-destination",
        "original-partition",
        "original-offset",
    ),
)

# On RabbitMQ it rejects the message as it was delivered: what the body tells is the failure before the last one, and
# a task that was tried only once tells none.
DRAMATIQ: Final = Convention(
    name="dramatiq",
    recognised_by=("actor_name", "queue_name", "options", "message_id"),
    needs_all=True,
    in_body=True,
    fields={
        "error_type": "options.traceback",
        "error_text": "options.traceback",
        "stack": "options.traceback",
        "retry_count": "options.retries",
        "failed_at": "options.requeue_timestamp",
        "message_id": "message_id",
    },
    forms={"error_type": "python-type", "error_text": "python-text", "failed_at": "unix-ms"},
    queue_suffixes=(".XQ",),
)

CELERY: Final = Convention(
    name="celery",
    recognised_by=("task", "id", "root_id"),
    needs_all=True,
    fields={"message_id": "id", "retry_count": "retries"},
)

# Those that tell most stand first: of several that recognise a message, the first one is heard.
CONVENTIONS: Final[tuple[Convention, ...]] = (
    MASSTRANSIT,
    NSERVICEBUS,
    SPRING_AMQP,
    REBUS,
    WOLVERINE,
    DRAMATIQ,
    CELERY,
)


# --- reading ----------------------------------------------------------------------------------------------


class Facts(msgspec.Struct, frozen=True):
    """What one convention tells of one message."""

    convention: Convention
    values: dict[str, Any]  # by the names of `FACTS`
    unreadable: tuple[str, ...]


def recognised(
    message: Message, headers: Mapping[str, HeaderValue], conventions: Sequence[Convention]
) -> Iterator[Facts]:
    """What those conventions tell that recognise the message, in their order.

    `headers` are the message's by name; of those that share one, the last.
    """
    body: Mapping[str, object] | None = None
    for convention in conventions:
        values: Mapping[str, object] = headers
        if convention.in_body:
            if not _may_be_in(message.body, convention):
                continue
            if body is None:
                body = fields.json_object(message.body, []) or {}
            values = body
        enough = all if convention.needs_all else any
        if enough(key in values for key in convention.recognised_by):
            yield _facts(convention, values)


_OBJECT: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")


def _may_be_in(body: bytes | None, convention: Convention) -> bool:
    """A quick look, so that not every body is decoded."""
    if body is None or not _OBJECT.match(body):
        return False
    return all(f'"{key}"'.encode("utf-8", "replace") in body for key in convention.recognised_by)


def _facts(convention: Convention, values: Mapping[str, object]) -> Facts:
    told: dict[str, Any] = {}
    unreadable: list[str] = []
    for fact, said in convention.fields.items():
        form = FORMS[convention.forms.get(fact) or FACTS[fact]]
        for key in (said,) if isinstance(said, str) else said:
            value = _at(values, key) if convention.in_body else plain(values.get(key))
            if value is None:  # no such header, or a null: nothing is told
                continue
            try:
                told[fact] = form(value)
            except ValueError:
                unreadable.append(key)
            else:
                break
    known = {fact: value for fact, value in told.items() if value is not None}
    return Facts(convention, known, tuple(dict.fromkeys(unreadable)))


def _at(values: object, path: str) -> object:
    for key in path.split("."):
        if not isinstance(values, Mapping):
            return None
        values = values.get(key)
    return values


def without_added(headers: Headers, found: Sequence[Facts]) -> Headers:
    """The headers without those that the conventions have added; one that cannot be read is kept."""
    if not found:
        return headers
    return Headers(
        (header, value)
        for header, value in headers
        if not any(facts.convention.added(header) and header not in facts.unreadable for facts in found)
    )
