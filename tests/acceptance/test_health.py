"""Health never lies: whatever keeps a server from its work is a 503 with the reason, and an alert.

Each case is met on the real component: a full file system, a stopped PostgreSQL, a deleted queue, a removed file. It is
repaired afterwards, and the server recovers by itself.
"""

import asyncio
import contextlib
import subprocess
import textwrap
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.acceptance.serving import PATIENCE, QUICK, Process, Serving, channel, serving
from tests.services import PostgresServer
from tests.services.server import free_ports
from tests.unit.watch.alerts.servers import Hook, web_server

SETTINGS = (
    QUICK
    + """
    [health]
    write_interval = "1s"
    max_write_age = "30s"
    broker_interval = "1s"

    [alerts]
    interval = "1s"
    resolve_after = "1s"

    [[notifiers]]
    name = "hook"
    type = "json"
    url = "{hook}"
"""
)


class Watch:
    """The alerts of a server, as a webhook receives them."""

    def __init__(self, hook: Hook, settings: str) -> None:
        self._hook = hook
        self.settings = settings

    async def alert(self, rule: str, occasion: str = "raised") -> dict[str, Any]:
        """Wait for an alert of this rule."""
        found: list[dict[str, Any]] = []

        def came() -> bool:
            found[:] = [
                body for body in self._hook.bodies if (body["rule"], body["occasion"]) == (rule, occasion)
            ]
            return bool(found)

        await until(came, f"{rule} {occasion}")
        return found[-1]

    def rules(self) -> set[str]:
        """The rules of all alerts that came."""
        return {body["rule"] for body in self._hook.bodies}


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    hook = Hook()
    async with web_server(hook) as url:
        yield Watch(hook, SETTINGS.format(hook=url))


async def until(holds: Callable[[], object], what: str) -> None:
    """Wait for something in another process, while alerts can come."""
    end = time.monotonic() + PATIENCE
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < end, f"{what}: not within {PATIENCE:g} s"
        await asyncio.sleep(0.05)


async def failing(server: Serving, says: Callable[[dict[str, Any]], str], words: str) -> None:
    """Wait until the server is failing, and names the reason."""

    def holds() -> bool:
        status, report = server.health()
        return status == 503 and words in says(report)

    await until(holds, words)


async def healthy(server: Serving) -> None:
    """Wait until the server is healthy again."""
    await until(lambda: server.health()[0] == 200, "healthy")


def die(server: Serving, *bodies: bytes) -> None:
    """Publish dead letters, confirmed by the broker."""
    with channel(server.broker) as amqp:
        amqp.confirm_delivery()
        for body in bodies:
            amqp.basic_publish("", "orders.dlq", body, pika.BasicProperties(delivery_mode=2))


def provision(server: Serving) -> None:
    """Create what was deleted."""
    with channel(server.broker) as amqp:
        amqp.exchange_declare("orders.dlx", "fanout", durable=True)
        amqp.queue_declare(
            "orders.dlq", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": -1}
        )
        amqp.queue_bind("orders.dlq", "orders.dlx")


async def collected(server: Serving, count: int) -> None:
    """Wait until so many letters are in the store."""
    await until(lambda: len(asyncio.run(server.heads())) == count, f"{count} letters")


# --- the store -------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system can only be mounted by root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_full_disk_is_reported_and_alerted_and_nothing_is_lost(
    tmp_path: Path, watch: Watch, small_disk: Path
) -> None:
    settings = watch.settings + f'\n    [store]\n    url = "sqlite:{small_disk}/redrive.db"\n'
    with serving(tmp_path, settings=settings) as server:
        await asyncio.to_thread(die, server, b"before")
        await collected(server, 1)
        # When the disk is full
        with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        await asyncio.to_thread(die, server, *(b"%d" % number * 1000 for number in range(200)))
        # Then health and an alert say so
        await failing(server, lambda report: report["store"], "StoreFullError")
        assert (await watch.alert("store-unavailable"))["component"] == "store"
        # And after making room every letter comes in
        (small_disk / "ballast").unlink()
        await collected(server, 201)
        await healthy(server)
        await watch.alert("store-unavailable", "recovered")
        assert "service-failed" not in watch.rules()  # services that cannot write are a consequence


async def test_removed_database_is_reported_and_nothing_is_acknowledged_into_it(
    tmp_path: Path, watch: Watch
) -> None:
    with serving(tmp_path, settings=watch.settings) as server:
        file = tmp_path / "data" / "redrive.db"
        await asyncio.to_thread(die, server, b"before")
        await collected(server, 1)
        # When the file is removed
        file.rename(tmp_path / "moved")
        await asyncio.to_thread(die, server, *(b"%d" % number for number in range(50)))
        # Then health and an alert say so, and the letters stay with the broker
        await failing(server, lambda report: report["store"], "was removed while it was in use")
        await watch.alert("store-unavailable")
        # And a killed server has acknowledged nothing: when the file is back, all letters come in
        server.process.kill()
        server.end()
        (tmp_path / "moved").rename(file)
    with serving(tmp_path, settings=watch.settings) as server:
        await collected(server, 51)
        # And so they do when it is moved back under a running server
        file.rename(tmp_path / "moved")
        await failing(server, lambda report: report["store"], "was removed while it was in use")
        await asyncio.to_thread(die, server, b"meanwhile")
        (tmp_path / "moved").rename(file)
        await collected(server, 52)
        await healthy(server)


async def test_postgres_that_is_stopped_is_reported_also_from_the_start(
    tmp_path: Path, watch: Watch, own_postgres: PostgresServer
) -> None:
    # Given a PostgreSQL that does not run
    url = urllib.parse.urlsplit(own_postgres.address.url)._replace(path="/postgres").geturl()
    (port,) = free_ports(1)
    settings = watch.settings + f'\n    [store]\n    url = "{url}"\n    busy_timeout = "1s"\n'
    (tmp_path / "redrive.toml").write_text(textwrap.dedent(settings))
    own_postgres.stop()
    server = Serving.__new__(Serving)
    Process.__init__(server, tmp_path, "serve", "--data", "data", "--port", str(port))
    server.http = f"http://127.0.0.1:{port}"
    try:
        # Then the server starts all the same, and says what it waits for
        await until(lambda: answers(server), "it answers over HTTP")
        await failing(server, lambda report: report["store"], "StoreUnreachableError")
        assert server.health()[1]["services"]["rescuer"] == "waiting for the store"
        await watch.alert("store-unavailable")
        # And it is ready when the database is there
        own_postgres.start()
        said = await asyncio.to_thread(server.until_it_says, "redrive serve is ready")
        server.broker = said.partition("broker ")[2].partition(" ")[0]
        await healthy(server)
        await watch.alert("store-unavailable", "recovered")
        # When it is stopped under the running server, then that is reported, too, and nothing is lost
        own_postgres.stop()
        await asyncio.to_thread(die, server, b"meanwhile")
        await failing(server, lambda report: report["store"], "StoreUnreachableError")
        own_postgres.start()
        await collected(server, 1)
        await healthy(server)
        assert "service-failed" not in watch.rules()
    finally:
        server.end()


def answers(server: Serving) -> bool:
    with contextlib.suppress(OSError):
        server.health()
        return True
    return False


# --- the broker ------------------------------------------------------------------------------------------------


async def test_broker_that_is_unreachable_from_the_start_is_reported_and_waited_for(
    tmp_path: Path, watch: Watch
) -> None:
    port, http = free_ports(2)
    settings = watch.settings + f'\n    [broker]\n    url = "amqp://127.0.0.1:{port}"\n'
    (tmp_path / "redrive.toml").write_text(textwrap.dedent(settings))
    server = Serving.__new__(Serving)
    Process.__init__(server, tmp_path, "serve", "--data", "data", "--port", str(http))
    server.http = f"http://127.0.0.1:{http}"
    broker = None
    try:
        await until(lambda: answers(server), "it answers over HTTP")
        await failing(server, lambda report: report["broker"], "cannot be reached")
        assert server.health()[1]["services"]["rabbitmq/worker-1"] == "waiting for the broker"
        assert (await watch.alert("broker-unreachable"))["severity"] == "critical"
        broker = Process(tmp_path, "broker", "--port", str(port))
        await asyncio.to_thread(server.until_it_says, "redrive serve is ready")
        await healthy(server)
        await watch.alert("broker-unreachable", "recovered")
        assert "service-failed" not in watch.rules()
    finally:
        assert server.end() == 0
        if broker is not None:
            broker.end()


async def test_dead_letter_queue_that_was_deleted_is_reported_by_its_collector(
    tmp_path: Path, watch: Watch
) -> None:
    with serving(tmp_path, settings=watch.settings) as server:
        with channel(server.broker) as amqp:
            amqp.queue_delete("orders.dlq")
        await failing(server, lambda report: report["services"]["embedded/orders.dlq"], "SourceMissingError")
        await watch.alert("queue-missing")
        # When it is there again, then it is collected again
        await asyncio.to_thread(provision, server)
        await healthy(server)
        await asyncio.to_thread(die, server, b"after")
        await collected(server, 1)


async def test_removed_journal_of_the_embedded_broker_is_reported_until_it_is_back(
    tmp_path: Path, watch: Watch
) -> None:
    with serving(tmp_path, settings=watch.settings) as server:
        [segment] = (tmp_path / "data" / "broker").glob("*.journal")
        segment.rename(tmp_path / "moved")
        with pytest.raises((pika.exceptions.AMQPError, OSError)):
            await asyncio.to_thread(die, server, b"nowhere")
        await failing(server, lambda report: report["broker"], "was removed or replaced while it was in use")
        await watch.alert("broker-unreachable")
        (tmp_path / "moved").rename(segment)
        await healthy(server)
        await asyncio.to_thread(die, server, b"after")
        await until(lambda: len(asyncio.run(server.heads())) >= 1, "the dead letter is collected")


# --- the consumers ---------------------------------------------------------------------------------------------

SHOP = """
    from redrive import App

    app = App({url!r})

    @app.consume("orders", attempts=1, max_deliveries=1)
    async def handle(body: bytes) -> None:
        raise PermissionError("no")
"""


async def test_consumer_that_cannot_publish_dead_letters_reports_it_to_the_server(
    tmp_path: Path, watch: Watch
) -> None:
    with serving(tmp_path, settings=watch.settings) as server:
        (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP.format(url=server.broker)))
        consumer = Process(tmp_path, "consume", "shop")
        try:
            await asyncio.to_thread(consumer.until_it_says, "redrive consume")
            # Given a dead-letter exchange that somebody has deleted
            with channel(server.broker) as amqp:
                amqp.exchange_delete("orders.dlx")
                amqp.basic_publish("", "orders", b"poison")
            # Then the server says so, although it can do all its own work
            await failing(
                server, lambda report: report["consumers"].get("orders", ""), "cannot publish dead letters"
            )
            assert (await watch.alert("dead-letter-publish-failed"))["counts"]["failures"] >= 1
            # And it is over when the exchange is there again
            await asyncio.to_thread(provision, server)
            await healthy(server)
            await collected(server, 1)
        finally:
            assert await asyncio.to_thread(consumer.end) == 0
