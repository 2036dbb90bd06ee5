"""T22: making."""

from secrets import token_hex

import pytest

from redrive.errors import SourceMissingError, TransportClosedError
from redrive.letters import Message
from redrive.testing.transport_suite.ground import Ground, bodies
from redrive.transports.base import Source, Transport


class Making(Ground):
    """T22: making."""

    async def test_t22_a_queue_is_made_where_there_is_none(self, transport: Transport) -> None:
        name = f"plain-{token_hex(4)}"
        with pytest.raises(SourceMissingError):
            await transport.depth(name)
        await transport.ensure_queue(name)
        await self.send(transport, name, [Message(body=b"x")])
        assert bodies(await self.take_all(transport, name)) == [b"x"]

    async def test_t22_a_queue_that_exists_keeps_what_it_has(
        self, transport: Transport, source: Source
    ) -> None:
        name = f"plain-{token_hex(4)}"
        for _ in range(2):
            await transport.ensure_queue(name)
            await self.send(transport, name, [Message(body=b"x")])
        assert await transport.depth(name) == 2
        await transport.ensure_queue(source.name)  # made otherwise, and left so
        await self.send(transport, source, [Message(body=b"y")])
        assert await transport.depth(source.name) == 1

    async def test_t22_a_closed_transport_makes_nothing(self, transport: Transport) -> None:
        await transport.close()
        with pytest.raises(TransportClosedError):
            await transport.ensure_queue("plain")
