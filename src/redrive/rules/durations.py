"""How long is "1h30m"?

One rule: a duration is always written with its unit, so that nobody has to guess what 30 means.
This module does not know what a duration is used for; settings, back-off and retry hints all read it.
"""

import re
from datetime import timedelta
from typing import Final

from redrive.errors import SettingsError

_MICROSECONDS: Final = {
    "us": 1,
    "ms": 1000,
    "s": 10**6,
    "m": 60 * 10**6,
    "h": 3600 * 10**6,
    "d": 86_400 * 10**6,
}
_SPELLINGS: Final = {
    "us": ("us", "µs", "μs", "microsecond", "microseconds"),
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
}
_UNIT: Final = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings}

_UNITS: Final = "|".join(sorted(_UNIT, key=len, reverse=True))
_NUMBER: Final = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"
# One part ends where the next number begins or where no letter follows: "5m" is minutes, "5mb" is nothing.
_PART: Final = rf"({_NUMBER}) ?({_UNITS})(?![a-zµμ])"
DURATION_PATTERN: Final = (
    rf"{_NUMBER} ?(?:{_UNITS})(?![a-zµμ])(?:,? ?{_NUMBER} ?(?:{_UNITS})(?![a-zµμ])){{0,5}}"
)

_WHOLE: Final = re.compile(DURATION_PATTERN)
_EACH: Final = re.compile(_PART)
LONGEST: Final = timedelta(days=3650)


def parse_duration(text: str) -> timedelta:
    """The duration that "90s", "5m", "1h30m", "2d", "250ms" or "5 minutes" says."""
    if not isinstance(text, str):
        raise SettingsError(f"{text!r} is not a duration: write it as text with a unit, such as '30s'")
    plain = text.strip().lower()
    if not _WHOLE.fullmatch(plain):
        hint = (
            f"add a unit, such as '{plain}s'"
            if re.fullmatch(_NUMBER, plain)
            else "write it as '90s' or '1h30m'"
        )
        raise SettingsError(f"{text[:60]!r} is not a duration: {hint}")
    total = duration_of(plain)
    if total > LONGEST:
        raise SettingsError(f"{text[:60]!r} is too long: a duration is at most {LONGEST.days}d")
    return total


def duration_of(plain: str) -> timedelta:
    """The sum of the parts of a lower-case text that fits `DURATION_PATTERN`."""
    micros = sum(float(number) * _MICROSECONDS[_UNIT[unit]] for number, unit in _EACH.findall(plain))
    return timedelta(microseconds=round(min(micros, 8e19)))


def format_duration(duration: timedelta) -> str:
    """The shortest text that `parse_duration` reads back as the same duration."""
    left = duration // timedelta(microseconds=1)
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, left = divmod(left, _MICROSECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
