"""The traps that other systems have set for whoever reads their dead letters, one test each."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from redrive.formats.told import Told, read, stripped
from redrive.letters import Headers, HeaderValue, Message

Pairs = Sequence[tuple[str, HeaderValue]]


def a_message(pairs: Pairs) -> Message:
    return Message(body=b'{"order": 17}', headers=Headers(pairs))


def told(pairs: Pairs, queue: str = "dlq") -> Told:
    return read(a_message(pairs), queue)


def test_integers_of_spring_are_binary_and_not_digits() -> None:
    found = told(
        [
            ("kafka_dlt-original-topic", b"orders"),
            ("kafka_dlt-original-partition", b"0001"),  # four bytes, so this is the number they are
            ("kafka_dlt-original-offset", b"\x00\x00\x00\x00\x00\x00\x00\x31"),
        ]
    )

    assert (found.partition, found.offset, found.unreadable) == (0x30303031, 49, ())


def test_a_timestamp_of_a_retry_topic_is_a_biginteger() -> None:
    at = datetime(2026, 2, 11, 11, tzinfo=UTC)
    big_integer = (1770807600000).to_bytes(6, "big")  # as short as it can be

    found = told([("kafka_original-topic", b"orders"), ("retry_topic-original-timestamp", big_integer)])

    assert (found.sent_at, found.unreadable) == (at, ())


def test_when_a_retry_was_due_is_not_when_it_failed() -> None:
    found = told(
        [("kafka_original-topic", b"orders"), ("retry_topic-backoff-timestamp", b"\x01\x9c\x4c\x5b\xff\x00")]
    )

    assert (found.failed_at, found.sent_at) == (None, None)


def test_of_headers_that_repeat_the_last_one_counts_and_all_are_removed() -> None:
    pairs = [("dead-letter-reason", b"first"), ("x", b"1"), ("dead-letter-reason", b"last"), ("x", b"2")]

    assert told(pairs).error_text == "last"
    assert stripped(a_message(pairs)).headers == Headers([("x", b"1"), ("x", b"2")])


def test_a_last_header_without_a_value_does_not_bring_the_first_one_back() -> None:
    assert told([("dead-letter-reason", b"first"), ("dead-letter-reason", None)]).error_text is None


def test_x_death_is_newest_first() -> None:
    entries = tuple(
        Headers({"queue": queue, "reason": "rejected", "count": 1}) for queue in ("newest", "oldest")
    )

    assert told([("x-death", entries)]).source == "newest"


def test_connect_overwrites_nothing_so_the_last_of_its_headers_count() -> None:
    old = [("__connect.errors.stage", b"KEY_CONVERTER"), ("__connect.errors.exception.message", b"old")]
    new = [("__connect.errors.stage", b"TASK_PUT"), ("__connect.errors.exception.message", b"new")]

    found = told([*old, *new])

    assert (found.reason, found.error_text) == ("TASK_PUT", "new")
    assert stripped(a_message([*old, *new])).headers == Headers()


def test_the_class_that_was_running_in_connect_is_not_the_error() -> None:
    running = [("__connect.errors.topic", b"orders"), ("__connect.errors.class.name", b"shop.JsonConverter")]

    assert told(running).error_type is None


@pytest.mark.parametrize(
    ("markers", "header", "longest"),
    [
        ([("exception-type", b"X"), ("failed-at", b"1")], "exception-stack", 8192),
        ([("NServiceBus.FailedQ", b"orders")], "NServiceBus.ExceptionInfo.StackTrace", 16384),
        ([("x-exception-message", b"closed")], "x-exception-stacktrace", 131_072),
    ],
)
def test_a_stack_that_was_cut_is_read_as_far_as_it_goes(markers: Pairs, header: str, longest: int) -> None:
    stack = ("x" + "ö" * longest).encode()[:longest]  # the cut goes through a character

    found = told([*markers, (header, stack)])

    assert (found.stack, found.unreadable) == (stack[:-1].decode(), ())


def test_times_of_nservicebus_have_a_colon_before_their_fraction() -> None:
    found = told(
        [("NServiceBus.FailedQ", b"orders"), ("NServiceBus.TimeOfFailure", b"2026-02-11 11:00:00:000250 Z")]
    )

    assert found.failed_at == datetime(2026, 2, 11, 11, 0, 0, 250, tzinfo=UTC)


@pytest.mark.parametrize("name", ["springDeserializerExceptionKey", "springDeserializerExceptionValue"])
def test_what_java_serialized_is_kept_as_the_bytes_it_is_and_never_read(name: str) -> None:
    serialized = b"\xac\xed\x00\x05sr\x00\x15java.lang.SecretThing"
    message = a_message([("kafka_dlt-original-topic", b"orders"), (name, serialized)])

    found = read(message, "orders-dlt")

    assert "Secret" not in repr(found)
    assert found.unreadable == ()
    assert stripped(message).headers == Headers({name: serialized})


def test_times_of_wolverine_are_milliseconds() -> None:
    found = told([("exception-type", b"X"), ("failed-at", b"1770807600250")])

    assert found.failed_at == datetime(2026, 2, 11, 11, 0, 0, 250000, tzinfo=UTC)


def test_the_old_slip_in_a_name_of_pulsar_is_known_and_the_right_name_counts_first() -> None:
    old, new = ("ORIGIN_MESSAGE_IDY_TIME", b"1:1:1"), ("ORIGIN_MESSAGE_ID", b"2:2:2")

    assert told([old]).message_id == "1:1:1"
    assert told([new, old]).message_id == "2:2:2"
