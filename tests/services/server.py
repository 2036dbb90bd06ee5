"""How is a real server started, stopped and killed by a test?

The rule: a server runs in a directory of its own, on free loopback ports, as an unprivileged user, and under a
guard (`guard.py`) that ends it when nobody uses it any more. A service is one file beside this one with two
classes: an `Address`, which is what a test talks to, and a `Server`, which says how to get one.

This file does not know which services there are, nor when a test gets one.
"""

import contextlib
import dataclasses
import json
import os
import pwd
import random
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar
from urllib.parse import urlsplit

from redrive.errors import ServiceError
from tests.services import guard
from tests.services.guard import LOOPBACK

INSTALLED = (
    Path(__file__).resolve().parents[2] / ".services"
)  # where `scripts/services install` puts programs
# The environment's own PATH names directories that a Debian system of its own does not have.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Address:
    """Where a service is. Holds text only, so that it can be handed on to other processes."""


A = TypeVar("A", bound=Address)


@dataclass(frozen=True)
class Process:
    """One process of a server, as the guard is to start it."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stop: int  # the signal after which it ends in order
    kill: int  # the signal after which it ends as in a crash
    port: int | None = None  # the next process has to wait until this one accepts here
    root: str = ""  # the Debian system to run in; empty: this one


class Server(ABC, Generic[A]):
    """A server in a directory of its own. It can be stopped and started again; the data and the ports stay.

    All methods block. None minds being called in a thread.
    """

    name: ClassVar[str]
    variables: ClassVar[tuple[str, ...]]
    generations: ClassVar[
        tuple[str, ...]
    ] = ()  # the versions that can be installed beside each other, newest first
    generation: ClassVar[str] = ""  # the version that this class starts; empty: the newest that is installed
    patience: ClassVar[float] = 120.0  # seconds that a start or a stop may take on a busy machine
    as_nobody: ClassVar[bool] = True  # whether root starts it as an unprivileged user

    def __init__(self, home: Path, program: Path, holders: Path, lock: Path | None = None) -> None:
        self.home = home
        self.program = program
        self._holders = holders
        self._lock = lock
        self._user = _unprivileged() if self.as_nobody else None
        home.mkdir(mode=0o700)
        if self._user:
            os.chown(home, *self._user)
        self.address: A = self.prepare()

    @classmethod
    @abstractmethod
    def find(cls) -> Path:
        """The program to start. `ServiceError` says what is missing and how to get it."""

    @classmethod
    def find_generation(cls, program_of: Callable[[str], Path | None]) -> Path:
        """The program of this class's generation, or of the newest that is installed.

        `REDRIVE_TEST_RABBITMQ=4.0` makes 4.0 stand for the newest, and so on for the other services.
        """
        family = cls.name.partition("-")[0]
        chosen = cls.generation or os.environ.get(f"REDRIVE_TEST_{family.upper()}", "")
        if chosen and chosen not in cls.generations:
            raise ServiceError(f"there is no {family} {chosen} here; known: {', '.join(cls.generations)}")
        for generation in (chosen,) if chosen else cls.generations:
            program = program_of(generation)
            if program is not None and root_of(program) and os.geteuid() != 0:
                raise ServiceError(
                    f"{family} {generation} runs in a mount namespace of its own, which needs root"
                )
            if program is not None:
                return program
        missing = f"{family}-{chosen}" if chosen else family
        raise ServiceError(
            f"{missing.replace('-', ' ')} is not installed; run: scripts/services install {missing}"
        )

    @classmethod
    def shared_name(cls, program: Path) -> str:
        """The name under which all tests of a run share the server that is started from `program`."""
        return cls.name

    @classmethod
    @abstractmethod
    def given(cls, environ: Mapping[str, str]) -> A | None:
        """The address that the environment gives, if it gives one."""

    @classmethod
    @abstractmethod
    def at(cls, **fields: str) -> A:
        """The address with these fields, as another worker has written them down."""

    @abstractmethod
    def prepare(self) -> A:
        """Writes into `home` whatever the first start needs; the address that the server will have."""

    @abstractmethod
    def processes(self) -> tuple[Process, ...]:
        """What the guard has to start, the server itself last."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server does what it is there for."""

    def start(self) -> None:
        """Starts the server and returns when it answers."""
        if guard.guarded(self.home):
            raise ServiceError(f"{self.name} is running already")
        for leftover in ("command", "ended", "pids"):
            (self.home / leftover).unlink(missing_ok=True)
        guard.write(
            self.home / "guard.json",
            {
                "home": str(self.home),
                "holders": str(self._holders),
                "lock": str(self._lock) if self._lock else None,
                "user": self._user,
                "processes": [dataclasses.asdict(process) for process in self.processes()],
            },
        )
        with (self.home / "guard.log").open("ab") as log:
            # Returns at once: the guard detaches itself when it has its lock.
            subprocess.run(
                [sys.executable, "-P", guard.__file__, str(self.home / "guard.json")],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                check=False,
            )
        if not guard.until(lambda: not guard.guarded(self.home) or self.answers(), self.patience):
            self.kill()
            raise ServiceError(f"{self.name} did not answer within {self.patience:.0f} s{_log_of(self.home)}")
        if not guard.guarded(self.home):
            raise ServiceError(f"{self.name} {why_ended(self.home)}")

    def stop(self) -> None:
        """Ends the server in order, as an operator would."""
        self._command("stop")

    def kill(self) -> None:
        """Ends the server at once, as in a crash: nothing is flushed, no client is told."""
        self._command("kill")

    def restart(self) -> None:
        """Stops the server and starts it again on the same data and the same ports."""
        self.stop()
        self.start()

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes that the guard has started, the server itself last."""
        return tuple(json.loads((self.home / "pids").read_text())["processes"])

    @property
    def guard_pid(self) -> int:
        """The id of the process that looks after them."""
        return int(json.loads((self.home / "pids").read_text())["guard"])

    def _command(self, word: str) -> None:
        guard.write(self.home / "command", word)
        if not guard.until(lambda: not guard.guarded(self.home), self.patience):
            raise ServiceError(f"{self.name} did not {word} within {self.patience:.0f} s{_log_of(self.home)}")

    def _run(self, *argv: str, env: Mapping[str, str]) -> str:
        """Runs a tool of the server as the user that the server runs as, and in the Debian system of its program."""
        command, user = list(argv), self._user
        if root := root_of(self.program):
            command, user = guard.inside(root, self.home, user, signal.SIGKILL, argv), None
        done = subprocess.run(
            command,
            env=env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **guard.as_user(user),
        )
        if done.returncode:
            raise ServiceError(
                f"{self.name}: {Path(argv[0]).name} failed: {(done.stderr or done.stdout).strip()}"
            )
        return str(done.stdout)

    def _own(self, path: Path, text: str) -> Path:
        """Writes a file that only the server's user can read."""
        path.touch(mode=0o600)
        path.write_text(text)
        if self._user:
            os.chown(path, *self._user)
        return path


def why_ended(home: Path) -> str:
    """What became of the server in `home`, and the end of its log."""
    with contextlib.suppress(FileNotFoundError):
        return f"{json.loads((home / 'ended').read_text())}{_log_of(home)}"
    return f"ended{_log_of(home)}"


def _log_of(home: Path) -> str:
    logs = (home / name for name in ("guard.log", "server.log"))
    lines = [
        line for log in logs if log.exists() for line in log.read_text(errors="replace").splitlines()[-15:]
    ]
    return "".join(f"\n    {line}" for line in lines)


def root_of(program: Path) -> str:
    """The Debian system below `.services` that a program belongs to; empty for a program of this machine."""
    if not program.is_relative_to(INSTALLED):
        return ""
    root = INSTALLED / program.relative_to(INSTALLED).parts[0]
    return str(root) if (root / "etc" / "debian_version").exists() else ""


def in_root(program: Path) -> str:
    """The path of a program as it is inside its Debian system."""
    root = root_of(program)
    return f"/{program.relative_to(root)}" if root else str(program)


def free_ports(count: int) -> list[int]:
    """Ports below those that outgoing connections get, so that they stay free during a restart."""
    ports: list[int] = []
    with contextlib.ExitStack() as taken:
        for port in random.sample(range(20_000, 32_000), k=1_000):
            probe = taken.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind((LOOPBACK, port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise ServiceError("no free ports on the loopback interface")


def accepts(url: str) -> bool:
    """Whether somebody listens where `url` points to on this machine."""
    return guard.listens(urlsplit(url).port or 0)


def _unprivileged() -> tuple[int, int] | None:
    """Root starts servers as `nobody`: PostgreSQL insists, and nothing here needs root."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid
