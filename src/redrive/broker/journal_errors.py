"""What can go wrong with a journal, and what is to be done then?

    JournalError                    the journal cannot do it
    ├── JournalBusyError            another broker holds the directory
    ├── JournalDamagedError         what was once written is not there any more
    ├── JournalFullError            the disk or a limit is full
    ├── JournalReplacedError        a file was removed or replaced while it was written
    └── JournalVersionError         another version of redrive wrote it

The rule: whatever the operating system says about a journal's files leaves as one of these, with the file, the reason
and the next step in it.

It does not know when a caller gives up.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from redrive.errors import RedriveError

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN: Final = {errno.EACCES, errno.EPERM, errno.EROFS}


class JournalError(RedriveError):
    """The journal cannot do it. What was not reported durable before may be lost."""

    exit_code = 3


class JournalBusyError(JournalError):
    """Another broker holds the directory."""


class JournalDamagedError(JournalError):
    """What was once written is not there any more."""


class JournalFullError(JournalError):
    """The disk or a limit is full."""


class JournalReplacedError(JournalError):
    """A file of the journal was removed or replaced while it was written."""

    def __init__(self, path: Path, opened: tuple[int, int]) -> None:
        """`opened` is the device and inode of the file that was written."""
        super().__init__(
            f"{path} was removed or replaced while it was in use: publishes are no longer confirmed; move "
            "the file back, or restart the broker to use the current files"
        )
        self._path = path
        self._opened = opened

    @property
    def is_restored(self) -> bool:
        """Whether the file is back at its path."""
        return is_same_file(self._path, self._opened)


class JournalVersionError(JournalError):
    """Another version of redrive wrote it."""


def is_same_file(path: Path, opened: tuple[int, int]) -> bool:
    """Whether a path leads to the file with this device and inode."""
    try:
        found = os.stat(path)  # noqa: PTH116  once per flush
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == opened


@contextmanager
def translated(path: Path, doing: str) -> Iterator[None]:
    """The operating system's errors as ours."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise JournalFullError(
                f"cannot {doing} {path}: {reason}; free space there, then restart the broker"
            ) from error
        advice = "make it writable for this user" if error.errno in _FORBIDDEN else "check the disk"
        raise JournalError(f"cannot {doing} {path}: {reason}; {advice}, then restart the broker") from error
