"""What is planned when a topic is there, is not, or is otherwise; and which topics there are at all."""

import json
from typing import Any

import pytest

from redrive.errors import SettingsError
from redrive.letters.verdict import QUEUE as VERDICTS
from redrive.transports.base import Source
from redrive.transports.kafka.found import Found, FoundTopic
from redrive.transports.kafka.mend import allow, set_config
from redrive.transports.kafka.plan import DEFAULT_LARGEST, HEADROOM, plan
from redrive.transports.kafka.topology import KEEPS_ALL, Topic, Topology, is_name, plain_topics, wanted
from redrive.transports.plan import Item, as_table, show

ORDERS = Source(name="orders")


def topic(name: str, **changed: Any) -> FoundTopic:
    """A topic as provision makes it in a cluster of three brokers."""
    config = {
        **(KEEPS_ALL if name != "orders" else {}),
        "min.insync.replicas": "2",
        "max.message.bytes": str(DEFAULT_LARGEST + (0 if name == "orders" else HEADROOM)),
        **changed.pop("config", {}),
    }
    return FoundTopic(
        **{"name": name, "partitions": 6, "replication": 3, "in_sync": 3, "config": config, **changed}
    )


def cluster(*changed: FoundTopic, brokers: int = 3, without: tuple[str, ...] = (), **more: Any) -> Found:
    """Three brokers that have everything, but for what is changed."""
    topics = {name: topic(name) for name in ("orders", "orders.dlq", VERDICTS) if name not in without}
    topics |= {each.name: each for each in changed}
    return Found(servers="kafka.test:9092", brokers=brokers, topics=topics, **more)


def item(found: Found, name: str = "orders.dlq", source: Source = ORDERS) -> Item:
    [only] = [item for item in plan(found, wanted([source])).items if item.name == name]
    return only


class TestWanted:
    def test_a_source_needs_its_topic_one_for_its_dead_letters_and_that_of_verdicts(self) -> None:
        assert [(each.name, each.role) for each in wanted([ORDERS]).topics] == [
            ("orders.dlq", "dead letters"),
            (VERDICTS, "verdicts"),
            ("orders", "work"),
        ]

    def test_retry_topics_are_made_where_they_are_asked_for_and_lose_nothing(self) -> None:
        topics = wanted([ORDERS], {"orders": ["orders.retry.5s", "orders.retry.1m"]}).topics
        retries = [each for each in topics if each.role == "retry"]
        assert [each.name for each in retries] == ["orders.retry.5s", "orders.retry.1m"]
        assert all(each.config == KEEPS_ALL and each.like == ("orders",) for each in retries)

    def test_nothing_is_wanted_for_no_source(self) -> None:
        assert wanted([]) == Topology()

    def test_a_topic_of_dead_letters_that_is_shared_is_made_once_and_is_like_all_of_its_sources(self) -> None:
        both = [Source(name=name, dead_letter_queue="lost") for name in ("orders", "refunds")]
        [lost] = [each for each in wanted(both).topics if each.role == "dead letters"]
        assert (lost.name, lost.like) == ("lost", ("orders", "refunds"))

    @pytest.mark.parametrize(
        ("sources", "says"),
        [
            ([Source(name="a b")], "its name 'a b' is not a valid"),
            ([Source(name="")], "its name '' is not a valid"),
            ([Source(name="..")], "its name '..' is not a valid"),
            ([Source(name="ä")], "its name 'ä' is not a valid"),
            ([Source(name="a" * 247)], "dead_letter_queue 'aaa"),
            ([Source(name="a", dead_letter_queue="a")], "its dead letters would return to it"),
            ([Source(name="a", dead_letter="native")], "Kafka has no native dead-lettering"),
            (
                [Source(name="a"), Source(name="b", dead_letter_queue="a")],
                "the topic 'a' would be used for both dead letters and work",
            ),
        ],
    )
    def test_what_cannot_be_served_is_said(self, sources: list[Source], says: str) -> None:
        with pytest.raises(SettingsError, match=says.replace("..", r"\.\.")):
            wanted(sources)

    @pytest.mark.parametrize("name", ["orders", "a.b_c-D9", "a" * 249])
    def test_kafkas_names_are_letters_digits_dots_underscores_and_hyphens(self, name: str) -> None:
        assert is_name(name)
        assert plain_topics([name]).names == [name]

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\n", "a" * 250, "ö"])
    def test_other_names_are_refused(self, name: str) -> None:
        assert not is_name(name)
        with pytest.raises(SettingsError, match="is not a valid topic name"):
            plain_topics([name])


class TestPlanning:
    def test_where_everything_is_as_wanted_there_is_nothing_to_do(self) -> None:
        assert {each.state for each in plan(cluster(), wanted([ORDERS])).items} == {"same"}

    def test_on_an_empty_cluster_everything_is_missing_in_the_order_of_making(self) -> None:
        steps = plan(Found(brokers=3), wanted([ORDERS]))
        assert {each.state for each in steps.items} == {"missing"}
        assert [each.name for each in steps.to_make] == ["orders.dlq", VERDICTS, "orders"]

    @pytest.mark.parametrize(
        ("brokers", "copies", "in_sync"), [(1, 1, "1"), (2, 2, "1"), (3, 3, "2"), (30, 3, "2")]
    )
    def test_a_topic_gets_three_copies_where_there_are_brokers_for_them(
        self, brokers: int, copies: int, in_sync: str
    ) -> None:
        made = item(Found(brokers=brokers)).wanted
        assert isinstance(made, Topic)
        assert (made.replication, made.config["min.insync.replicas"]) == (copies, in_sync)

    def test_a_topic_of_dead_letters_is_made_like_its_source_and_takes_what_a_letter_tells_besides(
        self,
    ) -> None:
        work = topic("orders", partitions=12, config={"max.message.bytes": "9000"})
        made = item(cluster(work, without=("orders.dlq",))).wanted
        assert isinstance(made, Topic)
        assert (made.partitions, made.config["max.message.bytes"]) == (12, str(9000 + HEADROOM))

    def test_where_the_source_is_missing_too_the_broker_chooses_the_partitions_of_both(self) -> None:
        made = [each.wanted for each in plan(Found(), wanted([ORDERS])).items if each.name != VERDICTS]
        assert [isinstance(each, Topic) and each.partitions for each in made] == [None, None]

    def test_a_shared_topic_of_dead_letters_is_like_the_largest_of_its_sources(self) -> None:
        both = [Source(name=name, dead_letter_queue="lost") for name in ("orders", "refunds")]
        refunds = topic("refunds", partitions=9, config={"max.message.bytes": "5"})
        [lost] = [each.wanted for each in plan(cluster(refunds), wanted(both)).items if each.name == "lost"]
        assert isinstance(lost, Topic)
        assert (lost.partitions, lost.config["max.message.bytes"]) == (9, str(DEFAULT_LARGEST + HEADROOM))

    @pytest.mark.parametrize(
        ("found", "differences"),
        [
            (topic("orders.dlq", partitions=3), [("partitions", 3, 6)]),
            (topic("orders.dlq", partitions=12), []),
            (topic("orders.dlq", replication=2), [("replication factor", 2, 3)]),
            (topic("orders.dlq", replication=5), []),
            (
                topic("orders.dlq", config={"retention.ms": "604800000"}),
                [("retention.ms", "604800000", "-1")],
            ),
            (topic("orders.dlq", config={"retention.bytes": "1"}), [("retention.bytes", "1", "-1")]),
            (
                topic("orders.dlq", config={"cleanup.policy": "compact,delete"}),
                [("cleanup.policy", "compact,delete", "delete")],
            ),
            (
                topic("orders.dlq", config={"max.message.bytes": "99"}),
                [("max.message.bytes", "99", str(DEFAULT_LARGEST + HEADROOM))],
            ),
            (topic("orders.dlq", config={"max.message.bytes": str(DEFAULT_LARGEST)}), []),
            (topic("orders.dlq", config={"min.insync.replicas": "1"}), [("min.insync.replicas", "1", "2")]),
            (topic("orders.dlq", config={"min.insync.replicas": "3"}), []),
            (
                topic("orders.dlq", config={"unclean.leader.election.enable": "true"}),
                [("unclean.leader.election.enable", "true", "false")],
            ),
        ],
    )
    def test_a_topic_of_dead_letters_that_is_otherwise_is_told_in_what(
        self, found: FoundTopic, differences: list[tuple[str, object, object]]
    ) -> None:
        told = item(cluster(found))
        assert [(each.what, each.found, each.wanted) for each in told.differences] == differences
        assert told.state == ("differs" if differences else "same")
        assert bool(told.mend) == bool(differences)

    def test_one_copy_need_not_be_two_in_sync(self) -> None:
        alone = topic("orders.dlq", replication=1, in_sync=1, config={"min.insync.replicas": "1"})
        assert [each.what for each in item(cluster(alone)).differences] == ["replication factor"]

    def test_a_topic_of_work_is_never_otherwise(self) -> None:
        work = topic(
            "orders", replication=1, config={"cleanup.policy": "compact", "min.insync.replicas": "1"}
        )
        assert item(cluster(work), "orders").state == "same"

    def test_what_may_not_be_seen_is_not_called_missing(self) -> None:
        hidden = cluster(without=("orders.dlq",), hidden=frozenset({"orders.dlq"}), user="shop", secured=True)
        told = item(hidden)
        assert told.state == "unseen"
        assert told.mend == (
            "kafka-acls.sh --bootstrap-server kafka.test:9092 --command-config admin.properties --add "
            "--allow-principal User:shop --operation Describe --topic orders.dlq"
        )
        assert plan(hidden, wanted([ORDERS])).to_make == ()

    def test_settings_that_may_not_be_seen_are_not_called_wrong(self) -> None:
        blind = FoundTopic(name="orders.dlq", partitions=1, replication=1, in_sync=1)
        assert item(cluster(blind)).state == "unseen"


class TestTold:
    def test_people_get_lines(self) -> None:
        found = cluster(topic("orders.dlq", config={"retention.ms": "1"}), without=("orders",))
        command = (
            "kafka-configs.sh --bootstrap-server kafka.test:9092 --alter --entity-type topics "
            "--entity-name orders.dlq --add-config retention.ms=-1"
        )
        assert list(show(plan(found, wanted([ORDERS])))) == [
            "~ topic    orders.dlq",
            "    retention.ms is 1, expected -1",
            f"    fix: {command}",
            f"= topic    {VERDICTS}",
            "+ topic    orders  (partitions (broker default), replicas 3, min.insync.replicas=2)",
        ]

    def test_programs_get_plain_values(self) -> None:
        told = json.loads(json.dumps(as_table(plan(cluster(), wanted([ORDERS])))))
        assert (told["brokers"], told["missing"], told["differs"]) == (3, 0, 0)
        assert [each["name"] for each in told["items"]] == ["orders.dlq", VERDICTS, "orders"]

    def test_a_command_can_be_typed_as_it_stands(self) -> None:
        odd = Found(servers="a:1,b:2", user="o'neil")
        assert "--add-config cleanup.policy=[compact,delete]" in set_config(
            odd, "x", {"cleanup.policy": "compact,delete"}
        ).replace("'", "")
        assert """'User:o'"'"'neil'""" in allow(odd, "DESCRIBE_CONFIGS", "topic", "x")
        assert "--operation DescribeConfigs --topic x" in allow(odd, "DESCRIBE_CONFIGS", "topic", "x")
        assert allow(odd, "CREATE", "cluster", "").endswith("--operation Create --cluster")
