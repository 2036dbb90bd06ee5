"""How much memory there is, how much the process has, and how it gives back what it does not need any more.

Freed objects stay with the allocators of Python and of the C library, which keep them for the next flood; a table keeps
the size of the most that it ever held. After a flood that is most of the memory of the process.
"""

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

MIN_MEMORY_LIMIT: Final = 16 << 20
_DEFAULT_FRACTION: Final = 0.4  # of the memory of the machine
_CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_MIN_SHRUNK_BYTES: Final = 1 << 20
_BYTES_PER_ITEM: Final = 100  # of a dictionary as it grows: 36 to 73

K = TypeVar("K")
V = TypeVar("V")


def default_memory_limit() -> int:
    """The bytes of messages above which publishers are blocked: a part of what the machine or container has."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CGROUP_LIMITS:
        try:
            total = min(total, int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # there is no such file, or it says "max"
            continue
    return max(MIN_MEMORY_LIMIT, round(total * _DEFAULT_FRACTION))


def resident_bytes() -> int:
    """How much memory the process has, or where the system does not say: had at most."""
    try:
        # Called while memory is full: what a `Path` leaves in memory would keep it from being returned.
        file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 100).split()[1]) * resource.getpagesize()
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return largest * (1 if sys.platform == "darwin" else 1024)


def shrink(table: dict[K, V]) -> dict[K, V]:
    """The table, or a copy of it if it takes much more memory than what is in it needs."""
    size = sys.getsizeof(table)
    return dict(table) if size > max(_MIN_SHRUNK_BYTES, _BYTES_PER_ITEM * len(table)) else table


def find_trim() -> Callable[[int], int]:
    """The function of the C library that gives free memory back to the system; one that does nothing if it has none.

    To be called before memory fills up: what stays in memory from then on keeps what is around it.
    """
    import ctypes  # noqa: PLC0415  costs time at the start: a broker listens before that

    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # it is not glibc
        return lambda _: 0
    return trim
