from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive.errors import SettingsError
from redrive.watch.alerts.windows import Window

HOUR = timedelta(hours=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("now", "is_open"),
    [
        ("2026-11-15T21:59:59Z", False),
        ("2026-11-15T22:00:00Z", True),
        ("2026-11-15T23:59:59Z", True),
        ("2026-11-16T00:00:00Z", False),
    ],
)
def test_a_window_lasts_from_its_beginning_until_before_its_end(now: str, is_open: bool) -> None:
    once = Window(begins=at("2026-11-15T22:00:00Z"), lasts=2 * HOUR)
    daily = Window(cron="0 22 * * *", lasts=2 * HOUR)
    assert once.is_open(at(now)) is is_open
    assert daily.is_open(at(now)) is is_open


def test_a_window_by_cron_comes_again() -> None:
    sundays = Window(cron="30 3 * * 0", lasts=timedelta(minutes=45))
    assert sundays.is_open(at("2026-11-15T04:00:00Z"))
    assert sundays.is_open(at("2026-11-22T04:14:59Z"))
    assert not sundays.is_open(at("2026-11-16T04:00:00Z"))


def test_a_window_that_lasts_longer_than_until_the_next_one_is_always_open() -> None:
    hourly = Window(cron="0 * * * *", lasts=2 * HOUR)
    assert all(
        hourly.is_open(at("2026-11-15T00:00:00Z") + minutes * timedelta(minutes=7)) for minutes in range(300)
    )


def test_a_cron_expression_is_of_its_zone_in_summer_and_in_winter() -> None:
    nights = Window(cron="0 2 * * *", lasts=HOUR, zone="America/New_York")
    assert nights.is_open(at("2026-07-15T06:30:00Z"))
    assert nights.is_open(at("2026-12-15T07:30:00Z"))
    assert not nights.is_open(at("2026-12-15T06:30:00Z"))


@pytest.mark.parametrize(
    ("queue", "is_open"), [("orders.dlq", True), ("orders.eu.dlq", True), ("mail.dlq", False), (None, False)]
)
def test_a_window_may_be_for_some_queues(queue: str | None, is_open: bool) -> None:
    window = Window(begins=at("2026-11-15T22:00:00Z"), lasts=HOUR, queues="orders.*")
    assert window.is_open(at("2026-11-15T22:30:00Z"), queue) is is_open


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"lasts": HOUR}, "either start or cron"),
        (
            {"lasts": HOUR, "cron": "0 2 * * *", "begins": datetime(2026, 11, 15, tzinfo=UTC)},
            "either start or cron",
        ),
        ({"lasts": timedelta(0), "cron": "0 2 * * *"}, "must be longer than 0 seconds"),
        ({"lasts": HOUR, "cron": "every night"}, "cron 'every night' is not valid"),
        ({"lasts": HOUR, "cron": "61 2 * * *"}, "is not valid"),
        (
            {"lasts": HOUR, "cron": "0 2 * * *", "zone": "Mars/Base"},
            "time_zone 'Mars/Base' of a maintenance window is unknown",
        ),
        ({"lasts": HOUR, "cron": "0 2 * * *", "zone": "../../etc/passwd"}, "is unknown"),
        ({"lasts": HOUR, "begins": datetime(2026, 11, 15)}, "must have a time zone"),  # noqa: DTZ001  on purpose
    ],
)
def test_a_window_that_makes_no_sense_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match="maintenance window") as error:
        Window(**settings)
    assert why in str(error.value)


def test_a_cron_expression_that_never_comes_opens_no_window() -> None:
    never = Window(cron="0 0 31 12 1", lasts=HOUR)  # a day or a weekday: cron takes either
    assert not never.is_open(at("2026-06-16T00:30:00Z"))
