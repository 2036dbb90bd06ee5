"""Every listener is an observer, by shape; and none of them lets a secret out."""

import inspect
import io
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from redrive.consume.observer import Observer
from redrive.letters import Headers
from redrive.letters.letter import storable
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, failure_from_error
from redrive.testing.factories import LONG_AGO, a_failure, a_letter, a_message
from redrive.watch.logs import JsonFormatter, Logs, TextFormatter
from redrive.watch.metrics import Metrics
from redrive.watch.silent import Silent
from redrive.watch.tracing import Attempt, Tracing
from tests.unit.watch.deliveries import ADelivery, an_event

METHODS = [name for name, _ in inspect.getmembers(Observer, inspect.isfunction) if not name.startswith("_")]
LISTENERS: list[type[Silent]] = [Silent, Metrics, Tracing, Logs]


def observers() -> list[Observer]:
    """Only type-checked in earnest: each of them is one."""
    return [Silent(), Metrics(CollectorRegistry()), Tracing(TracerProvider()), Logs()]


def test_there_is_something_to_hear() -> None:
    assert len(METHODS) == 12
    assert len(observers()) == 4


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("name", METHODS)
def test_every_listener_has_the_methods_of_an_observer_with_the_same_parameters(
    listener: type[Silent], name: str
) -> None:
    own, asked = (inspect.signature(getattr(one, name)).parameters for one in (listener, Observer))
    assert own == asked


def test_only_what_makes_spans_is_asked_for_something_to_hold_open() -> None:
    asked = [type(observer).__name__ for observer in observers() if observer.traces]
    assert asked == ["Tracing"]
    assert Silent().processing("orders", ADelivery(), 1, "trace-1") is None


# --- secrets ---------------------------------------------------------------------------------------------

SECRETS = [
    "hunter2-Xy9",
    "AKIAIOSFODNN7EXAMPLE",
    "4111 1111 1111 1111",
    "jane.roe@clinic.example",
    "s3cr3t-Header",
    "s3cr3t-Body",
]
ERROR = (
    "cannot reach postgres://shop:hunter2-Xy9@db-1/orders with AKIAIOSFODNN7EXAMPLE "
    "for card 4111 1111 1111 1111 of jane.roe@clinic.example"
)


class Overheard:
    """Everything that left the process, of each listener."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.lines = {"json": io.StringIO(), "text": io.StringIO(), "plain": io.StringIO()}
        self.logger = logging.getLogger("tests.planted")
        self.logger.setLevel(logging.DEBUG)
        self.logger.propagate = False
        formatters = {
            "json": JsonFormatter(),
            "text": TextFormatter(),
            # A formatter of somebody else's that redacts nothing and writes every field there is.
            "plain": EveryField(),
        }
        for name, stream in self.lines.items():
            handler = logging.StreamHandler(stream)
            handler.setFormatter(formatters[name])
            self.logger.addHandler(handler)
        self.listeners: list[Observer] = [Metrics(self.registry), Tracing(provider), Logs(self.logger)]

    def everything(self) -> dict[str, str]:
        spans = "\n".join(span.to_json() for span in self.exporter.get_finished_spans())
        logged = {name: stream.getvalue() for name, stream in self.lines.items()}
        return {"metrics": generate_latest(self.registry).decode(), "spans": spans, **logged}


class EveryField(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.getMessage()} {vars(record)!r}"


@pytest.fixture
def overheard() -> Iterator[Overheard]:
    overheard = Overheard()
    yield overheard
    overheard.logger.handlers.clear()


def boom() -> None:
    raise ConnectionError(ERROR)


def test_no_secret_of_error_headers_or_body_is_in_metrics_spans_or_lines(overheard: Overheard) -> None:
    # Given a message full of secrets, and a handler whose error tells more of them
    message = a_message(
        b'{"password": "s3cr3t-Body"}',
        message_id="jane.roe@clinic.example",
        headers=Headers(
            {
                "authorization": "Bearer s3cr3t-Header",
                "traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01",
                "tracestate": "shop=password:hunter2-Xy9",
                "correlation-id": "card 4111 1111 1111 1111",
            }
        ),
    )
    delivery = ADelivery(message)
    with pytest.raises(ConnectionError) as caught:
        boom()
    error = caught.value
    failure = failure_from_error(error, at=LONG_AGO, classifier=Classifier(), redactor=Redactor())
    letter = a_letter(message=message, failure=failure, reason=f"asked for by {SECRETS[3]}")
    correlation_id = letter.correlation_id
    assert SECRETS[2] in correlation_id, "it is planted there as well"

    # When everything that can be heard is heard
    for listener in overheard.listeners:
        listener.received("orders", 1)
        held = listener.processing("orders", delivery, 1, correlation_id)
        if held is not None:
            with pytest.raises(ConnectionError), held:
                boom()
        if isinstance(held := listener.processing("orders", delivery, 2, correlation_id), Attempt):
            with held:
                held.failed(failure)
        listener.retrying("orders", delivery, 1, failure, timedelta(seconds=1))
        listener.given_back("orders", delivery, None, failure)
        listener.skipped("orders", 1)
        listener.dead_lettered(an_event(letter, description=ERROR))
        listener.dead_lettered(an_event(letter, error=ERROR, lost=True))
        listener.paused("orders", f"the broker said: {ERROR}")
        listener.resumed("orders")
        listener.too_late("orders", 1)
        listener.failed("orders", "callback pager", error)
        listener.failed("orders", f"broker {ERROR}", error)

    # Then each has told of it, and no secret is in what it told
    told = overheard.everything()
    assert 'callback_failures_total{queue_name="orders"} 1.0' in told["metrics"]
    assert "cannot reach postgres://shop:[REDACTED:url-password]@db-1/orders" in told["spans"]
    for name in overheard.lines:
        assert "cannot reach postgres://shop:[REDACTED:url-password]@db-1/orders" in told[name]
        assert "in boom" in told[name], "the traceback of what is told nowhere else"
    found = [(name, secret) for name, text in told.items() for secret in SECRETS if secret in text]
    assert found == []


class UntellableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def test_an_error_without_a_text_and_odd_ids_hurt_nobody(overheard: Overheard) -> None:
    odd: Any = "a\x00b\ud800c\nd"
    letter = a_letter(message=a_message(message_id=odd, correlation_id=odd), source=odd, reason=odd)
    delivery = ADelivery(a_message(message_id=odd, headers=Headers({"traceparent": odd})), source=odd)
    for listener in overheard.listeners:
        listener.received(odd, 1)
        held = listener.processing(odd, delivery, 1, odd)
        if held is not None:
            with pytest.raises(UntellableError), held:
                raise UntellableError
        if isinstance(held := listener.processing(odd, delivery, 2, odd), Attempt):
            with held:
                held.failed(a_failure(odd, stack=odd, error_type=odd))
        listener.dead_lettered(an_event(letter, error=odd))
        listener.dead_lettered(an_event(letter))
        listener.failed(odd, odd, UntellableError())
    told = overheard.everything()
    assert "(the error has no text)" in told["spans"]
    assert "(the error has no text)" in told["json"]
    assert "messages_received_total" in told["metrics"]
    spans = overheard.exporter.get_finished_spans()
    attributes = [
        given for span in spans for given in (span.attributes, *(each.attributes for each in span.events))
    ]
    texts = [value for given in attributes for value in (given or {}).values() if isinstance(value, str)]
    assert len(texts) > 20
    assert [text for text in texts if storable(text) != text] == [], "an exporter could not encode it"
    assert "\nd" not in told["text"], "nobody begins a line of another's"
    assert "\ud800" not in told["text"], "a stream could not write it"
    assert len(told["json"].splitlines()) == told["json"].count('{"time"'), "one line each, whatever is in it"
