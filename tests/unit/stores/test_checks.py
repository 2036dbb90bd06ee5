"""What no store may take is refused before it is touched, at the limit exactly, with the reason (S33)."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from redrive.errors import LetterInvalidError, RedriveError, SettingsError
from redrive.stores.changes import (
    Annotate,
    Archive,
    Assign,
    Change,
    Delete,
    Discard,
    Fail,
    Outcome,
    Park,
    Prioritise,
    Resolve,
    Retry,
    Schedule,
    Tag,
    Unclaim,
)
from redrive.stores.checks import (
    HIGHEST_PRIORITY,
    LONGEST_LEASE,
    LONGEST_TEXT,
    LOWEST_PRIORITY,
    check_change,
    check_lease,
    check_letter,
    check_limit,
    check_name,
    check_outcome,
    check_priority,
    check_rescue,
    check_tags,
)
from redrive.testing import a_failure, a_letter

TICK = timedelta(microseconds=1)
NOW = datetime(2026, 2, 11, tzinfo=UTC)
NAIVE = datetime(2026, 2, 11)  # noqa: DTZ001  that is the point


def refused(check: Callable[[], None], says: str, kind: type[RedriveError] = SettingsError) -> None:
    with pytest.raises(kind) as problem:
        check()
    assert says in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("lease", [TICK, timedelta(minutes=5), LONGEST_LEASE])
def test_a_lease_within_the_limits_is_fine(lease: timedelta) -> None:
    check_lease(lease)


@pytest.mark.parametrize("lease", [timedelta(0), -TICK, LONGEST_LEASE + TICK, timedelta.max, timedelta.min])
def test_a_lease_of_nothing_or_for_ever_is_refused(lease: timedelta) -> None:
    refused(lambda: check_lease(lease), "must be between 0 and 30 days")


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_a_limit_within_the_limits_is_fine(limit: int) -> None:
    check_limit(limit, 1000)


@pytest.mark.parametrize("limit", [0, -1, 1001, 2**63, True, False])
def test_a_limit_of_none_or_too_many_is_refused(limit: int) -> None:
    refused(lambda: check_limit(limit, 1000), f"a limit of {limit} is not between 1 and 1000")


def test_a_rescue_within_the_limits_is_fine() -> None:
    check_rescue(timedelta(0), 1, 1)
    check_rescue(timedelta(days=365), 2**31 - 1, 10_000)


@pytest.mark.parametrize(
    ("retry_in", "max_redrives", "limit", "says"),
    [
        (-TICK, 5, 10, "retry_in of"),
        (timedelta(days=365) + TICK, 5, 10, "is not between 0 and a year"),
        (timedelta(0), 0, 10, "max_redrives of 0 is not at least 1"),
        (timedelta(0), -1, 10, "max_redrives of -1"),
        (timedelta(0), 2**31, 10, "max_redrives of"),
        (timedelta(0), True, 10, "max_redrives of True"),
        (timedelta(0), 5, 0, "a limit of 0"),
        (timedelta(0), 5, 10_001, "a limit of 10001"),
    ],
)
def test_a_rescue_out_of_the_limits_is_refused(
    retry_in: timedelta, max_redrives: int, limit: int, says: str
) -> None:
    refused(lambda: check_rescue(retry_in, max_redrives, limit), says)


BAD_TEXTS = [
    ("a\x00b", "contains a NUL character"),
    ("a\ud800", "is not valid Unicode (a lone surrogate)"),
    ("x" * (LONGEST_TEXT + 1), f"has {LONGEST_TEXT + 1} characters; the limit is {LONGEST_TEXT}"),
    ("ü" * (LONGEST_TEXT + 1), f"has {LONGEST_TEXT + 1} characters; the limit is {LONGEST_TEXT}"),
]


@pytest.mark.parametrize("name", ["w", "worker 1", "Jörg 🦊", " x ", "x" * LONGEST_TEXT, "a\nb"])
def test_a_name_that_can_be_stored_is_fine(name: str) -> None:
    check_name("the worker's name", name)


@pytest.mark.parametrize(("name", "says"), [("", "is empty"), (" \t\n", "is empty"), *BAD_TEXTS])
def test_a_name_that_cannot_be_stored_is_refused(name: str, says: str) -> None:
    refused(lambda: check_name("the worker's name", name), says)


@pytest.mark.parametrize("priority", [LOWEST_PRIORITY, -1, 0, HIGHEST_PRIORITY])
def test_a_priority_of_32_bits_is_fine(priority: int) -> None:
    check_priority(priority)


@pytest.mark.parametrize("priority", [LOWEST_PRIORITY - 1, HIGHEST_PRIORITY + 1, True])
def test_a_priority_of_more_is_refused(priority: int) -> None:
    refused(lambda: check_priority(priority), f"a priority of {priority} is not between")


def test_tags_are_names_each_once() -> None:
    check_tags(())
    check_tags(("a", "b", "A"))
    refused(lambda: check_tags(("a", "b", "a")), "duplicate tag in a, b, a")
    refused(lambda: check_tags(("a", "")), "a tag is empty")


@pytest.mark.parametrize(
    "change",
    [
        Schedule(datetime(2026, 2, 11, tzinfo=UTC)),
        Discard(),
        Discard("no longer wanted"),
        Archive(),
        Delete(),
        Assign("ann"),
        Assign(None),
        Tag(),
        Tag(("a",), ("a",)),
        Prioritise(-5),
        Annotate("looked at it"),
    ],
    ids=repr,
)
def test_a_change_that_can_be_stored_is_fine(change: Change) -> None:
    check_change(change)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (Schedule(NAIVE), "has no time zone; use UTC"),
        (Discard("a\x00"), "the reason contains a NUL"),
        (Assign(""), "the assignee's name is empty"),
        (Assign("\ud800"), "the assignee's name is not valid Unicode"),
        (Tag(("a", "a")), "duplicate tag"),
        (Tag(remove=("",)), "a tag is empty"),
        (Prioritise(2**31), "a priority of"),
        (Annotate(" "), "the note is empty"),
        (Annotate("x" * (LONGEST_TEXT + 1)), "the note has"),
    ],
)
def test_a_change_that_cannot_be_stored_is_refused(change: Change, says: str) -> None:
    refused(lambda: check_change(change), says)


@pytest.mark.parametrize(
    "outcome",
    [
        Resolve(),
        Resolve(presumed=True, strategy="manual", detail="quiet"),
        Retry(at=NOW, failure=a_failure("NUL \x00 and half a character \ud800", error_type="E\x00")),
        Fail(failure=a_failure("x" * 100_000, stack="\ud800")),
        Park(strategy="manual"),
        Unclaim(),
        Unclaim(at=NOW, detail="x" * LONGEST_TEXT),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_an_outcome_that_can_be_stored_is_fine(outcome: Outcome) -> None:
    check_outcome(outcome)


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Retry(at=NAIVE), "has no time zone; use UTC"),
        (Unclaim(at=NAIVE), "has no time zone; use UTC"),
        (Retry(at=NOW, failure=a_failure(at=NAIVE)), "the time of the failure"),
        (Park(failure=a_failure(at=NAIVE)), "the time of the failure"),
        (Fail(failure=a_failure(error_type="x" * (LONGEST_TEXT + 1))), "the type of the error has 65537"),
        (Resolve(strategy=""), "the strategy's name is empty"),
        *((kind(strategy=text), says) for kind in (Resolve, Park, Fail) for text, says in BAD_TEXTS),
        *((kind(detail=text), says) for kind in (Resolve, Park, Unclaim) for text, says in BAD_TEXTS),
    ],
)
def test_an_outcome_that_cannot_be_stored_is_refused(outcome: Outcome, says: str) -> None:
    refused(lambda: check_outcome(outcome), says)


def test_a_usual_letter_is_fine() -> None:
    check_letter(a_letter())
    check_letter(a_letter(tags=("a",), priority=HIGHEST_PRIORITY, retry_count=2**31 - 1))


@pytest.mark.parametrize(
    "field", ["id", "key", "source", "broker", "correlation_id", "reason", "error_type", "group"]
)
def test_a_letter_without_what_it_must_have_is_refused_by_the_fields_name(field: str) -> None:
    letter = msgspec.structs.replace(a_letter(), **{field: ""})
    refused(lambda: check_letter(letter), f"has no {field}", LetterInvalidError)


@pytest.mark.parametrize(("text", "says"), BAD_TEXTS)
@pytest.mark.parametrize(
    "field",
    ["id", "source", "message_id", "correlation_id", "reason", "error_text", "strategy", "assignee"],
)
def test_a_letter_with_a_text_no_database_holds_is_refused(field: str, text: str, says: str) -> None:
    letter = msgspec.structs.replace(a_letter(), **{field: text})
    refused(
        lambda: check_letter(letter),
        f"its {field} {'has' if 'at most' in says else says}",
        LetterInvalidError,
    )


@pytest.mark.parametrize("field", ["first_failed_at", "last_failed_at", "next_retry_at"])
def test_a_letter_with_a_time_without_a_zone_is_refused(field: str) -> None:
    letter = msgspec.structs.replace(a_letter(), **{field: NAIVE})
    refused(lambda: check_letter(letter), "a time has no time zone; use UTC", LetterInvalidError)


@pytest.mark.parametrize(
    "fields",
    [{"retry_count": -1}, {"retry_count": 2**31}, {"priority": 2**31}, {"tags": ("a", "a")}, {"tags": ("",)}],
    ids=repr,
)
def test_a_letter_with_impossible_numbers_or_tags_is_refused(fields: dict[str, Any]) -> None:
    letter = msgspec.structs.replace(a_letter(), **fields)
    with pytest.raises(RedriveError):
        check_letter(letter)


def test_each_text_of_a_head_may_be_as_long_as_a_text_may_be() -> None:
    half = "x" * (LONGEST_TEXT // 2)
    check_letter(msgspec.structs.replace(a_letter(), message_id=half, correlation_id=half))
