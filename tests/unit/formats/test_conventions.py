"""The table of conventions: each row reads what its system documents, and a row of one's own is checked."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from redrive.errors import SettingsError
from redrive.formats.conventions import Facts, recognised, with_own, without_added
from redrive.formats.systems import SYSTEMS
from redrive.formats.told import Told
from redrive.letters import Headers, HeaderValue, Message, TypedValue
from redrive.letters.convention import FACTS, FORMS, Convention


def facts_of(
    headers: Mapping[str, HeaderValue], body: bytes | None = b"{}", *more: Convention
) -> Facts | None:
    message = Message(body=body, headers=Headers(headers))
    return next(recognised(message, dict(message.headers), with_own(more)), None)


def known(headers: Mapping[str, HeaderValue], body: bytes | None = b"{}", *more: Convention) -> Facts:
    facts = facts_of(headers, body, *more)
    assert facts is not None
    return facts


def kept(headers: Mapping[str, HeaderValue]) -> list[str]:
    return [name for name, _ in without_added(Headers(headers), [known(headers)])]


# --- MassTransit ------------------------------------------------------------------------------------------

MASSTRANSIT: dict[str, HeaderValue] = {
    "Content-Type": "application/vnd.masstransit+json",
    "publishId": "1",
    "MT-Reason": "fault",
    "MT-Fault-ExceptionType": "System.InvalidOperationException",
    "MT-Fault-Message": "The order 17 is closed",
    "MT-Fault-Timestamp": "2026-02-11T11:00:00.5841863Z",
    "MT-Fault-StackTrace": "   at Shop.Orders.Consume(ConsumeContext`1 context) in /src/Orders.cs:line 58",
    "MT-Fault-InputAddress": "rabbitmq://localhost/shop/orders?durable=true",
    "MT-Fault-ConsumerType": "Shop.OrderConsumer",
    "MT-Fault-MessageType": "Shop.SubmitOrder",
    "MT-Fault-RetryCount": TypedValue("int32", 3),
    "MT-Fault-Address": "rabbitmq://localhost/shop/faults",
    "MT-Host-MachineName": "worker-1",
    "MT-Host-Info": "{}",
    "MT-Redelivery-Count": TypedValue("int32", 5),
    "MT-OriginalMessageId": "5e460000-6ade-4ccc-7c84-08d4f46e35cd",
}


def test_masstransit_tells_error_time_source_and_retries() -> None:
    facts = known(MASSTRANSIT)

    assert facts.convention.name == "masstransit"
    assert facts.unreadable == ()
    assert facts.values == {
        "reason": "fault",
        "error_type": "System.InvalidOperationException",
        "error_text": "The order 17 is closed",
        "stack": MASSTRANSIT["MT-Fault-StackTrace"],
        "source": "orders",
        "failed_at": datetime(2026, 2, 11, 11, 0, 0, 584186, tzinfo=UTC),
        "retry_count": 3,
        "message_id": "5e460000-6ade-4ccc-7c84-08d4f46e35cd",
    }


def test_of_masstransit_only_what_the_fault_added_is_removed() -> None:
    assert kept(MASSTRANSIT) == [
        "Content-Type",
        "publishId",
        "MT-Fault-Address",
        "MT-Host-Info",
        "MT-OriginalMessageId",
    ]


@pytest.mark.parametrize(
    ("address", "queue"),
    [
        ("rabbitmq://localhost/orders", "orders"),
        ("rabbitmq://user@host:5672/vhost/orders?prefetch=16&temporary=true", "orders"),
        ("rabbitmq://localhost/vhost/new%20orders", "new orders"),
        ("sb://shop.servicebus.windows.net/orders", "orders"),
        ("queue:orders", "orders"),
        (b"rabbitmq://localhost/orders", "orders"),
    ],
)
def test_the_source_is_the_queue_at_the_end_of_an_address(address: HeaderValue, queue: str) -> None:
    assert known({"MT-Reason": "fault", "MT-Fault-InputAddress": address}).values["source"] == queue


@pytest.mark.parametrize("address", ["", "rabbitmq://localhost/", "rabbitmq://[::1/orders", 7])
def test_an_address_without_a_queue_is_unreadable(address: HeaderValue) -> None:
    facts = known({"MT-Reason": "fault", "MT-Fault-InputAddress": address})

    assert facts.unreadable == ("MT-Fault-InputAddress",)
    assert facts.values == {"reason": "fault"}


# --- NServiceBus ------------------------------------------------------------------------------------------

NSERVICEBUS: dict[str, HeaderValue] = {
    "NServiceBus.MessageId": "m-1",
    "NServiceBus.CorrelationId": "c-1",
    "NServiceBus.TimeSent": "2026-02-11 10:59:00:000000 Z",
    "NServiceBus.FailedQ": "Shop.Orders",
    "NServiceBus.TimeOfFailure": "2026-02-11 11:00:00:123456 Z",
    "NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
    "NServiceBus.ExceptionInfo.InnerExceptionType": "System.IO.IOException",
    "NServiceBus.ExceptionInfo.HelpLink": None,
    "NServiceBus.ExceptionInfo.Message": "The operation has timed out",
    "NServiceBus.ExceptionInfo.Source": "Shop",
    "NServiceBus.ExceptionInfo.StackTrace": "System.TimeoutException: The operation has timed out\n   at Shop.Handle()",
    "NServiceBus.ExceptionInfo.Data.Handler": "OrderHandler",
    "NServiceBus.FLRetries": "4",
    "NServiceBus.ProcessingEndpoint": "Shop.Orders",
}


def test_nservicebus_tells_error_time_and_source() -> None:
    facts = known(NSERVICEBUS)

    assert facts.convention.name == "nservicebus"
    assert facts.unreadable == ()
    assert facts.values == {
        "error_type": "System.TimeoutException",
        "error_text": "The operation has timed out",
        "stack": NSERVICEBUS["NServiceBus.ExceptionInfo.StackTrace"],
        "source": "Shop.Orders",
        "failed_at": datetime(2026, 2, 11, 11, 0, 0, 123456, tzinfo=UTC),
        "retry_count": 4,
        "correlation_id": "c-1",
        "message_id": "m-1",
    }


def test_of_nservicebus_what_names_the_message_stays() -> None:
    assert kept(NSERVICEBUS) == ["NServiceBus.MessageId", "NServiceBus.CorrelationId", "NServiceBus.TimeSent"]


def test_of_several_headers_for_one_fact_the_first_that_tells_counts() -> None:
    both = NSERVICEBUS | {"NServiceBus.Retries": "2"}
    damaged = NSERVICEBUS | {"NServiceBus.Retries": "two"}

    assert known(both).values["retry_count"] == 2
    assert known(damaged).values["retry_count"] == 4
    assert known(damaged).unreadable == ("NServiceBus.Retries",)


@pytest.mark.parametrize(
    "wrong", ["2026-02-11T11:00:00Z", "2026-02-11 11:00:00:123456", "2026-13-11 11:00:00:1 Z", "", 7]
)
def test_a_time_that_nservicebus_would_not_write_is_unreadable(wrong: HeaderValue) -> None:
    facts = known(NSERVICEBUS | {"NServiceBus.TimeOfFailure": wrong})

    assert facts.unreadable == ("NServiceBus.TimeOfFailure",)
    assert "failed_at" not in facts.values


# --- Spring AMQP, Rebus, Wolverine --------------------------------------------------------------------------

SPRING: dict[str, HeaderValue] = {
    "x-tenant": "north",
    "x-exception-stacktrace": "java.lang.IllegalStateException: closed\n\tat shop.Orders.handle(Orders.java:58)\n",
    "x-exception-message": "closed",
    "x-original-exchange": "",
    "x-original-routingKey": "orders",
}


def test_spring_amqp_tells_text_stack_and_route() -> None:
    facts = known(SPRING)

    assert facts.convention.name == "spring-amqp"
    assert facts.values == {
        "error_text": "closed",
        "stack": SPRING["x-exception-stacktrace"],
        "exchange": "",
        "routing_key": "orders",
    }
    assert kept(SPRING) == ["x-tenant"]


def test_an_exception_without_a_message_is_no_damage() -> None:
    facts = known(SPRING | {"x-exception-message": None})

    assert facts.unreadable == ()
    assert "error_text" not in facts.values


def test_rebus_tells_details_and_source() -> None:
    rebus: dict[str, HeaderValue] = {
        "rbs2-msg-id": "m-1",
        "rbs2-error-details": "System.Exception: x",
        "rbs2-source-queue": "orders",
    }

    assert known(rebus).convention.name == "rebus"
    assert known(rebus).values == {
        "error_text": "System.Exception: x",
        "stack": "System.Exception: x",
        "source": "orders",
    }
    assert kept(rebus) == ["rbs2-msg-id"]


def test_wolverine_tells_error_time_and_source() -> None:
    wolverine: dict[str, HeaderValue] = {
        "exception-type": "System.Exception",
        "exception-message": "x",
        "exception-stack": "at Shop",
        "failed-at": "1770807600250",
        "original-destination": "rabbitmq://queue/orders",
    }
    facts = known(wolverine)

    assert facts.convention.name == "wolverine"
    assert facts.values == {
        "error_type": "System.Exception",
        "error_text": "x",
        "stack": "at Shop",
        "failed_at": datetime(2026, 2, 11, 11, 0, 0, 250000, tzinfo=UTC),
        "source": "orders",
    }
    assert kept(wolverine) == []


# --- Dramatiq and Celery ----------------------------------------------------------------------------------

TRACEBACK = (
    'Traceback (most recent call last):\n  File "/app/worker.py", line 9, in process_message\n    res = actor(*args)\n'
    '  File "/app/orders.py", line 3, in ship\n    raise ValueError("no: such order")\nValueError: no: such order\n'
)


def a_task(**options: object) -> bytes:
    return msgspec.json.encode(
        {
            "queue_name": "default",
            "actor_name": "ship",
            "args": [17],
            "kwargs": {},
            "options": options,
            "message_id": "b2f0",
            "message_timestamp": 1770807000000,
        }
    )


def test_dramatiq_tells_its_traceback_in_the_body() -> None:
    facts = known({}, a_task(retries=3, traceback=TRACEBACK, requeue_timestamp=1770807600250))

    assert facts.convention.name == "dramatiq"
    assert facts.unreadable == ()
    assert facts.values == {
        "error_type": "ValueError",
        "error_text": "no: such order",
        "stack": TRACEBACK,
        "retry_count": 3,
        "failed_at": datetime(2026, 2, 11, 11, 0, 0, 250000, tzinfo=UTC),
        "message_id": "b2f0",
    }


def test_a_task_that_never_failed_tells_only_its_id() -> None:
    assert known({}, a_task()).values == {"message_id": "b2f0"}


def test_damaged_options_are_named_by_their_path() -> None:
    facts = known({}, a_task(retries="many", traceback=7, requeue_timestamp=-1))

    assert set(facts.unreadable) == {"options.retries", "options.traceback", "options.requeue_timestamp"}


CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.mark.parametrize(
    ("printed", "error_type", "text"),
    [
        (TRACEBACK, "ValueError", "no: such order"),
        (
            TRACEBACK.replace("ValueError: no: such order\n", "shop.errors.Closed\n"),
            "shop.errors.Closed",
            None,
        ),
        (TRACEBACK + CAUSE + TRACEBACK.replace("ValueError: ", "OSError: "), "OSError", "no: such order"),
        (
            TRACEBACK.replace("such order\n", "such\norder\n  at all\n"),
            "ValueError",
            "no: such\norder\n  at all",
        ),
        ("ValueError: no frames\n", None, None),
        ('  File "half', None, None),
        ('Traceback (most recent call last):\n  File "a.py", line 1, in f\n', None, None),
        ("", None, None),
    ],
)
def test_type_and_text_are_those_that_python_prints_last(
    printed: str, error_type: str | None, text: str | None
) -> None:
    values = known({}, a_task(traceback=printed)).values

    assert (values.get("error_type"), values.get("error_text")) == (error_type, text)
    assert values["stack"] == printed


@pytest.mark.timeout(60)  # by a reader that goes back, this would take days
def test_a_long_traceback_without_an_end_does_not_hold_the_reader_up() -> None:
    assert "error_type" not in known({}, a_task(traceback='  File "\n' * 1_000_000)).values


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"",
        b"\xff\x00",
        b"[]",
        b'{"actor_name": "ship"',
        b'{"order": {"actor_name": 1, "queue_name": 2, "options": 3, "message_id": 4}}',
        b'"actor_name" "queue_name" "options" "message_id"',
        b"[" * 100_000 + b'"actor_name" "queue_name" "options" "message_id"',
        b'{"a":' * 100_000 + b'"actor_name" "queue_name" "options" "message_id"',
    ],
)
def test_a_body_that_is_no_task_is_not_recognised(body: bytes | None) -> None:
    assert facts_of({}, body) is None


def test_celery_is_recognised_and_tells_no_error() -> None:
    celery: dict[str, HeaderValue] = {
        "lang": "py",
        "task": "shop.ship",
        "id": "t-1",
        "root_id": "t-0",
        "parent_id": None,
        "retries": TypedValue("int32", 2),
    }
    facts = known(celery)

    assert facts.convention.name == "celery"
    assert facts.values == {"message_id": "t-1", "retry_count": 2}
    assert kept(celery) == list(celery)


@pytest.mark.parametrize("missing", ["task", "id", "root_id"])
def test_everyday_names_have_to_be_there_all_together(missing: str) -> None:
    celery: dict[str, HeaderValue] = {"task": "shop.ship", "id": "t-1", "root_id": "t-0"}

    assert facts_of({name: value for name, value in celery.items() if name != missing}) is None


# --- values as wires have them ----------------------------------------------------------------------------


@pytest.mark.parametrize("vector", [MASSTRANSIT, NSERVICEBUS, SPRING])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda value: TypedValue("outer", TypedValue("inner", value)),
        lambda value: value.encode() if isinstance(value, str) else value,
        lambda value: TypedValue("longstr", value.encode()) if isinstance(value, str) else value,
    ],
)
def test_values_may_be_bytes_or_remember_their_wire_type(vector: dict[str, HeaderValue], wrap: Any) -> None:
    assert known({name: wrap(value) for name, value in vector.items()}) == known(vector)


def test_a_text_that_was_cut_within_a_character_loses_no_more_than_that() -> None:
    assert known({"x-exception-message": "Größe".encode()[:3]}).values == {"error_text": "Gr"}


@pytest.mark.parametrize(
    "wrong", [b"Gr\xf6\xdfe", 7, ("x",), Headers({"x": 1}), TypedValue("any", 1.5), True]
)
def test_a_text_that_is_none_is_named_and_kept(wrong: HeaderValue) -> None:
    headers = SPRING | {"x-exception-message": wrong}

    assert known(headers).unreadable == ("x-exception-message",)
    assert kept(headers) == ["x-tenant", "x-exception-message"]


def test_an_id_may_be_a_uuid_of_the_wire() -> None:
    uuid = UUID("5e460000-6ade-4ccc-7c84-08d4f46e35cd")

    assert known({"MT-Reason": "fault", "MT-OriginalMessageId": uuid}).values["message_id"] == str(uuid)


def test_a_time_may_be_one_of_the_wire() -> None:
    at = datetime(2026, 2, 11, 11, tzinfo=UTC)

    assert known({"MT-Reason": "fault", "MT-Fault-Timestamp": at}).values["failed_at"] == at


@pytest.mark.parametrize("wrong", [2**63, "9" * 19, -1, True, "soon"])
def test_milliseconds_beyond_any_calendar_are_unreadable(wrong: HeaderValue) -> None:
    assert known({"exception-type": "X", "failed-at": wrong}).unreadable == ("failed-at",)


# --- a row of one's own -----------------------------------------------------------------------------------

OURS = Convention(
    name="ours",
    recognised_by=("shop-error",),
    fields={"error_text": "shop-error", "failed_at": "shop-at", "source": "shop-queue"},
    forms={"failed_at": "unix-ms"},
    adds=("shop-*",),
    queue_suffixes=("-dead",),
)


def test_a_row_of_one_s_own_needs_no_code() -> None:
    facts = known({"shop-error": "x", "shop-at": 1770807600000, "shop-queue": "orders"}, None, OURS)

    assert facts.convention is OURS
    assert facts.values == {
        "error_text": "x",
        "failed_at": datetime(2026, 2, 11, 11, tzinfo=UTC),
        "source": "orders",
    }
    assert without_added(Headers({"shop-error": "x", "shop": 1}), [facts]) == Headers({"shop": 1})


def test_a_row_can_be_written_as_data() -> None:
    written = msgspec.json.decode(msgspec.json.encode(OURS), type=Convention)

    assert written == OURS


@pytest.mark.parametrize(("queue", "source"), [("orders-dead", "orders"), ("-dead", None), ("orders", None)])
def test_a_suffix_tells_the_source(queue: str, source: str | None) -> None:
    assert OURS.source_of(queue) == source


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recognised_by": ()}, "convention 'ours': 'recognised_by' must name at least one header"),
        (
            {"fields": {"error_txt": "x"}},
            "convention 'ours': unknown fact 'error_txt'; did you mean 'error_text'?",
        ),
        (
            {"forms": {"mood": "text"}},
            "convention 'ours': unknown fact 'mood'; use one of reason, error_type, ",
        ),
        (
            {"forms": {"failed_at": "unix_ms"}},
            "convention 'ours': unknown form 'unix_ms'; did you mean 'unix-ms'?",
        ),
        (
            {"in_body": True},
            "convention 'ours': 'adds' cannot be used with a JSON body, which is kept unchanged",
        ),
    ],
)
def test_a_row_that_cannot_be_is_refused_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        msgspec.structs.replace(OURS, **change)

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_every_fact_is_a_field_of_told_and_every_form_exists() -> None:
    assert set(FACTS) <= set(Told.__struct_fields__)
    assert set(FACTS.values()) <= set(FORMS)


def test_no_two_rows_have_the_same_name() -> None:
    assert len({row.name for row in SYSTEMS}) == len(SYSTEMS)


def test_whatever_a_row_adds_it_is_told_from_the_marks_of_a_redrive() -> None:
    marks = ("redrive-id", "redrive-fence", "redrive-attempt", "redrive-operation", "x-replayed")

    assert not any(row.added(mark) for row in SYSTEMS for mark in marks)
