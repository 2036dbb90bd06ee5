"""The contract on a real PostgreSQL behind a real PgBouncer, which gives each transaction one of three connections.

Not all of it: what differs is how a transaction begins and how a statement travels, and each verb is here once.
"""

from pathlib import Path

import pytest

from redrive.clock import Clock
from redrive.stores.postgres import PostgresStore
from redrive.testing.store_suite import Adding, Changing, Claiming, Reading, Remembering, Settling
from tests.services import Postgres


class TestPgBouncerStore(Adding, Claiming, Settling, Changing, Reading, Remembering):
    @pytest.fixture(autouse=True)
    def database(self, pgbouncer: Postgres) -> None:
        self.url = pgbouncer.url

    async def open_store(self, place: Path, clock: Clock) -> PostgresStore:
        return await PostgresStore.open(self.url, clock=clock)
