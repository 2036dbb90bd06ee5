"""A PgBouncer stands between a store and PostgreSQL, hands out few connections, and comes and goes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest

from redrive.stores.postgres import PostgresStore
from redrive.testing import a_letter
from tests.faults.postgres_load import PATIENT, Load
from tests.services import PgBouncerServer, Postgres, PostgresServer, Run

Mode = Literal["transaction", "session"]
# All that a session of ours says of itself.
ALL_OF_IT = (
    "search_path, jit, client_min_messages, enable_seqscan, enable_bitmapscan, enable_hashjoin, enable_mergejoin,"
    " synchronous_commit, idle_in_transaction_session_timeout, plan_cache_mode, default_transaction_read_only,"
    " statement_timeout"
)


@contextmanager
def a_pooler(
    run: Run, postgres: Postgres, mode: Mode = "transaction", *, size: int = 3, ignored: str = ""
) -> Iterator[PgBouncerServer]:
    """One of this test alone, before this database."""

    class Before(PgBouncerServer):
        before = postgres

    Before.mode, Before.size, Before.ignored = mode, size, ignored
    with run.private(Before, {}) as server:
        yield server


async def test_eight_stores_share_three_connections(pgbouncer: Postgres, postgres: Postgres) -> None:
    stores = [await PostgresStore.open(pgbouncer.url, PATIENT) for _ in range(8)]
    load = Load(stores, 800)
    running = asyncio.create_task(load.run())
    most = 0
    while not running.done():
        ours = "application_name = 'redrive' AND datname = current_database()"
        counted = await asyncio.to_thread(
            postgres.psql, f"SELECT count(*) FROM pg_stat_activity WHERE {ours}"
        )
        most = max(most, int(counted))
        await asyncio.wait((running,), timeout=0.05)
    await running
    assert 1 <= most <= 3
    await load.check()
    for store in stores:
        await store.close()


@pytest.mark.parametrize(("mode", "size", "ignored"), [("session", 20, ""), ("transaction", 3, ALL_OF_IT)])
async def test_a_pooler_is_recognised_however_it_is_set_up(
    service_run: Run, postgres: Postgres, mode: Mode, size: int, ignored: str
) -> None:
    with a_pooler(service_run, postgres, mode, size=size, ignored=ignored) as pooler:
        store = await PostgresStore.open(pooler.address.url, PATIENT)
        load = Load([store], 200)
        await load.run()
        await load.check()
        assert await store.add([a_letter()]) == [False]
        await store.close()


async def test_a_pooler_that_is_killed_under_load_is_not_noticed_by_who_asked(
    service_run: Run, postgres: Postgres
) -> None:
    with a_pooler(service_run, postgres) as pooler:
        store = await PostgresStore.open(pooler.address.url, PATIENT)
        await Load([store], 2000).run_through(pooler.kill, pooler.start)
        await store.close()


async def test_a_server_that_restarts_behind_a_pooler_is_not_noticed_by_who_asked(
    service_run: Run, own_postgres: PostgresServer
) -> None:
    with a_pooler(service_run, own_postgres.address) as pooler:
        store = await PostgresStore.open(pooler.address.url, PATIENT)
        await Load([store], 2000).run_through(own_postgres.kill, own_postgres.start)
        await store.close()
