"""What may every test ask for?

The one rule: a test that needs a real service asks for it by a fixture and gets something that no other test
uses; whether the service is there is decided in one place (`tests/services/`).

===================  =================================================================================
`rabbitmq`           a fresh vhost on the newest RabbitMQ: `amqp_url`, `management_url`, `vhost`, `api()`
`postgres`           a fresh database on the newest PostgreSQL: `url`, `psql()`
`pgbouncer`          the database of `postgres` behind a PgBouncer of the run, which pools by transaction: `url`
`kafka`              a fresh prefix on the newest Kafka: `url`, `bootstrap`, `name()`, `admin()`
`each_rabbitmq`      the test runs on each version of RabbitMQ: a fresh vhost on 4.3, 4.0 and 3.10 in turn
`each_postgres`      likewise a fresh database on PostgreSQL 18 and 15
`each_kafka`         likewise a fresh prefix on Kafka 4.3 and 3.9
`own_each_rabbitmq`  likewise a RabbitMQ of its own to stop and kill
`own_rabbitmq`       a RabbitMQ of its own to stop and kill: the same, and `ctl()`, `restart()`, `pids`, …
`own_postgres`       a PostgreSQL of its own to stop and kill: the same, and `restart()`, `pids`, …
`own_kafka`          a Kafka of its own to stop and kill: the same under `address`, and `restart()`, `pids`, …
`broker` and more    a fresh vhost on a real RabbitMQ and on ours in turn: see `tests/interop/brokers.py`
`certificates`       a folder with certificates for TLS: of the server, and of the client `guest`
===================  =================================================================================
"""

import dataclasses
import gc
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hypothesis
import pytest
from _pytest.mark import ParameterSet

from redrive.errors import ServiceError
from tests import simulation_seeds
from tests.certificates import make_certificate
from tests.services import (
    KAFKAS,
    POSTGRESES,
    RABBITMQS,
    SERVICES,
    Kafka,
    KafkaServer,
    Missing,
    PgBouncerServer,
    Postgres,
    PostgresServer,
    RabbitMQ,
    RabbitMQServer,
    Run,
    Server,
    look_for,
    required,
)

pytest_plugins = ["tests.interop.brokers"]  # and what is run against both AMQP brokers

# A shared machine makes any deadline a lie. In CI a failure also prints what repeats it elsewhere.
hypothesis.settings.register_profile("home", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=False, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "home")


def pytest_configure(config: pytest.Config) -> None:
    """A misspelt service in the environment must not turn into tests that silently skip.

    Consumers keep their crash logs in a directory of the run, not in that of the user.
    """
    state = tempfile.TemporaryDirectory(prefix="redrive-state-")
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    os.environ.pop("STATE_DIRECTORY", None)
    try:
        required(os.environ)
    except ServiceError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header() -> str:
    """Print the seeds that only this commit runs, so that a failure can be reproduced."""
    return simulation_seeds.header()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Print each directory that the first worker collects: pytest-xdist prints nothing until all have collected."""
    if isinstance(collector, pytest.Directory) and os.environ.get("PYTEST_XDIST_WORKER") == "gw0":
        with collector.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"collecting {collector.nodeid}", file=sys.stderr, flush=True)  # noqa: T201


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test that uses a service's fixture is marked by it, so that `-m 'not service'` leaves it out."""
    marked = {mark.args[0] for mark in item.iter_markers("service")}
    for name in SERVICES:
        if name not in marked and {name, f"own_{name}"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.service(name))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each worker begins with its share of the slow tests: they are not what everybody waits for at the end."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = [item for item in items if not item.get_closest_marker("slow")]
    share = -(-len(others) // workers)
    items[:] = [
        item
        for worker in range(workers)
        for item in (*slow[worker::workers], *others[worker * share : (worker + 1) * share])
    ]


def pytest_collection_finish() -> None:
    """Thousands of tests are there to stay. A garbage collection that walks over them each time costs a third more."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked by hand follows the same rule as one that uses a fixture."""
    for mark in item.iter_markers("service"):
        found = look_for(SERVICES[mark.args[0]], os.environ)
        if isinstance(found, Missing):
            found.end_test()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates that sign themselves: of a `server` by its name, of one by its `address`, of the client `guest`.

    `server.pem`, `server.key`, both in one as `server-and-key.pem`, and the same of the others.
    """
    folder = tmp_path_factory.mktemp("certificates")
    make_certificate(folder, "server", "localhost")
    make_certificate(folder, "address", "localhost", "IP:127.0.0.1")
    make_certificate(folder, "guest", "guest")
    return folder


@pytest.fixture(scope="session", autouse=True)
def service_run() -> Iterator[Run]:
    """This process's hold on the run's services: what was started ends when the last one lets go."""
    with Run.of(os.environ) as run:
        yield run


@pytest.fixture
def rabbitmq(service_run: Run) -> Iterator[RabbitMQ]:
    """A fresh vhost."""
    with service_run.address(RabbitMQServer, os.environ).fresh() as vhost:
        yield vhost


def _each(servers: Mapping[str, type[Server[Any]]]) -> list[ParameterSet]:
    """A parameter for each version of a service, newest first, marked with the service that it needs."""
    return [pytest.param(row, id=row.name, marks=pytest.mark.service(row.name)) for row in servers.values()]


@pytest.fixture(params=_each(RABBITMQS))
def each_rabbitmq(request: pytest.FixtureRequest, service_run: Run) -> Iterator[RabbitMQ]:
    """A fresh vhost on each version of RabbitMQ in turn."""
    with service_run.address(request.param, os.environ).fresh() as vhost:
        yield vhost


@pytest.fixture(params=_each(RABBITMQS))
def own_each_rabbitmq(request: pytest.FixtureRequest, service_run: Run) -> Iterator[RabbitMQServer]:
    """A RabbitMQ of each version in turn that this test may stop, kill and restart."""
    with service_run.private(request.param, os.environ) as server:
        yield server


@pytest.fixture(params=_each(POSTGRESES))
def each_postgres(request: pytest.FixtureRequest, service_run: Run) -> Iterator[Postgres]:
    """A fresh database on each version of PostgreSQL in turn."""
    with service_run.address(request.param, os.environ).fresh() as database:
        yield database


@pytest.fixture(params=_each(KAFKAS))
def each_kafka(request: pytest.FixtureRequest, service_run: Run) -> Iterator[Kafka]:
    """A fresh prefix on each version of Kafka in turn."""
    with service_run.address(request.param, os.environ).fresh() as prefix:
        yield prefix


@pytest.fixture
def own_rabbitmq(service_run: Run) -> Iterator[RabbitMQServer]:
    """A RabbitMQ that this test may stop, kill and restart."""
    with service_run.private(RabbitMQServer, os.environ) as server:
        yield server


@pytest.fixture
def postgres(service_run: Run) -> Iterator[Postgres]:
    """A fresh database."""
    with service_run.address(PostgresServer, os.environ).fresh() as database:
        yield database


@pytest.fixture
def pgbouncer(service_run: Run, postgres: Postgres) -> Postgres:
    """The same, behind a PgBouncer that gives each transaction one of three connections."""

    class Before(PgBouncerServer):
        before = service_run.address(PostgresServer, os.environ)

    pooler = urlsplit(service_run.address(Before, os.environ).url)
    url = pooler._replace(path=urlsplit(postgres.url).path).geturl()
    return dataclasses.replace(postgres, url=url)


@pytest.fixture
def own_postgres(service_run: Run) -> Iterator[PostgresServer]:
    """A PostgreSQL that this test may stop, kill and restart."""
    with service_run.private(PostgresServer, os.environ) as server:
        yield server


@pytest.fixture
def kafka(service_run: Run) -> Iterator[Kafka]:
    """A fresh prefix for topics and groups."""
    with service_run.address(KafkaServer, os.environ).fresh() as prefix:
        yield prefix


@pytest.fixture
def own_kafka(service_run: Run) -> Iterator[KafkaServer]:
    """A Kafka that this test may stop, kill and restart."""
    with service_run.private(KafkaServer, os.environ) as server:
        yield server
