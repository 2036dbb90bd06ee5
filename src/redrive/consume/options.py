"""Options of one consumed source."""

from datetime import timedelta
from typing import ClassVar

import msgspec

from redrive.errors import SettingsError
from redrive.rules import Backoff, Exponential, check_limit, format_duration
from redrive.rules.breaker import BreakerOptions


class ConsumeBreakerOptions(BreakerOptions, frozen=True, kw_only=True):
    """While most deliveries of a source fail, consuming pauses and probes with single messages."""

    failure_rate: float = 0.8  # fraction of recent deliveries that must fail before consuming pauses
    window: int = 20  # number of recent deliveries in the failure-rate window
    pause: timedelta = timedelta(seconds=5)  # before the first probe; each failed probe doubles it
    max_pause: timedelta = timedelta(minutes=1)

    whose: ClassVar[str] = "consume breaker"


class ConsumeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the deliveries of a source are processed."""

    concurrency: int = 5
    max_deliveries: int = 3
    attempts: int = 3  # in the process, for each delivery
    backoff: Backoff = Exponential()
    handler_timeout: timedelta = timedelta(seconds=60)  # of one attempt
    max_in_process_delay: timedelta = timedelta(seconds=60)  # a delivery that must wait longer is requeued
    best_effort: bool = False  # settle even if the dead letter cannot be published, and count the loss
    shutdown_timeout: timedelta = timedelta(seconds=30)  # for running handlers when the consumer stops
    max_waiting_retries: int = 1000  # deliveries between two attempts that may raise the prefetch
    breaker: ConsumeBreakerOptions | None = ConsumeBreakerOptions()

    def __post_init__(self) -> None:
        check_limit(self.max_deliveries)
        for name, least in (("concurrency", 1), ("attempts", 1), ("max_waiting_retries", 0)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise SettingsError(
                    f"{name} must be an integer of at least {least}, not {getattr(self, name)!r:.40}"
                )
        for name in ("handler_timeout", "shutdown_timeout", "max_in_process_delay"):
            duration = getattr(self, name)
            if duration < timedelta(0) or (name == "handler_timeout" and not duration):
                raise SettingsError(f"{name} must be longer than 0 seconds, not {format_duration(duration)}")
