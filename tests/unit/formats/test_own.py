"""redrive's own headers on a dead letter: what is written is read again, and what is damaged is named."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from redrive.amqp.table import decode_table, encode_table
from redrive.formats import own
from redrive.formats.own import (
    LONGEST_DESCRIPTION,
    LONGEST_STACK,
    LONGEST_WORD,
    PREFIX,
    OwnDeath,
    read,
    recognises,
    strip,
    tell,
    write,
)
from redrive.letters import DeadLetter, FailureKind, Headers, HeaderValue, Origin, SystemState, TypedValue
from redrive.testing import a_failure, a_letter, a_message

AT = datetime(2026, 2, 11, 11, 0, 0, 123456, tzinfo=UTC)
ORIGIN = Origin(
    transport="kafka",
    source="orders",
    exchange="",
    routing_key="eu.orders",
    partition=0,
    offset=42,
    consumer_group="shop",
)
STACK = (
    'Traceback (most recent call last):\n  File "app/orders.py", line 3, in handle\nTimeoutError: no answer\n'
)

ANY_TEXT = st.text(
    st.characters(exclude_categories=()), max_size=30
)  # half surrogate pairs and NULs included
FOREIGN_NAMES = ANY_TEXT.filter(lambda name: not name.startswith(PREFIX))
# Text that a wire can give: octets that are not UTF-8 stand in it as lone surrogates.
WIRE_TEXT = st.binary(max_size=30).map(lambda octets: octets.decode("utf-8", "surrogateescape"))
UTF8_TEXT = st.text(max_size=30)
AWARE = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
COUNT = st.integers(0, 2**63 - 1)


def a_death(**fields: Any) -> DeadLetter:
    fields.setdefault("origin", ORIGIN)
    fields.setdefault("failure", a_failure(at=AT, stack=STACK))
    fields.setdefault("first_failed_at", AT - timedelta(minutes=5))
    return a_letter(**fields)


def known(headers: Headers) -> OwnDeath:
    death = read(headers)
    assert death is not None
    return death


FAILURES = st.builds(
    a_failure,
    UTF8_TEXT,
    error_type=UTF8_TEXT,
    at=AWARE,
    kind=st.sampled_from(FailureKind),
    retryable=st.booleans(),
    rule=st.none() | UTF8_TEXT,
    stack=st.none() | UTF8_TEXT,
)
ORIGINS = st.builds(
    Origin,
    transport=WIRE_TEXT,
    source=WIRE_TEXT,
    exchange=st.none() | WIRE_TEXT,
    routing_key=st.none() | WIRE_TEXT,
    partition=st.none() | COUNT,
    offset=st.none() | COUNT,
    consumer_group=st.none() | WIRE_TEXT,
)
LETTERS = st.builds(
    a_letter,
    WIRE_TEXT,
    failure=FAILURES,
    origin=ORIGINS,
    reason=UTF8_TEXT,
    retry_count=COUNT,
    first_failed_at=AWARE,
    correlation_id=UTF8_TEXT,
)


# --- writing --------------------------------------------------------------------------------------------


def test_every_fact_of_a_letter_has_its_header() -> None:
    written = dict(write(a_death(correlation_id="trace-1", reason="PoisonMessage"), 4))

    assert written == {
        "redrive-version": "2",
        "redrive-reason": "PoisonMessage",
        "redrive-description": "External API timeout after 5000ms",
        "redrive-error-type": "TimeoutError",
        "redrive-failure-kind": "timeout",
        "redrive-error-rule": "type TimeoutError",
        "redrive-retryable": False,
        "redrive-stack": STACK,
        "redrive-failed-at": "2026-02-11T11:00:00.123456+00:00",
        "redrive-first-failed-at": "2026-02-11T10:55:00.123456+00:00",
        "redrive-retry-count": 3,
        "redrive-delivery-count": 4,
        "redrive-key": "orders/1",
        "redrive-correlation-id": "trace-1",
        "redrive-failure-group": a_death().group,
        "redrive-transport": "kafka",
        "redrive-source": "orders",
        "redrive-origin-exchange": "",
        "redrive-origin-routing-key": "eu.orders",
        "redrive-origin-partition": 0,
        "redrive-origin-offset": 42,
        "redrive-consumer-group": "shop",
    }


def test_letters_of_one_cause_share_what_they_have_in_common() -> None:
    first, second = (
        tell(
            a_death(
                key=f"orders/{number}", failure=a_failure(at=AT + timedelta(seconds=number), stack=STACK)
            ),
            1,
        )
        for number in (1, 2)
    )

    assert first.shared is second.shared
    assert first.single != second.single
    assert {"redrive-key", "redrive-failed-at", "redrive-correlation-id"} <= dict(first.single).keys()


@given(LETTERS, LETTERS)
def test_no_letter_tells_what_another_one_has_told(one: DeadLetter, other: DeadLetter) -> None:
    before = write(one, 1)
    write(other, 1)

    assert write(one, 1) == before == write(msgspec.structs.replace(one, reason=one.reason + ""), 1)
    assert (write(one, 1) == write(other, 1)) is (written_anew(one) == written_anew(other))


def written_anew(letter: DeadLetter) -> Headers:
    """As if nothing had been written before."""
    own._kept_shared.cache_clear()
    return write(letter, 1)


def test_what_is_too_long_to_be_remembered_is_told_all_the_same() -> None:
    long = a_failure("x" * 20_000, at=AT, stack=STACK * 200)

    assert write(a_death(failure=long), 1) == write(a_death(failure=long), 1)
    assert dict(write(a_death(failure=long), 1))["redrive-description"] == "x" * LONGEST_DESCRIPTION


def test_what_is_not_known_has_no_header() -> None:
    letter = a_death(origin=Origin(transport="memory", source="orders"), failure=a_failure(rule=None))

    assert not write(letter, None).names() & {
        f"redrive-{name}"
        for name in (
            "error-rule",
            "stack",
            "delivery-count",
            "exchange",
            "routing-key",
            "partition",
            "offset",
        )
    }


def test_the_message_s_own_headers_are_not_among_those_to_add() -> None:
    letter = a_death(message=a_message(headers=Headers({"x-tenant": "north", "redrive-id": "1"})))

    assert write(letter, 1).names().isdisjoint({"x-tenant", "redrive-id"})


def test_a_time_of_another_zone_is_written_in_utc() -> None:
    letter = a_death(failure=a_failure(at=AT.astimezone(timezone(timedelta(hours=5, minutes=30)))))

    assert write(letter, 1).get("redrive-failed-at") == "2026-02-11T11:00:00.123456+00:00"


def test_a_long_stack_keeps_its_end_and_a_long_text_its_beginning() -> None:
    stack, text = "far\n" + "é" * LONGEST_STACK + "near", "begin" + "é" * LONGEST_DESCRIPTION

    written = write(a_death(failure=a_failure(text, stack=stack, error_type="T" * 5000)), 1)

    kept_stack, kept_text = str(written.text("redrive-stack")), str(written.text("redrive-description"))
    assert LONGEST_STACK - 4 <= len(kept_stack.encode()) <= LONGEST_STACK
    assert stack.endswith(kept_stack)
    assert LONGEST_DESCRIPTION - 4 <= len(kept_text.encode()) <= LONGEST_DESCRIPTION
    assert text.startswith(kept_text)
    assert written.get("redrive-error-type") == "T" * LONGEST_WORD


def test_a_group_is_that_of_the_whole_failure_and_not_of_what_was_kept() -> None:
    frame = '  File "app/orders.py", line 3, in handle\n'
    letter = a_death(failure=a_failure("lost", stack=frame + "x" * LONGEST_STACK))

    death = known(write(letter, 1))

    assert death.failure is not None
    assert death.failure.fingerprint != letter.group
    assert death.group == letter.group


# --- reading what was written -----------------------------------------------------------------------------


@given(LETTERS, st.none() | COUNT)
def test_what_is_written_is_read_again(letter: DeadLetter, delivery_count: int | None) -> None:
    death = known(write(letter, delivery_count))

    assert death.unreadable == ()
    assert death.failure == letter.failure
    assert death.origin == letter.origin
    assert (death.reason, death.key, death.group) == (letter.reason, letter.key, letter.group)
    assert death.correlation_id == letter.correlation_id
    assert death.first_failed_at == letter.first_failed_at
    assert (death.retry_count, death.delivery_count) == (letter.retry_count, delivery_count)


@given(LETTERS)
def test_a_wire_that_carries_text_alone_loses_nothing(letter: DeadLetter) -> None:
    written = write(letter, 7)

    as_text = Headers((name, str(value).encode("utf-8", "surrogateescape")) for name, value in written)

    assert read(as_text) == read(written)


@given(LETTERS)
def test_an_amqp_table_carries_them_with_their_types(letter: DeadLetter) -> None:
    written = write(letter, 7)

    table, _ = decode_table(encode_table(dict(written)))

    carried = Headers(
        (name, value if isinstance(value, str | int) else bytes(value))  # type: ignore[call-overload]
        for name, value in table.items()
    )
    assert read(carried) == read(written)


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_text_that_no_wire_can_carry_does_not_keep_a_letter_from_being_written(
    key: str, text: str, stack: str
) -> None:
    origin = Origin(transport="memory", source=key, routing_key=text)
    letter = a_letter(key, origin=origin, failure=a_failure(text, error_type=text, stack=stack), reason=text)

    written = write(letter, 1)

    encode_table(dict(written))  # raises if it cannot be
    assert known(written).unreadable == ()


@pytest.mark.parametrize(
    "wrap", [lambda v: TypedValue("any", v), lambda v: TypedValue("outer", TypedValue("inner", v))]
)
def test_a_value_that_remembers_its_wire_type_is_read_as_well(wrap: Any) -> None:
    written = write(a_death(), 4)

    assert read(Headers((name, wrap(value)) for name, value in written)) == read(written)


def test_of_a_name_that_repeats_the_last_one_counts() -> None:
    written = write(a_death(reason="second"), 4)

    assert known(Headers([("redrive-reason", "first"), *written])).reason == "second"


# --- reading anything else --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers", [{}, {"x-tenant": "north"}, {"redrive-id": "1", "redrive-source": "orders"}]
)
def test_a_message_without_a_reason_is_no_dead_letter_of_redrive(headers: dict[str, HeaderValue]) -> None:
    assert read(Headers(headers)) is None
    assert not recognises(Headers(headers))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("reason", 7),
        ("failure-kind", "mood"),
        ("retryable", "perhaps"),
        ("retryable", 1),
        ("failed-at", "yesterday"),
        ("first-failed-at", "10000-01-01T00:00:00"),
        ("retry-count", -1),
        ("delivery-count", True),
        ("origin-offset", 2**63),
        ("origin-partition", "3.5"),
        ("origin-routing-key", ("a", "b")),
        ("source", None),
    ],
)
def test_a_damaged_header_is_named_and_the_others_are_read(name: str, wrong: HeaderValue) -> None:
    whole = write(a_death(), 4)

    death = known(whole.with_({PREFIX + name: wrong}))

    field = name.replace("-", "_").replace("failure_kind", "kind").removeprefix("origin_")
    assert death.unreadable == (f"redrive-{name}",)
    assert msgspec.structs.replace(death, unreadable=(), **{field: getattr(known(whole), field)}) == known(
        whole
    )
    assert getattr(death, field) is None


def test_a_failure_without_its_time_and_an_origin_without_its_source_are_not_made_up() -> None:
    death = known(write(a_death(), 4).without("redrive-failed-at", "redrive-source"))

    assert (death.failure, death.origin) == (None, None)
    assert (death.text, death.routing_key) == ("External API timeout after 5000ms", "eu.orders")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(max_size=20) | AWARE
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.builds(TypedValue, ANY_TEXT, inner)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(ANY_TEXT, inner, max_size=3).map(Headers)
    ),
    max_leaves=4,
)
NAMES = st.sampled_from(sorted(write(a_death(), 4).names() | {"redrive-id", "redrive-other", "x-tenant"}))


@given(st.lists(st.tuples(NAMES, VALUES), max_size=12))
def test_no_garbage_raises(pairs: list[tuple[str, HeaderValue]]) -> None:
    headers = Headers(pairs)

    death = read(headers)

    assert (death is None) == ("redrive-reason" not in headers.names())
    if death is not None:
        assert set(death.unreadable) <= headers.names()
        assert death.failure is None or death.failure.text == death.text
        assert death.origin is None or death.origin.source == death.source


# --- stripping ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(FOREIGN_NAMES, VALUES), max_size=6), LETTERS)
def test_what_was_added_is_removed_and_the_message_is_as_it_was(
    pairs: list[tuple[str, HeaderValue]], letter: DeadLetter
) -> None:
    original = Headers(pairs)

    assert strip(Headers([*original, *write(letter, 3)])) == original


def test_the_marks_of_the_way_are_removed_and_those_of_a_redrive_stay() -> None:
    of_a_redrive: dict[str, HeaderValue] = {
        "redrive-id": "1",
        "redrive-attempt": 2,
        "redrive-operation": "op",
        "x-replayed": True,
    }
    of_the_way: dict[str, HeaderValue] = {
        "redrive-deliveries": 2,
        "redrive-not-before": "2026",
        "redrive-original-exchange": "shop",
        "redrive-original-routing-key": "eu",
    }
    of_a_user: dict[str, HeaderValue] = {"redrive-colour": "blue", "redriven": 1, "x-tenant": "north"}

    assert strip(Headers(of_the_way | of_a_redrive | of_a_user)) == Headers(of_a_redrive | of_a_user)


def test_headers_with_nothing_added_are_given_back_as_they_are() -> None:
    headers = Headers({"x-tenant": "north"})

    assert strip(headers) is headers


def test_a_dead_letter_tells_how_busy_the_machine_was() -> None:
    letter = msgspec.structs.replace(a_letter("x"), system_state=SystemState(0.7314, 0.5))
    death = read(write(letter, 1))
    assert death is not None
    assert death.system_state == SystemState(0.731, 0.5)


@pytest.mark.parametrize("wrong", ["1.01", "-0.1", "much", "nan", True, b"\xff", None])
def test_a_share_that_is_none_is_named_and_nothing_is_told(wrong: HeaderValue) -> None:
    headers = write(msgspec.structs.replace(a_letter("x"), system_state=SystemState(0.5, 0.5)), 1)
    death = read(headers.with_({"redrive-host-cpu": wrong}))
    assert death is not None
    assert death.system_state is None
    assert death.unreadable == ("redrive-host-cpu",)


# --- the quick way ---------------------------------------------------------------------------------------

TOLD_AS_TEXT = st.sampled_from(
    ("", "true", "False", "7", "-1", "1.5", "0.25", "nan", "5s", "timeout", "1700000000", AT.isoformat())
) | AWARE.map(datetime.isoformat)
ODD_TIMES = st.sampled_from(
    (
        "2026-02-11T11:00:00",
        "2026-02-11T11:00:00Z",
        "2026-02-11T12:00:00.5+01:00",
        "2026-02-11 11:00:00+00:00",
        "2026-02-11T11:00:00.123456789Z",
        "2026-02-11",
        "2026-W07-3",
        "20260211T110000Z",
        "0001-01-01T00:00:00+23:59",
    )
)
ANYTHING: st.SearchStrategy[HeaderValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.floats(),
    TOLD_AS_TEXT,
    ODD_TIMES,
    WIRE_TEXT,
    st.binary(max_size=10),
    TOLD_AS_TEXT.map(lambda text: text.encode()),
    st.integers(-9, 9).map(lambda number: TypedValue("int16", number)),
    st.just(Headers({"a": 1})),
    st.just((1, "two")),
)
NAMES = st.sampled_from(sorted([*own._READ, PREFIX + "unreadable", PREFIX + "text", "x-mine"]))


@given(st.dictionaries(NAMES, ANYTHING, max_size=12), st.booleans())
def test_what_is_read_at_once_is_what_is_read_one_by_one(
    found: dict[str, HeaderValue], written: bool
) -> None:
    """Whatever stands there: on top of what `write` writes, and alone."""
    headers = dict(write(a_death(system_state=SystemState(0.25, 0.5)), 3)) if written else {}
    headers |= found
    at_once = own._read_at_once(headers)
    assert at_once is None or at_once == own._read_one_by_one(headers)


def test_what_was_written_is_read_at_once() -> None:
    headers = write(a_death(system_state=SystemState(0.25, 0.5)), 3)
    assert own._read_at_once(headers.by_name) is not None
    assert own._read_at_once(headers.with_({"redrive-failed-at": "yesterday"}).by_name) is None


@pytest.mark.parametrize("name", ["redrive-failed-at", "redrive-first-failed-at"])
def test_time_that_is_no_text_is_unreadable_and_the_rest_is_read(name: str) -> None:
    at = datetime(2026, 2, 11, 12, tzinfo=UTC)
    headers = Headers.of([*(pair for pair in own.write(a_letter(), 1) if pair[0] != name), (name, at)])
    death = own.read(headers)
    assert death is not None
    assert death.unreadable == (name,)
    assert death.key == a_letter().key
