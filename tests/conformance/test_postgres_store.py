"""The contract on a real PostgreSQL: a database for each test, named by nobody but the test."""

from pathlib import Path

import pytest

from redrive.clock import Clock
from redrive.stores.postgres import PostgresStore
from redrive.testing.store_suite import StoreSuite
from tests.services import Postgres


class TestPostgresStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def database(self, postgres: Postgres) -> None:
        self.url = postgres.url

    async def open_store(self, place: Path, clock: Clock) -> PostgresStore:
        return await PostgresStore.open(self.url, clock=clock)
