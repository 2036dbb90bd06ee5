"""Waiting, and the texts that describe it (A3)."""

from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from redrive.errors import SettingsError
from redrive.rules import DelayList, Exponential, Fixed, format_duration, parse_backoff, parse_duration

SECOND = timedelta(seconds=1)
durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3650))
positive = st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=30))
exponentials = st.builds(
    lambda first, more, factor, jitter: Exponential(first, factor, first + more, jitter),
    positive, durations.map(lambda d: d / 200), st.floats(1, 1000), st.floats(0, 1),
)  # fmt: skip


@given(exponentials, st.integers(-5, 10**30), st.floats())
def test_an_exponential_delay_is_never_negative_and_never_above_its_cap(
    backoff: Exponential, attempt: int, random: float
) -> None:
    assert timedelta(0) <= backoff.delay(attempt, random) <= backoff.max_delay


@given(exponentials, st.integers(1, 200))
def test_without_luck_each_wait_is_at_least_the_one_before(backoff: Exponential, attempt: int) -> None:
    assert backoff.delay(attempt, 0.5) <= backoff.delay(attempt + 1, 0.5)


def test_the_default_doubles_up_to_a_minute_and_spreads_by_a_quarter() -> None:
    backoff = Exponential()
    assert [backoff.delay(n, 0.5).total_seconds() for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.delay(1, 0.0) == 0.75 * SECOND
    assert backoff.delay(1, 1.0) == 1.25 * SECOND
    assert backoff.delay(50, 1.0) == 60 * SECOND


def test_a_generator_of_random_numbers_can_be_given() -> None:
    assert Exponential().delay(3, Random(7)) == Exponential().delay(3, Random(7).random())


def test_a_list_stays_at_its_last_or_stops() -> None:
    delays = (5 * SECOND, 15 * SECOND, 30 * SECOND)
    assert [DelayList(*delays).delay(n) for n in (1, 2, 3, 4, 10**9)] == [*delays, delays[-1], delays[-1]]
    assert [DelayList(*delays, then="stop").delay(n) for n in (3, 4)] == [delays[-1], None]


def test_a_fixed_delay_is_always_the_same() -> None:
    assert Fixed(SECOND).delay(1) == Fixed(SECOND).delay(99) == SECOND


@pytest.mark.parametrize(
    "make",
    [
        lambda: Exponential(initial=timedelta(0)),
        lambda: Exponential(initial=2 * SECOND, max_delay=SECOND),
        lambda: Exponential(factor=0.5),
        lambda: Exponential(factor=float("nan")),
        lambda: Exponential(jitter=1.5),
        DelayList,
        lambda: DelayList(-SECOND),
        lambda: DelayList(SECOND, then="again"),  # type: ignore[arg-type]
        lambda: Fixed(-SECOND),
    ],
)
def test_a_backoff_that_cannot_work_is_refused(make: Any) -> None:
    with pytest.raises(SettingsError, match="back-off"):
        make()


@pytest.mark.parametrize(
    ("spec", "backoff"),
    [
        ("exponential 1s x2 cap 60s ±25%", Exponential()),
        ("Exponential", Exponential()),
        ("exponential 500ms ×3 max 5m +-10%", Exponential(SECOND / 2, 3, 300 * SECOND, 0.1)),
        ("exponential 2m jitter 0%", Exponential(120 * SECOND, 2, 120 * SECOND, 0)),
        ("10s", Fixed(10 * SECOND)),
        (["5s", "15s"], DelayList(5 * SECOND, 15 * SECOND)),
        ("5s, 15s, stop", DelayList(5 * SECOND, 15 * SECOND, then="stop")),
        (("5s", "stop"), DelayList(5 * SECOND, then="stop")),
    ],
)
def test_a_backoff_is_read_from_text(spec: Any, backoff: Any) -> None:
    assert parse_backoff(spec) == backoff


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "exponential 1s 2s",
        "exponential x2.2.2",
        "exponential soon",
        "exponential 1s cap 1",
        "10",
        [],
        ["stop"],
        [5],
        5,
        None,
    ],
)
def test_a_backoff_that_cannot_be_read_is_refused_in_one_line(spec: Any) -> None:
    with pytest.raises(SettingsError) as problem:
        parse_backoff(spec)
    assert "\n" not in str(problem.value)


@given(
    st.one_of(
        st.builds(Fixed, durations),
        st.lists(durations, min_size=2, max_size=5).map(lambda delays: DelayList(*delays)),
        st.lists(durations, min_size=1, max_size=5).map(lambda delays: DelayList(*delays, then="stop")),
        st.builds(
            Exponential,
            positive,
            st.integers(1, 100),
            st.just(timedelta(days=31)),
            st.sampled_from([0, 0.25, 1]),
        ),
    )
)
def test_a_backoff_is_read_back_from_what_it_prints(backoff: Any) -> None:
    assert parse_backoff(str(backoff)) == backoff


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", 90 * SECOND), ("5m", 300 * SECOND), ("1h30m", 5400 * SECOND), ("2d", timedelta(days=2)),
        ("250ms", SECOND / 4), ("0s", timedelta(0)), ("1.5h", 5400 * SECOND), (" 5 Minutes ", 300 * SECOND),
        ("1 hour 30 min", 5400 * SECOND), ("1 hour, 30 min", 5400 * SECOND),
    ],
)  # fmt: skip
def test_a_duration_is_read_from_text(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text", ["", "30", "s", "-5s", "5mb", "5 s s", "1h30", "99999999999d", "٣s", "1e3s", None, 5]
)
def test_a_duration_that_cannot_be_read_is_refused_with_the_text_and_a_hint(text: Any) -> None:
    with pytest.raises(SettingsError, match=r"is not a duration: .+|is too long"):
        parse_duration(text)


def test_a_number_without_a_unit_is_told_how_to_get_one() -> None:
    with pytest.raises(SettingsError, match="add a unit, such as '30s'"):
        parse_duration("30")


@given(durations)
def test_a_duration_is_read_back_from_what_is_printed(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(st.text())
def test_any_text_is_a_duration_or_refused(text: str) -> None:
    with suppress(SettingsError):
        assert parse_duration(text) >= timedelta(0)
