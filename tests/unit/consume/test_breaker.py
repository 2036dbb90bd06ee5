"""A source whose messages nearly all fail is paused, and single messages find out when it is over (H9)."""

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from redrive.consume.breaker import FloodBreaker
from redrive.consume.options import FloodOptions
from redrive.errors import SettingsError

SECOND = timedelta(seconds=1)
OPTIONS = FloodOptions(share=0.8, least=10, pause=5 * SECOND, longest=15 * SECOND)


def after(*outcomes: bool, now: timedelta = timedelta(0)) -> FloodBreaker:
    breaker = FloodBreaker(OPTIONS)
    for failed in outcomes:
        breaker.record(failed=failed, now=now)
    return breaker


def test_too_few_deliveries_say_nothing() -> None:
    assert not after(*[True] * 9).is_open


def test_it_opens_at_the_share_and_not_below() -> None:
    assert not after(*[True] * 7, *[False] * 3).is_open
    assert after(False, False, *[True] * 8).is_open


def test_only_the_last_deliveries_count() -> None:
    assert not after(*[True] * 7, *[False] * 10).is_open
    assert after(*[False] * 100, *[True] * 8).is_open


def test_while_it_is_open_nothing_runs_until_the_pause_is_over() -> None:
    breaker = after(*[True] * 10)
    assert breaker.wait(timedelta(0)) == 5 * SECOND
    assert breaker.wait(3 * SECOND) == 2 * SECOND


def test_then_one_message_runs_and_only_one() -> None:
    breaker = after(*[True] * 10)
    assert breaker.wait(5 * SECOND) is None
    assert breaker.wait(5 * SECOND) is not None


def test_a_probe_that_succeeds_lets_everything_run() -> None:
    breaker = after(*[True] * 10)
    breaker.wait(5 * SECOND)
    breaker.record(failed=False, now=6 * SECOND)
    assert not breaker.is_open
    assert breaker.wait(6 * SECOND) is None
    breaker.record(failed=True, now=6 * SECOND)
    assert not breaker.is_open, "what failed before is forgotten"


def test_a_probe_that_fails_doubles_the_pause_up_to_the_longest() -> None:
    breaker = after(*[True] * 10)
    now = 5 * SECOND
    for expected in (10, 15, 15):
        assert breaker.wait(now) is None
        breaker.record(failed=True, now=now)
        assert breaker.wait(now) == expected * SECOND
        now += expected * SECOND


def test_a_probe_that_was_none_leaves_its_place_to_the_next() -> None:
    breaker = after(*[True] * 10)
    assert breaker.wait(5 * SECOND) is None
    breaker.no_probe()
    assert breaker.wait(5 * SECOND) is None


def test_what_was_running_when_it_opened_changes_nothing() -> None:
    breaker = after(*[True] * 10)
    breaker.record(failed=False, now=SECOND)
    assert breaker.wait(SECOND) == 4 * SECOND


@given(st.lists(st.booleans(), min_size=10, max_size=200))
def test_closed_it_is_open_exactly_when_the_last_ten_say_so(outcomes: list[bool]) -> None:
    breaker = FloodBreaker(OPTIONS)
    for number, failed in enumerate(outcomes):
        breaker.record(failed=failed, now=timedelta(0))
        last = outcomes[max(0, number - 9) : number + 1]
        assert breaker.is_open == (len(last) == 10 and sum(last) >= 8)
        if breaker.is_open:
            return


@pytest.mark.parametrize(
    "wrong",
    [{"share": 0}, {"share": 1.1}, {"least": 0}, {"pause": timedelta(0)}, {"pause": timedelta(hours=1)}],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="flood breaker"):
        FloodOptions(**wrong)  # type: ignore[arg-type]
