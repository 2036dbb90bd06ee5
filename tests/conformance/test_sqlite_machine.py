from pathlib import Path

from redrive.clock import Clock
from redrive.stores.sqlite import SqliteStore
from redrive.testing.store_machine import store_machine


async def _open(place: Path, clock: Clock) -> SqliteStore:
    return await SqliteStore.open(place / "redrive.db", clock=clock)


TestSqliteMachine = store_machine(_open)
