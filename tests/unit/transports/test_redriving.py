"""What is sent back is the message as it was, marked, and nothing that would keep it from arriving."""

import msgspec

from redrive.letters import DeadLetter, Headers, Hold, Origin
from redrive.letters.redrive import Redrive, marked, redrive_of
from redrive.testing import a_letter, a_message
from redrive.transports.base import Target
from redrive.transports.redriving import SendOptions, attempts_of, publication, target

HOLD = Hold("letter", 3)


def with_message(**fields: object) -> DeadLetter:
    letter = a_letter()
    return msgspec.structs.replace(letter, message=msgspec.structs.replace(letter.message, **fields))


def test_a_redrive_is_the_message_with_the_marks_of_its_letter() -> None:
    letter = a_letter(message=a_message(b"\x00\xff", message_id="m-1"))
    sent = publication(letter, HOLD, SendOptions(), "op-1").message
    assert redrive_of(sent.headers) == Redrive(HOLD, 1, "op-1")
    assert sent.headers.without(
        "redrive-id", "redrive-fence", "redrive-attempt", "redrive-operation", "x-replayed"
    ) == (letter.message.headers)
    assert (sent.body, sent.message_id) == (b"\x00\xff", "m-1")


def test_a_redrive_has_no_time_to_live_and_keeps_every_other_property() -> None:
    letter = with_message(properties=Headers({"expiration": "1", "priority": 4, "reply_to": "answers"}))
    sent = publication(letter, HOLD, SendOptions()).message
    assert sent.properties == Headers({"priority": 4, "reply_to": "answers"})
    assert letter.message.properties.get("expiration") == "1", "the letter keeps what its producer set"


def test_marks_of_an_earlier_redrive_are_replaced_and_its_attempts_are_counted() -> None:
    headers = marked(Headers({"x-tenant": "north"}), Redrive(Hold("earlier", 9), 2))
    letter = msgspec.structs.replace(with_message(headers=headers), dlq_retry_count=1)
    assert attempts_of(letter) == 3, "two under the earlier letter's name, one under its own"
    sent = publication(letter, HOLD, SendOptions()).message
    assert redrive_of(sent.headers) == Redrive(HOLD, 4)
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
