"""Who comes late: a worker after its lease, a death after its quiet time, an answer that never came."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from redrive.errors import StoreBusyError
from redrive.letters import DeadLetter, LetterState
from redrive.replay.options import ReplayOptions
from redrive.replay.plan import begin, plan
from redrive.replay.run import Replay
from redrive.stores.memory import MemoryStore
from redrive.stores.query import EVERYTHING
from redrive.testing import ManualClock
from redrive.transports import Source
from tests.unit.recover.cycle import World

MINUTE = timedelta(minutes=1)
NETWORK = ConnectionResetError("connection reset by peer")


async def failing(body: bytes) -> None:
    raise NETWORK


class SlowToRead(MemoryStore):
    """Whoever reads letters by their ids is stopped before it, for longer than a lease; somebody else claims them."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.turned = clock
        self.slow = False

    async def load(self, ids: Sequence[str]) -> list[DeadLetter]:
        if self.slow:
            self.slow = False
            self.turned.advance(6 * MINUTE)
            await self.rescue(retry_in=timedelta(0))
            assert await self.claim("somebody else", broker="memory")
        return await super().load(ids)


async def a_world_with_a_letter() -> tuple[World, SlowToRead]:
    world = World()
    world.store = store = SlowToRead(world.clock)
    world.collector._store = store
    world.worker = world.a_worker("worker-1")
    await world.open()
    async with world.consuming(failing):
        await world.send(b"one")
        await world.collect()
    world.clock.advance(MINUTE)
    return world, store


async def test_a_worker_that_stood_still_before_it_read_its_letters_does_not_go_on_under_another_claim() -> (
    None
):
    world, store = await a_world_with_a_letter()
    store.slow = True
    await world.worker.turn()
    letter = await world.the_letter()
    assert (letter.locked_by, letter.fence, letter.sent_at) == ("somebody else", 2, None)
    assert await world.transport.depth("orders") == 0
    assert world.worker.counts.stale == 1


async def test_a_replay_that_stood_still_before_it_read_its_letters_leaves_them_to_whoever_has_them() -> None:
    world, store = await a_world_with_a_letter()
    options = ReplayOptions(health_check=False, stop_at=None)
    operation = await begin(store, await plan(store, EVERYTHING), options, by="test", clock=world.clock)
    replay = Replay(store, world.transport, operation, runner="test", clock=world.clock)
    store.slow = True
    await replay._send([(await world.the_letter()).id], asyncio.Event())
    letter = await world.the_letter()
    assert (letter.locked_by, letter.fence, letter.sent_at) == ("somebody else", 2, None)
    assert await world.transport.depth("orders") == 0
    assert await store.remaining(operation.id, limit=10) == [letter.id], "nothing has become of it yet"


@pytest.mark.parametrize("message_id", [None, "m-1"])
async def test_redrive_that_dies_after_the_verdict_timeout_returns_to_its_letter(
    message_id: str | None,
) -> None:
    world = World(verdict_timeout=30 * MINUTE)
    await world.open()
    async with world.consuming(failing):
        await world.send(b"one", message_id=message_id)
        await world.collect()
    world.clock.advance(MINUTE)
    assert await world.worker.turn() == 1
    world.clock.advance(31 * MINUTE)
    async with world.consuming(failing):
        await world.collect()
    letter = await world.the_letter()
    assert (letter.state, letter.dlq_retry_count) == (LetterState.PENDING, 1)


class Forgetful(MemoryStore):
    """Adds, and once does not say so."""

    silent = True

    async def add(self, letters: Sequence[DeadLetter]) -> list[bool]:
        answers = await super().add(letters)
        if self.silent:
            self.silent = False
            raise StoreBusyError("the answer was lost")
        return answers


@pytest.mark.parametrize("message_id", [None, "m-1"])
async def test_letters_whose_add_was_not_answered_are_not_taken_for_others_that_look_alike(
    message_id: str | None,
) -> None:
    world = World()
    world.store = store = Forgetful(world.clock)
    world.collector._store = store
    await world.open()
    async with world.consuming(failing):
        await world.send(b"one", b"two", message_id=message_id)
        await world.quiet()
    receiver = await world.transport.receiver(Source(name="orders.dlq"))
    batch = await receiver.receive()
    with pytest.raises(StoreBusyError):
        await world.collector.keep(batch)
    await world.collector.keep(batch)
    receiver.accept(batch)
    await receiver.close()
    assert len(await world.heads()) == 2
