"""What does a listener do that is not interested?

Nothing, and as fast as that can be done. A listener derives from `Silent` and overrides what it wants to hear, so a
new thing to hear of does not break it.
"""

from datetime import timedelta
from types import TracebackType
from typing import Protocol

from redrive.letters import Failure
from redrive.letters.event import DeadLettered
from redrive.transports.base import Delivery


class Held(Protocol):
    """What is held open around one attempt."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...

    def failed(self, failure: Failure) -> None:
        """The attempt has failed; told before it ends."""


class Silent:
    """Hears everything and does nothing."""

    @property
    def traces(self) -> bool:
        """Whether `processing` is to be asked: not by default, so that it costs nothing."""
        return False

    def received(self, source: str, count: int) -> None:
        """So many deliveries have come."""

    def processing(
        self,
        source: str,  # noqa: ARG002  the shape is the protocol's
        delivery: Delivery,  # noqa: ARG002  likewise
        attempt: int,  # noqa: ARG002  likewise
        correlation_id: str,  # noqa: ARG002  likewise
    ) -> Held | None:
        """A handler is about to see a delivery; nothing is held open around it."""
        return None

    def completed(self, source: str, count: int) -> None:
        """So many deliveries were processed."""

    def attempt_failed(self, source: str, delivery: Delivery, attempt: int, failure: Failure) -> None:
        """A handler or decoder raised, or took too long."""

    def retrying(
        self, source: str, delivery: Delivery, attempt: int, failure: Failure, wait: timedelta
    ) -> None:
        """An attempt failed; the next one follows in the process after `wait`."""

    def given_back(
        self, source: str, delivery: Delivery, after: timedelta | None, failure: Failure | None
    ) -> None:
        """A delivery will come again; without a failure the handler asked for it."""

    def dead_lettered(self, event: DeadLettered) -> None:
        """A dead letter is durable, or could not be made durable."""

    def skipped(self, source: str, count: int) -> None:
        """So many deliveries were redrives for another consumer group."""

    def too_late(self, source: str, count: int) -> None:
        """So many deliveries were done when their connection was gone."""

    def paused(self, source: str, why: str) -> None:
        """Nothing more is taken from a source for now."""

    def resumed(self, source: str) -> None:
        """It goes on."""

    def failed(self, source: str, what: str, error: Exception) -> None:
        """Something beside the message itself went wrong."""
