from pathlib import Path

from redrive.clock import Clock
from redrive.stores.sqlite import SqliteStore
from redrive.testing.store_suite import StoreSuite


class TestSqliteStore(StoreSuite):
    async def open_store(self, place: Path, clock: Clock) -> SqliteStore:
        return await SqliteStore.open(place / "redrive.db", clock=clock)
