"""What is done to a PostgreSQL store while something happens to its server, and what must be true afterwards?"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

from redrive.letters import LetterState
from redrive.stores.changes import Resolve, Settlement
from redrive.stores.postgres import PostgresOptions, PostgresStore
from redrive.testing import letters
from redrive.testing.factories import BROKER

PATIENT = PostgresOptions(busy_timeout=timedelta(seconds=60))


class Load:
    """Letters that are added, claimed and settled by several tasks at once, and what these were told."""

    def __init__(self, stores: Sequence[PostgresStore], count: int) -> None:
        self.store = stores[0]
        self.stores = stores
        self.waiting = iter(letters(count))
        self.count = count
        self.added: Counter[bool] = Counter()
        self.settled: Counter[str] = Counter()
        self.refused = 0
        self.well_under_way = asyncio.Event()

    async def add(self, store: PostgresStore) -> None:
        for letter in self.waiting:
            [new] = await store.add([letter])
            self.added[new] += 1

    async def work(self, store: PostgresStore, worker: str) -> None:
        while self.settled.total() < self.count:
            heads = await store.claim(worker, broker=BROKER, limit=7)
            done = await store.settle([Settlement(head.claim_token, Resolve()) for head in heads])
            self.settled.update(head.id for head, ok in zip(heads, done, strict=True) if ok)
            self.refused += done.count(False)
            if self.settled.total() > self.count // 4:
                self.well_under_way.set()
            await asyncio.sleep(0 if heads else 0.01)

    async def run(self) -> None:
        async with asyncio.timeout(60):
            tasks = 4 if len(self.stores) == 1 else 1
            await asyncio.gather(
                *(self.add(store) for store in self.stores for _ in range(tasks)),
                *(
                    self.work(store, f"w{at}.{n}")
                    for at, store in enumerate(self.stores)
                    for n in range(tasks)
                ),
            )

    async def run_through(self, *steps: Callable[[], None]) -> None:
        """Run, and take these steps while everything is well under way; they are over before the load is."""
        running = asyncio.create_task(self.run())
        await self.well_under_way.wait()
        for step in steps:
            await asyncio.to_thread(step)
        done = self.settled.total()
        await running
        assert done < self.count, "the load was over before the last step was"
        await self.check()

    async def check(self) -> None:
        """Everything was added and finished once, at the first try, and everybody was told so."""
        assert (self.added, self.refused) == ({True: self.count}, 0)
        assert set(self.settled.values()) == {1}
        assert await self.store.tally("state") == {LetterState.RESOLVED: self.count}
        lines: list[str] = []
        number = 0
        while found := await self.store.journal(after=number, limit=10_000):
            lines += [f"{line.letter_id} {line.action}" for line in found]
            number = found[-1].number
        assert Counter(lines) == Counter(
            f"{letter} {action}" for letter in self.settled for action in ("claim", "resolve")
        )
        assert await self.store.damage() is None
