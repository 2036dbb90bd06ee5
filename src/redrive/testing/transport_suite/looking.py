"""T17 and T18: looking."""

from typing import Any

import pytest

from redrive.errors import SourceMissingError
from redrive.letters import Message
from redrive.testing.transport_suite.ground import Ground, bodies, difference, numbered
from redrive.transports.base import Source, Transport


class Looking(Ground):
    """T17 and T18: looking."""

    async def test_t17_depth_is_the_number_of_those_that_wait(
        self, transport: Transport, source: Source
    ) -> None:
        assert await transport.depth(source.name) == 0
        await self.fill(transport, source, numbered(7))
        assert await transport.depth(source.name) == 7
        assert await transport.depth(source.dlq) == 0

    async def test_t17_what_is_out_does_not_wait(self, transport: Transport) -> None:
        source = await self.make_source(transport, window=2)
        await self.fill(transport, source, numbered(5))
        await self.take(await transport.receiver(source), 2)
        await self.depth_becomes(transport, source.name, 3)

    async def test_t17_a_source_that_does_not_exist_is_missing(
        self, transport: Transport, source: Source
    ) -> None:
        for _ in range(2):  # the second time is not answered by a connection that the first one broke
            with pytest.raises(SourceMissingError, match="no-such-source"):
                await transport.depth("no-such-source")
            with pytest.raises(SourceMissingError, match="no-such-source"):
                await transport.peek("no-such-source", 1)
        assert await transport.depth(source.name) == 0

    async def test_t18_peek_shows_the_first_messages_and_takes_none(
        self, transport: Transport, source: Source
    ) -> None:
        await self.fill(transport, source, numbered(5))
        for _ in range(3):
            assert [message.body for message in await transport.peek(source.name, 2)] == [b"0", b"1"]
        await self.depth_becomes(transport, source.name, 5)
        assert [message.body for message in await transport.peek(source.name, 100)] == numbered(5)
        await self.depth_becomes(transport, source.name, 5)
        taken = await self.take(await transport.receiver(source), 5)
        assert bodies(taken) == numbered(5)

    async def test_t18_peek_shows_a_message_as_it_is(self, transport: Transport, source: Source) -> None:
        sent = self.a_full_message()
        await self.send(transport, source, [sent])
        [found] = await transport.peek(source.name, 1)
        assert difference(found, sent) is None

    async def test_t18_of_an_empty_source_peek_shows_nothing(
        self, transport: Transport, source: Source
    ) -> None:
        assert list(await transport.peek(source.name, 3)) == []
        await self.fill(transport, source, [b"x"])
        assert list(await transport.peek(source.name, 0)) == []

    async def test_t18_what_was_looked_at_was_not_delivered(
        self, transport: Transport, source: Source
    ) -> None:
        """Or looking at a message three times would make it a poison message."""
        self.needs(transport.capabilities.delivery_count, "delivery count")
        await self._look(transport, source)
        [delivery] = await self.take(await transport.receiver(source), 1)
        assert delivery.delivery_count == 1

    async def test_t18_what_somebody_else_looked_at_was_not_delivered(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        self.needs(transport.capabilities.delivery_count, "delivery count")
        self.needs(not self.looking_counts, "way to distinguish a peek from a delivery")
        other = await self.open_transport(place)
        await self._look(other, source)
        await other.close()
        [delivery] = await self.take(await transport.receiver(source), 1)
        assert delivery.delivery_count == 1

    async def _look(self, transport: Transport, source: Source) -> None:
        """A message that waits, and that was looked at five times."""
        await self.send(transport, source, [Message(body=b"x")])
        for _ in range(5):
            await transport.peek(source.name, 1)
        await self.depth_becomes(transport, source.name, 1)

    async def test_t18_what_was_looked_at_many_times_is_still_there(
        self, transport: Transport, source: Source
    ) -> None:
        await self.send(transport, source, [Message(body=b"x")])
        for number in range(25):
            found = await transport.peek(source.name, 1)
            assert [message.body for message in found] == [b"x"], f"look number {number + 1}"
            await self.depth_becomes(transport, source.name, 1)
        assert await transport.depth(source.dlq) == 0
