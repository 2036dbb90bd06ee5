"""What is sent back is the message as it was, marked, and nothing that would keep it from arriving."""

import msgspec

from redrive.letters import ClaimToken, ConsumerRef, DeadLetter, Headers, Origin
from redrive.letters.message import own_correlation_id
from redrive.letters.redrive import Redrive, content_digest, marked, redrive_of, unmarked
from redrive.testing import a_letter, a_message
from redrive.transports.base import Target
from redrive.transports.redriving import SendOptions, addressee, attempts_of, publication, target

HOLD = ClaimToken("letter", 3)


def with_message(**fields: object) -> DeadLetter:
    letter = a_letter()
    return msgspec.structs.replace(letter, message=msgspec.structs.replace(letter.message, **fields))


def test_a_redrive_is_the_message_with_the_marks_of_its_letter() -> None:
    letter = a_letter(message=a_message(b"\x00\xff", message_id="m-1"))
    sent = publication(letter, HOLD, SendOptions(), "op-1").message
    to = ConsumerRef("rabbitmq", "orders")
    assert redrive_of(sent.headers) == Redrive(HOLD, 1, "op-1", to, content_digest(letter.message))
    assert unmarked(sent.headers).without("redrive-correlation-id") == letter.message.headers
    assert sent.headers.get("redrive-correlation-id") == letter.correlation_id, (
        "the message has none of its own"
    )
    assert (sent.body, sent.message_id) == (b"\x00\xff", "m-1")


def test_a_redrive_has_no_time_to_live_and_keeps_every_other_property() -> None:
    letter = with_message(properties=Headers({"expiration": "1", "priority": 4, "reply_to": "answers"}))
    sent = publication(letter, HOLD, SendOptions()).message
    assert sent.properties == Headers({"priority": 4, "reply_to": "answers"})
    assert letter.message.properties.get("expiration") == "1", "the letter keeps what its producer set"


def test_headers_of_an_earlier_redrive_are_replaced_and_its_attempts_are_counted() -> None:
    headers = marked(a_message(headers=Headers({"x-tenant": "north"})), Redrive(ClaimToken("earlier", 9), 2))
    letter = msgspec.structs.replace(with_message(headers=headers), dlq_retry_count=1)
    assert attempts_of(letter) == 3, "two under the earlier letter's name, one under its own"
    sent = publication(letter, HOLD, SendOptions()).message
    redrive = redrive_of(sent.headers)
    assert redrive is not None
    assert (redrive.hold, redrive.attempt) == (HOLD, 4)
    assert [name for name, _ in sent.headers].count("redrive-id") == 1


def test_a_message_without_an_id_gets_that_of_its_letter_and_a_new_one_only_if_asked_for() -> None:
    letter = with_message(message_id=None)
    assert publication(letter, HOLD, SendOptions()).message.message_id == letter.id
    named = with_message(message_id="m-1")
    assert publication(named, HOLD, SendOptions(message_id="new")).message.message_id not in ("m-1", None)


def test_it_goes_to_the_queue_it_died_in_unless_somebody_says_otherwise() -> None:
    origin = Origin(transport="rabbitmq", source="orders", exchange="shop", routing_key="orders.new")
    letter = a_letter(origin=origin)
    assert target(letter, SendOptions()) == Target(name="orders")
    assert target(letter, SendOptions(to="exchange")) == Target(
        name="orders", exchange="shop", routing_key="orders.new"
    )
    assert target(letter, SendOptions(redirects={"orders": "orders.v2"})) == Target(name="orders.v2")
    assert target(letter, SendOptions(target="elsewhere", redirects={"orders": "orders.v2"})) == Target(
        name="elsewhere"
    )


def test_redrive_names_the_group_that_failed_and_no_group_for_another_topic() -> None:
    origin = Origin(transport="kafka", source="orders", consumer_group="shop")
    letter = a_letter(origin=origin, broker="events")
    assert addressee(letter, SendOptions()) == ConsumerRef("events", "orders", "shop")
    assert addressee(letter, SendOptions(target="orders.v2")) == ConsumerRef("events", "orders.v2")
    assert addressee(letter, SendOptions(redirects={"orders": "orders.v2"})) == ConsumerRef(
        "events", "orders.v2"
    )
    redrive = redrive_of(publication(letter, HOLD, SendOptions(to="exchange")).message.headers)
    assert redrive is not None
    assert (redrive.to, redrive.scope) == (ConsumerRef("events", "orders", "shop"), "all")


def test_correlation_id_of_the_letter_stays_with_its_message_over_all_redrives() -> None:
    letter = with_message(correlation_id=None, headers=Headers())
    first = publication(letter, HOLD, SendOptions()).message
    again = publication(letter, ClaimToken(letter.id, 4), SendOptions()).message
    assert own_correlation_id(first) == own_correlation_id(again) == letter.correlation_id
    named = with_message(correlation_id="c-1")
    sent = publication(named, HOLD, SendOptions()).message
    assert "redrive-correlation-id" not in sent.headers.names()


def test_redrives_before_this_letter_are_counted_by_the_letter_or_by_headers_of_version_1() -> None:
    assert attempts_of(msgspec.structs.replace(a_letter(), prior_redrives=4, dlq_retry_count=1)) == 5
    huge = msgspec.structs.replace(a_letter(), prior_redrives=2**31 - 1, dlq_retry_count=9)
    assert attempts_of(huge) == 2**31 - 1
