"""What is the embedded broker for a test, and how is one started?

The rule: it is used exactly as a RabbitMQ is, as a program of its own behind a URL, so that a test cannot
tell the two apart by the way it gets there. It says on its standard output where it listens; if it names no
management API there, tests get along without vhosts of their own (`RabbitMQ.management_url` is empty).

This file does not know what is tested, nor how long the broker is kept.
"""

import contextlib
import dataclasses
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from redrive.errors import ServiceError
from tests.services.guard import LOOPBACK
from tests.services.rabbitmq import RabbitMQ
from tests.services.server import Process, Server, accepts, free_ports

_READY = re.compile(r"^redrive broker listens on amqp://\S+", re.MULTILINE)
_MANAGEMENT = re.compile(r"http://[\w.:\[\]]+")


@dataclass(frozen=True)
class Embedded(RabbitMQ):
    """One vhost of the embedded broker."""

    @contextlib.contextmanager
    def fresh(self) -> Iterator[RabbitMQ]:
        """A vhost that nobody else uses; where there is no management API, the one that everybody uses."""
        if not self.management_url:
            yield self
            return
        with super().fresh() as vhost:
            yield vhost


class EmbeddedServer(Server[RabbitMQ]):
    """The embedded broker as a process, run from the source tree by the Python that runs the tests."""

    name = "embedded"
    variables = ("REDRIVE_TEST_EMBEDDED_URL", "REDRIVE_TEST_EMBEDDED_MANAGEMENT_URL")
    patience = 30.0
    as_nobody = False  # it needs this Python and this source tree, which are its owner's alone

    @classmethod
    def find(cls) -> Path:
        try:
            module = importlib.util.find_spec("redrive.cli.broker")
        except ModuleNotFoundError:
            module = None
        if module is None or module.origin is None:
            raise ServiceError("redrive.broker cannot be started as a program yet")
        return Path(module.origin)

    @classmethod
    def given(cls, environ: Mapping[str, str]) -> RabbitMQ | None:
        amqp, management = (environ.get(variable, "") for variable in cls.variables)
        return Embedded(amqp, management) if amqp else None

    @classmethod
    def at(cls, **fields: str) -> RabbitMQ:
        return Embedded(**fields)

    def prepare(self) -> RabbitMQ:
        self._amqp, self._management = free_ports(2)
        return Embedded(
            f"amqp://guest:guest@{LOOPBACK}:{self._amqp}/%2F",
            f"http://guest:guest@{LOOPBACK}:{self._management}",
        )

    def processes(self) -> tuple[Process, ...]:
        argv = (
            *(sys.executable, "-m", "redrive", "broker"),
            *("--port", str(self._amqp), "--management-port", str(self._management)),
            *("--data", str(self.home / "data")),
        )
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONUNBUFFERED": "1",
            "LANG": "C.UTF-8",
        }
        return (Process(argv, env, stop=signal.SIGTERM, kill=signal.SIGKILL),)

    def answers(self) -> bool:
        said = (self.home / "server.log").read_text(errors="replace") if accepts(self.amqp_url) else ""
        ready = _READY.search(said)
        if ready is None:
            return False
        if not _MANAGEMENT.search(said, ready.start()):
            self.address = dataclasses.replace(self.address, management_url="")
            return True
        try:
            self.address.api("GET", "/overview")
        except ServiceError:
            return False
        return True

    @property
    def amqp_url(self) -> str:
        """Where it speaks AMQP 0-9-1, with the default vhost."""
        return self.address.amqp_url

    @property
    def management_url(self) -> str:
        """Where its management API is, with credentials; empty if it has none."""
        return self.address.management_url
