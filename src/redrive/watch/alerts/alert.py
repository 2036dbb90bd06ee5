"""Alerts: what is sent about an incident.

An alert says that an incident was raised, has become worse, continues, was not acknowledged, or is over. All alerts of
an incident have its id, so receivers can group them.

An alert consists of names, numbers and ids. It contains nothing of a message or an error text, so it discloses no
personal data.
"""

from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

import msgspec

Number: TypeAlias = int | float  # counts are integers, averages are not


class Severity(StrEnum):
    """The severity of an incident."""

    WARNING = "warning"
    CRITICAL = "critical"


class Occasion(StrEnum):
    """Why an alert is sent."""

    RAISED = "raised"
    WORSE = "worse"  # a warning has become critical
    AGAIN = "again"  # there is news after the cool-down
    ESCALATED = "escalated"  # it was not acknowledged in time
    RECOVERED = "recovered"


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert about an incident."""

    incident: str  # its id, the same from raised to recovered
    occasion: Occasion
    severity: Severity
    rule: str  # the name of the violated rule
    text: str  # one sentence for people
    component: str  # the component concerned: RabbitMQ, Kafka, store
    broker: str | None = None  # its name
    server: str | None = None  # the server that it is about, where each server measures itself
    queue: str | None = None
    error_type: str | None = None
    group: str | None = None  # the fingerprint of the failure
    counts: dict[str, Number] = {}
    correlation_ids: tuple[str, ...] = ()
    link: str | None = None  # a URL, or the command that shows more
    escalations: int = 0  # how often it was escalated before
    since: datetime  # when the incident began
    time: datetime  # of this alert

    @property
    def subject(self) -> str:
        """One line that says everything important."""
        return f"[{self.occasion.upper()}] {self.severity.upper()}: {self.text}"

    @property
    def is_over(self) -> bool:
        """Whether the incident has ended."""
        return self.occasion is Occasion.RECOVERED
