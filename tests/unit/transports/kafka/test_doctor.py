"""Which faults are found on a cluster of three brokers, how bad are they, and what is said of them?"""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from redrive.letters.verdict import QUEUE as VERDICTS
from redrive.transports.base import Source
from redrive.transports.finding import Diagnosis, Finding
from redrive.transports.kafka import doctor, doctor_cluster, doctor_letters
from redrive.transports.kafka.doctor import diagnose
from redrive.transports.kafka.found import Found, FoundGroup, FoundTopic
from tests.unit.transports.kafka.test_plan import ORDERS, cluster, topic

DOCS = Path(__file__).parents[4] / "docs" / "how-to" / "provision-and-diagnose.md"
RETRIES = {"orders": ["orders.retry.5s"]}


def found_by(found: Found, retries: dict[str, list[str]] | None = None) -> list[tuple[str, str, str]]:
    return [(each.rule, each.severity, each.subject) for each in diagnose(found, [ORDERS], retries).findings]


def only(found: Found, rule: str) -> Finding:
    [finding] = [each for each in diagnose(found, [ORDERS]).findings if each.rule == rule]
    return finding


def test_a_cluster_that_has_everything_has_no_fault() -> None:
    assert diagnose(cluster(), [ORDERS]) == Diagnosis(findings=())


DLQ, WORK = "topic orders.dlq", "topic orders"


@pytest.mark.parametrize(
    ("found", "finds"),
    [
        (cluster(without=("orders",)), [("topic-missing", "error", WORK)]),
        (cluster(without=("orders",), auto_create=True), [("topic-missing", "warning", WORK)]),
        (cluster(without=("orders.dlq",)), [("dlq-missing", "error", DLQ)]),
        (cluster(without=(VERDICTS,)), [("verdicts-missing", "warning", f"topic {VERDICTS}")]),
        (cluster(topic("orders.dlq", config={"retention.ms": "1"})), [("dlq-expires", "error", DLQ)]),
        (cluster(topic("orders.dlq", config={"retention.bytes": "1"})), [("dlq-limited", "error", DLQ)]),
        (
            cluster(topic("orders.dlq", config={"cleanup.policy": "compact", "retention.ms": "1"})),
            [("dlq-compacted", "error", DLQ)],
        ),
        (
            cluster(topic("orders.dlq", config={"cleanup.policy": "compact, delete", "retention.ms": "1"})),
            [("dlq-expires", "error", DLQ), ("dlq-compacted", "error", DLQ)],
        ),
        (
            cluster(topic("orders.dlq", config={"max.message.bytes": "9"})),
            [("dlq-too-small", "warning", DLQ)],
        ),
        (cluster(topic("orders.dlq", partitions=1)), [("dlq-fewer", "info", DLQ)]),
        (cluster(topic("orders.dlq", records=2)), [("dlq-waiting", "info", DLQ)]),
        (
            cluster(topic("orders.dlq", replication=1, in_sync=1, config={"min.insync.replicas": "1"})),
            [("one-copy", "warning", DLQ)],
        ),
        (
            cluster(
                topic("orders.dlq", replication=1, in_sync=1, config={"min.insync.replicas": "1"}), brokers=1
            ),
            [("one-copy", "info", DLQ)],
        ),
        (
            cluster(topic("orders.dlq", config={"min.insync.replicas": "1"})),
            [("min-insync-low", "warning", DLQ)],
        ),
        (
            cluster(topic("orders", config={"min.insync.replicas": "3"})),
            [("min-insync-high", "warning", WORK)],
        ),
        (
            cluster(topic("orders", config={"min.insync.replicas": "4"})),
            [("min-insync-high", "error", WORK)],
        ),
        (cluster(topic("orders.dlq", in_sync=1)), [("min-insync-high", "error", DLQ)]),
        (
            cluster(topic("orders", config={"unclean.leader.election.enable": "true"})),
            [("unclean-election", "warning", WORK)],
        ),
        (cluster(topic("orders", leaderless=2)), [("no-leader", "warning", WORK)]),
        (
            cluster(topic("orders"), auto_create=True, default_partitions=6, default_copies=3),
            [("topic-made-by-use", "info", WORK)],
        ),
        (
            cluster(
                topic("orders", own=frozenset({"retention.ms"})),
                auto_create=True,
                default_partitions=6,
                default_copies=3,
            ),
            [],
        ),
    ],
)
def test_a_fault_is_found(found: Found, finds: list[tuple[str, str, str]]) -> None:
    assert found_by(found) == finds


class TestRetryTopics:
    def test_those_that_are_missing_are_told_together(self) -> None:
        assert found_by(cluster(), RETRIES) == [("retry-missing", "warning", WORK)]

    @pytest.mark.parametrize(
        "config", [{"retention.ms": "1"}, {"retention.bytes": "1"}, {"cleanup.policy": "compact"}]
    )
    def test_one_that_loses_records_is_an_error(self, config: dict[str, str]) -> None:
        found = cluster(topic("orders.retry.5s", config=config))
        assert found_by(found, RETRIES) == [("retry-expires", "error", "topic orders.retry.5s")]

    def test_those_that_keep_everything_are_no_fault(self) -> None:
        assert found_by(cluster(topic("orders.retry.5s")), RETRIES) == []


class TestGroups:
    def group(self, topic: str, **fields: Any) -> dict[str, FoundGroup]:
        return {topic: FoundGroup(name="shop", topic=topic, **fields)}

    def test_a_group_that_nobody_is_in_and_that_is_behind_is_told(self) -> None:
        found = cluster(groups=self.group("orders", members=0, behind=3))
        assert found_by(found) == [("group-behind", "info", "group shop")]
        assert "3 records are waiting in 'orders'" in only(found, "group-behind").text

    @pytest.mark.parametrize(("members", "behind"), [(1, 3), (0, 0), (None, None)])
    def test_one_that_works_or_has_nothing_to_do_or_is_not_seen_is_not_told(
        self, members: int | None, behind: int | None
    ) -> None:
        assert found_by(cluster(groups=self.group("orders", members=members, behind=behind))) == []

    def test_letters_that_are_collected_do_not_wait(self) -> None:
        full = topic("orders.dlq", records=5)
        collected = self.group("orders.dlq", members=0, behind=0, committed=True)
        assert found_by(cluster(full, groups=collected)) == []
        being_collected = self.group("orders.dlq", members=1, behind=5, committed=True)
        assert found_by(cluster(full, groups=being_collected)) == []

    def test_letters_that_expire_are_a_warning_where_somebody_collects_them(self) -> None:
        week = topic("orders.dlq", config={"retention.ms": "604800000"})
        collected = self.group("orders.dlq", members=1, behind=0, committed=True)
        assert found_by(cluster(week, groups=collected)) == [("dlq-expires", "warning", DLQ)]


class TestAccessLists:
    def test_a_user_who_may_do_everything_lacks_nothing(self) -> None:
        everything = frozenset({"READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"})
        topics = [topic(name, allowed=everything) for name in ("orders", "orders.dlq", VERDICTS)]
        assert found_by(cluster(*topics, allowed=everything)) == []

    def test_what_a_consumer_cannot_work_without_is_an_error_and_the_rest_a_warning(self) -> None:
        nothing: frozenset[str] = frozenset()
        topics = [topic(name, allowed=nothing) for name in ("orders", "orders.dlq", VERDICTS)]
        found = cluster(*topics, user="shop")
        assert [(each.severity, each.text) for each in diagnose(found, [ORDERS]).findings] == [
            ("error", "the user 'shop' may not read the topic 'orders'"),
            ("error", "the user 'shop' may not write the topic 'orders.dlq'"),
            ("warning", "the user 'shop' may not read the topic 'orders.dlq'"),
            ("warning", "the user 'shop' may not write the topic 'orders'"),
            ("warning", f"the user 'shop' may not write the topic '{VERDICTS}'"),
        ]

    def test_a_hidden_topic_is_not_said_to_be_missing(self) -> None:
        found = cluster(without=("orders.dlq",), hidden=frozenset({"orders.dlq"}))
        assert {rule for rule, _, _ in found_by(found)} == {"permission"}
        assert {each.text for each in diagnose(found, [ORDERS]).findings} == {
            "a client without a login may not write the topic 'orders.dlq'",
            "a client without a login may not read the topic 'orders.dlq'",
        }

    def test_to_create_is_asked_for_only_where_something_is_missing(self) -> None:
        assert found_by(cluster(allowed=frozenset())) == []
        lacks = cluster(without=(VERDICTS,), allowed=frozenset())
        assert ("permission", "warning", "cluster") in found_by(lacks)

    def test_a_group_that_may_not_be_used_is_an_error(self) -> None:
        groups = {"orders": FoundGroup(name="shop", topic="orders", allowed=frozenset())}
        assert found_by(cluster(groups=groups)) == [("permission", "error", "group shop")]


class TestTold:
    def test_a_rule_is_silent_about_what_was_not_seen(self) -> None:
        blind = [
            FoundTopic(name=name, partitions=1, replication=2, in_sync=2)
            for name in ("orders", "orders.dlq", VERDICTS)
        ]
        assert found_by(Found(brokers=2, topics={each.name: each for each in blind})) == []

    def test_a_fault_that_sources_share_is_told_once(self) -> None:
        both = [Source(name=name, dead_letter_queue="lost") for name in ("orders", "refunds")]
        found = cluster(topic("refunds"), topic("lost", config={"retention.ms": "1"}), without=(VERDICTS,))
        assert [each.rule for each in diagnose(found, both).findings] == ["dlq-expires", "verdicts-missing"]

    def test_without_compaction_the_retention_counts_so_that_both_are_mended_at_once(self) -> None:
        found = cluster(topic("orders.dlq", config={"cleanup.policy": "compact", "retention.ms": "1"}))
        assert "cleanup.policy=delete,retention.ms=-1,retention.bytes=-1" in only(found, "dlq-compacted").mend

    @pytest.mark.parametrize(
        ("config", "gone"),
        [
            (
                {"cleanup.policy": "delete", "retention.ms": "604800000"},
                "when 'orders' deletes it, after 7d.",
            ),
            ({"cleanup.policy": "delete", "retention.ms": "-1"}, "when 'orders' deletes it."),
            ({"cleanup.policy": "compact"}, "when 'orders' gets another record with its key."),
        ],
    )
    def test_when_the_value_of_a_record_that_was_too_large_is_gone_depends_on_its_source(
        self, config: dict[str, str], gone: str
    ) -> None:
        found = cluster(
            topic("orders", config=config), topic("orders.dlq", config={"max.message.bytes": "9"})
        )
        assert only(found, "dlq-too-small").loss.endswith(f"the value is lost {gone}")

    def test_a_time_that_no_calendar_has_is_told_in_milliseconds(self) -> None:
        found = cluster(topic("orders.dlq", config={"retention.ms": str(2**63 - 1)}))
        assert f"deleted after {2**63 - 1} ms" in only(found, "dlq-expires").text

    def test_every_rule_stands_in_the_table_of_the_module_and_in_the_documentation(self) -> None:
        code = "".join(inspect.getsource(module) for module in (doctor, doctor_letters, doctor_cluster))
        rules = set(re.findall(r'rule="([a-z-]+)"', code))
        table = re.findall(r"^([a-z-]+)  +\S", doctor.__doc__ or "", re.MULTILINE)
        assert set(table) == rules
        kafka = DOCS.read_text("utf-8").partition("## Check a Kafka cluster for losses")[2]
        assert set(re.findall(r"^\| `([a-z-]+)` \|", kafka, re.MULTILINE)) == rules
