"""Is this file ours, whole, and of our version?

Opening a store answers these in order, each with its own error, and changes nothing before all are answered.
Then migrations run (`migrate`), safe when several processes start at once.
"""

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from redrive.errors import (
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreVersionError,
)
from redrive.private_files import create_private_file
from redrive.stores.sqlite.migrate import migrate, version_of

APPLICATION_ID: Final = 0x52445256  # "RDRV" in the file's header
_MAGIC: Final = b"SQLite format 3\x00"
_STEPS_BETWEEN_LOOKS: Final = 10_000  # of SQLite's virtual machine, between two looks at the clock
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


def migrations() -> list[tuple[int, str]]:
    """(version, SQL) of every migration, in order."""
    folder = Path(__file__).parents[1] / "sql" / "sqlite"
    found = sorted(
        (entry.name, entry.read_text()) for entry in folder.iterdir() if entry.name.endswith(".sql")
    )
    return [(int(name.split("_")[0]), text) for name, text in found]


def connect(path: Path, *, busy_timeout: timedelta, create: bool = False) -> sqlite3.Connection:
    """A connection as every part of the store uses it; it may be handed from thread to thread.

    Only with `create` is a file made that is not there.
    """
    with translated(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}",
            uri=True,
            timeout=busy_timeout.total_seconds(),
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA cache_size = -16384")
            connection.execute("PRAGMA temp_store = MEMORY")
        except BaseException:
            connection.close()
            raise
        return connection


def prepare(
    path: Path, *, busy_timeout: timedelta, integrity_check_timeout: timedelta | None, create: bool = True
) -> None:
    """Make the file a store of this version, or say why it cannot be one."""
    if not _is_there(path):
        if not create:
            raise StoreError(f"{path} does not exist; check store.url, or start redrive serve to create it")
        with suppress(OSError):  # connecting fails for the same reason, and reports it
            create_private_file(path)  # SQLite gives its -wal and -shm files the same mode
    connection = connect(path, busy_timeout=busy_timeout, create=True)
    try:
        with translated(path):
            _check_owner(connection, path)
            problem = damage(connection, integrity_check_timeout)
            if problem is not None:
                raise StoreDamagedError(f"{path} is damaged ({problem}); restore it from a backup")
            connection.execute("PRAGMA page_size = 8192")  # a new file's; of another it changes nothing
            _use_write_ahead_log(connection, busy_timeout)
            migrate(connection, path, APPLICATION_ID, migrations())
    finally:
        connection.close()


def damage(connection: sqlite3.Connection, timeout: timedelta | None) -> str | None:
    """The first error that SQLite's integrity check finds within `timeout` (None: no time limit).

    It looks at pages and indexes; `reading.damaged_letter` looks into the letters.
    """
    if timeout is not None:
        end = time.monotonic() + timeout.total_seconds()
        connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS_BETWEEN_LOOKS)
    try:
        row = connection.execute("PRAGMA quick_check(1)").fetchone()
        return None if row is None or row[0] == "ok" else str(row[0]).replace("\n", " ")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return None  # a large file: nothing found in the time given; `redrive store check` looks at all of it
        raise
    finally:
        connection.set_progress_handler(None, 0)


def _is_there(path: Path) -> bool:
    """Whether there is a file to open; one that cannot be a store, and a place for none, are refused."""
    if str(path) == ":memory:":  # to SQLite this is no file but a database that ends with its connection
        raise StoreError(":memory: is not a file; for a store in memory write memory: as store.url")
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except IsADirectoryError:
        raise StoreDamagedError(
            f"{path} is a directory; name a file in it, for example {path / 'redrive.db'}"
        ) from None
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise StoreReadOnlyError(f"{path} cannot be read: {error.strerror}") from error
        if not os.path.isdir(path.parent):  # noqa: PTH112  answers where Path.is_dir raises
            raise StoreError(
                f"{path.parent} does not exist; create it, or choose another store path"
            ) from None
        return False
    except ValueError:
        raise StoreError(f"{path} is not a valid file name; choose another store path") from None
    if start not in {b"", _MAGIC}:
        raise StoreDamagedError(f"{path} is not a database; choose another file for the store")
    return True


def _use_write_ahead_log(connection: sqlite3.Connection, busy_timeout: timedelta) -> None:
    """SQLite itself does not wait here while another connection is about to write the new file's first pages."""
    end = time.monotonic() + busy_timeout.total_seconds()
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(0.005)
        else:
            return


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    with connection:  # all of it as of one moment: another process may be making the store
        connection.execute("BEGIN")
        owner = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        version = version_of(connection)
    if owner != APPLICATION_ID and (owner or tables):
        raise StoreDamagedError(
            f"{path} is the database of another program; choose another file for the store"
        )
    newest = migrations()[-1][0]
    if version > newest:
        raise StoreVersionError(
            f"{path} was written by a newer redrive (schema {version}, this version supports {newest}); "
            "upgrade redrive"
        )


# SQLite's primary result codes, and what they mean to us.
_ERRORS: Final[dict[int, tuple[type[StoreError], str]]] = {
    sqlite3.SQLITE_FULL: (StoreFullError, "is full: free disk space or raise store.max_bytes"),
    sqlite3.SQLITE_IOERR: (StoreError, "cannot be read or written: check the disk, its quotas and limits"),
    sqlite3.SQLITE_READONLY: (
        StoreReadOnlyError,
        "cannot be written: check owner and mode of the file and its directory",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        StoreReadOnlyError,
        "cannot be opened: check owner and mode of the file and its directory",
    ),
    sqlite3.SQLITE_PERM: (
        StoreReadOnlyError,
        "cannot be written: check owner and mode of the file and its directory",
    ),
    sqlite3.SQLITE_BUSY: (
        StoreBusyError,
        ("is locked by another process: try again, or raise store.busy_timeout"),
    ),
    sqlite3.SQLITE_LOCKED: (
        StoreBusyError,
        ("is locked by another process: try again, or raise store.busy_timeout"),
    ),
    sqlite3.SQLITE_CORRUPT: (StoreDamagedError, "is damaged: restore it from a backup"),
    sqlite3.SQLITE_NOTADB: (StoreDamagedError, "is not a database: choose another file for the store"),
}


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """SQLite's error as one of ours."""
    code = getattr(error, "sqlite_errorcode", None)
    kind, advice = _ERRORS.get((code or 0) & 0xFF, (StoreError, "refused it"))
    return kind(f"{path} {advice} ({error})")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors leave as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error
