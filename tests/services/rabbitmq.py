"""What is a RabbitMQ for a test, and how is one started?

The rule: a node that shares nothing with a node of the system, and per test a vhost that nobody else uses.
This file does not know what is tested, nor how long the node is kept.
"""

import base64
import contextlib
import dataclasses
import functools
import json
import re
import secrets
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redrive.errors import ServiceError
from tests.services.guard import LOOPBACK
from tests.services.server import (
    INSTALLED,
    SYSTEM_PATH,
    Address,
    Process,
    Server,
    accepts,
    free_ports,
    in_root,
    root_of,
)

# How long to wait for the statistics of the management API. RabbitMQ collects them in the background, and a node on
# which other tests make and delete hundreds of virtual hosts falls behind by half a minute.
STATISTICS_TIMEOUT_S = 90


@dataclass(frozen=True)
class RabbitMQ(Address):
    """One vhost of a RabbitMQ server."""

    amqp_url: str
    management_url: str
    vhost: str = "/"

    @functools.cached_property
    def version(self) -> tuple[int, ...]:
        """The server's version, for example (4, 3, 6)."""
        version: str = self.api("GET", "/overview")["rabbitmq_version"]
        return tuple(int(part) for part in re.findall(r"\d+", version)[:3])

    @property
    def generation(self) -> str:
        """The generation whose behaviour the server has: the newest known one for a version that is newer still."""
        return next(
            (name for name in RabbitMQServer.generations if self.version >= tuple(map(int, name.split(".")))),
            RabbitMQServer.generations[-1],
        )

    @property
    def is_newer_than_known(self) -> bool:
        """Whether this is a later minor version than the newest that the tests know, such as 4.4."""
        return self.version[:2] > tuple(map(int, RabbitMQServer.generations[0].split(".")))

    def api(self, method: str, path: str, body: object = None) -> Any:
        """What the management API answers to `method path`, for example `api("GET", "/overview")`."""
        address = urllib.parse.urlsplit(self.management_url)
        credentials = f"{_unquoted(address.username)}:{_unquoted(address.password)}".encode()
        request = urllib.request.Request(
            address._replace(
                netloc=address.netloc.rpartition("@")[2], path=f"{address.path.rstrip('/')}/api{path}"
            ).geturl(),
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Basic {base64.b64encode(credentials).decode()}",
                "Content-Type": "application/json",
            },
        )
        # A proxy of the environment knows nothing about loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as response:
                answer = response.read()
        except urllib.error.HTTPError as error:
            with error:
                detail = error.read().decode(errors="replace")
            raise ServiceError(
                f"rabbitmq: {method} {path} was refused with {error.code}: {detail}"
            ) from error
        except OSError as error:
            raise ServiceError(f"rabbitmq: the management API does not answer: {error}") from error
        return json.loads(answer) if answer else None

    @contextlib.contextmanager
    def fresh(self) -> Iterator["RabbitMQ"]:
        """A vhost that nobody else uses, deleted afterwards together with everything in it."""
        name = f"redrive-{secrets.token_hex(6)}"
        address = urllib.parse.urlsplit(self.amqp_url)
        user = urllib.parse.quote(_unquoted(address.username) or "guest", safe="")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.api("PUT", f"/vhosts/{name}")
        try:
            self.api("PUT", f"/permissions/{name}/{user}", everything)
            yield dataclasses.replace(self, amqp_url=address._replace(path=f"/{name}").geturl(), vhost=name)
        finally:
            self.api("DELETE", f"/vhosts/{name}")


class RabbitMQServer(Server[RabbitMQ]):
    """A RabbitMQ node with management, shovel and federation that shares nothing with a node of the system.

    It runs in a Debian system of its own (`.services/rabbitmq-4.3`), with its own epmd, cookie, node name and
    directories. Debian's wrapper in the PATH changes the user and the directories, so the script behind it is started.
    """

    name = "rabbitmq"
    variables = ("REDRIVE_TEST_RABBITMQ_URL", "REDRIVE_TEST_RABBITMQ_MANAGEMENT_URL")
    generations = ("4.3", "4.0", "3.10")

    @classmethod
    def find(cls) -> Path:
        return cls.find_generation(cls._program)

    @classmethod
    def _program(cls, generation: str) -> Path | None:
        program = INSTALLED / f"rabbitmq-{generation}" / "usr/lib/rabbitmq/bin/rabbitmq-server"
        return program if program.is_symlink() or program.exists() else None

    @classmethod
    def shared_name(cls, program: Path) -> str:
        return Path(root_of(program)).name or cls.name

    @classmethod
    def given(cls, environ: Mapping[str, str]) -> RabbitMQ | None:
        amqp, management = (environ.get(variable, "") for variable in cls.variables)
        if not amqp:
            return None
        if not management:
            user, _, host = urllib.parse.urlsplit(amqp).netloc.rpartition("@")
            management = f"http://{user or 'guest:guest'}@{re.sub(r':[0-9]+$', '', host)}:15672"
        return RabbitMQ(amqp, management)

    @classmethod
    def at(cls, **fields: str) -> RabbitMQ:
        return RabbitMQ(**fields)

    def prepare(self) -> RabbitMQ:
        amqp, management, self._distribution, self._epmd = free_ports(4)
        password = secrets.token_urlsafe(12)
        self._node = f"redrive-{secrets.token_hex(4)}@localhost"
        self._own(self.home / ".erlang.cookie", secrets.token_hex(16)).chmod(0o400)
        self._own(
            self.home / "rabbitmq.conf",
            f"listeners.tcp.1 = {LOOPBACK}:{amqp}\n"
            f"management.tcp.ip = {LOOPBACK}\n"
            f"management.tcp.port = {management}\n"
            "default_user = redrive\n"
            f"default_pass = {password}\n"
            # Queue depths in the management API are this old at most (5 s otherwise).
            "collect_statistics_interval = 1000\n",
        )
        self._own(
            self.home / "enabled_plugins",
            "[rabbitmq_management,rabbitmq_shovel,rabbitmq_shovel_management,"
            "rabbitmq_federation,rabbitmq_federation_management].\n",
        )
        self._own(self.home / "rabbitmq-env.conf", "")
        return RabbitMQ(
            f"amqp://redrive:{password}@{LOOPBACK}:{amqp}/%2F",
            f"http://redrive:{password}@{LOOPBACK}:{management}",
        )

    @property
    def _env(self) -> Mapping[str, str]:
        on_loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "PATH": SYSTEM_PATH,
            "HOME": str(self.home),
            "TMPDIR": str(self.home),
            "LANG": "C.UTF-8",
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(self._epmd),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_CONFIG_FILE": str(self.home / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.home / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(self.home / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.home / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.home / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": on_loopback,
            "RABBITMQ_CTL_ERL_ARGS": on_loopback,
            # The start script becomes the server instead of waiting beside it: one process, one handle.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def processes(self) -> tuple[Process, ...]:
        # Without an epmd on its port the node would start one as a daemon, which nobody would end.
        epmd = ("epmd", "-address", LOOPBACK, "-port", str(self._epmd))
        root = root_of(self.program)
        return (
            Process(epmd, self._env, signal.SIGTERM, signal.SIGKILL, port=self._epmd, root=root),
            Process((in_root(self.program),), self._env, signal.SIGTERM, signal.SIGKILL, root=root),
        )

    def answers(self) -> bool:
        try:
            self.address.api("GET", "/overview")
        except ServiceError:
            return False
        return accepts(self.address.amqp_url)

    def ctl(self, *args: str) -> str:
        """What `rabbitmqctl args…` prints for this node."""
        return self._run(
            in_root(self.program.with_name("rabbitmqctl")), "-n", self._node, "-q", *args, env=self._env
        )

    @property
    def amqp_url(self) -> str:
        """Where it speaks AMQP 0-9-1, with the default vhost."""
        return self.address.amqp_url

    @property
    def management_url(self) -> str:
        """Where its management API is, with credentials."""
        return self.address.management_url


def _unquoted(text: str | None) -> str:
    return urllib.parse.unquote(text or "")
