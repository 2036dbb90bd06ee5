"""The child of test_postgres_crowd: a worker that claims and settles until nothing is left.

`python postgres_child.py URL NAME BATCH` says `open` when it is connected, begins at a line on standard input, and says
at last as JSON which letters it has finished, how often it was refused, and how long it took.
"""

import asyncio
import json
import os
import sys
import time

from redrive.stores.changes import Resolve, Settlement
from redrive.stores.postgres import PostgresOptions, PostgresStore
from redrive.testing.factories import BROKER


async def main(url: str, name: str, batch: int) -> None:
    store = await PostgresStore.open(url, PostgresOptions(pool_size=2))
    os.write(1, b"open\n")
    await asyncio.to_thread(sys.stdin.readline)
    start = time.perf_counter()
    finished: list[str] = []
    refused = 0
    while heads := await store.claim(name, broker=BROKER, limit=batch):
        done = await store.settle([Settlement(head.claim_token, Resolve()) for head in heads])
        finished += [head.id for head, ok in zip(heads, done, strict=True) if ok]
        refused += done.count(False)
    took = time.perf_counter() - start
    await store.close()
    print(json.dumps({"finished": finished, "refused": refused, "seconds": took}))  # noqa: T201  that is how it tells


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
