"""Files of redrive on this machine that other users can read.

The files that the settings name: the SQLite store with its write-ahead log, the lock and the key of the server, the
journal of the embedded broker and the archive of old letters. Redrive creates them for their owner alone; files of
earlier versions, restored backups and copies may be readable by others.
"""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from redrive.private_files import open_to_others
from redrive.settings import Settings
from redrive.stores.server_key import FILE_NAME as KEY_FILE
from redrive.transports.finding import Finding

RULE: Final = "open-files"


def permission_findings(settings: Settings) -> list[Finding]:
    """One warning for each set of files that other users can read, with the command that fixes it."""
    data = Path(settings.server.data_directory)
    findings = [*_about(_store_files(settings, data), "chmod 600", recursive=False)]
    directories = [data / "broker"]
    if settings.retention.archive_directory is not None:
        directories.append(Path(settings.retention.archive_directory))
    for directory in directories:
        findings += _about([directory, *_inside(directory)], "chmod -R go=", recursive=True)
    return findings


def _store_files(settings: Settings, data: Path) -> Iterator[Path]:
    scheme, _, name = settings.store.url.partition(":")
    if scheme == "sqlite" and name:
        # A relative path may also be relative to the data directory of the server.
        for file in dict.fromkeys((Path(name), data / name)):
            yield from (file.with_name(f"{file.name}{suffix}") for suffix in ("", "-wal", "-shm", ".serve"))
    yield data / KEY_FILE


def _inside(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _about(paths: Iterable[Path], command: str, *, recursive: bool) -> Iterator[Finding]:
    found = list(open_to_others(paths))
    if not found:
        return
    first, mode = found[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    targets = [first if first.is_dir() else first.parent] if recursive else [path for path, _ in found]
    yield Finding(
        rule=RULE,
        severity="warning",
        subject=str(first),
        text=f"other users of this machine have access to {first} (mode {mode:04o}){more}",
        loss="no message is lost, but other users can read messages and the key of the server",
        mend=f"{command} {' '.join(shlex.quote(str(path)) for path in targets)}",
    )
