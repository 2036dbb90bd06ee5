import pytest
from hypothesis import given, strategies as st

from redrive.transports.kafka.commits import DONE, Note, Run, joined, read, write

runs = st.lists(st.builds(Run, st.integers(1, 10**6), st.sampled_from([DONE, 1, 2, 3, 40])), max_size=50)


@given(runs)
def test_what_is_written_is_read(some: list[Run]) -> None:
    note = Note("a1b2c3", tuple(some))
    assert read(write(note, 10_000)) == note


@given(runs, st.integers(0, 200))
def test_a_text_never_takes_more_than_its_room_and_is_the_beginning_of_the_whole(
    some: list[Run], room: int
) -> None:
    text = write(Note("a1b2c3", tuple(some)), room)
    assert len(text) <= room
    found = read(text).runs
    assert found == tuple(some)[: len(found)]


@given(st.text() | st.none())
def test_no_text_makes_reading_fail(text: str | None) -> None:
    assert all(run.length > 0 for run in read(text).runs)


@pytest.mark.parametrize(
    "text", ["", "hello", "redrive/2 x 3x1", "redrive/1 x", "redrive/1 x 0x1", "redrive/1  , "]
)
def test_a_text_that_is_not_ours_says_nothing(text: str) -> None:
    assert read(text).runs == ()


@given(st.lists(st.sampled_from([DONE, 0, 1, 2]), max_size=40))
def test_runs_stand_for_the_counts_they_were_made_of(counts: list[int]) -> None:
    spread = [run.times for run in joined(counts) for _ in range(run.length)]
    assert spread == counts[: len(spread)]
    assert not any(counts[len(spread) :])  # what is left out was never delivered
