"""What is sealed comes out as it was, whatever a broker did to it on the way."""

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from redrive.amqp.errors import FrameSyntaxError
from redrive.amqp.properties import (
    BasicProperties,
    decode_properties,
    encode_properties,
    read_headers,
    replace_fields,
)
from redrive.amqp.table import encode_bare_table
from redrive.transports.rabbitmq.envelope import (
    DELIVERIES,
    NOT_BEFORE,
    seal,
    seal_publication,
    seal_with,
    unseal,
)
from tests.unit.transports.rabbitmq.test_message import PROPERTIES

DEATHS = {
    "x-death": [{"queue": "elsewhere", "reason": "expired", "count": 1}],
    "x-first-death-queue": "elsewhere",
    "x-first-death-reason": "expired",
    "x-first-death-exchange": "",
}
BROKER = {
    "x-delivery-count": 3,
    "x-death": [{"queue": "orders.delay.1s", "reason": "expired", "count": 2}],
    **{
        f"x-{which}-death-{what}": value
        for which in ("first", "last")
        for what, value in (("queue", "orders.delay.1s"), ("reason", "expired"), ("exchange", ""))
    },
}


@given(PROPERTIES, st.booleans())
def test_sealing_is_undone(had: BasicProperties, waits: bool) -> None:
    raw = encode_properties(had)

    sealed = seal(raw, "me", marks={DELIVERIES: 4, NOT_BEFORE: 5}, route=("shop", "orders.new"), waits=waits)
    found = unseal(sealed, "orders")

    assert found.properties == raw
    assert (found.deliveries, found.not_before, found.broker_count) == (4, 5, None)
    assert found.route("", "orders") == ("shop", "orders.new")


@given(PROPERTIES)
def test_what_a_broker_does_to_a_message_that_waits_is_undone(had: BasicProperties) -> None:
    """It dies in the delay queue: the headers are sorted, and the death is told among them."""
    raw = encode_properties(had)
    sealed = seal(raw, "me", marks={DELIVERIES: 2}, route=("", "q"), waits=True)
    died = {**read_headers(sealed), **BROKER}
    seen = replace_fields(sealed, headers=dict(sorted(died.items())))

    found = unseal(seen, "orders")

    assert found.properties == raw
    assert (found.deliveries, found.broker_count) == (2, 3)


def test_deaths_that_others_caused_are_kept() -> None:
    raw = encode_properties(BasicProperties(headers=DEATHS))

    sealed = seal(raw, "me", marks={DELIVERIES: 2}, waits=True)

    # RabbitMQ 4 replaces an x-death that a client sent; before 4 it is merged. Either way none is there to be touched.
    assert "x-death" not in read_headers(sealed)
    assert unseal(sealed, "orders").properties == raw


def test_a_death_in_a_delay_queue_is_taken_out_and_one_in_between_stays() -> None:
    ours, theirs = {"queue": "orders.delay.5m"}, {"queue": "billing.delay.5m"}
    raw = encode_properties(BasicProperties(headers={"x-death": [ours, theirs], DELIVERIES: 2}))

    assert read_headers(unseal(raw, "orders").properties) == {"x-death": [theirs]}


def test_a_copy_does_not_expire_reaches_nobody_twice_and_is_durable() -> None:
    raw = encode_properties(
        BasicProperties(
            headers={"CC": ["audit"], "BCC": ["spy"]}, expiration="5", delivery_mode=1, user_id="other"
        )
    )

    sealed = decode_properties(seal(raw, "me"))

    assert (sealed.expiration, sealed.user_id, sealed.delivery_mode) == (None, None, 2)
    assert sealed.headers is not None
    assert not {"CC", "BCC"} & set(sealed.headers)


def test_our_own_user_id_stays_where_it_is() -> None:
    raw = encode_properties(BasicProperties(user_id="me", delivery_mode=2))

    assert seal(raw, "me") == raw
    assert seal_publication(raw, "me") == raw


@given(PROPERTIES)
def test_a_publication_is_durable_and_comes_out_as_it_was(had: BasicProperties) -> None:
    raw = encode_properties(had)

    sealed = seal_publication(raw, "me")

    assert decode_properties(sealed).delivery_mode == 2
    assert decode_properties(sealed).expiration == had.expiration
    assert unseal(sealed, "orders").properties == raw


def test_a_count_is_for_its_own_queue_alone() -> None:
    """A message that was released and then dead-lettered by the broker begins anew in the dead-letter queue."""
    raw = encode_properties(BasicProperties(message_id="m"))
    sealed = seal(raw, "me", marks={DELIVERIES: 3, NOT_BEFORE: 9}, back_to="orders", route=("shop", "new"))

    there, elsewhere = unseal(sealed, "orders"), unseal(sealed, "orders.dlq")

    assert (there.deliveries, there.not_before) == (3, 9)
    assert (elsewhere.deliveries, elsewhere.not_before) == (1, None)
    assert elsewhere.route("orders.dlx", "orders") == ("shop", "new")
    assert there.properties == elsewhere.properties == raw


def test_seal_keeps_the_queue_of_a_remembered_route_when_another_queue_puts_the_message_back() -> None:
    raw = encode_properties(BasicProperties(message_id="m"))
    in_orders = seal(raw, "me", marks={DELIVERIES: 2}, back_to="orders", route=("shop", "new"))
    found = unseal(in_orders, "orders.dlq")

    in_dlq = seal(
        found.properties,
        "me",
        marks={DELIVERIES: 2},
        back_to="orders.dlq",
        route=found.route("orders.dlx", "new"),
        route_queue=found.route_queue,
    )

    again = unseal(in_dlq, "orders.dlq")
    assert (again.route("", "orders.dlq"), again.route_queue) == (("shop", "new"), "orders")
    assert (again.deliveries, again.properties) == (2, raw)
    first_hop = seal(raw, "me", back_to="orders.dlq", route=("orders.dlx", "new"))
    assert unseal(first_hop, "orders.dlq").route_queue == "orders.dlq"


def test_a_quorum_queue_is_known_by_either_of_its_counts() -> None:
    def counted(**headers: object) -> int | None:
        table = {name.replace("_", "-"): value for name, value in headers.items()}
        return unseal(encode_properties(BasicProperties(headers=table)), "q").broker_count

    assert counted(x_delivery_count=2) == 2
    assert counted(x_delivery_count=2, x_acquired_count=7) == 2
    assert counted(x_acquired_count=7) == 0
    assert counted(other=1) is None


def test_nonsense_in_our_headers_is_no_reason_to_fail() -> None:
    odd = {DELIVERIES: "many", NOT_BEFORE: [], "redrive-original-exchange": 5, "x-death": "x"}
    odd |= {
        f"redrive-original-{name}": [] for name in ("expiration", "user-id", "delivery-mode", "order", "cc")
    }

    found = unseal(encode_properties(BasicProperties(headers=odd)), "q")

    assert (found.deliveries, found.not_before) == (1, None)
    assert found.route("ex", "key") == ("ex", "key")


def test_what_redrive_tells_of_a_death_is_no_seal() -> None:
    """A dead letter that nobody sealed comes out as the octets that it went in with, not packed anew."""
    headers = {"redrive-reason": "NonRetryableError", "redrive-source": "orders", "x-death": []}
    properties = encode_properties(BasicProperties(headers=headers, message_id="m-1"))
    assert unseal(properties, "orders.dlq").properties is properties


@given(PROPERTIES)
def test_what_goes_to_one_queue_asks_the_broker_for_no_copies_and_comes_out_as_it_was(
    had: BasicProperties,
) -> None:
    raw = replace_fields(
        encode_properties(had), (), headers={**(had.headers or {}), "CC": ["audit"], "BCC": ["spy"]}
    )

    sealed = seal_publication(raw, "me", to_one=True)

    assert not {"CC", "BCC"} & set(read_headers(sealed))
    assert unseal(sealed, "orders").properties == raw
    assert {"CC", "BCC"} <= set(read_headers(seal_publication(raw, "me"))), "an exchange makes them"


# --- marks whose octets are known -----------------------------------------------------------------------------

MARKS = {"redrive-reason": "PoisonMessage", "redrive-retry-count": 3}


@given(PROPERTIES)
def test_marks_in_octets_seal_as_the_same_marks_do(had: BasicProperties) -> None:
    raw = encode_properties(had)

    sealed = seal_with(raw, "me", encode_bare_table(MARKS))

    assert sealed in (None, seal(raw, "me", marks=MARKS))


@pytest.mark.parametrize(
    "had",
    [
        BasicProperties(delivery_mode=2),
        BasicProperties(delivery_mode=2, headers={}),
        BasicProperties(delivery_mode=2, headers={"x-tenant": "north"}, user_id="me", message_id="1"),
        BasicProperties(content_type="text/plain", content_encoding="utf-8", delivery_mode=2, timestamp=1),
    ],
)
def test_a_message_that_needs_nothing_but_marks_is_not_packed_anew(had: BasicProperties) -> None:
    raw = encode_properties(had)

    assert seal_with(raw, "me", encode_bare_table(MARKS)) == seal(raw, "me", marks=MARKS)


@pytest.mark.parametrize(
    "had",
    [
        BasicProperties(),
        BasicProperties(delivery_mode=1),
        BasicProperties(delivery_mode=2, expiration="1000"),
        BasicProperties(delivery_mode=2, user_id="somebody"),
        BasicProperties(delivery_mode=2, headers={"CC": ["other"]}),
        BasicProperties(delivery_mode=2, headers={"BCC": ["other"]}),
        BasicProperties(delivery_mode=2, headers={"x-delivery-count": 1}),
        BasicProperties(delivery_mode=2, headers={"redrive-reason": "of an earlier death"}),
    ],
)
def test_a_message_that_needs_more_is_left_to_those_who_know(had: BasicProperties) -> None:
    assert seal_with(encode_properties(had), "me", encode_bare_table(MARKS)) is None


@given(st.binary(max_size=60))
def test_garbage_is_sealed_in_both_ways_or_in_none(garbage: bytes) -> None:
    with suppress(FrameSyntaxError):
        sealed = seal_with(garbage, "me", encode_bare_table(MARKS))
        if sealed is not None:
            assert read_headers(sealed) == read_headers(seal(garbage, "me", marks=MARKS))


def test_headers_that_cannot_be_read_are_not_added_to() -> None:
    raw = b"\x30\x00\x00\x00\x00\x02\x01x\x02"  # a table that ends in the middle, then the delivery mode

    with pytest.raises(FrameSyntaxError):
        seal_with(raw, "me", encode_bare_table(MARKS))


def test_copy_keeps_earlier_deaths_and_adds_those_that_follow() -> None:
    first = {"queue": "work", "reason": "rejected", "count": 2, "time": 1}
    other = {"queue": "wait", "reason": "expired", "count": 2}
    raw = encode_properties(
        BasicProperties(headers={"x-death": [first, other], "x-first-death-queue": "work"})
    )
    sealed = seal(raw, "me", marks={DELIVERIES: 1}, back_to="work", route=("", "work"))
    assert "x-death" not in read_headers(sealed)
    assert not unseal(sealed, "work").has_died
    assert unseal(sealed, "work").properties == raw

    # When the broker dead-letters the copy
    again = {"queue": "work", "reason": "rejected", "count": 1, "time": 9}
    since = {"x-death": [again], "x-first-death-queue": "work", "x-last-death-queue": "work"}
    died = replace_fields(sealed, (), headers={**read_headers(sealed), **since})

    # Then it is known, its deliveries begin anew, and the history is one
    found = unseal(died, "work")
    assert (found.has_died, found.deliveries) == (True, 1)
    assert read_headers(found.properties) == {
        "x-death": [{**first, "count": 3}, other],
        "x-first-death-queue": "work",
        "x-last-death-queue": "work",
    }
