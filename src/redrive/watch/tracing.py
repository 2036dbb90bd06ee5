"""Where was the time of a message spent, and what became of it, within the trace of whoever sent it?

Spans with documented names and attributes, through OpenTelemetry's API. Three of them:

`MessageProcessingService.ProcessSingleMessage` is held open around each attempt of a handler. Its parent is the span
whose context the message carries; a message without one begins a trace of its own.

`MessageProcessingService.ProcessMessages` is one turn of the loop: so many deliveries came. It ends at once. A span
as long as the loop would be exported only when the loop ends, and be lost with the process; one as long as its batch
cannot be told, since deliveries of several batches are at work at a time. Attempts have a link to the turn before
them and not a parent in it, so that a message is sampled with its own trace.

`ServiceBusConnector.DeadLetterMessage` reaches from the failure to the moment its dead letter was durable, or was
not. Its parent is the last attempt.

The rule: who traces nothing pays nothing. Without an SDK `traces` is False and `processing` gives None; it has to be
configured before consuming starts. Nothing of a message but ids and counts stands in a span, and error texts are
redacted. Nothing here raises into the consumer.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from redrive._version import __version__
from redrive.errors import SettingsError
from redrive.letters import Failure
from redrive.letters.event import DeadLettered
from redrive.letters.letter import storable
from redrive.letters.redact import Redactor
from redrive.transports.base import Delivery
from redrive.watch.clean import LONGEST_STACK, Clean
from redrive.watch.silent import Silent
from redrive.watch.w3c import ROOT, extract, inject  # says what to install where OpenTelemetry is missing

from opentelemetry import context as contexts, trace  # isort: skip

__all__ = ["DEAD_LETTER", "PROCESS_MESSAGES", "PROCESS_SINGLE", "Attempt", "Tracing", "inject"]

PROCESS_MESSAGES: Final = "MessageProcessingService.ProcessMessages"
PROCESS_SINGLE: Final = "MessageProcessingService.ProcessSingleMessage"
DEAD_LETTER: Final = "ServiceBusConnector.DeadLetterMessage"
_REMEMBERED: Final = (
    4_096  # attempts whose message may still be dead-lettered; more are never at work at a time
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOG: Final = logging.getLogger("redrive.watch.tracing")
# What names a message between its attempt and its dead letter: source, message id, correlation id.
_Key = tuple[str, str | None, str]


class Tracing(Silent):
    """Makes spans of what is heard. Without a provider of its own it uses the process's, if there is one."""

    def __init__(
        self, tracer_provider: trace.TracerProvider | None = None, *, redactor: Redactor | None = None
    ) -> None:
        self._redactor = redactor or Redactor()
        self._clean = Clean(self._redactor)
        self._tracer: trace.Tracer | None = None
        self._turns: dict[str, trace.Link] = {}
        self._attempts: OrderedDict[_Key, trace.SpanContext] = OrderedDict()
        self._own = tracer_provider
        self._look()

    @property
    def traces(self) -> bool:
        """Whether there is anybody to trace for."""
        if self._tracer is None:
            self._look()
        return self._tracer is not None

    def received(self, source: str, count: int) -> None:
        """A turn of the loop."""
        if self._tracer is not None:
            with _unharmed(PROCESS_MESSAGES, source):
                self._turn(self._tracer, source, count)

    def processing(
        self, source: str, delivery: Delivery, attempt: int, correlation_id: str
    ) -> "Attempt | None":
        """A span around an attempt, current while the handler runs."""
        if self._tracer is not None:
            with _unharmed(PROCESS_SINGLE, source):
                return self._attempt(self._tracer, source, delivery, attempt, correlation_id)
        return None

    def dead_lettered(self, event: DeadLettered) -> None:
        """A span for the dead letter."""
        if self._tracer is not None:
            with _unharmed(DEAD_LETTER, event.source):
                self._death(self._tracer, event)

    # --- the spans -------------------------------------------------------------------------------------

    def _turn(self, tracer: trace.Tracer, source: str, count: int) -> None:
        attributes: dict[str, str | int] = {
            "queue.name": storable(source),
            "messaging.batch.message_count": count,
        }
        span = tracer.start_span(PROCESS_MESSAGES, ROOT, trace.SpanKind.CONSUMER, attributes)
        span.end()
        self._turns[source] = trace.Link(span.get_span_context())

    def _attempt(
        self, tracer: trace.Tracer, source: str, delivery: Delivery, attempt: int, correlation_id: str
    ) -> "Attempt":
        message = delivery.message
        turn = self._turns.get(source)
        span = tracer.start_span(
            PROCESS_SINGLE,
            extract(message.headers, self._redactor),
            trace.SpanKind.CONSUMER,
            {"queue.name": storable(source)},
            None if turn is None else (turn,),
        )
        if span.is_recording():
            span.set_attributes(
                {
                    "message.id": self._clean.id(message.message_id or delivery.key),
                    "delivery.count": delivery.delivery_count or 1,
                    "redrive.attempt": attempt,
                    "messaging.system": delivery.origin.transport,
                    "messaging.message.conversation_id": self._clean.id(correlation_id),
                }
            )
        # The letter of this message will name it in the same words (`DeadLetter.create`).
        own = storable(message.message_id) if message.message_id else None
        self._remember((source, own, storable(correlation_id)), span.get_span_context())
        return Attempt(span, source, self._clean)

    def _remember(self, key: _Key, context: trace.SpanContext) -> None:
        attempts = self._attempts
        attempts[key] = context
        attempts.move_to_end(key)
        if len(attempts) > _REMEMBERED:
            attempts.popitem(last=False)

    def _death(self, tracer: trace.Tracer, event: DeadLettered) -> None:
        last = self._attempts.get((event.source, event.message_id, event.correlation_id))
        span = tracer.start_span(
            DEAD_LETTER,
            ROOT if last is None else trace.set_span_in_context(trace.NonRecordingSpan(last), ROOT),
            trace.SpanKind.PRODUCER,
            {"queue.name": storable(event.source)},
            start_time=_nanoseconds(min(event.failure.at, event.at)),
        )
        if span.is_recording():
            clean = self._clean
            span.set_attributes(
                {
                    "message.id": clean.id(event.message_id or event.letter_id),
                    "delivery.count": event.delivery_count or 1,
                    "dlq.reason": clean.line(event.reason),
                    "dlq.error_description": clean.line(event.description or event.failure.text),
                    "dlq.name": storable(event.dead_letter_queue),
                    "error.type": clean.line(event.failure.error_type),
                    "redrive.letter_id": event.letter_id,
                    "redrive.lost": event.lost,
                    "messaging.message.conversation_id": clean.id(event.correlation_id),
                }
            )
            if not event.durable:
                span.set_status(trace.StatusCode.ERROR, clean.line(event.error or "not durable"))
        span.end(_nanoseconds(event.at))

    # --- the provider ----------------------------------------------------------------------------------

    def _look(self) -> None:
        try:
            provider = self._own or trace.get_tracer_provider()
        except Exception as error:  # a library's way to say that a name in the environment is wrong
            raise SettingsError(f"the tracer provider of the environment cannot be used: {error}") from error
        if isinstance(provider, trace.ProxyTracerProvider):  # what stands there until one is configured
            return
        tracer = provider.get_tracer("redrive", __version__)
        self._tracer = None if isinstance(tracer, trace.NoOpTracer) else tracer


class Attempt:
    """A span that is current while its handler runs, and ends with it."""

    __slots__ = ("_clean", "_source", "_span", "_token")

    def __init__(self, span: trace.Span, source: str, clean: Clean) -> None:
        self._span = span
        self._source = source
        self._clean = clean

    def __enter__(self) -> Self:
        self._token = contexts.attach(trace.set_span_in_context(self._span))
        return self

    def failed(self, failure: Failure) -> None:
        """What came of it, said before it ends: whoever ran the handler has caught its error."""
        with _unharmed(PROCESS_SINGLE, self._source):
            if self._span.is_recording():
                stack = storable((failure.stack or "")[-LONGEST_STACK:])  # redacted when the failure was made
                self._record(self._clean.line(failure.error_type), self._clean.line(failure.text), stack)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        with _unharmed(PROCESS_SINGLE, self._source):
            contexts.detach(self._token)
            # What is no `Exception` is a signal: the handler asked for something, or the process ends.
            if isinstance(error, Exception) and self._span.is_recording():
                self._record(type(error).__name__, self._clean.error(error), self._clean.stack(error))
            self._span.end()

    def _record(self, name: str, text: str, stack: str) -> None:
        details = {"exception.type": name, "exception.message": text}
        self._span.add_event("exception", {**details, "exception.stacktrace": stack} if stack else details)
        self._span.set_attribute("error.type", name)
        self._span.set_status(trace.StatusCode.ERROR, text)


@contextmanager
def _unharmed(span: str, source: str) -> Iterator[None]:
    """A listener never stops a message: not one that is damaged, not for an exporter that is broken."""
    try:
        yield
    except Exception:  # noqa: BLE001  that is the point
        _LOG.debug("span not recorded span=%s", span, extra={"queue_name": source})


def _nanoseconds(at: datetime) -> int:
    since = at - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
