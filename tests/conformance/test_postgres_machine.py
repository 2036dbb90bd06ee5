"""Each supported version of PostgreSQL and the memory store give the same results for random sequences of calls."""

from pathlib import Path

import asyncpg
import pytest

from redrive.clock import Clock
from redrive.stores.postgres import PostgresStore
from redrive.testing.store_machine import store_machine
from tests.services import Postgres


@pytest.mark.slow
def test_postgresql_gives_the_same_results_as_the_memory_store(each_postgres: Postgres) -> None:
    async def open_store(_place: Path, clock: Clock) -> PostgresStore:
        connection = await asyncpg.connect(each_postgres.url)
        await connection.execute(
            "DROP SCHEMA IF EXISTS redrive CASCADE"
        )  # each sequence starts with an empty schema
        await connection.close()
        return await PostgresStore.open(each_postgres.url, clock=clock)

    case = store_machine(open_store)
    case("runTest").runTest()
