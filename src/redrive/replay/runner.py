"""Name the process that runs an operation, and find out whether a named process has ended.

A runner's name says user, host and process id, and carries a mark: a hash of the machine's boot and process namespace,
and the start time of the process. A process that sees the same machine can tell that the runner was killed, and takes
the operation over at once. For a runner on another machine, or with a name of another form, that is unknown: its lease
decides.
"""

import os
import socket
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE: Final = Path("/proc/self/ns/pid")
_START_TOLERANCE: Final = 5  # seconds: start times are computed from a clock that may be adjusted


def runner_name(user: str) -> str:
    """The name of this process as a runner of operations."""
    import psutil  # noqa: PLC0415  only commands that run an operation need it

    started = int(psutil.Process().create_time())
    return f"{user}@{socket.gethostname()}/{os.getpid()}/{_machine()}-{started:x}"


def has_ended(runner: str) -> bool:
    """Whether the process of this name is known to have ended; False also where that cannot be known."""
    rest, _, mark = runner.rpartition("/")
    pid = rest.rpartition("/")[2]
    machine, _, started = mark.rpartition("-")
    if machine != _machine() or not pid.isascii() or not pid.isdigit():
        return False
    import psutil  # noqa: PLC0415

    try:
        start = int(started, 16)
        process = psutil.Process(int(pid))
        if process.status() == psutil.STATUS_ZOMBIE:
            return True
        return bool(abs(process.create_time() - start) > _START_TOLERANCE)  # the process id is in use again
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, ValueError, OverflowError, OSError):
        return False


def describe_runner(runner: str) -> str:
    """The name for people: without the mark."""
    rest, slash, mark = runner.rpartition("/")
    return rest if slash and "-" in mark else runner


@cache
def _machine() -> str:
    """An id of the machine or container: processes with the same one see each other."""
    try:
        boot = _BOOT_ID.read_text("ascii").strip()
    except OSError:
        import psutil  # noqa: PLC0415

        boot = str(int(psutil.boot_time()))
    namespace = ""
    with suppress(OSError):
        namespace = str(_PID_NAMESPACE.readlink())
    seen = f"{socket.gethostname()}\n{boot}\n{namespace}"
    return blake2b(seen.encode(), digest_size=4).hexdigest()
