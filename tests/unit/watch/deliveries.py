"""Deliveries and events for listeners: what a consumer would hand to them."""

from datetime import timedelta
from typing import Any

from redrive.letters import DeadLetter, Message, Origin
from redrive.letters.event import DeadLettered
from redrive.testing.factories import a_failure, a_letter, a_message
from redrive.transports.base import Delivery


class ADelivery(Delivery):
    """A delivery that is at hand and of no broker."""

    __slots__ = ("_count", "_key", "_message", "_source", "body")

    def __init__(
        self,
        message: Message | None = None,
        source: str = "orders",
        count: int | None = 1,
        key: str = "orders/1",
    ) -> None:
        self._message = message or a_message(message_id="message-1")
        self._source = source
        self._count = count
        self._key = key
        self.body = self._message.body

    @property
    def message(self) -> Message:
        return self._message

    @property
    def origin(self) -> Origin:
        return Origin(transport="rabbitmq", source=self._source)

    @property
    def delivery_count(self) -> int | None:
        return self._count

    @property
    def alive(self) -> bool:
        return True

    @property
    def key(self) -> str:
        return self._key


class ADamagedDelivery(ADelivery):
    """One whose headers cannot be read."""

    @property
    def message(self) -> Message:
        raise ValueError("headers end in the middle")


def an_event(letter: DeadLetter | None = None, **fields: Any) -> DeadLettered:
    """A dead letter that is durable a quarter of a second after its failure; `error` makes it one that is not."""
    letter = letter or a_letter(
        reason=fields.pop("reason", "NonRetryableError"),
        source=fields.pop("source", "orders"),
        failure=fields.pop("failure", None) or a_failure(),
    )
    fields.setdefault("at", letter.failure.at + timedelta(milliseconds=250))
    fields.setdefault("description", letter.failure.text)
    fields.setdefault("dead_letter_queue", f"{letter.source}.dlq")
    fields.setdefault("delivery_count", 3)
    return DeadLettered.of(letter, **fields)
