"""T10 to T12: burying."""

from typing import Any

import msgspec
import pytest

from redrive.errors import RedriveError, SettingsError
from redrive.formats import own
from redrive.letters import Headers, Message
from redrive.testing.transport_suite.ground import (
    EVERY_BYTE,
    Ground,
    all_done,
    bodies,
    death_of,
    difference,
    numbered,
)
from redrive.transports.base import Release, Source, Transport


class DeadLetters(Ground):
    """T10 to T12: burying."""

    async def test_t10_a_dead_letter_is_there_and_its_message_is_gone(
        self, transport: Transport, source: Source
    ) -> None:
        await self.fill(transport, source, numbered(5))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 5)
        assert all_done(await receiver.dead_letter([death_of(delivery) for delivery in out[:4]]), 4)
        assert (
            await transport.depth(source.dlq) == 4
        )  # durable when `dead_letter` returns, not some time later
        assert [delivery.alive for delivery in out] == [False] * 4 + [True]
        await receiver.close()
        await self.depth_becomes(transport, source.name, 1)
        assert bodies(await self.take_all(transport, source.dlq)) == numbered(4)

    async def test_t10_burying_nothing_does_nothing(self, transport: Transport, source: Source) -> None:
        assert all_done(await (await transport.receiver(source)).dead_letter([]), 0)

    async def test_t10_dead_letters_go_where_the_source_says(self, transport: Transport) -> None:
        name = (await self.make_source(transport)).name
        source = await self.make_source(transport, name=f"{name}-2", dead_letter_queue=f"{name}.graves")
        await self.fill(transport, source, [b"x"])
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 1)
        assert all_done(await receiver.dead_letter([death_of(out[0])]), 1)
        assert await transport.depth(f"{name}.graves") == 1

    async def test_t11_what_cannot_be_buried_stays_with_its_source(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        await self.fill(transport, source, numbered(3))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 3)
        await self.remove(place, source.dlq)

        outcomes = await receiver.dead_letter([death_of(delivery) for delivery in out])

        assert all(isinstance(error, RedriveError) and str(error) for error in outcomes)
        assert len(outcomes) == 3
        assert all(delivery.alive for delivery in out)
        await receiver.close()
        await self.depth_becomes(transport, source.name, 3)
        assert sorted(bodies(await self.take_all(transport, source)), key=str) == numbered(3)

    async def test_t11_what_could_not_be_buried_can_be_buried_later(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        await self.fill(transport, source, numbered(2))
        receiver = await transport.receiver(source)
        done, dead = await self.take(receiver, 2)
        death_of_done = death_of(done)
        receiver.accept([done])
        await self.remove(place, source.dlq)
        nothing_to_do, refused = await receiver.dead_letter([death_of_done, death_of(dead)])
        assert (nothing_to_do, isinstance(refused, RedriveError)) == (None, True)
        await transport.provision([source])
        assert all_done(await receiver.dead_letter([death_of(dead)]), 1)
        assert bodies(await self.take_all(transport, source.dlq)) == [b"1"]

    async def test_t11_what_cannot_be_buried_can_still_be_given_back_and_accepted(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        await self.fill(transport, source, numbered(2))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 2)
        await self.remove(place, source.dlq)
        await receiver.dead_letter([death_of(delivery) for delivery in out])
        assert all_done(await receiver.release([Release(out[0])]), 1)
        assert receiver.accept(out[1:]) == 0
        assert bodies(await self.take(receiver, 1)) == [b"0"]

    async def test_t12_a_dead_letter_tells_everything_and_its_body_is_bit_exact(
        self, transport: Transport, source: Source
    ) -> None:
        sent = self.a_full_message(EVERY_BYTE)
        await self.send(transport, source, [sent])
        receiver = await transport.receiver(source)
        [delivery] = await self.take(receiver, 1)
        assert all_done(await receiver.release([Release(delivery)]), 1)
        [delivery] = await self.take(receiver, 1)
        death = death_of(delivery, "PoisonMessage", correlation_id="trace-of-its-own")
        assert all_done(await receiver.dead_letter([death]), 1)

        [dead] = await self.take_all(transport, source.dlq)

        told = own.read(dead.message.headers)
        assert told is not None
        assert told.unreadable == ()
        assert (told.reason, told.failure) == ("PoisonMessage", death.letter.failure)
        assert told.origin == msgspec.structs.replace(
            death.letter.origin, endpoint=None, dead_letter_source=None
        )
        assert (told.key, told.correlation_id, told.group) == (
            death.letter.key,
            "trace-of-its-own",
            death.letter.group,
        )
        assert told.retry_count == 3
        if transport.capabilities.delivery_count:
            assert told.delivery_count == 2
        original = msgspec.structs.replace(dead.message, headers=own.strip(dead.message.headers))
        assert difference(original, sent) is None

    async def test_t12_a_second_death_replaces_what_the_first_one_told(
        self, transport: Transport, source: Source
    ) -> None:
        await self.send(transport, source, [Message(body=b"x", headers=Headers({"redrive-id": "letter-1"}))])
        receiver = await transport.receiver(source)
        [delivery] = await self.take(receiver, 1)
        assert all_done(await receiver.dead_letter([death_of(delivery, "first")]), 1)
        [dead] = await self.take_all(transport, source.dlq)
        await self.send(transport, source, [dead.message])  # sent back with all its headers
        [delivery] = await self.take(receiver, 1)
        assert all_done(await receiver.dead_letter([death_of(delivery, "second")]), 1)
        [dead] = await self.take_all(transport, source.dlq)
        assert dead.message.headers.get_all("redrive-reason") == (self.carried("second"),)
        assert own.strip(dead.message.headers) == Headers({"redrive-id": self.carried("letter-1")})

    async def test_t12_a_broker_that_buries_by_itself_keeps_the_message_as_it_is(
        self, transport: Transport
    ) -> None:
        if not transport.capabilities.native_dead_letter:
            with pytest.raises(SettingsError, match="dead_letter"):
                await self.make_source(transport, dead_letter="native")
            plain = await self.make_source(transport)
            with pytest.raises(SettingsError, match="dead_letter"):
                await transport.receiver(Source(name=plain.name, dead_letter="native"))
            return
        source = await self.make_source(transport, dead_letter="native")
        sent = self.a_full_message()
        await self.send(transport, source, [sent])
        receiver = await transport.receiver(source)
        [delivery] = await self.take(receiver, 1)
        assert all_done(await receiver.dead_letter([death_of(delivery)]), 1)
        assert not delivery.alive
        await self.depth_becomes(transport, source.dlq, 1)
        [dead] = await self.take_all(transport, source.dlq)
        assert (dead.body, dead.message.message_id) == (sent.body, sent.message_id)
        await receiver.close()
        assert await transport.depth(source.name) == 0
