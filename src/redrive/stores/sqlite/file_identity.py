"""Detect that the files of an open database were removed or replaced.

An open file outlives its name. SQLite goes on writing to a database or write-ahead log that was deleted, renamed or
replaced, and reports every commit as durable, although a restart finds another file or none. So the writer compares
what the names lead to with what was opened, after each commit and before anything is reported.

A file that is moved back is the same file, and work goes on. Another file at the same path is never adopted while the
store is open: what was committed before is not in it.
"""

import os
from pathlib import Path
from typing import Final, TypeAlias

from redrive.errors import StoreReplacedError

_Key: TypeAlias = tuple[int, int]  # device and inode
_BESIDE: Final = ("-wal", "-shm")  # what SQLite keeps open beside the database


class FileIdentity:
    """The files of one open database."""

    def __init__(self, path: Path, opened: _Key) -> None:
        """`opened` is what `path` led to before the database was opened; it must not have changed since."""
        real = os.path.realpath(path)  # SQLite names the files beside it after the file that a link leads to
        self._files = [(str(path), opened)]
        for name in (real + ending for ending in _BESIDE):
            if (key := _key_if_there(name)) is not None:
                self._files.append((name, key))
        self.check()

    def check(self) -> None:
        """Raise `StoreReplacedError` unless every name still leads to the file that is open."""
        for name, opened in self._files:
            try:
                found = os.stat(name)  # noqa: PTH116  once per commit; a Path costs as much as the call itself
            except OSError as error:
                raise StoreReplacedError(
                    f"{name} was removed while it was in use ({error.strerror}): letters are not "
                    "accepted; move the file back, or restart redrive to use a new file"
                ) from None
            if (found.st_dev, found.st_ino) != opened:
                raise StoreReplacedError(
                    f"{name} was replaced by another file while it was in use: letters are not accepted; "
                    "move the original back, or restart redrive to use the new file"
                )


def key_of(path: Path) -> _Key:
    """Which file a path leads to."""
    key = _key_if_there(str(path))
    if key is None:
        raise StoreReplacedError(f"{path} was removed while it was being opened; start again")
    return key


def _key_if_there(name: str) -> _Key | None:
    try:
        found = os.stat(name)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino
