from pathlib import Path

from redrive.clock import Clock
from redrive.stores.memory import MemoryStore
from redrive.testing.store_suite import StoreSuite


class TestMemoryStore(StoreSuite):
    durable = False

    async def open_store(self, place: Path, clock: Clock) -> MemoryStore:
        return MemoryStore(clock)
