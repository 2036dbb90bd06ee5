"""The child of test_replay_crash: runs one replay, until it is done or somebody kills it.

`python replay_child.py DATABASE BROKER_URL OPERATION`; it says `begun` when it holds the operation, and `done` at last.
"""

import asyncio
import os
import sys

from redrive.clock import SystemClock
from redrive.replay.run import Progress, Replay
from redrive.stores.sqlite import SqliteStore
from redrive.transports import open_transport


async def main(path: str, url: str, name: str) -> None:
    clock = SystemClock()
    store = await SqliteStore.open(path)

    def hear(progress: Progress) -> None:
        os.write(1, f"{progress.phase} {progress.sent}\n".encode())

    async with open_transport(url, clock) as transport:
        operation = await store.operation(name)
        os.write(1, b"begun\n")
        # The runner before it was killed: its lease must not be waited for, since it is known to be dead.
        replay = Replay(store, transport, operation, runner="child", clock=clock, progress=hear)
        done = await replay.run(asyncio.Event())
    os.write(1, f"ended {done.state}\n".encode())
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3]))
