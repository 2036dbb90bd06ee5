"""A dead letter has every field of the record it was asked for, and an id that repeats (E2, A7)."""

import random
import re
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given, strategies as st

from redrive.letters import (
    ClaimToken,
    DeadLetter,
    FailureKind,
    Headers,
    LetterHead,
    LetterState,
    Message,
    Note,
    Origin,
    RedriveAttempt,
    SystemState,
    letter_id,
)
from redrive.letters.letter import HEADLINE, headline, storable
from redrive.testing import a_failure, a_letter, a_message

DIED = datetime(2026, 2, 11, 12, 0, 7, tzinfo=UTC)
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"

# --- the record ------------------------------------------------------------------------------------------
# Where each field of the record in seed 004 has its place. "[]" is one entry of a list.

PLACES = {
    "_id": "id",
    "messageId": "message_id",
    "originalMessage": "message",
    "errorReason": "failure.text",
    "errorReason (as listed)": "error_text",
    "errorStack": "failure.stack",
    "errorType": "error_type",
    "retryCount": "retry_count",
    "dlqRetryCount": "dlq_retry_count",
    "firstFailedAt": "first_failed_at",
    "lastFailedAt": "last_failed_at",
    "status": "state",
    "lockedBy": "locked_by",
    "lockedAt": "locked_at",
    "nextRetryAt": "next_retry_at",
    "metadata.source": "source",
    "metadata.priority": "priority",
    "metadata.tags": "tags",
    "metadata.systemState.cpuUsage": "system_state.cpu_usage",
    "metadata.systemState.memoryUsage": "system_state.memory_usage",
    "replayAttempts[].timestamp": "attempts[].started_at",
    "replayAttempts[].workerId": "attempts[].worker",
    "replayAttempts[].strategy": "attempts[].strategy",
    "replayAttempts[].result": "attempts[].result",
    "createdAt": "created_at",
    "updatedAt": "updated_at",
}
# What E2 asks for beyond the seed.
EXTRAS = {
    "origin": "origin.transport",
    "correlation id": "correlation_id",
    "reason": "reason",
    "failure group": "group",
    "lease": "lease_until",
    "fence": "fence",
    "history of attempts": "attempts[].number",
    "operator notes": "notes[].text",
    "who wrote a note": "notes[].author",
    "payload": "message.body",
    "headers": "message.headers",
}


def type_at(place: str) -> Any:
    """The type that the record has at a place, by walking the annotations."""
    kind: Any = DeadLetter
    for part in place.split("."):
        kind = get_type_hints(kind)[part.removesuffix("[]")]
        if isinstance(kind, UnionType):
            kind = next(one for one in get_args(kind) if one is not type(None))
        if part.endswith("[]"):
            kind = get_args(kind)[0]
    return kind


@pytest.mark.parametrize(("asked", "place"), [*PLACES.items(), *EXTRAS.items()])
def test_every_field_that_was_asked_for_has_its_place(asked: str, place: str) -> None:
    assert type_at(place) is not None, asked


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("id", str),
        ("state", LetterState),
        ("message", Message),
        ("message.body", bytes),
        ("retry_count", int),
        ("first_failed_at", datetime),
        ("lease_until", datetime),
        ("system_state.cpu_usage", float),
        ("attempts[]", RedriveAttempt),
        ("attempts[].started_at", datetime),
        ("notes[]", Note),
        ("fence", int),
        ("tags", tuple[str, ...]),
    ],
)
def test_a_field_is_of_the_type_that_its_meaning_wants(place: str, kind: Any) -> None:
    assert type_at(place) == kind


def test_the_record_of_the_seed_can_be_written_down_whole() -> None:
    letter = msgspec.structs.replace(
        a_letter(
            "payments/1",
            message=Message(body=b'{"amount": 99.99}', message_id="msg_1707658080_abc123"),
            source="payment-service",
            failure=a_failure(stack="Error: timeout\n  at processPayment", at=DIED),
            priority=1,
            tags=("payment", "critical"),
            system_state=SystemState(0.75, 0.60),
            first_failed_at=DIED - timedelta(seconds=7),
        ),
        state=LetterState.PROCESSING,
        dlq_retry_count=2,
        locked_by="worker_node_2",
        locked_at=DIED + timedelta(minutes=5),
        attempts=(
            RedriveAttempt(number=1, started_at=DIED, ended_at=DIED, worker="worker_node_2", strategy="immediate",
                    result="failed", fence=1),
        ),
    )  # fmt: skip
    assert (letter.message_id, letter.source, letter.priority) == (
        "msg_1707658080_abc123",
        "payment-service",
        1,
    )
    assert (letter.error_type, letter.error_text) == ("TimeoutError", "External API timeout after 5000ms")
    assert (letter.retry_count, letter.state) == (3, "dlq_processing")


def test_a_head_is_a_letter_without_what_is_large() -> None:
    head, whole = set(LetterHead.__struct_fields__), set(DeadLetter.__struct_fields__)
    assert head < whole
    assert whole - head == {
        "key", "message", "origin", "failure", "system_state", "derived_from", "prior_redrives", "attempts",
        "notes",
    }  # fmt: skip


# --- bury ------------------------------------------------------------------------------------------------


def test_a_new_letter_is_pending_and_held_by_nobody() -> None:
    letter = a_letter()
    assert letter.state is LetterState.PENDING
    assert (letter.fence, letter.dlq_retry_count, letter.attempts, letter.notes) == (0, 0, (), ())
    assert (letter.locked_by, letter.locked_at, letter.lease_until, letter.sent_at) == (None,) * 4
    assert letter.claim_token == ClaimToken(letter.id, 0)
    assert not letter.presumed


def test_the_head_says_what_message_origin_and_failure_say() -> None:
    failure = a_failure("card 4711 declined", error_type="CardError", kind=FailureKind.BUSINESS, at=DIED)
    message = a_message(b"12345", message_id="m-1", correlation_id="c-1")
    origin = Origin(transport="kafka", source="payments", partition=3, offset=17)
    letter = DeadLetter.create(message, origin, failure, key="payments/3/17", reason="NonRetryableError")
    assert (letter.message, letter.origin, letter.failure) == (message, origin, failure)
    assert (letter.broker, letter.source) == ("kafka", "payments")
    assert (letter.message_id, letter.correlation_id, letter.size) == ("m-1", "c-1", 5)
    assert (letter.error_type, letter.error_text, letter.kind) == (
        "CardError",
        "card 4711 declined",
        FailureKind.BUSINESS,
    )
    assert letter.group == failure.fingerprint
    assert letter.first_failed_at == letter.last_failed_at == letter.next_retry_at == DIED
    assert letter.id == letter_id("payments/3/17", DIED)


def test_a_letter_is_due_when_its_wait_is_over() -> None:
    letter = a_letter(
        failure=a_failure(at=DIED), retry_in=timedelta(minutes=5), first_failed_at=DIED - timedelta(1)
    )
    assert letter.next_retry_at == DIED + timedelta(minutes=5)
    assert letter.first_failed_at == DIED - timedelta(days=1)
    assert letter.last_failed_at == DIED


def test_a_correlation_id_that_was_made_up_before_stays() -> None:
    bare = Message(body=b"")
    assert a_letter(message=bare, correlation_id="made up once").correlation_id == "made up once"
    assert (
        a_letter(message=Message(body=b"", headers=Headers({"correlation_id": b"own"}))).correlation_id
        == "own"
    )
    assert a_letter(message=bare).correlation_id != a_letter(message=bare).correlation_id


def test_an_empty_message_id_is_none_and_an_error_without_a_type_is_unknown() -> None:
    letter = a_letter(message=Message(body=b"", message_id=""), failure=a_failure(error_type=""))
    assert letter.message_id is None
    assert letter.error_type == "unknown"


def test_the_head_carries_the_beginning_of_a_long_error_and_the_letter_all_of_it() -> None:
    text = "x" * 5000
    letter = a_letter(failure=a_failure(text))
    assert len(letter.error_text) == HEADLINE
    assert letter.error_text.endswith("…")
    assert letter.failure.text == text
    assert headline("x" * HEADLINE) == "x" * HEADLINE


def test_what_databases_refuse_is_replaced_in_the_head_and_kept_in_the_letter() -> None:
    odd = "a\x00b\ud800c"
    message = Message(body=b"", message_id=odd, correlation_id=odd)
    letter = a_letter(message=message, failure=a_failure(odd, error_type=odd), reason=odd)
    for text in (
        letter.message_id,
        letter.correlation_id,
        letter.error_type,
        letter.error_text,
        letter.reason,
    ):
        assert text is not None
        assert "\x00" not in text
        assert text.encode().decode() == text
        assert re.fullmatch("a.b.c", text)
    assert letter.message == message
    assert letter.failure.text == odd


@given(st.text(st.characters()))
def test_any_text_becomes_storable_and_stays_so(text: str) -> None:
    stored = storable(text)
    assert "\x00" not in stored
    assert stored.encode().decode() == stored
    assert storable(stored) == stored
    assert len(stored) == len(text)


def test_a_letter_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        a_letter().state = LetterState.RESOLVED  # type: ignore[misc]


# --- ids -------------------------------------------------------------------------------------------------

_times = st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(st.text(st.characters()), _times)
def test_an_id_is_26_letters_and_digits_that_repeat(key: str, died_at: datetime) -> None:
    found = letter_id(key, died_at)
    assert found == letter_id(key, died_at)
    assert len(found) == 26
    assert set(found) <= set(ALPHABET)


def test_another_key_or_another_millisecond_is_another_id() -> None:
    ids = {letter_id(f"orders/{number}", DIED) for number in range(10_000)}
    ids |= {letter_id("orders/0", DIED + timedelta(milliseconds=number)) for number in range(1, 10_000)}
    assert len(ids) == 19_999


def test_the_same_death_told_in_another_time_zone_or_a_finer_clock_has_the_same_id() -> None:
    berlin = DIED.astimezone(timezone(timedelta(hours=1)))
    assert letter_id("a", berlin) == letter_id("a", DIED)
    assert letter_id("a", DIED + timedelta(microseconds=999)) == letter_id("a", DIED)


@given(_times, _times, st.text(max_size=5), st.text(max_size=5))
def test_ids_sort_by_time_whatever_the_keys(first: datetime, second: datetime, one: str, other: str) -> None:
    early, late = sorted((first, second))
    if late - early >= timedelta(milliseconds=1):
        assert letter_id(one, early) < letter_id(other, late)


def test_ids_of_growing_times_grow() -> None:
    chance = random.Random(1)
    moments = [DIED + timedelta(milliseconds=number) for number in range(5000)]
    ids = [letter_id(str(chance.random()), moment) for moment in moments]
    assert all(left < right for left, right in pairwise(ids))


def test_the_alphabet_leaves_out_what_is_mistaken_when_read_aloud() -> None:
    seen = set("".join(letter_id(str(number), DIED) for number in range(2000)))
    assert seen == set(ALPHABET)
    assert not seen & set("ilou")


def test_a_time_before_1970_is_taken_for_1970() -> None:
    before = datetime(1900, 1, 1, tzinfo=UTC)
    assert letter_id("a", before) == letter_id("a", datetime(1970, 1, 1, tzinfo=UTC))


def test_burying_the_same_death_twice_gives_the_same_id() -> None:
    assert a_letter("orders/7").id == a_letter("orders/7", message=Message(body=b"other")).id
    assert a_letter("orders/7").id != a_letter("orders/8").id
