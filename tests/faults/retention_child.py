"""The child of test_retention_crash: puts old letters away, until somebody kills it or it kills itself.

It writes a line to standard output when its store is open, and another one when everything is put away.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from redrive.recover.retention import Retention, RetentionOptions
from redrive.stores.changes import Change
from redrive.stores.sqlite import SqliteStore
from redrive.testing import ManualClock

LATER = datetime(2028, 2, 11, tzinfo=UTC)


class Deadly:
    """A store that kills its process when a change of one kind is asked for."""

    def __init__(self, store: SqliteStore, change: str) -> None:
        self._store = store
        self._change = change
        self.load, self.page = store.load, store.page

    async def apply(self, change: Change, ids: Sequence[str], *, by: str) -> None:
        if type(change).__name__ == self._change:
            os.kill(os.getpid(), signal.SIGKILL)
        await self._store.apply(change, ids, by=by)


async def main(path: str, directory: str, deadly: str) -> None:
    clock = ManualClock(LATER)
    store = await SqliteStore.open(path, clock=clock)
    options = RetentionOptions(directory=Path(directory), batch=10)
    os.write(1, b"open\n")
    await Retention(Deadly(store, deadly), clock, options).turn()  # type: ignore[arg-type]  # the verbs it needs
    await store.close()
    os.write(1, b"done\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
