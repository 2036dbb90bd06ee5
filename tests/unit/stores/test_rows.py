"""A letter on its way into the file."""

import gc
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from redrive.stores.rows import DUE, ID, OPTIONAL, OWN, TAGS, new_row, read_tags, ticks
from redrive.testing import a_letter


def test_a_row_on_its_way_is_nothing_the_garbage_collector_has_to_follow() -> None:
    row = new_row(a_letter(tags=("vip", "müde")))
    for _ in range(2):  # the columns within the row first, then the row
        gc.collect()
    assert not gc.is_tracked(row)


def test_a_row_has_the_letters_own_columns_in_the_order_of_the_table() -> None:
    letter = a_letter(tags=("vip", "müde"))
    columns, _, _ = new_row(letter)
    assert len(columns) == len(OWN)
    assert columns[ID] == letter.id
    assert columns[DUE] == ticks(letter.next_retry_at)
    assert read_tags(columns[TAGS]) == letter.tags


@pytest.mark.parametrize("absent", [None, 0])
def test_what_a_letter_does_not_have_is_told_by_what_stands_for_it(absent: int | None) -> None:
    fields = {
        "message_id": "", "strategy": "later", "assignee": "alice", "tags": ("vip",), "consumer_group": "billing",
    }  # fmt: skip
    assert set(fields) == OPTIONAL
    for name in OPTIONAL:
        letter = msgspec.structs.replace(
            a_letter(),
            **(fields | {name: None if name != "tags" else ()}),
        )
        own = dict(zip(OWN, new_row(letter, absent)[0], strict=True))
        told = {other for other in OPTIONAL if own[other] is absent}
        assert told == {name}


NOON = datetime(2026, 2, 11, 12, 0, tzinfo=UTC)
MOMENTS = (
    NOON,
    NOON.astimezone(timezone(timedelta(hours=2))),  # the same moment, said in another zone
    NOON + timedelta(microseconds=1),
)


@pytest.mark.parametrize("first", MOMENTS)
@pytest.mark.parametrize("last", MOMENTS)
@pytest.mark.parametrize("due", MOMENTS)
def test_each_time_in_a_row_is_the_letters_own(first: datetime, last: datetime, due: datetime) -> None:
    letter = msgspec.structs.replace(
        a_letter(), first_failed_at=first, last_failed_at=last, next_retry_at=due
    )
    own = dict(zip(OWN, new_row(letter)[0], strict=True))
    times = [own["first_failed_at"], own["last_failed_at"], own["next_retry_at"]]
    assert times == [ticks(first), ticks(last), ticks(due)]
