"""How does everything that a test run has started end, whoever is killed first?

The rule: a server is never a child of a test process but of a *guard*, which is this file run as a program,
one small process per server. The guard looks at a lock file (`holders`) on which every process that may use
the server keeps a shared `flock`. The kernel takes that lock away however a process ends, so when the guard
can have the file for itself, nobody is left: it ends what it started, by its own handles, and removes the
directory. Should the guard itself be killed, the kernel ends its children (`PR_SET_PDEATHSIG`). No process is
ever looked up by name.

The locks, and the files through which a guard is told and tells, are the same on both sides, so both sides use
the functions here. This file does not know which services there are, and imports neither them nor pytest: a
guard has to be light.
"""

import contextlib
import ctypes
import enum
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from redrive.errors import ServiceError

LOOPBACK = "127.0.0.1"
TICK = 0.05  # seconds between two looks at something that does not tell by itself


# --- Locks and waiting --------------------------------------------------------------------------------


class Swept(enum.Enum):
    """What the last one out has found."""

    HELD = "somebody else still uses the run"
    BUSY = "a guard is still ending its server"
    GONE = "nothing is left"


def sweep(directory: Path) -> Swept:
    """Removes a run's directory if no process uses the run and no guard is at work."""
    try:
        holders = os.open(directory / "holders", os.O_RDWR)
    except FileNotFoundError:
        return Swept.GONE
    try:
        fcntl.flock(holders, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if any(guarded(home) for home in directory.iterdir() if home.is_dir()):
            return Swept.BUSY
        shutil.rmtree(directory, ignore_errors=True)
    except BlockingIOError:
        return Swept.HELD
    except FileNotFoundError:
        return Swept.GONE
    else:
        return Swept.GONE
    finally:
        os.close(holders)


def hold(path: Path) -> int:
    """A shared lock on `path` until the descriptor is closed or the process ends, however it ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """An exclusive lock on `path`, waited for."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _can_lock(path: Path, mode: int) -> bool:
    try:
        with path.open("r+") as file:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def unused(holders: Path) -> bool:
    """Whether no process holds what `holders` stands for."""
    return _can_lock(holders, fcntl.LOCK_EX)


def guarded(home: Path) -> bool:
    """Whether a guard is at work for the server in `home`: it keeps this lock for as long as it lives."""
    return not _can_lock(home / "guard.lock", fcntl.LOCK_SH)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` comes true in that time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(TICK)
    return True


def write(path: Path, value: object) -> None:
    """Whoever reads `path` sees all of it or nothing."""
    part = path.with_name(f"{path.name}.part")
    part.touch(mode=0o600)
    part.write_text(json.dumps(value))
    part.replace(path)


def listens(port: int) -> bool:
    """Whether somebody accepts connections on this port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=5).close()
    except OSError:
        return False
    return True


def as_user(user: tuple[int, int] | None) -> dict[str, Any]:
    """What makes `subprocess` run a program as this user and group."""
    return {"user": user[0], "group": user[1], "extra_groups": []} if user else {}


# The mounts belong to a mount namespace of this process alone: they end with it, however it ends, and a root can be
# removed at any time without reaching this machine's /dev through it. Becoming another user clears the signal that a
# parent's death sends, so it is set again.
_ENTER = """
root=$1 home=$2 uid=$3 gid=$4 signal=$5; shift 5
mount --bind /proc "$root/proc" && mount --rbind /dev "$root/dev" && mount -t tmpfs -o mode=1777 tmp "$root/tmp" &&
    mkdir -p "$root$home" && mount --bind "$home" "$root$home" || exit 1
exec chroot "$root" setpriv --reuid "$uid" --regid "$gid" --clear-groups --pdeathsig "$signal" -- \\
    sh -c 'cd "$1" && shift && exec "$@"' sh "$home" "$@"
"""


def inside(root: str, home: Path, user: tuple[int, int] | None, kill: int, argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` as `user` in the Debian system at `root`, where `home` has the same path as here."""
    uid, gid = user or (0, 0)
    values = (root, str(home), str(uid), str(gid), signal.Signals(kill).name.removeprefix("SIG"))
    return ["unshare", "--mount", "sh", "-c", _ENTER, "sh", *values, *argv]


# --- The program --------------------------------------------------------------------------------------


class _Child:
    """A process that the guard has started. Its id stays its own until `end` has been called."""

    def __init__(self, process: Mapping[str, Any], home: Path, user: tuple[int, int] | None) -> None:
        self.name = Path(process["argv"][0]).name
        self.stop: int = process["stop"]
        self.kill: int = process["kill"]
        self._port: int | None = process["port"]
        root, argv = process["root"], process["argv"]
        if root:
            argv, user = inside(root, home, user, self.kill, argv), None
        with (home / "server.log").open("ab") as log:
            self._popen = subprocess.Popen(
                argv,
                env=process["env"],
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_dies_with_parent(self.kill),  # noqa: PLW1509 - the guard has one thread
                **as_user(user),
            )
        self.pid = self._popen.pid

    def is_up(self) -> bool:
        """Whether the next process may start."""
        return self._port is None or listens(self._port)

    def has_ended(self) -> bool:
        """Whether it has ended; it is not reaped yet, so that nobody else can get its id."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self, number: int) -> int:
        """Ends it and what it has left in its process group; its exit code."""
        os.kill(self.pid, number)
        until(self.has_ended, 60)
        os.killpg(self.pid, signal.SIGKILL)
        return self._popen.wait()


def _dies_with_parent(number: int) -> Callable[[], None]:
    """What a new process does first so that the kernel sends it this signal when its parent has died."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def first() -> None:
        if prctl is not None:
            prctl(1, number)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)  # it was too late

    return first


def main(order: Path) -> None:
    """Starts the processes in `order` and ends them when told to or when nobody is left."""
    spec = json.loads(order.read_text())
    home, holders = Path(spec["home"]), Path(spec["holders"])
    alive = os.open(home / "guard.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(alive, fcntl.LOCK_EX)
    if os.fork():
        os._exit(0)  # whoever waits for us knows now that the lock is taken

    children: list[_Child] = []
    command = ""
    with contextlib.ExitStack() as until_removed:
        try:
            for process in spec["processes"]:
                children.append(_Child(process, home, spec["user"]))
                if not until(children[-1].is_up, 30):
                    raise ServiceError(f"{children[-1].name} does not listen; its log says why")
            write(home / "pids", {"guard": os.getpid(), "processes": [child.pid for child in children]})
            while not command:
                time.sleep(TICK)
                command = _next_command(home, holders, children)
                if command == "remove" and spec["lock"]:
                    # A worker that comes only now has to wait, and then starts a server of its own.
                    until_removed.enter_context(locked(Path(spec["lock"])))
                    if not unused(holders):  # it was faster
                        until_removed.close()
                        command = ""
        finally:
            for child in reversed(children):
                by_itself = child.has_ended()
                code = child.end(child.stop if command == "stop" else child.kill)
                if by_itself:
                    write(home / "ended", f"ended by itself: {child.name} left with {code}")
            if command == "remove":
                shutil.rmtree(home, ignore_errors=True)
            os.close(alive)
    sweep(home.parent)


def _next_command(home: Path, holders: Path, children: list[_Child]) -> str:
    """`stop`, `kill`, `remove`, or nothing: what the guard has to do now."""
    if any(child.has_ended() for child in children):
        return "kill"
    if unused(holders):
        return "remove"
    with contextlib.suppress(FileNotFoundError):
        return str(json.loads((home / "command").read_text()))
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
