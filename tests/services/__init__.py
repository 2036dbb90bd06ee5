"""Which real services can this test run use, and who shares them?

The one rule, the same for every service (`look_for`):

1. a URL in the environment is used as it is;
2. else a program on this machine is started, on free loopback ports, in a directory of its own;
3. else the test is skipped with the reason, or failed where `REDRIVE_REQUIRE_SERVICES` names the service.

One server of a kind is shared by all workers of a test run (`Run.shared`); a test gets a vhost, a database or
a prefix of its own on it. A test that stops or kills a server asks for one of its own (`Run.private`).

===============  =============================================================================
`rabbitmq.py`    one file per service: what a test talks to, and how the server is started;
`postgres.py`    a further service is one more such file and one more row in `SERVICES`
`kafka.py`
`pgbouncer.py`
`embedded.py`    our own broker, as a program like the others
`tools.py`       what tests run beside a service, found and required by the same rule
`server.py`      what all servers have in common: start, stop, kill, restart
`guard.py`       how a server ends when its test run is gone, however that went
===============  =============================================================================

This package does not know what is tested with the services.
"""

import contextlib
import dataclasses
import difflib
import json
import os
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar, cast

import pytest

from redrive.errors import ServiceError
from tests.services import guard
from tests.services.embedded import EmbeddedServer
from tests.services.kafka import Kafka, KafkaServer
from tests.services.pgbouncer import PgBouncerServer
from tests.services.postgres import Postgres, PostgresServer
from tests.services.rabbitmq import RabbitMQ, RabbitMQServer
from tests.services.server import A, Server, why_ended
from tests.services.tools import AMQPLIB, Tool

__all__ = [
    "FAMILIES",
    "KAFKAS",
    "POSTGRESES",
    "RABBITMQS",
    "REQUIRED",
    "SERVICES",
    "TOOLS",
    "EmbeddedServer",
    "Given",
    "Kafka",
    "KafkaServer",
    "Missing",
    "PgBouncerServer",
    "Postgres",
    "PostgresServer",
    "RabbitMQ",
    "RabbitMQServer",
    "Run",
    "Server",
    "Startable",
    "Tool",
    "look_for",
    "look_for_program",
    "required",
]

REQUIRED = "REDRIVE_REQUIRE_SERVICES"
_S = TypeVar("_S", bound=type[Server[Any]])


def _generations(family: _S) -> Mapping[str, _S]:
    """A class for each version of a service, newest first: "4.0" is the class of `rabbitmq-4.0`."""
    return {
        generation: cast(
            "_S",
            type(
                f"{family.__name__}_{generation.replace('.', '_')}",
                (family,),
                {
                    "name": f"{family.name}-{generation}",
                    "generation": generation,
                    "variables": tuple(_variable(variable, generation) for variable in family.variables),
                },
            ),
        )
        for generation in family.generations
    }


def _variable(variable: str, generation: str) -> str:
    """`REDRIVE_TEST_RABBITMQ_4_0_URL` for `REDRIVE_TEST_RABBITMQ_URL` and 4.0."""
    prefix, test, service, rest = variable.split("_", 3)
    return "_".join((prefix, test, service, generation.replace(".", "_"), rest))


RABBITMQS = _generations(RabbitMQServer)
POSTGRESES = _generations(PostgresServer)
KAFKAS = _generations(KafkaServer)
FAMILIES = (
    RabbitMQServer,
    PostgresServer,
    KafkaServer,
)  # each stands for its newest version that is installed
_ROWS: tuple[type[Server[Any]], ...] = (
    *FAMILIES,
    *RABBITMQS.values(),
    *POSTGRESES.values(),
    *KAFKAS.values(),
    PgBouncerServer,
    EmbeddedServer,
)
SERVICES: Mapping[str, type[Server[Any]]] = {row.name: row for row in _ROWS}
TOOLS: Mapping[str, Tool] = {row.name: row for row in (AMQPLIB,)}


# --- The rule -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given(Generic[A]):
    """The environment says where the service is."""

    address: A


@dataclass(frozen=True)
class Startable:
    """The service can be started from this program."""

    program: Path


@dataclass(frozen=True)
class Missing:
    """There is no such service here; `required` says whether that is a failure."""

    reason: str
    required: bool

    def end_test(self) -> NoReturn:
        """Skips the test, or fails it where the service is required."""
        if self.required:
            pytest.fail(f"{self.reason} ({REQUIRED} names it)", pytrace=False)
        pytest.skip(self.reason)


def look_for(server: type[Server[A]], environ: Mapping[str, str]) -> Given[A] | Startable | Missing:
    """How this machine provides a service that tests share."""
    try:
        address = server.given(environ)
    except ServiceError as error:
        return Missing(f"{server.name}: {error}", required=server.name in required(environ))
    return look_for_program(server, environ) if address is None else Given(address)


def look_for_program(server: type[Server[Any]] | Tool, environ: Mapping[str, str]) -> Startable | Missing:
    """How this machine provides a tool, or a service that a test may stop and kill: never by a URL."""
    try:
        return Startable(server.find())
    except ServiceError as error:
        return Missing(f"{server.name}: {error}", required=server.name in required(environ))


def required(environ: Mapping[str, str]) -> frozenset[str]:
    """The services that have to be there."""
    names = frozenset(filter(None, (name.strip() for name in environ.get(REQUIRED, "").split(","))))
    known = [*SERVICES, *TOOLS]
    for name in sorted(names.difference(known)):
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
        raise ServiceError(f"{REQUIRED} names an unknown service, {name}; {hint}")
    # A family requires all its versions, and a version requires that something stands for its family.
    versions = {name for name in known if name.partition("-")[0] in names}
    return names | versions | {name.partition("-")[0] for name in names}


# --- A test run and what it holds ---------------------------------------------------------------------


S = TypeVar("S", bound=Server[Any])


class Run:
    """One test run, all its worker processes together: its directory, and its hold on what runs there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._hold = -1

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """The run that this process belongs to; pytest-xdist gives all workers of a run the same id."""
        uid = environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
        return cls(Path(tempfile.gettempdir()) / f"redrive-{uid}")

    def __enter__(self) -> Self:
        holders = self.directory / "holders"
        while True:
            self.directory.mkdir(exist_ok=True)
            self.directory.chmod(0o711)  # a server's user has to get through; the name cannot be guessed
            with contextlib.suppress(FileNotFoundError):  # a last one out is just removing it: once more
                self._hold = guard.hold(holders)
                if _is(self._hold, holders):
                    return self
                os.close(self._hold)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lets go. The last one out sees to it that everything has ended before it leaves."""
        os.close(self._hold)
        if guard.until(lambda: guard.sweep(self.directory) is not guard.Swept.HELD, 0.3):
            guard.until(lambda: guard.sweep(self.directory) is guard.Swept.GONE, 30)

    def address(self, server: type[Server[A]], environ: Mapping[str, str]) -> A:
        """Where the shared service is; ends the test if it is nowhere."""
        found = look_for(server, environ)
        if isinstance(found, Missing):
            found.end_test()
        return found.address if isinstance(found, Given) else self.shared(server, found.program)

    def shared(self, server: type[Server[A]], program: Path) -> A:
        """The address of the run's one server of this kind, started by whoever comes first."""
        name = server.shared_name(program)
        home = self.directory / name
        lock = self.directory / f"{name}.lock"
        with guard.locked(lock):
            if not home.exists():
                first = server(home, program, self.directory / "holders", lock)
                first.start()
                guard.write(home / "address", dataclasses.asdict(first.address))
                return first.address
            if not guard.guarded(home):
                raise ServiceError(f"{server.name}, which all tests of this run share, {why_ended(home)}")
            return server.at(**json.loads((home / "address").read_text()))

    @contextlib.contextmanager
    def private(self, server: type[S], environ: Mapping[str, str]) -> Iterator[S]:
        """A running server for this process alone; ends the test if none can be started here."""
        found = look_for_program(server, environ)
        if isinstance(found, Missing):
            found.end_test()
        home = self.directory / f"{server.name}-{secrets.token_hex(4)}"
        mine = server(home, found.program, home / "holders")
        hold = guard.hold(home / "holders")
        try:
            mine.start()
            yield mine
        finally:
            os.close(hold)
            guard.until(lambda: not guard.guarded(home), server.patience)
            shutil.rmtree(home, ignore_errors=True)  # if it was stopped, there was no guard to do it


def _is(descriptor: int, path: Path) -> bool:
    return os.path.samestat(os.fstat(descriptor), path.stat())
