"""T8, T10, T14, T19 and T23 where the broker's process ends: what outlives it."""

import asyncio
from typing import Any

from redrive.testing.transport_suite.ground import (
    Ground,
    all_done,
    bodies,
    death_of,
    numbered,
)
from redrive.transports.base import Delivery, Receiver, Release, Transport

_BACK_AGAIN = 60.0  # seconds that a broker may take to start, and a transport to find it


class RestartSuite(Ground):
    """For brokers that survive a restart. It stands beside `TransportSuite` because it needs a broker of its own."""

    keeps_settlements = True  # whether a broker that ends so has written down what was settled just before

    async def restart(self, place: Any) -> None:
        """End the broker's process, without warning if it bears that, and start it again on the same data."""
        raise NotImplementedError

    async def test_t19_what_was_durable_outlives_the_broker(self, transport: Transport, place: Any) -> None:
        self.needs(transport.capabilities.survives_restart, "separate memory")
        # Given messages of which some are done, some dead, and the rest out
        source = await self.make_source(transport, window=20)
        await self.fill(transport, source, numbered(10))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 10)
        receiver.accept(out[:2])
        assert all_done(await receiver.dead_letter([death_of(delivery) for delivery in out[2:4]]), 2)
        await self.nothing_comes(receiver)
        # When the broker ends and comes back
        await self.restart(place)
        # Then what was out comes again to the receiver that was there before
        found = await self._found_again(receiver, set(numbered(10)[4:]))
        assert not any(delivery.alive for delivery in out)
        if self.keeps_settlements:
            assert set(bodies(found)).isdisjoint({b"2", b"3"})
        assert len(set(bodies(found))) == len(found)
        if transport.capabilities.delivery_count:
            counts = {delivery.body: delivery.delivery_count for delivery in found}
            assert [counts[body] for body in numbered(10)[4:]] == [2] * 6
        assert receiver.accept(found) == 0
        # And the dead lie where they were put, and publishing goes on
        assert bodies(await self.take_all(transport, source.dlq)) == [b"2", b"3"]
        await self.send_in_the_end(transport, source, b"new")
        assert bodies(await self.take(receiver, 1)) == [b"new"]

    async def test_t8_a_message_whose_delay_ends_while_the_broker_is_away_is_not_lost(
        self, transport: Transport, place: Any
    ) -> None:
        self.needs(transport.capabilities.survives_restart, "separate memory")
        self.needs(transport.capabilities.delayed_release, "delayed release")
        source = await self.make_source(transport)
        await self.fill(transport, source, numbered(3))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 3)
        assert all_done(await receiver.release([Release(delivery, self.delay) for delivery in out]), 3)
        await self.nothing_comes(receiver)  # nor is an acknowledgement on its way any more
        await self.restart(place)
        found = await self._found_again(receiver, set(numbered(3)))
        # Else what was given back may come as well: the broker has forgotten that it was.
        if transport.capabilities.delivery_count and self.keeps_settlements:
            assert [delivery.delivery_count for delivery in found] == [2] * 3

    async def test_t23_cluster_id_outlives_the_broker(self, transport: Transport, place: Any) -> None:
        self.needs(transport.capabilities.survives_restart, "separate memory")
        source = await self.make_source(transport)
        await self.fill(transport, source, [b"x"])
        receiver = await transport.receiver(source)
        await self.take(receiver, 1)
        before = transport.cluster_id
        assert before
        await self.restart(place)
        await self._found_again(receiver, {b"x"})
        assert transport.cluster_id == before
        other = await self.open_transport(place)
        assert other.cluster_id == before
        await other.close()

    async def _found_again(self, receiver: Receiver, wanted: set[bytes]) -> list[Delivery]:
        """What has come when all that is wanted has."""
        found: list[Delivery] = []
        try:
            async with asyncio.timeout(_BACK_AGAIN):
                while not wanted <= set(bodies(found)):
                    found += await receiver.receive()
        except TimeoutError:
            missing = sorted(wanted - set(bodies(found)))
            raise AssertionError(f"{missing} did not come within {_BACK_AGAIN:.0f} s") from None
        return found
