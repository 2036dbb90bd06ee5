"""Bring a file of an earlier version up to date.

Migrations are numbered SQL files. One that only creates empty tables is one transaction. Version 4 rewrites every
letter, so it runs in many short transactions, between which other connections can write:

1. In batches, letters leave the old indexes of due and waiting letters: their `ready` is raised by 2.
2. Each statement of the SQL file is a transaction. The indexes that it drops and creates are empty, thus quick.
3. In batches, letters get the values of their new columns, and their `ready` is lowered again, which puts them into the
   new indexes.

The table `migration` exists while version 4 is incomplete, and says what comes next. The version number in the file is
4 from the first transaction on, so an older program refuses the file, and no process serves it before the table is
gone. Any process that opens the file continues where the last transaction ended; several of them take turns.
"""

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from redrive.errors import StoreBusyError
from redrive.stores.cold import unpack_consumer_group

_LOG: Final = logging.getLogger("redrive.stores")
_IN_STEPS: Final = 4  # the version that is reached in many transactions
_BATCH_SIZE: Final = 10_000  # letters rewritten in one transaction
_BEFORE_ALL: Final = -(2**63)
# SQLite's busy handler tries again every 100 ms. A pause of twice that length lets a waiting writer in.
_PAUSE_S: Final = 0.2
_BUSY_S: Final = 0.1  # work between two pauses
_REPORT_EVERY_S: Final = 2.0


def migrate(db: sqlite3.Connection, path: Path, application_id: int, scripts: list[tuple[int, str]]) -> None:
    """Run the migrations that the file does not have yet."""
    for version, script in scripts:
        if version > version_of(db):
            with _transaction(db):
                if version > version_of(db):  # another process may have been faster
                    _start(db, version, script, application_id)
        if version == _IN_STEPS and _is_incomplete(db):
            _Stepwise(db, path, list(statements(script))).run()


def version_of(db: sqlite3.Connection) -> int:
    """The version of the tables in the file."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would commit the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _start(db: sqlite3.Connection, version: int, script: str, application_id: int) -> None:
    """Run a migration, or only mark it as begun if it has letters to rewrite."""
    if version == _IN_STEPS and db.execute("SELECT 1 FROM letters LIMIT 1").fetchone():
        db.execute("CREATE TABLE migration (step INTEGER NOT NULL, position INTEGER NOT NULL) STRICT")
        db.execute("INSERT INTO migration VALUES (0, ?)", (_BEFORE_ALL,))
    else:
        for statement in statements(script):
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {application_id}")
    db.execute(f"PRAGMA user_version = {version}")


def _is_incomplete(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'migration'").fetchone() is not None


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


class _Position(NamedTuple):
    """Where the migration is: the step that is next or under way, and the last letter that this step has changed."""

    step: int
    key: int


class _Batch(NamedTuple):
    """The letters after a position, up to the key `end`, and the consumer groups of those that have one."""

    start: _Position
    end: int
    groups: list[tuple[str, int]]


class _Stepwise:
    """The migration to version 4 of a file that has letters."""

    def __init__(self, db: sqlite3.Connection, path: Path, script: list[str]) -> None:
        self._db = db
        self._path = path
        # The first and the last step are done in batches.
        self._steps = [None, *script, None]
        self._first, self._last = db.execute(
            "SELECT min(created_at), max(created_at) FROM letters"
        ).fetchone()

    def run(self) -> None:
        """Take the next step until none is left."""
        started = reported = time.monotonic()
        busy = 0.0
        _LOG.warning(
            "store migration started path=%s schema=%d; the store is available when it is complete",
            self._path, _IN_STEPS,
        )  # fmt: skip
        try:
            while True:
                batch = self._read_batch()
                begun = time.monotonic()
                if not self._take_step(batch):
                    break
                now = time.monotonic()
                busy += now - begun
                if busy >= _BUSY_S:
                    time.sleep(_PAUSE_S)
                    busy = 0.0
                if now - reported >= _REPORT_EVERY_S:
                    reported = now
                    _LOG.warning("store migration running path=%s %s", self._path, self._progress())
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            raise StoreBusyError(
                f"{self._path} is being migrated to schema {_IN_STEPS} by another process ({self._progress()}):"
                " wait until it is complete, or raise busy_timeout"
            ) from error
        _LOG.info(
            "store migration complete path=%s schema=%d seconds=%.1f",
            self._path, _IN_STEPS, time.monotonic() - started,
        )  # fmt: skip

    def _position(self) -> _Position | None:
        """Where the migration is; None: it is complete."""
        try:
            return _Position(*self._db.execute("SELECT step, position FROM migration").fetchone())
        except sqlite3.OperationalError:
            if _is_incomplete(self._db):
                raise
            return None

    def _take_step(self, batch: _Batch | None) -> bool:
        """Run one statement or change one batch, in one transaction; False: the migration is complete."""
        with _transaction(self._db):
            position = self._position()
            if position is None:
                return False
            statement = self._steps[position.step]
            if statement is not None:
                self._db.execute(statement)
                return self._next_step(position)
            if batch is not None and batch.start == position:  # else another process was faster
                self._change(batch)
            elif self._last_key(position.key) is None:
                return self._next_step(position)
        return True

    def _next_step(self, position: _Position) -> bool:
        if position.step == len(self._steps) - 1:
            self._db.execute("DROP TABLE migration")
            return False
        self._db.execute("UPDATE migration SET step = ?, position = ?", (position.step + 1, _BEFORE_ALL))
        return True

    def _last_key(self, after: int) -> int | None:
        """The last key of the batch after this one; None: no letter is left."""
        keys = "SELECT created_at FROM letters WHERE created_at > ? ORDER BY created_at LIMIT ?"
        found = self._db.execute(f"SELECT max(created_at) FROM ({keys})", (after, _BATCH_SIZE)).fetchone()
        key: int | None = found[0]
        return key

    def _read_batch(self) -> _Batch | None:
        """The next letters to change; None: there are none, or a statement comes first.

        Contents are unpacked here, before the transaction that writes, because they may be large.
        """
        position = self._position()
        if position is None or self._steps[position.step] is not None:
            return None
        end = self._last_key(position.key)
        if end is None:
            return None
        if position.step == 0:
            return _Batch(position, end, [])
        contents = self._db.execute(
            "SELECT content, created_at FROM letters JOIN bodies ON letter = created_at"
            " WHERE created_at > ? AND created_at <= ? AND broker <> 'rabbitmq'",  # which has no groups
            (position.key, end),
        )
        groups = [(unpack_consumer_group(content), key) for content, key in contents]
        return _Batch(position, end, [(group, key) for group, key in groups if group is not None])

    def _change(self, batch: _Batch) -> None:
        change = (
            "ready = ready + 2"
            if batch.start.step == 0
            else "broker = 'unnamed:' || broker, ready = ready - 2"
        )
        self._db.execute(
            f"UPDATE letters SET {change} WHERE created_at > ? AND created_at <= ?",
            (batch.start.key, batch.end),
        )
        if batch.groups:
            self._db.executemany("UPDATE letters SET consumer_group = ? WHERE created_at = ?", batch.groups)
        self._db.execute("UPDATE migration SET position = ?", (batch.end,))

    def _progress(self) -> str:
        position = self._position()
        if position is None:
            return "step=complete"
        told = f"step={position.step + 1}/{len(self._steps)}"
        if self._steps[position.step] is not None:
            return told
        done = max(position.key, self._first) - self._first + 1
        return f"{told} percent={100 * done / (self._last - self._first + 1):.0f}"
