"""The child of test_sqlite_migration_killed: opens a store, which migrates it, in many small steps.

`python migration_child.py PATH`; it prints `open` when the store is open.
"""

import asyncio
import os
import sys

from redrive.stores.sqlite import SqliteStore, migrate

migrate._BATCH_SIZE = 10  # type: ignore[misc]  # a thousand letters in a hundred transactions
migrate._PAUSE_S = 0.002  # type: ignore[misc]


async def main(path: str) -> None:
    store = await SqliteStore.open(path)
    os.write(1, b"open\n")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
