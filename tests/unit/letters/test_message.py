"""A message is kept as it was; its correlation id is its own wherever it has one (A9)."""

from collections.abc import Mapping
from uuid import UUID

import msgspec
import pytest

from redrive.letters import Headers, HeaderValue, Message, Origin, TypedValue, correlation_id_of
from redrive.letters.message import CORRELATION_HEADERS


def message(headers: Mapping[str, HeaderValue], correlation_id: str | None = None) -> Message:
    return Message(body=b"", correlation_id=correlation_id, headers=Headers(headers))


def is_made_up(correlation_id: str) -> bool:
    return UUID(correlation_id).version == 4


def test_the_property_wins_over_every_header() -> None:
    given = message(dict.fromkeys(CORRELATION_HEADERS, "from a header"), "from the property")
    assert correlation_id_of(given) == "from the property"


@pytest.mark.parametrize("name", CORRELATION_HEADERS)
@pytest.mark.parametrize(
    "value", ["abc-1", b"abc-1", TypedValue("symbol", "abc-1"), TypedValue("binary", b"abc-1")], ids=repr
)
def test_an_id_in_a_header_is_found_as_text_or_as_bytes(name: str, value: HeaderValue) -> None:
    assert correlation_id_of(message({name: value})) == "abc-1"
    assert correlation_id_of(message({name: value}, "")) == "abc-1", "an empty property is none"


@pytest.mark.parametrize(
    "value", ["", b"", b"\xff\xfe", None, 5, True, ("abc",), Headers({"a": "b"})], ids=repr
)
def test_a_header_that_holds_no_text_is_passed_over(value: HeaderValue) -> None:
    first, second = CORRELATION_HEADERS[:2]
    assert correlation_id_of(message({first: value, second: "the next one"})) == "the next one"
    assert is_made_up(correlation_id_of(message({first: value})))


def test_headers_are_asked_in_the_order_of_the_table() -> None:
    everywhere = {name: f"in {name}" for name in reversed(CORRELATION_HEADERS)}
    for name in CORRELATION_HEADERS:
        assert correlation_id_of(message(everywhere)) == f"in {name}"
        del everywhere[name]


def test_of_two_headers_of_one_name_the_last_counts() -> None:
    twice = Message(body=None, headers=Headers([("correlation_id", "old"), ("correlation_id", "new")]))
    assert correlation_id_of(twice) == "new"


def test_a_message_without_an_id_gets_a_new_one_each_time_it_is_asked_for() -> None:
    bare = message({"x-other": "abc"})
    made = {correlation_id_of(bare) for _ in range(1000)}
    assert len(made) == 1000
    assert all(map(is_made_up, made))
    assert bare.correlation_id is None, "asking has changed the message"


@pytest.mark.parametrize(("body", "size"), [(None, 0), (b"", 0), (b"abc", 3), (b"\x00" * 1000, 1000)])
def test_the_size_is_that_of_the_body(body: bytes | None, size: int) -> None:
    assert Message(body=body).size == size


def test_a_null_body_and_a_null_key_are_not_the_empty_ones() -> None:
    assert Message(body=None) != Message(body=b"")
    assert Message(body=b"", key=None) != Message(body=b"", key=b"")


def test_a_message_and_its_origin_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        message({}).body = b"other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Origin(transport="kafka", source="orders").source = "other"  # type: ignore[misc]


def test_what_a_broker_does_not_have_stays_none() -> None:
    origin = Origin(transport="kafka", source="orders")
    unset = set(msgspec.structs.asdict(origin).items()) - {("transport", "kafka"), ("source", "orders")}
    assert {value for _, value in unset} == {None}
