"""What do the tests of `provision` and `doctor` on Kafka share?

A broker of their own (`node`), because the topic of verdicts is one for all, and on it a world with fresh names for
each test: a hand that makes and breaks topics, and an eye on them. This file does not know what is tested.
"""

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports them without saying so
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)

from redrive.letters.verdict import QUEUE as VERDICTS
from redrive.transports.base import Source
from redrive.transports.finding import PROVISION, Diagnosis, Finding
from redrive.transports.kafka.upkeep import KafkaUpkeep
from redrive.transports.plan import Applied, Plan
from tests.services import Kafka, KafkaServer, Run
from tests.services.guard import until
from tests.services.kafka import RESTRICTED_USER

ANY: Any = None  # any name and any host; typed as if there had to be one


class KafkaWorld:
    """Topics with names of their own on a real Kafka, to be furnished and looked at."""

    def __init__(self, at: Kafka) -> None:
        self.at = at
        self.admin = at.admin()
        self.orders = Source(name=at.name("orders"))

    @property
    def restricted_url(self) -> str:
        """The broker, for a user who may do only what a test allows."""
        return self.at.restricted_url

    # --- furnishing ----------------------------------------------------------------------------------------

    def config(self, topic: str, settings: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(timeout=30)
        assert until(lambda: settings.items() <= self.settings(topic).items(), 30)

    def delete(self, topic: str) -> None:
        """The topic is gone when it returns."""
        with contextlib.suppress(KafkaException):
            self.admin.delete_topics([topic], operation_timeout=30)[topic].result(timeout=60)
        assert until(lambda: topic not in self.admin.list_topics(timeout=30).topics, 30)

    def produce(self, topic: str, count: int = 1) -> None:
        """Durable when it returns."""
        producer = Producer({"bootstrap.servers": self.at.bootstrap, "acks": "all"})
        for number in range(count):
            producer.produce(topic, b"x", str(number).encode())
        assert producer.flush(30) == 0

    def commit(self, group: str, topic: str, offset: int) -> None:
        """The group has settled what comes before this offset."""
        consumer = Consumer({"bootstrap.servers": self.at.bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.close()

    def allow(self, operation: str, kind: str, name: str) -> None:
        """Lets the restricted user do this."""
        acl = AclBinding(
            ResourceType[kind.upper()], name, ResourcePatternType.LITERAL, f"User:{RESTRICTED_USER}", "*",
            AclOperation[operation], AclPermissionType.ALLOW,
        )  # fmt: skip
        self.admin.create_acls([acl])[acl].result(timeout=30)

    def forbid_everything(self) -> None:
        """The restricted user may do nothing again."""
        everything = AclBindingFilter(
            ResourceType.ANY, ANY, ResourcePatternType.ANY, f"User:{RESTRICTED_USER}", ANY,
            AclOperation.ANY, AclPermissionType.ANY,
        )  # fmt: skip
        self.admin.delete_acls([everything])[everything].result(timeout=30)

    def type(self, command: str) -> None:
        """Does what Kafka's own programs do with these words."""
        program, *words = shlex.split(command)
        options = {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("--")}
        assert options["--bootstrap-server"], "it says where"
        match program:
            case "kafka-configs.sh":
                pairs = (pair.split("=", 1) for pair in options["--add-config"].split(","))
                self.config(options["--entity-name"], dict(pairs))
            case "kafka-topics.sh":
                more = NewPartitions(options["--topic"], int(options["--partitions"]))
                self.admin.create_partitions([more])[options["--topic"]].result(timeout=30)
                assert until(lambda: self.partitions(more.topic) == more.new_total_count, 30)
            case "kafka-acls.sh":
                assert options["--allow-principal"] == f"User:{RESTRICTED_USER}"
                [(kind, name)] = [
                    (kind, options.get(f"--{kind}", "kafka-cluster"))
                    for kind in ("topic", "group", "cluster")
                    if f"--{kind}" in words
                ]
                operation = "".join(
                    f"_{char}" if at and char.isupper() else char
                    for at, char in enumerate(options["--operation"])
                )
                self.allow(operation.upper(), "broker" if kind == "cluster" else kind, name)
            case _:
                raise AssertionError(f"what is {program}?")

    async def mend(self, finding: Finding, *sources: Source) -> None:
        """Does what the finding says, as an operator would."""
        if finding.mend == PROVISION:
            await self.apply(*sources)
        else:
            for command in finding.mend.split("; "):
                self.type(command)

    # --- looking --------------------------------------------------------------------------------------------

    def upkeep(self, url: str | None = None) -> KafkaUpkeep:
        return KafkaUpkeep(url or self.at.url)

    async def plan(self, *sources: Source, url: str | None = None) -> Plan:
        return await self.upkeep(url).plan(sources)

    async def apply(self, *sources: Source, url: str | None = None) -> list[Applied]:
        steps = await self.plan(*sources, url=url)
        return [step async for step in self.upkeep(url).apply(steps)]

    async def provisioned(self, *sources: Source) -> None:
        """Everything these sources need is there."""
        assert {step.result for step in await self.apply(*sources)} <= {"made"}

    async def diagnosis(self, *sources: Source, url: str | None = None) -> Diagnosis:
        return await self.upkeep(url).diagnose(sources)

    def topics(self) -> set[str]:
        """Those of this world."""
        names = self.admin.list_topics(timeout=30).topics
        return {name for name in names if name.startswith(self.at.prefix) or name == VERDICTS}

    def settings(self, topic: str) -> dict[str, Any]:
        """What is in force for a topic."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = self.admin.describe_configs([resource])[resource].result(timeout=30)
        return {name: entry.value for name, entry in found.items()}

    def partitions(self, topic: str) -> int:
        return len(self.admin.list_topics(topic, timeout=30).topics[topic].partitions)


@pytest.fixture(scope="module")
def node(service_run: Run) -> Iterator[KafkaServer]:
    """A broker for all tests of a file."""
    with service_run.private(KafkaServer, os.environ) as server:
        yield server


@pytest.fixture
def world(node: KafkaServer) -> Iterator[KafkaWorld]:
    """Fresh names, no verdicts, and nothing allowed."""
    with node.address.fresh() as names:
        world = KafkaWorld(names)
        yield world
        world.delete(VERDICTS)
        world.forbid_everything()
