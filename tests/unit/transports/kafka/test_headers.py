"""A message becomes a record and comes back as it was, bit for bit."""

from datetime import UTC, datetime

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message as Record
from hypothesis import given, strategies as st

from redrive.errors import FormatError
from redrive.letters import Headers, Message, TypedValue
from redrive.transports.kafka.headers import Outgoing, message_of, outgoing, pairs_of

SOME_TIME = datetime(2026, 2, 11, 12, 0, 5, 123456, tzinfo=UTC)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20).filter(
    lambda name: (
        not name.startswith("redrive-")
        and name.lower() not in ("content-type", "content_type", "contenttype")
    )
)
texts = st.none() | st.text(st.characters(codec="utf-8"), max_size=20)


def arrived(sent: Outgoing, timestamp: tuple[int, int] = (TIMESTAMP_NOT_AVAILABLE, -1)) -> Message:
    record = Record(
        topic=sent.topic,
        partition=0,
        offset=1,
        key=sent.key,
        value=sent.value,
        headers=sent.headers,  # type: ignore[arg-type]  # null is a value too, which the stub forgets
        timestamp=timestamp,
    )
    return message_of(record, pairs_of(record))


@given(
    body=st.none() | st.binary(),
    key=st.none() | st.binary(),
    headers=st.lists(st.tuples(names, st.none() | st.binary())),
    content_type=texts,
    message_id=texts,
    correlation_id=texts,
    sent_at=st.none() | st.just(SOME_TIME),
)
def test_what_is_sent_arrives(headers: list[tuple[str, bytes | None]], **fields: object) -> None:
    message = Message(headers=Headers(headers), **fields)  # type: ignore[arg-type]
    assert arrived(outgoing(message, "orders")) == message


def test_the_header_of_a_producer_tells_the_content_type_and_stays() -> None:
    message = arrived(Outgoing("orders", None, b"", [("content-type", b"application/json")]))
    assert message.content_type == "application/json"
    assert outgoing(message, "orders").headers == [("content-type", b"application/json")]


def test_text_and_numbers_travel_as_text() -> None:
    headers = Headers({"text": "né", "number": 7, "yes": True, "half": 0.5, "time": SOME_TIME})
    sent = outgoing(Message(body=b"", headers=headers), "orders").headers
    assert sent == [
        ("text", "né".encode()),
        ("number", b"7"),
        ("yes", b"true"),
        ("half", b"0.5"),
        ("time", b"2026-02-11T12:00:05.123456+00:00"),
    ]


@pytest.mark.parametrize("value", [TypedValue("int16", 5), Headers({"a": 1}), ("a", 1)])
def test_what_kafka_cannot_carry_is_refused(value: object) -> None:
    with pytest.raises(FormatError, match=r"header 'odd' is a .*change it"):
        outgoing(Message(body=b"", headers=Headers([("odd", value)])), "orders")  # type: ignore[list-item]


def test_the_time_of_a_record_is_when_it_was_sent_unless_a_copy_remembers_better() -> None:
    plain = Outgoing("orders", None, b"", [])
    assert arrived(plain, (TIMESTAMP_CREATE_TIME, 1000)).sent_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    copy = outgoing(Message(body=b"", sent_at=SOME_TIME), "orders")
    assert arrived(copy, (TIMESTAMP_CREATE_TIME, 1000)).sent_at == SOME_TIME


@pytest.mark.parametrize("time", [-1, 2**62])
def test_a_time_beyond_reason_is_no_time(time: int) -> None:
    assert arrived(Outgoing("orders", None, b"", []), (TIMESTAMP_CREATE_TIME, time)).sent_at is None
