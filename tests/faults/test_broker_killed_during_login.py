"""A server outlives a broker that is killed while the server logs in."""

import asyncio
import contextlib
import random
import re
import signal
import textwrap
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.clock import until_first
from tests import soak
from tests.acceptance.serving import PATIENCE, QUICK, Process, channel, until
from tests.faults.test_broker_crash import Process as Broker

KILLS = soak.count(20, in_ci=3)
LOGIN_SECONDS = 0.3


class Relay:
    """Passes bytes between a server and the broker of the moment, and knows when the server starts to log in."""

    def __init__(self) -> None:
        self.port = 0
        self.broker_port: int | None = None
        self.has_begun = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["Relay"]:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def lead_to(self, broker_port: int | None) -> None:
        self.broker_port = broker_port
        self.has_begun.clear()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if self.broker_port is not None:
                from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self.broker_port)
                self.has_begun.set()
                await until_first(self._pass(reader, to_broker), self._pass(from_broker, writer))
                to_broker.transport.abort()
        writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()


@pytest.mark.slow
@pytest.mark.soak
async def test_server_outlives_a_broker_that_is_killed_during_the_login(tmp_path: Path) -> None:
    chance = random.Random(soak.seed(16))
    (tmp_path / "redrive.toml").write_text(textwrap.dedent(QUICK))
    async with Relay().listening() as relay:
        # Given a server whose broker does not run yet
        url = f"amqp://guest:guest@127.0.0.1:{relay.port}/"
        server = Process(tmp_path, "serve", "--data", "data", "--port", "0", "--broker", url)
        try:
            for _ in range(KILLS):
                # When the broker is killed shortly after the server has connected
                broker = await asyncio.to_thread(Broker, tmp_path / "broker")
                try:
                    relay.lead_to(broker.port)
                    async with asyncio.timeout(PATIENCE):
                        await relay.has_begun.wait()
                    await asyncio.sleep(chance.uniform(0, LOGIN_SECONDS))
                finally:
                    relay.lead_to(None)
                    broker.kill()
            soak.report(kills=KILLS)
            # Then the server still runs, and collects once the broker is back
            broker = await asyncio.to_thread(Broker, tmp_path / "broker")
            try:
                relay.lead_to(broker.port)
                ready = await asyncio.to_thread(server.until_it_says, "redrive serve is ready")
                await asyncio.to_thread(check_collecting, ready, broker.port)
                assert await asyncio.to_thread(server.end) == 0, server.errors
            finally:
                broker.kill()
        finally:
            server.end(signal.SIGKILL)
    assert not any("Traceback" in line for line in server.errors), server.errors


def check_collecting(ready: str, broker_port: int) -> None:
    found = re.search(r"http (http://\S+?),", ready)
    assert found, ready

    def collected() -> bool:
        with urllib.request.urlopen(f"{found[1]}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return any(re.fullmatch(r"redrive_letters_collected_total\b.* 1(\.0)?", line) for line in lines)

    with channel(f"amqp://guest:guest@127.0.0.1:{broker_port}/") as amqp:
        amqp.basic_publish("", "orders.dlq", b"dead", mandatory=True)
    until(collected, "the letter is collected")
