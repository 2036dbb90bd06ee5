"""A broker that is killed during the login is unreachable, and has refused nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from redrive.broker.run import BrokerOptions, start
from redrive.clock import SystemClock, until_first
from redrive.errors import BrokerRefusedError, BrokerUnreachableError
from redrive.transports.rabbitmq import RabbitTransport
from redrive.transports.rabbitmq.link import connect
from redrive.transports.rabbitmq.url import parse_url


class CuttingProxy:
    """Passes bytes on to a broker and back, and hangs up after so many bytes of the broker."""

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self.limit: int | None = None
        self.passed = 0
        self.port = 0
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["CuttingProxy"]:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            await asyncio.gather(*self._serving)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
        await until_first(self._pass_on(reader, to_broker), self._pass_back(from_broker, writer))
        for each in (writer, to_broker):
            with contextlib.suppress(OSError):
                await each.drain()
            each.close()
            with contextlib.suppress(OSError):
                await each.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.passed = 0
        while self.limit is None or self.passed < self.limit:
            data = await reader.read(65536 if self.limit is None else self.limit - self.passed)
            if not data:
                return
            self.passed += len(data)
            writer.write(data)


@pytest.fixture
async def proxy() -> AsyncIterator[CuttingProxy]:
    server = await start(BrokerOptions())
    port = await server.listen("127.0.0.1", 0)
    async with CuttingProxy(port).listening() as proxy:
        yield proxy
    await server.close()


async def test_broker_that_hangs_up_at_any_point_of_the_login_is_unreachable(proxy: CuttingProxy) -> None:
    url = parse_url(f"amqp://guest:guest@127.0.0.1:{proxy.port}/")
    link = await connect(url, url.endpoints[0])
    total = proxy.passed
    await link.close()
    for limit in (*range(0, total, 23), *range(total - 40, total)):
        proxy.limit = limit
        with pytest.raises(BrokerUnreachableError, match=r"closed the connection|cannot be reached|was lost"):
            await connect(url, url.endpoints[0])


async def test_refused_login_is_distinguished_from_a_lost_one(proxy: CuttingProxy) -> None:
    transport = RabbitTransport(f"amqp://guest:wrong@127.0.0.1:{proxy.port}/", SystemClock())
    with pytest.raises(BrokerRefusedError, match="refused the user 'guest'"):
        await transport.open()
