"""Which copies a delivery leaves: where they go, what they tell, and that they always fit."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from redrive.amqp.frames import content_header
from redrive.amqp.hot import deliver_payload
from redrive.amqp.properties import BasicProperties, decode_properties, encode_properties, read_headers
from redrive.letters import DeadLetter
from redrive.letters.letter import EPOCH
from redrive.testing.factories import a_failure
from redrive.transports.base import Source
from redrive.transports.rabbitmq.copies import copy_of, dead_letter_of, milliseconds
from redrive.transports.rabbitmq.delivery import Header, RabbitDelivery
from redrive.transports.rabbitmq.envelope import unseal
from redrive.transports.rabbitmq.names import STEPS, step_for

NOON = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)


def a_delivery(properties: BasicProperties | None = None, body: bytes = b"x") -> RabbitDelivery:
    """A delivery of the queue `orders`, published to the exchange `shop` with the key `new`."""
    raw = encode_properties(properties or BasicProperties())
    subscription = SimpleNamespace(
        source=Source(name="orders"),
        place="amqp://here",
        alive=True,
        header=lambda raw: Header(raw, "orders"),
    )
    method = deliver_payload(b"c", 1, False, b"\x04shop\x03new")
    return RabbitDelivery(cast("Any", subscription), 1, method, content_header(raw, len(body)), body)


def a_death(delivery: RabbitDelivery, **failure: Any) -> DeadLetter:
    return DeadLetter.create(
        delivery.message, delivery.origin, a_failure(**failure), key=delivery.key, reason="NonRetryableError"
    )


@pytest.mark.parametrize(
    ("wait", "step"),
    [
        ("0:00:00.5", "1s"),
        ("0:00:01", "1s"),
        ("0:00:04", "1s"),
        ("0:00:05", "5s"),
        ("0:10:00", "5m"),
        ("99:00:00", "1d"),
    ],
)
def test_the_longest_step_that_is_not_too_long_is_taken(wait: str, step: str) -> None:
    hours, minutes, seconds = wait.split(":")
    asked = timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))

    copy = copy_of(a_delivery(), "me", deliveries=2, not_before=milliseconds(NOON + asked), now=NOON)

    assert (copy.exchange, copy.routing_key) == ("", f"orders.delay.{step}")


@given(st.timedeltas(timedelta(0), timedelta(days=30)))
def test_any_wait_ends_after_few_steps_and_never_early(wait: timedelta) -> None:
    waited, steps = timedelta(0), 0
    while waited < wait:
        waited += step_for(wait - waited)
        steps += 1

    assert waited <= wait * 1.02 + STEPS[0]
    # Whole days, then at most 3 of 6 h, 5 of 1 h, 1 each of 30 m and 15 m, 2 of 5 m, 4 of 1 m, and so on down to 1 s.
    assert steps <= 30 + 25


def test_a_wait_that_has_lost_a_moment_on_the_way_takes_no_more_steps_for_it() -> None:
    assert step_for(timedelta(minutes=4, seconds=59, milliseconds=900)) == timedelta(minutes=5)
    assert step_for(timedelta(minutes=4)) == timedelta(minutes=1)


@given(st.timedeltas(timedelta(0), timedelta(days=30_000)))
def test_a_time_is_rounded_up_to_a_millisecond(since_1970: timedelta) -> None:
    rounded = timedelta(milliseconds=milliseconds(EPOCH + since_1970))

    assert since_1970 <= rounded < since_1970 + timedelta(milliseconds=1)


def test_a_copy_that_comes_at_once_goes_straight_to_its_queue() -> None:
    for not_before in (None, milliseconds(NOON)):
        copy = copy_of(a_delivery(), "me", deliveries=7, not_before=not_before, now=NOON)

        found = unseal(copy.properties, "orders")
        assert (copy.exchange, copy.routing_key, copy.body) == ("", "orders", b"x")
        assert (found.deliveries, found.not_before) == (7, None)
        assert found.route("", "orders") == ("shop", "new")


def test_a_dead_letter_keeps_its_key_unless_the_source_says_otherwise() -> None:
    delivery = a_delivery()

    own = dead_letter_of(delivery, a_death(delivery), Source(name="orders"), "me", 100_000)
    set_ = dead_letter_of(
        delivery, a_death(delivery), Source(name="orders", dead_letter_routing_key="dead"), "me", 100_000
    )

    assert (own.exchange, own.routing_key) == ("orders.dlx", "new")
    assert set_.routing_key == "dead"


@given(st.integers(0, 4000), st.integers(0, 6000), st.integers(0, 6000))
def test_a_dead_letter_always_fits_and_tells_what_it_can(own_size: int, stack: int, text: int) -> None:
    """Its own headers fitted a frame when it came, so without ours they fit again."""
    room = 4500
    delivery = a_delivery(BasicProperties(headers={"own": "h" * own_size}, delivery_mode=2))
    letter = a_death(delivery, stack="s" * stack, text="t" * text)

    copy = dead_letter_of(delivery, letter, Source(name="orders"), "me", room)

    assert len(copy.properties) <= room
    told = read_headers(copy.properties)
    assert told["own"] == "h" * own_size
    if own_size < 3000:
        assert told["redrive-reason"] == "NonRetryableError"
        assert told["redrive-source"] == "orders"
    assert decode_properties(copy.properties).delivery_mode == 2
