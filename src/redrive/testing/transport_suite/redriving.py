"""T23 to T26: redriving."""

import asyncio
from datetime import timedelta
from secrets import token_hex
from typing import Any

import pytest

from redrive.clock import SystemClock
from redrive.errors import SourceMissingError
from redrive.testing.transport_suite.ground import PATIENCE, Ground, all_done, numbered
from redrive.transports.base import Release, Source, Transport


class Redriving(Ground):
    """T23 to T26: redriving."""

    # --- cluster_id ---------------------------------------------------------------------------------------

    async def test_t23_cluster_id_is_the_same_on_every_transport(
        self, transport: Transport, place: Any
    ) -> None:
        assert transport.cluster_id
        other = await self.open_transport(place)
        assert other.cluster_id == transport.cluster_id
        await other.close()

    async def test_t23_cluster_id_is_the_same_after_a_reconnect(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        before = transport.cluster_id
        await self.cut(place)
        await self.send_in_the_end(transport, source, b"new")
        assert transport.cluster_id == before
        other = await self.open_transport(place)
        assert other.cluster_id == before
        await other.close()

    async def test_t23_endpoint_names_the_broker_without_credentials(self, transport: Transport) -> None:
        assert transport.endpoint
        assert "@" not in transport.endpoint

    # --- taken_until --------------------------------------------------------------------------------------

    async def test_t24_taken_until_does_not_include_a_message_that_waits(self, transport: Transport) -> None:
        source = await self._make_consumed(transport)
        for body in numbered(2):
            sent = _now()
            await self.fill(transport, source, [body])
            await self._is_not_taken(transport, source, sent)

    async def test_t24_taken_until_reaches_a_message_that_was_accepted(self, transport: Transport) -> None:
        source = await self._make_consumed(transport)
        receiver = await transport.receiver(source)
        for body in numbered(2):
            sent = _now()
            await self.fill(transport, source, [body])
            receiver.accept(await self.take(receiver, 1))
            await self._becomes_taken(transport, source, sent)

    async def test_t24_taken_until_does_not_include_the_second_of_two_messages(
        self, transport: Transport
    ) -> None:
        source = await self._make_consumed(transport, window=1)
        sent = _now()
        await self.fill(transport, source, numbered(2))
        receiver = await transport.receiver(source)
        receiver.accept(await self.take(receiver, 1))
        await receiver.close()
        await self._is_not_taken(transport, source, sent)

    async def test_t24_taken_until_does_not_include_a_message_that_was_given_back(
        self, transport: Transport
    ) -> None:
        source = await self._make_consumed(transport)
        sent = _now()
        await self.fill(transport, source, [b"again"])
        receiver = await transport.receiver(source)
        await self.take(receiver, 1)
        await receiver.close()
        await self._is_not_taken(transport, source, sent)

    async def test_t24_taken_until_does_not_include_a_message_that_waits_for_its_delay(
        self, transport: Transport
    ) -> None:
        self.needs(transport.capabilities.delayed_release, "delayed release")
        source = await self._make_consumed(transport)
        sent = _now()
        await self.fill(transport, source, [b"later"])
        receiver = await transport.receiver(source)
        [delivery] = await self.take(receiver, 1)
        assert all_done(await receiver.release([Release(delivery, self.delay * 60)]), 1)
        await self._is_not_taken(transport, source, sent)
        await receiver.close()
        await self._is_not_taken(transport, source, sent)

    async def test_t24_taken_until_reaches_a_message_that_was_accepted_after_its_delay(
        self, transport: Transport
    ) -> None:
        self.needs(transport.capabilities.delayed_release, "delayed release")
        source = await self._make_consumed(transport)
        sent = _now()
        await self.fill(transport, source, [b"later"])
        receiver = await transport.receiver(source)
        [delivery] = await self.take(receiver, 1)
        assert all_done(await receiver.release([Release(delivery, self.delay)]), 1)
        receiver.accept(await self.take(receiver, 1))
        await self._becomes_taken(transport, source, sent)

    async def test_t24_taken_until_is_told_for_each_group(self, transport: Transport) -> None:
        self.needs(transport.capabilities.broadcast, "consumer groups")
        source = await self._make_consumed(transport)
        sent = _now()
        await self.fill(transport, source, [b"for all"])
        receiver = await transport.receiver(source)
        receiver.accept(await self.take(receiver, 1))
        await self._becomes_taken(transport, source, sent)
        other = Source(name=source.name, consumer_group=f"other-{token_hex(4)}")
        await self._is_not_taken(transport, other, sent)

    async def test_t24_taken_until_is_unknown_for_no_group(self, transport: Transport) -> None:
        self.needs(transport.capabilities.broadcast, "consumer groups")
        source = await self._make_consumed(transport)
        assert await transport.taken_until(source.name) is None

    # --- target_state -------------------------------------------------------------------------------------

    async def test_t26_target_state_tells_depth_consumers_and_no_alarm(self, transport: Transport) -> None:
        source = await self._make_consumed(transport)
        name, group = _consumer(source)
        await self.fill(transport, source, numbered(3))
        waiting = await transport.target_state(name, group)
        assert (waiting.depth, waiting.alarm) == (3, None)
        assert waiting.consumers in {0, None}
        receiver = await transport.receiver(source)
        receiver.accept(await self.take(receiver, 3))
        found = waiting
        for _ in range(int(PATIENCE / 0.02)):
            found = await transport.target_state(name, group)
            if found.depth == 0 and found.consumers != 0:
                break
            await asyncio.sleep(0.02)
        assert found.depth == 0
        assert found.consumers in {1, None}

    async def test_t26_target_state_of_a_missing_source_is_an_error(self, transport: Transport) -> None:
        with pytest.raises(SourceMissingError):
            await transport.target_state(f"missing-{token_hex(4)}")

    # --- unreachable --------------------------------------------------------------------------------------

    async def test_t25_unreachable_does_not_name_a_consumer_that_receives(self, transport: Transport) -> None:
        source = await self._make_consumed(transport)
        await self.fill(transport, source, [b"x"])
        receiver = await transport.receiver(source)
        await self.take(receiver, 1)
        assert dict(await transport.unreachable([_consumer(source)])) == {}

    async def test_t25_unreachable_does_not_name_a_consumer_that_was_there_before(
        self, transport: Transport
    ) -> None:
        source = await self._make_consumed(transport)
        await self.fill(transport, source, [b"x"])
        receiver = await transport.receiver(source)
        receiver.accept(await self.take(receiver, 1))
        await receiver.close()
        assert dict(await transport.unreachable([_consumer(source)])) == {}

    async def test_t25_unreachable_does_not_name_a_consumer_without_a_group(
        self, transport: Transport, source: Source
    ) -> None:
        assert dict(await transport.unreachable([])) == {}
        assert dict(await transport.unreachable([(source.name, "")])) == {}

    async def test_t25_unreachable_names_a_group_that_was_never_used(self, transport: Transport) -> None:
        self.needs(transport.capabilities.broadcast, "consumer groups")
        source = await self._make_consumed(transport)
        await self.fill(transport, source, [b"x"])
        receiver = await transport.receiver(source)
        await self.take(receiver, 1)
        unused = [(source.name, f"{name}-{token_hex(4)}") for name in ("one", "two")]
        found = await transport.unreachable([_consumer(source), *unused, (source.name, "")])
        assert set(found) == set(unused)
        for consumer, reason in found.items():
            assert all(name in reason for name in consumer)

    # --- inside -------------------------------------------------------------------------------------------

    async def _make_consumed(self, transport: Transport, **fields: Any) -> Source:
        """A source, with a consumer group of its own where the broker has groups."""
        if transport.capabilities.broadcast:
            fields.setdefault("consumer_group", f"shop-{token_hex(4)}")
        return await self.make_source(transport, **fields)

    async def _is_not_taken(self, transport: Transport, source: Source, sent: timedelta) -> None:
        """For a while it is not said that everything sent before a time later than this was taken."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.quiet
        while True:
            taken = await transport.taken_until(*_consumer(source))
            assert taken is None or taken <= sent
            if loop.time() >= end:
                return
            await asyncio.sleep(0.02)

    async def _becomes_taken(self, transport: Transport, source: Source, sent: timedelta) -> None:
        """Wait until everything sent up to this time was taken, and not only that: accepting does not wait."""
        asked = _now()
        taken = None
        for _ in range(int(PATIENCE / 0.02)):
            taken = await transport.taken_until(*_consumer(source))
            if taken is not None and taken >= asked >= sent:
                assert taken <= _now()
                return
            await asyncio.sleep(0.02)
        pytest.fail(f"everything was taken until {taken}, not until {asked}")


def _now() -> timedelta:
    """By the clock of the transports, which are opened with the clock of the system."""
    return SystemClock().monotonic()


def _consumer(source: Source) -> tuple[str, str]:
    return source.name, source.consumer_group or ""
