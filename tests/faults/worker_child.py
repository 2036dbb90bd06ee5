"""The child of test_worker_stopped: a worker that takes one turn, and can be stopped in the middle of it.

`python worker_child.py DATABASE BROKER_URL LEASE`, the lease in seconds. It says `sending` when it has claimed letters
and is about to publish them, waits for a line on stdin, goes on, and says at last what it has counted, as JSON.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from redrive.clock import SystemClock
from redrive.recover.breaker import Breakers
from redrive.recover.worker import Worker, WorkerOptions
from redrive.rules import StrategyOptions
from redrive.stores.sqlite import SqliteStore
from redrive.transports import Outcomes, Publication
from redrive.transports.rabbitmq import RabbitTransport


class Waiting(RabbitTransport):
    """Publishes when it is told to."""

    async def publish(self, publications: Sequence[Publication]) -> Outcomes:
        os.write(1, b"sending\n")
        await asyncio.to_thread(sys.stdin.readline)
        return await super().publish(publications)


async def main(path: str, url: str, lease: str) -> None:
    clock = SystemClock()
    store = await SqliteStore.open(path)
    async with Waiting(url, clock) as transport:
        worker = Worker(
            store,
            transport,
            name="stopped",
            strategy=StrategyOptions(),
            options=WorkerOptions(lease=timedelta(seconds=float(lease))),
            clock=clock,
            breakers=Breakers(clock),
        )
        await worker.turn()
    await store.close()
    os.write(1, msgspec.json.encode(worker.counts) + b"\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3]))
