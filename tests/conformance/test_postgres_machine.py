"""PostgreSQL and the memory store, given the same verbs in orders nobody thought of."""

from pathlib import Path

import asyncpg

from redrive.clock import Clock
from redrive.stores.postgres import PostgresStore
from redrive.testing.store_machine import store_machine
from tests.services import Postgres


def test_postgresql_answers_whatever_the_memory_store_answers(postgres: Postgres) -> None:
    async def open_store(_place: Path, clock: Clock) -> PostgresStore:
        connection = await asyncpg.connect(postgres.url)
        await connection.execute("DROP SCHEMA IF EXISTS redrive CASCADE")  # each story begins with nothing
        await connection.close()
        return await PostgresStore.open(postgres.url, clock=clock)

    case = store_machine(open_store)
    case("runTest").runTest()
