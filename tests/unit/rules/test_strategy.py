"""When a dead letter is sent back (E4)."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from redrive.errors import SettingsError
from redrive.letters.failure import Failure, FailureKind
from redrive.rules import (
    STRATEGIES,
    Check,
    Exhausted,
    Health,
    Plan,
    Strategy,
    StrategyOptions,
    StrategyRule,
    after_attempt,
    choose,
    unmet_conditions,
)
from redrive.rules.off_peak import next_off_peak

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
BERLIN = ZoneInfo("Europe/Berlin")


def plan(kind: FailureKind, redrives: int = 0, retry_after: timedelta | None = None, **options: Any) -> Plan:
    found = choose(kind, redrives, NOW, retry_after, StrategyOptions(**options))
    assert isinstance(found, Plan)
    return found


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_every_kind_has_a_strategy() -> None:
    assert set(STRATEGIES) == set(FailureKind)


def test_immediate_waits_longer_each_time_and_then_stays() -> None:
    waits = [plan(FailureKind.TIMEOUT, n, max_redrives=9).due for n in range(7)]
    assert waits == [NOW + minutes * MINUTE for minutes in (1, 5, 15, 30, 60, 60, 60)]


def test_immediate_waits_longer_when_it_is_asked_to() -> None:
    assert plan(FailureKind.NETWORK, retry_after=7 * MINUTE).due == NOW + 7 * MINUTE
    assert plan(FailureKind.NETWORK, retry_after=MINUTE / 2).due == NOW + MINUTE


def test_a_rate_limit_waits_for_the_next_quiet_hour_or_longer() -> None:
    assert plan(FailureKind.RATE_LIMITED).due == utc("2026-11-16 02:00")
    assert plan(FailureKind.RATE_LIMITED, time_zone="America/New_York").due == utc("2026-11-16 07:00")
    assert plan(FailureKind.RATE_LIMITED, retry_after=timedelta(days=2)).due == NOW + timedelta(days=2)
    assert plan(FailureKind.RATE_LIMITED, retry_after=timedelta(hours=2)).due == utc("2026-11-16 02:00")


def test_an_outage_names_the_conditions_and_is_looked_at_again_in_a_minute() -> None:
    found = plan(FailureKind.UNAVAILABLE)
    assert (found.due, found.conditions) == (NOW + MINUTE, tuple(Check))


def test_what_is_not_understood_waits_for_a_person() -> None:
    assert plan(FailureKind.UNKNOWN) == Plan(Strategy.MANUAL, None, rule="kind:unknown")


@pytest.mark.parametrize("kind", FailureKind)
def test_after_five_redrives_it_is_exhausted_whatever_the_kind(kind: FailureKind) -> None:
    assert isinstance(choose(kind, 4, NOW), Plan)
    assert choose(kind, 5, NOW) == Exhausted(5)


def test_after_an_attempt_it_is_again_or_exhausted() -> None:
    assert [after_attempt(n, 2) for n in (0, 1, 2, 3)] == ["again", "again", "exhausted", "exhausted"]
    assert after_attempt(0, 0) == "exhausted"


def test_the_users_table_and_rules_come_first() -> None:
    failure = Failure(error_type="X", text="nightly", at=NOW)
    broken = StrategyRule("broken", Strategy.MANUAL, lambda _: 1 / 0)
    nightly = StrategyRule("nightly", Strategy.SCHEDULED, lambda found: "nightly" in found.text)
    options = StrategyOptions(table={FailureKind.TIMEOUT: Strategy.MANUAL}, rules=(broken, nightly))
    assert plan(FailureKind.TIMEOUT, table=options.table).strategy == Strategy.MANUAL
    assert plan(FailureKind.NETWORK, table=options.table).strategy == Strategy.IMMEDIATE
    found = choose(FailureKind.TIMEOUT, 0, NOW, None, options, failure=failure)
    assert isinstance(found, Plan)
    assert (found.strategy, found.rule) == (Strategy.SCHEDULED, "nightly")


@pytest.mark.parametrize(
    ("now", "hours", "due"),
    [
        ("2026-06-01 23:00", (2, 3, 4), "2026-06-02 00:00"),  # 02:00 in Berlin is 00:00 UTC in summer
        ("2026-06-02 00:00", (2, 3, 4), "2026-06-02 01:00"),  # strictly after
        ("2026-06-02 02:00", (2, 3, 4), "2026-06-03 00:00"),
        # 29 March 2026: at 02:00 the clock goes to 03:00.
        ("2026-03-29 00:30", (2, 3, 4), "2026-03-29 01:00"),
        ("2026-03-29 00:30", (2,), "2026-03-30 00:00"),
        # 25 October 2026: at 03:00 the clock goes back to 02:00, which is there twice.
        ("2026-10-24 23:30", (2,), "2026-10-25 00:00"),
        ("2026-10-25 00:30", (2,), "2026-10-26 01:00"),
        ("2026-10-25 00:30", (2, 3), "2026-10-25 02:00"),
    ],
)
def test_the_quiet_hour_is_right_when_clocks_change(now: str, hours: tuple[int, ...], due: str) -> None:
    assert next_off_peak(utc(now), hours, BERLIN) == utc(due)


def test_a_day_that_a_country_left_out_has_no_quiet_hour() -> None:
    # Samoa went from 29 to 31 December 2011.
    assert next_off_peak(utc("2011-12-30 09:00"), (2,), ZoneInfo("Pacific/Apia")) == utc("2011-12-30 12:00")


@given(
    st.datetimes(datetime(1975, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.sets(st.integers(0, 23), min_size=1),
    st.sampled_from(
        ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kolkata"]
    ),
)
def test_a_quiet_hour_is_after_now_on_the_hour_and_first(now: datetime, hours: set[int], name: str) -> None:
    zone = ZoneInfo(name)
    found = next_off_peak(now, hours, zone)
    wall = found.astimezone(zone)
    assert now < found <= now + timedelta(days=3)
    assert (wall.hour in hours, wall.minute, wall.second, wall.fold) == (True, 0, 0, 0)
    # Nothing in between, looking at every half hour, which is as fine as these zones change.
    step = now.replace(minute=now.minute // 30 * 30, second=0, microsecond=0) + 30 * MINUTE
    while step < found:
        between = step.astimezone(zone)
        assert not (between.hour in hours and between.minute == 0 and between.fold == 0)
        step += 30 * MINUTE


def test_conditions_that_fail_are_named() -> None:
    assert unmet_conditions(Health(cpu=0.79, memory=0.84)) == ()
    assert unmet_conditions(Health()) == ()
    assert unmet_conditions(
        Health(breaker_closed=False, cpu=0.80, memory=0.85, database_reachable=False)
    ) == tuple(Check)
    assert unmet_conditions(Health(cpu=float("nan"))) == (Check.CPU_LOW,)
    assert unmet_conditions(Health(cpu=0.5), StrategyOptions(max_cpu=0.4)) == (Check.CPU_LOW,)


@pytest.mark.parametrize(
    "options",
    [
        {"delays": ()}, {"delays": (-MINUTE,)}, {"off_peak_hours": ()}, {"off_peak_hours": (24,)},
        {"off_peak_hours": (True,)}, {"recheck_interval": timedelta(0)}, {"max_cpu": 80}, {"max_memory": 0},
        {"max_redrives": -1}, {"max_redrives": True}, {"time_zone": "Mars/Base"},
        {"time_zone": "../etc/passwd"}, {"time_zone": ""},
    ],
)  # fmt: skip
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="strategy: "):
        StrategyOptions(**options)


def test_a_misspelt_time_zone_is_met_with_the_right_one() -> None:
    with pytest.raises(SettingsError, match="did you mean 'Europe/Berlin'"):
        StrategyOptions(time_zone="Europe/Berln")
