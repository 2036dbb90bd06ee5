"""Are the services that tests are given real, apart from each other, and gone afterwards?

The one rule: everything here is asked of a real server or of a real process; only the rule that decides
between skipping and failing is asked with an environment that was made up for it.
"""

import asyncio
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import asyncpg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from redrive.errors import ServiceError
from tests.services import (
    FAMILIES,
    POSTGRESES,
    RABBITMQS,
    REQUIRED,
    SERVICES,
    TOOLS,
    Given,
    Kafka,
    KafkaServer,
    Missing,
    Postgres,
    PostgresServer,
    RabbitMQ,
    RabbitMQServer,
    Run,
    Server,
    Startable,
    Tool,
    look_for,
    look_for_program,
    required,
)
from tests.services.server import root_of

ROOT = Path(__file__).parents[2]


class TestTheRule:
    class Nowhere(PostgresServer):
        name = "postgres"

        @classmethod
        def find(cls) -> Path:
            raise ServiceError("no such program")

    class Somewhere(RabbitMQServer):
        @classmethod
        def find(cls) -> Path:
            return Path("/somewhere/rabbitmq-server")

    def test_a_missing_service_skips_at_home(self) -> None:
        missing = look_for(self.Nowhere, {})

        assert missing == Missing("postgres: no such program", required=False)
        with pytest.raises(pytest.skip.Exception, match="no such program"):
            missing.end_test()

    def test_a_missing_service_fails_where_it_is_required(self) -> None:
        missing = look_for(self.Nowhere, {REQUIRED: "rabbitmq, postgres"})

        assert missing == Missing("postgres: no such program", required=True)
        with pytest.raises(pytest.fail.Exception, match=f"no such program.*{REQUIRED}"):
            missing.end_test()

    def test_another_service_being_required_does_not_matter(self) -> None:
        assert look_for(self.Nowhere, {REQUIRED: "rabbitmq"}) == Missing(
            "postgres: no such program", required=False
        )

    def test_an_unknown_required_service_is_an_error_that_says_what_was_meant(self) -> None:
        with pytest.raises(ServiceError, match="rabitmq; did you mean rabbitmq"):
            required({REQUIRED: "rabitmq"})

    def test_a_family_requires_all_its_versions_and_a_version_its_family(self) -> None:
        assert {"rabbitmq", "rabbitmq-4.3", "rabbitmq-4.0", "rabbitmq-3.10"} <= required(
            {REQUIRED: "rabbitmq"}
        )
        assert required({REQUIRED: "kafka-3.9"}) == {"kafka-3.9", "kafka"}

    def test_the_environment_chooses_the_version_that_stands_for_the_newest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REDRIVE_TEST_RABBITMQ", "4.0")
        chosen = look_for_program(RabbitMQServer, {})

        assert chosen == look_for_program(RABBITMQS["4.0"], {}) or isinstance(chosen, Missing)
        monkeypatch.setenv("REDRIVE_TEST_RABBITMQ", "2.8")
        assert look_for_program(RabbitMQServer, {}) == Missing(
            "rabbitmq: there is no rabbitmq 2.8 here; known: 4.3, 4.0, 3.10", required=False
        )

    def test_a_program_is_used_when_no_url_is_given(self) -> None:
        assert look_for(self.Somewhere, {}) == Startable(Path("/somewhere/rabbitmq-server"))

    def test_a_url_comes_before_a_program(self) -> None:
        environ = {
            "REDRIVE_TEST_RABBITMQ_URL": "amqp://me:secret@mq.test:5673/",
            "REDRIVE_TEST_RABBITMQ_MANAGEMENT_URL": "http://me:secret@mq.test:8080",
        }
        assert look_for(self.Somewhere, environ) == Given(
            RabbitMQ("amqp://me:secret@mq.test:5673/", "http://me:secret@mq.test:8080")
        )

    @pytest.mark.parametrize(
        ("amqp", "management"),
        [
            ("amqp://me:secret@mq.test:5673/", "http://me:secret@mq.test:15672"),
            ("amqp://me:secret@mq.test", "http://me:secret@mq.test:15672"),
            ("amqp://localhost", "http://guest:guest@localhost:15672"),
            ("amqp://me:secret@[::1]:5672/x", "http://me:secret@[::1]:15672"),
            ("amqp://me:secret@[::1]", "http://me:secret@[::1]:15672"),
        ],
    )
    def test_the_management_url_is_guessed_from_the_amqp_url(self, amqp: str, management: str) -> None:
        assert look_for(self.Somewhere, {"REDRIVE_TEST_RABBITMQ_URL": amqp}) == Given(
            RabbitMQ(amqp, management)
        )

    def test_a_server_to_kill_is_never_the_one_behind_a_url(self) -> None:
        environ = {"REDRIVE_TEST_RABBITMQ_URL": "amqp://localhost"}
        assert look_for_program(self.Somewhere, environ) == Startable(Path("/somewhere/rabbitmq-server"))

    def test_the_script_that_installs_services_knows_the_same_ones(self) -> None:
        nothing_given = {
            name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_TEST_")
        }
        shown = subprocess.run(
            [sys.executable, ROOT / "scripts" / "services", "list", "--json"],
            env=nothing_given,
            stdout=subprocess.PIPE,
            check=True,
        )

        assert {
            row["name"]: (row["variable"], Path(row["where"]) if row["available"] else None)
            for row in json.loads(shown.stdout)
        } == {
            **{
                name: ("".join(server.variables[:1]), _program(server))
                for name, server in SERVICES.items()
                if server not in FAMILIES
            },
            **{name: ("", _program(tool)) for name, tool in TOOLS.items()},
        }


class TestJarsByMaven:
    """The script, with a Maven that is a shell script: what a real one brings, CI sees."""

    @pytest.fixture
    def script(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        loader = SourceFileLoader("scripts_services", str(ROOT / "scripts" / "services"))
        spec = importlib.util.spec_from_loader("scripts_services", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(
            sys.modules, "scripts_services", module
        )  # its dataclasses look themselves up there
        loader.exec_module(module)
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
        monkeypatch.delenv("REDRIVE_TEST_KAFKA_4_3_URL", raising=False)
        (tmp_path / "bin").mkdir()
        self.program(tmp_path, "java", "exit 0")
        return module

    def program(self, tmp_path: Path, name: str, text: str) -> None:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def test_the_jars_are_there_all_at_once_and_the_second_time_there_is_nothing_to_do(
        self, script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.program(
            tmp_path,
            "mvn",
            f"for word; do case $word in -DoutputDirectory=*) to=${{word#*=}};; *pom.xml) cp $word {tmp_path};; "
            "esac; done; mkdir -p $to && echo jar > $to/kafka_2.13-4.3.1.jar",
        )
        assert script.install(["kafka-4.3"]) == 0
        assert [jar.name for jar in (tmp_path / ".services").glob("*/*")] == ["kafka_2.13-4.3.1.jar"]
        assert (
            "<artifactId>kafka_2.13</artifactId><version>4.3.1</version>"
            in (tmp_path / "pom.xml").read_text()
        )
        self.program(tmp_path, "mvn", "exit 1")
        assert script.install(["kafka-4.3"]) == 0
        assert "kafka-4.3: nothing to do, jars" in capsys.readouterr().out

    def test_a_maven_that_fails_is_heard_and_leaves_nothing_behind(
        self, script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.program(tmp_path, "mvn", "echo no such artifact; exit 1")
        assert script.install(["kafka-4.3"]) == 1
        told = capsys.readouterr().err
        assert "no such artifact" in told
        assert "kafka-4.3: mvn failed with 1; its output is above." in told
        assert list((tmp_path / ".services").iterdir()) == []

    def test_without_java_and_root_it_is_said_what_to_install(
        self, script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("PATH", "/nowhere")
        assert script.install(["kafka-4.3"]) == 1
        assert capsys.readouterr().err == (
            "kafka-4.3: there is no java or no mvn here; install Java 17 or newer and Maven\n"
        )


class TestRabbitMQ:
    async def test_it_answers_a_protocol_header_with_connection_start(self, rabbitmq: RabbitMQ) -> None:
        address = urlsplit(rabbitmq.amqp_url)
        async with asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            with closing(writer):
                writer.write(b"AMQP\x00\x00\x09\x01")
                head = await reader.readexactly(7)
                payload = await reader.readexactly(int.from_bytes(head[3:]))
                end = await reader.readexactly(1)

        assert head[:3] == b"\x01\x00\x00", "a method frame on channel 0"
        assert payload[:4] == b"\x00\x0a\x00\x0a", "connection.start"
        assert b"RabbitMQ" in payload
        assert end == b"\xce"

    @pytest.mark.parametrize(
        "generation",
        [pytest.param(name, marks=pytest.mark.service(row.name)) for name, row in RABBITMQS.items()],
    )
    def test_each_version_is_the_one_that_it_stands_for(self, service_run: Run, generation: str) -> None:
        server = service_run.address(RABBITMQS[generation], os.environ)

        assert server.generation == generation
        assert server.version[0] == int(generation.split(".", maxsplit=1)[0])

    @pytest.mark.parametrize("turn", [1, 2])
    def test_a_test_does_not_see_what_another_test_has_made(self, rabbitmq: RabbitMQ, turn: int) -> None:
        assert rabbitmq.api("GET", f"/queues/{rabbitmq.vhost}") == []

        rabbitmq.api("PUT", f"/queues/{rabbitmq.vhost}/left-behind", {"durable": True})

        assert [queue["name"] for queue in rabbitmq.api("GET", f"/queues/{rabbitmq.vhost}")] == [
            "left-behind"
        ]

    def test_a_vhost_is_its_own_and_goes_with_its_test(self, rabbitmq: RabbitMQ) -> None:
        with rabbitmq.fresh() as other:
            assert other.vhost != rabbitmq.vhost
            assert other.amqp_url.endswith(f"/{other.vhost}")
            assert {rabbitmq.vhost, other.vhost} <= self.vhosts(rabbitmq)

        assert other.vhost not in self.vhosts(rabbitmq)

    def test_a_refused_request_says_what_was_refused(self, rabbitmq: RabbitMQ) -> None:
        with pytest.raises(ServiceError, match="GET /queues/nowhere/none was refused with 404"):
            rabbitmq.api("GET", "/queues/nowhere/none")

    @pytest.mark.slow
    def test_a_server_of_its_own_keeps_durable_definitions_over_a_restart(
        self, own_rabbitmq: RabbitMQServer
    ) -> None:
        own_rabbitmq.address.api("PUT", "/queues/%2F/kept", {"durable": True})
        before = own_rabbitmq.pids

        own_rabbitmq.restart()

        assert own_rabbitmq.ctl("list_queues", "name", "durable", "--no-table-headers").split() == [
            "kept",
            "true",
        ]
        assert set(own_rabbitmq.pids).isdisjoint(before)
        assert own_rabbitmq.ctl("list_vhosts", "--no-table-headers").split() == ["/"]

    @staticmethod
    def vhosts(rabbitmq: RabbitMQ) -> set[str]:
        return {vhost["name"] for vhost in rabbitmq.api("GET", "/vhosts")}


class TestPostgres:
    async def test_it_says_which_version_it_is(self, postgres: Postgres) -> None:
        connection = await asyncpg.connect(postgres.url)
        try:
            text = await connection.fetchval("select version()")
            number = int(await connection.fetchval("show server_version_num"))
        finally:
            await connection.close()

        assert number // 10_000 >= 14
        assert text.startswith(f"PostgreSQL {number // 10_000}")

    @pytest.mark.parametrize("turn", [1, 2])
    def test_a_test_does_not_see_what_another_test_has_made(self, postgres: Postgres, turn: int) -> None:
        postgres.psql("create table left_behind (id integer)")

        assert postgres.psql("select count(*) from left_behind") == "0"

    async def test_a_database_is_dropped_even_if_somebody_is_still_connected(
        self, postgres: Postgres
    ) -> None:
        with postgres.fresh() as other:
            connection = await asyncpg.connect(other.url)
            name = await connection.fetchval("select current_database()")
            assert name != postgres.psql("select current_database()")
        with suppress(OSError, asyncpg.PostgresError):
            await connection.close(timeout=5)

        assert postgres.psql(f"select count(*) from pg_database where datname = '{name}'") == "0"

    def test_a_failing_statement_says_why(self, postgres: Postgres) -> None:
        with pytest.raises(ServiceError, match='relation "nowhere" does not exist'):
            postgres.psql("select * from nowhere")

    async def test_a_server_of_its_own_comes_back_from_a_restart_at_the_same_url(
        self, own_postgres: PostgresServer
    ) -> None:
        own_postgres.psql("create table kept as select 42 as answer")
        before = own_postgres.pids

        own_postgres.restart()

        connection = await asyncpg.connect(own_postgres.url)
        assert await connection.fetchval("select answer from kept") == 42
        await connection.close()
        assert own_postgres.pids != before

    def test_a_killed_server_recovers_what_was_committed(self, own_postgres: PostgresServer) -> None:
        own_postgres.psql("create table kept as select 42 as answer")

        own_postgres.kill()
        with pytest.raises(ServiceError):
            own_postgres.psql("select 1")
        own_postgres.start()

        assert own_postgres.psql("select answer from kept") == "42"
        assert "automatic recovery in progress" in (own_postgres.home / "server.log").read_text()

    def test_a_running_server_is_not_started_again(self, own_postgres: PostgresServer) -> None:
        with pytest.raises(ServiceError, match="postgres is running already"):
            own_postgres.start()

    def test_a_server_that_ends_while_starting_shows_its_log(self, own_postgres: PostgresServer) -> None:
        own_postgres.stop()
        (own_postgres.home / "data" / "PG_VERSION").write_text("7\n")

        with pytest.raises(ServiceError, match=r"ended by itself: postgres left with 1[\s\S]*initialized by"):
            own_postgres.start()


class TestKafka:
    def test_a_record_comes_out_of_a_topic_as_it_went_in(self, kafka: Kafka) -> None:
        topic = kafka.topic("orders", partitions=3)
        _produce(kafka, topic, b"\x00body")

        assert _first_record(kafka, topic) == (b"key", b"\x00body")

    @pytest.mark.parametrize("turn", [1, 2])
    def test_a_test_does_not_see_what_another_test_has_made(self, kafka: Kafka, turn: int) -> None:
        assert _topics(kafka) == set()

        topic = kafka.topic("left-behind")

        assert _topics(kafka) == {topic}

    def test_topics_and_groups_go_with_their_test(self, kafka: Kafka) -> None:
        with kafka.fresh() as other:
            topic = other.topic("orders")
            _produce(other, topic, b"body")
            _first_record(other, topic)
            assert _groups(other)

        assert _topics(other) == set()
        assert _groups(other) == set()

    def test_a_topic_that_nobody_made_is_not_made_by_writing_to_it(self, kafka: Kafka) -> None:
        with pytest.raises(KafkaException) as caught:
            _produce(kafka, kafka.name("nowhere"), b"body")

        assert caught.value.args[0].code() in {
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._MSG_TIMED_OUT,
        }
        assert _topics(kafka) == set()

    def test_the_restricted_user_may_do_nothing(self, own_kafka: KafkaServer) -> None:
        topic = own_kafka.address.topic("orders")
        who = urlsplit(own_kafka.address.restricted_url)
        login = {
            "bootstrap.servers": f"{who.hostname}:{who.port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": who.username or "",
            "sasl.password": unquote(who.password or ""),
        }

        with pytest.raises(KafkaException) as caught:
            _produce(own_kafka.address, topic, b"body", login)

        assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    @pytest.mark.slow
    def test_what_was_acknowledged_outlives_a_restart_and_a_crash(self, own_kafka: KafkaServer) -> None:
        topic = own_kafka.address.topic("kept")
        _produce(own_kafka.address, topic, b"body")
        before = own_kafka.pids

        own_kafka.restart()
        assert own_kafka.pids != before
        own_kafka.kill()
        own_kafka.start()

        assert _first_record(own_kafka.address, topic) == (b"key", b"body")


def _produce(kafka: Kafka, topic: str, body: bytes, login: Mapping[str, str] | None = None) -> None:
    """Returns when the record is durable; raises what the broker says if it is not."""
    refused: list[KafkaError] = []
    settings = {"bootstrap.servers": kafka.bootstrap, "acks": "all", "message.timeout.ms": 15_000}
    producer = Producer({**settings, **(login or {})})
    producer.produce(
        topic, body, b"key", on_delivery=lambda error, _: refused.append(error) if error else None
    )
    producer.flush(30)
    if refused:
        raise KafkaException(refused[0])


def _first_record(kafka: Kafka, topic: str) -> tuple[object, object]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": kafka.name("readers"),
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([topic])
        record = consumer.poll(30)
        assert record is not None
        assert record.error() is None
        consumer.commit(message=record, asynchronous=False)
        return record.key(), record.value()
    finally:
        consumer.close()


def _topics(kafka: Kafka) -> set[str]:
    return {name for name in kafka.admin().list_topics(timeout=30).topics if name.startswith(kafka.prefix)}


def _groups(kafka: Kafka) -> set[str]:
    admin = kafka.admin()
    listed = admin.list_consumer_groups(request_timeout=30).result().valid
    return {group.group_id for group in listed if group.group_id.startswith(kafka.prefix)}


class TestTheEnd:
    """A child process stands for a test run, so that it can be killed."""

    PRIVATE = """if True:
        import json, os, sys
        from tests.services import SERVICES, Run
        with Run.of(os.environ) as run, run.private(SERVICES[sys.argv[1]], os.environ) as server:
            print(json.dumps([str(run.directory), server.guard_pid, *server.pids]), flush=True)
            sys.stdin.read()
    """
    SHARED = """if True:
        import json, os, sys
        from tests.services import PostgresServer, Run
        with Run.of(os.environ) as run:
            address = run.shared(PostgresServer, PostgresServer.find())
            print(json.dumps([str(run.directory), address.url, address.program]), flush=True)
            sys.stdin.read()
    """

    @pytest.mark.parametrize(
        "name",
        [
            "postgres",
            pytest.param("rabbitmq", marks=[pytest.mark.service("rabbitmq"), pytest.mark.slow]),
            pytest.param("kafka", marks=[pytest.mark.service("kafka"), pytest.mark.slow]),
        ],
    )
    @pytest.mark.service("postgres")
    def test_a_server_ends_by_itself_when_its_test_run_is_killed(self, name: str) -> None:
        with _test_run(self.PRIVATE, name) as process:
            directory, *pids = _line(process)
            watched = [os.pidfd_open(pid) for pid in pids]

            process.kill()

            assert all(_ends(descriptor) for descriptor in watched)
        assert not Path(directory).exists()

    @pytest.mark.service("postgres")
    def test_workers_share_one_server_and_the_last_one_out_ends_it(self) -> None:
        one_run = {"PYTEST_XDIST_TESTRUNUID": f"test-{os.getpid()}"}
        with (
            _test_run(self.SHARED, environ=one_run) as first,
            _test_run(self.SHARED, environ=one_run) as last,
        ):
            directory, url, psql = _line(first)
            assert [directory, url, psql] == _line(last)

            guard = os.pidfd_open(
                json.loads(next(Path(directory).glob("postgres-*/pids")).read_text())["guard"]
            )

            for worker in (first, last):
                assert Postgres(url, psql).psql("select 1") == "1", "whoever of the two has started it"
                worker.kill()
                worker.wait()

            assert _ends(guard)
        assert not Path(directory).exists()

    @pytest.mark.parametrize(
        "kind",
        [pytest.param(row, id=row.name, marks=pytest.mark.service(row.name)) for row in POSTGRESES.values()],
    )
    def test_a_server_ends_when_its_guard_is_killed(
        self, service_run: Run, kind: type[PostgresServer]
    ) -> None:
        with service_run.private(kind, os.environ) as own:
            server = os.pidfd_open(own.pids[-1])

            os.kill(own.guard_pid, signal.SIGKILL)

            assert _ends(server)

    @pytest.mark.service("postgres-15")
    def test_a_debian_system_is_mounted_for_its_server_alone(self, service_run: Run) -> None:
        with service_run.private(POSTGRESES["15"], os.environ) as own:
            root = str(Path(root_of(own.program)).resolve())
            theirs = Path(f"/proc/{own.pids[-1]}/mounts").read_text()

            assert " /dev " in theirs, "seen from inside, where the root is /"
            assert root not in Path("/proc/self/mounts").read_text()
            assert not any((Path(root) / "dev").glob("pts/*"))


def _program(server: type[Server[Any]] | Tool) -> Path | None:
    with suppress(ServiceError):
        return server.find()
    return None


def _test_run(code: str, *args: str, environ: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    apart = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env={**apart, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environ or {})},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout
    return json.loads(process.stdout.readline())


def _ends(descriptor: int, seconds: float = 30) -> bool:
    """Whether the process behind a pidfd ends in that time."""
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
