"""RabbitMQ's `x-death`: the journey is read, a damaged stop is named, and no queue of redrive's own is a source."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from redrive.formats.x_death import NAMES, Death, read, recognises
from redrive.letters import Headers, HeaderValue, TypedValue
from redrive.transports.rabbitmq.names import STEPS, delay_queue

AT = datetime(2026, 2, 11, 11, tzinfo=UTC)


def an_entry(queue: str = "orders", reason: str = "rejected", **fields: HeaderValue) -> Headers:
    """One table of the array, its fields in RabbitMQ's order."""
    names = {name.replace("_", "-"): value for name, value in fields.items()}
    entry: dict[str, HeaderValue] = {
        "count": 1,
        "reason": reason,
        "queue": queue,
        "time": AT,
        "exchange": "shop",
        "routing-keys": ("eu.orders",),
    }
    return Headers(entry | names)


def a_death(**fields: Any) -> Death:
    told: dict[str, Any] = {
        "queue": "orders",
        "reason": "rejected",
        "count": 1,
        "at": AT,
        "exchange": "shop",
        "routing_keys": ("eu.orders",),
    }
    return Death(**(told | fields))


def test_every_field_of_an_entry_is_read() -> None:
    journey = read({"x-death": (an_entry(count=3, routing_keys=("eu.orders", "copy")),)})

    assert journey.deaths == (a_death(count=3, routing_keys=("eu.orders", "copy")),)
    assert journey.unreadable == ()
    assert journey.expiration is None


def test_deaths_stand_in_the_order_of_the_wire_the_most_recent_first() -> None:
    journey = read({"x-death": (an_entry("orders"), an_entry("waiting", "expired"), an_entry("first"))})

    assert [death.queue for death in journey.deaths] == ["orders", "waiting", "first"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda value: TypedValue("any", value),
        lambda value: TypedValue("outer", TypedValue("inner", value)),
        lambda value: value.encode() if isinstance(value, str) else value,
    ],
)
def test_values_may_be_bytes_or_remember_their_wire_type(wrap: Any) -> None:
    entry = Headers((name, wrap(value)) for name, value in an_entry(routing_keys=(wrap("eu.orders"),)))

    assert read({"x-death": wrap((wrap(entry),))}).deaths == (a_death(),)


@pytest.mark.parametrize(
    "told", [AT, int(AT.timestamp()), TypedValue("timestamp", int(AT.timestamp())), "2026-02-11T11:00:00Z"]
)
def test_a_time_may_be_a_timestamp_seconds_or_text(told: HeaderValue) -> None:
    assert read({"x-death": (an_entry(time=told),)}).deaths[0].at == AT


def test_an_array_that_a_client_made_into_its_only_table_is_read() -> None:
    assert read({"x-death": an_entry()}).deaths == (a_death(),)


def test_a_name_that_is_not_utf8_keeps_its_octets() -> None:
    [death] = read({"x-death": (an_entry().with_({"queue": TypedValue("longstr", b"caf\xe9")}),)}).deaths

    assert death.queue is not None
    assert death.queue.encode("utf-8", "surrogateescape") == b"caf\xe9"


# --- damage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "wrong", "attribute", "instead"),
    [
        ("count", -1, "count", None),
        ("count", True, "count", None),
        ("count", "many", "count", None),
        ("queue", 7, "queue", None),
        ("reason", ("rejected",), "reason", None),
        ("time", "yesterday", "at", None),
        ("time", TypedValue("timestamp", 2**64 - 1), "at", None),
        ("time", TypedValue("timestamp", 2**62), "at", None),
        ("time", datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))), "at", None),
        ("time", True, "at", None),
        ("exchange", 1.5, "exchange", None),
        ("routing-keys", "eu.orders", "routing_keys", ()),
        ("routing-keys", ("eu.orders", 7), "routing_keys", ()),
    ],
)
def test_a_damaged_field_is_not_told_and_the_others_are(
    field: str, wrong: HeaderValue, attribute: str, instead: object
) -> None:
    journey = read({"x-death": (an_entry().with_({field: wrong}),)})

    assert journey.unreadable == ("x-death",)
    assert journey.deaths == (a_death(**{attribute: instead}),)


def test_an_entry_that_is_no_table_is_left_out_and_the_others_are_read() -> None:
    journey = read({"x-death": ("orders", an_entry(), 7)})

    assert journey.deaths == (a_death(),)
    assert journey.unreadable == ("x-death",)


@pytest.mark.parametrize("wrong", ["orders", b"\xff", 7, TypedValue("any", 1.5)])
def test_a_header_that_is_no_array_is_named(wrong: HeaderValue) -> None:
    assert read({"x-death": wrong}).unreadable == ("x-death",)
    assert read({"x-death": wrong}).deaths == ()


def test_without_a_header_there_is_no_journey() -> None:
    assert not recognises({"x-tenant": "north"})
    assert read({"x-tenant": "north"}).deaths == ()
    assert all(recognises({name: None}) for name in NAMES)


# --- the single headers -----------------------------------------------------------------------------------

SINGLE: dict[str, HeaderValue] = {
    "x-last-death-queue": "orders",
    "x-last-death-reason": "rejected",
    "x-last-death-exchange": "shop",
    "x-first-death-queue": "inbox",
    "x-first-death-reason": "expired",
    "x-first-death-exchange": "",
}


def test_where_the_array_is_lost_the_last_and_the_first_death_are_told() -> None:
    journey = read(SINGLE)

    assert journey.deaths == (
        Death(queue="orders", reason="rejected", count=None, at=None, exchange="shop"),
        Death(queue="inbox", reason="expired", count=None, at=None, exchange=""),
    )


def test_a_first_death_that_is_also_the_last_is_told_once() -> None:
    same = {name.replace("last", "first"): value for name, value in SINGLE.items() if "last" in name}

    assert len(read(SINGLE | same).deaths) == 1


def test_the_array_counts_before_the_single_headers() -> None:
    assert read({"x-death": (an_entry("payments"),)} | SINGLE).deaths == (a_death(queue="payments"),)


def test_a_damaged_single_header_is_named() -> None:
    journey = read(SINGLE | {"x-last-death-exchange": 7})

    assert journey.unreadable == ("x-last-death-exchange",)
    assert journey.deaths[0].queue == "orders"


# --- what the journey says --------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_every_delay_queue_of_the_transport_is_known_as_a_wait(step: timedelta) -> None:
    queue = delay_queue("orders", step)
    journey = read({"x-death": (an_entry(queue, "expired"), an_entry())})

    assert journey.deaths[0].is_wait
    assert journey.origin(found_in="orders.dlq") == a_death()


@pytest.mark.parametrize(
    "queue", ["orders", "orders.delay", ".delay.5s", "orders.delay.soon", "orders.delay.5s.dlq"]
)
def test_no_other_queue_is_taken_for_a_wait(queue: str) -> None:
    assert not a_death(queue=queue, reason="expired").is_wait


def test_a_queue_that_is_called_like_a_wait_but_has_consumers_is_none() -> None:
    assert not a_death(queue="shop.delay.5m", reason="rejected").is_wait
    assert not a_death(queue="shop.delay.5m", reason="delivery_limit").is_wait


def test_the_queue_in_which_a_message_lies_is_not_where_it_came_from() -> None:
    journey = read({"x-death": (an_entry("orders.dlq", "expired"), an_entry())})

    assert journey.origin(found_in="orders.dlq") == a_death()


@pytest.mark.parametrize(
    ("deaths", "queue"),
    [
        # most recent first
        ([("orders", "rejected"), ("retry", "expired")], "orders"),
        ([("orders.dlq", "expired"), ("orders", "rejected")], "orders"),
        ([("orders.dlq", "maxlen"), ("orders", "delivery_limit")], "orders"),
        ([("orders", "rejected"), ("delay", "expired")], "orders"),
        ([("spill", "expired"), ("orders", "maxlen")], "orders"),
        ([("orders.dlq", "expired"), ("orders", "expired")], "orders"),
        ([("second", "rejected"), ("orders", "rejected")], "second"),
        ([("orders", "a reason of later versions"), ("retry", "expired")], "orders"),
        ([("orders.delay.5m", "expired"), ("parked", "expired")], None),
    ],
)
def test_origin_is_the_queue_whose_consumer_gave_up_before_any_hop(
    deaths: list[tuple[str, str]], queue: str | None
) -> None:
    journey = read({"x-death": tuple(an_entry(*death) for death in deaths)})

    origin = journey.origin(found_in="parked")

    assert (origin and origin.queue) == queue


def test_origin_of_an_expired_message_is_the_first_death_in_any_order_of_entries() -> None:
    entries = (an_entry("c", "expired"), an_entry("a", "expired"), an_entry("b", "expired"))  # as RabbitMQ 3
    first: dict[str, HeaderValue] = {"x-first-death-queue": "a", "x-first-death-reason": "expired"}

    journey = read({"x-death": entries, **first})

    assert (origin := journey.origin(found_in="parked")) is not None
    assert origin.queue == "a"


@pytest.mark.parametrize("by", ["time", "header"])
def test_arrival_is_how_the_message_first_came_to_the_queue(by: str) -> None:
    later = AT + timedelta(seconds=1) if by == "time" else AT
    last = an_entry("orders", "delivery_limit", time=later, exchange="", routing_keys=("orders",))
    first = an_entry("orders", "rejected", exchange="shop", routing_keys=("orders.new",))
    named: dict[str, HeaderValue] = {"x-first-death-queue": "orders", "x-first-death-reason": "rejected"}

    journey = read(
        {"x-death": (last, first) if by == "time" else (first, last)} | (named if by == "header" else {})
    )

    assert journey.arrival("orders") == ("shop", "orders.new")
    assert journey.arrival("nowhere") == (None, None)


def test_rejections_are_summed_over_the_reasons_of_a_consumer_alone() -> None:
    deaths = (
        an_entry(count=3),
        an_entry("retry", "expired", count=2),
        an_entry(reason="delivery_limit", count=2),
        an_entry(reason="expired", count=7),
    )
    journey = read({"x-death": deaths})

    assert journey.rejections("orders") == 5
    assert journey.rejections("retry") is None
    assert journey.rejections("nowhere") is None


def test_a_sum_that_nobody_can_store_is_not_told() -> None:
    deaths = (an_entry(count=2**63 - 1), an_entry(reason="delivery_limit", count=1))

    assert read({"x-death": deaths}).rejections("orders") is None


def test_a_sum_with_a_damaged_part_is_not_told() -> None:
    deaths = (an_entry(count=2), an_entry(reason="delivery_limit", count="many"))

    assert read({"x-death": deaths}).rejections("orders") is None


def test_the_time_of_an_entry_is_that_of_the_last_death_only_if_there_was_one() -> None:
    assert a_death(count=1).last_at == AT
    assert a_death(count=2).last_at is None
    assert a_death(count=None).last_at is None


def test_the_first_death_in_a_queue_is_the_earliest_of_its_entries() -> None:
    earlier = AT - timedelta(hours=1)
    journey = read(
        {"x-death": (an_entry(), an_entry(reason="expired", time=earlier), an_entry("x", time=earlier))}
    )

    assert journey.began("orders") == earlier
    assert journey.began("nowhere") is None


def test_the_time_to_live_is_the_one_of_the_oldest_death() -> None:
    deaths = (an_entry(original_expiration="5000"), an_entry("b", original_expiration="60000"), an_entry("c"))

    assert read({"x-death": deaths}).expiration == "60000"


@pytest.mark.parametrize("wrong", ["soon", "-1", "1.5", "", "9" * 13, 60000, "٣"])
def test_a_time_to_live_that_no_broker_would_take_back_is_none(wrong: HeaderValue) -> None:
    journey = read({"x-death": (an_entry(original_expiration=wrong),)})

    assert journey.expiration is None
    assert journey.unreadable == ("x-death",)
