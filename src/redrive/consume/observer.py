"""The events of a consumer.

Metrics, traces and logs (`watch`) are observers of these events. An observer does not change how messages are
processed; frequent events are reported in batches, with a number. Observers are called in the event loop, so they must
not block; an error in an observer is logged and has no other effect.
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
    """A context that is open during one attempt."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...

    def failed(self, failure: Failure) -> None:
        """The attempt has failed; called before the context is closed."""


class Observer(Protocol):
    """Called with the events of a consumer."""

    @property
    def traces(self) -> bool:
        """Whether `processing` is to be called; read once, when consuming starts."""

    def received(self, source: str, count: int) -> None:
        """Deliveries were received."""

    def processing(self, source: str, delivery: Delivery, attempt: int, correlation_id: str) -> Span | None:
        """A handler is about to be called with a delivery. The returned context is open during the call."""

    def completed(self, source: str, count: int) -> None:
        """Deliveries were processed successfully."""

    def attempt_failed(self, source: str, delivery: Delivery, attempt: int, failure: Failure) -> None:
        """A handler or decoder raised, or took too long. What follows is reported next."""

    def retrying(
        self, source: str, delivery: Delivery, attempt: int, failure: Failure, wait: timedelta
    ) -> None:
        """An attempt failed; the next one follows in the process after `wait`."""

    def given_back(
        self, source: str, delivery: Delivery, after: timedelta | None, failure: Failure | None
    ) -> None:
        """A delivery is released for another delivery; without a failure the handler asked for it."""

    def dead_lettered(self, event: DeadLettered) -> None:
        """A dead letter is durable, or could not be made durable: the event says which."""

    def skipped(self, source: str, count: int) -> None:
        """Deliveries were redrives for another consumer group; no handler was called."""

    def too_late(self, source: str, count: int) -> None:
        """Deliveries were settled after their connection was lost; the broker delivers them again."""

    def paused(self, source: str, reason: str) -> None:
        """The consumer of a source is paused."""

    def resumed(self, source: str) -> None:
        """The consumer continues."""

    def failed(self, source: str, component: str, error: Exception) -> None:
        """An error that does not belong to one message: of a callback, the broker, a stuck thread."""


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
                _LOG.exception("observer failed observer=%s event=%s", type(observer).__name__, what)

    def spans(self, source: str, delivery: Delivery, attempt: int, correlation_id: str) -> "Spans":
        """What those who trace hold open around this attempt."""
        opened: list[Span] = []
        for tracer in self.tracers:
            try:
                span = tracer.processing(source, delivery, attempt, correlation_id)
            except BaseException:  # noqa: BLE001  likewise
                _LOG.exception("observer failed observer=%s event=processing", type(tracer).__name__)
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
