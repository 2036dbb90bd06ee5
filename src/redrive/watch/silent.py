"""An observer that does nothing.

Observers derive from `Silent` and override the events that they need, so that new events do not break them.
"""

from datetime import timedelta
from types import TracebackType
from typing import Protocol

from redrive.letters import Failure
from redrive.letters.event import DeadLettered
from redrive.transports.base import Delivery


class Held(Protocol):
    """A context that is open during one attempt."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...

    def failed(self, failure: Failure) -> None:
        """The attempt has failed; called before the context is closed."""


class Silent:
    """Ignores all events."""

    @property
    def traces(self) -> bool:
        """Whether `processing` is to be called; by default it is not."""
        return False

    def received(self, source: str, count: int) -> None:
        """Deliveries were received."""

    def processing(
        self,
        source: str,  # noqa: ARG002  the shape is the protocol's
        delivery: Delivery,  # noqa: ARG002  likewise
        attempt: int,  # noqa: ARG002  likewise
        correlation_id: str,  # noqa: ARG002  likewise
    ) -> Held | None:
        """A handler is about to be called with a delivery."""
        return None

    def completed(self, source: str, count: int) -> None:
        """Deliveries were processed successfully."""

    def attempt_failed(self, source: str, delivery: Delivery, attempt: int, failure: Failure) -> None:
        """A handler or decoder raised, or took too long."""

    def retrying(
        self, source: str, delivery: Delivery, attempt: int, failure: Failure, wait: timedelta
    ) -> None:
        """An attempt failed; the next one follows in the process after `wait`."""

    def given_back(
        self, source: str, delivery: Delivery, after: timedelta | None, failure: Failure | None
    ) -> None:
        """A delivery is released for another delivery; without a failure the handler asked for it."""

    def dead_lettered(self, event: DeadLettered) -> None:
        """A dead letter is durable, or could not be made durable."""

    def skipped(self, source: str, count: int) -> None:
        """Deliveries were redrives for another consumer group."""

    def too_late(self, source: str, count: int) -> None:
        """Deliveries were settled after their connection was lost."""

    def paused(self, source: str, reason: str) -> None:
        """The consumer of a source is paused."""

    def resumed(self, source: str) -> None:
        """The consumer continues."""

    def failed(self, source: str, component: str, error: Exception) -> None:
        """An error that does not belong to one message."""
