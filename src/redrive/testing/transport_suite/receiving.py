"""T1 to T7 and T13: receiving and accepting."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from redrive.errors import SourceMissingError, TransportClosedError
from redrive.letters import Message
from redrive.testing.transport_suite.ground import (
    EVERY_BYTE,
    PATIENCE,
    Ground,
    all_done,
    bodies,
    death_of,
    difference,
    numbered,
)
from redrive.transports.base import Delivery, Receiver, Release, Source, Transport


class Receiving(Ground):
    """T1 to T7 and T13: receiving and accepting."""

    # --- T1 -----------------------------------------------------------------------------------------------

    async def test_t1_receive_waits_until_there_is_something(
        self, transport: Transport, source: Source
    ) -> None:
        receiver = await transport.receiver(source)
        receiving = asyncio.ensure_future(receiver.receive())
        done, _ = await asyncio.wait([receiving], timeout=self.quiet)
        assert not done
        await self.fill(transport, source, [b"late"])
        assert bodies(await asyncio.wait_for(receiving, PATIENCE)) == [b"late"]

    async def test_t1_deliveries_come_in_the_order_of_the_source(self, transport: Transport) -> None:
        source = await self.make_source(transport, window=300)
        await self.fill(transport, source, numbered(300))
        receiver = await transport.receiver(source)
        assert bodies(await self.take(receiver, 300)) == numbered(300)

    async def test_t1_a_receive_that_is_given_up_loses_nothing(
        self, transport: Transport, source: Source
    ) -> None:
        receiver = await transport.receiver(source)
        for _ in range(3):
            await self.nothing_comes(receiver)
        await self.fill(transport, source, numbered(5))
        assert bodies(await self.take(receiver, 5)) == numbered(5)

    async def test_t1_two_receivers_share_a_source_and_each_message_goes_to_one(
        self, transport: Transport, place: Any
    ) -> None:
        source = await self.make_source(transport, window=5)
        other = await self.open_transport(place)
        try:
            receivers = [await transport.receiver(source), await other.receiver(source)]
            await self.fill(transport, source, numbered(10))
            if transport.capabilities.partitions:  # one of them may have all there is
                taken = [await self._shared(receivers, 10)]
            else:
                taken = [await self.take(receiver, 5) for receiver in receivers]
            found = [body for some in taken for body in bodies(some)]
            assert sorted(found, key=str) == sorted(numbered(10), key=str)
        finally:
            await other.close()

    async def _shared(self, receivers: Sequence[Receiver], count: int) -> list[Delivery]:
        """What several receivers get, whoever gets it; each accepts what it has."""
        taken: list[Delivery] = []

        async def accept_all(receiver: Receiver) -> None:
            while True:
                batch = await receiver.receive()
                receiver.accept(batch)
                taken.extend(batch)

        tasks = [asyncio.ensure_future(accept_all(receiver)) for receiver in receivers]
        try:
            await self.until(lambda: len(taken) >= count, f"{count} deliveries")
            await asyncio.wait(tasks, timeout=self.quiet)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return taken

    async def test_t1_a_source_that_does_not_exist_is_missing(
        self, transport: Transport, source: Source
    ) -> None:
        with pytest.raises(SourceMissingError, match="no-such-source"):
            await transport.receiver(Source(name="no-such-source"))
        await self.fill(transport, source, [b"x"])  # and nothing else is hurt by that
        assert bodies(await self.take(await transport.receiver(source), 1)) == [b"x"]

    # --- T2 -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "body",
        [EVERY_BYTE, b"", b"\x00", b"\xce\xff\xc3", b'{"order": 17}', EVERY_BYTE * 4096],
        ids=["every byte", "empty", "one NUL", "no UTF-8", "JSON", "1 MiB"],
    )
    async def test_t2_a_body_arrives_bit_exact(
        self, transport: Transport, source: Source, body: bytes
    ) -> None:
        await self.fill(transport, source, [body])
        [delivery] = await self.take(await transport.receiver(source), 1)
        assert delivery.body == body
        assert delivery.message.body == body

    async def test_t2_headers_arrive_with_their_types(self, transport: Transport, source: Source) -> None:
        await self.send(transport, source, [Message(body=b"", headers=self.headers)])
        [delivery] = await self.take(await transport.receiver(source), 1)
        assert difference(delivery.message, Message(body=b"", headers=self.headers)) is None

    async def test_t2_a_message_arrives_with_all_its_properties(
        self, transport: Transport, source: Source
    ) -> None:
        sent = self.a_full_message()
        await self.send(transport, source, [sent])
        [delivery] = await self.take(await transport.receiver(source), 1)
        assert difference(delivery.message, sent) is None
        assert delivery.content_type == sent.content_type

    async def test_t2_a_message_without_anything_arrives_without_anything(
        self, transport: Transport, source: Source
    ) -> None:
        await self.send(transport, source, [Message(body=b"bare")])
        [delivery] = await self.take(await transport.receiver(source), 1)
        assert (delivery.message.headers, delivery.message.message_id) == (Message(body=None).headers, None)
        assert (delivery.message.content_type, delivery.message.correlation_id) == (None, None)

    async def test_t2_the_origin_is_the_source(self, transport: Transport, source: Source) -> None:
        await self.fill(transport, source, numbered(2))
        one, other = await self.take(await transport.receiver(source), 2)
        assert (one.origin.transport, one.origin.source) == (transport.kind, source.name)
        assert one.key
        assert one.key != other.key

    # --- T3 -----------------------------------------------------------------------------------------------

    async def test_t3_the_window_is_never_exceeded(self, transport: Transport) -> None:
        source = await self.make_source(transport, window=3)
        await self.fill(transport, source, numbered(10))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 3)
        await self.nothing_comes(receiver)
        receiver.accept(out[:1])
        assert bodies(await self.take(receiver, 1)) == [b"3"]
        await self.nothing_comes(receiver)

    async def test_t3_a_receive_that_waits_for_room_goes_on_when_there_is_some(
        self, transport: Transport
    ) -> None:
        source = await self.make_source(transport, window=1)
        await self.fill(transport, source, numbered(4))
        receiver = await transport.receiver(source)

        async def accept(delivery: Delivery) -> None:
            receiver.accept([delivery])

        async def bury(delivery: Delivery) -> None:
            assert all_done(await receiver.dead_letter([death_of(delivery)]), 1)

        async def widen(_: Delivery) -> None:
            receiver.resize(2)

        [out] = await self.take(receiver, 1)
        for number, step in enumerate((accept, bury, widen), 1):
            receiving = asyncio.ensure_future(receiver.receive())
            done, _ = await asyncio.wait([receiving], timeout=self.quiet)
            assert not done
            await step(out)
            [out] = await asyncio.wait_for(receiving, PATIENCE)
            assert out.body == b"%d" % number

    async def test_t3_a_released_and_a_buried_delivery_leave_the_window(self, transport: Transport) -> None:
        source = await self.make_source(transport, window=1)
        await self.fill(transport, source, numbered(2))
        receiver = await transport.receiver(source)
        [first] = await self.take(receiver, 1)
        assert all_done(await receiver.dead_letter([death_of(first)]), 1)
        [second] = await self.take(receiver, 1)
        assert all_done(await receiver.release([Release(second)]), 1)
        [again] = await self.take(receiver, 1)
        assert again.body == b"1"

    async def test_t3_a_window_grows_while_it_runs(self, transport: Transport) -> None:
        source = await self.make_source(transport, window=2)
        await self.fill(transport, source, numbered(10))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 2)
        receiver.resize(5)
        out += await self.take(receiver, 3)
        assert bodies(out) == numbered(5)
        await self.nothing_comes(receiver)
        assert receiver.accept(out) == 0
        assert bodies(await self.take(receiver, 5)) == numbered(10)[5:]

    async def test_t3_a_window_shrinks_while_it_runs(self, transport: Transport) -> None:
        source = await self.make_source(transport, window=5)
        await self.fill(transport, source, numbered(10))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 5)
        receiver.resize(2)
        await self.nothing_comes(receiver)  # the broker may take a moment to hear of it
        receiver.accept(out[:3])
        await self.nothing_comes(receiver)
        assert all(delivery.alive for delivery in out[3:])
        receiver.accept(out[3:4])
        assert bodies(await self.take(receiver, 1)) == [b"5"]
        await self.nothing_comes(receiver)

    async def test_t3_a_window_that_was_resized_stays_so_when_the_connection_is_lost(
        self, transport: Transport, place: Any
    ) -> None:
        source = await self.make_source(transport, window=2)
        receiver = await transport.receiver(source)
        receiver.resize(4)
        await self.fill(transport, source, numbered(10))
        out = await self.take(receiver, 4)
        await self.cut(place)
        await self.until(lambda: not any(delivery.alive for delivery in out), "they are not alive")
        await self.take(receiver, 4)
        await self.nothing_comes(receiver)

    # --- T4 -----------------------------------------------------------------------------------------------

    async def test_t4_the_first_delivery_is_the_first(self, transport: Transport, source: Source) -> None:
        self.needs(transport.capabilities.delivery_count, "delivery count")
        await self.fill(transport, source, numbered(2))
        taken = await self.take(await transport.receiver(source), 2)
        assert [delivery.delivery_count for delivery in taken] == [1, 1]

    async def test_t4_each_lost_connection_counts_up(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        self.needs(transport.capabilities.delivery_count, "delivery count")
        await self.fill(transport, source, [b"kills its worker"])
        receiver = await transport.receiver(source)
        counts, keys = [], set()
        for _ in range(3):
            [delivery] = await self.take(receiver, 1)
            counts.append(delivery.delivery_count)
            keys.add(delivery.key)
            await self.nothing_comes(receiver)  # whatever the transport has to do about it is done
            await self.cut(place)
        assert counts == [1, 2, 3]
        assert len(keys) == 1

    async def test_t4_a_message_that_ends_its_worker_at_once_does_not_multiply(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        await self.fill(transport, source, [b"kills its worker"])
        receiver = await transport.receiver(source)
        highest = 0
        keys: set[str] = set()
        for _ in range(6):
            batch = await asyncio.wait_for(receiver.receive(), PATIENCE)
            highest = max(highest, *(delivery.delivery_count or 0 for delivery in batch))
            keys.update(delivery.key for delivery in batch)
            await self.cut(place)
            await self.until(lambda lost=batch: not any(delivery.alive for delivery in lost), "it is lost")  # type: ignore[misc]
        if transport.capabilities.delivery_count:
            assert highest > 3  # or it would never be known for what it is
        await receiver.close()
        # A crash may leave a duplicate, but one duplicate must not become two.
        found = await self._all_that_comes(await transport.receiver(source))
        assert 1 <= len(found) <= 2
        assert len(keys | {delivery.key for delivery in found}) == 1

    async def test_t4_each_end_of_a_consumer_counts_up(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        self.needs(transport.capabilities.delivery_count, "delivery count")
        await self.fill(transport, source, [b"kills its worker"])
        counts = []
        for _ in range(3):
            consumer = await self.open_transport(place)
            [delivery] = await self.take(await consumer.receiver(source), 1)
            counts.append(delivery.delivery_count)
            await consumer.close()
        assert counts == [1, 2, 3]

    async def _all_that_comes(self, receiver: Receiver) -> list[Delivery]:
        """Everything, until nothing has come for a while; the first may take its time."""
        found: list[Delivery] = []
        for _ in range(100):
            receiving = asyncio.ensure_future(receiver.receive())
            done, _ = await asyncio.wait([receiving], timeout=self.quiet * 3 if found else PATIENCE)
            if not done:
                receiving.cancel()
                break
            found += receiving.result()
        return found

    # --- T5 and T6 ----------------------------------------------------------------------------------------

    async def test_t5_stop_ends_a_receive_that_waits(self, transport: Transport, source: Source) -> None:
        receiver = await transport.receiver(source)
        receiving = asyncio.ensure_future(receiver.receive())
        await asyncio.wait([receiving], timeout=self.quiet)
        await receiver.stop()
        with pytest.raises(TransportClosedError):
            await asyncio.wait_for(receiving, PATIENCE)
        await receiver.stop()  # again does nothing

    async def test_t5_after_stop_receive_gives_what_is_left_and_nothing_is_lost(
        self, transport: Transport
    ) -> None:
        source = await self.make_source(transport, window=6)
        await self.fill(transport, source, numbered(10))
        receiver = await transport.receiver(source)
        out = list(await asyncio.wait_for(receiver.receive(), PATIENCE))
        await receiver.stop()
        with pytest.raises(TransportClosedError):
            for _ in range(10):
                out += await asyncio.wait_for(receiver.receive(), PATIENCE)
        assert len(out) <= 6
        assert bodies(out) == numbered(10)[: len(out)]
        assert receiver.accept(out) == 0  # what is out can still be settled
        await receiver.close()
        await self.depth_becomes(transport, source.name, 10 - len(out))
        assert bodies(await self.take_all(transport, source)) == numbered(10)[len(out) :]

    async def test_t5_after_stop_what_is_out_can_be_released_and_buried(
        self, transport: Transport, source: Source
    ) -> None:
        await self.fill(transport, source, numbered(2))
        receiver = await transport.receiver(source)
        back, dead = await self.take(receiver, 2)
        await receiver.stop()
        assert all_done(await receiver.release([Release(back)]), 1)
        assert all_done(await receiver.dead_letter([death_of(dead)]), 1)
        await receiver.close()
        await self.depth_becomes(transport, source.name, 1)
        await self.depth_becomes(transport, source.dlq, 1)

    async def test_t6_close_gives_back_what_is_unsettled(self, transport: Transport, source: Source) -> None:
        await self.fill(transport, source, numbered(3))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 3)
        receiver.accept(out[:1])
        await receiver.close()
        assert not any(delivery.alive for delivery in out)
        await self.depth_becomes(transport, source.name, 2)
        again = await self.take(await transport.receiver(source), 2)
        assert sorted(bodies(again), key=str) == [b"1", b"2"]
        if transport.capabilities.delivery_count:
            assert [delivery.delivery_count for delivery in again] == [2, 2]

    # --- T7 and T13 ---------------------------------------------------------------------------------------

    async def test_t7_what_is_accepted_is_gone(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        await self.fill(transport, source, numbered(5))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 5)
        assert all(delivery.alive for delivery in out)
        assert receiver.accept(out[1:]) == 0
        assert receiver.accept(out[:1]) == 0  # in any order
        assert not any(delivery.alive for delivery in out)
        await receiver.close()
        other = await self.open_transport(place)
        assert await other.depth(source.name) == 0
        await other.close()

    async def test_t7_what_is_settled_again_is_left_as_it_is(
        self, transport: Transport, source: Source
    ) -> None:
        await self.fill(transport, source, [b"once"])
        receiver = await transport.receiver(source)
        [delivery] = await self.take(receiver, 1)
        death = death_of(delivery)
        assert receiver.accept([delivery, delivery]) == 0
        assert receiver.accept([delivery]) == 0
        assert all_done(await receiver.release([Release(delivery)]), 1)
        assert all_done(await receiver.dead_letter([death]), 1)
        await self.nothing_comes(receiver)
        assert await transport.depth(source.dlq) == 0
        await self.fill(transport, source, [b"next"])  # the connection has taken no harm
        assert bodies(await self.take(receiver, 1)) == [b"next"]

    async def test_t13_what_came_by_a_lost_connection_is_too_late(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        await self.fill(transport, source, numbered(3))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 3)
        receiver.accept(out[:1])
        await self.depth_becomes(transport, source.name, 0)
        await self.cut(place)
        await self.until(lambda: not any(delivery.alive for delivery in out), "they are not alive")
        assert receiver.accept(out) == 2  # the first one was in time
        await self.accept_in_the_end(receiver, [b"1", b"2"])  # and the first one if that was undone (T7)
        await self.nothing_comes(receiver)

    async def test_t13_what_came_by_a_lost_connection_is_neither_released_nor_buried(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        await self.fill(transport, source, numbered(2))
        receiver = await transport.receiver(source)
        back, dead = await self.take(receiver, 2)
        await self.cut(place)
        await self.until(lambda: not back.alive and not dead.alive, "they are not alive")
        assert not all_done(await receiver.release([Release(back)]), 1)
        assert not all_done(await receiver.dead_letter([death_of(dead)]), 1)
        assert sorted(bodies(await self.take(receiver, 2)), key=str) == [b"0", b"1"]
        assert await transport.depth(source.dlq) == 0
        await self.nothing_comes(receiver)
