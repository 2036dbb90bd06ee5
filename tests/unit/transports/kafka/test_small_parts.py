"""Turns, journeys and names."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from redrive.transports.base import Source
from redrive.transports.kafka.journey import Journey, journey_of, milliseconds, pairs_for, wait_until
from redrive.transports.kafka.names import STEPS, retry_topic, retry_topics, step_for
from redrive.transports.kafka.turns import Turns


@given(st.lists(st.sampled_from("abc"), max_size=40), st.data())
def test_one_of_a_key_is_out_at_a_time_and_all_go_in_their_order(
    keys: list[str], data: st.DataObject
) -> None:
    turns: Turns[str, int] = Turns()
    out = {key: number for number, key in enumerate(keys) if turns.may_go(key, number)}
    gone: dict[str, list[int]] = {key: [number] for key, number in out.items()}
    assert len(turns) == len(keys) - len(out)
    while out:
        key = data.draw(st.sampled_from(sorted(out)))
        del out[key]
        if (number := turns.next(key)) is not None:
            out[key] = number
            gone[key].append(number)
    assert gone == {key: [at for at, each in enumerate(keys) if each == key] for key in set(keys)}
    assert len(turns) == 0


def test_keys_of_a_partition_that_is_gone_are_forgotten() -> None:
    turns: Turns[str, int] = Turns()
    for number, key in enumerate(["a1", "a1", "b1"]):
        turns.may_go(key, number)
    turns.forget(lambda key: key.startswith("a"))
    assert turns.may_go("a1", 3)
    assert not turns.may_go("b1", 4)


@given(
    st.builds(
        Journey,
        *(st.none() | st.integers(0, 10**12),) * 2,
        st.integers(0, 9),
        st.none() | st.integers(0, 10**13),
    )
)
def test_a_journey_is_read_as_it_was_written(journey: Journey) -> None:
    assert journey_of(pairs_for(journey)) == journey


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["redrive-deliveries", "redrive-original-offset", "x"]), st.none() | st.binary()
        )
    )
)
def test_no_header_makes_a_journey_fail(pairs: list[tuple[str, bytes | None]]) -> None:
    assert journey_of(pairs).deliveries >= 0


def test_a_record_never_comes_early_for_a_fraction() -> None:
    at = datetime(2026, 2, 11, 12, 0, 0, 999_999, tzinfo=UTC)
    assert wait_until(milliseconds(at), at) >= timedelta(0)


@pytest.mark.parametrize(
    ("wait", "step"),
    [
        (timedelta(seconds=3), None),
        (timedelta(seconds=10), STEPS[0]),
        (timedelta(seconds=9, milliseconds=900), STEPS[0]),
        (timedelta(minutes=4), timedelta(minutes=1)),
        (timedelta(days=2), timedelta(hours=6)),
    ],
)
def test_a_record_waits_in_the_longest_step_that_is_not_too_long(
    wait: timedelta, step: timedelta | None
) -> None:
    assert step_for(wait) == step


def test_a_group_has_retry_topics_of_its_own() -> None:
    assert retry_topic(Source(name="orders"), timedelta(minutes=5)) == "orders.retry.5m"
    assert (
        retry_topic(Source(name="orders", consumer_group="shop"), timedelta(minutes=5))
        == "shop.orders.retry.5m"
    )
    assert len(retry_topics(Source(name="orders"))) == len(STEPS)
