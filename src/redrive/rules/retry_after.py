"""When does the other side say that one may come back?

Looked for in this order: an attribute `retry_after` of the error, a header `Retry-After` of the error or of
its response (seconds or an HTTP date), a hint in the text ("try again in 5 minutes").
One rule: a wish is honoured within reason. A date in the past is zero; more than seven days are seven days;
a negative, infinite or unreadable value is no wish at all. A date needs `now`; without it, it is ignored.
It does not know whether anybody will wait.
"""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from redrive.rules.durations import DURATION_PATTERN, duration_of
from redrive.rules.evidence import Evidence, is_botocore, look_up, read

LONGEST_WAIT: Final = timedelta(days=7)
_ZERO: Final = timedelta(0)
_HINT: Final = re.compile(
    r"\b(?:retry|retrying|try again|wait)(?:[ _-](?:again )?(?:after|in|for))?"
    r"[\"']?[ :=]{1,3}[\"']?(?:about )?"
    # A bare number is in seconds; the one in "retry 3 times" is not a time at all.
    rf"(?:({DURATION_PATTERN})|([0-9]{{1,15}})(?![\w.]| [a-z0-9]))"
)


def retry_after_of(evidence: Evidence, now: datetime | None) -> timedelta | None:
    """How long the other side asks one to wait, or None where it says nothing that can be used."""
    error = evidence.error
    if error is not None:
        response = read(error, "response")
        for value in (
            read(error, "retry_after"),
            _header(error),
            None if response is None else _header(response),
        ):
            if value is not None and (wait := parse_retry_after(value, now)) is not None:
                return wait
    return _hint(evidence.text)


def parse_retry_after(value: Any, now: datetime | None) -> timedelta | None:
    """The wait that a `Retry-After` value means: seconds, an HTTP date, or already a `timedelta`."""
    try:
        if isinstance(value, bytes):
            value = value.decode("latin-1")
        if isinstance(value, timedelta):
            return _within_reason(value)
        if isinstance(value, str) and not re.fullmatch(r"\s*[+-]?[0-9.]{1,20}\s*", value):
            return _until(value, now)
        seconds = float(value)
        if isinstance(value, bool) or not math.isfinite(seconds):
            return None
        return _within_reason(timedelta(seconds=min(seconds, LONGEST_WAIT.total_seconds())))
    except Exception:  # noqa: BLE001 (whatever it is, it is no time)
        return None


def _until(date: str, now: datetime | None) -> timedelta | None:
    if now is None:
        return None
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 (a tenth of the room's import time, rarely needed)

    moment = parsedate_to_datetime(date)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return _within_reason(max(_ZERO, moment - now))


def _within_reason(wait: timedelta) -> timedelta | None:
    return None if wait < _ZERO else min(wait, LONGEST_WAIT)


def _header(thing: Any) -> Any:
    headers = read(thing, "headers")
    if headers is None and is_botocore(thing):
        headers = look_up(thing["ResponseMetadata"], "HTTPHeaders")
    return None if headers is None else look_up(headers, "Retry-After", "retry-after")


def _hint(text: str) -> timedelta | None:
    plain = text.lower()
    if not ("retry" in plain or "again" in plain or "wait" in plain):  # most texts: spare them the search
        return None
    found = _HINT.search(plain)
    if not found:
        return None
    wait = duration_of(found[1]) if found[1] else timedelta(seconds=min(int(found[2]), 10**9))
    return _within_reason(wait)
