"""What is a PgBouncer for a test, and how is one started?

It stands before the PostgreSQL that its class names (`before`), and hands out few connections to many: for a
transaction, or for a session. This file does not know what is tested.
"""

import dataclasses
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import unquote, urlsplit

from redrive.errors import ServiceError
from tests.services.guard import LOOPBACK
from tests.services.postgres import Postgres
from tests.services.server import Process, Server, accepts, free_ports

PLACES = ("pgbouncer", "/usr/sbin/pgbouncer")


class PgBouncerServer(Server[Postgres]):
    """A PgBouncer of the distribution. A test makes a class of its own of it that says what it stands before."""

    name = "pgbouncer"
    variables = ()
    before: ClassVar[Postgres]
    mode: ClassVar[Literal["transaction", "session"]] = "transaction"
    size: ClassVar[int] = 3  # connections to the server, for each database
    ignored: ClassVar[str] = ""  # what a session says of itself and nobody hears

    @classmethod
    def find(cls) -> Path:
        found = next(filter(None, map(shutil.which, PLACES)), None)
        if found is None:
            raise ServiceError("PgBouncer is missing; run: scripts/services install pgbouncer")
        return Path(found)

    @classmethod
    def given(cls, environ: Mapping[str, str]) -> Postgres | None:
        return None

    @classmethod
    def at(cls, **fields: str) -> Postgres:
        return Postgres(**fields)

    def prepare(self) -> Postgres:
        (self._port,) = free_ports(1)
        server = urlsplit(self.before.url)
        settings = {
            "listen_addr": LOOPBACK,
            "listen_port": self._port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": self.mode,
            "default_pool_size": self.size,
            "max_client_conn": 500,
            "server_login_retry": 1,  # seconds until it looks again for a server that was away
            "ignore_startup_parameters": self.ignored,
        }
        place = f"host={server.hostname} port={server.port or 5432} user={server.username or 'postgres'}"
        if server.password:
            place += f" password={unquote(server.password)}"
        lines = [
            "[databases]",
            f"* = {place}",
            "[pgbouncer]",
            *(f"{key} = {it}" for key, it in settings.items()),
        ]
        self._settings = self._own(self.home / "pgbouncer.ini", "\n".join(lines) + "\n")
        url = server._replace(netloc=f"{server.username or 'postgres'}@{LOOPBACK}:{self._port}").geturl()
        return dataclasses.replace(self.before, url=url)

    def processes(self) -> tuple[Process, ...]:
        env = {"PATH": os.defpath, "HOME": str(self.home), "LANG": "C.UTF-8"}
        argv = (str(self.program), str(self._settings))
        return (Process(argv, env, stop=signal.SIGINT, kill=signal.SIGKILL),)

    def answers(self) -> bool:
        try:
            return accepts(self.address.url) and self.address.psql("select 1") == "1"
        except ServiceError:
            return False
