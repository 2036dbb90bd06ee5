"""Names, texts and thresholds that operators rely on: dashboards, runbooks and filters are built on them.

They are listed here once. A change to one of them breaks what others have built, so it needs a reason in the changelog.
"""

import pytest

from redrive.watch.alerts.alert import Severity
from redrive.watch.alerts.rules import RULES

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
