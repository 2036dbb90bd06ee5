"""The child of test_sqlite_crash: a mixed load on one store, until somebody kills it.

It writes a line to standard output after each verb was acknowledged, and only then. The parent reads the lines and
holds the store to them.
"""

import asyncio
import os
import random
import sys
from datetime import UTC, datetime, timedelta

from redrive.stores.changes import Fail, Outcome, Park, Resolve, Retry, Settlement, Unclaim
from redrive.stores.sqlite import SqliteStore
from redrive.testing import a_letter


async def main(path: str, seed: int) -> None:
    chance = random.Random(seed)
    store = await SqliteStore.open(path)
    os.write(1, b"open\n")

    async def add(worker: int) -> None:
        number = 0
        while True:
            batch = [
                a_letter(f"{seed}/{worker}/{number + n}", priority=n) for n in range(chance.randint(1, 4))
            ]
            number += len(batch)
            await store.add(batch)
            os.write(1, "".join(f"added {letter.id}\n" for letter in batch).encode())

    async def work(worker: int) -> None:
        while True:
            heads = await store.claim(f"w{worker}", broker="rabbitmq", limit=3, lease=timedelta(seconds=30))
            os.write(1, "".join(f"claimed {head.id} {head.fence}\n" for head in heads).encode())
            now = datetime.now(UTC)
            outcomes: list[Outcome] = [Resolve(), Retry(at=now), Fail(), Park(), Unclaim(at=now)]
            settlements = [Settlement(head.claim_token, chance.choice(outcomes)) for head in heads]
            done = await store.settle(settlements)
            os.write(
                1,
                "".join(
                    f"settled {one.claim_token.id} {one.claim_token.fence} {type(one.outcome).__name__}\n"
                    for one, ok in zip(settlements, done, strict=True)
                    if ok
                ).encode(),
            )
            if not heads:
                await asyncio.sleep(0.001)

    await asyncio.gather(*(add(n) for n in range(4)), *(work(n) for n in range(3)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
