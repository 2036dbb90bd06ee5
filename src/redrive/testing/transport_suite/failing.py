"""T19 to T21: failing."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from redrive.errors import RedriveError, TransportClosedError, TransportError
from redrive.letters import Message
from redrive.testing.transport_suite.ground import (
    PATIENCE,
    Ground,
    all_done,
    bodies,
    death_of,
    numbered,
    to,
)
from redrive.transports.base import Outcomes, Release, Source, Transport


class Failing(Ground):
    """T19 to T21: failing."""

    async def test_t19_a_receiver_goes_on_after_its_connection_was_lost(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        receiver = await transport.receiver(source)
        for body in numbered(3):
            accepting = asyncio.ensure_future(self.accept_in_the_end(receiver, [body]))
            await asyncio.sleep(0)
            await self.cut(place)
            await self.send_in_the_end(transport, source, body)
            await accepting

    async def test_t19_a_broker_that_was_away_is_found_again(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        await self.fill(transport, source, numbered(3))
        receiver = await transport.receiver(source)
        out = await self.take(receiver, 3)
        await self.leave(place)
        await self.until(lambda: not any(delivery.alive for delivery in out), "they are not alive")
        await self.nothing_comes(receiver)
        await self.come_back(place)
        again = await self.take(receiver, 3)
        assert sorted(bodies(again), key=str) == numbered(3)
        assert receiver.accept(again) == 0
        await self.send_in_the_end(transport, source, b"new")
        assert bodies(await self.take(receiver, 1)) == [b"new"]

    async def test_t19_what_is_published_while_the_broker_is_away_is_not_called_durable(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        await self.leave(place)
        publishing = asyncio.ensure_future(transport.publish(to(source, [Message(body=b"x")] * 3)))
        await asyncio.wait([publishing], timeout=self.quiet)
        if publishing.done():  # it may also wait until the broker is there again
            assert all(isinstance(outcome, RedriveError) for outcome in _outcomes(publishing, 3))
        await self.come_back(place)
        await asyncio.wait([publishing], timeout=PATIENCE)
        outcomes = _outcomes(publishing, 3)
        await self.send_in_the_end(transport, source, b"new")
        assert await transport.depth(source.name) >= 1 + sum(outcome is None for outcome in outcomes)

    async def test_t19_nothing_that_was_confirmed_is_lost_when_connections_break(
        self, transport: Transport, place: Any
    ) -> None:
        source = await self.make_source(transport, window=50)
        confirmed: set[bytes] = set()

        async def publish() -> None:
            for number in range(30):
                sent = numbered(10, b"%d-" % number)
                try:
                    outcomes = await transport.publish(to(source, [Message(body=body) for body in sent]))
                except TransportError:
                    continue
                confirmed.update(
                    body for body, outcome in zip(sent, outcomes, strict=True) if outcome is None
                )

        publishing = asyncio.ensure_future(publish())
        for _ in range(5):
            await asyncio.sleep(0.02)
            await self.cut(place)
        await asyncio.wait_for(publishing, PATIENCE)
        await self.send_in_the_end(transport, source, b"last")
        receiver = await transport.receiver(source)
        found: set[bytes | None] = set()
        async with asyncio.timeout(PATIENCE):
            while not confirmed | {b"last"} <= found:
                batch = await receiver.receive()
                found.update(bodies(batch))
                receiver.accept(batch)

    async def test_t20_a_source_that_is_deleted_does_not_hurt_another(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        doomed = await self.make_source(transport)
        receiver, unlucky = await transport.receiver(source), await transport.receiver(doomed)
        await self.fill(transport, source, [b"before"])
        await self.fill(transport, doomed, [b"doomed"])
        [before] = await self.take(receiver, 1)
        await self.take(unlucky, 1)

        await self.remove(place, doomed.name)

        await self.fill(transport, source, [b"after"])
        [after] = await self.take(receiver, 1)
        assert before.alive
        assert receiver.accept([before, after]) == 0
        await receiver.close()
        assert await transport.depth(source.name) == 0

    async def test_t20_dead_letters_that_cannot_be_written_do_not_hurt_another_source(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        troubled = await self.make_source(transport)
        await self.fill(transport, source, numbered(2))
        await self.fill(transport, troubled, [b"x"])
        receiver, other = await transport.receiver(source), await transport.receiver(troubled)
        [stuck] = await self.take(other, 1)
        done, dead = await self.take(receiver, 2)
        await self.remove(place, troubled.dlq)

        outcomes = await asyncio.gather(
            other.dead_letter([death_of(stuck)]), receiver.dead_letter([death_of(dead)])
        )

        assert isinstance(outcomes[0][0], RedriveError)
        assert all_done(outcomes[1], 1)
        assert (stuck.alive, done.alive) == (True, True)
        assert receiver.accept([done]) == 0

    async def test_t21_after_close_every_verb_says_so(self, transport: Transport, source: Source) -> None:
        await self.fill(transport, source, [b"x"])
        receiver = await transport.receiver(source)
        [delivery] = await self.take(receiver, 1)
        death = death_of(delivery)
        await transport.close()
        assert not delivery.alive
        verbs: list[Callable[[], Awaitable[object]]] = [
            lambda: transport.receiver(source),
            lambda: transport.publish(to(source, [Message(body=b"x")])),
            lambda: transport.publish([]),
            lambda: transport.depth(source.name),
            lambda: transport.peek(source.name, 1),
            lambda: transport.taken_until(source.name),
            lambda: transport.unreachable([]),
            lambda: transport.provision([source]),
            receiver.receive,
            lambda: receiver.release([Release(delivery)]),
            lambda: receiver.dead_letter([death]),
        ]
        for verb in verbs:
            with pytest.raises(TransportClosedError, match="closed"):
                await asyncio.wait_for(verb(), PATIENCE)
        with contextlib.suppress(TransportClosedError):
            assert (
                receiver.accept([delivery]) == 1
            )  # it does not wait, so it may also say that it is too late (T13)
        await receiver.close()
        await transport.close()  # again does nothing

    async def test_t21_close_ends_a_receive_that_waits(self, transport: Transport, source: Source) -> None:
        receiver = await transport.receiver(source)
        receiving = asyncio.ensure_future(receiver.receive())
        await asyncio.wait([receiving], timeout=self.quiet)
        await transport.close()
        with pytest.raises(TransportClosedError):
            await asyncio.wait_for(receiving, PATIENCE)

    async def test_t21_close_ends_also_while_the_broker_is_away(
        self, transport: Transport, source: Source, place: Any
    ) -> None:
        receiver = await transport.receiver(source)
        receiving = asyncio.ensure_future(receiver.receive())
        await asyncio.sleep(0)
        await self.leave(place)
        await asyncio.wait_for(transport.close(), PATIENCE)
        with pytest.raises(TransportClosedError):
            await asyncio.wait_for(receiving, PATIENCE)
        await self.come_back(place)

    async def test_t21_a_transport_is_closed_by_its_context(self, place: Any) -> None:
        async with await self.open_transport(place) as transport:
            source = await self.make_source(transport)
        with pytest.raises(TransportClosedError):
            await transport.depth(source.name)


def _outcomes(publishing: "asyncio.Future[Outcomes]", count: int) -> Outcomes:
    error = publishing.exception()
    if error is None:
        return publishing.result()
    assert isinstance(error, TransportError)
    return [error] * count
