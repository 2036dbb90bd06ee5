"""T8 and T9: giving back."""

import asyncio
from typing import Any

from redrive.letters import Message
from redrive.testing.transport_suite.ground import PATIENCE, Ground, all_done, bodies, difference, numbered
from redrive.transports.base import Delivery, Receiver, Release, Source, Transport


class Releasing(Ground):
    """T8 and T9: giving back."""

    async def test_t8_a_released_message_comes_again_with_a_higher_count(
        self, transport: Transport, source: Source
    ) -> None:
        await self.fill(transport, source, [b"again"])
        receiver = await transport.receiver(source)
        counts = []
        for _ in range(4):
            [delivery] = await self.take(receiver, 1)
            counts.append(delivery.delivery_count)
            assert all_done(await receiver.release([Release(delivery)]), 1)
            assert not delivery.alive
        if transport.capabilities.delivery_count:
            assert counts == [1, 2, 3, 4]

    async def test_t8_many_are_released_at_once_and_each_comes_again_once(self, transport: Transport) -> None:
        source = await self.make_source(transport, window=50)
        await self.fill(transport, source, numbered(50))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 50)
        assert all_done(await receiver.release([Release(delivery) for delivery in out]), 50)
        again = await self.take(receiver, 50)
        assert sorted(bodies(again), key=str) == sorted(numbered(50), key=str)
        assert receiver.accept(again) == 0
        await self.nothing_comes(receiver)

    async def test_t8_releasing_nothing_does_nothing(self, transport: Transport, source: Source) -> None:
        assert all_done(await (await transport.receiver(source)).release([]), 0)

    async def test_t8_another_consumer_sees_the_count_of_a_released_message(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        self.needs(transport.capabilities.delivery_count, "delivery count")
        await self.fill(transport, source, [b"again"])
        receiver = await transport.receiver(source)
        [delivery] = await self.take(receiver, 1)
        await receiver.stop()
        assert all_done(await receiver.release([Release(delivery)]), 1)
        other = await self.open_transport(place)
        [again] = await self.take(await other.receiver(source), 1)
        await other.close()
        assert (again.delivery_count, again.key) == (2, delivery.key)

    async def test_t8_a_message_does_not_come_before_its_delay_has_passed(
        self, transport: Transport, source: Source
    ) -> None:
        self.needs(transport.capabilities.delayed_release, "delayed release")
        await self.fill(transport, source, [b"later", b"now"])
        receiver = await transport.receiver(source)
        later, now = await self.take(receiver, 2)
        began = asyncio.get_running_loop().time()
        assert all_done(await receiver.release([Release(later, self.delay), Release(now)]), 2)
        assert not later.alive
        [first] = await self.take(receiver, 1)
        assert first.body == b"now"  # nobody waits behind the one that waits
        [second] = await self.take(receiver, 1)
        passed = asyncio.get_running_loop().time() - began
        assert second.body == b"later"
        assert passed >= self.delay.total_seconds() - 0.01
        assert passed < self.delay.total_seconds() * 2 + 2
        if transport.capabilities.delivery_count:
            assert second.delivery_count == 2

    async def test_t8_a_short_delay_does_not_wait_behind_a_long_one(
        self, transport: Transport, source: Source
    ) -> None:
        self.needs(transport.capabilities.delayed_release, "delayed release")
        await self.fill(transport, source, [b"long", b"short"])
        receiver = await transport.receiver(source)
        long, short = await self.take(receiver, 2)
        asked = [Release(long, self.delay * 60), Release(short, self.delay)]
        assert all_done(await receiver.release(asked), 2)
        assert bodies(await self.take(receiver, 1)) == [b"short"]

    async def test_t8_a_delay_outlives_the_one_who_asked_for_it(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        self.needs(transport.capabilities.delayed_release, "delayed release")
        await self.fill(transport, source, [b"later"])
        consumer = await self.open_transport(place)
        receiver = await consumer.receiver(source)
        [delivery] = await self.take(receiver, 1)
        assert all_done(await receiver.release([Release(delivery, self.delay)]), 1)
        await self.cut(place)
        await consumer.close()
        [again] = await self.take(await transport.receiver(source), 1)
        assert again.body == b"later"
        if transport.capabilities.delivery_count:
            assert again.delivery_count == 2

    async def test_t9_a_released_message_comes_as_it_was(self, transport: Transport, source: Source) -> None:
        sent = self.a_full_message()
        await self.send(transport, source, [sent])
        receiver = await transport.receiver(source)
        [delivery] = await self.take(receiver, 1)
        origin, key = delivery.origin, delivery.key
        for after in (None, self.delay if transport.capabilities.delayed_release else None, None):
            assert all_done(await receiver.release([Release(delivery, after)]), 1)
            [delivery] = await self.take(receiver, 1)
            assert difference(delivery.message, sent) is None
            assert (delivery.origin, delivery.key) == (origin, key)

    async def test_t9_a_message_without_an_id_keeps_its_key(
        self, transport: Transport, source: Source
    ) -> None:
        await self.send(transport, source, [Message(body=b"one"), Message(body=b"other")])
        receiver = await transport.receiver(source)
        keys = []
        for after in (None, self.delay if transport.capabilities.delayed_release else None):
            out = await self.take(receiver, 2)
            keys.append({delivery.body: delivery.key for delivery in out})
            assert all_done(await receiver.release([Release(delivery, after) for delivery in out]), 2)
        keys.append({delivery.body: delivery.key for delivery in await self.take(receiver, 2)})
        assert len(set(keys[0].values())) == 2
        assert keys == [keys[0]] * 3

    async def test_t8_what_is_released_while_others_are_received_is_neither_lost_nor_doubled(
        self, transport: Transport
    ) -> None:
        source = await self.make_source(transport, window=20)
        await self.fill(transport, source, numbered(100))
        receiver = await transport.receiver(source)
        seen: dict[bytes, int] = {}
        async with asyncio.timeout(PATIENCE):
            while sum(seen.values()) < 200:
                await self._release_each_once(receiver, seen, await receiver.receive())
        assert set(seen) == set(numbered(100))
        assert set(seen.values()) == {2}
        await self.nothing_comes(receiver)

    async def _release_each_once(
        self, receiver: Receiver, seen: dict[bytes, int], batch: "list[Delivery] | Any"
    ) -> None:
        """The first time a message comes it is released, the second time accepted."""
        back: list[Release] = []
        for delivery in batch:
            body = delivery.body or b""
            seen[body] = seen.get(body, 0) + 1
            if seen[body] == 1:
                back.append(Release(delivery))
            else:
                receiver.accept([delivery])
        assert all_done(await receiver.release(back), len(back))
