"""Who serves this store?

One process at a time. It holds a lock on a file beside the store and has written its id into it, so that whoever comes
second can say whom it met. The kernel lets go of the lock however the process ends; the file stays and means nothing.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

from redrive.errors import StoreBusyError, StoreReadOnlyError
from redrive.private_files import make_private_directory


class ServeLock:
    """The right to serve a store. Make one with `ServeLock.take`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, store: Path) -> Self:
        """The lock of the store in this file; a `StoreBusyError` names the process that has it."""
        real = store.resolve()  # the same file by another name is the same store
        path = real.with_name(f"{real.name}.serve")
        try:
            make_private_directory(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreReadOnlyError(
                f"{path} cannot be written: {error.strerror}; choose a data directory that is writable"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise StoreBusyError(
                f"another redrive serve{holder} is using {store}; stop it, or use another store"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise StoreReadOnlyError(f"{path} cannot be locked: {error.strerror}") from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        return cls(path, descriptor)

    def release(self) -> None:
        """Let somebody else serve. Releasing twice is releasing once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _holder(descriptor: int) -> str:
    """What the lock file says; nothing while its process is just about to write it."""
    said = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return f" (process {said})" if said.isdecimal() else ""
