"""What is a Kafka for a test, and how is one started?

The rule: one node that is broker and controller (KRaft), with data of its own. Kafka has no vhosts, so a test
gets a prefix instead: topics and groups whose names begin with it are its own, and go with it. Topics are not
made by writing to them: a missing one is missing, as on most clusters that matter.

Whoever comes in by `url` may do everything. `restricted_url` is the same broker by SASL, for a user to whom
nothing is allowed until a test allows it. This file does not know what is tested, nor how long the node is kept.
"""

import base64
import contextlib
import dataclasses
import logging
import os
import re
import secrets
import shutil
import signal
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from redrive.errors import ServiceError
from tests.services.guard import LOOPBACK, until
from tests.services.server import INSTALLED, Address, Process, Server, accepts, free_ports

RESTRICTED_USER = "restricted"

# A client that cannot connect says so on standard error every 50 ms; `answers` knows it already.
_SILENT = logging.getLogger(f"{__name__}.silent")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


@dataclass(frozen=True)
class Kafka(Address):
    """The topics and groups of one Kafka broker whose names begin with `prefix`."""

    url: str
    restricted_url: str = ""  # empty if the broker was not started here
    prefix: str = ""

    @property
    def bootstrap(self) -> str:
        """`host:port`, as librdkafka's `bootstrap.servers` wants it."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    def name(self, name: str) -> str:
        """A topic or a group of this test alone."""
        return f"{self.prefix}{name}"

    def topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, *, copies: int = 1
    ) -> str:
        """Makes a topic of this test alone; its whole name."""
        admin, topic = self.admin(), NewTopic(self.name(name), partitions, copies, config=dict(config or {}))
        admin.create_topics([topic], operation_timeout=30)[topic.topic].result(timeout=60)
        # The controller has it; the broker, which is the same process, knows of it a moment later.
        if not until(lambda: topic.topic in admin.list_topics(timeout=30).topics, 30):
            raise ServiceError(f"kafka: the topic {topic.topic} was made and is not there")
        return topic.topic

    def admin(self) -> AdminClient:
        """librdkafka's client for topics, groups and access rights.

        Its calls return futures, which end with the client: keep it in a variable until they are done.
        """
        return AdminClient({"bootstrap.servers": self.bootstrap}, logger=_SILENT)

    @contextlib.contextmanager
    def fresh(self) -> Iterator["Kafka"]:
        """A prefix that nobody else uses; its topics and groups are deleted afterwards."""
        mine = dataclasses.replace(self, prefix=f"t{secrets.token_hex(4)}.")
        try:
            yield mine
        finally:
            mine.delete()

    def delete(self) -> None:
        """Deletes every topic and every group that nobody is in, if its name begins with the prefix."""
        admin = self.admin()
        topics = [name for name in admin.list_topics(timeout=30).topics if name.startswith(self.prefix)]
        listed = admin.list_consumer_groups(request_timeout=30).result().valid
        groups = [group.group_id for group in listed if group.group_id.startswith(self.prefix)]
        done = [
            *(admin.delete_topics(topics, operation_timeout=30).values() if topics else ()),
            *(admin.delete_consumer_groups(groups).values() if groups else ()),
        ]
        for each in done:
            with contextlib.suppress(KafkaException):  # gone already, or a group that a member is leaving
                each.result(timeout=30)


def new_cluster() -> str:
    """The id of a cluster that there was not before."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


class KafkaServer(Server[Kafka]):
    """A Kafka from the jars that `scripts/services install kafka` has put under `.services`."""

    name = "kafka"
    variables = ("REDRIVE_TEST_KAFKA_URL",)
    generations = ("4.3", "3.9")
    as_nobody = False  # the jars lie in this source tree, which may be its owner's alone
    settings: ClassVar[Mapping[str, str]] = {}  # a subclass in a test adds to the node's configuration
    cluster: ClassVar[str] = ""  # and says of which cluster it is a part; empty: of one of its own
    ports: ClassVar[
        tuple[int, ...]
    ] = ()  # for clients, for the restricted user, for controllers; empty: any three
    # A small machine that starts fast, rather than one that is fast after minutes.
    machine: ClassVar[tuple[str, ...]] = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

    @classmethod
    def find(cls) -> Path:
        jar = cls.find_generation(cls._program)
        if shutil.which("java") is None:
            raise ServiceError("the jars of Kafka are there but no java is in the PATH; install Java 17")
        return jar

    @classmethod
    def _program(cls, generation: str) -> Path | None:
        found = INSTALLED.glob(f"kafka-{generation}.*/kafka_2.13-*.jar")
        return max(found, key=_version_in_name, default=None)

    @classmethod
    def shared_name(cls, program: Path) -> str:
        # A subclass in a test has settings of its own, and so a name of its own.
        return program.parent.name if cls.settings is KafkaServer.settings else cls.name

    @classmethod
    def given(cls, environ: Mapping[str, str]) -> Kafka | None:
        url = environ.get(cls.variables[0], "")
        return Kafka(url) if url else None

    @classmethod
    def at(cls, **fields: str) -> Kafka:
        return Kafka(**fields)

    def prepare(self) -> Kafka:
        open_, restricted, controller = self.ports or free_ports(3)
        password = secrets.token_hex(12)
        self._own(self.home / "log4j2.properties", _LOGGING)
        settings = {
            **_settings(open_, restricted, controller, password),
            "log.dirs": str(self.home / "data"),
            **self.settings,
        }
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        self._own(self.home / "server.properties", lines)
        self._run(
            *self._java("kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster or new_cluster()}"),
            "--config",
            str(self.home / "server.properties"),
            env=self._env,
        )
        return Kafka(
            f"kafka://{LOOPBACK}:{open_}", f"kafka://{RESTRICTED_USER}:{password}@{LOOPBACK}:{restricted}"
        )

    def _java(self, *args: str) -> tuple[str, ...]:
        return (
            *("java", *self.machine, f"-Djava.io.tmpdir={self.home}"),
            f"-Dlog4j2.configurationFile={self.home / 'log4j2.properties'}",
            *("-cp", str(self.program.parent / "*")),
            *args,
        )

    @property
    def _env(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "LANG": "C.UTF-8",
        }

    def processes(self) -> tuple[Process, ...]:
        argv = self._java("kafka.Kafka", str(self.home / "server.properties"))
        return (Process(argv, self._env, stop=signal.SIGTERM, kill=signal.SIGKILL),)

    def answers(self) -> bool:
        if not accepts(self.address.url):
            return False
        try:
            return bool(self.address.admin().list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    @property
    def url(self) -> str:
        """Where it listens, for a user who may do everything."""
        return self.address.url

    @property
    def version(self) -> str:
        """The version of its jar, for example `4.3.1`."""
        return ".".join(map(str, _version_in_name(self.program)))


_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %m (%c)%n
"""


def _settings(open_: int, restricted: int, controller: int, password: str) -> dict[str, str]:
    """One node that is everything, with as little of it as there can be."""
    sasl = "listener.name.sasl_plaintext"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{open_},SASL_PLAINTEXT://{LOOPBACK}:{restricted},"
        f"CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{open_},SASL_PLAINTEXT://{LOOPBACK}:{restricted}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        f"{sasl}.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_{RESTRICTED_USER}="{password}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "auto.create.topics.enable": "false",
        "num.network.threads": "2",
        "num.io.threads": "2",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # After a crash the controller, which is the same process, waits for the node that it was before.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
        # A group need not wait for members that may come, and a test of a lost member need not be slow.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "500",
    }


def _version_in_name(jar: Path) -> tuple[int, ...]:
    """(4, 1, 0) for `kafka_2.13-4.1.0.jar`."""
    return tuple(map(int, re.findall(r"\d+", jar.stem.rpartition("-")[2])))
