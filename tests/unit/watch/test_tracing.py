"""Spans have the names and attributes of seed 000 and belong to the trace of whoever sent the message (G4)."""

import subprocess
import sys
from datetime import timedelta

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

from redrive.letters import Headers, HeaderValue
from redrive.testing.factories import LONG_AGO, a_failure, a_letter, a_message
from redrive.watch.tracing import DEAD_LETTER, PROCESS_MESSAGES, PROCESS_SINGLE, Attempt, Tracing, inject
from tests.unit.watch.deliveries import ADamagedDelivery, ADelivery, an_event

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def tracing(provider: TracerProvider) -> Tracing:
    return Tracing(provider)


def carrying(**headers: HeaderValue) -> ADelivery:
    return ADelivery(a_message(message_id="message-1", headers=Headers(headers)), count=2)


def open_span(
    tracing: Tracing, delivery: ADelivery, attempt: int = 1, correlation_id: str = "trace-1"
) -> Attempt:
    held = tracing.processing("orders", delivery, attempt, correlation_id)
    assert held is not None
    return held


def only(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    [span] = [span for span in exporter.get_finished_spans() if span.name == name]
    return span


def ids(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


# --- an attempt ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [PARENT, PARENT.encode()], ids=["text", "bytes"])
def test_an_attempt_is_a_child_of_the_span_that_sent_the_message(
    tracing: Tracing, exporter: InMemorySpanExporter, value: HeaderValue
) -> None:
    # Given a message from a trace
    delivery = carrying(traceparent=value, tracestate="vendor=abc,other=1")
    # When a handler has run
    with open_span(tracing, delivery, attempt=2):
        assert trace.format_trace_id(trace.get_current_span().get_span_context().trace_id) == TRACE
    # Then its span is part of it
    span = only(exporter, PROCESS_SINGLE)
    assert span.parent is not None
    assert span.parent.is_remote
    assert (ids(span)[0], trace.format_span_id(span.parent.span_id)) == (TRACE, SPAN)
    assert span.parent.trace_state.to_header() == "vendor=abc,other=1"
    assert span.kind is SpanKind.CONSUMER
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        "message.id": "message-1",
        "delivery.count": 2,
        "queue.name": "orders",
        "redrive.attempt": 2,
        "messaging.system": "rabbitmq",
        "messaging.message.conversation_id": "trace-1",
    }
    assert trace.get_current_span() is trace.INVALID_SPAN, "nothing is left open"


def test_what_azures_clients_send_is_understood(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    with open_span(tracing, carrying(**{"Diagnostic-Id": PARENT})):
        pass
    assert ids(only(exporter, PROCESS_SINGLE))[0] == TRACE


def test_a_message_without_a_trace_begins_its_own_whatever_is_current(
    tracing: Tracing, provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    with provider.get_tracer("app").start_as_current_span("start of the service") as around:
        with open_span(tracing, carrying()):
            pass
        span = only(exporter, PROCESS_SINGLE)
        assert span.parent is None
        assert ids(span)[0] != trace.format_trace_id(around.get_span_context().trace_id)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "hello",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"{PARENT}-more",
        f"{PARENT}\n",
        "x" * 100_000,
        b"\xff\xfe",
        17,
        None,
        ("00",),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_parent_that_is_none_is_passed_over_in_silence(
    tracing: Tracing,
    exporter: InMemorySpanExporter,
    caplog: pytest.LogCaptureFixture,
    value: HeaderValue,
) -> None:
    with open_span(tracing, carrying(traceparent=value)):
        pass
    assert only(exporter, PROCESS_SINGLE).parent is None
    assert caplog.records == []


def test_a_parent_of_a_later_version_may_have_more_parts(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    with open_span(tracing, carrying(traceparent=f"01-{TRACE}-{SPAN}-01-what-may-come")):
        pass
    assert ids(only(exporter, PROCESS_SINGLE))[0] == TRACE


@pytest.mark.parametrize(
    "state",
    [
        "no pair",
        "a=1,a=2",
        "A=1",
        "a=" + "x" * 600,
        "a=password=hunter2x9",
        "a=1," * 0 + ",".join(f"k{n}=1" for n in range(33)),
    ],
    ids=lambda state: state[:20],
)
def test_a_bad_tracestate_is_dropped_in_silence_and_the_parent_stays(
    tracing: Tracing, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    with open_span(tracing, carrying(traceparent=PARENT, tracestate=state)):
        pass
    span = only(exporter, PROCESS_SINGLE)
    assert span.parent is not None
    assert not span.parent.trace_state
    assert caplog.records == []


def test_an_error_that_ends_an_attempt_is_on_its_span(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(ValueError, match="hunter2x9"), open_span(tracing, carrying()):
        raise ValueError("password=hunter2x9 is wrong")
    span = only(exporter, PROCESS_SINGLE)
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "password=[REDACTED:password] is wrong"
    [event] = span.events
    found = dict(event.attributes or {})
    assert (event.name, found["exception.type"]) == ("exception", "ValueError")
    assert found["exception.message"] == "password=[REDACTED:password] is wrong"
    assert "test_an_error_that_ends" in str(found["exception.stacktrace"])
    assert "hunter2x9" not in span.to_json()


def test_a_failure_that_somebody_else_has_caught_is_on_its_span(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    with open_span(tracing, carrying()) as attempt:
        attempt.failed(a_failure(stack="in ship, line 7"))
    span = only(exporter, PROCESS_SINGLE)
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "External API timeout after 5000ms"
    assert dict(span.events[0].attributes or {})["exception.stacktrace"] == "in ship, line 7"


class AskedError(BaseException):
    pass


def test_a_signal_is_no_error(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    with pytest.raises(AskedError), open_span(tracing, carrying()):
        raise AskedError
    assert only(exporter, PROCESS_SINGLE).status.status_code is StatusCode.UNSET


def test_a_message_that_cannot_be_read_is_not_traced_and_not_stopped(tracing: Tracing) -> None:
    assert tracing.processing("orders", ADamagedDelivery(), 1, "trace-1") is None


def test_what_is_not_sampled_is_not_recorded_and_says_so_to_the_next(exporter: InMemorySpanExporter) -> None:
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider)
    with open_span(tracing, carrying(traceparent=f"00-{TRACE}-{SPAN}-00")):
        sent = inject(Headers())
    assert exporter.get_finished_spans() == ()
    parent = sent.text("traceparent") or ""
    assert parent.startswith(f"00-{TRACE}-")
    assert parent.endswith("-00")


# --- a turn and a dead letter ----------------------------------------------------------------------------


def test_attempts_are_linked_to_the_turn_of_the_loop_before_them(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    tracing.received("orders", 16)
    turn = only(exporter, PROCESS_MESSAGES)
    assert dict(turn.attributes or {}) == {"queue.name": "orders", "messaging.batch.message_count": 16}
    with open_span(tracing, carrying(traceparent=PARENT)):
        pass
    [link] = only(exporter, PROCESS_SINGLE).links
    assert link.context == turn.get_span_context()


def test_a_dead_letter_is_a_child_of_the_last_attempt(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    # Given a message that failed twice
    message = a_message(message_id="m-17", headers=Headers({"traceparent": PARENT}))
    letter = a_letter(message=message, correlation_id="trace-17")
    for attempt in (1, 2):
        with open_span(tracing, ADelivery(message), attempt, "trace-17"):
            pass
    # When its dead letter is durable
    tracing.dead_lettered(an_event(letter))
    # Then that is in the same trace, as long as it took
    span = only(exporter, DEAD_LETTER)
    last = exporter.get_finished_spans()[1]
    assert span.parent == last.get_span_context()
    assert ids(span)[0] == TRACE
    assert span.kind is SpanKind.PRODUCER
    assert span.status.status_code is StatusCode.UNSET
    assert span.start_time == int(LONG_AGO.timestamp()) * 10**9
    assert span.end_time == int(LONG_AGO.timestamp()) * 10**9 + 250_000_000
    assert dict(span.attributes or {}) == {
        "message.id": "m-17",
        "delivery.count": 3,
        "queue.name": "orders",
        "dlq.reason": "NonRetryableError",
        "dlq.error_description": "External API timeout after 5000ms",
        "dlq.name": "orders.dlq",
        "error.type": "TimeoutError",
        "redrive.letter_id": letter.id,
        "redrive.lost": False,
        "messaging.message.conversation_id": "trace-17",
    }


def test_a_dead_letter_that_is_not_durable_is_an_error(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    tracing.dead_lettered(an_event(error="no queue for amqp://u:hunter2x9@h/", lost=True))
    span = only(exporter, DEAD_LETTER)
    assert span.parent is None, "nobody has seen it before"
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "no queue for amqp://u:[REDACTED:url-password]@h/"
    assert dict(span.attributes or {})["redrive.lost"] is True


def test_a_failure_told_with_a_later_clock_does_not_turn_time_round(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    tracing.dead_lettered(an_event(at=LONG_AGO - timedelta(seconds=5)))
    span = only(exporter, DEAD_LETTER)
    assert span.start_time == span.end_time


def test_attempts_that_were_long_ago_are_forgotten(tracing: Tracing) -> None:
    for number in range(5_000):
        with open_span(tracing, carrying(), correlation_id=f"trace-{number}"):
            pass
    assert len(tracing._attempts) == 4_096


# --- who traces nothing ----------------------------------------------------------------------------------


def test_without_an_sdk_nothing_is_held_open() -> None:
    for tracing in (Tracing(), Tracing(NoOpTracerProvider())):
        assert not tracing.traces
        tracing.received("orders", 1)
        assert tracing.processing("orders", carrying(), 1, "trace-1") is None
        tracing.dead_lettered(an_event())


LATER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from redrive.watch.tracing import Tracing
tracing = Tracing()
before = tracing.traces
trace.set_tracer_provider(TracerProvider())
print(before, tracing.traces)
"""


@pytest.mark.parametrize(
    ("environ", "printed"), [({}, "False True\n"), ({"OTEL_SDK_DISABLED": "true"}, "False False\n")]
)
def test_the_processes_own_provider_is_found_when_consuming_starts(
    environ: dict[str, str], printed: str
) -> None:
    assert python(LATER, environ) == (printed, "")


def test_a_provider_that_the_environment_names_wrongly_is_said_so_in_one_line() -> None:
    code = """
from redrive.errors import SettingsError
from redrive.watch.tracing import Tracing
try:
    Tracing()
except SettingsError as error:
    print(error)
"""
    out, _ = python(code, {"OTEL_PYTHON_TRACER_PROVIDER": "nobody"})
    assert out.startswith("the tracer provider of the environment cannot be used: ")
    assert out.count("\n") == 1


def test_without_opentelemetry_it_is_said_what_to_install() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
try:
    import redrive.watch.tracing
except Exception as error:
    print(type(error).__name__, error)
"""
    assert python(code) == (
        "ServiceError tracing needs OpenTelemetry; install it with: pip install 'redrive[otel]'\n",
        "",
    )


def python(code: str, environ: dict[str, str] | None = None) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environ or {},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout, done.stderr


# --- sending on ------------------------------------------------------------------------------------------


def test_without_a_trace_headers_stay_as_they_are() -> None:
    headers = Headers({"a": 1, "traceparent": PARENT})
    assert inject(headers) is headers


def test_headers_sent_from_a_handler_carry_its_span(tracing: Tracing, exporter: InMemorySpanExporter) -> None:
    with open_span(tracing, carrying(traceparent=PARENT, tracestate="vendor=abc")):
        sent = inject(Headers([("a", 1), ("traceparent", b"old"), ("b", 2), ("tracestate", "old=1")]))
    span = ids(only(exporter, PROCESS_SINGLE))[1]
    assert sent == Headers(
        [("a", 1), ("traceparent", f"00-{TRACE}-{span}-01".encode()), ("b", 2), ("tracestate", "vendor=abc")]
    ), "in place, bytes stay bytes"


def test_the_state_of_another_trace_does_not_travel_on(tracing: Tracing) -> None:
    with open_span(tracing, carrying(traceparent=PARENT)):
        sent = inject(Headers({"tracestate": "old=1"}))
    assert sent.names() == {"traceparent"}
