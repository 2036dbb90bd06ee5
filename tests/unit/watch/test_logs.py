"""Lines have the texts and fields of the seeds, and a flood of them drowns nobody (D4, G4)."""

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from redrive.errors import SettingsError
from redrive.testing import ManualClock
from redrive.testing.factories import a_failure, a_letter, a_message
from redrive.watch.logs import JsonFormatter, Logs, TextFormatter, configure
from tests.unit.watch.deliveries import ADamagedDelivery, ADelivery, an_event

SECOND = timedelta(seconds=1)


class Kept(logging.Handler):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        return [f"{record.levelname} {record.getMessage()}" for record in self.records]


@pytest.fixture
def kept() -> Iterator[Kept]:
    logger, kept = logging.getLogger("tests.lines"), Kept()
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(kept)
    yield kept
    logger.handlers.clear()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def logs(kept: Kept, clock: ManualClock) -> Logs:
    return Logs(logging.getLogger("tests.lines"), clock=clock)


# --- texts and fields ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("PoisonMessage", "Poison message detected - moving to DLQ: MessageId=m-17, DeliveryCount=4"),
        (
            "NonRetryableError",
            "Non-retryable error for message: MessageId=m-17, Error=External API timeout after 5000ms",
        ),
        ("MaxDeliveryCountExceeded", "Message exceeded max delivery count: MessageId=m-17, DeliveryCount=4"),
        (
            "CustomBusinessRule",
            "Message dead-lettered by its handler: MessageId=m-17, Reason=CustomBusinessRule",
        ),
    ],
)
def test_a_dead_letter_is_told_by_its_reason_and_where_it_lies(
    logs: Logs, kept: Kept, reason: str, line: str
) -> None:
    letter = a_letter(message=a_message(message_id="m-17", correlation_id="trace-17"), reason=reason)
    logs.dead_lettered(an_event(letter, delivery_count=4))
    assert kept.lines == [f"WARNING {line}", "INFO Published failed message to DLQ: orders.dlq"]
    why, where = (vars(record) for record in kept.records)
    assert fields(
        why, "queue_name", "message_id", "delivery_count", "correlation_id", "reason", "error_type"
    ) == (*("orders", "m-17", 4, "trace-17", reason, "TimeoutError"),)
    assert fields(where, "original_topic", "dlq_topic", "correlation_id", "error_type", "letter_id") == (
        *("orders", "orders.dlq", "trace-17", "TimeoutError", letter.id),
    )


def fields(record: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(record[name] for name in names)


def test_a_dead_letter_that_is_not_durable_is_an_error(logs: Logs, kept: Kept) -> None:
    logs.dead_lettered(an_event(error="cannot reach amqp://u:hunter2x9@h/"))
    assert kept.lines[1:] == ["ERROR Failed to publish to DLQ topic orders.dlq"]
    assert vars(kept.records[1])["dlq_error"] == "cannot reach amqp://u:[REDACTED:url-password]@h/"
    assert vars(kept.records[1])["original_topic"] == "orders"


def test_a_message_that_is_lost_is_told_as_lost(logs: Logs, kept: Kept) -> None:
    logs.dead_lettered(an_event(error="no queue", lost=True))
    assert kept.lines[2] == (
        "ERROR Message lost, settled without a dead letter: MessageId=message-orders/1, Error=no queue"
    )


def test_a_message_without_an_id_is_known_by_its_letters(logs: Logs, kept: Kept) -> None:
    letter = a_letter(message=a_message())
    logs.dead_lettered(an_event(letter))
    assert f"MessageId={letter.id}, " in kept.lines[0]


def test_everything_else_has_its_line(logs: Logs, kept: Kept) -> None:
    delivery = ADelivery(count=2)
    logs.retrying("orders", delivery, 1, a_failure(), timedelta(seconds=2.5))
    logs.given_back("orders", delivery, timedelta(seconds=5), a_failure())
    logs.given_back("orders", ADamagedDelivery(count=None, key="orders/9"), None, None)
    logs.too_late("orders", 3)
    logs.paused("orders", "most deliveries fail")
    logs.resumed("orders")
    logs.failed("orders", "callback pager", ValueError("token=abc123XYZ9 expired"))
    assert kept.lines == [
        "INFO Retrying message: MessageId=message-1, Attempt=1, Error=External API timeout after 5000ms",
        "INFO Abandoning message for retry: MessageId=message-1, DeliveryCount=2",
        "INFO Abandoning message for retry: MessageId=orders/9, DeliveryCount=1",
        "WARNING Settlement too late, expect redelivery: Queue=orders, Count=3",
        "WARNING Source paused: Queue=orders, Reason=most deliveries fail",
        "INFO Source resumed: Queue=orders",
        (
            "ERROR Consumer error: Queue=orders, Component=callback pager, "
            "Error=ValueError: token=[REDACTED:token] expired"
        ),
    ]
    assert fields(vars(kept.records[0]), "wait_seconds", "attempt", "error_kind") == (2.5, 1, "timeout")
    assert {vars(record)["queue_name"] for record in kept.records} == {"orders"}


def test_failed_attempt_is_an_error_with_correlation_id_and_stack(logs: Logs, kept: Kept) -> None:
    delivery = ADelivery(a_message(message_id="m-17", correlation_id="trace-17"), count=2)
    failure = a_failure(stack="Traceback (most recent call last):\n  in handle\n")
    logs.attempt_failed("orders", delivery, 2, failure)
    assert kept.lines == [
        (
            "ERROR Message processing failed: MessageId=m-17, Attempt=2, CorrelationId=trace-17, "
            "Error=TimeoutError: External API timeout after 5000ms"
        )
    ]
    assert fields(
        vars(kept.records[0]), "queue_name", "message_id", "correlation_id", "attempt", "error_stack"
    ) == ("orders", "m-17", "trace-17", 2, failure.stack)


def test_failed_attempt_at_a_damaged_message_is_logged_as_well(logs: Logs, kept: Kept) -> None:
    logs.attempt_failed("orders", ADamagedDelivery(key="orders/9"), 1, a_failure())
    assert kept.lines[0].startswith("ERROR Message processing failed: MessageId=orders/9, Attempt=1, ")


def test_failed_publish_of_a_dead_letter_is_logged_with_its_traceback(logs: Logs, kept: Kept) -> None:
    logs.dead_lettered(an_event(error="no queue", error_stack="Traceback (most recent call last):\n  here\n"))
    assert vars(kept.records[1])["error_stack"].startswith("Traceback (most recent call last):")


def test_what_many_messages_do_is_not_told_at_all(logs: Logs, kept: Kept) -> None:
    logs.received("orders", 16)
    logs.completed("orders", 16)
    assert kept.records == []


def test_lines_of_a_level_that_is_off_are_neither_written_nor_counted(
    logs: Logs, kept: Kept, clock: ManualClock
) -> None:
    logging.getLogger("tests.lines").setLevel(logging.ERROR)
    for _ in range(100):
        logs.dead_lettered(an_event())
    logs.close()
    assert kept.records == []


def test_text_from_outside_stays_on_its_line(logs: Logs, kept: Kept) -> None:
    forged = a_message(message_id="m\nWARNING forged")
    logs.dead_lettered(an_event(a_letter(message=forged), description="a\r\nb"))
    assert kept.lines[0] == (
        r"WARNING Non-retryable error for message: MessageId=m\nWARNING forged, Error=a\r\nb"
    )


def test_a_filter_that_raises_and_a_field_that_is_taken_stop_nobody(logs: Logs, kept: Kept) -> None:
    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = usual(*args, **kwargs)
        record.correlation_id = "set by the service"
        return record

    usual = logging.getLogRecordFactory()
    logging.setLogRecordFactory(factory)
    try:
        logs.dead_lettered(an_event())
    finally:
        logging.setLogRecordFactory(usual)
    assert vars(kept.records[1])["redrive_correlation_id"] == "trace-orders/1"

    def broken(record: logging.LogRecord) -> bool:
        raise OSError("no space left on device")

    logging.getLogger("tests.lines").addFilter(broken)
    try:
        logs.resumed("orders")
    finally:
        logging.getLogger("tests.lines").removeFilter(broken)


# --- floods ----------------------------------------------------------------------------------------------


async def test_ten_thousand_dead_letters_in_a_second_are_forty_lines_and_two_numbers(
    logs: Logs, kept: Kept, clock: ManualClock
) -> None:
    event = an_event(reason="PoisonMessage")
    for _ in range(10_000):
        logs.dead_lettered(event)
    assert len(kept.records) == 40
    await asyncio.sleep(0)
    clock.advance(SECOND)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert kept.lines[40:] == [
        "WARNING Poison message detected - moving to DLQ: … and 9,980 more",
        "INFO Published failed message to DLQ: … and 9,980 more",
    ]
    assert vars(kept.records[40])["suppressed"] == 9_980


def test_one_queues_flood_does_not_hide_anothers_line(logs: Logs, kept: Kept) -> None:
    for _ in range(100):
        logs.too_late("orders", 1)
    logs.too_late("payments", 1)
    assert kept.lines[-1] == "WARNING Settlement too late, expect redelivery: Queue=payments, Count=1"
    logs.close()
    assert kept.lines[-1] == "WARNING Settlement too late, expect redelivery: … and 80 more"
    assert len(kept.lines) == 22


# --- formats ---------------------------------------------------------------------------------------------


class Silly:
    def __str__(self) -> str:
        raise ValueError("I do not tell")


def written(formatter: logging.Formatter, *args: Any, **fields: Any) -> str:
    record = logging.getLogger("tests.format").makeRecord(
        *("tests.format", logging.INFO, "here.py", 1, args[0], args[1:], None), extra=fields
    )
    return formatter.format(record)


def test_json_has_time_level_logger_message_and_every_field() -> None:
    found = msgspec.json.decode(written(JsonFormatter(), "hello %s", "world", queue_name="orders", count=3))
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "info",
        "logger": "tests.format",
        "message": "hello world",
        "queue_name": "orders",
        "count": 3,
    }


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Silly(), "(a Silly without text)"),
        (SECOND, "PT1S"),
        ({1}, [1]),
        ({"a": [b"\xff\x00"]}, {"a": ["\\xff\x00"]}),
        ("\ud800", "\ufffd"),
        ({"a": "\ud800"}, r"{'a': '\ud800'}"),
        (float("nan"), None),
        (2**70, 2**70),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ({"password": "swordfish"}, {"password": "[REDACTED:password]"}),
        (ValueError("token=abc123XYZ9"), "token=[REDACTED:token]"),
        (a_failure("x"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_line_is_written_whatever_its_fields_hold(value: object, told: object) -> None:
    found = msgspec.json.decode(written(JsonFormatter(), "hello", field=value))
    assert found["message"] == "hello"
    if told is not None:
        assert found["field"] == told


def test_a_circle_is_told_as_text() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert msgspec.json.decode(written(JsonFormatter(), "hello", field=circle))["field"] == "[[...]]"


def test_a_field_named_like_one_of_ours_does_not_replace_it() -> None:
    found = msgspec.json.decode(written(JsonFormatter(), "hello", level="mine", time="mine"))
    assert (found["level"], found["level_"], found["time_"]) == ("info", "mine", "mine")


def test_a_field_whose_name_says_secret_is_hidden_whatever_it_holds() -> None:
    found = msgspec.json.decode(written(JsonFormatter(), "hello", api_key="open sesame", author="Ann"))
    assert (found["api_key"], found["author"]) == ("[REDACTED:api-key]", "Ann")


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
def test_words_that_do_not_fit_their_text_are_written_all_the_same(formatter: logging.Formatter) -> None:
    assert "%d of %d (1,)" in written(formatter, "%d of %d", 1)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("format_", ["text", "json"])
def test_secrets_of_other_libraries_are_hidden_too(root: logging.Logger, format_: Any) -> None:
    stream = io.StringIO()
    configure("info", format_, stream)
    try:
        raise OSError("no answer from redis://u:hunter2x9@cache/0")  # noqa: TRY301  a traceback is wanted
    except OSError:
        logging.getLogger("some.library").exception("retrying with password=hunter2x9")
    text = stream.getvalue()
    assert "hunter2x9" not in text
    assert "OSError: no answer from redis://u:[REDACTED:url-password]@cache/0" in text
    assert text.count("\n") == (1 if format_ == "json" else text.count("\n"))


def test_asked_again_the_last_configuration_counts_and_others_handlers_stay(root: logging.Logger) -> None:
    others = list(root.handlers)
    first, second = io.StringIO(), io.StringIO()
    configure("info", "text", first)
    configure("WARNING", "json", second)
    logging.getLogger("a").info("quiet")
    logging.getLogger("a").warning("loud")
    assert first.getvalue() == ""
    assert msgspec.json.decode(second.getvalue())["message"] == "loud"
    assert [handler for handler in root.handlers if handler in others] == others


def test_an_unknown_level_or_format_is_refused_with_a_hint(root: logging.Logger) -> None:
    with pytest.raises(SettingsError, match=r"log level 'warn1ng' is unknown; did you mean 'warning'\?"):
        configure("warn1ng")
    with pytest.raises(SettingsError, match="log format 'xml' is unknown; use one of text, json"):
        configure("info", "xml")  # type: ignore[arg-type]


def test_a_traceback_of_trouble_stands_below_its_line(kept: Kept, logs: Logs) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 / 0
    logs.failed("orders", "callback pager", caught.value)
    text = TextFormatter().format(kept.records[0])
    assert text.splitlines()[0].endswith("Error=ZeroDivisionError: division by zero")
    assert text.splitlines()[1] == "Traceback (most recent call last):"


HOSTILE = "eve\n2026-01-01 INFO root: all is well\x1b[31m\x9b1m\u202eabc\U000e0041"


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
def test_text_of_clients_cannot_forge_lines_or_steer_a_terminal(formatter: logging.Formatter) -> None:
    record = logging.makeLogRecord({"msg": "login of '%s' refused", "args": (HOSTILE,), "user": HOSTILE})
    line = formatter.format(record)
    assert line.isprintable()
    assert "eve\\n2026" in line
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["message"] == f"login of '{HOSTILE}' refused"
        assert json.loads(line)["user"] == HOSTILE


def test_traceback_keeps_its_lines_and_escapes_their_content() -> None:
    try:
        raise ValueError(f"no queue '{HOSTILE}'")  # noqa: TRY301
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()})
    lines = TextFormatter().format(record).split("\n")
    assert lines[1] == "Traceback (most recent call last):"
    assert all(line.isprintable() for line in lines)
