"""What is somebody told?

One alert is one thing told of an incident: that it is there, has become worse, goes on, is still nobody's, or is over.
All alerts of an incident have its id, so whoever is told twice knows that it is the same.

The rule: an alert is made of names, numbers and ids. Nothing that came inside a message or its error text is in it, so
nothing private can be (C4).
"""

from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

import msgspec

Number: TypeAlias = int | float  # counts are integers, averages are not


class Severity(StrEnum):
    """How bad it is."""

    WARNING = "warning"
    CRITICAL = "critical"


class Occasion(StrEnum):
    """Why it is told now."""

    RAISED = "raised"
    WORSE = "worse"  # a warning has become critical
    AGAIN = "again"  # there is news after the cool-down
    ESCALATED = "escalated"  # nobody has acknowledged it in time
    RECOVERED = "recovered"


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """What is told."""

    incident: str  # its id, the same from raised to recovered
    occasion: Occasion
    severity: Severity
    rule: str  # the name of the rule that was broken
    text: str  # one sentence for people
    component: str  # what is concerned: RabbitMQ, Kafka, store
    broker: str | None = None  # its name
    server: str | None = None  # the server that it is about, where each server measures itself
    queue: str | None = None
    error_type: str | None = None
    group: str | None = None  # the fingerprint of the failure
    counts: dict[str, Number] = {}
    correlation_ids: tuple[str, ...] = ()
    link: str | None = None  # a URL, or the command that shows more
    escalations: int = 0  # how often it was told before that nobody has acknowledged it
    since: datetime  # when the incident began
    time: datetime  # of this alert

    @property
    def subject(self) -> str:
        """A line for people who see nothing else."""
        return f"[{self.occasion.upper()}] {self.severity.upper()}: {self.text}"

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to do any more."""
        return self.occasion is Occasion.RECOVERED
