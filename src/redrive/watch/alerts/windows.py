"""Maintenance windows, in which no alerts are sent.

A window has a start and a duration, or repeats by a cron expression; it applies to all queues or to those that match a
pattern. Incidents of a window are stored, and those that are still open when it ends are reported then.
"""

from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from redrive.errors import SettingsError


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which no alerts are sent."""

    lasts: timedelta
    begins: datetime | None = None  # once
    cron: str | None = None  # or again and again
    zone: str = "UTC"  # of the cron expression
    queues: str = "*"

    def __post_init__(self) -> None:
        if (self.begins is None) == (self.cron is None):
            raise SettingsError("a maintenance window must have either start or cron")
        if self.lasts <= timedelta(0):
            raise SettingsError("the duration of a maintenance window must be longer than 0 seconds")
        if self.begins is not None and self.begins.tzinfo is None:
            raise SettingsError(
                "the start of a maintenance window must have a time zone, such as 2026-11-15T22:00:00Z"
            )
        try:
            zone = ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise SettingsError(
                f"the time_zone '{self.zone:.60}' of a maintenance window is unknown"
            ) from error
        if self.cron is not None:
            try:
                CronSim(self.cron, datetime.now(zone))
            except CronSimError as error:
                raise SettingsError(
                    f"a maintenance window's cron '{self.cron:.60}' is not valid: {error}"
                ) from error

    def is_open(self, now: datetime, queue: str | None = None) -> bool:
        """Whether it lasts at this moment; what is not about a queue is only in a window for everything."""
        if self.queues != "*" and not (queue is not None and fnmatchcase(queue, self.queues)):
            return False
        begins = self.begins or self._latest(now)
        return begins is not None and begins <= now < begins + self.lasts

    def _latest(self, now: datetime) -> datetime | None:
        """The first beginning whose window is not over at this moment."""
        assert self.cron is not None  # noqa: S101  one of the two is there
        # A cron expression means whole minutes, and what is asked for comes after what is given.
        earliest = (now - self.lasts).astimezone(ZoneInfo(self.zone))
        found = next(CronSim(self.cron, earliest), None)
        return None if found is None else found.astimezone(UTC)
