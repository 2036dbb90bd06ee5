"""What consumer groups have taken, and which of them exist, without a broker."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import cast

from confluent_kafka import TopicPartition
from hypothesis import given, strategies as st

from redrive.testing.clock import ManualClock
from redrive.transports.kafka import groups
from redrive.transports.kafka.groups import Groups, Progress, Snapshot, passed
from redrive.transports.kafka.topics import Topics, Where

SECOND = timedelta(seconds=1)


def ends(*offsets: int) -> dict[Where, int]:
    return {("orders", number): offset for number, offset in enumerate(offsets)}


def commits(*offsets: int | None) -> dict[Where, TopicPartition]:
    return {
        ("orders", number): TopicPartition("orders", number, offset)
        for number, offset in enumerate(offsets)
        if offset is not None
    }


# --- progress --------------------------------------------------------------------------------------------------


def test_partition_without_records_needs_no_commit() -> None:
    assert passed(ends(0, 3), commits(None, 3))
    assert passed(ends(0, 0), commits())


def test_partition_with_records_is_not_passed_without_a_commit() -> None:
    assert not passed(ends(0, 3), commits(0, None))
    assert not passed(ends(5, 3), commits(5, 2))


def test_progress_is_the_time_of_this_snapshot_when_nothing_waits() -> None:
    assert Progress().taken_until(Snapshot(SECOND, ends(3)), commits(3)) == SECOND


def test_progress_is_the_last_snapshot_that_the_commits_have_reached() -> None:
    progress = Progress()
    assert progress.taken_until(Snapshot(1 * SECOND, ends(5)), commits(0)) is None
    assert progress.taken_until(Snapshot(2 * SECOND, ends(8)), commits(4)) is None
    assert progress.taken_until(Snapshot(3 * SECOND, ends(9)), commits(5)) == 1 * SECOND
    assert progress.taken_until(Snapshot(4 * SECOND, ends(10)), commits(9)) == 3 * SECOND


def test_progress_is_lost_when_the_offsets_of_the_group_are_reset() -> None:
    progress = Progress()
    assert progress.taken_until(Snapshot(1 * SECOND, ends(5)), commits(5)) == SECOND
    assert progress.taken_until(Snapshot(2 * SECOND, ends(6)), commits(2)) is None


def test_progress_of_a_group_that_is_far_behind_is_bounded_and_still_found() -> None:
    progress = Progress()
    for number in range(1, 1001):
        assert progress.taken_until(Snapshot(number * SECOND, ends(number)), commits(0)) is None
    assert len(progress._snapshots) <= groups._MAX_SNAPSHOTS
    taken = progress.taken_until(Snapshot(1001 * SECOND, ends(1001)), commits(900))
    assert taken is not None
    assert timedelta(0) < taken <= 900 * SECOND


STEPS = st.lists(st.tuples(st.sampled_from(["send", "take", "ask"]), st.integers(0, 2)), max_size=120)


@given(STEPS)
def test_progress_never_includes_a_record_that_waits(steps: list[tuple[str, int]]) -> None:
    progress, sent, taken = Progress(), [list[int](), list[int](), list[int]()], [0, 0, 0]
    for at, (step, number) in enumerate(steps):
        if step == "send":
            sent[number].append(at)
        elif step == "take":
            taken[number] = min(taken[number] + 1, len(sent[number]))
        else:
            snapshot = Snapshot(at * SECOND, ends(*map(len, sent)))
            until = progress.taken_until(snapshot, commits(*taken))
            waits = [at * SECOND for times, done in zip(sent, taken, strict=True) for at in times[done:]]
            assert until is None or all(until <= each for each in waits)
            if not waits:
                assert until == snapshot.at


# --- groups ----------------------------------------------------------------------------------------------------


class Cluster:
    """Topics of one partition, and what one group has committed in them."""

    def __init__(self, **ends: int) -> None:
        self.ends = {name.replace("_", "."): end for name, end in ends.items()}
        self.commits: dict[str, int] = {}
        self.active: set[str] = set()
        self.asked = 0
        self.then: dict[str, int] = {}  # ends from the moment on when commits are read

    def forget(self, topic: str) -> None:
        pass

    async def partitions(self, _: str) -> tuple[int, ...]:
        return (0,)

    async def existing(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        return {name: (0,) for name in names if name in self.ends}

    async def last_offsets(self, topics: Mapping[str, Sequence[int]]) -> dict[Where, int]:
        return {(topic, 0): self.ends[topic] for topic in topics}

    async def committed_in(self, _: str, topics: Mapping[str, Sequence[int]]) -> dict[Where, TopicPartition]:
        self.ends |= self.then
        return {
            (topic, 0): TopicPartition(topic, 0, self.commits[topic])
            for topic in topics
            if topic in self.commits
        }

    async def active_groups(self) -> frozenset[str]:
        self.asked += 1
        return frozenset(self.active)

    def groups(self, clock: ManualClock | None = None) -> Groups:
        return Groups(cast("Topics", self), clock or ManualClock())


async def test_record_that_waits_in_a_retry_topic_is_not_taken() -> None:
    cluster = Cluster(orders=3, shop_orders_retry_10s=1)
    cluster.commits = {"orders": 3}
    found = cluster.groups()
    assert await found.taken_until("orders", "shop") is None
    cluster.commits["shop.orders.retry.10s"] = 1
    assert await found.taken_until("orders", "shop") is not None


async def test_record_that_goes_to_a_retry_topic_meanwhile_is_not_taken() -> None:
    cluster = Cluster(orders=3, shop_orders_retry_10s=1)
    cluster.commits = {"orders": 3, "shop.orders.retry.10s": 1}
    cluster.then = {"shop.orders.retry.10s": 2}
    assert await cluster.groups().taken_until("orders", "shop") is None


async def test_retry_topics_without_a_group_count_for_the_groups_that_use_them() -> None:
    cluster = Cluster(orders=3, orders_retry_10s=1, orders_retry_30s=0)
    cluster.commits = {"orders": 3}
    found = cluster.groups()
    assert await found.taken_until("orders", "redrive.orders") is None
    assert await found.taken_until("orders", "billing") is not None
    cluster.commits["orders.retry.30s"] = 0
    assert await found.taken_until("orders", "billing") is None


async def test_consumers_that_are_remembered_are_bounded() -> None:
    cluster = Cluster(orders=3)
    found = cluster.groups()
    for number in range(groups._MAX_CONSUMERS + 50):
        await found.taken_until("orders", f"group-{number}")
    assert len(found._progress) == groups._MAX_CONSUMERS


async def test_group_with_neither_members_nor_commits_is_unreachable() -> None:
    cluster = Cluster(orders=3, empty=0)
    cluster.active, cluster.commits = {"there"}, {"orders": 0}
    found = await cluster.groups().unreachable(
        [("orders", "there"), ("orders", "gone"), ("empty", "gone"), ("nowhere", "gone"), ("empty", "")]
    )
    assert found == {
        ("empty", "gone"): "consumer group 'gone' has no members and no committed offsets for topic 'empty'",
        ("nowhere", "gone"): "topic 'nowhere' does not exist",
    }


async def test_unreachable_is_remembered_for_a_few_seconds() -> None:
    cluster, clock = Cluster(orders=3), ManualClock()
    found = cluster.groups(clock)
    for _ in range(3):
        assert len(await found.unreachable([("orders", "shop")])) == 1
    assert cluster.asked == 1
    cluster.active = {"shop"}
    clock.advance(10 * SECOND)
    assert await found.unreachable([("orders", "shop")]) == {}
    assert cluster.asked == 2
