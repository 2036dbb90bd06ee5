"""The child of test_collector_killed: collects one dead-letter queue until somebody kills it, or stops it by SIGTERM.

`python collector_child.py DATABASE BROKER_URL QUEUE BATCH`; of each batch it says `adding N` a moment before it is
durable, and `kept N` when it is and nothing of it is accepted yet.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from redrive.clock import SystemClock
from redrive.collect import Collector
from redrive.collect.reading import Reader
from redrive.letters import DeadLetter
from redrive.letters.redact import Redactor
from redrive.rules import Classifier, StrategyOptions
from redrive.stores.sqlite import SqliteStore
from redrive.transports import open_transport


class SlowStore(SqliteStore):
    """Says what it is about to do, and takes its time: enough to be killed, and for an acknowledgement to leave."""

    async def add(self, letters: Sequence[DeadLetter]) -> list[bool]:
        os.write(1, f"adding {len(letters)}\n".encode())
        await asyncio.sleep(0.02)
        return await super().add(letters)


def heard(letters: Sequence[DeadLetter]) -> None:
    os.write(1, f"kept {len(letters)}\n".encode())


def trouble(what: str, error: Exception) -> None:
    os.write(2, f"{what}: {error}\n".encode())


async def main(path: str, url: str, queue: str, batch: str) -> None:
    clock, stop = SystemClock(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = await SlowStore.open(path)
    options = StrategyOptions()
    async with open_transport(url, clock) as transport:
        collector = Collector(
            transport,
            store,
            queue,
            reader=Reader(Classifier(), Redactor(), options),
            options=options,
            clock=clock,
            trouble=trouble,
            batch=int(batch),
            collected=heard,
        )
        await collector.run(stop)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
