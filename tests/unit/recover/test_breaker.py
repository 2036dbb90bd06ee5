"""Letters are held back from a source where redrives only die again, and from no other (E4, H10)."""

from datetime import timedelta

from redrive.recover.breaker import Breakers
from redrive.testing import ManualClock

MINUTE = timedelta(minutes=1)


def breakers_with_five_deaths_in_orders(recovered: list[str]) -> tuple[Breakers, ManualClock]:
    clock = ManualClock()
    breakers = Breakers(clock, recovered=recovered.append)
    for _ in range(5):
        breakers.died("orders")
    return breakers, clock


def test_five_redrives_that_died_hold_back_their_source_alone_and_for_a_minute() -> None:
    breakers, clock = breakers_with_five_deaths_in_orders([])
    assert breakers.open_sources() == ("orders",)
    assert not breakers.admits("orders")
    assert breakers.admits("mail")
    clock.advance(MINUTE)
    assert breakers.admits("orders"), "the probe"
    assert not breakers.admits("orders")


def test_a_probe_that_dies_is_followed_by_twice_the_pause_and_by_half_an_hour_at_most() -> None:
    breakers, clock = breakers_with_five_deaths_in_orders([])
    for minutes in (1, 2, 4, 8, 16, 30, 30):
        clock.advance(minutes * MINUTE - timedelta(seconds=1))
        assert not breakers.admits("orders")
        clock.advance(timedelta(seconds=1))
        assert breakers.admits("orders")
        breakers.died("orders")


def test_breaker_pauses_for_a_minute_when_a_whole_replay_dies() -> None:
    breakers, clock = breakers_with_five_deaths_in_orders([])
    for _ in range(95):
        breakers.died("orders")
    clock.advance(MINUTE)
    assert breakers.admits("orders"), "the probe"


def test_a_verdict_lets_everything_go_and_is_told_once() -> None:
    recovered: list[str] = []
    breakers, _ = breakers_with_five_deaths_in_orders(recovered)
    breakers.succeeded("orders")
    breakers.succeeded("orders")
    assert breakers.admits("orders")
    assert breakers.open_sources() == ()
    assert recovered == ["orders"]


def test_a_probe_of_which_nothing_is_heard_lets_another_letter_go_after_the_pause() -> None:
    breakers, clock = breakers_with_five_deaths_in_orders([])
    clock.advance(MINUTE)
    assert breakers.admits("orders")
    clock.advance(MINUTE)
    assert breakers.admits("orders")
