"""`Context`: the message as its handler sees it, and the decisions a handler can make.

A handler with a parameter of type `Context` receives one. `dead_letter` and `requeue` end the handler at once: they
raise a signal that is not an `Exception`, so `except Exception` in a handler does not catch it. If the handler catches
it anyway, the decision still applies.
"""

import logging
from collections.abc import MutableMapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, NoReturn

from redrive.errors import SettingsError, on_one_line
from redrive.letters import Headers, Message, Origin
from redrive.letters.letter import MAX_TAG
from redrive.letters.message import made_up_correlation_id, own_correlation_id
from redrive.letters.redrive import Redrive
from redrive.rules import ManualDeadLetter, ManualGiveBack, parse_duration
from redrive.rules.decide import CUSTOM_REASON
from redrive.transports.base import Delivery

_LOGGER: Final = logging.getLogger("redrive.handler")


class Asked(BaseException):
    """The handler has said what is to become of its message."""

    def __init__(self, outcome: ManualDeadLetter | ManualGiveBack) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class RedriveInfo(NamedTuple):
    """A redrive as its handler sees it: which letter, and how often its message was sent back."""

    letter_id: str
    attempt: int
    operation: str | None  # the replay that sent it


class Context:
    """One message, as its handler sees it."""

    __slots__ = (
        "_correlation_id",
        "_delivery",
        "_logger",
        "_message",
        "asked",
        "attempt",
        "priority",
        "source",
        "tags",
    )

    def __init__(self, delivery: Delivery, source: str, attempt: int) -> None:
        self._delivery = delivery
        self._message: Message | None = None
        self._correlation_id: str | None = None
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None
        self.source = source
        self.attempt = attempt  # of this delivery, in this process, from 1
        self.asked: ManualDeadLetter | ManualGiveBack | None = None
        self.tags: tuple[str, ...] = ()  # of the dead letter, if the message becomes one
        self.priority = 0  # likewise

    @property
    def message(self) -> Message:
        """The message as its producer sent it, without the headers by which redrive recognises a redrive."""
        if self._message is None:
            self._message = self._delivery.handler_message
        return self._message

    @property
    def headers(self) -> Headers:
        """The message's headers; `x-replayed` says that it was sent before."""
        return self.message.headers

    @property
    def redrive(self) -> RedriveInfo | None:
        """The letter that this message is a redrive of; None if it is none, or one for another consumer."""
        redrive: Redrive | None = self._delivery.own_redrive
        return None if redrive is None else RedriveInfo(redrive.hold.id, redrive.attempt, redrive.operation)

    @property
    def origin(self) -> Origin:
        """Where the message came from."""
        return self._delivery.origin

    @property
    def delivery_count(self) -> int:
        """How often the message was delivered, this time included."""
        return self._delivery.delivery_count or 1

    @property
    def correlation_id(self) -> str:
        """The message's own correlation id; one that stays the same where it has none."""
        if self._correlation_id is None:
            self._correlation_id = correlation_id_for(self._delivery)
        return self._correlation_id

    @property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger whose lines carry the message's ids."""
        if self._logger is None:
            fields = {
                "queue_name": self.source,
                "message_id": self.message.message_id,
                "correlation_id": self.correlation_id,
                "delivery_count": self.delivery_count,
            }
            self._logger = _Adapter(_LOGGER, fields)
        return self._logger

    def dead_letter(self, reason: str = CUSTOM_REASON, description: str = "") -> NoReturn:
        """Give this message up, for a reason of one's own. Does not return."""
        self.asked = ManualDeadLetter(reason, description)
        raise Asked(self.asked)

    def tag(self, *tags: str) -> None:
        """Add tags to the dead letter, should this attempt be the last one."""
        for tag in tags:
            if not 0 < len(tag.strip()) <= MAX_TAG or "," in tag:
                raise SettingsError(
                    f"a tag must have 1 to {MAX_TAG} characters and no comma, got {on_one_line(tag)!r:.80}"
                )
        self.tags = tuple(dict.fromkeys([*self.tags, *(tag.strip() for tag in tags)]))

    def set_priority(self, priority: int) -> None:
        """Set the priority of the dead letter, should this attempt be the last one. Higher is redriven first."""
        if isinstance(priority, bool) or not -(2**31) <= priority < 2**31:
            raise SettingsError(f"a priority must be a 32-bit integer, not {priority!r:.40}")
        self.priority = priority

    def requeue(self, after: timedelta | str | None = None) -> NoReturn:
        """Release this message for another delivery, after a delay ("10m") or at once. Does not return."""
        wait = parse_duration(after) if isinstance(after, str) else after
        self.asked = ManualGiveBack(wait)
        raise Asked(self.asked)


class _Adapter(logging.LoggerAdapter[logging.Logger]):
    """Adds the message's ids to the fields of each line, beside those that the caller gives."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def correlation_id_for(delivery: Delivery) -> str:
    """The message's own, or one that is made from its key and so the same at each delivery."""
    return own_correlation_id(delivery.message) or made_up_correlation_id(delivery.key)
