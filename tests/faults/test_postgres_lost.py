"""PostgreSQL goes away in the middle: whoever asked gets an answer that is true, and nobody has to restart anything."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from redrive.errors import StoreError
from redrive.letters import DeadLetter, LetterHead, LetterState
from redrive.stores.changes import Resolve, Settlement
from redrive.stores.memos import Memo
from redrive.stores.postgres import PostgresOptions, PostgresStore
from redrive.testing import a_letter, letters
from redrive.testing.factories import BROKER
from tests.faults.postgres_load import PATIENT, Load
from tests.services import Postgres, PostgresServer

# Whoever comes next: ending all of them each time would leave nobody the time to connect.
END_ONE = (
    "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity"
    " WHERE application_name = 'redrive' AND datname = current_database() ORDER BY random() LIMIT 1) AS one"
)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_server_that_restarts_under_load_is_not_noticed_by_who_asked(
    own_postgres: PostgresServer, how: str
) -> None:
    store = await PostgresStore.open(own_postgres.url, PATIENT)
    await Load([store], 2000).run_through(getattr(own_postgres, how), own_postgres.start)
    await store.close()


async def test_connections_that_are_ended_again_and_again_lose_nothing_and_do_nothing_twice(
    postgres: Postgres,
) -> None:
    store = await PostgresStore.open(postgres.url, PATIENT)
    load = Load([store], 1000)
    running = asyncio.create_task(load.run())
    ended = 0
    while not running.done():
        ended += int(await asyncio.to_thread(postgres.psql, END_ONE))
        await asyncio.wait((running,), timeout=0.02)
    await running
    print(f"{ended} connections were ended under {load.count} letters")  # noqa: T201  a figure for whoever looks
    assert ended > 5, "the load was over before it was disturbed"
    await load.check()
    await store.close()


async def test_a_server_that_stays_away_is_one_clear_line_and_its_return_needs_no_restart_of_ours(
    own_postgres: PostgresServer,
) -> None:
    store = await PostgresStore.open(own_postgres.url, PostgresOptions(busy_timeout=timedelta(seconds=0.3)))
    await store.add([a_letter()])
    await asyncio.to_thread(own_postgres.stop)
    for verb in (store.add(letters(2)), store.claim("w", broker=BROKER), store.page(), store.operations()):
        with pytest.raises(StoreError, match=r"^postgresql://[^ ]+/postgres is unreachable") as caught:
            await verb
        assert "\n" not in str(caught.value)
    await asyncio.to_thread(own_postgres.start)
    assert await store.add([a_letter(), a_letter("orders/2")]) == [False, True]
    assert len(await store.claim("w", broker=BROKER)) == 2
    await store.close()


# --- the answer to a commit is lost ----------------------------------------------------------------------

COMMIT = b"COMMIT\x00"


class Network:
    """Passes everything on, but ends the connection at the next commit: before the server has it, or after."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.cut: str | None = None
        self.cuts = 0
        self.away = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.away:
            writer.transport.abort()
            return
        server_reader, server = await asyncio.open_connection("127.0.0.1", self._port)
        lost = asyncio.Event()
        answers = asyncio.create_task(self._answers(server_reader, writer, lost))
        with suppress(OSError):
            while data := await reader.read(65_536):
                if self.cut is not None and COMMIT in data:
                    how, self.cut = self.cut, None
                    self.cuts += 1
                    lost.set()
                    self.away = how == "for long"
                    if how != "before":
                        server.write(data)
                        await server.drain()
                    break
                server.write(data)
                await server.drain()
        writer.transport.abort()
        server.close()  # in order: what was written before arrives
        await asyncio.gather(answers, return_exceptions=True)

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if not lost.is_set():
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def behind_a_network(
    url: str, options: PostgresOptions = PATIENT
) -> AsyncIterator[tuple[PostgresStore, Network]]:
    parts = urlsplit(url)
    network = Network(parts.port or 5432)
    listener = await asyncio.start_server(network.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    store = await PostgresStore.open(re.sub(r":\d+/", f":{port}/", url), options)
    try:
        yield store, network
    finally:
        await store.close()
        listener.close()
        await listener.wait_closed()


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_connection_that_is_lost_at_a_commit_changes_no_answer(
    postgres: Postgres, moment: str
) -> None:
    lot: list[DeadLetter] = letters(3)
    async with behind_a_network(postgres.url) as (store, network):
        network.cut = moment
        assert await store.add(lot) == [True, True, True]
        network.cut = moment
        heads: list[LetterHead] = await store.claim("w", broker=BROKER)
        assert [(head.id, head.fence) for head in heads] == [(letter.id, 1) for letter in lot]
        network.cut = moment
        assert await store.settle([Settlement(head.claim_token, Resolve()) for head in heads]) == [True] * 3
        for version in range(2):
            network.cut = moment
            assert await store.remember("alarm", b"%d" % version, version=version)
        assert await store.recall("alarm") == Memo(2, b"1")
        assert network.cuts == 5
        [one, _, _] = await store.load([letter.id for letter in lot])
        assert (one.state, one.fence, len(one.attempts)) == (LetterState.RESOLVED, 1, 1)
        assert [line.action for line in await store.journal()] == ["claim"] * 3 + ["resolve"] * 3


async def test_a_commit_that_nobody_can_ask_about_is_called_uncertain_and_not_failed(
    postgres: Postgres,
) -> None:
    options = PostgresOptions(busy_timeout=timedelta(seconds=0.5))
    async with behind_a_network(postgres.url, options) as (store, network):
        network.cut = "for long"
        with pytest.raises(StoreError, match=r"lost during a commit.*check the data before you retry"):
            await store.add([a_letter()])
        network.away = False
        assert await store.count() == 1
        assert await store.add([a_letter()]) == [False]
