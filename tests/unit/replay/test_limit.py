"""The limit of redrives holds for a message, whichever letter it is in, except for copies that a person asks for."""

import asyncio
from datetime import timedelta

import msgspec

from redrive.letters import DeadLetter, LetterState
from redrive.replay.options import ReplayOptions
from redrive.replay.plan import begin, by_ids, plan
from redrive.replay.run import Replay
from redrive.rules import StrategyOptions
from redrive.stores.operations import Operation
from redrive.stores.query import EVERYTHING
from redrive.testing import letters
from redrive.transports import Publication, Target
from tests.unit.recover.cycle import World

LIMIT = 2
STRATEGY = StrategyOptions(max_redrives=LIMIT)
OPTIONS = ReplayOptions(health_check=False, stop_at=None)


async def replayed(
    world: World, options: ReplayOptions = OPTIONS, *ids: str, copies: bool = False
) -> Operation:
    frozen = await plan(world.store, by_ids(ids) if ids else EVERYTHING, copies=copies)
    operation = await begin(world.store, frozen, options, by="anna", clock=world.clock)
    replay = Replay(
        world.store, world.transport, operation, runner="test", clock=world.clock, strategy=STRATEGY
    )
    return await replay.run(asyncio.Event())


async def with_second_copy_dead() -> tuple[World, DeadLetter]:
    """The last redrive was published twice: one copy was processed, and the other died afterwards."""
    world = World(strategy=STRATEGY)
    await world.open()
    failing = True

    async def handle(body: bytes) -> None:
        if failing:
            raise ConnectionResetError("connection reset by peer")

    async with world.consuming(handle):
        await world.send(b"one", message_id="m-1")
        await world.collect()
        for _ in range(LIMIT - 1):
            world.clock.advance(timedelta(days=1))
            assert await world.worker.turn() == 1
            await world.collect()
    world.clock.advance(timedelta(days=1))
    assert await world.worker.turn() == 1
    (message,) = await world.transport.peek("orders", 10)
    failing = False
    async with world.consuming(handle):
        await world.collect()
    assert await world.states() == [LetterState.RESOLVED]
    await world.transport.publish([Publication(message, Target(name="orders"))])
    failing = True
    async with world.consuming(handle):
        await world.collect()
    (head,) = [one for one in await world.heads() if one.state is not LetterState.RESOLVED]
    return world, (await world.store.load([head.id]))[0]


async def test_second_copy_of_a_resolved_redrive_keeps_the_number_of_redrives() -> None:
    _, letter = await with_second_copy_dead()
    assert (letter.state, letter.prior_redrives, letter.dlq_retry_count) == (LetterState.PENDING, LIMIT, 0)


async def test_worker_does_not_send_a_second_copy_beyond_the_limit() -> None:
    world, _ = await with_second_copy_dead()
    world.clock.advance(timedelta(days=1))
    await world.worker.turn()
    assert await world.transport.depth("orders") == 0
    assert await world.states() == [LetterState.FAILED, LetterState.RESOLVED]


async def test_replay_does_not_send_a_second_copy_beyond_the_limit() -> None:
    world, letter = await with_second_copy_dead()
    done = await replayed(world)
    assert await world.transport.depth("orders") == 0
    assert dict(done.outcomes) == {"failed": 1}
    (item,) = await world.store.items(done.id, limit=10)
    assert "redriven 2 times, which is the limit" in item.detail
    assert await world.states() == [LetterState.PENDING, LetterState.RESOLVED], "the next worker closes it"
    assert (await world.store.load([letter.id]))[0].dlq_retry_count == 0


async def test_unconfirmed_letter_at_the_limit_is_not_replayed() -> None:
    world = World(strategy=STRATEGY)
    await world.open()
    (letter,) = letters(1, transport="memory")
    await world.store.add([msgspec.structs.replace(letter, prior_redrives=LIMIT - 1)])
    world.clock.advance(timedelta(days=1))
    assert await world.worker.turn() == 1
    world.clock.advance(timedelta(hours=2))
    assert await world.store.overdue(broker="memory", lease=timedelta(hours=1))
    done = await replayed(world)
    assert dict(done.outcomes) == {"failed": 1}
    assert await world.transport.depth("orders") == 1
    head = await world.the_letter()
    assert (head.unconfirmed, head.dlq_retry_count) == (True, 0), "a verdict may still come"


async def test_unconfirmed_letter_of_another_broker_is_left_alone() -> None:
    world = World(strategy=STRATEGY)
    await world.open()
    (letter,) = letters(1, transport="memory")
    await world.store.add([msgspec.structs.replace(letter, broker="south")])
    world.clock.advance(timedelta(days=1))
    (head,) = await world.store.claim("worker of south", broker="south")
    await world.store.extend([head.claim_token], sent=True)
    world.clock.advance(timedelta(hours=2))
    assert await world.store.overdue(broker="south", lease=timedelta(hours=1))
    assert dict((await replayed(world)).outcomes) == {"failed": 1}
    head = await world.the_letter()
    assert (head.state, head.unconfirmed, head.fence) == (LetterState.PROCESSING, True, 1)


async def test_copies_that_a_person_asks_for_are_sent_beyond_the_limit() -> None:
    world, letter = await with_second_copy_dead()
    world.clock.advance(timedelta(days=1))
    await world.worker.turn()
    done = await replayed(world, OPTIONS, letter.id, copies=True)
    assert dict(done.outcomes) == {"sent": 1}
    (message,) = await world.transport.peek("orders", 10)
    assert message.headers.get("redrive-attempt") == LIMIT + 2  # the worker's end of the letter counts, too


async def test_skip_done_compares_broker_and_source() -> None:
    """Equal message ids on another broker, or in another queue, are other messages."""
    world = World()
    await world.open()
    done, same, elsewhere = letters(3, transport="memory")
    message = done.message
    await world.store.add(
        [
            done,
            msgspec.structs.replace(same, message=message, message_id=done.message_id),
            msgspec.structs.replace(
                elsewhere, message=message, message_id=done.message_id, source="payments", broker="memory"
            ),
        ]
    )
    assert dict((await replayed(world, OPTIONS, done.id)).outcomes) == {"sent": 1}

    async def handle(body: bytes) -> None: ...

    async with world.consuming(handle):
        await world.collect()
    skipping = msgspec.structs.replace(OPTIONS, skip_done=True)
    assert dict((await replayed(world, skipping, same.id)).outcomes) == {"skipped": 1}
    assert dict((await replayed(world, skipping, elsewhere.id)).outcomes) == {"sent": 1}
