"""What can be heard of consuming?

Everything that counts, traces or logs the consumer does it from here (`watch` has them); the pipe itself only tells.
The rule: an observer listens and never steers, and is told in numbers where there are many. It may not raise, and it
is called in the event loop, so it may not wait.
"""

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Protocol

from redrive.letters import Failure
from redrive.letters.event import DeadLetterEvent
from redrive.transports.base import Delivery


class Observer(Protocol):
    """Somebody who listens."""

    @property
    def traces(self) -> bool:
        """Whether `processing` is to be asked; looked at once, when consuming starts."""

    def received(self, source: str, count: int) -> None:
        """So many deliveries have come."""

    def processing(
        self, source: str, delivery: Delivery, attempt: int, correlation_id: str
    ) -> AbstractContextManager[object] | None:
        """A handler is about to see a delivery. What is given is held open around it; None: nothing is."""

    def completed(self, source: str, count: int) -> None:
        """So many deliveries were processed."""

    def retrying(
        self, source: str, delivery: Delivery, attempt: int, failure: Failure, wait: timedelta
    ) -> None:
        """An attempt failed; the next one follows in the process after `wait`."""

    def given_back(
        self, source: str, delivery: Delivery, after: timedelta | None, failure: Failure | None
    ) -> None:
        """A delivery will come again; without a failure the handler asked for it."""

    def dead_lettered(self, event: DeadLetterEvent) -> None:
        """A dead letter is durable, or could not be made durable: the event says which."""

    def too_late(self, source: str, count: int) -> None:
        """So many deliveries were done when their connection was gone: they will come a second time."""

    def paused(self, source: str, why: str) -> None:
        """Nothing more is taken from a source for now."""

    def resumed(self, source: str) -> None:
        """It goes on."""

    def failed(self, source: str, what: str, error: Exception) -> None:
        """Something beside the message itself went wrong: a callback, the broker, a stuck thread."""
