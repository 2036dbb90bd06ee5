"""The child of test_postgres_migration: opens a store, which migrates it, and says `open` when it is served.

`python postgres_migration_child.py URL` writes the log of the store to standard error.
"""

import asyncio
import logging
import os
import sys

from redrive.stores.postgres import PostgresStore


async def main(url: str) -> None:
    logging.basicConfig(level="INFO")
    store = await PostgresStore.open(url)
    os.write(1, b"open\n")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
