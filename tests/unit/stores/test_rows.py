"""A letter on its way into the file."""

import gc

from redrive.stores.rows import DUE, ID, OWN, TAGS, new_row, read_tags, ticks
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
