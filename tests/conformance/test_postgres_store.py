"""The store contract on each supported version of PostgreSQL, with a database of its own for each test."""

from pathlib import Path

import pytest

from redrive.clock import Clock
from redrive.stores.postgres import PostgresStore
from redrive.testing.store_suite import StoreSuite
from tests.services import Postgres


class TestPostgresStore(StoreSuite):
    @pytest.fixture(autouse=True)
    def database(self, each_postgres: Postgres) -> None:
        self.url = each_postgres.url

    async def open_store(self, place: Path, clock: Clock) -> PostgresStore:
        return await PostgresStore.open(self.url, clock=clock)
