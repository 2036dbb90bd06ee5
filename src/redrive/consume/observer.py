"""What can be heard of consuming?

Everything that counts, traces or logs the consumer does it from here (`watch` has them); the pipe itself only tells.
The rule: an observer listens and never steers, and is told in numbers where there are many. It is called in the event
loop, so it may not wait; if it raises, that is written to the log and hurts nobody.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType
from typing import Final, Protocol, Self

from redrive.letters import Failure
from redrive.letters.event import DeadLettered
from redrive.transports.base import Delivery


class Span(Protocol):
    """What is held open around one attempt."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...

    def failed(self, failure: Failure) -> None:
        """The attempt has failed; told before it ends."""


class Observer(Protocol):
    """Somebody who listens."""

    @property
    def traces(self) -> bool:
        """Whether `processing` is to be asked; looked at once, when consuming starts."""

    def received(self, source: str, count: int) -> None:
        """So many deliveries have come."""

    def processing(self, source: str, delivery: Delivery, attempt: int, correlation_id: str) -> Span | None:
        """A handler is about to see a delivery. What is given is held open around it; None: nothing is."""

    def completed(self, source: str, count: int) -> None:
        """So many deliveries were processed."""

    def attempt_failed(self, source: str, delivery: Delivery, attempt: int, failure: Failure) -> None:
        """A handler or decoder raised, or took too long. What follows is reported next."""

    def retrying(
        self, source: str, delivery: Delivery, attempt: int, failure: Failure, wait: timedelta
    ) -> None:
        """An attempt failed; the next one follows in the process after `wait`."""

    def given_back(
        self, source: str, delivery: Delivery, after: timedelta | None, failure: Failure | None
    ) -> None:
        """A delivery will come again; without a failure the handler asked for it."""

    def dead_lettered(self, event: DeadLettered) -> None:
        """A dead letter is durable, or could not be made durable: the event says which."""

    def skipped(self, source: str, count: int) -> None:
        """So many deliveries were redrives for another consumer group; no handler has seen them."""

    def too_late(self, source: str, count: int) -> None:
        """So many deliveries were done when their connection was gone: they will come a second time."""

    def paused(self, source: str, why: str) -> None:
        """Nothing more is taken from a source for now."""

    def resumed(self, source: str) -> None:
        """It goes on."""

    def failed(self, source: str, what: str, error: Exception) -> None:
        """Something beside the message itself went wrong: a callback, the broker, a stuck thread."""


_LOG: Final = logging.getLogger("redrive.consume")


class Listeners:
    """All observers of a consumer, told as one. Those of a user may be faulty: none can hurt the consumer."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self.tracers = tuple(observer for observer in observers if observer.traces)

    def tell(self, what: str, *args: object) -> None:
        """Call the method of this name of each."""
        for observer in self._observers:
            try:
                getattr(observer, what)(*args)
            except BaseException:  # noqa: BLE001  whatever it is, it is the observer's own
                _LOG.exception("observer %s failed in %s", type(observer).__name__, what)

    def spans(self, source: str, delivery: Delivery, attempt: int, correlation_id: str) -> "Spans":
        """What those who trace hold open around this attempt."""
        opened: list[Span] = []
        for tracer in self.tracers:
            try:
                span = tracer.processing(source, delivery, attempt, correlation_id)
            except BaseException:  # noqa: BLE001  likewise
                _LOG.exception("observer %s failed in processing", type(tracer).__name__)
            else:
                if span is not None:
                    opened.append(span)
        return Spans(opened)


class Spans:
    """Several spans as one."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for span in self._spans:
            self._stack.enter_context(span)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)  # type: ignore[arg-type]  # the three of the protocol

    def failed(self, failure: Failure) -> None:
        """The attempt has failed."""
        for span in self._spans:
            span.failed(failure)
