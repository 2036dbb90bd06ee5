"""What Prometheus reads is what was heard, under the names of the seeds (E10)."""

import re
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from redrive.errors import ConsumerTimeoutError, SettingsError
from redrive.testing.factories import a_failure
from redrive.watch.metrics import MOST_ERROR_TYPES, MOST_REASONS, Metrics
from tests.unit.watch.deliveries import ADelivery, an_event


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


@pytest.fixture
def text(registry: CollectorRegistry) -> Callable[[], str]:
    return lambda: generate_latest(registry).decode()


def samples(text: str) -> dict[str, float]:
    """Every line that is no comment."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_everything_heard_is_counted_under_its_name(metrics: Metrics, text: Callable[[], str]) -> None:
    # Given a consumer that told of all there is
    delivery, failure = ADelivery(), a_failure()
    metrics.received("orders", 16)
    metrics.received("orders", 4)
    metrics.completed("orders", 12)
    metrics.retrying("orders", delivery, 1, failure, timedelta(seconds=1))
    metrics.given_back("orders", delivery, None, None)
    metrics.skipped("orders", 4)
    metrics.given_back("orders", delivery, timedelta(seconds=5), failure)
    metrics.dead_lettered(an_event())
    metrics.dead_lettered(an_event(reason="PoisonMessage", failure=a_failure(error_type="Crash")))
    metrics.dead_lettered(an_event(source="payments"))
    metrics.dead_lettered(an_event(error="no route"))
    metrics.dead_lettered(an_event(error="no route", lost=True))
    metrics.too_late("orders", 3)
    metrics.paused("payments", "the broker refuses dead letters")
    metrics.failed("orders", "callback pager", ValueError("no"))
    metrics.failed("orders", "callbacks", RuntimeError("no"))
    metrics.failed("orders", "broker", OSError("gone"))
    metrics.failed("orders", "acknowledgement", ConsumerTimeoutError("30 minutes"))

    # When Prometheus comes
    found = samples(text())

    # Then it reads exactly this of the one queue, and of all together
    orders = {name: value for name, value in found.items() if "payments" not in name}
    assert orders == {
        'messages_received_total{queue_name="orders"}': 20,
        'messages_processed_total{queue_name="orders"}': 12,
        'messages_retried_total{queue_name="orders"}': 1,
        'messages_requeued_total{queue_name="orders"}': 2,
        'messages_skipped_total{queue_name="orders"}': 4,
        'messages_settled_late_total{queue_name="orders"}': 3,
        'messages_deadlettered_total{queue_name="orders",reason="PoisonMessage"}': 1,
        'messages_deadlettered_total{queue_name="orders",reason="NonRetryableError"}': 1,
        'messages_deadlettered_total{queue_name="orders",reason="MaxDeliveryCountExceeded"}': 0,
        "dlq_messages_total": 3,
        'dlq_messages_by_error_type{error_type="TimeoutError"}': 2,
        'dlq_messages_by_error_type{error_type="Crash"}': 1,
        'dlq_messages_by_topic{original_topic="orders"}': 2,
        "dlq_publish_failures_total": 2,
        "dlq_lost_total": 1,
        'source_paused{queue_name="orders"}': 0,
        'dlq_publish_failures_in_a_row{queue_name="orders"}': 2,
        'callback_failures_total{queue_name="orders"}': 2,
        'consumer_timeouts_total{queue_name="orders"}': 1,
        'consumer_errors_total{queue_name="orders"}': 1,
    }
    assert found['source_paused{queue_name="payments"}'] == 1
    assert found['dlq_messages_by_topic{original_topic="payments"}'] == 1


def test_a_source_that_goes_on_is_no_longer_paused(metrics: Metrics, text: Callable[[], str]) -> None:
    metrics.paused("orders", "breaker")
    metrics.resumed("orders")
    assert samples(text())['source_paused{queue_name="orders"}'] == 0


def test_alerts_have_something_to_start_from_before_anything_happens(
    metrics: Metrics, text: Callable[[], str]
) -> None:
    found = samples(text())
    assert found == {"dlq_messages_total": 0, "dlq_publish_failures_total": 0, "dlq_lost_total": 0}
    metrics.received("orders", 1)
    assert samples(text())['messages_deadlettered_total{queue_name="orders",reason="PoisonMessage"}'] == 0


def test_the_text_is_what_prometheus_own_parser_understands(
    metrics: Metrics, registry: CollectorRegistry, text: Callable[[], str]
) -> None:
    metrics.received('or"de\\rs\n', 1)
    metrics.dead_lettered(an_event())
    kinds = {family.name: family.type for family in text_string_to_metric_families(text())}
    assert kinds["messages_received"] == "counter"
    assert kinds["dlq_messages_by_error_type"] == kinds["dlq_messages_by_topic"] == "unknown"
    assert kinds["source_paused"] == "gauge"
    modern: str = generate_openmetrics(registry).decode()  # type: ignore[no-untyped-call]
    assert 'dlq_messages_by_error_type{error_type="TimeoutError"} 1.0' in modern
    assert modern.endswith("# EOF\n")


def test_more_error_types_than_can_be_told_apart_are_other(metrics: Metrics, text: Callable[[], str]) -> None:
    for number in range(MOST_ERROR_TYPES + 50):
        metrics.dead_lettered(an_event(failure=a_failure(error_type=f"Error{number}")))
    metrics.dead_lettered(an_event(failure=a_failure(error_type="Error7")))
    by_type = {name: value for name, value in samples(text()).items() if "by_error_type" in name}
    assert len(by_type) == MOST_ERROR_TYPES + 1
    assert by_type['dlq_messages_by_error_type{error_type="other"}'] == 50
    assert by_type['dlq_messages_by_error_type{error_type="Error7"}'] == 2, "a known one stays known"
    assert sum(by_type.values()) == samples(text())["dlq_messages_total"] == MOST_ERROR_TYPES + 51


def test_reasons_that_handlers_make_up_are_bounded_too(metrics: Metrics, text: Callable[[], str]) -> None:
    for number in range(MOST_REASONS + 10):
        metrics.dead_lettered(an_event(reason=f"order {number} is odd"))
    metrics.dead_lettered(an_event(reason="x" * 5_000))
    assert samples(text())['messages_deadlettered_total{queue_name="orders",reason="other"}'] == 11
    assert "xxxxx" not in text()


def test_a_second_metrics_on_one_registry_is_refused_in_one_line(registry: CollectorRegistry) -> None:
    first = Metrics(registry)
    with pytest.raises(
        SettingsError, match=r"^this Prometheus registry already has .* separate registry for each$"
    ):
        Metrics(registry)
    first.close()
    Metrics(registry)


def test_counts_from_many_threads_are_whole_while_somebody_scrapes(
    metrics: Metrics, registry: CollectorRegistry, text: Callable[[], str]
) -> None:
    begin = threading.Barrier(5)
    event = an_event()

    def count(number: int) -> None:
        begin.wait()
        for turn in range(2_000):
            metrics.received(f"queue-{number}-{turn % 20}", 1)
            metrics.completed("shared", 1)
            metrics.dead_lettered(event)

    threads = [threading.Thread(target=count, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    begin.wait()
    seen = [samples(text()).get("dlq_messages_total", 0.0) for _ in range(10)]
    for thread in threads:
        thread.join()
    found = samples(text())
    assert seen == sorted(seen)
    assert found['messages_processed_total{queue_name="shared"}'] == 8_000
    assert found["dlq_messages_total"] == 8_000
    assert sum(value for name, value in found.items() if re.match("messages_received_total", name)) == 8_000
