"""A consumer on a real broker is watched: figures, spans and lines agree with what lies in the queues.

The messages come from pika, which knows nothing of redrive; how many dead letters there are is asked of the broker.
"""

import asyncio
import io
import json
import logging
import os
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random
from typing import Any

import pika
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from redrive.clock import SystemClock
from redrive.consume import ConsumeOptions, Consumer, Context, Handler, Observer, Subscription
from redrive.letters import Message
from redrive.letters.event import DeadLettered
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, Fixed
from redrive.transports import Publication, Source, Target, open_transport
from redrive.watch.logs import JsonFormatter, Logs
from redrive.watch.metrics import Metrics, MetricsServer, serve_metrics
from redrive.watch.silent import Silent
from redrive.watch.tracing import DEAD_LETTER, PROCESS_MESSAGES, PROCESS_SINGLE, Tracing, inject
from tests.interop.brokers import BROKERS
from tests.services import RabbitMQ, Run

SECRETS = ("hunter2-Xy9", "s3cr3t-Header", "s3cr3t-Body")


class Watched:
    """Everything that listens, and what it has told."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.metrics = Metrics(registry)
        self.server: MetricsServer = serve_metrics(0, registry=registry)
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(provider)
        self.stream = io.StringIO()
        handler = logging.StreamHandler(self.stream)
        handler.setFormatter(JsonFormatter())
        self.logger = logging.getLogger("tests.watched")
        self.logger.handlers[:] = [handler]
        self.logger.propagate = False
        self.logger.setLevel(logging.INFO)
        self.logs = Logs(self.logger)
        self.listeners: list[Observer] = [self.metrics, self.tracing, self.logs]

    def scrape(self) -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.server.url, timeout=10) as response:
            return str(response.read(), "utf-8")

    def figures(self) -> dict[tuple[str, ...], float]:
        """Name and values of labels → figure, as Prometheus' own parser reads them."""
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(self.scrape())
            for sample in family.samples
        }

    def spans(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def lines(self) -> list[dict[str, Any]]:
        self.logs.close()
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.service(name)) for name in BROKERS])
def broker(request: pytest.FixtureRequest, service_run: Run) -> Iterator[RabbitMQ]:
    """A fresh vhost, on a RabbitMQ and on the embedded broker in turn."""
    with service_run.address(BROKERS[request.param], os.environ).fresh() as vhost:
        yield vhost


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.server.close()
    watched.logger.handlers.clear()


@asynccontextmanager
async def consuming(
    url: str,
    handler: Callable[..., Any],
    source: Source,
    options: ConsumeOptions,
    *observers: Observer,
) -> AsyncIterator[Any]:
    """A consumer that runs, with all listeners; gives its transport."""
    async with open_transport(url) as transport:
        await transport.provision([source])
        consumer = Consumer(
            transport,
            [Subscription(Handler.of(handler), source, options)],
            clock=SystemClock(),
            classifier=Classifier(),
            redactor=Redactor(),
            observers=observers,
        )
        running = asyncio.create_task(consumer.run())
        try:
            yield transport
        finally:
            consumer.stop()
            await asyncio.wait_for(running, 30)


class Enough(Silent):
    """Hears when so many messages are done for good."""

    def __init__(self, messages: int) -> None:
        self._left = messages
        self._reached = asyncio.Event()

    def completed(self, source: str, count: int) -> None:
        self._done(count)

    def dead_lettered(self, event: DeadLettered) -> None:
        self._done(event.durable)

    def _done(self, count: int) -> None:
        self._left -= count
        if self._left <= 0:
            self._reached.set()

    async def wait(self) -> None:
        await asyncio.wait_for(self._reached.wait(), 60)


def publish(url: str, queue: str, messages: list[tuple[bytes, dict[str, Any]]]) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number, (body, headers) in enumerate(messages):
            properties = pika.BasicProperties(headers=headers, message_id=f"m-{number}", delivery_mode=2)
            channel.basic_publish("", queue, body, properties)


def depth(url: str, queue: str) -> int:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def parent_of(number: int) -> str:
    return f"00-{number + 1:032x}-{number + 1:016x}-01"


async def test_figures_spans_and_lines_agree_with_the_queues(broker: RabbitMQ, watched: Watched) -> None:
    # Given messages of which some are processed, some are given up and some are given back once
    kinds = ["fine", "bad", "flaky", "asked"]
    random = Random(7)
    sent = [random.choice(kinds) for _ in range(200)]
    bodies = [json.dumps({"kind": kind, "password": SECRETS[2]}).encode() for kind in sent]
    source = Source(name="orders", window=20)
    options = ConsumeOptions(attempts=2, backoff=Fixed(timedelta(0)), breaker=None)
    good, bad = len(sent) - sent.count("bad"), sent.count("bad")
    enough = Enough(good + bad)
    returned: set[str | None] = set()

    async def handle(context: Context) -> None:
        kind = json.loads(context.message.body or b"")["kind"]
        if kind == "bad":
            raise PermissionError(f"denied for postgres://shop:{SECRETS[0]}@db/orders")
        if kind == "flaky" and context.attempt == 1:
            raise ConnectionResetError("the line was cut")
        if kind == "asked" and context.message.message_id not in returned:
            returned.add(context.message.message_id)
            context.requeue()

    # When a consumer has worked through them
    async with consuming(broker.amqp_url, handle, source, options, *watched.listeners, enough):
        headers = [{"authorization": f"Bearer {SECRETS[1]}", "traceparent": parent_of(n)} for n in range(200)]
        await asyncio.to_thread(publish, broker.amqp_url, "orders", list(zip(bodies, headers, strict=True)))
        await enough.wait()
    lying = await asyncio.to_thread(depth, broker.amqp_url, "orders.dlq")
    left = await asyncio.to_thread(depth, broker.amqp_url, "orders")

    # Then the figures are those of the queues
    figures = watched.figures()
    assert (left, lying) == (0, bad)
    assert figures["dlq_messages_total",] == figures["dlq_messages_by_topic", "orders"] == lying
    assert figures["messages_deadlettered_total", "orders", "NonRetryableError"] == lying
    assert figures["dlq_messages_by_error_type", "PermissionError"] == lying
    assert figures["messages_processed_total", "orders"] == good
    assert figures["messages_retried_total", "orders"] == sent.count("flaky")
    assert figures["messages_requeued_total", "orders"] == sent.count("asked")
    assert figures["messages_received_total", "orders"] == len(sent) + sent.count("asked")
    assert figures["dlq_publish_failures_total",] == figures["dlq_lost_total",] == 0

    # And each message is traced in the trace that it came with, to its dead letter
    attempts, deaths = watched.spans(PROCESS_SINGLE), watched.spans(DEAD_LETTER)
    traces = {span.context.trace_id for span in attempts}
    assert traces == set(range(1, 201))
    assert len(attempts) == len(sent) + sent.count("flaky") + sent.count("asked")
    assert {span.context.trace_id for span in deaths} == {
        number + 1 for number, kind in enumerate(sent) if kind == "bad"
    }
    assert {span.parent.span_id for span in deaths} <= {span.context.span_id for span in attempts}
    assert (
        sum(span.attributes["messaging.batch.message_count"] for span in watched.spans(PROCESS_MESSAGES))
        == (figures["messages_received_total", "orders"])
    )

    # And the lines tell each dead letter once, written or counted
    lines = watched.lines()
    told = [line for line in lines if line["message"].startswith("Published failed message to DLQ")]
    assert sum(line.get("suppressed", 1) for line in told) == lying
    assert any(line["message"].startswith("Non-retryable error for message: MessageId=m-") for line in lines)

    # And nobody has told a secret
    spans = "".join(span.to_json() for span in watched.exporter.get_finished_spans())
    everything = {"metrics": watched.scrape(), "spans": spans, "lines": watched.stream.getvalue()}
    assert [
        (where, secret) for where, text in everything.items() for secret in SECRETS if secret in text
    ] == []
    assert "denied for postgres://shop:[REDACTED:url-password]@db/orders" in spans


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
async def test_what_a_handler_sends_on_stays_in_the_trace(
    broker: RabbitMQ, watched: Watched, is_async: bool
) -> None:
    # Given a handler that sends what it got to another queue, on the loop or in a thread
    first, second = Source(name="first"), Source(name="second")
    waiting: asyncio.Queue[Any] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def pass_on(context: Context) -> None:
        message = context.message
        sent = (message.body, inject(message.headers), trace.get_current_span().get_span_context().span_id)
        loop.call_soon_threadsafe(waiting.put_nowait, sent)

    async def pass_on_async(context: Context) -> None:
        pass_on(context)

    # When a message of a trace goes through it
    handler = pass_on_async if is_async else pass_on
    async with consuming(broker.amqp_url, handler, first, ConsumeOptions(), *watched.listeners) as transport:
        await transport.provision([second])
        await asyncio.to_thread(publish, broker.amqp_url, "first", [(b"1", {"traceparent": parent_of(6)})])
        async with asyncio.timeout(30):
            body, headers, span_id = await waiting.get()
        assert await transport.depth("second") == 0
        outcomes = await transport.publish(
            [Publication(Message(body=body, headers=headers), Target(name="second"))]
        )
        assert outcomes == [None]
        [arrived] = await transport.peek("second", 1)

    # Then it arrives at the other queue as a child of the handler's span, in the same trace
    assert arrived.headers.text("traceparent") == f"00-{7:032x}-{span_id:016x}-01"
    [attempt] = watched.spans(PROCESS_SINGLE)
    assert (attempt.context.span_id, attempt.context.trace_id) == (span_id, 7)


class Refusals(Silent):
    """Hears of the first dead letter that is not durable."""

    def __init__(self) -> None:
        self.first = asyncio.Event()

    def dead_lettered(self, event: DeadLettered) -> None:
        if not event.durable:
            self.first.set()


def delete_queue(url: str, queue: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        connection.channel().queue_delete(queue)


async def refuse(context: Context) -> None:
    raise PermissionError("denied")


async def test_a_dead_letter_that_finds_no_queue_is_seen_until_it_has_one(
    broker: RabbitMQ, watched: Watched
) -> None:
    # Given a consumer whose dead-letter queue somebody has deleted
    source, options = Source(name="orders"), ConsumeOptions(attempts=1, breaker=None)
    refusals, enough = Refusals(), Enough(1)
    heard = (*watched.listeners, refusals, enough)
    async with consuming(broker.amqp_url, refuse, source, options, *heard) as transport:
        await asyncio.to_thread(delete_queue, broker.amqp_url, source.dlq)
        # When a message is given up, and the queue is made anew a little later
        await asyncio.to_thread(publish, broker.amqp_url, "orders", [(b"1", {"traceparent": parent_of(0)})])
        await asyncio.wait_for(refusals.first.wait(), 30)
        before = watched.figures()
        await transport.provision([source])
        await enough.wait()
    # Then both is counted, each for itself
    figures = watched.figures()
    assert before["dlq_publish_failures_total",] >= 1
    assert before["dlq_messages_total",] == before["dlq_lost_total",] == figures["dlq_lost_total",] == 0
    assert figures["dlq_messages_total",] == 1
    assert await asyncio.to_thread(depth, broker.amqp_url, source.dlq) == 1
    # And traced: what failed is an error, what succeeded is none
    codes = [span.status.status_code for span in watched.spans(DEAD_LETTER)]
    assert codes[-1] is trace.StatusCode.UNSET
    assert set(codes[:-1]) == {trace.StatusCode.ERROR}
    assert len(codes) - 1 == figures["dlq_publish_failures_total",]
    # And logged
    failed = [
        line for line in watched.lines() if line["message"] == "Failed to publish to DLQ topic orders.dlq"
    ]
    assert len(failed) == len(codes) - 1
    assert failed[0]["dlq_error"]


async def test_what_best_effort_has_lost_is_counted_as_lost(broker: RabbitMQ, watched: Watched) -> None:
    source, options = Source(name="orders"), ConsumeOptions(attempts=1, breaker=None, best_effort=True)
    refusals = Refusals()
    async with consuming(broker.amqp_url, refuse, source, options, *watched.listeners, refusals):
        await asyncio.to_thread(delete_queue, broker.amqp_url, source.dlq)
        await asyncio.to_thread(publish, broker.amqp_url, "orders", [(b"1", {})])
        await asyncio.wait_for(refusals.first.wait(), 30)
    figures = watched.figures()
    assert figures["dlq_lost_total",] == figures["dlq_publish_failures_total",] == 1
    assert figures["dlq_messages_total",] == 0
    assert await asyncio.to_thread(depth, broker.amqp_url, "orders") == 0
    lost = "Message lost, settled without a dead letter: MessageId=m-0, Error="
    assert any(line["message"].startswith(lost) for line in watched.lines())
