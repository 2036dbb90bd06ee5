"""Does RabbitMQ's own command line tool work with the embedded broker as it does with RabbitMQ?

Both versions of `rabbitmqadmin` are run: version 2, a program, and version 1, a Python script. They are found in the
environment (`REDRIVE_TEST_RABBITMQADMIN`), in the PATH, or in the installed servers: RabbitMQ 4.3 comes with version 2,
RabbitMQ 3.10 with version 1. What version 2 needs to decode an answer is also tested without it, in
`test_answers_have_the_fields_that_version_2_requires`.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection

from tests.services import RabbitMQ
from tests.services.rabbitmq import STATISTICS_TIMEOUT_S
from tests.services.server import INSTALLED

VARIABLE = "REDRIVE_TEST_RABBITMQADMIN"
Admin = Callable[..., subprocess.CompletedProcess[str]]


def is_script(program: Path) -> bool:
    """Whether this is version 1."""
    with program.open("rb") as file:
        return file.read(2) == b"#!"


def find(*, script: bool) -> list[str]:
    """How the tool is called, or no words if it is not on this machine."""
    named = [name for name in (os.environ.get(VARIABLE), shutil.which("rabbitmqadmin")) if name]
    for program in map(Path, named):
        if program.exists() and is_script(program) == script:
            return [sys.executable, str(program)] if script else [str(program)]
    generation = "3.10" if script else "4.3"
    root = INSTALLED / f"rabbitmq-{generation}"
    program = root / "usr/bin/rabbitmqadmin"
    if not program.exists() or is_script(program) != script:
        return []
    if script:
        return [sys.executable, str(program)]
    # A program of another Debian release: run with the loader and the libraries of that release.
    loaders = sorted(root.glob("usr/lib*/ld-linux*.so*"))
    libraries = ":".join(str(path) for path in sorted(root.glob("usr/lib/*-linux-gnu")))
    return [str(loaders[0]), "--library-path", libraries, str(program)] if loaders else []


def admin_for(broker: RabbitMQ, words: Sequence[str], options: Sequence[str] = ()) -> Admin:
    """Runs the tool on the broker's vhost."""
    if not words:
        pytest.skip("rabbitmqadmin is not on this machine")
    address = urllib.parse.urlsplit(broker.management_url)
    where = ["-H", address.hostname or "", "-P", str(address.port), "-V", broker.vhost]
    # A password may begin with a dash.
    login = [f"--username={address.username}", f"--password={address.password}"]

    def run(*args: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*words, *options, *where, *login, *args], capture_output=True, text=True, check=False, timeout=30
        )
        assert (done.returncode != 0) == fails, f"{args}: {done.stdout}{done.stderr}"
        return done

    return run


@contextlib.contextmanager
def consumer(broker: RabbitMQ) -> Iterator[None]:
    """A client that consumes from `q`, so that no list is empty."""
    with BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
        channel.basic_consume("q", lambda *_: None)
        wait_for(lambda: broker.api("GET", f"/consumers/{broker.vhost}"))
        wait_for(lambda: broker.api("GET", f"/vhosts/{broker.vhost}/channels"))
        wait_for(lambda: "run_queue" in broker.api("GET", "/nodes")[0])
        yield


def wait_for(look: Callable[[], object]) -> None:
    """Wait for RabbitMQ's statistics, which are collected every five seconds and cached for a while."""
    deadline = time.monotonic() + STATISTICS_TIMEOUT_S
    while not look():
        assert time.monotonic() < deadline, "the management API does not show it"
        time.sleep(0.1)


class TestVersion2:
    @pytest.fixture
    def admin(self, broker: RabbitMQ) -> Admin:
        return admin_for(broker, find(script=False), ["--non-interactive"])

    READING = (
            "show overview", "show churn", "show memory_breakdown_in_bytes --node {n}",
            "show memory_breakdown_in_percent --node {n}", "nodes list", "plugins list_all",
            "plugins list_on_node --node {n}", "auth_attempts stats --node {n}", "users list", "vhosts list",
            "permissions list", "connections list", "connections list_of_user --username {u}", "channels list",
            "queues list", "queues show --name q", "exchanges list", "bindings list", "list consumers",
            "parameters list_all", "parameters list --component shovel", "global_parameters list",
            "policies list", "policies list_in", "policies list_conflicting", "operator_policies list",
            "operator_policies list_in", "vhost_limits list", "user_limits list", "feature_flags list",
            "deprecated_features list", "deprecated_features list_used", "health_check local_alarms",
            "health_check cluster_wide_alarms", "health_check node_is_quorum_critical",
            "health_check protocol_listener --protocol amqp", "rebalance queues",
    )  # fmt: skip

    def test_reading_commands_work(self, broker: RabbitMQ, admin: Admin) -> None:
        node = broker.api("GET", "/overview")["node"]
        user = urllib.parse.urlsplit(broker.management_url).username or ""
        with consumer(broker):
            for command in self.READING:
                admin(*command.replace("{n}", node).replace("{u}", user).split())

    def test_declares_publishes_gets_and_deletes(self, admin: Admin) -> None:
        admin("queues", "declare", "--name", "q", "--type", "quorum", "--durable", "true")
        admin("exchanges", "declare", "--name", "e", "--type", "topic")
        binding = [
            "--source",
            "e",
            "--destination-type",
            "queue",
            "--destination",
            "q",
            "--routing-key",
            "a.#",
        ]
        admin("bindings", "declare", *binding)
        admin("publish", "message", "--routing-key", "q", "--payload", "first")
        admin("publish", "message", "--exchange", "e", "--routing-key", "a.b", "--payload", "second")
        admin("publish", "message", "--exchange", "none", "--routing-key", "q", "--payload", "x", fails=True)
        for _ in range(2):
            shown = admin("get", "messages", "--queue", "q", "--count", "5", "--ack-mode", "ack_requeue_true")
            assert "first" in shown.stdout
            assert "second" in shown.stdout
        admin("get", "messages", "--queue", "none", fails=True)
        admin("purge", "queue", "--name", "q")
        assert "first" not in admin("get", "messages", "--queue", "q").stdout
        admin("bindings", "delete", *binding)
        assert "a.#" not in admin("bindings", "list").stdout
        admin("exchanges", "delete", "--name", "e")
        admin("queues", "delete", "--name", "q")
        admin("queues", "delete", "--name", "q", fails=True)

    def test_declares_policies_limits_users_and_parameters(self, broker: RabbitMQ, admin: Admin) -> None:
        admin(
            "policies",
            "declare",
            *["--name", "p", "--pattern", "q", "--apply-to", "queues", "--definition"],
            '{"max-length":5}',
        )
        admin(
            "policies",
            "declare",
            *["--name", "p", "--pattern", "q", "--definition"],
            '{"none":5}',
            fails=True,
        )
        admin(
            "policies",
            "update_definition",
            *["--name", "p", "--definition-key", "max-length", "--new-value", "7"],
        )
        assert broker.api("GET", f"/policies/{broker.vhost}/p")["definition"] == {"max-length": 7}
        admin("policies", "delete", "--name", "p")
        admin("vhost_limits", "declare", "--name", "max-queues", "--value", "5")
        assert "max-queues" in admin("vhost_limits", "list").stdout
        admin("vhost_limits", "delete", "--name", "max-queues")
        user = f"{broker.vhost}-user"
        admin("users", "declare", "--name", user, "--password", "p", "--tags", "monitoring")
        try:
            admin(
                "permissions", "declare", "--user", user, *["--configure", "x", "--read", "y", "--write", "z"]
            )
            assert user in admin("permissions", "list").stdout
            admin("permissions", "delete", "--user", user)
            admin("user_limits", "declare", "--user", user, "--name", "max-channels", "--value", "5")
            admin("user_limits", "delete", "--user", user, "--name", "max-channels")
        finally:
            admin("users", "delete", "--name", user)
        admin("global_parameters", "set", "--name", user, "--value", '{"a":1}')
        assert user in admin("global_parameters", "list").stdout
        admin("global_parameters", "clear", "--name", user)
        admin("parameters", "set", *["--component", "none", "--name", "x", "--value", "{}"], fails=True)

    def test_exports_and_imports_definitions(self, broker: RabbitMQ, admin: Admin, tmp_path: Path) -> None:
        admin("queues", "declare", "--name", "q", "--type", "quorum", "--durable", "true")
        admin("definitions", "export", "--file", str(tmp_path / "all.json"))
        admin("definitions", "export_from_vhost", "--file", str(tmp_path / "vhost.json"))
        assert [row["name"] for row in json.loads((tmp_path / "vhost.json").read_text())["queues"]] == ["q"]
        assert any(
            row["vhost"] == broker.vhost for row in json.loads((tmp_path / "all.json").read_text())["queues"]
        )
        admin("queues", "delete", "--name", "q")
        admin("definitions", "import_into_vhost", "--file", str(tmp_path / "vhost.json"))
        assert "quorum" in admin("queues", "list").stdout

    def test_protected_vhost_is_not_deleted(self, broker: RabbitMQ, admin: Admin) -> None:
        name = f"{broker.vhost}-kept"
        admin("vhosts", "declare", "--name", name, "--default-queue-type", "quorum")
        admin("vhosts", "enable_deletion_protection", "--name", name)
        admin("vhosts", "delete", "--name", name, fails=True)
        admin("vhosts", "disable_deletion_protection", "--name", name)
        admin("vhosts", "delete", "--name", name)


class TestVersion1:
    @pytest.fixture
    def admin(self, broker: RabbitMQ) -> Admin:
        return admin_for(broker, find(script=True))

    def test_lists_every_kind(self, broker: RabbitMQ, admin: Admin) -> None:
        kinds = (
            "users vhosts connections exchanges bindings permissions channels consumers parameters queues policies"
            " operator_policies vhost_limits nodes"
        )
        with consumer(broker):
            for kind in kinds.split():
                admin("list", kind)

    @pytest.mark.parametrize("depth", ["1", "2", "3"])
    def test_lists_queues_with_all_fields(self, broker: RabbitMQ, admin: Admin, depth: str) -> None:
        with consumer(broker):
            admin("declare", "queue", "name=classic", "durable=true")
            assert "classic" in admin("-d", depth, "list", "queues").stdout

    def test_declares_publishes_gets_and_deletes(self, admin: Admin) -> None:
        def output(*args: str) -> str:
            return admin(*args).stdout

        assert "queue declared" in output("declare", "queue", "name=q", "durable=true")
        assert "exchange declared" in output("declare", "exchange", "name=e", "type=topic")
        binding = ("source=e", "destination=q", "destination_type=queue")
        assert "binding declared" in output("declare", "binding", *binding, "routing_key=a.#")
        policy = ("name=p", "pattern=q", 'definition={"max-length":5}', "apply-to=queues")
        assert "policy declared" in output("declare", "policy", *policy)
        assert "Message published" in output("publish", "exchange=e", "routing_key=a.b", "payload=hello")
        assert "NOT routed" in output("publish", "exchange=e", "routing_key=b", "payload=hello")
        (message,) = json.loads(output("-f", "raw_json", "get", "queue=q", "ackmode=ack_requeue_false"))
        assert message["payload"] == "hello"
        assert json.loads(output("-f", "raw_json", "list", "queues", "name")) == [{"name": "q"}]
        assert "queue purged" in output("purge", "queue", "name=q")
        assert "binding deleted" in output("delete", "binding", *binding, "properties_key=a.%23")
        assert "queue deleted" in output("delete", "queue", "name=q")
        assert "rabbitmq_version" in output("-f", "raw_json", "show", "overview")


# Fields without which version 2 cannot decode an answer. Nested ones follow a dot; `[]` is each row of a list.
REQUIRED = {
    "/overview": """
        cluster_name node erlang_full_version erlang_version rabbitmq_version product_name product_version
        statistics_db_event_queue churn_rates.connection_created churn_rates.connection_closed
        churn_rates.queue_declared churn_rates.queue_created churn_rates.queue_deleted churn_rates.channel_created
        churn_rates.channel_closed queue_totals.messages queue_totals.messages_details.rate object_totals.connections
        object_totals.channels object_totals.queues object_totals.exchanges object_totals.consumers message_stats
        listeners.[].node listeners.[].protocol listeners.[].port listeners.[].ip_address
    """,
    "/nodes": """
        [].name [].being_drained [].uptime [].run_queue [].processors [].os_pid [].fd_total [].proc_total [].mem_limit
        [].mem_alarm [].disk_free_limit [].disk_free_alarm [].rates_mode [].enabled_plugins [].applications.[].name
        [].applications.[].description [].applications.[].version
    """,
    "/nodes/{n}/memory": """
        memory.connection_readers memory.connection_writers memory.connection_channels memory.connection_other
        memory.queue_procs memory.quorum_queue_procs memory.stream_queue_procs memory.stream_queue_replica_reader_procs
        memory.stream_queue_coordinator_procs memory.plugins memory.metadata_store memory.other_proc memory.metrics
        memory.mgmt_db memory.mnesia memory.quorum_ets memory.metadata_store_ets memory.other_ets memory.binary
        memory.msg_index memory.code memory.atom memory.other_system memory.allocated_unused
        memory.reserved_unallocated memory.strategy memory.total.rss memory.total.allocated memory.total.erlang
    """,
    "/auth/attempts/{n}": """
        [].protocol [].auth_attempts [].auth_attempts_failed [].auth_attempts_succeeded
    """,
    "/vhosts/{v}/connections": "[].name [].node [].protocol [].user [].connected_at [].client_properties",
    "/connections/username/{u}": "[].name [].node [].user [].vhost",
    "/vhosts/{v}/channels": """
        [].number [].name [].connection_details.name [].connection_details.peer_host [].connection_details.peer_port
        [].vhost [].state [].consumer_count [].confirm [].prefetch_count [].messages_unacknowledged
        [].messages_unconfirmed
    """,
    "/consumers/{v}": """
        [].consumer_tag [].active [].ack_required [].prefetch_count [].exclusive [].arguments [].consumer_timeout
        [].queue.name [].queue.vhost
    """,
    "/queues/{v}": "[].name [].vhost [].type [].durable [].auto_delete [].exclusive [].arguments",
    "/exchanges/{v}": "[].name [].vhost [].type [].durable [].auto_delete [].arguments",
    "/bindings/{v}": "[].vhost [].source [].destination [].destination_type [].routing_key [].arguments",
    "/policies/{v}": "[].name [].vhost [].pattern [].apply-to [].priority [].definition",
    "/permissions": "[].user [].vhost [].configure [].read [].write",
    "/users": "[].name [].tags",
    "/whoami": "name tags",
    "/vhosts": "[].name",
    "/vhost-limits/{v}": "[].vhost [].value",
    "/feature-flags": "[].name [].state [].desc [].doc_url [].stability [].provided_by",
    "/deprecated-features": "[].name [].desc [].deprecation_phase [].doc_url [].provided_by",
    "/definitions": """
        users vhosts permissions parameters policies queues.[].name queues.[].vhost queues.[].durable
        queues.[].auto_delete queues.[].arguments exchanges bindings
    """,
    "/definitions/{v}": """
        parameters policies.[].name queues.[].name queues.[].durable queues.[].auto_delete queues.[].arguments
        exchanges bindings
    """,
}


def missing(value: Any, path: Sequence[str]) -> bool:
    """Whether the field is not there, or is null, or a list of it is empty."""
    if not path:
        return value is None
    if path[0] == "[]":
        return not value or any(missing(row, path[1:]) for row in value)
    return path[0] not in value or missing(value[path[0]], path[1:])


def test_answers_have_the_fields_that_version_2_requires(broker: RabbitMQ) -> None:
    broker.api("PUT", f"/policies/{broker.vhost}/p", {"pattern": "q", "definition": {"max-length": 9}})
    broker.api("PUT", f"/vhost-limits/{broker.vhost}/max-queues", {"value": 9})
    node = broker.api("GET", "/overview")["node"]
    user = urllib.parse.urlsplit(broker.management_url).username or ""

    def absent(path: str, fields: str) -> list[str]:
        full = path.replace("{v}", broker.vhost).replace("{n}", node).replace("{u}", user)
        answer = broker.api("GET", full)
        return [field for field in fields.split() if missing(answer, field.split("."))]

    with consumer(broker):
        for path, fields in REQUIRED.items():
            deadline = time.monotonic() + STATISTICS_TIMEOUT_S  # each answer has statistics of its own age
            while (found := absent(path, fields)) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert not found, path
