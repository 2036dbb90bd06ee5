"""Log lines of consumers.

They are written with Python's `logging`: a library must not choose its users' logging (decision 0016). Ids, counts and
names are also fields of the record (`extra`), for programs that read logs.

A line never contains a payload or a header of a message. Other text from outside is redacted and put on one line, and
the number of equal lines per second is limited (`Flood`).
"""

import logging
from contextlib import suppress
from datetime import timedelta
from typing import Final, NamedTuple

from redrive.clock import Clock, SystemClock
from redrive.errors import on_one_line
from redrive.letters import Failure
from redrive.letters.event import DeadLettered
from redrive.letters.message import made_up_correlation_id, own_correlation_id
from redrive.letters.redact import Redactor
from redrive.rules.decide import Reason
from redrive.transports.base import Delivery
from redrive.watch.clean import LONGEST_STACK, Clean
from redrive.watch.flood import Flood
from redrive.watch.log_format import JsonFormatter, TextFormatter, configure
from redrive.watch.silent import Silent

__all__ = ["LINES_PER_SECOND", "JsonFormatter", "Logs", "TextFormatter", "configure"]

LINES_PER_SECOND: Final = 20


class _Line(NamedTuple):
    """A kind of line."""

    level: int
    text: str
    more: str  # its beginning, for the number of suppressed lines


def _line(level: int, head: str, tail: str = "MessageId=%s, DeliveryCount=%s") -> _Line:
    return _Line(level, f"{head}: {tail}", f"{head}:")


_POISON: Final = _line(logging.WARNING, "Poison message detected - moving to DLQ")
_NOT_RETRYABLE: Final = _line(logging.WARNING, "Non-retryable error for message", "MessageId=%s, Error=%s")
_TOO_MANY: Final = _line(logging.WARNING, "Message exceeded max delivery count")
_BY_HANDLER: Final = _line(logging.WARNING, "Message dead-lettered by its handler", "MessageId=%s, Reason=%s")
_ATTEMPT_FAILED: Final = _line(
    logging.ERROR, "Message processing failed", "MessageId=%s, Attempt=%s, CorrelationId=%s, Error=%s"
)
_GIVEN_BACK: Final = _line(logging.INFO, "Abandoning message for retry")
_RETRYING: Final = _line(logging.INFO, "Retrying message", "MessageId=%s, Attempt=%s, Error=%s")
_PUBLISHED: Final = _line(logging.INFO, "Published failed message to DLQ", "%s")
_NOT_PUBLISHED: Final = _Line(
    logging.ERROR, "Failed to publish to DLQ topic %s", "Failed to publish to DLQ topic:"
)
_LOST: Final = _line(logging.ERROR, "Message lost, settled without a dead letter", "MessageId=%s, Error=%s")
_TOO_LATE: Final = _line(logging.WARNING, "Settlement too late, expect redelivery", "Queue=%s, Count=%s")
_PAUSED: Final = _line(logging.WARNING, "Source paused", "Queue=%s, Reason=%s")
_RESUMED: Final = _line(logging.INFO, "Source resumed", "Queue=%s")
_FAILED: Final = _line(logging.ERROR, "Consumer error", "Queue=%s, Component=%s, Error=%s")

_BY_REASON: Final = {
    str(Reason.POISON_MESSAGE): _POISON,
    str(Reason.NON_RETRYABLE_ERROR): _NOT_RETRYABLE,
    str(Reason.MAX_DELIVERY_COUNT_EXCEEDED): _TOO_MANY,
}


class Logs(Silent):
    """Writes the events of consumers to a logger, by default `redrive.consume`."""

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        redactor: Redactor | None = None,
        clock: Clock | None = None,
        lines_per_second: int = LINES_PER_SECOND,
    ) -> None:
        self._logger = logger or logging.getLogger("redrive.consume")
        self._clean = Clean(redactor)
        # A flood of lines about one queue does not hide those about another.
        self._flood: Flood[tuple[_Line, str]] = Flood(lines_per_second, self._more, clock or SystemClock())

    def close(self) -> None:
        """Write the numbers of suppressed lines."""
        self._flood.tell()

    def attempt_failed(self, source: str, delivery: Delivery, attempt: int, failure: Failure) -> None:
        """An attempt failed: which, why and where in the code."""
        if self._lets(_ATTEMPT_FAILED, source):
            correlation_id = self._clean.id(_correlation_id_of(delivery))
            fields = {
                **self._failure(failure),
                "attempt": attempt,
                "correlation_id": correlation_id,
                "error_stack": _end_of(failure.stack or "", LONGEST_STACK),  # redacted with its failure
            }
            error = f"{fields['error_type']}: {fields['error']}"
            self._of_delivery(_ATTEMPT_FAILED, source, delivery, fields, attempt, correlation_id, error)

    def retrying(
        self, source: str, delivery: Delivery, attempt: int, failure: Failure, wait: timedelta
    ) -> None:
        """An attempt failed; the next one follows."""
        if self._lets(_RETRYING, source):
            fields = {**self._failure(failure), "attempt": attempt, "wait_seconds": wait.total_seconds()}
            self._of_delivery(_RETRYING, source, delivery, fields, attempt, fields["error"])

    def given_back(
        self, source: str, delivery: Delivery, after: timedelta | None, failure: Failure | None
    ) -> None:
        """A delivery will come again."""
        if self._lets(_GIVEN_BACK, source):
            fields: dict[str, object] = {"wait_seconds": after.total_seconds() if after is not None else 0.0}
            if failure is not None:
                fields |= self._failure(failure)
            self._of_delivery(_GIVEN_BACK, source, delivery, fields, delivery.delivery_count or 1)

    def dead_lettered(self, event: DeadLettered) -> None:
        """Why a message was dead-lettered, and whether its dead letter is durable."""
        cause = _BY_REASON.get(event.reason, _BY_HANDLER)
        if self._lets(cause, event.source):
            self._write_cause(cause, event)
        result = _PUBLISHED if event.durable else _NOT_PUBLISHED
        if self._lets(result, event.source):
            fields: dict[str, object] = {
                "original_topic": event.source,
                "dlq_topic": event.dead_letter_queue,
                "correlation_id": self._clean.id(event.correlation_id),
                "error_type": self._clean.line(event.failure.error_type),
                "letter_id": event.letter_id,
            }
            if not event.durable:
                fields["dlq_error"] = self._clean.line(event.error or "")
                fields["error_stack"] = _end_of(event.error_stack or "", LONGEST_STACK)
            self._write(result, fields, event.dead_letter_queue)
        if event.lost and self._lets(_LOST, event.source):
            message_id = self._id_of(event)
            fields = {"queue_name": event.source, "message_id": message_id, "letter_id": event.letter_id}
            self._write(_LOST, fields, message_id, self._clean.line(event.error or ""))

    def too_late(self, source: str, count: int) -> None:
        """So many deliveries will come a second time."""
        if self._lets(_TOO_LATE, source):
            self._write(_TOO_LATE, {"queue_name": source, "count": count}, source, count)

    def paused(self, source: str, reason: str) -> None:
        """The consumer is paused."""
        if self._lets(_PAUSED, source):
            reason = self._clean.line(reason)
            self._write(_PAUSED, {"queue_name": source, "reason": reason}, source, reason)

    def resumed(self, source: str) -> None:
        """The consumer continues."""
        if self._lets(_RESUMED, source):
            self._write(_RESUMED, {"queue_name": source}, source)

    def failed(self, source: str, component: str, error: Exception) -> None:
        """An error that does not belong to one message. It is not redacted yet."""
        if self._lets(_FAILED, source):
            kind, component = type(error).__name__, self._clean.line(component)
            text = f"{kind}: {self._clean.error(error)}"
            fields: dict[str, object] = {
                "queue_name": source,
                "component": component,
                "error_type": kind,
                "error": text,
                "error_stack": self._clean.stack(error),
            }
            self._write(_FAILED, fields, source, component, text)

    # --- writing ---------------------------------------------------------------------------------------

    def _lets(self, line: _Line, source: str) -> bool:
        return self._logger.isEnabledFor(line.level) and self._flood.lets((line, source))

    def _write(self, line: _Line, fields: dict[str, object], *words: object) -> None:
        self._log(line.level, line.text, fields, *words)

    def _log(self, level: int, text: str, fields: dict[str, object], *words: object) -> None:
        """Write a line; neither a filter that raises nor a reserved field name stops a message."""
        # Names of queues are not redacted, but a line break in one would start a forged line.
        words = tuple(on_one_line(word) if isinstance(word, str) else word for word in words)
        fields = {
            name: on_one_line(value) if isinstance(value, str) and name != "error_stack" else value
            for name, value in fields.items()
        }
        with suppress(Exception):
            try:
                self._logger.log(level, text, *words, extra=fields)
            except KeyError:  # a record factory of the process sets a field of this name itself
                own = {f"redrive_{name}": value for name, value in fields.items()}
                self._logger.log(level, text, *words, extra=own)

    def _more(self, kind: tuple[_Line, str], count: int) -> None:
        line, source = kind
        fields: dict[str, object] = {"queue_name": source, "suppressed": count}
        self._log(line.level, "%s … and %s more", fields, line.more, f"{count:,}")

    def _write_cause(self, line: _Line, event: DeadLettered) -> None:
        message_id, count = self._id_of(event), event.delivery_count or 1
        reason = self._clean.line(event.reason)
        error = self._clean.line(event.description or event.failure.text)
        second: object = error if line is _NOT_RETRYABLE else reason if line is _BY_HANDLER else count
        fields: dict[str, object] = {
            "queue_name": event.source,
            "message_id": message_id,
            "delivery_count": count,
            "correlation_id": self._clean.id(event.correlation_id),
            "letter_id": event.letter_id,
            "reason": reason,
            **self._failure(event.failure),
            "error": error,
        }
        self._write(line, fields, message_id, second)

    def _of_delivery(
        self, line: _Line, source: str, delivery: Delivery, fields: dict[str, object], *words: object
    ) -> None:
        try:
            own = delivery.message.message_id
        except Exception:  # noqa: BLE001  a message too damaged to be read is logged as well
            own = None
        message_id = self._clean.id(own or delivery.key)
        ids = {"queue_name": source, "message_id": message_id, "delivery_count": delivery.delivery_count or 1}
        self._write(line, {**ids, **fields}, message_id, *words)

    def _failure(self, failure: Failure) -> dict[str, object]:
        return {
            "error_type": self._clean.line(failure.error_type),
            "error": self._clean.line(failure.text),
            "error_kind": str(failure.kind),
            "rule": failure.rule,
        }

    def _id_of(self, event: DeadLettered) -> str:
        """The id of the message, or that of the letter if the producer gave none."""
        return self._clean.id(event.message_id or event.letter_id)


def _correlation_id_of(delivery: Delivery) -> str:
    """The correlation id of a message, which may be too damaged to be read."""
    try:
        return own_correlation_id(delivery.message) or made_up_correlation_id(delivery.key)
    except Exception:  # noqa: BLE001  likewise
        return ""


def _end_of(text: str, longest: int) -> str:
    return text if len(text) <= longest else "…" + text[-longest:]
