"""What an ONEX record tells, whoever wrote it and whatever happened to it since. Nothing raises."""

import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, strategies as st

from redrive.formats.onex import OnexRead, OnexSender, read, recognises
from redrive.letters import Headers, Message, Origin, TypedValue
from tests.unit.formats.onex_facts import (
    BODY,
    EXAMPLE,
    FAILED_AT,
    HEADERS,
    NOW,
    TOPIC,
    UUID_TEXT,
    payload_of,
    written,
)

NONE = Headers()
ANY_TEXT = st.text(st.characters(exclude_categories=()))  # half surrogate pairs and NULs included
BYTES = st.none() | st.binary()
AWARE = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
FIELDS = [
    *json.loads(EXAMPLE),
    *(f"original_message.{name}" for name in ("key", "value", "offset", "partition")),
]
WRONG: list[Any] = [None, True, 1, -1, 0.5, 10**30, "", "x", "\ud800", [], {}, [[]], {"a": 1}, float("nan")]


def example_with(changes: dict[str, Any], *without: str) -> bytes:
    payload = json.loads(EXAMPLE)
    for name in without:
        place, _, field = name.rpartition(".")
        del (payload[place] if place else payload)[field]
    for name, value in changes.items():
        place, _, field = name.rpartition(".")
        (payload[place] if place else payload)[field] = value
    return json.dumps(payload).encode()


def test_the_example_is_read_whole() -> None:
    assert read(EXAMPLE, HEADERS) == OnexRead(
        message=Message(body=BODY, key=b"order-12345"),
        topic=TOPIC,
        partition=3,
        offset=42,
        error_type="InfraTimeoutError",
        error_text="Database connection timeout after 30s",
        failed_at=FAILED_AT,
        retry_count=3,
        correlation_id=UUID_TEXT,
        message_id="7c9e6679-7425-40de-944b-e07fc1f90ae7",
        written_at=NOW,
        written_by="dev.order-service",
        schema_version="1.0.0",
        priority="normal",
        max_retries=3,
    )
    assert read(EXAMPLE, HEADERS).whole


@given(
    message=st.builds(
        lambda body, key, headers, sent_at: Message(
            body=body, key=key, headers=Headers(headers), sent_at=sent_at
        ),
        BYTES,
        BYTES,
        st.lists(st.tuples(ANY_TEXT, BYTES)),
        st.none() | AWARE,
    ),
    topic=ANY_TEXT,
    place=st.none() | st.integers(0, 2**63 - 1),
    text=ANY_TEXT,
    error_type=ANY_TEXT,
    correlation_id=ANY_TEXT,
    failed_at=AWARE,
    retry_count=st.integers(0, 2**31),
)
@example(Message(body=None), "t", None, "", "", "", FAILED_AT, 0)
@example(Message(body=b"\xff" * 3, key=b"\xff"), "t", 0, "", "", "", FAILED_AT, 0)
def test_what_was_written_is_read_bit_for_bit(
    message: Message,
    topic: str,
    place: int | None,
    text: str,
    error_type: str,
    correlation_id: str,
    failed_at: datetime,
    retry_count: int,
) -> None:
    record = written(
        message,
        origin=Origin(transport="kafka", source=topic, partition=place, offset=place),
        text=text,
        error_type=error_type,
        failed_at=failed_at,
        correlation_id=correlation_id,
        retry_count=retry_count,
    )

    told = read(record.value, record.headers)

    assert told.whole
    assert told.extra == {}
    assert told.message == message
    assert (told.topic, told.partition, told.offset) == (topic, place, place)
    assert (told.error_type, told.error_text) == (error_type, text)
    assert (told.failed_at, told.retry_count) == (failed_at, retry_count)
    assert told.correlation_id == correlation_id
    assert read(record.value, NONE).message == message


def test_header_values_that_no_kafka_client_gives_survive_too() -> None:
    headers = Headers(
        [
            ("text", "x\ud800"),
            ("number", 2**70),
            ("time", NOW),
            ("nested", Headers({"a": (True, None, 0.5, UUID(int=1), Decimal("1.10"))})),
            ("typed", TypedValue("int16", 5)),
        ]
    )
    record = written(Message(body=b"", headers=headers))

    told = read(record.value, record.headers)

    assert told.message == Message(body=b"", headers=headers)


# --- what others write ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        json.dumps(json.loads(EXAMPLE)).encode(),
        json.dumps(json.loads(EXAMPLE), sort_keys=True, indent=4).encode(),
        b"\xef\xbb\xbf" + EXAMPLE,
        b"\r\n " + EXAMPLE + b" \n",
        example_with(
            {"retry_count": "3", "original_message.offset": "42", "original_message.partition": 3.0}
        ),
        example_with({"failure_timestamp": "2024-01-15T14:32:17.456789Z"}),
        example_with({"failure_timestamp": "2024-01-15T14:32:17.456789"}),
        example_with({"failure_timestamp": "2024-01-15 15:32:17.456789+01:00"}),
    ],
)
def test_other_spellings_of_the_example_tell_the_same(value: bytes) -> None:
    assert read(value, HEADERS) == read(EXAMPLE, HEADERS)


def test_headers_in_another_order_or_as_text_tell_the_same() -> None:
    backwards = Headers(reversed(list(HEADERS)))
    as_text = Headers((name, HEADERS.text(name)) for name in [name for name, _ in HEADERS])

    assert read(EXAMPLE, backwards) == read(EXAMPLE, as_text) == read(EXAMPLE, HEADERS)


def test_without_headers_the_payload_still_tells_everything_it_has() -> None:
    told = read(EXAMPLE, NONE)

    assert told.whole
    assert told.message == Message(body=BODY, key=b"order-12345")
    assert (told.message_id, told.written_at, told.max_retries) == (None, None, None)


def test_a_missing_key_is_no_key_and_a_null_value_is_null() -> None:
    told = read(example_with({"original_message.value": None}, "original_message.key"), HEADERS)

    assert told.whole
    assert told.message == Message(body=None, key=None)


def test_what_is_not_understood_is_kept() -> None:
    value = example_with({"failure_class": {"a": [1, None]}, "original_message.compression": "zstd"})
    headers = Headers([("dlq_topic", b"x.dlq"), *HEADERS, ("trace", b"\xff"), ("trace", None)])

    told = read(value, headers)

    assert told.whole
    assert told.message == Message(body=BODY, key=b"order-12345")
    assert told.extra == {
        "failure_class": {"a": [1, None]},
        "original_message": {"compression": "zstd"},
    }
    assert told.extra_headers == Headers([("dlq_topic", b"x.dlq"), ("trace", b"\xff"), ("trace", None)])


def test_a_header_that_says_something_else_than_the_payload_is_kept() -> None:
    headers = HEADERS.with_({"original_topic": b"elsewhere", "retry_count": b"2"})

    told = read(EXAMPLE, Headers([("priority", b"low"), *headers]))

    assert (told.topic, told.retry_count, told.priority) == (TOPIC, 3, "normal")
    assert told.extra_headers == Headers(
        [("priority", b"low"), ("retry_count", b"2"), ("original_topic", b"elsewhere")]
    )


# --- damage -----------------------------------------------------------------------------------------------


def test_headers_fill_in_for_a_payload_that_cannot_be_read() -> None:
    told = read(EXAMPLE[:-1], HEADERS)

    assert told.recognised
    assert not told.whole
    assert told.message is None
    assert (told.topic, told.correlation_id, told.failed_at) == (TOPIC, UUID_TEXT, FAILED_AT)
    assert told.error_text == "Database connection timeout after 30s"
    assert told.problems[0].startswith("payload is not JSON: ")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "payload is empty"),
        (b"", "payload is empty"),
        (b"[]", "payload is not an object"),
        (b'"x"', "payload is not an object"),
        (b"[" * 100_000, "payload is nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "payload is nested too deeply"),
        (example_with({}, "error_type"), "error_type is missing"),
        (example_with({}, "original_message"), "original_message is missing"),
        (example_with({}, "original_message.value"), "original_message.value is missing"),
        (example_with({"original_message.value": 7}), "original_message.value is not text"),
        (
            example_with({"original_message.value": "\ud800"}),
            "original_message.value is not whole text: it has half a surrogate pair",
        ),
        (
            example_with({"original_message.value": "=", "original_message.value_encoding": "base64"}),
            "original_message.value is not base64",
        ),
        (
            example_with({"original_message.value_encoding": "zip"}),
            "original_message.value is not in an encoding known here",
        ),
        (example_with({"original_message.value_encoding": 1}), "original_message.value_encoding is not text"),
        (example_with({"original_message.headers": {"a": "b"}}), "original_message.headers is not a list"),
        (
            example_with({"original_message.headers": [["a", "b", "c"]]}),
            "original_message.headers is not a list of names and values",
        ),
        (
            example_with({"original_message.headers": [["a", "gA==", "packed"]]}),
            "original_message.headers is not a list of names and values",
        ),
        (example_with({"retry_count": -1}), "retry_count is less than zero"),
        (example_with({"retry_count": True}), "retry_count is not an integer"),
        (example_with({"retry_count": float("nan")}), "retry_count is not an integer"),
        (example_with({"retry_count": float("inf")}), "retry_count is not an integer"),
        (example_with({"retry_count": 10**30}), "retry_count is too large a number"),
        (example_with({"failure_timestamp": "yesterday"}), "failure_timestamp is not an ISO-8601 time"),
        (
            example_with({"failure_timestamp": "0001-01-01T00:00:00+23:59"}),
            "failure_timestamp is not an ISO-8601 time",
        ),
    ],
)
def test_the_problem_is_named(value: bytes | None, problem: str) -> None:
    told = read(value, HEADERS)

    assert not told.whole
    assert problem in told.problems


def test_a_number_of_too_many_digits_is_a_problem_and_not_a_crash() -> None:
    value = EXAMPLE.replace(b'"retry_count": 3', b'"retry_count": ' + b"9" * 100_000)

    assert read(value, HEADERS).problems[0].startswith("payload is not JSON: ")


def test_a_message_that_cannot_be_restored_exactly_is_left_as_it_was_found() -> None:
    original = {"key": "k", "value": "??", "value_encoding": "base64", "offset": 1, "partition": 2}

    told = read(example_with({"original_message": original}), HEADERS)

    assert told.message is None
    assert told.extra == {"original_message": original}
    assert (told.offset, told.partition) == (1, 2)


def test_a_count_or_time_that_cannot_be_read_does_not_cost_the_message() -> None:
    value = example_with({"retry_count": "many", "failure_timestamp": 1, "original_message.timestamp": 1})

    told = read(value, HEADERS.with_({"max_retries": b"some"}))

    assert told.message == Message(body=BODY, key=b"order-12345")
    assert told.failed_at == FAILED_AT  # from the header
    assert told.extra["retry_count"] == "many"
    assert told.extra_headers.get("max_retries") == b"some"
    assert len(told.problems) == 4


def test_problems_do_not_repeat_what_may_be_secret() -> None:
    value = example_with({name: ["hunter2"] for name in json.loads(EXAMPLE)})

    told = read(value, HEADERS.with_({"timestamp": b"hunter2", "max_retries": b"hunter2"}))

    assert len(told.problems) == 9
    assert "hunter2" not in " ".join(told.problems)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("wrong", WRONG)
def test_any_type_in_any_field_is_read_or_named(field: str, wrong: Any) -> None:
    told = read(example_with({field: wrong}), NONE)

    assert told.recognised
    assert all(problem.startswith(field) for problem in told.problems)


def test_a_record_cut_at_any_byte_is_never_taken_for_a_whole_one() -> None:
    record = written(Message(body=b"\xff\x00", key=b"k", headers=Headers({"a": b"\xff"})))

    for end in range(len(record.value)):
        told = read(record.value[:end], record.headers)
        assert told.recognised
        assert not told.whole
        assert told.message is None
        assert told.topic == TOPIC
        assert not read(record.value[:end], NONE).whole


@pytest.mark.parametrize("tail", [b"x", b"\x00", b"{}", EXAMPLE, b"\xff"])
def test_trailing_bytes_are_damage(tail: bytes) -> None:
    assert read(EXAMPLE + tail, HEADERS).message is None


def test_flipped_bits_and_random_bytes_never_raise() -> None:
    chance = random.Random(3)
    whole = written(Message(body=b"\xff", headers=Headers({"a": b"\xff", "n": 1}))).value
    for at in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[at // 8] ^= 1 << at % 8
        assert isinstance(read(bytes(flipped), HEADERS), OnexRead)
    for _ in range(300):
        garbage = chance.randbytes(chance.randrange(200))
        assert isinstance(read(garbage, HEADERS), OnexRead)
        assert isinstance(read(b'{"original_topic":"original_message"' + garbage, NONE), OnexRead)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=8,
)


@given(
    changes=st.dictionaries(
        st.sampled_from(
            [*FIELDS[:1], *FIELDS[2:], "original_correlation_id"]
            + [
                f"original_message.{name}"
                for name in ("headers", "key_encoding", "value_encoding", "timestamp")
            ]
        ),
        JSON | st.sampled_from(["base64", "null", "2024-01-01", [["a", "", "packed"]]]),
        min_size=1,
    ),
    headers=st.lists(
        st.tuples(
            st.sampled_from([*sorted(HEADERS.names()), "x"]),
            st.none() | st.binary() | ANY_TEXT | st.integers() | st.floats() | st.just(TypedValue("t", b"3")),
        )
    ),
)
def test_no_payload_and_no_headers_raise(
    changes: dict[str, Any], headers: list[tuple[str, bytes | str | int | float | None]]
) -> None:
    told = read(example_with(changes), Headers(headers))

    assert told.recognised
    assert told.extra_headers.names() <= {name for name, _ in headers}


# --- recognition ------------------------------------------------------------------------------------------


def test_a_record_is_recognised_by_its_header_or_by_its_payload() -> None:
    assert recognises(EXAMPLE, HEADERS)
    assert recognises(EXAMPLE, NONE)
    assert recognises(None, HEADERS)
    assert recognises(b"\xef\xbb\xbf \n" + EXAMPLE, NONE)


@pytest.mark.parametrize(
    "value", [None, b"", b"{}", BODY, b"[" + EXAMPLE + b"]", b'{"original_topic": "x"}', b"\xff"]
)
def test_anything_else_is_not_taken_for_this_format(value: bytes | None) -> None:
    headers = Headers({"event_type": b"order_created", "original_topic": b"x"})

    assert not recognises(value, headers)
    assert read(value, headers) == OnexRead(
        recognised=False, problems=("not an ONEX dead letter",), extra_headers=headers
    )


def test_a_dead_letter_inside_a_dead_letter_is_read_one_layer_at_a_time() -> None:
    inner = written(Message(body=b"\xff"))
    sender = OnexSender(environment="prod", group="second")
    outer = written(
        Message(body=inner.value, headers=inner.headers),
        sender=sender,
        failed_at=FAILED_AT + timedelta(hours=1),
    )

    told = read(outer.value, outer.headers)

    assert told.message is not None
    assert payload_of(outer)["original_message"]["value"] == inner.value.decode()
    again = read(told.message.body, told.message.headers)
    assert again.message == Message(body=b"\xff")
    assert (again.written_by, told.written_by) == ("dev.order-service", "prod.second")


@pytest.mark.parametrize(
    ("written_by", "topic", "group"),
    [
        ("dev.order-service", "order-service.dlq", "order-service"),
        ("dev.order-service", "graves", "order-service"),
        ("dev.team.orders", "team.orders.dlq", "team.orders"),
        ("dev.eu.orders", "graves", None),  # the group may be orders or eu.orders
        ("dev.redrive.dev.orders.v1", "dev.orders.v1.dlq", None),  # a topic that is named after the source
        ("dev", "dev.dlq", None),
        (".shop", "shop.dlq", None),
        (None, "shop.dlq", None),
    ],
)
def test_group_is_read_where_it_differs_from_the_environment(
    written_by: str | None, topic: str, group: str | None
) -> None:
    read = OnexRead(topic="dev.orders.v1", written_by=written_by)
    assert read.group_in(topic) == group
