"""Conditions are measured: real connections to TCP, HTTP and PostgreSQL, and results that never block a worker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from redrive.errors import SettingsError
from redrive.letters import FailureKind
from redrive.recover.admission import Admission
from redrive.recover.conditions import Conditions, check_url, with_secrets
from redrive.settings import ConditionSettings, read
from redrive.testing import ManualClock
from redrive.testing.factories import a_failure, a_letter
from tests.services import Postgres
from tests.unit.recover.cycle import World

SECOND = timedelta(seconds=1)
LONG = timedelta(seconds=30)


def a_condition(name: str = "shop-db", url: str = "tcp://127.0.0.1:5432", **fields: Any) -> ConditionSettings:
    return ConditionSettings(name=name, url=url, **fields)


class Answers:
    """A check whose result a test chooses."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.block: asyncio.Event | None = None

    async def __call__(self, _url: str, _timeout: timedelta) -> None:
        if self.block is not None:
            await self.block.wait()
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def a_server(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        await answer(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def a_response(status: int) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} Status\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()

    return answer


async def test_tcp_check_connects() -> None:
    async with a_server(a_response(200)) as port:
        await check_url(f"tcp://127.0.0.1:{port}", LONG)
    with pytest.raises(OSError, match=str(port)):
        await check_url(f"tcp://127.0.0.1:{port}", LONG)


@pytest.mark.parametrize(
    ("status", "holds"), [(200, True), (204, True), (302, True), (404, False), (503, False)]
)
async def test_http_check_reads_the_status(status: int, holds: bool) -> None:
    async with a_server(a_response(status)) as port:
        if holds:
            await check_url(f"http://127.0.0.1:{port}/health", LONG)
        else:
            with pytest.raises(Exception, match=f"status {status}"):
                await check_url(f"http://127.0.0.1:{port}/health", LONG)


async def test_sql_check_runs_a_query(postgres: Postgres) -> None:
    await check_url(postgres.url, LONG)
    missing = postgres.url.rpartition("/")[0] + "/no_such_database"
    condition = a_condition(url=missing, timeout=LONG)
    conditions = Conditions([condition], ManualClock())
    await conditions.turn(condition)
    assert "no_such_database" in conditions.failing["shop-db"]


async def test_check_that_takes_too_long_has_failed() -> None:
    answers = Answers()
    answers.block = asyncio.Event()
    condition = a_condition(timeout=timedelta(milliseconds=20))
    conditions = Conditions([condition], ManualClock(), check=answers)
    await conditions.turn(condition)
    assert conditions.failing == {"shop-db": "no answer within 20ms"}


async def test_letters_wait_until_the_first_result_and_workers_are_woken_by_it() -> None:
    woken: list[bool] = []
    condition = a_condition()
    conditions = Conditions([condition], ManualClock(), check=Answers(), held=lambda: woken.append(True))
    assert [gate.name for gate in conditions.gates()] == ["condition:shop-db"]
    await conditions.turn(condition)
    assert (conditions.gates(), woken) == ((), [True])
    await conditions.turn(condition)
    assert woken == [True], "only when it has changed"


async def test_checks_are_repeated_and_one_that_hangs_holds_up_no_other() -> None:
    clock = ManualClock()
    seen: list[str] = []
    stuck = asyncio.Event()

    async def check(url: str, _timeout: timedelta) -> None:
        if "6000" in url:
            await stuck.wait()
        seen.append(url)

    hanging = a_condition("hangs", "tcp://127.0.0.1:6000", timeout=timedelta(minutes=1))
    conditions = Conditions([hanging, a_condition()], clock, check=check)
    stop = asyncio.Event()
    task = asyncio.create_task(conditions.run(stop))
    for _ in range(400):
        clock.advance(timedelta(seconds=15))
        await asyncio.sleep(0)
        if len(seen) >= 3:
            break
    assert seen[:3] == ["tcp://127.0.0.1:5432"] * 3
    assert list(conditions.failing) == ["hangs"]
    stop.set()
    stuck.set()
    await asyncio.wait_for(task, 30)


@pytest.mark.parametrize(
    ("fields", "waiting"),
    [
        ({}, {"conditional"}),
        ({"sources": ("orders",)}, {"conditional", "immediate"}),
        ({"kinds": ("network",)}, {"immediate"}),
        ({"sources": ("mail",)}, set()),
    ],
    ids=["conditional strategy", "sources", "kinds", "another source"],
)
async def test_condition_names_the_letters_that_wait_for_it(
    fields: dict[str, Any], waiting: set[str]
) -> None:
    world, answers = World(), Answers()
    await world.open()
    await world.store.add(
        [
            a_letter(
                "a", transport="memory", failure=a_failure(kind=FailureKind.DATABASE), strategy="conditional"
            ),
            a_letter(
                "b", transport="memory", failure=a_failure(kind=FailureKind.NETWORK), strategy="immediate"
            ),
        ]
    )
    condition = a_condition(**fields)
    conditions = Conditions([condition], world.clock, check=answers)
    answers.error = ConnectionRefusedError("refused")
    await conditions.turn(condition)
    worker = world.a_worker(
        "w", Admission(world.clock, world.strategy, world.breakers, conditions=conditions)
    )
    await worker.turn()
    heads = (await world.store.page()).heads
    assert {head.strategy for head in heads if head.waits_for == "condition:shop-db"} == waiting
    answers.error = None
    await conditions.turn(condition)
    await worker.turn()
    assert await world.transport.depth("orders") == 2


@pytest.mark.parametrize(
    ("fields", "reachable"),
    [({}, False), ({"kinds": ("database",)}, False), ({"sources": ("orders",)}, True)],
)
def test_database_is_unreachable_while_a_check_of_all_sources_fails(
    fields: dict[str, Any],
    reachable: bool,
) -> None:
    conditions = Conditions([a_condition(**fields)], ManualClock())
    assert conditions.database_reachable() is reachable
    conditions.failing.clear()
    assert conditions.database_reachable()


def test_conditions_are_read_from_settings() -> None:
    table = {
        "conditions": [
            {"name": "db", "url": "postgresql://u:p@db:5432/shop", "kinds": ["database"], "timeout": "5s"},
            {"name": "api", "url": "https://127.0.0.1/health", "sources": ["orders"], "interval": "1m"},
        ]
    }
    first, second = read(table).conditions
    assert (first.kinds, first.timeout, first.interval) == (("database",), 5 * SECOND, 15 * SECOND)
    assert (second.sources, second.interval) == (("orders",), timedelta(minutes=1))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "tcp://db"}, "needs a port"),
        ({"url": "ftp://db"}, "tcp://HOST:PORT"),
        ({"url": "tcp://db:99999"}, "not a URL"),
        ({"kinds": ["databse"]}, "did you mean 'database'"),
    ],
)
def test_condition_that_cannot_be_checked_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read({"conditions": [{"name": "db", "url": "tcp://db:1", **fields}]})


def test_url_of_a_condition_is_read_from_the_environment() -> None:
    secret = a_condition(url="env:SHOP_DB")
    [found] = with_secrets([secret], {"SHOP_DB": "postgresql://u:p@127.0.0.1/shop"})
    assert found.url == "postgresql://u:p@127.0.0.1/shop"
    with pytest.raises(SettingsError, match="SHOP_DB is not set"):
        with_secrets([secret], {})
