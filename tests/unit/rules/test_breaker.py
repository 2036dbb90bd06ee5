"""When nearly everything fails it is better to wait, and single tries find out when it is over (H9, E4)."""

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from redrive.errors import SettingsError
from redrive.rules.breaker import Breaker, BreakerOptions

SECOND = timedelta(seconds=1)
OPTIONS = BreakerOptions(failure_rate=0.8, window=10, pause=5 * SECOND, max_pause=15 * SECOND)


def after(*outcomes: bool, by_hearsay: bool = False) -> Breaker:
    breaker = Breaker(OPTIONS, by_hearsay=by_hearsay)
    for failed in outcomes:
        assert not breaker.record(failed=failed, now=timedelta(0))
    return breaker


def test_too_few_tries_say_nothing() -> None:
    assert not after(*[True] * 9).is_open


def test_it_opens_at_the_share_and_not_below() -> None:
    assert not after(*[True] * 7, *[False] * 3).is_open
    assert after(False, False, *[True] * 8).is_open


def test_only_the_last_tries_count() -> None:
    assert not after(*[True] * 7, *[False] * 10).is_open
    assert after(*[False] * 100, *[True] * 8).is_open


def test_while_it_is_open_nothing_goes_until_the_pause_is_over() -> None:
    breaker = after(*[True] * 10)
    assert breaker.wait(timedelta(0)) == 5 * SECOND
    assert breaker.wait(3 * SECOND) == 2 * SECOND


def test_then_one_goes_and_only_one() -> None:
    breaker = after(*[True] * 10)
    assert breaker.wait(5 * SECOND) is None
    assert breaker.wait(5 * SECOND) is not None


def test_a_probe_that_succeeds_lets_everything_go() -> None:
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


def test_what_was_under_way_when_it_opened_changes_nothing() -> None:
    breaker = after(*[True] * 10)
    breaker.record(failed=False, now=SECOND)
    assert breaker.wait(SECOND) == 4 * SECOND


@given(st.lists(st.booleans(), min_size=10, max_size=200))
def test_closed_it_is_open_exactly_when_the_last_ten_say_so(outcomes: list[bool]) -> None:
    breaker = Breaker(OPTIONS)
    for number, failed in enumerate(outcomes):
        breaker.record(failed=failed, now=timedelta(0))
        last = outcomes[max(0, number - 9) : number + 1]
        assert breaker.is_open == (len(last) == 10 and sum(last) >= 8)
        if breaker.is_open:
            return


def test_only_the_outcome_that_closes_it_says_so() -> None:
    breaker = after(*[True] * 10)
    assert breaker.wait(5 * SECOND) is None
    assert not breaker.record(failed=True, now=6 * SECOND)
    assert breaker.wait(16 * SECOND) is None
    assert breaker.record(failed=False, now=17 * SECOND)
    assert not breaker.record(failed=False, now=18 * SECOND), "it was closed already"


def test_once_it_has_closed_it_pauses_as_at_first() -> None:
    breaker = after(*[True] * 10)
    for failed, now in ((True, 5 * SECOND), (False, 20 * SECOND)):
        assert breaker.wait(now) is None
        breaker.record(failed=failed, now=now)
    for _ in range(10):
        breaker.record(failed=True, now=30 * SECOND)
    assert breaker.wait(30 * SECOND) == 5 * SECOND


def test_a_probe_that_ends_here_for_certain_is_waited_for() -> None:
    breaker = after(*[True] * 10)
    assert breaker.wait(5 * SECOND) is None
    assert breaker.wait(timedelta(hours=1)) is not None


def test_by_hearsay_a_probe_of_which_nothing_is_heard_lets_another_one_go() -> None:
    breaker = after(*[True] * 10, by_hearsay=True)
    assert breaker.wait(6 * SECOND) is None
    assert breaker.wait(8 * SECOND) == 3 * SECOND
    assert breaker.wait(11 * SECOND) is None
    assert breaker.wait(11 * SECOND) == 5 * SECOND


def test_by_hearsay_any_success_closes_it() -> None:
    assert after(*[True] * 10, by_hearsay=True).record(failed=False, now=SECOND)


def test_by_hearsay_failures_without_a_probe_do_not_prolong_the_pause() -> None:
    breaker = after(*[True] * 10, by_hearsay=True)
    for _ in range(20):  # were under way when it opened
        assert not breaker.record(failed=True, now=SECOND)
    assert breaker.wait(SECOND) == 4 * SECOND
    assert breaker.wait(5 * SECOND) is None, "the probe"
    for _ in range(20):  # any of them may be the probe's
        assert not breaker.record(failed=True, now=6 * SECOND)
    assert breaker.wait(6 * SECOND) == 10 * SECOND


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"failure_rate": 0}, "failure_rate"),
        ({"failure_rate": 1.1}, "failure_rate"),
        ({"window": 0}, "window"),
        ({"pause": timedelta(0)}, "pause"),
        ({"pause": timedelta(hours=1)}, "max_pause"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, object], why: str) -> None:
    sound: dict[str, object] = {"failure_rate": 0.5, "window": 2, "pause": SECOND, "max_pause": 2 * SECOND}
    with pytest.raises(SettingsError, match=f"breaker: .*{why}"):
        BreakerOptions(**{**sound, **wrong})  # type: ignore[arg-type]


@given(st.lists(st.booleans(), max_size=60))
def test_when_it_is_calm_a_success_changes_nothing(outcomes: list[bool]) -> None:
    breaker = Breaker(OPTIONS)
    for failed in outcomes:
        breaker.record(failed=failed, now=timedelta(0))
    if breaker.is_calm:
        assert list(breaker._last) == [False] * 10
        assert not breaker.is_open
    else:
        assert breaker.is_open or len(outcomes) < 10 or any(outcomes[-10:])
