"""Names, texts and thresholds that operators rely on: dashboards, runbooks and filters are built on them.

They are listed here once. A change to one of them breaks what others have built, so it needs a reason in the changelog.
"""

from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from redrive.letters import LetterState
from redrive.rules.decide import Reason
from redrive.settings import read
from redrive.testing.factories import a_failure
from redrive.watch.alerts.alert import Severity
from redrive.watch.alerts.rules import RULES
from redrive.watch.metrics import Metrics
from tests.unit.watch.deliveries import an_event

RULE = {rule.name: rule for rule in RULES}
WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


def test_text_of_a_message_that_needs_a_person_is_fixed() -> None:
    text = RULE["dead-letter"].told("orders", 3, 0, "orders.dlq", "Manual intervention required.")
    assert text == "1 or more messages found in Dead-Letter Queue orders.dlq. Manual intervention required."


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        # depth of a dead-letter queue, and its share of all messages
        ("dlq-depth", 100, None),
        ("dlq-depth", 101, WARNING),
        ("dlq-depth", 1000, WARNING),
        ("dlq-depth", 1001, CRITICAL),
        ("dead-letter-ratio", 0.10, None),
        ("dead-letter-ratio", 0.1001, CRITICAL),
        # any message in a dead-letter queue, and a probe that fails
        ("dead-letter", 0, None),
        ("dead-letter", 1, CRITICAL),
        ("probe-failed", 0, None),
        ("probe-failed", 1, CRITICAL),
        # 1 % and 5 % of the throughput, one error type, a dead letter that could not be published
        ("recent-dead-letter-ratio", 0.01, None),
        ("recent-dead-letter-ratio", 0.0101, WARNING),
        ("recent-dead-letter-ratio", 0.05, WARNING),
        ("recent-dead-letter-ratio", 0.0501, CRITICAL),
        ("error-spike", 5, None),
        ("error-spike", 5.1, WARNING),
        ("dead-letter-publish-failed", 0, None),
        ("dead-letter-publish-failed", 1, CRITICAL),
        # 100 letters in a minute, 10,000 open ones, less than half of them resolved
        ("ingestion-rate", 100, None),
        ("ingestion-rate", 101, WARNING),
        ("backlog", 10_000, None),
        ("backlog", 10_001, CRITICAL),
        ("resolution-rate", 0.5, None),
        ("resolution-rate", 0.49, WARNING),
        # a minute without a collector
        ("dlq-uncollected", 60, None),
        ("dlq-uncollected", 61, CRITICAL),
    ],
)
def test_threshold_is_fixed(name: str, value: float, severity: Severity | None) -> None:
    judged = RULE[name].judged(value)
    assert (judged and judged[0]) == severity


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dead-letter-ratio", "orders: 12 % of messages were dead-lettered (threshold 10 %)"),
        ("recent-dead-letter-ratio", "orders: 12 % of recent messages were dead-lettered (threshold 5 %)"),
    ],
)
def test_ratio_is_reported_in_percent(name: str, text: str) -> None:
    judged = RULE[name].judged(0.12)
    assert judged is not None
    assert RULE[name].told("orders", 0.12, judged[1]) == text


def test_severities_are_fixed() -> None:
    assert [*Severity] == ["warning", "critical"]
    assert RULE["dead-letter"].judged(1) == (CRITICAL, 0)


@pytest.mark.parametrize(
    "line",
    [
        'messages_deadlettered_total{queue_name="orders",reason="PoisonMessage"} 1.0',
        "dlq_messages_total 1.0",
        'dlq_messages_by_error_type{error_type="ValueError"} 1.0',
        'dlq_messages_by_topic{original_topic="orders"} 1.0',
        "dlq_publish_failures_total 0.0",
    ],
)
def test_name_of_a_metric_is_fixed(line: str) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.dead_lettered(an_event(reason="PoisonMessage", failure=a_failure(error_type="ValueError")))
    assert line in generate_latest(registry).decode().splitlines()


def test_reasons_and_states_are_fixed() -> None:
    assert {*Reason} >= {"PoisonMessage", "NonRetryableError", "MaxDeliveryCountExceeded"}
    assert [*LetterState] == [
        "dlq_pending",
        "dlq_processing",
        "dlq_manual",
        "dlq_resolved",
        "dlq_failed",
        "dlq_archived",
    ]


def test_defaults_are_fixed() -> None:
    settings = read({})
    assert settings.alerts.probe_interval == timedelta(seconds=60)
    assert (settings.recover.max_cpu, settings.recover.max_memory) == (0.80, 0.85)
    assert settings.recover.max_redrives == 5
    days = (settings.retention.resolved, settings.retention.failed, settings.retention.archived)
    assert days == (timedelta(days=30), timedelta(days=90), timedelta(days=365))
