"""When is the next quiet hour?

One rule: the answer is a moment strictly after `now` at which the clock on the wall, in the given time zone,
shows one of the given hours. An hour that a daylight-saving change leaves out does not occur on that day and
the next listed one is taken; an hour that occurs twice counts the first time.
It does not know what is to be done then.
"""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta, tzinfo


def next_off_peak(now: datetime, hours: Collection[int], zone: tzinfo) -> datetime:
    """The first moment after `now` at which it is one of `hours` in `zone`, in UTC."""
    midnight = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    # More than one day ahead: a change leaves out an hour, and a move over the date line a whole day.
    for day in range(9):
        for hour in sorted(hours):
            wall = midnight + timedelta(days=day, hours=hour)  # arithmetic on the wall clock, not on time
            moment = wall.astimezone(UTC)
            exists = moment.astimezone(zone).replace(tzinfo=None) == wall.replace(tzinfo=None)
            if exists and moment > now:
                return moment
    raise AssertionError("no zone leaves out the same hour for a week")  # pragma: no cover
