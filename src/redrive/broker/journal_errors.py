"""What can go wrong with a journal, and what is to be done then?

    JournalError                    the journal cannot do it
    ├── JournalBusyError            another broker holds the directory
    ├── JournalDamagedError         what was once written is not there any more
    ├── JournalFullError            the disk or a limit is full
    └── JournalVersionError         another version of redrive wrote it

The rule: whatever the operating system says about a journal's files leaves as one of these, with the file, the reason
and the next step in it.

It does not know when a caller gives up.
"""

import errno
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


class JournalVersionError(JournalError):
    """Another version of redrive wrote it."""


@contextmanager
def translated(path: Path, doing: str) -> Iterator[None]:
    """The operating system's errors as ours."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise JournalFullError(
                f"cannot {doing} {path}: {reason}; make room there, then start again"
            ) from error
        advice = "let this user write there" if error.errno in _FORBIDDEN else "see to the disk"
        raise JournalError(f"cannot {doing} {path}: {reason}; {advice}, then start again") from error
