"""Every fault is found on a real Kafka that has it, and is gone once it is mended in the way that was told."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest
from confluent_kafka import Consumer

from redrive.letters.verdict import QUEUE as VERDICTS
from redrive.transports.finding import Diagnosis
from tests.acceptance.broker_world import Run as CommandLine, command_line
from tests.acceptance.kafka_world import KafkaWorld, node, world
from tests.services import KafkaServer, Run

__all__ = ["node", "world"]
pytestmark = pytest.mark.service("kafka")


@pytest.fixture
def redrive(tmp_path: Path) -> CommandLine:
    return command_line(tmp_path)


def faults(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    """Rule and severity of each; that one broker has one copy is told of every topic here."""
    return {(each.rule, each.severity) for each in diagnosis.findings if each.rule != "one-copy"}


# --- faults ---------------------------------------------------------------------------------------------------


async def test_where_all_is_provisioned_there_is_no_fault(world: KafkaWorld) -> None:
    await world.provisioned(world.orders)
    diagnosis = await world.diagnosis(world.orders)
    assert faults(diagnosis) == set()
    assert diagnosis.healthy
    assert diagnosis.unseen == ()
    assert {each.severity for each in diagnosis.findings} == {"info"}, "one broker cannot have two copies"


class Case(NamedTuple):
    """A fault: how it comes about where all was well, and what is found."""

    name: str
    breaks: Callable[[KafkaWorld], None]
    finds: set[tuple[str, str]]


CASES = [
    Case(
        "no topic",
        lambda world: world.delete(world.orders.name),
        {("topic-missing", "error")},
    ),
    Case(
        "no topic of dead letters",
        lambda world: world.delete(world.orders.dlq),
        {("dlq-missing", "error")},
    ),
    Case("no topic of verdicts", lambda world: world.delete(VERDICTS), {("verdicts-missing", "warning")}),
    Case(
        "seven days",
        lambda world: world.config(world.orders.dlq, {"retention.ms": "604800000"}),
        {("dlq-expires", "error")},
    ),
    Case(
        "a limit",
        lambda world: world.config(world.orders.dlq, {"retention.bytes": "1000000"}),
        {("dlq-limited", "error")},
    ),
    Case(
        "compaction",
        lambda world: world.config(world.orders.dlq, {"cleanup.policy": "compact"}),
        {("dlq-compacted", "error")},
    ),
    Case(
        "records that are too large",
        lambda world: world.config(world.orders.name, {"max.message.bytes": "20000000"}),
        {("dlq-too-small", "warning")},
    ),
    Case(
        "more partitions",
        lambda world: world.type(
            f"kafka-topics.sh --bootstrap-server x --topic {world.orders.name} --partitions 4"
        ),
        {("dlq-fewer", "info")},
    ),
    Case(
        "more copies than there are",
        lambda world: world.config(world.orders.dlq, {"min.insync.replicas": "2"}),
        {("min-insync-high", "error")},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_fault_is_found_and_its_mending_mends_it(world: KafkaWorld, case: Case) -> None:
    await world.provisioned(world.orders)
    case.breaks(world)

    diagnosis = await world.diagnosis(world.orders)
    assert faults(diagnosis) == case.finds

    [finding] = [each for each in diagnosis.findings if each.rule != "one-copy"]
    await world.mend(finding, world.orders)
    assert faults(await world.diagnosis(world.orders)) == set()


async def test_that_letters_are_lost_after_seven_days_is_said_in_so_many_words(world: KafkaWorld) -> None:
    await world.provisioned(world.orders)
    world.delete(world.orders.dlq)
    world.at.topic("orders.dlq")

    told = next(each for each in (await world.diagnosis(world.orders)).findings if each.rule == "dlq-expires")

    assert told.text.endswith("are deleted after 7d (broker default)")
    assert told.loss == "A dead letter is lost if it is not collected within 7d after it was written."


async def test_letters_that_somebody_collects_may_expire_with_a_warning(world: KafkaWorld) -> None:
    await world.provisioned(world.orders)
    world.config(world.orders.dlq, {"retention.ms": "604800000"})
    world.produce(world.orders.dlq, 2)
    world.commit(f"redrive.{world.orders.dlq}", world.orders.dlq, 2)

    assert faults(await world.diagnosis(world.orders)) == {("dlq-expires", "warning")}


# --- groups ---------------------------------------------------------------------------------------------------


async def test_letters_that_wait_are_counted(world: KafkaWorld) -> None:
    await world.provisioned(world.orders)
    world.produce(world.orders.dlq, 5)
    world.commit(f"redrive.{world.orders.dlq}", world.orders.dlq, 2)

    [told] = [each for each in (await world.diagnosis(world.orders)).findings if each.rule == "dlq-waiting"]

    assert told.text == f"3 dead letters are waiting in '{world.orders.dlq}', and no collector is running"


async def test_records_that_wait_for_a_group_without_consumers_are_counted(world: KafkaWorld) -> None:
    await world.provisioned(world.orders)
    world.produce(world.orders.name, 3)
    world.commit("shop", world.orders.name, 1)
    shop = f"{world.at.url}/?group=shop"

    [told] = [
        each
        for each in (await world.diagnosis(world.orders, url=shop)).findings
        if each.rule == "group-behind"
    ]
    assert (
        told.text
        == f"2 records are waiting in '{world.orders.name}', and the consumer group 'shop' has no members"
    )
    assert told.loss == "Records that are not consumed within 7d after they were written are deleted."

    with consuming(world, "shop"):
        assert faults(await world.diagnosis(world.orders, url=shop)) == set()


@pytest.fixture
def auto_creating(service_run: Run) -> Iterator[KafkaWorld]:
    class AutoCreating(KafkaServer):
        settings: ClassVar = {"auto.create.topics.enable": "true"}

    with service_run.private(AutoCreating, os.environ) as server, server.address.fresh() as names:
        yield KafkaWorld(names)


async def test_topics_that_are_made_by_writing_to_them_are_told_apart(auto_creating: KafkaWorld) -> None:
    world = auto_creating
    nothing = await world.diagnosis(world.orders)
    assert faults(nothing) == {
        ("topic-missing", "warning"),
        ("dlq-missing", "error"),
        ("verdicts-missing", "warning"),
    }
    assert "The first dead letter creates it with the broker defaults" in next(
        each.loss for each in nothing.findings if each.rule == "dlq-missing"
    )

    world.produce(world.orders.name)
    await world.apply(world.orders)

    assert faults(await world.diagnosis(world.orders)) == {
        ("topic-made-by-use", "info"),
        ("group-behind", "info"),
    }


# --- access lists ---------------------------------------------------------------------------------------------


async def test_each_access_list_that_is_missing_is_told_until_none_is(world: KafkaWorld) -> None:
    await world.provisioned(world.orders)
    first = await world.diagnosis(world.orders, url=world.restricted_url)
    assert {each.text for each in first.findings if each.severity == "error"} == {
        f"the user 'restricted' may not read the topic '{world.orders.name}'",
        f"the user 'restricted' may not write the topic '{world.orders.dlq}'",
    }

    for _ in range(
        3
    ):  # a topic that was hidden comes into sight with its first access list, and its group with it
        for finding in (await world.diagnosis(world.orders, url=world.restricted_url)).findings:
            if finding.rule == "permission":
                await world.mend(finding, world.orders)

    last = await world.diagnosis(world.orders, url=world.restricted_url)
    assert faults(last) == set()
    # What was told is enough to work with.
    with consuming(world, f"redrive.{world.orders.name}", world.restricted_url):
        pass


async def test_what_the_user_may_not_see_is_said_and_not_guessed(world: KafkaWorld) -> None:
    await world.provisioned(world.orders)
    for topic in (world.orders.name, world.orders.dlq):
        for operation in ("READ", "WRITE"):
            world.allow(operation, "topic", topic)

    diagnosis = await world.diagnosis(world.orders, url=world.restricted_url)

    assert {rule for rule, _ in faults(diagnosis)} == {"permission"}, "nothing is said to be missing"
    assert diagnosis.unseen == (
        f"whether these topics exist: {VERDICTS}",
        f"settings of the topics {world.orders.name}, {world.orders.dlq}: the user needs DESCRIBE_CONFIGS on them",
        "settings of the brokers: the user needs DESCRIBE_CONFIGS on the cluster",
    )


# --- the command ----------------------------------------------------------------------------------------------


def test_the_command_tells_fault_loss_and_mending(world: KafkaWorld, redrive: CommandLine) -> None:
    world.at.topic("orders")
    done = redrive("doctor", "--source", world.orders.name, "--broker", world.at.url)
    assert done.returncode == 1
    assert (
        f"error: the dead-letter topic '{world.orders.dlq}' of '{world.orders.name}' does not exist  "
        "[dlq-missing]\n    impact: No dead letter can be written: consuming stops at the first record that "
        "fails.\n    fix: redrive provision --apply\n"
    ) in done.stdout
    assert done.stderr == f"redrive: 1 source on {world.at.url}: 1 error, 1 warning\n"


def test_a_healthy_broker_is_exit_code_0_and_programs_get_json(
    world: KafkaWorld, redrive: CommandLine
) -> None:
    place = ("--source", world.orders.name, "--broker", world.at.url)
    assert redrive("provision", *place, "--apply", "--yes").returncode == 0
    done = redrive("doctor", *place)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"1 source on {world.at.url}: no problems found\n")
    told = json.loads(redrive("doctor", *place, "--json").stdout)
    assert (told["broker"], told["healthy"], told["unseen"]) == (world.at.url, True, [])
    assert {finding["rule"] for finding in told["findings"]} == {"one-copy"}


# --- a consumer -----------------------------------------------------------------------------------------------


class consuming:  # noqa: N801  it is used like a function
    """A consumer of this group that has been given its partitions."""

    def __init__(self, world: KafkaWorld, group: str, url: str | None = None) -> None:
        from redrive.transports.kafka.url import parse_url

        settings = parse_url(url or world.at.url).client()
        self._consumer = Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
        self._topic = world.orders.name

    def __enter__(self) -> None:
        assigned: list[object] = []
        self._consumer.subscribe([self._topic], on_assign=lambda _, parts: assigned.extend(parts))
        for _ in range(300):
            self._consumer.poll(0.1)
            if assigned:
                return
        raise AssertionError("no partition was assigned within 30 s")

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
