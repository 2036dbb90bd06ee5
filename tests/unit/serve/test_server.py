"""A server in this process: it starts, waits for its broker, and ends in order."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive.clock import SystemClock
from redrive.errors import ServiceError, SettingsError, StoreBusyError
from redrive.serve import Places, Server
from redrive.serve.child import EmbeddedBroker
from redrive.serve.lock import ServeLock
from redrive.serve.server import store_of
from redrive.settings import Settings, read
from redrive.transports import Source
from tests.acceptance.serving import is_there
from tests.services.server import free_ports


def settings(tmp_path: Path, **sections: dict[str, Any]) -> Settings:
    return read(
        {**sections, "server": {"port": 0, **sections.get("server", {}), "data_directory": str(tmp_path)}}
    )


async def test_it_runs_on_memory_until_it_is_stopped(tmp_path: Path) -> None:
    server = Server(
        settings(tmp_path, store={"url": "memory:"}, broker={"url": "memory:"}),
        SystemClock(),
        [Source(name="orders")],
    )
    ready: asyncio.Future[Places] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(server.run(ready.set_result))
    places = await asyncio.wait_for(ready, 30)
    assert places.store == "memory:"
    assert places.management is None
    status, health = await asyncio.to_thread(_health, places.http)
    assert (status, health["status"]) == (200, "ok")
    server.stop()
    await asyncio.wait_for(running, 30)
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(_health, places.http)


async def test_a_server_whose_task_is_cancelled_ends_in_order_too(tmp_path: Path) -> None:
    server = Server(settings(tmp_path, broker={"url": "memory:"}), SystemClock())
    ready: asyncio.Future[Places] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(server.run(ready.set_result))
    await asyncio.wait_for(ready, 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert {task for task in asyncio.all_tasks() if not task.done()} == {asyncio.current_task()}
    ServeLock.take(tmp_path / "redrive.db").release()  # nobody holds it


async def test_a_broker_that_is_away_is_waited_for_and_stopping_ends_the_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port, http = free_ports(2)
    server = Server(
        settings(tmp_path, broker={"url": f"amqp://127.0.0.1:{port}"}, server={"port": http}), SystemClock()
    )
    running = asyncio.create_task(server.run(lambda _: pytest.fail("it cannot be ready")))
    await until(lambda: "broker unreachable retry_in=" in caplog.text)
    async with asyncio.timeout(30):
        status, health = await asyncio.to_thread(_health, f"http://127.0.0.1:{http}")
        assert (status, health["store"]) == (503, "ok")
        assert health["broker"] != "ok"
        server.stop()
        await running


async def test_two_servers_of_one_store_do_not_run_in_one_process_either(tmp_path: Path) -> None:
    one = Server(settings(tmp_path, broker={"url": "memory:"}), SystemClock())
    ready = asyncio.Event()
    running = asyncio.create_task(one.run(lambda _: ready.set()))
    await asyncio.wait_for(ready.wait(), 30)
    with pytest.raises(StoreBusyError, match="another redrive serve"):
        await Server(settings(tmp_path, broker={"url": "memory:"}), SystemClock()).run()
    one.stop()
    await running
    again = Server(settings(tmp_path, broker={"url": "memory:"}), SystemClock())
    again.stop()
    await again.run()


def test_the_store_is_in_the_data_directory_unless_it_is_named(tmp_path: Path) -> None:
    assert store_of(settings(tmp_path)).url == f"sqlite:{tmp_path}/redrive.db"
    assert store_of(settings(tmp_path, store={"url": "sqlite:/var/x.db"})).url == "sqlite:/var/x.db"
    assert store_of(read({})).url == "sqlite:redrive.db"
    with pytest.raises(SettingsError, match="is the store of another server"):
        Server(settings(tmp_path, store={"url": "http://127.0.0.1:8642"}), SystemClock())


# --- the embedded broker -----------------------------------------------------------------------------------


async def test_the_broker_comes_back_at_the_same_place_and_ends_when_it_is_told(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path / "broker", SystemClock(), port=0, management_port=0)
    addresses = await broker.start()
    first = broker.pid
    assert first is not None
    assert broker._process is not None
    broker._process.kill()
    await until(lambda: broker.restarts == 1 and broker.is_ready)
    second = broker.pid
    assert second not in (None, first)
    place = addresses.amqp.rpartition(":")[2].strip("/")
    _, writer = await asyncio.open_connection("127.0.0.1", int(place))
    writer.close()
    await writer.wait_closed()
    await broker.stop()
    assert broker.pid is None
    assert second is not None
    assert not is_there(second)


async def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    one = EmbeddedBroker(tmp_path / "one", SystemClock(), port=0, management_port=0)
    addresses = await one.start()
    port = int(addresses.amqp.rpartition(":")[2].strip("/"))
    other = EmbeddedBroker(tmp_path / "other", SystemClock(), port=port, management_port=0)
    with pytest.raises(ServiceError, match="the embedded broker did not start: cannot listen on"):
        await other.start()
    await other.stop()
    await one.stop()


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what another process brings about, which tells nobody."""
    for _ in range(3000):
        if holds():
            return
        await asyncio.sleep(0.02)
    pytest.fail("not within a minute")


def _health(url: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=timedelta(seconds=10).total_seconds()) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
