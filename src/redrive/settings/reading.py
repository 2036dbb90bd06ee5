"""Readers: functions that check and convert one value of a setting.

A reader takes a value as TOML gives it. A value of the wrong type or out of range is a `SettingsError` that says what
the value must be; the caller adds the name of the setting and the value.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from redrive.errors import SettingsError, did_you_mean, use_instead
from redrive.letters import FailureKind
from redrive.rules import format_duration, parse_duration
from redrive.settings.references import is_reference

Read: TypeAlias = Callable[[Any], Any]
_KEY: Final = re.compile(r"[!-~]{16,512}")
_BROKER_NAME: Final = re.compile(r"[a-z0-9-]{1,63}")


def text(value: Any) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise SettingsError("must be a non-empty string")
    return value


def broker_name(value: Any) -> str:
    """The name of a broker."""
    if not isinstance(value, str) or not _BROKER_NAME.fullmatch(value):
        raise SettingsError("must be 1 to 63 lowercase letters, digits and dashes, such as shop-eu")
    return value


def key(value: Any) -> str:
    """The key of a server, or a reference to it."""
    if isinstance(value, str) and is_reference(value):
        return value
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise SettingsError("must be 16 to 512 printable ASCII characters without spaces")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """A list of strings that are not empty."""
    if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
        raise SettingsError("must be a list of non-empty strings")
    return tuple(value)


def table_of_texts(value: Any) -> dict[str, str]:
    """A table of strings."""
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise SettingsError("must be a table of strings")
    return value


def integer(least: int, most: int) -> Read:
    """An integer in a range."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise SettingsError(f"must be an integer between {least} and {most}")
        return value

    return read


def number(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise SettingsError("must be a number, such as 100 or 0.05")
    return float(value)


def moment(value: Any) -> datetime:
    """A date and time with a time zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise SettingsError(
            "must be a time with a time zone and without quotes, such as 2026-11-15T22:00:00Z"
        )
    return value


def rate(value: Any) -> float:
    """A number of events per second, above zero."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1_000_000:
        raise SettingsError("must be a number per second above 0 and at most 1000000, such as 10 or 0.5")
    return float(value)


def kinds(value: Any) -> tuple[str, ...]:
    """A list of failure kinds."""
    for item in texts(value):
        if item not in tuple(FailureKind):
            raise SettingsError(f"'{item:.40}' is not a failure kind{use_instead(item, tuple(FailureKind))}")
    return tuple(value)


def check_url(value: Any) -> str:
    """The URL of a condition."""
    found = text(value)
    if found.startswith("env:"):
        return found
    try:
        parts = urlsplit(found)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SettingsError(f"is not a URL: {error}") from None
    if parts.scheme not in {"tcp", "http", "https", "postgresql", "postgres"} or not host:
        raise SettingsError("must be tcp://HOST:PORT, http://…, https://… or postgresql://…")
    if parts.scheme == "tcp" and port is None:
        raise SettingsError("needs a port: tcp://HOST:PORT")
    return found


def boolean(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise SettingsError("must be true or false")
    return value


def one_of(*words: str, renamed: Mapping[str, str] = MappingProxyType({})) -> Read:
    """One of these words. An old word is refused with its new name."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            new = renamed.get(value) if isinstance(value, str) else None
            hint = did_you_mean(value, words) if new is None else f"; did you mean '{new}'?"
            raise SettingsError(f"must be one of {', '.join(words)}{hint}")
        return value

    return read


def hours(value: Any) -> tuple[int, ...]:
    """Hours of a day."""
    if not isinstance(value, list) or not value:
        raise SettingsError("must be a list of hours, such as [2, 3, 4]")
    return tuple(integer(0, 23)(hour) for hour in value)


def fraction(value: Any) -> float:
    """A number above 0 and up to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise SettingsError("must be a number above 0 and up to 1, such as 0.8")
    return float(value)


def duration(least: timedelta, most: timedelta) -> Read:
    """A duration in a range, written with a unit."""

    def read(value: Any) -> timedelta:
        if not isinstance(value, str):
            raise SettingsError('must be a duration with a unit, such as "30s" or "5m"')
        duration = parse_duration(value)
        if not least <= duration <= most:
            raise SettingsError(
                f"must be a duration between {format_duration(least)} and {format_duration(most)}"
            )
        return duration

    return read


def durations(value: Any) -> tuple[timedelta, ...]:
    """A list of at least one duration."""
    if not isinstance(value, list) or not value:
        raise SettingsError('must be a list of durations, such as ["1m", "5m"]')
    return tuple(duration(timedelta(0), timedelta(days=365))(item) for item in value)
