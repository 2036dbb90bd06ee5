"""Whatever the order in which records are done: nothing above the mark is lost, nothing done is handed out again."""

from hypothesis import given, strategies as st

from redrive.transports.kafka import commits
from redrive.transports.kafka.commits import DONE, Note, Run
from redrive.transports.kafka.partitions import Mark, Partition

offsets_with_gaps = st.lists(st.integers(1, 3), min_size=1, max_size=60).map(
    lambda steps: [100 + sum(steps[: at + 1]) for at in range(len(steps))]
)


def begun(offsets: list[int], start: int | None = 100) -> Partition:
    partition = Partition("orders", 0, start)
    partition.take(offsets)
    partition.handed_out(offsets[-1])
    return partition


@given(offsets_with_gaps, st.data())
def test_the_mark_is_the_lowest_record_that_is_not_done(offsets: list[int], data: st.DataObject) -> None:
    partition, left = begun(offsets), set(offsets)
    for offset in data.draw(st.permutations(offsets)):
        partition.settle([offset])
        left.discard(offset)
        assert partition.mark == min(left, default=offsets[-1] + 1)
    assert (partition.gap, partition.settled) == (0, 0)


@given(offsets_with_gaps, st.data())
def test_who_comes_next_gets_what_is_not_done_and_nothing_else(
    offsets: list[int], data: st.DataObject
) -> None:
    partition = begun(offsets)
    done = data.draw(st.sets(st.sampled_from(offsets)))
    partition.settle(done)
    mark = partition.exact(counting=True)
    assert mark is not None
    text = commits.write(Note("me", mark.runs), 4000)

    heir = Partition("orders", 0, mark.offset, commits.read(text).runs)
    again = [offset for offset in offsets if offset >= mark.offset]
    if again:
        heir.take(again)

    assert {offset for offset in again if not heir.is_done(offset)} == set(offsets) - done
    assert all(heir.count(offset) == 2 for offset in set(offsets) - done)


@given(offsets_with_gaps, st.data())
def test_a_note_that_is_cut_off_says_less_but_loses_nothing(offsets: list[int], data: st.DataObject) -> None:
    partition = begun(offsets)
    done = data.draw(st.sets(st.sampled_from(offsets)))
    partition.settle(done)
    mark = partition.claim(offsets[-1] + 1)
    assert mark is not None
    text = commits.write(Note("me", mark.runs), data.draw(st.integers(0, 60)))

    heir = Partition("orders", 0, mark.offset, commits.read(text).runs)
    again = [offset for offset in offsets if offset >= mark.offset]
    if again:
        heir.take(again)

    assert {offset for offset in again if not heir.is_done(offset)} >= set(offsets) - done


def test_what_was_released_comes_with_a_higher_count_unless_it_is_not_to_count() -> None:
    partition = begun([100, 101, 102])
    partition.put_aside(100, counts=True)
    partition.put_aside(101, counts=False)
    assert (partition.count(100), partition.count(101), partition.count(102)) == (2, 1, 1)
    mark = partition.exact(counting=True)
    assert mark is not None
    assert mark.runs == (Run(1, 1), Run(1, 0), Run(1, 1))  # 102 is out, the others are not


def test_a_rebalance_is_nobodys_fault_and_counts_for_nothing() -> None:
    partition = begun([100, 101])
    mark = partition.exact(counting=False)
    assert mark is not None
    assert (mark.offset, mark.runs) == (100, ())


def test_thousands_are_claimed_at_once_where_nothing_speaks_against_them() -> None:
    partition = begun([100])
    mark = partition.claim(10_101)
    assert mark is not None
    assert mark.runs == (Run(10_001, 1),)


def test_what_may_have_been_delivered_before_is_doubted_and_claimed_one_by_one() -> None:
    partition = Partition("orders", 0, 100, (Run(3, 1), Run(2, DONE)))
    partition.take([100, 101, 102, 103, 104, 105])
    assert [partition.is_doubted(offset) for offset in (100, 102, 103, 105)] == [True, True, False, False]
    assert [partition.is_done(offset) for offset in (102, 103, 104, 105)] == [False, True, True, False]
    mark = partition.claim(101)
    assert mark is not None
    assert mark.runs == (Run(1, 2), Run(2, 1), Run(2, DONE))  # only the first is said to be out once more


def test_what_was_only_claimed_is_no_poison_where_one_delivery_is_all_there_may_be() -> None:
    claimed = Partition("orders", 0, 100, (Run(2, 1),), forgives=True)
    claimed.take([100, 101])
    assert claimed.count(100) == 1  # it may never have been delivered
    mark = claimed.claim(101)
    assert mark is not None
    heir = Partition("orders", 0, mark.offset, mark.runs, forgives=True)
    heir.take([100, 101])
    assert (heir.count(100), heir.count(101)) == (
        3,
        1,
    )  # now it is certain for the first, and still not for the other


def test_what_a_transaction_would_commit_changes_nothing_yet() -> None:
    partition = begun([100, 101, 102])
    mark = partition.if_settled([100, 102])
    assert mark is not None
    assert (mark.offset, partition.mark) == (101, 100)
    assert Run(1, DONE) in mark.runs


def test_markers_of_transactions_do_not_wait() -> None:
    partition = begun([100, 101])
    partition.reached(103)
    partition.settle([100, 101])
    assert partition.mark == 103


def test_partition_without_records_is_committed_at_its_end() -> None:
    partition = Partition("orders", 0, None)
    partition.reached(7)
    assert (partition.is_changed, partition.claim(0)) == (True, Mark(7, (), 7))
    partition.take([7])
    partition.settle([7])
    assert partition.mark == 8


def test_nothing_is_known_of_a_partition_before_its_first_record() -> None:
    partition = Partition("orders", 0, None)
    assert (partition.mark, partition.claim(5), partition.exact(counting=True)) == (None, None, None)
    partition.take([7])
    assert partition.mark == 7


def test_a_note_that_boasts_is_not_believed_beyond_reason() -> None:
    partition = Partition("orders", 0, 0, (Run(999_999_999, 1),))
    assert partition.is_doubted(99_999)
    assert not partition.is_doubted(100_000)


def test_a_topic_that_is_made_anew_is_not_taken_for_the_old_one() -> None:
    partition = begun([100, 101, 102])
    partition.settle([101])
    partition.take([0, 1])
    assert (partition.mark, partition.gap, partition.settled) == (0, 0, 0)
    assert not partition.is_done(1)


def test_records_that_come_twice_are_taken_once() -> None:
    partition = begun([100, 101, 102])
    partition.settle([100])
    assert partition.take([101, 102, 103]) == 2
    assert (partition.mark, partition.position) == (101, 104)
    partition.settle([101, 102, 103])
    assert partition.mark == 104


def test_the_end_of_a_partition_does_not_hide_what_is_still_out() -> None:
    partition = begun([100, 101])
    partition.reached(102)
    partition.take([102])
    assert partition.mark == 100


steps = st.lists(
    st.sampled_from(["take", "settle", "release", "again", "end", "commit", "crash", "move"]), max_size=60
)


@given(steps, st.data())
def test_through_any_life_no_record_is_lost_and_none_that_was_committed_as_done_comes_again(
    life: list[str], data: st.DataObject
) -> None:
    """A log of records, and members that have its partition one after the other: the model is two sets."""
    log: list[int] = []  # all offsets there are
    done: set[int] = set()  # by any member
    said: set[int] = set()  # of these, what a commit has said
    partition, out, aside = Partition("orders", 0, 0), set[int](), set[int]()
    committed = partition.exact(counting=True)
    for step in life:
        if step == "take":
            first = (log[-1] + 1 if log else 0) + data.draw(st.integers(0, 2))
            fresh = list(range(first, first + data.draw(st.integers(1, 4))))
            log += fresh
            partition.take(fresh)
            partition.handed_out(fresh[-1])
            out.update(fresh)
        elif step == "settle" and out:
            offset = data.draw(st.sampled_from(sorted(out)))
            partition.settle([offset])
            out.discard(offset)
            done.add(offset)
        elif step == "release" and out:
            offset = data.draw(st.sampled_from(sorted(out)))
            partition.put_aside(offset, counts=True)
            out.discard(offset)
            aside.add(offset)
        elif step == "again" and aside:
            offset = data.draw(st.sampled_from(sorted(aside)))
            partition.take_up(offset)
            aside.discard(offset)
            out.add(offset)
        elif step == "end" and log:
            partition.reached(log[-1] + 1)
        elif step == "commit":
            committed, said = partition.claim(log[-1] + 1 if log else 0), set(done)
        elif step in ("crash", "move"):
            if step == "move":
                committed, said = partition.exact(counting=False), set(done)
            assert committed is not None
            runs = commits.read(commits.write(Note("me", committed.runs), 100_000)).runs
            partition = Partition("orders", 0, committed.offset, runs)
            again = [offset for offset in log if offset >= committed.offset]
            if again:
                partition.take(again)
                partition.handed_out(again[-1])
            out, aside = {offset for offset in again if not partition.is_done(offset)}, set()
            assert set(log) - done <= out  # nothing is lost
            assert not said & out  # and what was said to be done stays done
            done -= out  # it is repeated, and will be done again
    assert set(log) - done == out | aside
    assert partition.mark == min(out | aside, default=(log[-1] + 1 if log else 0))
