"""What sources need is planned, made and found again, on a real Kafka."""

import asyncio
import json
from pathlib import Path

import pytest

from redrive.errors import BrokerRefusedError, TransportError
from redrive.letters.verdict import QUEUE as VERDICTS
from redrive.transports.base import Source
from redrive.transports.kafka.names import retry_topics
from redrive.transports.kafka.plan import DEFAULT_LARGEST, HEADROOM
from redrive.transports.kafka.provision import make_missing
from redrive.transports.kafka.topology import plain_topics, wanted
from tests.acceptance.broker_world import Run, command_line
from tests.acceptance.kafka_world import KafkaWorld, node, world

__all__ = ["node", "world"]
pytestmark = pytest.mark.service("kafka")

ALL = 3  # dead letters, verdicts, work


@pytest.fixture
def redrive(tmp_path: Path) -> Run:
    return command_line(tmp_path)


# --- plan and apply ---------------------------------------------------------------------------------------


async def test_on_an_empty_cluster_everything_is_planned_made_and_found_as_wanted(world: KafkaWorld) -> None:
    before = await world.plan(world.orders)
    assert [item.state for item in before.items] == ["missing"] * ALL
    assert world.topics() == set(), "a plan changes nothing"

    done = await world.apply(world.orders)
    assert [step.result for step in done] == ["made"] * ALL
    assert world.topics() == {world.orders.name, world.orders.dlq, VERDICTS}

    after = await world.plan(world.orders)
    assert [item.state for item in after.items] == ["same"] * ALL
    assert after.unseen == ()
    assert await world.apply(world.orders) == [], "a second apply finds nothing to do"


async def test_a_topic_of_dead_letters_keeps_everything_and_has_as_many_partitions_as_its_source(
    world: KafkaWorld,
) -> None:
    world.at.topic("orders", partitions=7, config={"max.message.bytes": "5000000"})

    await world.provisioned(world.orders)

    settings = world.settings(world.orders.dlq)
    assert (settings["retention.ms"], settings["retention.bytes"]) == ("-1", "-1")
    assert settings["cleanup.policy"] == "delete"
    assert int(settings["max.message.bytes"]) == 5_000_000 + HEADROOM
    assert world.partitions(world.orders.dlq) == 7


async def test_what_catches_dead_letters_is_made_before_what_they_come_from(world: KafkaWorld) -> None:
    done = await world.apply(world.orders, Source(name=world.at.name("refunds")))
    assert [step.item.name.removeprefix(world.at.prefix) for step in done] == [
        "orders.dlq",
        "refunds.dlq",
        VERDICTS,
        "orders",
        "refunds",
    ]


async def test_what_exists_is_never_touched(world: KafkaWorld) -> None:
    world.at.topic("orders", partitions=2, config={"cleanup.policy": "compact"})
    world.at.topic("orders.dlq", config={"retention.ms": "1000"})
    before = [world.settings(topic) for topic in (world.orders.name, world.orders.dlq)]

    await world.apply(world.orders)

    assert [world.settings(topic) for topic in (world.orders.name, world.orders.dlq)] == before
    assert world.partitions(world.orders.dlq) == 1


async def test_a_difference_tells_what_is_what_is_wanted_and_how_to_mend_it(world: KafkaWorld) -> None:
    world.at.topic("orders", partitions=3)
    world.at.topic(
        "orders.dlq",
        config={"retention.ms": "604800000", "cleanup.policy": "compact", "max.message.bytes": "1000"},
    )

    [item] = (await world.plan(world.orders)).of("differs")

    assert item.name == world.orders.dlq
    assert [(each.what, each.found, each.wanted) for each in item.differences] == [
        ("partitions", 1, 3),
        ("cleanup.policy", "compact", "delete"),
        ("retention.ms", "604800000", "-1"),
        ("max.message.bytes", "1000", str(DEFAULT_LARGEST + HEADROOM)),
    ]
    for command in item.mend.split("; "):
        world.type(command)
    assert (await world.plan(world.orders)).of("differs") == ()


async def test_what_lies_in_a_topic_of_work_is_its_owners_affair(world: KafkaWorld) -> None:
    world.at.topic("orders", config={"cleanup.policy": "compact", "retention.ms": "1000"})
    await world.apply(world.orders)
    assert len((await world.plan(world.orders)).of("same")) == ALL


async def test_retry_topics_are_made_where_the_url_asks_for_them(world: KafkaWorld) -> None:
    world.at.topic("orders", partitions=3)
    url = f"{world.at.url}/?retry=topics"

    made = [step.item.name for step in await world.apply(world.orders, url=url)]

    retries = list(retry_topics(world.orders))
    assert made == [world.orders.dlq, *retries, VERDICTS]
    assert world.settings(retries[0])["retention.ms"] == "-1"
    assert world.partitions(retries[0]) == 3
    assert (await world.diagnosis(world.orders, url=url)).healthy

    world.delete(retries[0])
    told = (await world.diagnosis(world.orders, url=url)).findings
    assert [each.rule for each in told if each.severity != "info"] == ["retry-missing"]


# --- make_missing ---------------------------------------------------------------------------------------------


async def test_a_transport_that_starts_makes_what_is_missing_and_nothing_else(world: KafkaWorld) -> None:
    world.at.topic("orders", partitions=4, config={"max.message.bytes": "3000000"})
    admin = world.upkeep().admin()

    made = await make_missing(admin, wanted([world.orders]))

    assert [item.name for item in made] == [world.orders.dlq, VERDICTS]
    assert world.partitions(world.orders.dlq) == 4
    assert int(world.settings(world.orders.dlq)["max.message.bytes"]) == 3_000_000 + HEADROOM
    assert await make_missing(admin, wanted([world.orders])) == ()


async def test_a_plain_topic_is_made_once_and_left_as_it_is(world: KafkaWorld) -> None:
    name, admin = world.at.name("park"), world.upkeep().admin()
    assert [item.name for item in await make_missing(admin, plain_topics([name]))] == [name]
    assert await make_missing(admin, plain_topics([name])) == ()
    assert await make_missing(admin, plain_topics([])) == ()


async def test_four_instances_may_start_at_once(world: KafkaWorld) -> None:
    made = await asyncio.gather(
        *(make_missing(world.upkeep().admin(), wanted([world.orders])) for _ in range(4))
    )
    assert sorted(item.name for items in made for item in items) == sorted(
        [world.orders.name, world.orders.dlq, VERDICTS]
    )


async def test_a_user_who_may_only_consume_can_start_where_everything_is_there(world: KafkaWorld) -> None:
    await world.provisioned(world.orders)
    for topic in (world.orders.name, world.orders.dlq, VERDICTS):
        world.allow("DESCRIBE", "topic", topic)
    admin = world.upkeep(world.restricted_url).admin()
    assert await make_missing(admin, wanted([world.orders])) == ()


async def test_a_user_who_may_not_create_is_told_what_cannot_be_made(world: KafkaWorld) -> None:
    for topic in (world.orders.name, world.orders.dlq, VERDICTS):
        world.allow("DESCRIBE", "topic", topic)
    admin = world.upkeep(world.restricted_url).admin()
    with pytest.raises(BrokerRefusedError, match=rf"topic {world.orders.dlq} cannot be created: .*ACL"):
        await make_missing(admin, wanted([world.orders]))
    assert world.topics() == set(), "no topic of work is made without what catches its dead letters"


async def test_a_topic_that_the_cluster_does_not_want_is_told_in_its_words(world: KafkaWorld) -> None:
    world.at.topic("orders_dlq")
    with pytest.raises(TransportError, match=r"orders\.dlq cannot be created: .*collides"):
        await make_missing(world.upkeep().admin(), wanted([world.orders]))


# --- the command ----------------------------------------------------------------------------------------------


def test_the_command_shows_the_plan_and_changes_nothing(world: KafkaWorld, redrive: Run) -> None:
    done = redrive("provision", "--source", world.orders.name, "--broker", world.at.url)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"plan for {world.at.url}"
    assert (
        f"+ topic    {world.orders.dlq}  (partitions (broker default), replicas 1, "
        "cleanup.policy=delete, retention.ms=-1, "
        "retention.bytes=-1, unclean.leader.election.enable=false, min.insync.replicas=1, "
        f"max.message.bytes={DEFAULT_LARGEST + HEADROOM})"
    ) in lines
    assert f"{ALL} to create, 0 different, 0 present" in lines
    assert lines[-1] == "nothing was changed; pass --apply to create what is missing"
    assert world.topics() == set()


def test_the_command_applies_the_plan_and_has_nothing_to_do_the_second_time(
    world: KafkaWorld, redrive: Run
) -> None:
    words = ("provision", "--source", world.orders.name, "--broker", world.at.url, "--apply", "--yes")
    first = redrive(*words)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.endswith(f"created {ALL}\n")
    second = redrive(*words)
    assert (second.returncode, second.stdout.splitlines()[-1]) == (0, "nothing to create")


def test_programs_get_plan_and_steps_as_json(world: KafkaWorld, redrive: Run) -> None:
    words = ("provision", "--source", world.orders.name, "--broker", world.at.url, "--json")
    told = json.loads(redrive(*words).stdout)
    assert (told["broker"], told["brokers"]) == (world.at.url, 1)
    assert (told["missing"], told["differs"], told["steps"], told["unseen"]) == (ALL, 0, [], [])
    assert told["items"][-1] == {
        "kind": "topic",
        "name": world.orders.name,
        "state": "missing",
        "wanted": {
            "name": world.orders.name,
            "role": "work",
            "like": [],
            "partitions": None,
            "replication": 1,
            "config": {"min.insync.replicas": "1"},
        },
        "differences": [],
        "mend": "",
    }
    told = json.loads(redrive(*words, "--apply", "--yes").stdout)
    assert [step["result"] for step in told["steps"]] == ["made"] * ALL


def test_what_cannot_be_mended_by_making_is_told_and_is_no_success(world: KafkaWorld, redrive: Run) -> None:
    world.at.topic("orders.dlq")
    words = ("provision", "--source", world.orders.name, "--broker", world.at.url)
    shown = redrive(*words)
    assert shown.returncode == 0
    assert f"~ topic    {world.orders.dlq}\n    retention.ms is 604800000, expected -1\n" in shown.stdout
    assert f"fix: kafka-configs.sh --bootstrap-server {world.at.bootstrap} --alter" in shown.stdout
    applied = redrive(*words, "--apply", "--yes")
    assert applied.returncode == 1
    assert applied.stderr == "redrive: 1 existing object different from the plan, not changed\n"


def test_sources_and_broker_come_from_the_settings(world: KafkaWorld, redrive: Run, tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text(
        f"[broker]\nurl = {world.at.url!r}\n[[sources]]\nname = 'refunds'\ndead_letter_queue = 'lost'\n",
        "utf-8",
    )
    done = redrive("provision")
    assert "+ topic    lost  (" in done.stdout, done.stderr
    assert "+ topic    refunds  (" in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (
            ["--source", "a b", "--broker", "kafka://x"],
            2,
            "its name 'a b' is not a valid topic name: it must have 1 to 249 characters",
        ),
        (
            ["--source", "a", "--broker", "kafka://x/?grup=1"],
            2,
            "unknown option 'grup'; did you mean 'group'?",
        ),
        (
            ["--source", "a", "--broker", "kafka://x", "--management-url", "http://x"],
            2,
            "only RabbitMQ has a management URL; remove --management-url",
        ),
        (
            ["--source", "a", "--broker", "kafka://u:hunter2@127.0.0.1:1/?connect_timeout=1s"],
            4,
            "kafka://127.0.0.1:1: ",
        ),
    ],
)
def test_what_is_wrong_is_one_line_without_a_password(
    redrive: Run, args: list[str], code: int, says: str
) -> None:
    for command in ("provision", "doctor"):
        done = redrive(command, *args)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.startswith("redrive: ")
        assert done.stderr.count("\n") == 1
        assert says in done.stderr
        assert "hunter2" not in done.stderr


def test_a_login_that_is_refused_is_said_to_be_refused(world: KafkaWorld, redrive: Run) -> None:
    wrong = world.restricted_url.replace("restricted:", "restricted:hunter2")
    done = redrive("provision", "--source", "orders", "--broker", f"{wrong}/?connect_timeout=3s")
    assert done.returncode == 4
    assert "user name, password or certificate is wrong" in done.stderr
    assert "hunter2" not in done.stderr
