"""T14 to T16: publishing."""

import asyncio
from typing import Any

from redrive.errors import RedriveError
from redrive.letters import Headers, Message
from redrive.testing.transport_suite.ground import (
    EVERY_BYTE,
    Ground,
    all_done,
    bodies,
    difference,
    numbered,
    to,
)
from redrive.transports.base import Publication, Source, Target, Transport


class Publishing(Ground):
    """T14 to T16: publishing."""

    async def test_t14_what_is_published_is_there_when_publish_returns(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        await self.fill(transport, source, numbered(100))
        other = await self.open_transport(place)
        assert await other.depth(source.name) == 100
        await other.close()

    async def test_t14_publishing_nothing_does_nothing(self, transport: Transport) -> None:
        assert all_done(await transport.publish([]), 0)

    async def test_t14_those_that_are_not_durable_are_named_one_by_one(
        self, transport: Transport, source: Source
    ) -> None:
        good = to(source, [Message(body=b"first"), Message(body=b"second")])
        [lost] = to("no-such-queue", [Message(body=b"lost")])

        outcomes = await transport.publish([good[0], lost, good[1]])

        assert [isinstance(outcome, RedriveError) for outcome in outcomes] == [False, True, False]
        assert "no-such-queue" in str(outcomes[1])
        assert bodies(await self.take_all(transport, source)) == [b"first", b"second"]

    async def test_t14_a_header_that_cannot_be_sent_is_refused_and_the_others_go(
        self, transport: Transport, source: Source
    ) -> None:
        self.needs(self.unsendable, "header that cannot be sent")
        odd = Message(body=b"odd", headers=Headers({"odd": self.unsendable}))

        outcomes = await transport.publish(to(source, [Message(body=b"a"), odd, Message(body=b"b")]))

        assert [isinstance(outcome, RedriveError) for outcome in outcomes] == [False, True, False]
        assert bodies(await self.take_all(transport, source)) == [b"a", b"b"]

    async def test_t15_a_target_that_does_not_exist_is_not_made(
        self, transport: Transport, source: Source
    ) -> None:
        for target in (Target(name="no-such-queue"), Target(exchange="no-such-exchange", routing_key="x")):
            [outcome] = await transport.publish([Publication(Message(body=b"x"), target)])
            assert isinstance(outcome, RedriveError)
            assert "no-such-" in str(outcome)
        await self.fill(transport, source, [b"and on it goes"])

    async def test_t15_a_receiver_is_not_hurt_by_a_target_that_does_not_exist(
        self, transport: Transport, source: Source
    ) -> None:
        receiver = await transport.receiver(source)
        await self.fill(transport, source, [b"before"])
        [before] = await self.take(receiver, 1)
        target = Target(exchange="no-such-exchange", routing_key="x")
        await transport.publish([Publication(Message(body=b"x"), target)])
        assert before.alive
        assert receiver.accept([before]) == 0
        await self.fill(transport, source, [b"after"])
        assert bodies(await self.take(receiver, 1)) == [b"after"]

    async def test_t16_what_is_published_comes_out_bit_exact(
        self, transport: Transport, source: Source
    ) -> None:
        sent = [self.a_full_message(body) for body in (EVERY_BYTE, b"", EVERY_BYTE * 4096)]
        await self.send(transport, source, sent)
        taken = await self.take_all(transport, source)
        assert [difference(found.message, asked) for found, asked in zip(taken, sent, strict=True)] == [
            None
        ] * 3

    async def test_t16_what_was_received_can_be_sent_on_as_it_is(self, transport: Transport) -> None:
        here, there = await self.make_source(transport), await self.make_source(transport)
        await self.send(transport, here, [self.a_full_message()])
        [first] = await self.take_all(transport, here)
        await self.send(transport, there, [first.message])
        [second] = await self.take_all(transport, there)
        assert difference(second.message, first.message) is None

    async def test_t16_messages_of_many_publishers_keep_the_order_of_each(
        self, transport: Transport, source: Source
    ) -> None:
        lots = [numbered(20, prefix) for prefix in (b"a", b"b", b"c", b"d", b"e")]
        await asyncio.gather(*(self.fill(transport, source, lot) for lot in lots))
        found = bodies(await self.take_all(transport, source))
        assert len(found) == 100
        for lot in lots:
            assert [body for body in found if body in lot] == lot
