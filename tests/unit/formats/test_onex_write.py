"""What is written is what the ONEX document says (D1), whatever the message was (D2)."""

import json
from base64 import b64decode
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import jsonschema
import msgspec
import pytest
from hypothesis import given, strategies as st

from redrive.formats.onex import OnexSender, dlq_topic
from redrive.letters import Headers, Message, Origin, TypedValue
from tests.unit.formats.onex_facts import (
    BODY,
    EXAMPLE,
    EXAMPLE_HEADERS,
    HEADERS,
    SCHEMA,
    UUID_TEXT,
    payload_of,
    written,
)


def test_the_example_payload_is_reproduced_byte_for_byte() -> None:
    record = written()

    assert msgspec.json.format(record.value, indent=2) == EXAMPLE
    assert record.value == msgspec.json.format(EXAMPLE, indent=-1)


@pytest.mark.parametrize("field", list(json.loads(EXAMPLE)))
def test_each_field_of_the_example_is_reproduced(field: str) -> None:
    assert payload_of(written())[field] == json.loads(EXAMPLE)[field]


def test_the_example_headers_are_reproduced_byte_for_byte_and_in_order() -> None:
    assert list(written().headers) == [(name, text.encode()) for name, text in EXAMPLE_HEADERS]
    assert written().headers == HEADERS
    assert len(HEADERS) == 13


def test_the_dead_letter_topic_is_named_after_the_group_unless_it_is_configured() -> None:
    assert dlq_topic("order-service") == "order-service.dlq"
    assert dlq_topic("order-service", "parked") == "parked"


def test_what_the_sender_is_configured_with_stands_in_the_headers() -> None:
    sender = OnexSender(
        environment="prod.eu", group="g", priority="high", max_retries=7, schema_version="1.1.0"
    )

    headers = written(sender=sender).headers

    assert headers.text("source") == "prod.eu.g"
    assert headers.text("priority") == "high"
    assert headers.text("max_retries") == "7"
    assert headers.text("schema_version") == "1.1.0"


def test_the_payload_counts_the_tries_of_the_original_and_the_header_those_of_the_new_record() -> None:
    record = written(retry_count=5)

    assert payload_of(record)["retry_count"] == 5
    assert record.headers.text("retry_count") == "0"


def test_times_are_in_utc_with_microseconds_whatever_zone_they_came_in() -> None:
    tokyo = datetime(2024, 1, 15, 23, 32, 17, tzinfo=timezone(timedelta(hours=9)))

    record = written(failed_at=tokyo, now=tokyo.replace(tzinfo=None))

    assert payload_of(record)["failure_timestamp"] == "2024-01-15T14:32:17.000000+00:00"
    assert record.headers.text("failure_timestamp") == "2024-01-15T14:32:17.000000+00:00"
    assert record.headers.text("timestamp") == "2024-01-15T23:32:17.000000+00:00"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message(body=b""), {"key": None, "value": ""}),
        (Message(body=None), {"key": None, "value": "", "value_encoding": "null"}),
        (Message(body=b"", key=b""), {"key": "", "value": ""}),
        (Message(body=b"\xff\x00"), {"key": None, "value": "/wA=", "value_encoding": "base64"}),
        (Message(body=b"", key=b"\x80"), {"key": "gA==", "value": "", "key_encoding": "base64"}),
        (Message(body=b"\xed\xa0\x80"), {"key": None, "value": "7aCA", "value_encoding": "base64"}),
        (Message(body="\x00é\u2028😀".encode()), {"key": None, "value": "\x00é\u2028😀"}),
        (Message(body=b"/wA="), {"key": None, "value": "/wA="}),
    ],
)
def test_only_what_text_cannot_hold_gets_an_encoding(message: Message, expected: dict[str, object]) -> None:
    original = payload_of(written(message))["original_message"]

    assert original == {**expected, "offset": 42, "partition": 3}


def test_headers_of_the_original_are_kept_in_order_with_duplicates_and_nulls() -> None:
    headers = Headers(
        [("a", b"1"), ("b", None), ("a", b"\xff"), ("", b""), ("text", "x"), ("n", TypedValue("int16", 5))]
    )

    original = payload_of(written(Message(body=BODY, headers=headers)))["original_message"]

    assert original["headers"][:5] == [
        ["a", "1"],
        ["b", None],
        ["a", "/w==", "base64"],
        ["", ""],
        ["text", "x", "text"],
    ]
    name, packed, encoding = original["headers"][5]
    assert (name, encoding) == ("n", "packed")
    assert b64decode(packed)


def test_a_message_without_headers_or_time_gets_no_field_for_them() -> None:
    assert set(payload_of(written())["original_message"]) == {"key", "value", "offset", "partition"}


def test_the_time_the_original_was_sent_is_kept() -> None:
    message = Message(body=BODY, sent_at=datetime(2024, 1, 15, 14, tzinfo=UTC))

    assert payload_of(written(message))["original_message"]["timestamp"] == "2024-01-15T14:00:00.000000+00:00"


def test_an_unknown_partition_and_offset_are_minus_one_as_in_kafka() -> None:
    original = payload_of(written(origin=Origin(transport="kafka", source="t")))["original_message"]

    assert (original["partition"], original["offset"]) == (-1, -1)


@pytest.mark.parametrize("text", [UUID_TEXT, UUID_TEXT.upper(), str(UUID(int=0))])
def test_a_correlation_id_that_is_a_uuid_is_left_as_it_is(text: str) -> None:
    record = written(correlation_id=text)

    payload = payload_of(record)
    assert payload["correlation_id"] == record.headers.text("correlation_id") == text
    assert "original_correlation_id" not in payload


def test_a_uuid_without_hyphens_gets_them_and_keeps_its_own_spelling_beside() -> None:
    payload = payload_of(written(correlation_id=UUID_TEXT.replace("-", "")))

    assert payload["correlation_id"] == UUID_TEXT
    assert payload["original_correlation_id"] == UUID_TEXT.replace("-", "")


@pytest.mark.parametrize(
    "text", ["trace-17", "", "\x00", "\ud800", "é", UUID_TEXT + "\n", "{" + UUID_TEXT + "}"]
)
def test_any_other_correlation_id_is_kept_beside_a_uuid_that_always_stands_for_it(text: str) -> None:
    record = written(correlation_id=text)

    payload = payload_of(record)
    assert payload["original_correlation_id"] == text
    assert payload["correlation_id"] == record.headers.text("correlation_id")
    assert payload["correlation_id"] == payload_of(written(correlation_id=text))["correlation_id"]
    assert UUID(payload["correlation_id"]).version == 5


def test_the_uuid_of_a_text_never_changes() -> None:
    """Other programs may compute it too: version 5, URL namespace, "urn:correlation:" before the text."""
    assert (
        payload_of(written(correlation_id="trace-17"))["correlation_id"]
        == "d5d17fe2-c5bb-55a8-a398-192ca44ec126"
    )


def test_error_text_with_half_a_surrogate_pair_is_written_all_the_same() -> None:
    record = written(text="bad \ud800 text", error_type="Odd\udfffError")

    payload = payload_of(record)
    assert payload["failure_reason"] == "bad \ud800 text"
    assert payload["error_type"] == "Odd\udfffError"
    assert record.headers.get("failure_reason") == rb"bad \ud800 text"


@given(
    body=st.none() | st.binary(),
    key=st.none() | st.binary(),
    correlation_id=st.text(st.characters(exclude_categories=())),
    text=st.text(st.characters(exclude_categories=())),
    retry_count=st.integers(0, 2**31),
    headers=st.lists(st.tuples(st.text(), st.none() | st.binary())),
)
def test_every_payload_is_valid_under_the_schema(
    body: bytes | None,
    key: bytes | None,
    correlation_id: str,
    text: str,
    retry_count: int,
    headers: list[tuple[str, bytes | None]],
) -> None:
    message = Message(body=body, key=key, headers=Headers(headers))

    record = written(message, correlation_id=correlation_id, text=text, retry_count=retry_count)

    payload_of(record)
    assert record.headers.names() == HEADERS.names()
    assert all(isinstance(value, bytes) for _, value in record.headers)


@pytest.mark.parametrize(
    "change",
    [{"correlation_id": "trace-17"}, {"failure_timestamp": "2024-01-15T14:32:17"}, {"retry_count": -1}],
)
def test_the_schema_check_of_these_tests_is_not_blind(change: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate({**json.loads(EXAMPLE), **change})
