"""Letters for tests: complete, plausible, and different where a test says so."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from redrive.letters import DeadLetter, Failure, FailureKind, Headers, Message, Origin

BROKER: Final = "rabbitmq"  # of letters for which a test names no other broker
LONG_AGO: Final = datetime(2026, 2, 11, 11, 0, tzinfo=UTC)


def a_message(body: bytes | None = b'{"order": 12345}', **fields: Any) -> Message:
    """A message from a shop's order queue."""
    fields.setdefault("headers", Headers({"x-tenant": "north", "x-hops": 2}))
    fields.setdefault("content_type", "application/json")
    return Message(body=body, **fields)


def a_failure(text: str = "External API timeout after 5000ms", **fields: Any) -> Failure:
    """A failure an hour before a `ManualClock` starts."""
    fields.setdefault("error_type", "TimeoutError")
    fields.setdefault("at", LONG_AGO)
    fields.setdefault("kind", FailureKind.TIMEOUT)
    fields.setdefault("retryable", False)
    fields.setdefault("rule", "type TimeoutError")
    return Failure(text=text, **fields)


def a_letter(key: str = "orders/1", **fields: Any) -> DeadLetter:
    """A dead letter; `key` tells it from others."""
    message = fields.pop("message", None) or a_message(
        message_id=f"message-{key}", correlation_id=f"trace-{key}"
    )
    origin = fields.pop("origin", None) or Origin(
        transport=fields.pop("transport", "rabbitmq"),
        source=fields.pop("source", "orders"),
        exchange="shop",
        routing_key="orders",
    )
    failure = fields.pop("failure", None) or a_failure()
    fields.setdefault("reason", "NonRetryableError")
    fields.setdefault("retry_count", 3)
    fields.setdefault("retry_in", timedelta(0))
    return DeadLetter.create(message, origin, failure, key=key, **fields)


def letters(count: int, prefix: str = "orders", **fields: Any) -> list[DeadLetter]:
    """Several letters, each of its own key."""
    return [a_letter(f"{prefix}/{number}", **fields) for number in range(count)]
