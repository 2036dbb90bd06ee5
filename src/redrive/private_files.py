"""Create files and directories that only their owner can read, and find those that others can.

Stores, journals, archives and locks hold messages or give access to them. They are created with mode 0600 and
directories with mode 0700, whatever the umask says; an existing file or directory keeps its mode.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_private_directory(path: Path) -> None:
    """Create a directory and its missing parents; one that exists stays as it is."""
    missing: list[Path] = []
    while not path.is_dir():
        missing.append(path)
        if path.parent == path:
            break
        path = path.parent
    for each in reversed(missing):
        try:
            each.mkdir(DIRECTORY_MODE)
        except FileExistsError:
            if not each.is_dir():  # created by another process meanwhile, or not a directory
                raise


def private_opener(path: str, flags: int) -> int:
    """The `opener` of `open` for a file that is created."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def create_private_file(path: Path) -> None:
    """Create an empty file unless there is one already."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))


def open_to_others(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Those that exist and that users other than the owner may read, write or enter, with their modes."""
    for path in paths:
        try:
            mode = stat.S_IMODE(path.lstat().st_mode)
        except OSError:
            continue
        if mode & _OTHERS and not path.is_symlink():
            yield path, mode
